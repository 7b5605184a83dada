"""Writes records in batches of our own, with aiokafka's producer.

So one future stands for a batch, and memory has a bound: at most `_BYTES_MAX` of records wait for
acknowledgements. A batch is sent when it is full, or when its writer is asked to send all, but
only once the batch before it in its partition is acknowledged. So nothing is written behind a batch
that the server refuses.
"""

from __future__ import annotations

import asyncio
import random
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from aiokafka import TopicPartition, errors  # pyright: ignore[reportMissingTypeStubs]
from aiokafka.partitioner import (  # pyright: ignore[reportMissingTypeStubs]
    murmur2,  # pyright: ignore[reportUnknownVariableType]
)
from aiokafka.record.memory_records import (  # pyright: ignore[reportMissingTypeStubs]
    MemoryRecords,
)
from kio.schema.errors import ErrorCode

from gateway.admin.client import AdminError, Unreachable
from gateway.admin.input_chunks import STDIN
from gateway.admin.record_input import data_bytes
from gateway.admin.record_json import Record
from ledger.command_line.units import show_time

_BYTES_MAX: Final = 4 * 2**20
_FAULTS_OF_RECORDS: Final = frozenset(
    ("INVALID_TIMESTAMP", "INVALID_RECORD", "MESSAGE_TOO_LARGE", "RECORD_LIST_TOO_LARGE")
)
_LOST: Final = (errors.KafkaConnectionError, errors.NodeNotReadyError)
_LATE_S_MAX: Final = 0.5  # a timer that fires later shows that this process stood still


@dataclass
class Spread:
    """The acknowledged records of one partition. The offsets are None with acks 0."""

    first_offset: int | None
    last_offset: int | None
    records: int


@dataclass
class Totals:
    """What was acknowledged and skipped so far. `started` is True once input was read."""

    started: bool = False
    records: int = 0
    bytes: int = 0
    skipped: int = 0
    # Records that were sent, until the server acknowledges or refuses them.
    unacknowledged: int = 0
    partitions: dict[int, Spread] = field(default_factory=dict[int, Spread])

    def add(self, found: Acknowledged, count_bytes: int) -> None:
        """Count a batch that was acknowledged."""
        self.records += found.records
        self.bytes += count_bytes
        last = None if found.offset is None else found.offset + found.records - 1
        spread = self.partitions.get(found.partition)
        if spread is None:
            self.partitions[found.partition] = Spread(found.offset, last, found.records)
        else:
            spread.last_offset = last
            spread.records += found.records


class Acknowledged(NamedTuple):
    """A batch that was acknowledged. `offset` is that of its first record, or None."""

    partition: int
    offset: int | None
    records: int
    timestamps: Sequence[int]  # of its records, if they were asked for


class Watch(NamedTuple):
    """The functions that show what happens. OSError of `acknowledged` ends the work."""

    acknowledged: Callable[[Acknowledged], None]
    skipped: Callable[[str], None]
    noted: Callable[[str], None]
    timestamps: bool  # whether `acknowledged` needs them


class Place(NamedTuple):
    """Where a record was read."""

    path: str
    line: int
    whole: bool = False  # whether the record is all that was read
    unit: str = "line"  # what a record is called

    def __str__(self) -> str:
        if self.whole:
            return "the input" if self.path == STDIN else self.path
        place = f"{self.unit} {self.line}"
        return place if self.path == STDIN else f"{self.path}: {place}"

    def up_to(self, last_line: int) -> str:
        """Return this and the lines behind it, for a message."""
        if self.whole or last_line == self.line:
            return str(self)
        lines = f"lines {self.line} to {last_line}"
        return lines if self.path == STDIN else f"{self.path}: {lines}"


class _InvalidRecordError(errors.BrokerResponseError):
    """An error of Kafka that aiokafka does not know, and would take for an unknown one."""

    errno = int(ErrorCode.invalid_record)


errors.kafka_errors.setdefault(_InvalidRecordError.errno, _InvalidRecordError)


def refusal(error: BaseException, about: str) -> AdminError | Unreachable:
    """Return an error of aiokafka as one of ours."""
    if isinstance(error, _LOST):
        return Unreachable(f"{about}: the connection was lost")
    code = _code(error)
    return AdminError(f"{about}: {code}", code)


def _code(error: BaseException) -> str:
    number = getattr(error, "errno", None)
    try:
        return ErrorCode(number).name.upper()
    except ValueError:
        return "UNKNOWN_SERVER_ERROR"


def _is_refusal(error: BaseException) -> bool:
    """Return whether the server certainly wrote nothing."""
    answered = isinstance(error, errors.BrokerResponseError)
    return answered and not (error.retriable or isinstance(error, errors.UnknownError))


class _Batch:
    """Records of one partition, from their first until their acknowledgement."""

    __slots__ = (
        *("builder", "bytes", "end_s", "error", "lines", "partition", "paths", "records"),
        *("rearmed", "refused", "settled", "size", "timer", "timestamps"),
    )

    def __init__(self, builder: Any, partition: int) -> None:
        self.builder = builder
        self.partition = partition
        # The number of the line of each record, and its place where the path changes.
        self.lines = array("Q")
        self.paths: list[tuple[int, Place]] = []
        self.records = 0
        self.bytes = 0  # of keys, values and headers
        self.size = 0  # of the batch, before it is compressed
        self.timestamps: list[int] = []
        self.timer: asyncio.TimerHandle | None = None  # while it waits for its acknowledgement
        self.end_s = 0.0  # when the timer is to fire
        self.rearmed = False
        self.settled = False  # whether it was acknowledged or refused, or its time is over
        self.error: Exception | None = None  # one of ours, unless it was acknowledged
        self.refused = False  # whether the error means that nothing was written

    def add_place(self, place: Place) -> None:
        """Note the place of the record that was added last."""
        if not self.paths or self.paths[-1][1].path != place.path:
            self.paths.append((len(self.lines), place))
        self.lines.append(place.line)

    def place(self, at: int) -> Place:
        """Return the place of the record with this index."""
        path = next(place for start, place in reversed(self.paths) if start <= at)
        return path._replace(line=self.lines[at])

    def shown(self) -> str:
        """Return the places of the records, for a message."""
        first, last = self.place(0), self.place(self.records - 1)
        if self.records == 1 or first == last:
            return f"the record of {first}"
        if first.path != last.path:
            return f"the records from {first} to {last}"
        return f"the records of {first.up_to(last.line)}"


class RecordWriter:
    """Collects records in batches and sends them."""

    def __init__(
        self,
        producer: Any,
        topic: str,
        timeout_s: float,
        partitions: Sequence[int],
        totals: Totals,
        watch: Watch,
    ) -> None:
        self._producer = producer
        self._topic = topic
        self._timeout_s = timeout_s
        self._partitions = partitions
        self.totals = totals
        self._watch = watch
        self._loop = asyncio.get_running_loop()
        # The first error after which nothing more can be written.
        self.failure: asyncio.Future[Exception] = self._loop.create_future()
        # By partition: the batch that takes further records. It is not empty.
        self._open: dict[int, _Batch] = {}
        # By partition: the batch that was sent, until the server acknowledges or refuses it.
        self._sent: dict[int, _Batch] = {}
        # Of all batches, open or sent, until then.
        self._bytes = 0
        # The first batch that the server refused; `find_refused` looks for the record.
        self._refused: _Batch | None = None
        # Done when a batch was acknowledged or refused; a new one for each wait.
        self._settled: asyncio.Future[None] = self._loop.create_future()
        # The partition of records without a key, until its batch is sent.
        self._sticky: int | None = None

    def partition_of(self, record: Record) -> int:
        """Return the partition of the record. It may be one that does not exist."""
        if record.partition is not None:
            return record.partition
        if record.key is not None:
            found: int = murmur2(record.key)  # pyright: ignore[reportUnknownVariableType]
            return self._partitions[(found & 0x7FFF_FFFF) % len(self._partitions)]
        if self._sticky is None:
            self._sticky = random.choice(self._partitions)
        return self._sticky

    def append(self, record: Record, partition: int, place: Place) -> bool:
        """Add a record to an open batch. Returns False if that needs `add`, which may wait."""
        batch = self._open.get(partition)
        return batch is not None and self._bytes <= _BYTES_MAX and self._take(batch, record, place)

    async def add(self, record: Record, partition: int, place: Place) -> None:
        """Add a record to a batch of its own or an open one, once there is room."""
        while self._bytes > _BYTES_MAX:
            await self.send_open()
            if self._bytes > _BYTES_MAX:
                await self._wait_settled()
        batch = self._open.get(partition)
        if batch is not None and self._take(batch, record, place):
            return
        if batch is not None:
            await self._send(batch)
        batch = _Batch(self._producer.create_batch(), partition)
        self._open[partition] = batch
        taken = self._take(batch, record, place)
        assert taken, "an empty batch takes any record"

    def _take(self, batch: _Batch, record: Record, place: Place) -> bool:
        before = batch.builder.size() if batch.records else 0
        taken = batch.builder.append(
            timestamp=record.timestamp,
            key=record.key,
            value=record.value,
            headers=record.headers,
        )
        if taken is None:
            return False
        batch.add_place(place)
        batch.records += 1
        batch.bytes += data_bytes(record)
        batch.size = batch.builder.size()
        if self._watch.timestamps:
            batch.timestamps.append(taken.timestamp)
        self._bytes += batch.size - before
        return True

    async def send_open(self) -> None:
        """Send all batches that have records."""
        for batch in list(self._open.values()):
            await self._send(batch)

    async def _send(self, batch: _Batch) -> None:
        """Send an open batch, once the one before it in its partition is acknowledged.

        After a failure nothing is sent; the caller is cancelled.
        """
        while batch.partition in self._sent:
            await self._wait_settled()
        if self.failure.done():
            await self._loop.create_future()
        del self._open[batch.partition]
        try:
            await self._hand_over(batch)
        except asyncio.CancelledError:
            if not batch.settled and batch.partition not in self._sent:
                self._open[batch.partition] = batch
            raise
        if self._sticky == batch.partition:
            self._sticky = None

    async def _hand_over(self, batch: _Batch) -> None:
        """Give a batch to the producer, which takes it without an interruption or not at all."""
        try:
            future: asyncio.Future[Any] = await self._producer.send_batch(
                batch.builder, self._topic, partition=batch.partition
            )
        except (AssertionError, errors.UnknownTopicOrPartitionError):
            self._end(batch, self._gone(batch))
            return
        except errors.KafkaError as error:
            self._end(batch, refusal(error, f"{self._topic}, partition {batch.partition}"))
            return
        self._sent[batch.partition] = batch
        self.totals.unacknowledged += batch.records
        self._start_timer(batch)
        future.add_done_callback(lambda done: self._on_settled(batch, done))

    def _gone(self, batch: _Batch) -> AdminError:
        place = f"{self._topic} has no partition {batch.partition} any more"
        code = "UNKNOWN_TOPIC_OR_PARTITION"
        return AdminError(f"{place}; it was deleted or created again", code)

    def _start_timer(self, batch: _Batch) -> None:
        batch.end_s = self._loop.time() + self._timeout_s
        batch.timer = self._loop.call_at(batch.end_s, self._on_late, batch)

    def _on_late(self, batch: _Batch) -> None:
        if self._loop.time() > batch.end_s + _LATE_S_MAX and not batch.rearmed:
            batch.rearmed = True  # the acknowledgement may be there, and was not read yet
            self._start_timer(batch)
            return
        known = self._producer.client.cluster.partitions_for_topic(self._topic)
        if batch.partition not in (known or ()):
            self._end(batch, self._gone(batch))
            return
        about = f"{self._topic} did not acknowledge the record of {batch.place(0)}"
        self._end(batch, Unreachable(f"{about} within {show_time(self._timeout_s)}"))

    def _on_settled(self, batch: _Batch, done: asyncio.Future[Any]) -> None:
        if batch.timer is not None:
            batch.timer.cancel()
        del self._sent[batch.partition]
        self._bytes -= batch.size
        error = None if done.cancelled() else done.exception()
        if done.cancelled():
            self._settle()
        elif error is None:
            self._on_acknowledged(batch, done.result())
        elif _is_refusal(error):
            self._on_refused(batch, error)
        else:
            about = f"{self._topic} did not acknowledge {batch.shown()}"
            reason = "the connection was lost" if isinstance(error, _LOST) else _code(error)
            self._end(batch, Unreachable(f"{about}: {reason}"))

    def _on_acknowledged(self, batch: _Batch, metadata: Any) -> None:
        batch.settled = True
        found = _acknowledged(batch, metadata)
        self.totals.unacknowledged -= batch.records
        self.totals.add(found, batch.bytes)
        try:
            self._watch.acknowledged(found)
        except OSError as fault:  # stdout is closed or full
            self._fail(fault)
        self._settle()

    def _on_refused(self, batch: _Batch, error: BaseException) -> None:
        self.totals.unacknowledged -= batch.records
        batch.refused = True
        if not self.failure.done() and _code(error) in _FAULTS_OF_RECORDS:
            self._refused = batch
        # The server did not count the records, and expects their numbers again.
        manager = self._producer._txn_manager
        if manager is not None:
            place = TopicPartition(self._topic, batch.partition)
            manager.increment_sequence_number(place, -batch.records)
        size = ""
        if isinstance(error, errors.MessageSizeTooLargeError):
            size = f", of {batch.size} bytes"
        self._end(batch, refusal(error, f"{self._topic} refused {batch.shown()}{size}"))

    def _end(self, batch: _Batch, error: Exception) -> None:
        """End the work because of a batch."""
        if not batch.settled:
            batch.settled, batch.error = True, error
        self._fail(error)

    def _fail(self, error: Exception) -> None:
        if not self.failure.done():
            self.failure.set_result(error)
        self._settle()

    def _settle(self) -> None:
        if not self._settled.done():
            self._settled.set_result(None)

    async def flush(self) -> None:
        """Send all, and return once nothing is under way, or after a failure."""
        sending = asyncio.create_task(self.send_open())
        try:
            await asyncio.wait({sending, self.failure}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            await cancelled(sending)
        while self._sent and not self.failure.done():
            await self._wait_settled()

    async def answered(self) -> None:
        """Return once the server has answered all that was sent."""
        while self._sent:
            await self._wait_settled()

    async def find_refused(self) -> Exception | None:
        """Send the records of a batch that was refused again, up to the one that is refused.

        Returns the error of that record, or None if no batch was refused. The records of a half
        that holds no such record are written; the other half is halved again.
        """
        batch = self._refused
        if batch is None or batch.records == 1 or batch.partition in self._sent:
            return None
        records = _records_of(batch)
        low, end = 0, len(records)  # the records from `low` to `end` were refused together
        while low < len(records):
            high = max(low + 1, (low + end) // 2)
            part = await self._write_again(batch, records, low, high)
            if part.error is None:
                low = high
                end = len(records) if low == end else end
            elif not part.refused or high - low == 1:
                return part.error
            else:
                end = high
        about = f"{self._topic} took {batch.shown()} in smaller batches only, of fewer than"
        return AdminError(f"{about} {batch.size} bytes", "MESSAGE_TOO_LARGE")

    async def _write_again(
        self, batch: _Batch, records: Sequence[Record], low: int, high: int
    ) -> _Batch:
        """Send these records of a batch, and return their batch once it is settled."""
        part = _Batch(self._producer.create_batch(), batch.partition)
        for at in range(low, high):
            taken = self._take(part, records[at], batch.place(at))
            assert taken, "a part of a batch fits in a batch"
        await self._hand_over(part)
        while not part.settled:
            await self._wait_settled()
        return part

    async def _wait_settled(self) -> None:
        self._settled = self._loop.create_future()
        await self._settled


async def cancelled(task: asyncio.Task[Any]) -> None:
    """Cancel a task, and return once it has ended."""
    task.cancel()
    await asyncio.wait({task})


def _acknowledged(batch: _Batch, metadata: Any) -> Acknowledged:
    """Return what the server answered; without an offset for acks 0, or if it does not know it."""
    count = batch.records
    if metadata is None:
        return Acknowledged(batch.partition, None, count, batch.timestamps)
    timestamps: Sequence[int] = batch.timestamps
    if metadata.timestamp is not None and metadata.timestamp >= 0:  # the time of the append
        timestamps = [metadata.timestamp] * len(timestamps)
    offset = metadata.offset if metadata.offset >= 0 else None
    return Acknowledged(batch.partition, offset, count, timestamps)


def _records_of(batch: _Batch) -> list[Record]:
    """Return the records of a batch that was sent."""
    found: list[Record] = []
    data: Any = MemoryRecords(bytes(batch.builder._build()))
    while (part := data.next_batch()) is not None:
        found += [
            Record(each.value, each.key, each.headers, timestamp=each.timestamp) for each in part
        ]
    return found
