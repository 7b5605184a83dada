"""Whether records are those of the offset ranges that they are said to be."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, NamedTuple

from gateway.pipelines.shared.errors import JobError
from gateway.pipelines.shared.partitions import OffsetRange, TopicPartition

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_OFFSETS_AT_ONCE = 65_536
"""Whose hashes are in memory at a time."""


class OffsetSummary(NamedTuple):
    """What is there of a place; `fold` is the bits of all hashed offsets, exclusive-or'ed."""

    records: int
    min_offset: int
    max_offset: int
    fold: int

    def plus(self, other: OffsetSummary) -> OffsetSummary:
        """Of both."""
        return OffsetSummary(
            self.records + other.records,
            min(self.min_offset, other.min_offset),
            max(self.max_offset, other.max_offset),
            self.fold ^ other.fold,
        )


_SEED = 42  # of Spark's xxhash64
_PRIMES = (
    0x9E3779B185EBCA87,
    0xC2B2AE3D27D4EB4F,
    0x165667B19E3779F9,
    0x85EBCA77C2B2AE63,
    0x27D4EB2F165667C5,
)
FOLD = "bit_xor(xxhash64(offset))"
"""SQL for `fold`: tells apart, without a shuffle, who has all offsets and who has some twice."""


def check_records(
    ranges: Iterable[OffsetRange],
    sparse: frozenset[str],
    found: dict[TopicPartition, OffsetSummary],
    records: DataFrame,
) -> None:
    """Nothing happens if `found` is what these ranges hold; else JobError says what is not.

    `records` have topic, partition and offset; they are looked at again only for `sparse` topics.
    """
    wanted = {each.place: each for each in ranges if each.length}
    for place in sorted(found):
        if place not in wanted:
            raise _wrong(f"{place}: {found[place].records} records that nobody asked for")
    dense = [each for each in wanted.values() if _is_dense(each, found.get(each.place), sparse)]
    for each in dense:
        if fold_of(each.start, each.end) != found[each.place].fold:
            raise _wrong(f"{each}: some offsets are missing, and as many came twice")
    thin = [each for place, each in wanted.items() if each not in dense and place in found]
    _check_distinct(thin, found, records)


def _is_dense(wanted: OffsetRange, found: OffsetSummary | None, sparse: frozenset[str]) -> bool:
    """True: as many records as offsets. False: fewer, and they may be. Else raises JobError."""
    if found and (found.min_offset < wanted.start or found.max_offset >= wanted.end):
        raise _wrong(f"{wanted}: records of {found.min_offset} to {found.max_offset} came")
    count = found.records if found else 0
    if count > wanted.length:
        raise _wrong(f"{wanted}: {count} records of {wanted.length} offsets: some came twice")
    if count < wanted.length and wanted.topic not in sparse:
        raise _wrong(
            f"{wanted}: {count} records of {wanted.length} offsets; if the topic has transactions,"
            " which leave offsets without a record, use --allow-gaps"
        )
    return count == wanted.length


def fold_of(start: int, end: int) -> int:
    """What `FOLD` is for all offsets from `start` to `end` - 1: some 20 ns each, no Spark job."""
    import numpy as np

    fold = np.uint64(0)
    for first in range(start, end, _OFFSETS_AT_ONCE):
        offsets = np.arange(first, min(first + _OFFSETS_AT_ONCE, end), dtype=np.int64)
        fold ^= np.bitwise_xor.reduce(_xxhash64(offsets.view(np.uint64)))
    return int(fold.astype(np.int64))


def _xxhash64(numbers: Any) -> Any:
    """Of each 8-byte number, with the seed of Spark's SQL function; sums wrap at 64 bits.

    Source: the specification of xxHash (XXH64), for an input of 8 bytes.
    """
    import numpy as np

    one, two, three, four = (np.uint64(each) for each in _PRIMES[:4])

    def turned(words: Any, bits: int) -> Any:
        return (words << np.uint64(bits)) | (words >> np.uint64(64 - bits))

    start = np.array((_SEED + _PRIMES[4] + 8) % 2**64, dtype=np.uint64)
    words = start ^ (turned(numbers * two, 31) * one)
    words = turned(words, 27) * one + four
    words = (words ^ (words >> np.uint64(33))) * two
    words = (words ^ (words >> np.uint64(29))) * three
    return words ^ (words >> np.uint64(32))


def _check_distinct(
    ranges: list[OffsetRange], found: dict[TopicPartition, OffsetSummary], records: DataFrame
) -> None:
    if not ranges:
        return
    from pyspark.sql.functions import count_distinct

    topics = sorted({each.topic for each in ranges})
    some = records.where(records["topic"].isin(topics)).groupBy("topic", "partition")
    counted = some.agg(count_distinct("offset").alias("distinct")).collect()
    distinct = {TopicPartition(row["topic"], row["partition"]): row["distinct"] for row in counted}
    for each in ranges:
        count = found[each.place].records
        if distinct[each.place] != count:
            raise _wrong(f"{each}: {distinct[each.place]} offsets in {count} records")


def _wrong(what: str) -> JobError:
    return JobError(f"{what}; nothing was archived", "WRONG_RECORDS")
