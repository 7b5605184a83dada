"""The port to an archive: commits of records, each with the offset ranges that it holds.

Two implementations pass one contract suite: `parquet` and `iceberg`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple, Protocol

from gateway.pipelines.shared.partitions import OffsetRange, TopicPartition

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


ROW_GROUP_BYTES = 16 * 1024 * 1024
"""Of Parquet files. A task that writes or reads one holds it in the heap."""


class LostOffsets(NamedTuple):
    """Offsets that were gone before they could be archived, and that somebody accepted so."""

    range: OffsetRange
    noticed_ms: int


@dataclass(frozen=True, slots=True)
class ArchiveState:
    """What is in an archive as of `version`, which changes with each commit.

    `ends`: per place the offset after the last archived (or lost) one. `topic_ids`: of the topics
    that were archived, so that a topic made anew is not taken for the old one.
    """

    version: str
    ends: Mapping[TopicPartition, int] = field(default_factory=dict[TopicPartition, int])
    topic_ids: Mapping[str, str] = field(default_factory=dict[str, str])
    lost: tuple[LostOffsets, ...] = ()


@dataclass(frozen=True, slots=True)
class Commit:
    """Ranges that follow on the ends of a state, per place first `lost`, then one of `ranges`.

    No range stands in both; an empty one says where a place begins. Every offset of `ranges` has
    one record, but of topics in `sparse` (compacted, or with transactions) some have none.
    """

    ranges: tuple[OffsetRange, ...]
    topic_ids: Mapping[str, str]
    lost: tuple[LostOffsets, ...] = ()
    sparse: frozenset[str] = frozenset()


class CompactionResult(NamedTuple):
    """What a compaction did."""

    files_before: int
    files_after: int


class Archive(Protocol):
    """Records as of the Kafka source, partitioned by topic, partition and day (UTC)."""

    def state(self) -> ArchiveState:
        """As committed now; of an archive that does not exist yet: empty."""
        ...

    def append(self, records: DataFrame, commit: Commit, on: ArchiveState) -> bool:
        """True: exactly the records of the commit's ranges are in it, durably, all or nothing.

        `records` have the columns of `COLUMNS` and no others. False: somebody has committed
        since `on`; nothing was added, look at `state` again. Raises JobError when the records are
        not those of the ranges (missing, twice, others), and nothing was added.
        """
        ...

    def read(
        self, topics: Sequence[str] = (), within: Sequence[OffsetRange] | None = None
    ) -> DataFrame:
        """All that is committed, of these topics or of all: `COLUMNS` and `day DATE`.

        `within`: no other offsets are wanted; some of them may be in it all the same.
        """
        ...

    def ranges(self) -> list[OffsetRange]:
        """What is archived, joined where it is consecutive, in order."""
        ...

    def compact(self, file_bytes_max: int) -> CompactionResult:
        """Files of one topic, partition and day are few, of about that size; same records."""
        ...
