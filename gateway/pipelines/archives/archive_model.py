"""The request, the report and the watcher of an archive job."""

from __future__ import annotations

from dataclasses import dataclass, field

from gateway.pipelines.archives.port import SKIPPED, CompactionResult, LostOffsets
from gateway.pipelines.archives.rounds import ArchiveRound
from gateway.pipelines.shared.errors import JobError
from gateway.pipelines.shared.kafka_source import Isolation
from gateway.pipelines.shared.partitions import TopicPartition

EARLIEST, LATEST = "earliest", "latest"


@dataclass(frozen=True, slots=True)
class ArchiveRequest:
    """The topics to archive, and the settings of the job."""

    topics: tuple[str, ...] = ()
    pattern: str = ""  # also archive topics whose whole name matches this pattern
    start: str | int = EARLIEST  # where new topics begin: earliest, latest or milliseconds
    offsets_per_round_max: int = 5_000_000  # approximate number of offsets in one commit
    # Topics to continue without records that were deleted, are lost or cannot be represented, and
    # to begin anew if they were recreated.
    accept_loss: frozenset[str] = frozenset()
    allow_gaps: bool = False  # accept offsets without a record
    isolation: Isolation = Isolation.read_committed
    interval_s: float = 10.0  # pause between rounds, in a job that follows its topics
    commit_bytes: int = 0  # in such a job, commit about so many bytes of keys and values; 0: any
    commit_s: float = 0.0  # and at the latest after this time; 0: at each interval
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
    # Offsets before the start (`--from`) of topics that appeared later. Not part of `lost`.
    skipped: int = 0
    partitions: dict[TopicPartition, PartitionReport] = field(
        default_factory=dict[TopicPartition, PartitionReport]
    )
    # What this job committed as lost or skipped, in order.
    losses: list[LostOffsets] = field(default_factory=list[LostOffsets])
    # The topics that cannot be archived now, by name. A topic that recovers is removed.
    set_aside: dict[str, JobError] = field(default_factory=dict[str, JobError])
    compacted: CompactionResult | None = None

    def add(self, done: ArchiveRound) -> None:
        self.commits += 1
        self.offsets += done.offsets
        for each in done.ranges:
            report = self.partitions.setdefault(
                each.topic_partition, PartitionReport(each.start, each.end)
            )
            report.end = each.end
        self.losses += done.lost
        for each in done.lost:
            if each.reason == SKIPPED:
                self.skipped += each.range.length
                continue
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

    def on_set_aside(self, topic: str, error: JobError) -> None:
        """Report a topic that the job leaves out from now on."""

    def on_recovered(self, topic: str, error: JobError) -> None:
        """Report that the job no longer leaves out the topic for this reason."""


class ArchiveWatchers(ArchiveWatcher):
    """Several watchers, which receive all reports."""

    def __init__(self, *watchers: ArchiveWatcher) -> None:
        self._watchers = watchers

    def on_planned(self, offsets: int) -> None:
        for each in self._watchers:
            each.on_planned(offsets)

    def on_committed(self, done: ArchiveRound) -> None:
        for each in self._watchers:
            each.on_committed(done)

    def on_retry(self, error: JobError, wait_s: float) -> None:
        for each in self._watchers:
            each.on_retry(error, wait_s)

    def on_set_aside(self, topic: str, error: JobError) -> None:
        for each in self._watchers:
            each.on_set_aside(topic, error)

    def on_recovered(self, topic: str, error: JobError) -> None:
        for each in self._watchers:
            each.on_recovered(topic, error)
