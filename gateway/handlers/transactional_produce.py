"""The checks of a Produce with transactional batches, before any partition gets a batch.

Source: Apache Kafka 4.3, KafkaApis.handleProduceRequest and ReplicaManager.handleProduceAppend.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable
from typing import Any

from kio.schema.errors import ErrorCode

from gateway.topics.produced import Produced
from gateway.wire import batches
from gateway.wire.produce_reply import PER_PART
from ledger.ids import Buffer

_HEADER, _TRANSACTIONAL = batches.HEADER_BYTES, batches.TRANSACTIONAL
_ATTRIBUTES_AT = 22  # the low byte of the attributes, which has the transactional bit
NO_ID = Produced(ErrorCode.transactional_id_authorization_failed)
"""The refusal of transactional batches without an id, or with one that the client may not use."""

_TWO_PRODUCERS = Produced(
    ErrorCode.invalid_producer_id_mapping,
    message="Transactional records contained more than one producer ID",
)


def is_transactional(batch: Buffer) -> bool:
    """Return whether the batch belongs to a transaction. False if it has no header."""
    if len(batch) < batches.HEADER_BYTES:
        return False
    return batch[_ATTRIBUTES_AT] & batches.TRANSACTIONAL != 0


def transaction_of(body: Any) -> tuple[Produced | None, bool]:
    """Return why the whole request is refused, or None, and whether it has transactional batches.

    Transactional batches need a transactional id, and have one producer id and epoch.
    """
    found: list[Buffer] = []
    for topic in body.topic_data:
        for data in topic.partition_data:
            records = data.records  # not `is_transactional`: this runs for each batch
            if records and len(records) >= _HEADER and records[_ATTRIBUTES_AT] & _TRANSACTIONAL:
                found.append(records)
    return (_refusal(body, _producers(found)), True) if found else (None, False)


def transaction_in_parts(body: Any) -> Generator[None, None, tuple[Produced | None, bool]]:
    """Check a long request as `transaction_of` does. Yields after each `PER_PART` batches."""
    transactional, count = False, 0
    producers: set[tuple[int, int]] = set()
    for topic in body.topic_data:
        for data in topic.partition_data:
            if data.records and is_transactional(data.records):
                transactional = True
                producers |= _producers((data.records,)) if len(producers) < 2 else set()
            count += 1
            if count % PER_PART == 0:
                yield
    return (_refusal(body, producers) if transactional else None), transactional


def _refusal(body: Any, producers: set[tuple[int, int]]) -> Produced | None:
    """Return why transactional batches of these producers are refused, or None."""
    if body.transactional_id is None:
        return NO_ID
    return _TWO_PRODUCERS if len(producers) > 1 else None


def _producers(found: Iterable[Buffer]) -> set[tuple[int, int]]:
    headers = map(batches.read_header, found)
    producers = {(each.producer_id, each.producer_epoch) for each in headers}
    return {each for each in producers if each[0] >= 0}
