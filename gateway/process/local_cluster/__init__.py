"""A cluster of processes on this machine: ZooKeeper, bookies, an auditor and gateways."""
