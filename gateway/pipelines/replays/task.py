"""What runs in Spark's tasks: rows in order of partition and offset become batches."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import groupby, pairwise
from operator import itemgetter
from typing import TYPE_CHECKING, Any, NamedTuple

from gateway.admin.link import AdminError, Unreachable
from gateway.pipelines.model import JobError
from gateway.pipelines.replays.encode import Encoder, Rows, rows_of
from gateway.pipelines.replays.plan import PartitionPlan, Plan
from gateway.pipelines.replays.writer import Limits, PartitionWriter

if TYPE_CHECKING:
    import pyarrow

RESULT = "partition INT, written BIGINT, looks INT, code STRING, error STRING"
Slice = tuple[int, Any]


class Sending(NamedTuple):
    """How batches are sent; `codec` is Kafka's number."""

    bootstrap: str
    codec: int
    batch_bytes: int
    limits: Limits


def writing(
    plan: Plan, sending: Sending
) -> Callable[[Iterable[pyarrow.RecordBatch]], Iterable[pyarrow.RecordBatch]]:
    """For `mapInArrow`: one row of `RESULT` for each partition that came, failed or not."""

    def write(batches: Iterable[pyarrow.RecordBatch]) -> Iterator[pyarrow.RecordBatch]:
        import pyarrow

        plans = {each.partition: each for each in plan.partitions}
        for partition, parts in groupby(_slices(batches), key=itemgetter(0)):
            row = _written(plan, plans[partition], sending, parts)
            yield pyarrow.RecordBatch.from_pylist([row], schema=_schema())

    return write


def _schema() -> pyarrow.Schema:
    import pyarrow

    kinds = {
        "partition": pyarrow.int32(),
        "written": pyarrow.int64(),
        "looks": pyarrow.int32(),
        "code": pyarrow.string(),
        "error": pyarrow.string(),
    }
    return pyarrow.schema(list(kinds.items()))


def new_writer(plan: Plan, partition: PartitionPlan, sending: Sending) -> PartitionWriter:
    encoder = Encoder(plan.producer_id, plan.producer_epoch, sending.codec, sending.batch_bytes)
    return PartitionWriter(plan, partition, sending.bootstrap, encoder, sending.limits)


def _written(
    plan: Plan, partition: PartitionPlan, sending: Sending, parts: Iterator[Slice]
) -> dict[str, Any]:
    """Failures are told, not raised: Spark would try again what cannot succeed."""
    writer = new_writer(plan, partition, sending)
    code = error = None
    try:
        writer.write(numbered(partition, parts))
    except (JobError, AdminError) as failed:
        code, error = failed.code, str(failed)
    except Unreachable as failed:
        code, error = "UNREACHABLE", str(failed)
    finally:
        writer.close()
    return {
        "partition": partition.partition,
        "written": writer.written,
        "looks": writer.looks,
        "code": code,
        "error": error,
    }


def _slices(batches: Iterable[pyarrow.RecordBatch]) -> Iterator[Slice]:
    """Each batch, cut where the partition changes."""
    import numpy

    for batch in batches:
        if not batch.num_rows:
            continue
        partitions = batch.column("partition").to_numpy()
        cuts = [0, *(numpy.flatnonzero(numpy.diff(partitions)) + 1).tolist(), batch.num_rows]
        for start, end in pairwise(cuts):
            yield int(partitions[start]), batch.slice(start, end - start)


def numbered(partition: PartitionPlan, parts: Iterator[Slice]) -> Iterator[Rows]:
    """Every record with its number in the replay. Raises JobError when offsets are not in order."""
    import numpy

    number, last = 0, -1
    for _, batch in parts:
        offsets = batch.column("offset").to_numpy()
        steps = numpy.diff(offsets, prepend=last if last >= 0 else offsets[0] - 1)
        lowest, highest = int(steps.min()), int(steps.max())
        if lowest < 1 or (partition.dense and highest > 1):
            raise JobError(
                f"partition {partition.partition}: the archive's offsets near"
                f" {int(offsets[0])} are not what they were when the replay began",
                "SOURCE_CHANGED",
            )
        last = int(offsets[-1])
        if partition.dense:
            number = int(offsets[0]) - partition.first
        yield rows_of(batch, number)
        number += batch.num_rows
