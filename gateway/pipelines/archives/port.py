"""The port to an archive: commits of records, each with the offset ranges that it holds.

Two implementations, `parquet` and `iceberg`, pass one contract suite.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple, Protocol

from gateway.pipelines.shared.partitions import OffsetRange, TopicPartition

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


ROW_GROUP_BYTES = 16 * 1024 * 1024
"""Row groups of Parquet files. A task keeps one on the heap while it writes or reads."""


class LostOffsets(NamedTuple):
    """Offsets that were deleted before they were archived, and that `--accept-loss` accepted."""

    range: OffsetRange
    noticed_ms: int


@dataclass(frozen=True, slots=True)
class ArchiveState:
    """The committed contents of an archive as of `version`, which changes with each commit."""

    version: str
    ends: Mapping[TopicPartition, int] = field(default_factory=dict[TopicPartition, int])
    """Per partition the offset after the last archived or lost one."""
    topic_ids: Mapping[str, str] = field(default_factory=dict[str, str])
    """Of the archived topics, to recognise a topic that was recreated under the same name."""
    lost: tuple[LostOffsets, ...] = ()


@dataclass(frozen=True, slots=True)
class Commit:
    """Ranges that continue a state: per partition first its lost offsets, then one of `ranges`.

    Lost ranges and `ranges` do not overlap. An empty range records where a partition begins. Every
    offset of `ranges` has exactly one record. Only topics in `sparse` (compacted, or with
    transactions) may have offsets without one.
    """

    ranges: tuple[OffsetRange, ...]
    topic_ids: Mapping[str, str]
    lost: tuple[LostOffsets, ...] = ()
    sparse: frozenset[str] = frozenset()


class CompactionResult(NamedTuple):
    """The number of files before and after a compaction."""

    files_before: int
    files_after: int


class Archive(Protocol):
    """Records with the Kafka source's columns, partitioned by topic, partition and day (UTC)."""

    def state(self) -> ArchiveState:
        """Return the committed state, which is empty if the archive does not exist yet."""
        ...

    def append(self, records: DataFrame, commit: Commit, on: ArchiveState) -> bool:
        """Add exactly the records of the commit's ranges, durably and atomically. True if done.

        `records` have exactly the columns of `COLUMNS`. Returns False and adds nothing if another
        job has committed since `on`; read `state` again. Raises JobError and adds nothing if the
        records are not those of the ranges (missing, duplicate or foreign).
        """
        ...

    def read(
        self, topics: Sequence[str] = (), within: Sequence[OffsetRange] | None = None
    ) -> DataFrame:
        """Return all committed records of these topics, or of all topics: `COLUMNS` and `day DATE`.

        `within` is a hint that other offsets are not needed. The result may still contain some of
        them.
        """
        ...

    def ranges(self) -> list[OffsetRange]:
        """Return the archived ranges in order. Consecutive ranges are merged."""
        ...

    def compact(self, file_bytes_max: int) -> CompactionResult:
        """Rewrite each topic, partition and day into few files of about `file_bytes_max`."""
        ...


def ignore_step(_: str) -> None:
    """Do nothing. Tests pass a function here that stops or delays an append at a step."""
