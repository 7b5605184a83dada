"""Requests of `gateway transaction find-hanging` and `abort`, with their results as plain data.

A transaction hangs if a partition has it open and no coordinator will end it. Source: Kafka,
TransactionsCommand (KIP-664) and AbortTransactionHandler.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from gateway.admin.client import AdminClient, AdminError, Place, raise_for
from gateway.admin.topics import LOOK_RETRY_S_MAX
from gateway.admin.transactions import Row, describe_transaction, list_transactions

_DESCRIBE_PRODUCERS, _WRITE_TXN_MARKERS = 61, 27
_PARTITIONS_PER_REQUEST = 500
_NOT_FOUND = "TRANSACTIONAL_ID_NOT_FOUND"


class _Open(NamedTuple):
    """An open transaction of one partition, with the row of DescribeProducers."""

    topic: str
    partition: int
    producer: Any

    def row(self) -> Row:
        return {
            "topic": self.topic,
            "partition": self.partition,
            "producer_id": self.producer.producer_id,
            "producer_epoch": self.producer.producer_epoch,
            "coordinator_epoch": self.producer.coordinator_epoch,
            "start_offset": self.producer.current_txn_start_offset,
            "last_timestamp_ms": self.producer.last_timestamp,
        }


async def find_hanging(
    client: AdminClient, topic: str | None, partition: int | None, idle_ms: int
) -> tuple[list[Row], list[AdminError]]:
    """Find open transactions without a batch for `idle_ms` that no coordinator will end.

    Searches one partition, one topic, or all topics. Returns the errors of partitions that could
    not be searched, too.
    """
    places = await _places(client, topic, partition)
    found: list[_Open] = []
    unread: list[AdminError] = []
    for first in range(0, len(places), _PARTITIONS_PER_REQUEST):
        some = places[first : first + _PARTITIONS_PER_REQUEST]
        opened, errors = await _opened(client, some, LOOK_RETRY_S_MAX)
        before_ms = time.time() * 1000 - idle_ms
        found += [each for each in opened if each.producer.last_timestamp <= before_ms]
        unread += errors
    return await _without_end(client, found), unread


async def _without_end(client: AdminClient, found: Sequence[_Open]) -> list[Row]:
    """Return the rows of the open transactions that no coordinator will end. Raises AdminError."""
    if not found:
        return []
    wanted = sorted({each.producer.producer_id for each in found})
    listed = await list_transactions(client, [], wanted, -1)
    ending: dict[int, set[str]] = {}
    for row in listed:
        ending[row["producer_id"]] = await _to_be_ended(client, row["transactional_id"])
    return [
        each.row()
        for each in found
        if f"{each.topic}-{each.partition}" not in ending.get(each.producer.producer_id, ())
    ]


async def abort(client: AdminClient, topic: str, partition: int, start_offset: int) -> Row:
    """Write an abort marker for the transaction that began at this offset of the partition.

    Raises AdminError if the partition does not exist, has no open transaction there, or refuses the
    marker.
    """
    (place,) = await _places(client, topic, partition)
    opened, errors = await _opened(client, [place])
    if errors:
        raise errors[0]
    found = next((e for e in opened if e.producer.current_txn_start_offset == start_offset), None)
    if found is None:
        raise AdminError(
            f"{topic}-{partition} has no open transaction that begins at offset {start_offset}; "
            "`gateway transaction find-hanging` lists the offsets",
            "INVALID_TXN_STATE",
        )
    row = found.row()
    marker = {
        "producer_id": row["producer_id"],
        "producer_epoch": row["producer_epoch"],
        "transaction_result": False,
        # A coordinator epoch is -1 before the first marker. 0 is not above that of any coordinator.
        "coordinator_epoch": max(0, row["coordinator_epoch"]),
        "topics": [{"name": topic, "partition_indexes": [partition]}],
    }
    answer = await client.at_leader(
        place,
        _WRITE_TXN_MARKERS,
        lambda _: {"markers": [marker]},
        lambda answer: [each.error_code for each in _marked(answer)],
    )
    for each in _marked(answer):
        raise_for(each.error_code, None, f"{topic}-{partition}")
    return row


def _marked(answer: Any) -> Iterator[Any]:
    for marker in answer.markers:
        for topic in marker.topics:
            yield from topic.partitions


async def _places(client: AdminClient, topic: str | None, partition: int | None) -> list[Place]:
    answer = await client.metadata(None if topic is None else [topic])
    places: list[Place] = []
    for each in answer.topics:
        raise_for(each.error_code, None, each.name)
        places += [(each.name, one.partition_index) for one in each.partitions]
    if topic is None or partition is None:
        return sorted(places)
    if (topic, partition) not in places:
        raise AdminError(f"{topic}-{partition} does not exist", "UNKNOWN_TOPIC_OR_PARTITION")
    return [(topic, partition)]


async def _opened(
    client: AdminClient, places: Sequence[Place], retry_s_max: float | None = None
) -> tuple[list[_Open], list[AdminError]]:
    """Return the open transactions of these partitions, and the errors of those not searched."""

    def fields(topics: Mapping[str, Sequence[int]]) -> dict[str, Any]:
        return {
            "topics": [
                {"name": name, "partition_indexes": indexes} for name, indexes in topics.items()
            ]
        }

    answers = await client.at_leaders_or_errors(places, _DESCRIBE_PRODUCERS, fields, retry_s_max)
    found: list[_Open] = []
    errors: list[AdminError] = []
    for topic, partition in places:
        try:
            answer = answers.get((topic, partition))
            if answer is None:
                raise AdminError(f"{topic}-{partition}: no leader answers", "LEADER_NOT_AVAILABLE")
            raise_for(answer.error_code, answer.error_message or None, f"{topic}-{partition}")
        except AdminError as error:
            errors.append(error)
            continue
        for producer in answer.active_producers:
            if producer.current_txn_start_offset >= 0:
                found.append(_Open(topic, partition, producer))
    return found, errors


async def _to_be_ended(client: AdminClient, transactional_id: str) -> set[str]:
    """Return the partitions to which the coordinator of the id will send a marker."""
    try:
        row = await describe_transaction(client, transactional_id)
    except AdminError as error:
        if error.code == _NOT_FOUND:
            return set()
        raise
    return set(row["partitions"])
