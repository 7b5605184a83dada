"""Requests of `gateway transaction`, with their results as plain data."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gateway.admin.client import AdminClient, AdminError, raise_for

_DESCRIBE_TRANSACTIONS, _LIST_TRANSACTIONS = 65, 66
_PATTERN_FROM = 2
_TRANSACTION_KEY = 1  # the type of keys that FindCoordinator takes for transactional ids

Row = dict[str, Any]


async def list_transactions(
    client: AdminClient,
    states: Sequence[str],
    producer_ids: Sequence[int],
    longer_ms: int,
    pattern: str | None = None,
) -> list[Row]:
    """List the transactional ids of all brokers by name.

    Without states, producer ids or a pattern, all are listed; with `longer_ms` -1, transactions of
    any age. Raises AdminError if a broker cannot filter by pattern or by one of these states, or
    refuses the pattern.
    """

    def fields(version: int) -> Row:
        if pattern is not None and version < _PATTERN_FROM:
            raise AdminError("the broker cannot list by pattern", "UNSUPPORTED_VERSION")
        return {
            "state_filters": states,
            "producer_id_filters": producer_ids,
            "duration_filter": longer_ms,
            "transactional_id_pattern": pattern,
        }

    answers = await client.at_every_broker(
        _LIST_TRANSACTIONS, fields, lambda answer: [answer.error_code]
    )
    found: dict[str, Row] = {}
    for answer in answers:
        raise_for(answer.error_code, None, f"pattern {pattern}" if pattern else "ListTransactions")
        for state in answer.unknown_state_filters:
            raise AdminError(f"a broker has no state {state}", "UNKNOWN_STATE")
        for each in answer.transaction_states:
            found[each.transactional_id] = {
                "transactional_id": each.transactional_id,
                "producer_id": each.producer_id,
                "state": each.transaction_state,
            }
    return [found[name] for name in sorted(found)]


async def describe_transaction(client: AdminClient, transactional_id: str) -> Row:
    """Describe the id at its coordinator. Raises AdminError if the id does not exist."""
    answer = await client.at_coordinator(
        transactional_id,
        _DESCRIBE_TRANSACTIONS,
        lambda _: {"transactional_ids": [transactional_id]},
        lambda answer: [each.error_code for each in answer.transaction_states],
        key_type=_TRANSACTION_KEY,
    )
    (found,) = answer.transaction_states
    raise_for(found.error_code, None, transactional_id)
    started_ms = found.transaction_start_time
    return {
        "transactional_id": found.transactional_id,
        "producer_id": found.producer_id,
        "producer_epoch": found.producer_epoch,
        "state": found.transaction_state,
        "timeout_ms": round(found.transaction_timeout.total_seconds() * 1000),
        "started_ms": started_ms if started_ms >= 0 else None,
        "partitions": [
            f"{topic.topic}-{partition}" for topic in found.topics for partition in topic.partitions
        ],
    }
