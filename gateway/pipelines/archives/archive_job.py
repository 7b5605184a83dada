"""Topics to an archive, exactly once: each round takes the offsets after the archived ones.

The archive alone says what is done; the job keeps nothing. So a rerun, a crash and a second job
at the same time need nothing special: who commits second looks again.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeVar

from gateway.pipelines.archives.port import Archive, ArchiveState, CompactionResult
from gateway.pipelines.archives.rounds import ArchiveRound, check_lost, check_topic_ids, next_round
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
"""What a task sorts does not grow with the topic; a file of so many records is not small."""
_PAUSE_S = 0.2
"""How soon an idle job sees that it shall end."""
_RETRY_S = 1.0
_RETRIED = frozenset({"UNREACHABLE", "NO_LEADER", "SPARK_FAILED"})
_COMPACT_EVERY = 20
"""Commits of a job that follows, between two compactions."""


@dataclass(frozen=True, slots=True)
class ArchiveRequest:
    """What is to be archived, and how.

    `start`: where a topic begins that is not archived yet: earliest, latest or a time in
    milliseconds. `timeout_s`: for how long failures that may pass are tried again.
    `file_bytes`: compact to files of about that size; 0: do not.
    """

    topics: tuple[str, ...] = ()
    pattern: str = ""
    start: str | int = EARLIEST
    offsets_per_round_max: int = 5_000_000
    accept_loss: bool = False
    allow_gaps: bool = False
    isolation: Isolation = Isolation.read_committed
    interval_s: float = 10.0
    timeout_s: float = 120.0
    file_bytes: int = 0


@dataclass(slots=True)
class PartitionReport:
    """Of one place: archived from `start` to `end` - 1, of which `lost` offsets were gone."""

    start: int
    end: int
    lost: int = 0


@dataclass(slots=True)
class ArchiveReport:
    """What a job has done so far."""

    commits: int = 0
    offsets: int = 0
    lost: int = 0
    places: dict[TopicPartition, PartitionReport] = field(
        default_factory=dict[TopicPartition, PartitionReport]
    )
    compacted: CompactionResult | None = None

    def add(self, done: ArchiveRound) -> None:
        self.commits += 1
        self.offsets += done.offsets
        for each in done.ranges:
            report = self.places.setdefault(each.place, PartitionReport(each.start, each.end))
            report.end = each.end
        for each in done.lost:
            self.lost += each.range.length
            report = self.places[each.range.place]
            report.start = min(report.start, each.range.start)
            report.lost += each.range.length

    def add_compacted(self, done: CompactionResult) -> None:
        before = self.compacted.files_before if self.compacted else done.files_before
        self.compacted = CompactionResult(before, done.files_after)


class ArchiveWatcher:
    """Is told how a job goes; this one does not care."""

    def on_planned(self, offsets: int) -> None:
        """So many offsets are still to be archived."""

    def on_committed(self, done: ArchiveRound) -> None: ...

    def on_retry(self, error: JobError, wait_s: float) -> None: ...


class ArchiveJob:
    """One job; `report` is what it has done."""

    def __init__(
        self,
        spark: SparkSession,
        archive: Archive,
        bootstrap: str,
        wanted: ArchiveRequest,
        *,
        watcher: ArchiveWatcher | None = None,
        clock: Clock | None = None,
        stop: Callable[[], bool] = lambda: False,
    ) -> None:
        """`stop` is asked between rounds, and while it waits."""
        self._spark = spark
        self._archive = archive
        self._bootstrap = bootstrap
        self._topics = Topics(bootstrap)
        self._wanted = wanted
        self._watcher = watcher or ArchiveWatcher()
        self._clock = clock or SystemClock()
        self._stop = stop
        self._answered = False
        self.report = ArchiveReport()

    def run(self) -> ArchiveReport:
        """All that was in the topics when it began is archived, unless it was told to stop."""
        names = self._topics.named(self._wanted.topics, self._wanted.pattern)
        targets = {place: each.latest for place, each in self._bounds(names).items()}
        while not self._stop() and self._patiently(lambda: self._round(targets)):
            pass
        self._compact()
        return self.report

    def follow(self) -> ArchiveReport:
        """What comes is archived every `interval_s`, until it is told to stop."""
        compacted_at = 0
        while not self._stop():
            worked = self._patiently(lambda: self._round({}))
            if self.report.commits >= compacted_at + _COMPACT_EVERY:
                self._compact()
                compacted_at = self.report.commits
            if not worked:
                self._wait(self._wanted.interval_s)
        self._compact()
        return self.report

    def _compact(self) -> None:
        if self._wanted.file_bytes:
            size = self._wanted.file_bytes
            self.report.add_compacted(self._patiently(lambda: self._archive.compact(size)))

    # --- one round ------------------------------------------------------------------------------

    def _round(self, targets: Mapping[TopicPartition, int]) -> bool:
        """False: there is nothing to do. Else it is done, or somebody else was faster."""
        wanted = self._wanted
        names = self._topics.named(wanted.topics, wanted.pattern)
        state = self._archive.state()
        facts = {name: self._topics.facts(name) for name in names}
        ids = {name: each.topic_id for name, each in facts.items() if each.topic_id is not None}
        check_topic_ids(state.topic_ids, ids)
        bounds = self._bounds(names)
        self._answered = True
        plan = next_round(
            state,
            bounds,
            self._starts(names, state, bounds),
            targets,
            wanted.offsets_per_round_max,
            self._clock.now_ms(),
        )
        if not plan.ranges:
            return False
        if not wanted.accept_loss:
            check_lost(plan.lost)
        self._watcher.on_planned(_left(state, bounds, targets))
        sparse = frozenset(each for each in names if wanted.allow_gaps or self._compacts(each))
        if self._archive.append(self._records(plan), plan.commit(ids, sparse), state):
            self.report.add(plan)
            self._watcher.on_committed(plan)
        return True

    def _bounds(self, names: list[str]) -> dict[TopicPartition, OffsetBounds]:
        return self._topics.bounds(
            names, committed=self._wanted.isolation is Isolation.read_committed
        )

    def _compacts(self, name: str) -> bool:
        return "compact" in (self._topics.settings(name).get("cleanup.policy") or "")

    def _starts(
        self, names: list[str], state: ArchiveState, bounds: Mapping[TopicPartition, OffsetBounds]
    ) -> dict[TopicPartition, int]:
        """Of topics that are new; a partition that came later begins at its first offset."""
        known = {place.topic for place in state.ends}
        new = [name for name in names if name not in known]
        start = self._wanted.start
        if start == EARLIEST or not new:
            return {}
        latest = {place: each.latest for place, each in bounds.items() if place.topic in new}
        if start == LATEST:
            return latest
        found = self._topics.at_time(new, int(start))
        return {
            place: end if (at := found.get(place)) is None else at for place, end in latest.items()
        }

    def _records(self, plan: ArchiveRound) -> DataFrame:
        ranges = [each for each in plan.ranges if each.length]
        if not ranges:
            return self._spark.createDataFrame([], COLUMNS)
        options = {"kafka.isolation.level": str(self._wanted.isolation)}
        tasks = -(-plan.offsets // _OFFSETS_PER_TASK)
        if tasks > len(ranges):
            options["minPartitions"] = str(tasks)
        return read_ranges(self._spark, self._bootstrap, ranges, options)

    # --- patience -------------------------------------------------------------------------------

    def _patiently(self, work: Callable[[], T]) -> T:
        """What `work` returned, tried again while it fails for reasons that pass."""
        failing_since_s: float | None = None
        while True:
            try:
                return translate_spark_errors(work)
            except JobError as error:
                now_s = self._clock.monotonic_s()
                since_s = failing_since_s = now_s if failing_since_s is None else failing_since_s
                passes = self._answered and error.code in _RETRIED and not self._stop()
                if not passes or now_s - since_s > self._wanted.timeout_s:
                    raise
                self._watcher.on_retry(error, _RETRY_S)
            self._wait(_RETRY_S)

    def _wait(self, wait_s: float) -> None:
        """So long, or until it shall stop."""
        until_s = self._clock.monotonic_s() + wait_s
        while not self._stop() and (left_s := until_s - self._clock.monotonic_s()) > 0:
            time.sleep(min(_PAUSE_S, left_s))


def _left(
    state: ArchiveState,
    bounds: Mapping[TopicPartition, OffsetBounds],
    targets: Mapping[TopicPartition, int],
) -> int:
    return sum(
        max(0, targets.get(place, each.latest) - state.ends.get(place, each.earliest))
        for place, each in bounds.items()
    )
