"""Writes one partition's part of a transaction. The driver begins and ends the transaction.

The records of a run have the sequences 0, 1, ... in each partition, whichever task sends them. So a
repeated task cannot write a record twice: the server recognises its batches or refuses them. After
any failure the whole transaction is given up.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from operator import itemgetter
from typing import TYPE_CHECKING, Any, NamedTuple

from kio.schema.errors import ErrorCode

from gateway.pipelines.replays.blocking_connection import BlockingConnection
from gateway.pipelines.replays.encode import Encoder, RecordRows
from gateway.pipelines.replays.plan import SEQUENCE_MAX, PartitionPlan, ReplayChunk, ReplayPlan
from gateway.pipelines.replays.target import ProducerId
from gateway.pipelines.replays.task import (
    PartitionSlice,
    SendOptions,
    number_records,
    result_batch,
    slices,
)
from gateway.pipelines.replays.transactions import FAILED, refused
from gateway.pipelines.replays.writer import LookupNeeded, find_leader
from gateway.pipelines.shared.errors import JobError
from gateway.pipelines.shared.kafka_servers import settings_of
from gateway.wire.client_link import AdminError, Unreachable

if TYPE_CHECKING:
    import pyarrow

_PRODUCE, _PRODUCE_MAX = 0, 11  # from version 12 on, the server would follow another protocol
_IN_FLIGHT_MAX = 5
_PRODUCE_MS_MAX = 30_000


class Sending(NamedTuple):
    """The producer of a run. `first` maps each partition to the number of its first record."""

    transactional_id: str
    producer: ProducerId
    first: Mapping[int, int]


class TransactionalWriter:
    """The writer of one partition in one transaction. Any method may raise JobError."""

    def __init__(
        self, plan: ReplayPlan, partition: PartitionPlan, sending: Sending, options: SendOptions
    ) -> None:
        self._plan = plan
        self._index = partition.partition
        self._sending = sending
        self._encoder = Encoder(
            *sending.producer, options.codec, options.batch_bytes, transactional=True
        )
        self._options = options
        # The number after each batch in flight, in order.
        self._in_flight: deque[int] = deque()

    def write(self, source: Iterable[RecordRows], number: int) -> int:
        """Write all records of `source`, which begin with `number`. Returns the number behind."""
        try:
            connection = find_leader(
                settings_of(self._options.bootstrap),
                self._plan,
                self._index,
                self._options.limits.answer_s_max,
            )
        except (Unreachable, LookupNeeded) as error:
            raise JobError(str(error), FAILED) from error
        try:
            for rows in source:
                number = rows.end
                self._post(connection, rows)
            while self._in_flight:
                self._take(connection)
        except Unreachable as error:
            raise JobError(str(error), FAILED) from error
        finally:
            connection.close()
        return number

    def _post(self, connection: BlockingConnection, rows: RecordRows) -> None:
        ours = rows._replace(first=rows.first - self._sending.first[self._index])
        for end, data in self._encoder.batches(ours, ours.first, SEQUENCE_MAX):
            while len(self._in_flight) >= _IN_FLIGHT_MAX:
                self._take(connection)
            part = {"index": self._index, "records": data}
            topic = {"name": self._plan.target, "partition_data": [part]}
            fields = {
                "transactional_id": self._sending.transactional_id,
                "acks": -1,
                "timeout": _PRODUCE_MS_MAX,
                "topic_data": [topic],
            }
            connection.post(_PRODUCE, fields, _PRODUCE_MAX)
            self._in_flight.append(end)

    def _take(self, connection: BlockingConnection) -> None:
        answer = connection.take()
        self._in_flight.popleft()
        ((produced,),) = (topic.partition_responses for topic in answer.responses)
        code = produced.error_code
        if code is ErrorCode.none:
            return
        name = f"{self._plan.target}-{self._index}"
        if code in (ErrorCode.message_too_large, ErrorCode.record_list_too_large):
            raise JobError(
                f"{name}: {code.name.upper()}; raise the topic's max.message.bytes and run the same"
                " replay again",
                code.name.upper(),
            )
        if code in _GIVEN_UP:
            raise JobError(f"{name}: {code.name.upper()}", FAILED)
        raise refused(name, code)


_GIVEN_UP = frozenset(
    {
        ErrorCode.out_of_order_sequence_number,
        ErrorCode.duplicate_sequence_number,
        ErrorCode.unknown_producer_id,
        ErrorCode.invalid_txn_state,
        ErrorCode.transaction_abortable,
    }
)
"""Codes after which another transaction is tried: a task was repeated, or the server lost state."""


def transaction_writer(
    plan: ReplayPlan, options: SendOptions, sending: Sending, chunks: Sequence[ReplayChunk]
) -> Callable[[Iterable[pyarrow.RecordBatch]], Iterable[pyarrow.RecordBatch]]:
    """Make a function for `mapInArrow`, as `chunk_writer` does."""

    def write(batches: Iterable[pyarrow.RecordBatch]) -> Iterator[pyarrow.RecordBatch]:
        wanted = {each.partition: each for each in chunks}
        partitions = {each.partition: each for each in plan.partitions}
        for partition, parts in groupby(slices(batches), key=itemgetter(0)):
            writer = TransactionalWriter(plan, partitions[partition], sending, options)
            yield result_batch(_write(writer, partitions[partition], wanted[partition], parts))

    return write


def _write(
    writer: TransactionalWriter,
    partition: PartitionPlan,
    chunk: ReplayChunk,
    parts: Iterator[PartitionSlice],
) -> dict[str, Any]:
    """Write one chunk. Errors are returned in the row, because Spark would retry a raised error."""
    code = error = None
    number = chunk.number
    try:
        number = writer.write(number_records(partition, chunk, parts), number)
    except (JobError, AdminError) as failed:
        code, error = failed.code, str(failed)
    return {
        "partition": partition.partition,
        "number": number,
        "written": number - chunk.number,
        "looks": 1,
        "code": code,
        "error": error,
    }
