"""Sums over records: equal for equal records in any order, and cheap to add up.

A record's hash covers its place and its whole content: topic, partition, offset, key, value,
headers, timestamp and timestampType. The sum of the hashes modulo 2^64 shows a changed, missing,
additional or duplicate record. Layout: docs/formats/archive.md.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Row

_HASH = (
    "xxhash64(topic, partition, offset, key IS NULL, key, value IS NULL, value,"
    " unix_micros(timestamp), timestampType, headers IS NULL, coalesce(size(headers), 0),"
    " transform(headers, one -> struct(one.key, one.value IS NULL, one.value)))"
)
"""SQL for the hash of a record. Spark's hash ignores nulls, so each null adds a flag."""

SUM_FIGURES = {
    "rows": "count(*)",
    "sum_high": "sum(shiftright(record_hash, 32))",
    "sum_low": "sum(record_hash & 4294967295L)",
}
"""SQL aggregates over `add_hash`, from which `sum_of` makes a RecordSum.

The halves of the hashes are added separately, because Spark refuses sums that overflow.
"""
_SIGN = 1 << 63
_RANGE = 1 << 64


class RecordSum(NamedTuple):
    """The number of records, and the sum of their hashes as a signed 64-bit number."""

    rows: int
    content: int

    def plus(self, other: RecordSum) -> RecordSum:
        """Return the sum over the records of both."""
        return RecordSum(self.rows + other.rows, _signed(self.content + other.content))


NO_RECORDS = RecordSum(0, 0)


def add_hash(records: DataFrame) -> DataFrame:
    """Add the hash of each record as the column `record_hash`."""
    from pyspark.sql.functions import expr

    return records.withColumn("record_hash", expr(_HASH))


def sum_of(row: Row) -> RecordSum:
    """Return the sum from a row with the columns of SUM_FIGURES."""
    return RecordSum(int(row["rows"]), _signed((int(row["sum_high"]) << 32) + int(row["sum_low"])))


def _signed(number: int) -> int:
    return (number + _SIGN) % _RANGE - _SIGN
