"""Ranges of offsets as Spark tasks, each of which reads one slice of a segment into Arrow.

A slice is self-contained, so a task runs on any worker that reaches the bookies.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from pyspark.sql.datasource import InputPartition

from gateway.pipelines.direct.committed import (
    AbortedBatches,
    AbortedPart,
    is_control,
    overlapping,
)
from gateway.pipelines.direct.losses import find_loss, not_accepted, pass_accepted, report_loss
from gateway.pipelines.direct.offsets import OpenSources, gathered
from gateway.pipelines.direct.options import Options
from gateway.pipelines.direct.pruning import PushedFilters
from gateway.pipelines.direct.storage_connection import cached_connection, drop_cached, is_cached
from gateway.pipelines.shared.errors import JobError
from gateway.pipelines.shared.partitions import OffsetRange, TopicPartition
from gateway.topics.configs import LossMode
from ledger.core.loss import EntryLost
from ledger.errors import (
    EntryUnknown,
    LedgerError,
    MetadataUnavailable,
    NoNode,
    NoSuchLedger,
    Truncated,
)
from ledger.streams.scan import ScannedRecord, StreamSlice
from ledger.streams.slice_read import read_slice

if TYPE_CHECKING:
    import pyarrow as pa

    from gateway.pipelines.direct.decode import Decoder
    from ledger.ids import Buffer

_GONE = (Truncated, NoSuchLedger, NoNode)


@dataclass(frozen=True, slots=True)
class SliceTask:
    """A slice of one partition to read. The slice can be pickled."""

    topic_partition: TopicPartition
    piece: StreamSlice
    loss_mode: LossMode = LossMode.SKIP  # of the topic, when the task was planned
    # The aborted transactions of the slice. Their records are left out.
    aborted: tuple[AbortedPart, ...] = ()


class SlicePartition(InputPartition):
    """One task, as Spark's input partition."""

    def __init__(self, task: SliceTask) -> None:
        super().__init__(task)
        self.task = task


async def plan_tasks(
    ranges: Iterable[OffsetRange],
    sources: OpenSources,
    slice_bytes: int,
    filters: PushedFilters,
) -> list[SliceTask]:
    """Cut the ranges into slices that may hold matching records. Raises JobError."""
    wanted = [each for whole in ranges if (each := filters.narrowed(whole)) is not None]
    cut = await gathered([_cut(each, sources, slice_bytes) for each in wanted])
    return [
        task for tasks in cut for task in tasks if filters.may_hold(None, task.piece.timestamp_max)
    ]


async def _cut(each: OffsetRange, sources: OpenSources, slice_bytes: int) -> list[SliceTask]:
    source = sources[each.topic_partition]
    aborted: list[AbortedPart] = []
    try:
        pieces = await source.scan.cut(each.start, each.end, slice_bytes)
        if source.committed is not None:
            aborted = await source.committed.aborted(each.start, each.end)
    except LedgerError as error:
        raise _fault(each, error) from error
    return [
        SliceTask(
            each.topic_partition,
            piece,
            source.loss_mode,
            overlapping(aborted, piece.first, piece.end),
        )
        for piece in pieces
    ]


def read_task(task: SliceTask, options: Options) -> Iterator[pa.RecordBatch]:
    """Read the records of a task.

    Uses memory for two chunks of the slice and for decoding one batch.
    """
    from gateway.pipelines.direct.decode import Decoder, TimestampOutOfRange

    piece = task.piece
    aborted = AbortedBatches(task.aborted)
    decoder = Decoder(
        *task.topic_partition,
        options.include_headers,
        _ignore_timestamp if options.null_timestamps else None,
    )
    following = piece.first
    try:
        for chunk in _chunks(piece, options):
            kept = [each for each in chunk if each.lost is not None or not aborted.hold(each.data)]
            yield from _rows(task, kept, decoder, options)
            following = chunk[-1].end_sequence_id
    except EntryLost as error:
        connection = cached_connection(options.storage)
        gap = connection.run(find_loss(connection.storage, piece, error.entry))
        raise not_accepted(task.topic_partition, following, error, gap) from error
    except TimestampOutOfRange as error:
        message = f"{error}; set timestampOutOfRange=null to read its row without a timestamp"
        raise JobError(message, "TIMESTAMP_OUT_OF_RANGE") from error
    except LedgerError as error:
        drop_cached(options.storage)
        left = OffsetRange(*task.topic_partition, following, piece.end)
        if not isinstance(error, _GONE):
            raise _fault(left, error) from error
        report_loss([left], f"deleted while they were read ({error})", options.fail_on_data_loss)


def read_holes(task: SliceTask, options: Options) -> Iterator[tuple[int, int]]:
    """Yield the bounds of each batch of a slice that holds no record for this reader, in order.

    They are control batches, and the batches that the task lists as aborted. Raises LedgerError.
    """
    aborted = AbortedBatches(task.aborted)
    for chunk in _chunks(task.piece, options):
        for each in chunk:
            if each.lost is None and (is_control(each.data) or aborted.hold(each.data)):
                yield each.sequence_id, each.end_sequence_id


def _ignore_timestamp(offset: int, timestamp_ms: int) -> None:
    """Leave the row of a record without a timestamp, which timestampOutOfRange=null allows."""


def _rows(
    task: SliceTask, chunk: list[ScannedRecord], decoder: Decoder, options: Options
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a chunk, and report its accepted losses. Raises DataLost."""
    first, end = task.piece.first, task.piece.end
    batches: list[Buffer] = []
    for record in chunk:
        if record.lost is None:
            batches.append(record.data)
        elif not options.skip_accepted:
            yield from decoder.decode(batches, first, end)
            marker = pass_accepted(
                task.topic_partition, record.lost, task.loss_mode, options.fail_on_data_loss
            )
            batches = [] if marker is None else [marker]
    yield from decoder.decode(batches, first, end)


def _chunks(piece: StreamSlice, options: Options) -> Iterator[list[ScannedRecord]]:
    """Yield the chunks of the slice in order.

    A cached connection may be broken, for example after bookies moved to new addresses. A failed
    read over it is continued once over a new connection.
    """
    where = options.storage
    was_kept = is_cached(where)

    def read(left: StreamSlice) -> Iterator[list[ScannedRecord]]:
        connection = cached_connection(where)
        storage = connection.storage
        return connection.iterate(read_slice(storage.store, storage.client, left))

    def reconnect() -> bool:
        if was_kept:
            drop_cached(where)
        return was_kept

    return continued(piece, read, reconnect)


def continued(
    piece: StreamSlice,
    read: Callable[[StreamSlice], Iterator[list[ScannedRecord]]],
    reconnect: Callable[[], bool],
) -> Iterator[list[ScannedRecord]]:
    """Yield the chunks that `read` yields, also if the link is lost between two of them.

    Then the rest of the slice is read again, behind the last chunk, if `reconnect` returns True.
    """
    left = piece
    try:
        for chunk in read(piece):
            yield chunk
            left = replace(left, first=chunk[-1].end_sequence_id)
    except (EntryUnknown, MetadataUnavailable):
        if not reconnect():
            raise
        yield from read(left)


def _fault(a_range: OffsetRange, error: LedgerError) -> JobError:
    if isinstance(error, EntryLost):
        return not_accepted(a_range.topic_partition, a_range.start, error, None)
    return JobError(f"{a_range}: {type(error).__name__}: {error}", type(error).__name__)
