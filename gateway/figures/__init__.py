"""Figures of topics and groups: what this gateway knows, and what all gateways know together.

    Share     the partitions that this gateway leads and the groups that it coordinates, sampled
    Mirror    the shares of all live gateways, at most a second old while they are asked for
    Timeline  the events of all live gateways

Each begins when it is first needed, and ends with the gateway. Nothing here is imported before.
"""
