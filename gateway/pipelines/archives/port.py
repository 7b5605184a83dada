"""The port to an archive: commits of records, each with the offset ranges that it holds.

Two implementations, `parquet` and `iceberg`, pass one contract suite.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from gateway.pipelines.shared.errors import JobError
from gateway.pipelines.shared.partitions import OffsetRange, TopicPartition

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


ROW_GROUP_BYTES = 16 * 1024 * 1024
"""The size of row groups in Parquet files. A task that writes or reads keeps one in memory."""
PROBLEMS_SHOWN_MAX = 5
"""The number of problems that an error names."""


DELETED = "deleted"
"""The reason of offsets that were deleted before they were archived."""
ACCEPTED = "accepted"
"""The reason of offsets that are lost, if an operator accepted that for the topic."""
SKIPPED = "skipped"
"""The reason of offsets before the start (`--from`) of a topic that appeared later."""
UNREPRESENTABLE = "unrepresentable"
"""The first word of the reason of records that Spark cannot represent. Their timestamps follow."""


class LostOffsets(NamedTuple):
    """Offsets that are not archived, and the reason, which is empty in old archives.

    All were accepted by `--accept-loss`, except those that `--from` skipped.
    """

    range: OffsetRange
    noticed_ms: int
    reason: str = ""

    def encode(self) -> list[Any]:
        """Return the list that logs and tables hold: the range, the time and any reason."""
        return [*self.range, self.noticed_ms, *([self.reason] if self.reason else [])]

    @classmethod
    def decode(cls, row: Sequence[Any]) -> LostOffsets:
        """Decode what `encode` returned. Raises TypeError or ValueError for anything else."""
        topic, partition, start, end, noticed_ms, *reason = row
        lost = OffsetRange(str(topic), int(partition), int(start), int(end))
        return cls(lost, int(noticed_ms), *map(str, reason))


@dataclass(frozen=True, slots=True)
class ArchiveState:
    """The committed contents of an archive as of `version`, which changes with each commit."""

    version: str
    ends: Mapping[TopicPartition, int] = field(default_factory=dict[TopicPartition, int])
    """For each partition, the offset after the last archived or lost one."""
    topic_ids: Mapping[str, str] = field(default_factory=dict[str, str])
    """The ids of the archived topics by name. The ids show whether a topic was recreated.

    The name of a later life of a topic is NAME@ID: see `lives`.
    """
    lost: tuple[LostOffsets, ...] = ()


class HoleSum(NamedTuple):
    """The number of the proved holes of a partition, and the exclusive-or of their hashes."""

    offsets: int
    fold: int


Holes = Mapping[TopicPartition, HoleSum]


@dataclass(frozen=True, slots=True)
class Commit:
    """Ranges that continue a state: in each partition lost offsets, then one of `ranges`.

    Lost ranges and `ranges` do not overlap. An empty range records where a partition begins. Every
    offset of `ranges` has exactly one record, or `holes` proves that it has none. Only topics in
    `sparse` (compacted) may have other offsets without a record.
    """

    ranges: tuple[OffsetRange, ...]
    topic_ids: Mapping[str, str]
    lost: tuple[LostOffsets, ...] = ()
    sparse: frozenset[str] = frozenset()
    confirm: Callable[[], None] = lambda: None
    """A function that an append calls after it has read all records, before it commits them.

    If it raises JobError, nothing is added.
    """
    holes: Callable[[Sequence[OffsetRange]], Holes] = lambda _: {}
    """A function that proves which offsets of these ranges hold no record.

    They are those of markers and of aborted transactions. Called only if records are missing.
    """


class CompactionResult(NamedTuple):
    """The number of files before and after a compaction."""

    files_before: int
    files_after: int


class ArchiveProblem(NamedTuple):
    """A difference between the stored records of an archive and its log.

    `where` names a file, or a partition.
    """

    where: str
    problem: str

    def __str__(self) -> str:
        return f"{self.where}: {self.problem}"


@dataclass(frozen=True, slots=True)
class ArchiveProof:
    """The result of a comparison of the stored records of an archive with its log."""

    files: int
    rows: int
    """The number of rows that the log names."""
    unproved_rows: int
    """Rows that were committed by a version without sums. They were read and counted only."""
    problems: tuple[ArchiveProblem, ...] = ()
    """All differences, or the first ones of a badly damaged archive."""

    def expect_intact(self, where: str) -> None:
        """Raise JobError if there are differences. The error names the archive `where`."""
        if not self.problems:
            return
        shown = "; ".join(map(str, self.problems[:PROBLEMS_SHOWN_MAX]))
        more = "; ..." if len(self.problems) > PROBLEMS_SHOWN_MAX else ""
        raise JobError(
            f"{where}: the stored records differ from the log: {shown}{more}; restore the archive"
            " from a copy",
            "DAMAGED_ARCHIVE",
        )


class Archive(Protocol):
    """Records with the Kafka source's columns, partitioned by topic, partition and day (UTC)."""

    def state(self) -> ArchiveState:
        """Return the committed state, which is empty if the archive does not exist yet."""
        ...

    def append(self, records: DataFrame, commit: Commit, on: ArchiveState) -> bool:
        """Add exactly the records of the commit's ranges, durably and atomically.

        `records` have exactly the columns of `COLUMNS`. Returns True if the records were added.
        Returns False and adds nothing if another job has committed since `on`; the caller then
        reads `state` again. Raises JobError and adds nothing if records are missing, duplicate or
        outside the ranges.
        """
        ...

    def read(
        self, topics: Sequence[str] = (), within: Sequence[OffsetRange] | None = None
    ) -> DataFrame:
        """Return all committed records of `topics`, or of all topics: `COLUMNS` and `day DATE`.

        `within` is a hint that only these offsets are needed. The result may contain other offsets
        too.
        """
        ...

    def ranges(self) -> list[OffsetRange]:
        """Return the archived ranges in order. Consecutive ranges are merged."""
        ...

    def compact(self, file_bytes_max: int) -> CompactionResult:
        """Merge the files of each topic, partition and day into files of about `file_bytes_max`."""
        ...

    def verify(
        self, topics: Sequence[str] = (), within: Sequence[OffsetRange] | None = None
    ) -> ArchiveProof:
        """Read the records of `topics`, or of all topics, and compare them with the log.

        The comparison covers files, rows, content and offset ranges. With `within`, it covers at
        least the records of these ranges.
        """
        ...


def ignore_step(_: str) -> None:
    """Do nothing. A test passes another function, which stops or delays an append at a step."""
