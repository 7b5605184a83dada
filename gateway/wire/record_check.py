"""Checks the records of a produced batch: structure, keys and timestamps, as Kafka's LogValidator.

`check_now` serves normal batches. `check_steps` does the same for batches that take long: it yields
after each part of the work, and bounds the decompressed bytes.
Not as Kafka: a batch whose offset deltas do not count from 0 is refused, while Kafka stores it
(uncompressed) or writes it anew (compressed).
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from typing import NamedTuple

from kio.schema.errors import ErrorCode

from gateway.wire.batches import (
    CODEC_MASK,
    HEADER_BYTES,
    RECORD_BYTES_MIN,
    BatchHeader,
    BatchRefused,
)
from gateway.wire.record_walk import BadRecord, RecordHead, RecordWalk, heads, same_shape

_NOW_STEPS = 8
"""Steps of a walk that `check_now` takes at most, each of about a millisecond."""

NOW_BYTES_MAX = 256 * 1024
"""`check_now` decompresses at most this many bytes, below a millisecond."""

RECORD_ERRORS_MAX = 100
"""At most this many records of a refused batch are named. Kafka names all."""

_NO_TIMESTAMP = -1


class RecordRules(NamedTuple):
    """What a topic requires of its records."""

    decompressed_max: int
    keyed: bool  # the topic is compacted
    # The allowed timestamps, ends included; None if the broker sets them.
    timestamps: tuple[int, int] | None
    named: tuple[str, int] = ("-", 0)  # topic and partition, for the texts of errors


def check_now(batch: bytes, header: BatchHeader, rules: RecordRules) -> int | None:
    """Return the greatest timestamp of the records, or None if `check_steps` must check them.

    Raises BatchRefused.
    """
    data, at = batch, HEADER_BYTES
    if header.attributes & CODEC_MASK:
        small = _decompressed_now(batch, header, rules)
        if small is None:
            return None
        data, at = small, 0
    seen = same_shape(data, at, header.records)
    if seen is None:
        walk = RecordWalk(data, at, header.records)
        if not walk.regular() and not _walked_now(walk):
            return None
        low, high, keyless = walk.low, walk.high, walk.keyless
    else:
        low, (high, keyless) = 0, seen
    newest = header.base_timestamp + high
    if rules.keyed or rules.timestamps is None:
        sound = not rules.keyed
    else:  # the rule of most topics, without another call for each batch
        earliest, latest = rules.timestamps
        sound = earliest <= header.base_timestamp + low and newest <= latest
    if not sound and _suspicious(low, high, keyless, header, rules):
        return None
    return newest if newest > _NO_TIMESTAMP else _NO_TIMESTAMP


def _walked_now(walk: RecordWalk) -> bool:
    """Return whether few steps end the walk. Raises BatchRefused."""
    steps = walk.steps()
    try:
        return not all(next(steps, True) is None for _ in range(_NOW_STEPS))
    except BadRecord as bad:
        raise BatchRefused(ErrorCode.invalid_record, str(bad)) from None


def check_steps(
    batch: bytes, header: BatchHeader, rules: RecordRules
) -> Generator[None, None, int]:
    """Return the greatest timestamp of the records, in steps. Raises BatchRefused."""
    data, at = batch, HEADER_BYTES
    if header.attributes & CODEC_MASK:
        data, at = (yield from _decompressed(batch, header, rules)), 0
    walk = RecordWalk(data, at, header.records)
    try:
        yield from walk.steps()
    except BadRecord as bad:
        raise BatchRefused(ErrorCode.invalid_record, str(bad)) from None
    if _suspicious(walk.low, walk.high, walk.keyless, header, rules):
        yield from _refuse_records(heads(data, at, 0, header.records), header, rules)
    return max(header.base_timestamp + walk.high, _NO_TIMESTAMP)


def _decompressed_now(batch: bytes, header: BatchHeader, rules: RecordRules) -> bytes | None:
    from gateway.wire.decompress import decompress_within

    if header.records * RECORD_BYTES_MIN > NOW_BYTES_MAX:
        return None
    codec, bytes_max = header.attributes & CODEC_MASK, min(rules.decompressed_max, NOW_BYTES_MAX)
    return decompress_within(codec, batch[HEADER_BYTES:], bytes_max)


def _decompressed(
    batch: bytes, header: BatchHeader, rules: RecordRules
) -> Generator[None, None, bytes]:
    from gateway.wire.decompress import decompress_steps

    codec = header.attributes & CODEC_MASK
    return (yield from decompress_steps(codec, batch[HEADER_BYTES:], rules.decompressed_max))


def _suspicious(
    low: int, high: int, keyless: bool, header: BatchHeader, rules: RecordRules
) -> bool:
    """Return whether a record may break the rules.

    `low` and `high` bound the timestamp deltas; `high` is one of them, `low` only a lower bound.
    """
    if rules.keyed and keyless:
        return True
    if rules.timestamps is None:
        return False
    earliest, latest = rules.timestamps
    lowest, highest = header.base_timestamp + low, header.base_timestamp + high
    return (lowest < earliest or highest > latest) and not lowest == highest == _NO_TIMESTAMP


def _refuse_records(
    records: Iterator[RecordHead | None], header: BatchHeader, rules: RecordRules
) -> Generator[None, None, None]:
    """Raise BatchRefused if a record breaks the rules, with the first of such records."""
    errors: list[tuple[int, str]] = []
    of_time = False
    index = 0
    for head in records:
        if head is None:
            yield
            continue
        why = _fault(head, index, header, rules)
        if why is not None:
            errors.append((index, why))
            of_time = of_time or head.keyed or not rules.keyed
            if len(errors) == RECORD_ERRORS_MAX:
                break
        index += 1
    if errors:
        raise _refused(errors, of_time)


def _fault(head: RecordHead, index: int, header: BatchHeader, rules: RecordRules) -> str | None:
    if rules.keyed and not head.keyed:
        topic, partition = rules.named
        return (
            "Compacted topic cannot accept message without key in topic partition "
            f"{topic}-{partition}"
        )
    timestamp = header.base_timestamp + head.delta
    if rules.timestamps is None or timestamp == _NO_TIMESTAMP:
        return None
    earliest, latest = rules.timestamps
    if earliest <= timestamp <= latest:
        return None
    return (
        f"Timestamp {timestamp} of message with offset {index} is out of range. The timestamp "
        f"should be within [{earliest}, {latest}]"
    )


def _refused(errors: list[tuple[int, str]], of_time: bool) -> BatchRefused:
    if of_time:
        return BatchRefused(
            ErrorCode.invalid_timestamp,
            "One or more records have been rejected due to invalid timestamp",
            errors,
        )
    shown = ", ".join(
        f"RecordError(batchIndex={index}, message='{why}')" for index, why in errors[:3]
    )
    return BatchRefused(
        ErrorCode.invalid_record,
        f"One or more records have been rejected due to {len(errors)} record errors in total, and "
        f"only showing the first three errors at most: [{shown}]",
        errors,
    )
