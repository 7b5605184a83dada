"""The first differing records of an audit, with the columns that differ."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from gateway.pipelines.audits.compare import Comparison, records_differ
from gateway.pipelines.audits.counting import PARTITION_KEYS
from gateway.pipelines.audits.model import SIDES, DifferenceExample, LossReason
from gateway.pipelines.shared.frames import small_frame
from gateway.pipelines.shared.partitions import TopicPartition, partition_of
from gateway.pipelines.shared.topics import OffsetBounds
from ledger.escapes import escape_line

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Row

PREVIEW_BYTES = 40
_COMPARED = ("key", "value", "headers", "timestamp", "timestampType")
_FIELDS = (
    "offset",
    "unix_millis(timestamp) AS timestamp_ms",
    f"substring(key, 1, {PREVIEW_BYTES}) AS key_start",
    f"substring(value, 1, {PREVIEW_BYTES}) AS value_start",
    "length(key) AS key_bytes",
    "length(value) AS value_bytes",
    "coalesce(size(headers), 0) AS headers_count",
    "xxhash64(key) AS key_hash",
    "xxhash64(value) AS value_hash",
    "CASE WHEN size(headers) > 0 THEN xxhash64(transform(headers,"
    " one -> struct(one.key, one.value IS NULL, one.value))) END AS headers_hash",
    "timestamp AS timestamp_hash",
    "timestampType AS timestampType_hash",
)


def find_examples(
    comparison: Comparison, groups: DataFrame, lost: Sequence[DataFrame], count: int
) -> list[DifferenceExample]:
    """Return at most `count` examples, ordered by partition and position.

    `lost` are frames of rows from `LossClassifier.classify`.
    """
    from pyspark.sql import functions as F

    offsets = [f"{name}_offset" for name in SIDES]
    wrong = groups.where(records_differ() | (F.col("left") > 1) | (F.col("right") > 1))
    chosen = wrong.select(*PARTITION_KEYS, "position", *SIDES, *offsets)
    for rows in lost:
        keys = rows.where(F.col("loss") == str(LossReason.LOST)).select(*PARTITION_KEYS, "position")
        one_sided = groups.join(keys, [*PARTITION_KEYS, "position"], "left_semi")
        chosen = chosen.unionByName(one_sided.select(*chosen.columns))
    first = chosen.distinct().orderBy(*PARTITION_KEYS, "position").limit(count).collect()
    records = {name: _records(comparison, name, first) for name in SIDES}
    found: list[DifferenceExample] = []
    for row in first:
        partition = partition_of(row)
        here = [records[name].get((partition, row[f"{name}_offset"]), []) for name in SIDES]
        what = _what(row, here)
        left, right = (_shown(each[0]) if each else None for each in here)
        found.append(DifferenceExample(partition, row["position"], what, left, right))
    return found


def _records(
    comparison: Comparison, name: str, rows: Sequence[Row]
) -> dict[tuple[TopicPartition, int | None], list[Row]]:
    """Read a few columns of these records. The driver receives only the start of each value."""
    from pyspark.sql import functions as F

    side = comparison.sides[name]
    wanted: dict[TopicPartition, list[int]] = {}
    for row in rows:
        if row[f"{name}_offset"] is not None:
            partition = partition_of(row)
            wanted.setdefault(partition, []).append(row[f"{name}_offset"])
    if not wanted:
        return {}
    ranges = {
        partition: OffsetBounds(min(each), max(each) + 1) for partition, each in wanted.items()
    }
    keys = [(*partition, offset) for partition, each in wanted.items() for offset in each]
    known = small_frame(comparison.spark, keys, "topic STRING, partition INT, offset BIGINT")
    chosen = side.read(ranges).join(F.broadcast(known), [*PARTITION_KEYS, "offset"], "left_semi")
    found: dict[tuple[TopicPartition, int | None], list[Row]] = {}
    # Limit the rows, because an offset may occur a thousand times.
    for row in chosen.selectExpr(*PARTITION_KEYS, *_FIELDS).limit(4 * len(keys)).collect():
        partition = partition_of(row)
        found.setdefault((partition, row["offset"]), []).append(row)
    return found


def _what(row: Row, here: Sequence[Sequence[Row]]) -> tuple[str, ...]:
    """Name the columns that differ, or the side on which the record is missing or duplicated."""
    what = [f"missing on the {name}" for name in SIDES if not row[name]]
    what += [f"{row[name]} times on the {name}" for name in SIDES if row[name] > 1]
    if here[0] and here[1]:
        left, right = here[0][0], here[1][0]
        what += [each for each in _COMPARED if left[f"{each}_hash"] != right[f"{each}_hash"]]
    return tuple(what)


def _shown(row: Row) -> dict[str, Any]:
    return {
        "offset": row["offset"],
        "timestamp_ms": row["timestamp_ms"],
        "timestamp_type": row["timestampType_hash"],
        "key": preview(row["key_start"], row["key_bytes"]),
        "value": preview(row["value_start"], row["value_bytes"]),
        "headers": row["headers_count"],
    }


def preview(start: bytearray | None, length: int | None) -> str | None:
    """Return readable text. If it was cut, append its length in bytes."""
    if start is None or length is None:
        return None
    text = bytes(start).decode("utf-8", errors="backslashreplace")
    printable = escape_line(text)
    return printable if length <= len(start) else f"{printable}... ({length} bytes)"
