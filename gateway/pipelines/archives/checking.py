"""Whether records are those of the offset ranges that they are said to be."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, NamedTuple

from gateway.pipelines.model import JobError, OffsetRange, Place

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_OFFSETS_PER_ROW = 65_536
"""How many offsets a task makes at once."""


class Found(NamedTuple):
    """What is there of a place; `fold` is the bits of all hashed offsets, exclusive-or'ed."""

    records: int
    min_offset: int
    max_offset: int
    fold: int

    def plus(self, other: Found) -> Found:
        """Of both."""
        return Found(
            self.records + other.records,
            min(self.min_offset, other.min_offset),
            max(self.max_offset, other.max_offset),
            self.fold ^ other.fold,
        )


FOLD = "bit_xor(xxhash64(offset))"
"""SQL for `fold`: tells apart, without a shuffle, who has all offsets and who has some twice."""


def check_records(
    spark: SparkSession,
    ranges: Iterable[OffsetRange],
    sparse: frozenset[str],
    found: dict[Place, Found],
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
    folds = _folds(spark, dense)
    for each in dense:
        if folds[each.place] != found[each.place].fold:
            raise _wrong(f"{each}: some offsets are missing, and as many came twice")
    thin = [each for place, each in wanted.items() if each not in dense and place in found]
    _check_distinct(thin, found, records)


def _is_dense(wanted: OffsetRange, found: Found | None, sparse: frozenset[str]) -> bool:
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


def _folds(spark: SparkSession, ranges: list[OffsetRange]) -> dict[Place, int]:
    """What `FOLD` is for all offsets of each range."""
    if not ranges:
        return {}
    pieces = [
        (each.topic, each.partition, start, min(start + _OFFSETS_PER_ROW, each.end) - 1)
        for each in ranges
        for start in range(each.start, each.end, _OFFSETS_PER_ROW)
    ]
    from pyspark.sql.functions import expr

    schema = "topic STRING, partition INT, first BIGINT, last BIGINT"
    offsets = spark.createDataFrame(pieces, schema).selectExpr(
        "topic", "partition", "explode(sequence(first, last)) AS offset"
    )
    folded = offsets.groupBy("topic", "partition").agg(expr(FOLD).alias("fold")).collect()
    return {Place(row["topic"], row["partition"]): row["fold"] for row in folded}


def _check_distinct(
    ranges: list[OffsetRange], found: dict[Place, Found], records: DataFrame
) -> None:
    if not ranges:
        return
    from pyspark.sql.functions import count_distinct

    topics = sorted({each.topic for each in ranges})
    some = records.where(records["topic"].isin(topics)).groupBy("topic", "partition")
    counted = some.agg(count_distinct("offset").alias("distinct")).collect()
    distinct = {Place(row["topic"], row["partition"]): row["distinct"] for row in counted}
    for each in ranges:
        count = found[each.place].records
        if distinct[each.place] != count:
            raise _wrong(f"{each}: {distinct[each.place]} offsets in {count} records")


def _wrong(what: str) -> JobError:
    return JobError(f"{what}; nothing was archived", "WRONG_RECORDS")
