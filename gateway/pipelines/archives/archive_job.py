"""The archive job: each round commits the offsets after the archived ones, exactly once.

Only the archive stores the progress; the job keeps no state. Therefore reruns, crashes and
concurrent jobs need no special treatment: the job that commits second reads the archive again.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeVar

from gateway.pipelines.archives.port import Archive, ArchiveState, CompactionResult
from gateway.pipelines.archives.rounds import ArchiveRound, check_lost, check_topic_ids, next_round
from gateway.pipelines.shared.accepted_losses import (
    AcceptedRanges,
    LossesUnknown,
    read_accepted,
)
from gateway.pipelines.shared.errors import JobError
from gateway.pipelines.shared.kafka_source import Isolation, read_ranges
from gateway.pipelines.shared.partitions import COLUMNS, TopicPartition
from gateway.pipelines.shared.spark_errors import translate_spark_errors
from gateway.pipelines.shared.topics import OffsetBounds, Topics
from ledger.adapters.system.clock import SystemClock
from ledger.ports.clock import Clock

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

T = TypeVar("T")

EARLIEST, LATEST = "earliest", "latest"
_OFFSETS_PER_TASK = 250_000
"""Offsets per task. The limit bounds a task's sort for topics of any size, without small files."""
_PAUSE_S = 0.2
"""How often a waiting job checks whether it should stop."""
_RETRY_S = 1.0
_RETRIED = frozenset({"UNREACHABLE", "NO_LEADER", "SPARK_FAILED", "LOSSES_UNKNOWN"})
_COMPACT_EVERY = 20
"""Number of commits between two compactions, in a job that follows its topics."""


@dataclass(frozen=True, slots=True)
class ArchiveRequest:
    """The topics to archive, and the settings of the job."""

    topics: tuple[str, ...] = ()
    pattern: str = ""  # also archive topics whose whole name matches this pattern
    start: str | int = EARLIEST  # where new topics begin: earliest, latest or milliseconds
    offsets_per_round_max: int = 5_000_000  # approximate number of offsets in one commit
    accept_loss: bool = False  # continue without records that were deleted, or are lost
    allow_gaps: bool = False  # accept offsets without a record
    isolation: Isolation = Isolation.read_committed
    interval_s: float = 10.0  # pause between rounds, in a job that follows its topics
    timeout_s: float = 120.0  # how long to retry transient errors
    file_bytes: int = 0  # approximate size of compacted files; 0 turns compaction off
    metadata: str = ""  # where accepted losses are read; by default the address the gateways name


@dataclass(slots=True)
class PartitionReport:
    """The archived offsets of one partition: `start` to `end` - 1, minus `lost` deleted offsets."""

    start: int
    end: int
    lost: int = 0


@dataclass(slots=True)
class ArchiveReport:
    """The progress of an archive job."""

    commits: int = 0
    offsets: int = 0
    lost: int = 0
    partitions: dict[TopicPartition, PartitionReport] = field(
        default_factory=dict[TopicPartition, PartitionReport]
    )
    compacted: CompactionResult | None = None

    def add(self, done: ArchiveRound) -> None:
        self.commits += 1
        self.offsets += done.offsets
        for each in done.ranges:
            report = self.partitions.setdefault(
                each.topic_partition, PartitionReport(each.start, each.end)
            )
            report.end = each.end
        for each in done.lost:
            self.lost += each.range.length
            report = self.partitions[each.range.topic_partition]
            report.start = min(report.start, each.range.start)
            report.lost += each.range.length

    def add_compacted(self, done: CompactionResult) -> None:
        before = self.compacted.files_before if self.compacted else done.files_before
        self.compacted = CompactionResult(before, done.files_after)


class ArchiveWatcher:
    """Receiver of a job's progress. This base class ignores all reports."""

    def on_planned(self, offsets: int) -> None:
        """Report how many offsets are still to be archived."""

    def on_committed(self, done: ArchiveRound) -> None: ...

    def on_retry(self, error: JobError, wait_s: float) -> None: ...


class ArchiveJob:
    """One archive job. `report` contains its progress."""

    def __init__(
        self,
        spark: SparkSession,
        archive: Archive,
        bootstrap: str,
        request: ArchiveRequest,
        *,
        watcher: ArchiveWatcher | None = None,
        clock: Clock | None = None,
        stop: Callable[[], bool] = lambda: False,
    ) -> None:
        """Prepare a job. The job polls `stop` between rounds and while it waits."""
        self._spark = spark
        self._archive = archive
        self._bootstrap = bootstrap
        self._topics = Topics(bootstrap)
        self._request = request
        self._watcher = watcher or ArchiveWatcher()
        self._clock = clock or SystemClock()
        self._stop = stop
        # Whether the cluster has answered a request. Before the first answer, no error is retried.
        self._answered = False
        self.report = ArchiveReport()

    def run(self) -> ArchiveReport:
        """Archive up to the current ends of the topics, unless `stop` ends the job earlier."""
        names = self._topics.named(self._request.topics, self._request.pattern)
        targets = {partition: each.latest for partition, each in self._bounds(names).items()}
        while not self._stop() and self._retry(lambda: self._round(targets)):
            pass
        self._compact()
        return self.report

    def follow(self) -> ArchiveReport:
        """Archive new records every `interval_s`, until `stop` ends the job."""
        compacted_at = 0
        while not self._stop():
            worked = self._retry(lambda: self._round({}))
            if self.report.commits >= compacted_at + _COMPACT_EVERY:
                self._compact()
                compacted_at = self.report.commits
            if not worked:
                self._wait(self._request.interval_s)
        self._compact()
        return self.report

    def _compact(self) -> None:
        if self._request.file_bytes:
            size = self._request.file_bytes
            self.report.add_compacted(self._retry(lambda: self._archive.compact(size)))

    # --- one round ------------------------------------------------------------------------------

    def _round(self, targets: Mapping[TopicPartition, int]) -> bool:
        """Run one round. Returns False if there is nothing to archive.

        If another job committed first, this round adds nothing. The next round reads the archive
        again.
        """
        request = self._request
        names = self._topics.named(request.topics, request.pattern)
        state = self._archive.state()
        topics = {name: self._topics.describe(name) for name in names}
        ids = {name: each.topic_id for name, each in topics.items() if each.topic_id is not None}
        check_topic_ids(state.topic_ids, ids)
        bounds = self._bounds(names)
        self._answered = True
        sparse = frozenset(each for each in names if request.allow_gaps or self._is_compacted(each))
        plan = next_round(
            state,
            bounds,
            self._starts(names, state, bounds),
            targets,
            request.offsets_per_round_max,
            self._clock.now_ms(),
            self._accepted(names, sparse),
        )
        if not plan.ranges:
            return False
        if not request.accept_loss:
            check_lost(plan)
        self._watcher.on_planned(_offsets_left(state, bounds, targets))
        if self._archive.append(self._records(plan), plan.commit(ids, sparse), state):
            self.report.add(plan)
            self._watcher.on_committed(plan)
        return True

    def _bounds(self, names: list[str]) -> dict[TopicPartition, OffsetBounds]:
        return self._topics.bounds(
            names, committed=self._request.isolation is Isolation.read_committed
        )

    def _accepted(self, names: list[str], sparse: frozenset[str]) -> AcceptedRanges:
        """Return the accepted losses of the topics. Raises JobError.

        If they are unknown, a topic whose offsets are dense needs none: the archive refuses its
        missing records.
        """
        try:
            return read_accepted(self._bootstrap, names, self._request.metadata)
        except LossesUnknown:
            if sparse:
                raise
            return {}

    def _is_compacted(self, name: str) -> bool:
        return "compact" in (self._topics.settings(name).get("cleanup.policy") or "")

    def _starts(
        self, names: list[str], state: ArchiveState, bounds: Mapping[TopicPartition, OffsetBounds]
    ) -> dict[TopicPartition, int]:
        """Return the first offset to archive for each partition of new topics.

        Omitted partitions, such as those added later, begin at their first available offset.
        """
        known = {partition.topic for partition in state.ends}
        new = [name for name in names if name not in known]
        start = self._request.start
        if start == EARLIEST or not new:
            return {}
        latest = {
            partition: each.latest for partition, each in bounds.items() if partition.topic in new
        }
        if start == LATEST:
            return latest
        found = self._topics.at_time(new, int(start))
        return {
            partition: end if (at := found.get(partition)) is None else at
            for partition, end in latest.items()
        }

    def _records(self, plan: ArchiveRound) -> DataFrame:
        ranges = [each for each in plan.ranges if each.length]
        if not ranges:
            return self._spark.createDataFrame([], COLUMNS)
        options = {"kafka.isolation.level": str(self._request.isolation)}
        tasks = -(-plan.offsets // _OFFSETS_PER_TASK)
        if tasks > len(ranges):
            options["minPartitions"] = str(tasks)
        return read_ranges(self._spark, self._bootstrap, ranges, options)

    # --- retries --------------------------------------------------------------------------------

    def _retry(self, work: Callable[[], T]) -> T:
        """Return the result of `work`. Retries transient errors for up to `timeout_s` seconds."""
        failing_since_s: float | None = None
        while True:
            try:
                return translate_spark_errors(work)
            except JobError as error:
                now_s = self._clock.monotonic_s()
                since_s = failing_since_s = now_s if failing_since_s is None else failing_since_s
                transient = self._answered and error.code in _RETRIED and not self._stop()
                if not transient or now_s - since_s > self._request.timeout_s:
                    raise
                self._watcher.on_retry(error, _RETRY_S)
            self._wait(_RETRY_S)

    def _wait(self, wait_s: float) -> None:
        """Wait for `wait_s` seconds, or until the job should stop."""
        until_s = self._clock.monotonic_s() + wait_s
        while not self._stop() and (left_s := until_s - self._clock.monotonic_s()) > 0:
            time.sleep(min(_PAUSE_S, left_s))


def _offsets_left(
    state: ArchiveState,
    bounds: Mapping[TopicPartition, OffsetBounds],
    targets: Mapping[TopicPartition, int],
) -> int:
    return sum(
        max(0, targets.get(partition, each.latest) - state.ends.get(partition, each.earliest))
        for partition, each in bounds.items()
    )
