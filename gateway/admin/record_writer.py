"""Writes records in batches of our own, with aiokafka's producer.

So one future stands for a batch, and memory has a bound: at most `_BYTES_MAX` of records wait for
acknowledgements. A batch is sent when it is full, or when its writer is asked to send all.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from aiokafka import errors  # pyright: ignore[reportMissingTypeStubs]
from aiokafka.partitioner import (  # pyright: ignore[reportMissingTypeStubs]
    murmur2,  # pyright: ignore[reportUnknownVariableType]
)
from kio.schema.errors import ErrorCode

from gateway.admin.client import AdminError, Unreachable
from gateway.admin.input_chunks import STDIN
from gateway.admin.record_input import data_bytes
from gateway.admin.record_json import Record
from ledger.command_line.units import show_time

_BYTES_MAX: Final = 4 * 2**20


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
    unacknowledged: int = 0  # records whose outcome is unknown when the command ends
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
    timestamps: bool  # whether `acknowledged` needs them


class Place(NamedTuple):
    """Where a record was read."""

    path: str
    line: int
    whole: bool = False  # whether the record is all that was read

    def __str__(self) -> str:
        if self.whole:
            return "the input" if self.path == STDIN else self.path
        return f"line {self.line}" if self.path == STDIN else f"{self.path}: line {self.line}"


def refusal(error: Exception, about: str) -> AdminError | Unreachable:
    """Return an error of aiokafka as one of ours."""
    if isinstance(error, errors.KafkaConnectionError | errors.NodeNotReadyError):
        return Unreachable(f"{about}: the connection was lost")
    number = getattr(error, "errno", None)
    try:
        code = ErrorCode(number).name.upper()
    except ValueError:
        code = "UNKNOWN_SERVER_ERROR"
    return AdminError(f"{about}: {code}", code)


class _Batch:
    """Records of one partition, from their first until their acknowledgement."""

    __slots__ = (
        *("builder", "bytes", "first", "last", "partition", "records", "size"),
        *("timer", "timestamps"),
    )

    def __init__(self, builder: Any, partition: int, first: Place) -> None:
        self.builder = builder
        self.partition = partition
        self.first = self.last = first  # places of its first and its last record
        self.records = 0
        self.bytes = 0  # of keys, values and headers
        self.size = 0  # of the batch, before it is compressed
        self.timestamps: list[int] = []
        self.timer: asyncio.TimerHandle | None = None  # while it waits for its acknowledgement


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
        # Records that were sent, until the server acknowledges or refuses them.
        self.sent = 0
        # Of all batches, open or sent, until then.
        self._bytes = 0
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
            await self._wait_settled()
        batch = self._open.get(partition)
        if batch is not None and self._take(batch, record, place):
            return
        if batch is not None:
            await self._send(batch)
        batch = _Batch(self._producer.create_batch(), partition, place)
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
        batch.last = place
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
        """Send a batch, after the one before it in its partition was sent."""
        future: asyncio.Future[Any] | None = None
        while future is None:
            try:
                future = await self._producer.send_batch(
                    batch.builder, self._topic, partition=batch.partition
                )
            except errors.KafkaTimeoutError:  # the batch before it has a timer of its own
                continue
            except (errors.KafkaError, AssertionError) as error:  # the topic changed meanwhile
                self._fail(refusal(error, f"{self._topic}, partition {batch.partition}"))
                return
        del self._open[batch.partition]
        self.sent += batch.records
        if self._sticky == batch.partition:
            self._sticky = None
        batch.timer = self._loop.call_later(self._timeout_s, self._on_late, batch)
        future.add_done_callback(lambda done: self._on_settled(batch, done))

    def _on_late(self, batch: _Batch) -> None:
        wait = show_time(self._timeout_s)
        place = f"the record of {batch.first}"
        self._fail(Unreachable(f"{self._topic} did not acknowledge {place} within {wait}"))

    def _on_settled(self, batch: _Batch, done: asyncio.Future[Any]) -> None:
        if batch.timer is not None:
            batch.timer.cancel()
        self._settle()
        if done.cancelled():
            return
        self.sent -= batch.records
        self._bytes -= batch.size
        error = done.exception()
        if error is not None:
            assert isinstance(error, Exception)
            self._fail(self._refusal_of(batch, error))
            return
        found = _acknowledged(batch, done.result())
        self.totals.add(found, batch.bytes)
        try:
            self._watch.acknowledged(found)
        except OSError as fault:  # stdout is closed or full
            self._fail(fault)

    def _refusal_of(self, batch: _Batch, error: Exception) -> Exception:
        records = f"the record of {batch.first}"
        if batch.records > 1:
            records = f"the records from {batch.first} to {batch.last}"
        if isinstance(error, errors.MessageSizeTooLargeError):
            records += f", of {batch.size} bytes"
        return refusal(error, f"{self._topic} refused {records}")

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
        await asyncio.wait({sending, self.failure}, return_when=asyncio.FIRST_COMPLETED)
        await cancelled(sending)
        while self.sent and not self.failure.done():
            await self._wait_settled()

    async def answered(self) -> None:
        """Return once the server has answered all that was sent."""
        while self.sent:
            await self._wait_settled()

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
