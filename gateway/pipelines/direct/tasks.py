"""Ranges of offsets as tasks of Spark, and what a task does: a slice of a segment, in Arrow.

A slice is all that a task needs to know, so it runs anywhere, over bookies that answer there.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from pyspark.sql.datasource import InputPartition

from gateway.pipelines.direct.offsets import PartitionSource, report_loss
from gateway.pipelines.direct.options import Options
from gateway.pipelines.direct.pruning import PushedFilters
from gateway.pipelines.direct.storage_connection import cached_connection, drop_cached, is_cached
from gateway.pipelines.shared.errors import JobError
from gateway.pipelines.shared.partitions import OffsetRange, TopicPartition
from ledger.errors import (
    EntryUnknown,
    LedgerError,
    MetadataUnavailable,
    NoNode,
    NoSuchLedger,
    Truncated,
)
from ledger.streams.scan import ScannedRecord, Slice, read_slice

if TYPE_CHECKING:
    import pyarrow as pa

_GONE = (Truncated, NoSuchLedger, NoNode)


@dataclass(frozen=True, slots=True)
class SliceTask:
    """Records of one place; may be pickled."""

    place: TopicPartition
    piece: Slice


class SlicePartition(InputPartition):
    """What one task of Spark reads."""

    def __init__(self, task: SliceTask) -> None:
        super().__init__(task)
        self.task = task


async def plan_tasks(
    ranges: Iterable[OffsetRange],
    sources: Mapping[TopicPartition, PartitionSource],
    slice_bytes: int,
    wanted: PushedFilters,
) -> list[SliceTask]:
    """Slices that hold what is wanted of these ranges. Raises JobError."""
    tasks: list[SliceTask] = []
    for whole in ranges:
        each = wanted.narrowed(whole)
        if each is None:
            continue
        try:
            pieces = await sources[each.place].scan.cut(each.start, each.end, slice_bytes)
        except LedgerError as error:
            raise _fault(each, error) from error
        tasks += [
            SliceTask(each.place, piece)
            for piece in pieces
            if wanted.may_hold(None, piece.timestamp_max)
        ]
    return tasks


def read_task(task: SliceTask, options: Options) -> Iterator[pa.RecordBatch]:
    """The task's records. Memory: two chunks of the slice, and what decoding one batch takes."""
    from gateway.pipelines.direct.decode import Decoder

    piece = task.piece
    decoder = Decoder(*task.place, options.include_headers)
    following = piece.first
    try:
        for chunk in _chunks(piece, options):
            yield from decoder.decode([each.data for each in chunk], piece.first, piece.end)
            following = chunk[-1].end_sequence_id
    except LedgerError as error:
        drop_cached(options.metadata, options.tls)
        left = OffsetRange(*task.place, following, piece.end)
        if not isinstance(error, _GONE):
            raise _fault(left, error) from error
        report_loss([left], f"removed while they were read ({error})", options.fail_on_data_loss)


def _chunks(piece: Slice, options: Options) -> Iterator[list[ScannedRecord]]:
    """The slice's, in order. Where a kept link leads may be gone, as when bookies came back
    elsewhere: then a new one goes on, once."""
    where = options.metadata, options.tls
    was_kept = is_cached(*where)
    link = cached_connection(*where)
    try:
        for chunk in link.each(read_slice(link.storage.store, link.storage.client, piece)):
            yield chunk
            piece = replace(piece, first=chunk[-1].end_sequence_id)
    except (EntryUnknown, MetadataUnavailable):
        if not was_kept:
            raise
        drop_cached(*where)
        yield from _chunks(piece, options)


def _fault(a_range: OffsetRange, error: LedgerError) -> JobError:
    return JobError(f"{a_range}: {type(error).__name__}: {error}", type(error).__name__)
