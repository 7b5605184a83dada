"""Checks the replicas that a request assigns to a partition."""

from __future__ import annotations

from collections.abc import Container, Sequence

from kio.schema.errors import ErrorCode

from gateway.handlers.topic_replies import AdminRefusal

_REPLICAS_MAX = 10_000  # no cluster has so many brokers, so one of so many replicas is at fault


def check_assigned_replicas(replicas: Sequence[int], brokers: Container[int]) -> None:
    """Check that replicas are live brokers, each once. Raises AdminRefusal.

    Source: Kafka, ReplicationControlManager.validateManualPartitionAssignment.
    """
    begin = "The manual partition assignment includes"
    fault = None
    if not replicas:
        fault = f"{begin} an empty replica list."
    before = None
    for each in sorted(replicas[:_REPLICAS_MAX]):
        if each not in brokers:
            fault = f"{begin} broker {each}, but no such broker is registered."
        elif each == before:
            fault = f"{begin} the broker {each} more than once."
        if fault is not None:
            break
        before = each
    if fault is None and len(replicas) > _REPLICAS_MAX:
        fault = f"{begin} more than {_REPLICAS_MAX} brokers."
    if fault is not None:
        raise AdminRefusal(ErrorCode.invalid_replica_assignment, fault)
