"""The code that runs in Spark tasks.

The code turns rows, sorted by partition and offset, into batches.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import groupby, pairwise
from operator import itemgetter
from typing import TYPE_CHECKING, Any, NamedTuple

from gateway.pipelines.replays.encode import Encoder, RecordRows, record_rows
from gateway.pipelines.replays.plan import PartitionPlan, ReplayChunk, ReplayPlan
from gateway.pipelines.replays.writer import PartitionWriter, WriterLimits
from gateway.pipelines.shared.errors import JobError
from gateway.pipelines.shared.kafka_servers import KafkaServers
from gateway.wire.client_link import AdminError, Unreachable

if TYPE_CHECKING:
    import pyarrow

RESULT = "partition INT, number BIGINT, written BIGINT, looks INT, code STRING, error STRING"
"""The columns of a result. `number` is the number after the last received record."""
PartitionSlice = tuple[int, Any]


class SendOptions(NamedTuple):
    """The settings for sending batches. `codec` is Kafka's number of the compression."""

    bootstrap: KafkaServers
    codec: int
    batch_bytes: int
    limits: WriterLimits


def chunk_writer(
    plan: ReplayPlan, sending: SendOptions, chunks: Sequence[ReplayChunk]
) -> Callable[[Iterable[pyarrow.RecordBatch]], Iterable[pyarrow.RecordBatch]]:
    """Make a function for `mapInArrow`.

    The function returns one row of `RESULT` per partition, even on failure.
    """

    def write(batches: Iterable[pyarrow.RecordBatch]) -> Iterator[pyarrow.RecordBatch]:
        wanted = {each.partition: each for each in chunks}
        partitions = {each.partition: each for each in plan.partitions}
        for partition, parts in groupby(slices(batches), key=itemgetter(0)):
            row = _write_chunk(plan, partitions[partition], sending, wanted[partition], parts)
            yield result_batch(row)

    return write


def result_batch(row: dict[str, Any]) -> pyarrow.RecordBatch:
    """Return one row of `RESULT`."""
    import pyarrow

    kinds = {
        "partition": pyarrow.int32(),
        "number": pyarrow.int64(),
        "written": pyarrow.int64(),
        "looks": pyarrow.int32(),
        "code": pyarrow.string(),
        "error": pyarrow.string(),
    }
    return pyarrow.RecordBatch.from_pylist([row], schema=pyarrow.schema(list(kinds.items())))


def new_writer(plan: ReplayPlan, partition: PartitionPlan, sending: SendOptions) -> PartitionWriter:
    encoder = Encoder(plan.producer_id, plan.producer_epoch, sending.codec, sending.batch_bytes)
    return PartitionWriter(plan, partition, sending.bootstrap, encoder, sending.limits)


def _write_chunk(
    plan: ReplayPlan,
    partition: PartitionPlan,
    sending: SendOptions,
    chunk: ReplayChunk,
    parts: Iterator[PartitionSlice],
) -> dict[str, Any]:
    """Write one chunk. Errors are returned in the row, because Spark would retry a raised error."""
    writer = new_writer(plan, partition, sending)
    code = error = None
    number = chunk.number
    try:
        number = writer.write(number_records(partition, chunk, parts), chunk.last)
        if partition.dense and number != chunk.end - partition.first:
            raise _source_changed(partition, partition.first + number)
    except (JobError, AdminError) as failed:
        code, error = failed.code, str(failed)
    except Unreachable as failed:
        code, error = "UNREACHABLE", str(failed)
    finally:
        writer.close()
    return {
        "partition": partition.partition,
        "number": number,
        "written": writer.written,
        "looks": writer.looks,
        "code": code,
        "error": error,
    }


def slices(batches: Iterable[pyarrow.RecordBatch]) -> Iterator[PartitionSlice]:
    """Split each batch where the partition changes."""
    import numpy

    for batch in batches:
        if not batch.num_rows:
            continue
        partitions = batch.column("partition").to_numpy()
        cuts = [0, *(numpy.flatnonzero(numpy.diff(partitions)) + 1).tolist(), batch.num_rows]
        for start, end in pairwise(cuts):
            yield int(partitions[start]), batch.slice(start, end - start)


def number_records(
    partition: PartitionPlan, chunk: ReplayChunk, parts: Iterator[PartitionSlice]
) -> Iterator[RecordRows]:
    """Number every record of the chunk within the replay.

    Raises JobError if offsets are out of order or missing.
    """
    import numpy

    number, last = chunk.number, chunk.first - 1
    for _, batch in parts:
        offsets = batch.column("offset").to_numpy()
        steps = numpy.diff(offsets, prepend=last)
        lowest, highest = int(steps.min()), int(steps.max())
        if lowest < 1 or (partition.dense and highest > 1):
            raise _source_changed(partition, int(offsets[0]))
        last = int(offsets[-1])
        yield record_rows(batch, number)
        number += batch.num_rows


def _source_changed(partition: PartitionPlan, offset: int) -> JobError:
    return JobError(
        f"partition {partition.partition}: the archive's offsets near {offset} have changed since"
        " the replay began",
        "SOURCE_CHANGED",
    )
