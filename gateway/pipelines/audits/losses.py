"""The reasons for records on one side only, derived from the other side's topic settings."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from gateway.pipelines.audits.compare import Comparison
from gateway.pipelines.audits.counting import (
    MS,
    PARTITION_KEYS,
    TimeRange,
    clip,
    hash_records,
    non_empty,
)
from gateway.pipelines.audits.model import (
    Align,
    CleanupRules,
    LossReason,
    MissingRecords,
    Ranges,
    Side,
)
from gateway.pipelines.shared.frames import small_frame
from gateway.pipelines.shared.partitions import OffsetRange, TopicPartition, partition_of
from gateway.pipelines.shared.topics import OffsetBounds

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Row

OTHER = {"left": "right", "right": "left"}
_OFFSET = [*PARTITION_KEYS, "offset"]
_FOREVER_MS = (1 << 63) - 1
_RECORD_BYTES_MIN = 10  # minimum size of a record besides its key and value


class LossClassifier:
    """Classifier of the records that the side `on` lacks.

    `now_ms` is the time that retention and compaction are computed for. With `common`, records
    outside the side's offsets are not lost.
    """

    def __init__(self, comparison: Comparison, on: str, now_ms: int, common: bool) -> None:
        self._comparison = comparison
        self._spark = comparison.spark
        self._on = on
        self._side = comparison.sides[on]
        self._other = comparison.sides[OTHER[on]]
        self._now_ms = now_ms
        self._common = common

    def classify(self, groups: DataFrame) -> tuple[list[MissingRecords], DataFrame]:
        """Return one line per partition and reason, and a frame of the missing records.

        Columns of the frame: topic, partition, position, records, loss, and the other side's
        offset, ms and hash.
        """
        from pyspark.sql import functions as F

        has = OTHER[self._on]
        rows = groups.where(F.col(self._on) == 0).select(
            *PARTITION_KEYS,
            "position",
            F.col(f"{has}_offset").alias("offset"),
            F.col(f"{has}_ms").alias("ms"),
            F.col(has).alias("records"),
            F.col(f"{has}_low").alias("hash"),
        )
        if self._comparison.align is Align.rank:
            rows = rows.withColumn("loss", F.lit(str(LossReason.LOST)))
            return self._lines(_summary(rows.withColumn("inside", F.lit(False)))), rows
        rows = self._comparison.persist_once(self._by_acceptance(self._by_bounds(rows)))
        summary = _summary(rows)
        doubtful = {
            partition_of(row): OffsetBounds(row["offset_min"], row["offset_max"] + 1)
            for row in summary
            if row["inside"] and row["loss"] == LossReason.LOST
        }
        others = self._by_lookup(rows, doubtful)
        if others is not None:
            rows, summary = others, _summary(others)
        return self._by_size(self._lines(summary)), rows

    def _lines(self, summary: Iterable[Row]) -> list[MissingRecords]:
        lines: dict[tuple[TopicPartition, LossReason], MissingRecords] = {}
        for row in summary:
            key = partition_of(row), LossReason(row["loss"])
            figures = (row[name] for name in ("offset_min", "offset_max", "ms_min", "ms_max"))
            line = MissingRecords(key[0], self._on, key[1], row["records"], *figures)
            lines[key] = _merge(lines[key], line) if key in lines else line
        return list(lines.values())

    def _rules(self, partition: TopicPartition) -> CleanupRules | None:
        """Return the cleanup rules, or None if the side has no live log of the same topic."""
        if partition.topic in self._comparison.unrelated:
            return None
        return self._side.rules.get(partition.topic)

    def _log_start(self, partition: TopicPartition) -> int | None:
        """Return the log start, or None if the side has no live log of the same topic."""
        if self._rules(partition) is None:
            return None
        return self._side.log(partition).earliest

    def _expired_before_ms(self, partition: TopicPartition) -> int | None:
        """Return the time before which retention may have removed records, or None."""
        rules = self._rules(partition)
        if rules is None or not rules.delete or rules.retention_ms < 0:
            return None
        return self._now_ms - rules.retention_ms

    def _by_bounds(self, rows: DataFrame) -> DataFrame:
        """Add `loss`, by bounds and age, and `inside`, true within the bounds of a live log."""
        from pyspark.sql import functions as F

        facts = small_frame(
            self._spark,
            [
                (*partition, *each, self._log_start(partition), self._expired_before_ms(partition))
                for partition, each in self._side.bounds.items()
            ],
            "topic STRING, partition INT, start BIGINT, end BIGINT, log BIGINT, gone_ms BIGINT",
        )
        below = F.col("offset") < F.col("log")
        beyond = (F.col("offset") < F.col("start")) | (F.col("offset") >= F.col("end"))
        loss = (
            F.when(below & (F.col("ms") < F.col("gone_ms")), str(LossReason.expired))
            .when(below, str(LossReason.truncated))
            .when(beyond & F.lit(self._common), str(LossReason.outside))
            .otherwise(str(LossReason.LOST))
        )
        known = rows.join(F.broadcast(facts), PARTITION_KEYS, "left").withColumn("loss", loss)
        inside = F.coalesce(F.col("log").isNotNull() & ~beyond, F.lit(False))
        return known.withColumn("inside", inside).drop("start", "end", "log", "gone_ms")

    def _by_acceptance(self, rows: DataFrame) -> DataFrame:
        """Mark records whose loss the archive accepted."""
        from pyspark.sql import functions as F

        strangers = self._comparison.unrelated
        ranges = merge_ranges(each for each in self._side.accepted if each.topic not in strangers)
        if not ranges:
            return rows
        known = small_frame(
            self._spark,
            ranges,
            "its_topic STRING, its_partition INT, start BIGINT, end BIGINT",
        )
        here = (F.col("topic") == F.col("its_topic")) & (
            F.col("partition") == F.col("its_partition")
        )
        here &= (F.col("offset") >= F.col("start")) & (F.col("offset") < F.col("end"))
        loss = F.when(F.col("start").isNotNull(), str(LossReason.accepted)).otherwise(F.col("loss"))
        found = rows.join(F.broadcast(known), here, "left").withColumn("loss", loss)
        return found.drop(*known.columns)

    def _by_lookup(self, rows: DataFrame, spans: Ranges) -> DataFrame | None:
        """Look up LOST records inside a live log: was the key written again, or the record aborted?

        Returns None if no lookup was needed.
        """
        from pyspark.sql import functions as F

        doubtful = rows.where(F.col("inside") & (F.col("loss") == str(LossReason.LOST)))
        doubtful = doubtful.select(*_OFFSET, "hash")
        found: list[DataFrame] = []
        compact = {
            partition: each for partition, each in spans.items() if self._is_compacted(partition)
        }
        if compact:
            found.append(self._compacted(doubtful, compact))
        if spans and self._side.uncommitted is not None:
            shown = hash_records(self._side.uncommitted(spans), TimeRange())
            aborted = shown.join(doubtful, [*_OFFSET, "hash"], "left_semi").select(*_OFFSET)
            found.append(aborted.withColumn("why", F.lit(str(LossReason.aborted))))
        for each in found:
            rows = rows.join(each.distinct(), _OFFSET, "left")
            rows = rows.withColumn("loss", F.coalesce("why", "loss")).drop("why")
        return self._comparison.persist_once(rows) if found else None

    def _is_compacted(self, partition: TopicPartition) -> bool:
        """Return whether the log may be compacted.

        The log is not compacted if the other side reads the same log and its rules exclude
        compaction.
        """
        rules = self._rules(partition)
        if rules is None or not rules.compact:
            return False
        ids = [side.topic_ids.get(partition.topic) for side in (self._side, self._other)]
        other = self._other.rules.get(partition.topic)
        same = ids[0] is not None and ids[0] == ids[1]
        return not same or other is None or other.compact

    def _compacted(self, doubtful: DataFrame, spans: Ranges) -> DataFrame:
        """Return offsets that a cleaner like Kafka's may have removed by now.

        The offsets are of records whose key occurs again in the log, on either side; records
        without a key; and deletions that are old enough. The cleaner may run while the log is read,
        so records that arrive meanwhile count as well.

        The age of a record is computed from its timestamp. Records younger than
        min.compaction.lag.ms are never explained. Source: Kafka, Cleaner.shouldRetainRecord.
        """
        from pyspark.sql import functions as F

        logs = self._by_now(spans)
        facts = F.broadcast(
            small_frame(
                self._spark,
                [(*partition, *self._cleaned_ms(partition)) for partition in logs],
                "topic STRING, partition INT, settled_ms BIGINT, deleted_ms BIGINT",
            )
        )
        held = [
            side.read(ranges)
            .selectExpr(*_OFFSET, "key", "value IS NULL AS deletes", f"{MS} AS ms")
            .join(facts, PARTITION_KEYS)
            for side, ranges in ((self._other, _within(self._other, logs)), (self._side, logs))
        ]
        gone = held[0].join(doubtful.select(*_OFFSET), _OFFSET, "left_semi")
        every = held[0]
        for other in held[1:]:
            every = every.unionByName(other)
        last = every.where("key IS NOT NULL AND ms <= settled_ms").join(
            gone.select(*PARTITION_KEYS, "key").distinct(), [*PARTITION_KEYS, "key"], "left_semi"
        )
        last = last.groupBy(*PARTITION_KEYS, "key").agg(F.max("offset").alias("last"))
        found = gone.join(last, [*PARTITION_KEYS, "key"], "left").where(
            "ms <= settled_ms AND (key IS NULL OR last > offset) OR deletes AND ms <= deleted_ms"
        )
        return found.select(*_OFFSET, F.lit(str(LossReason.compacted)).alias("why"))

    def _by_now(self, spans: Ranges) -> dict[TopicPartition, OffsetBounds]:
        """Extend these ranges to the current ends of the logs."""
        now, found = self._side.now(), dict[TopicPartition, OffsetBounds]()
        for partition, each in spans.items():
            log = self._side.log(partition)
            found[partition] = OffsetBounds(
                each.earliest, max(log.latest, now.get(partition, log).latest)
            )
        return found

    def _cleaned_ms(self, partition: TopicPartition) -> tuple[int, int]:
        """Return the newest time of a compactable record, and of a removable deletion."""
        rules = self._rules(partition)
        assert rules is not None
        settled_ms = self._now_ms - rules.lag_ms if rules.lag_ms > 0 else _FOREVER_MS
        deleted_ms = self._now_ms - rules.lag_ms - rules.tombstone_ms
        return settled_ms, max(deleted_ms, -_FOREVER_MS)

    def _by_size(self, lines: list[MissingRecords]) -> list[MissingRecords]:
        """Change truncated to expired where the log exceeded retention.bytes."""
        from pyspark.sql import functions as F

        limits: dict[TopicPartition, int] = {}
        for line in lines:
            limit = self._bytes_max(line.topic_partition)
            if line.loss is LossReason.truncated and limit is not None:
                limits[line.topic_partition] = limit
        if not limits:
            return lines
        wanted = {partition: self._other.bounds[partition] for partition in limits}
        size = f"coalesce(length(key), 0) + coalesce(length(value), 0) + {_RECORD_BYTES_MIN}"
        held = (
            self._other.read(wanted).groupBy(*PARTITION_KEYS).agg(F.expr(f"sum({size}) AS bytes"))
        )
        over = {
            partition_of(row) for row in held.collect() if row["bytes"] > limits[partition_of(row)]
        }
        return [
            line._replace(loss=LossReason.expired)
            if line.topic_partition in over and line.loss is LossReason.truncated
            else line
            for line in lines
        ]

    def _bytes_max(self, partition: TopicPartition) -> int | None:
        rules = self._rules(partition)
        if rules is None or not rules.delete or rules.retention_bytes < 0:
            return None
        return rules.retention_bytes


def merge_ranges(ranges: Iterable[OffsetRange]) -> list[OffsetRange]:
    """Merge ranges that overlap or touch. Returns them in order, with the same offsets."""
    found: list[OffsetRange] = []
    for each in sorted(ranges):
        if (
            found
            and found[-1].topic_partition == each.topic_partition
            and each.start <= found[-1].end
        ):
            found[-1] = found[-1]._replace(end=max(found[-1].end, each.end))
        else:
            found.append(each)
    return found


def _within(side: Side, ranges: Ranges) -> dict[TopicPartition, OffsetBounds]:
    """Restrict these ranges to the side's logs. Drops empty ranges."""
    found = {p: clip(side.log(p), *each) for p, each in ranges.items() if p in side.bounds}
    return non_empty(found, found)


def _summary(rows: DataFrame) -> list[Row]:
    from pyspark.sql import functions as F

    figures = [F.sum("records").alias("records")]
    for name in ("offset", "ms"):
        figures += [F.min(name).alias(f"{name}_min"), F.max(name).alias(f"{name}_max")]
    return rows.groupBy(*PARTITION_KEYS, "loss", "inside").agg(*figures).collect()


def _merge(one: MissingRecords, other: MissingRecords) -> MissingRecords:
    return one._replace(
        records=one.records + other.records,
        first=min(one.first, other.first),
        last=max(one.last, other.last),
        first_ms=min(one.first_ms, other.first_ms),
        last_ms=max(one.last_ms, other.last_ms),
    )
