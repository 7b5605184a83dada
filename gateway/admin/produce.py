"""Writes records of files or of stdin to a topic, with aiokafka's idempotent producer.

The records of a partition are sent in batches of our own, so that one future stands for a batch,
and memory has a bound: at most `_BYTES_MAX` of records wait for acknowledgements. A batch is sent
when it is full, or when the input has no more bytes for the moment.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
from collections.abc import AsyncGenerator, Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from aiokafka import AIOKafkaProducer, errors  # pyright: ignore[reportMissingTypeStubs]
from aiokafka.partitioner import (  # pyright: ignore[reportMissingTypeStubs]
    murmur2,  # pyright: ignore[reportUnknownVariableType]
)
from kio.schema.errors import ErrorCode

from gateway.admin.client import AdminClient, AdminError, Unreachable, parse_bootstrap, raise_for
from gateway.admin.input_chunks import STDIN, InputFile
from gateway.admin.record_input import (
    BadHeader,
    Defaults,
    InputFormat,
    RecordInput,
    TooLong,
    batch_bytes,
    data_bytes,
    fits,
)
from gateway.admin.record_json import BadRecord, Record
from gateway.admin.topics import settings
from ledger.command_line.exit_codes import EXIT_BAD_INPUT, EXIT_FAILED, EXIT_USAGE
from ledger.command_line.units import show_time

_METADATA: Final = 3
_CREATION_S_MAX: Final = 5.0  # how long a topic is waited for that the server may be creating
_RETRY_S: Final = 0.2
_REQUEST_MS_MAX: Final = 30_000
_START_S_MAX: Final = 15.0
_STOP_S_MAX: Final = 2.0
_INTERRUPTED_S_MAX: Final = 5.0  # how long acknowledgements are waited for after Ctrl-C
_BATCH_BYTES: Final = 512 * 1024
_BYTES_MAX: Final = 4 * 2**20
_UNKNOWN_LIMIT: Final = 100 * 2**20  # if DescribeConfigs is refused: the largest request of Kafka
_PAUSE_S_MIN: Final = 0.005  # shorter pauses of --rate are added up
_REASON_MAX: Final = 300  # characters


@dataclass(frozen=True)
class Plan:
    """What is written, and how."""

    topic: str
    files: Sequence[str]  # "-" is stdin
    form: InputFormat
    defaults: Defaults
    compression: str | None
    acks: str | int
    rate: int | None  # records per second
    skip_bad: bool
    timeout_s: float  # how long a record may wait for its acknowledgement
    single: Record | None = None  # written instead of the files


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


class BadInput(Exception):
    """An input that cannot be written. `code` names the kind, `exit_code` ends the command."""

    def __init__(self, message: str, code: str, exit_code: int) -> None:
        super().__init__(message)
        self.code = code
        self.exit_code = exit_code


class Outcome(NamedTuple):
    """How the work ended. `error` is None if all records were acknowledged."""

    error: Exception | None = None
    interrupted: bool = False


class _Topic(NamedTuple):
    name: str
    partitions: int
    bytes_max: int
    named_limit: bool  # whether `bytes_max` is max.message.bytes
    compacted: bool


async def produce(
    client: AdminClient, bootstrap: str, plan: Plan, totals: Totals, watch: Watch
) -> Outcome:
    """Write all records, and return how that ended.

    Raises AdminError or Unreachable if nothing was read and written yet.
    """
    logging.getLogger("aiokafka").disabled = True
    for name in ("aiokafka", "asyncio"):  # their lines on stderr would be none of ours
        logging.getLogger(name).addHandler(logging.NullHandler())
        logging.getLogger(name).propagate = False
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: None)
    topic = await _find_topic(client, plan)
    async with _started(bootstrap, plan, topic) as producer:
        partitions = await _known_partitions(producer, topic)
        topic = topic._replace(partitions=len(partitions))
        totals.started = True
        writer = _Writer(producer, plan, topic, partitions, totals, watch)
        return await _run(writer, _Feed(plan, topic, writer, watch).run())


async def _run(writer: _Writer, work: Coroutine[Any, Any, None]) -> Outcome:
    """Run `work`, then wait for all acknowledgements."""
    feed = asyncio.create_task(work)
    outcome = Outcome()
    try:
        await asyncio.wait({feed, writer.failure}, return_when=asyncio.FIRST_COMPLETED)
        await _cancelled(feed)
        if not feed.cancelled() and feed.exception() is not None:
            outcome = Outcome(_expected(feed.exception()))
        await writer.flush()
    except asyncio.CancelledError:
        outcome = Outcome(interrupted=True)
        await _cancelled(feed)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_INTERRUPTED_S_MAX):
                await writer.flush()
    if writer.failure.done() and not outcome.interrupted:
        outcome = Outcome(writer.failure.result())
        with contextlib.suppress(TimeoutError):  # the batches beside the one that was refused
            async with asyncio.timeout(_STOP_S_MAX):
                await writer.answered()
    writer.totals.unacknowledged = writer.sent
    return outcome


async def _cancelled(task: asyncio.Task[Any]) -> None:
    task.cancel()
    await asyncio.wait({task})


def _expected(error: BaseException | None) -> Exception:
    if isinstance(error, (BadInput, AdminError, Unreachable)):
        return error
    assert error is not None
    raise error


# the topic


async def _find_topic(client: AdminClient, plan: Plan) -> _Topic:
    """Return the topic, which the server may create. Raises AdminError if it does not exist."""
    loop = asyncio.get_running_loop()
    end_s = loop.time() + _CREATION_S_MAX
    asked = {"topics": [{"name": plan.topic}], "allow_auto_topic_creation": True}
    while True:
        (found,) = (await client.send(_METADATA, asked)).topics
        code = found.error_code.name
        waits = code in ("unknown_topic_or_partition", "leader_not_available")
        if not waits or loop.time() > end_s:
            break
        await asyncio.sleep(_RETRY_S)
    if code == "unknown_topic_or_partition":
        fix = f"create it with gateway topic create {plan.topic}"
        raise AdminError(f"{plan.topic} does not exist; {fix}", code.upper())
    raise_for(found.error_code, None, plan.topic)
    count = len(found.partitions)
    partition = plan.defaults.partition
    if partition is not None and partition >= count:
        raise AdminError(_no_partition(plan.topic, partition, count), "UNKNOWN_PARTITION")
    try:
        known = await settings(client, plan.topic)
    except AdminError:  # a producer need not be allowed to describe settings
        known = {}
    limit = known.get("max.message.bytes")
    compacted = "compact" in (known.get("cleanup.policy") or "")
    bytes_max = _UNKNOWN_LIMIT if limit is None else int(limit)
    return _Topic(plan.topic, count, bytes_max, limit is not None, compacted)


def _no_partition(topic: str, partition: int, count: int) -> str:
    return f"{topic} has no partition {partition}; it has {count}, numbered from 0"


# the producer


@contextlib.asynccontextmanager
async def _started(bootstrap: str, plan: Plan, topic: _Topic) -> AsyncGenerator[Any]:
    servers = [
        f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        for host, port in parse_bootstrap(bootstrap)
    ]
    producer: Any = AIOKafkaProducer(
        bootstrap_servers=",".join(servers),
        client_id="gateway-topic-produce",
        acks=plan.acks,
        enable_idempotence=plan.acks == "all",
        compression_type=plan.compression,
        max_batch_size=max(1, min(_BATCH_BYTES, topic.bytes_max)),
        request_timeout_ms=_REQUEST_MS_MAX,
    )
    try:
        try:
            async with asyncio.timeout(_START_S_MAX):
                await producer.start()
        except TimeoutError:
            raise Unreachable(f"no producer id from {bootstrap} in {_START_S_MAX:g} s") from None
        except errors.KafkaError as error:
            raise _refusal(error, f"no producer id from {bootstrap}") from None
        yield producer
    finally:
        # Without acknowledgements, `stop` would wait for them for ever.
        with contextlib.suppress(TimeoutError, errors.KafkaError):
            async with asyncio.timeout(_STOP_S_MAX):
                await producer.stop()


async def _known_partitions(producer: Any, topic: _Topic) -> Sequence[int]:
    """Return the partitions that the producer knows. One broker may lag behind another."""
    loop = asyncio.get_running_loop()
    end_s = loop.time() + _CREATION_S_MAX
    try:
        found = await producer.partitions_for(topic.name)
        while len(found) < topic.partitions and loop.time() < end_s:
            await asyncio.sleep(_RETRY_S)
            await producer.client.force_metadata_update()
            found = await producer.partitions_for(topic.name)
    except errors.KafkaError as error:
        raise _refusal(error, topic.name) from None
    return sorted(found)


def _refusal(error: Exception, about: str) -> AdminError | Unreachable:
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


class _Writer:
    """Collects records in batches and sends them."""

    def __init__(
        self,
        producer: Any,
        plan: Plan,
        topic: _Topic,
        partitions: Sequence[int],
        totals: Totals,
        watch: Watch,
    ) -> None:
        self._producer = producer
        self._plan = plan
        self._topic = topic
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
                    batch.builder, self._topic.name, partition=batch.partition
                )
            except errors.KafkaTimeoutError:  # the batch before it has a timer of its own
                continue
            except (errors.KafkaError, AssertionError) as error:  # the topic changed meanwhile
                self._fail(_refusal(error, f"{self._topic.name}, partition {batch.partition}"))
                return
        del self._open[batch.partition]
        self.sent += batch.records
        if self._sticky == batch.partition:
            self._sticky = None
        batch.timer = self._loop.call_later(self._plan.timeout_s, self._on_late, batch)
        future.add_done_callback(lambda done: self._on_settled(batch, done))

    def _on_late(self, batch: _Batch) -> None:
        wait = show_time(self._plan.timeout_s)
        place = f"the record of {batch.first}"
        self._fail(Unreachable(f"{self._topic.name} did not acknowledge {place} within {wait}"))

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
        return _refusal(error, f"{self._topic.name} refused {records}")

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
        await _cancelled(sending)
        while self.sent and not self.failure.done():
            await self._wait_settled()

    async def answered(self) -> None:
        """Return once the server has answered all that was sent."""
        while self.sent:
            await self._wait_settled()

    async def _wait_settled(self) -> None:
        self._settled = self._loop.create_future()
        await self._settled


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


class _Feed:
    """Reads the input and gives its records to the writer."""

    def __init__(self, plan: Plan, topic: _Topic, writer: _Writer, watch: Watch) -> None:
        self._plan = plan
        self._topic = topic
        self._writer = writer
        self._watch = watch
        self._loop = asyncio.get_running_loop()
        # The time at which --rate permits the next record.
        self._due_s = self._loop.time()

    async def run(self) -> None:
        """Read all. Raises BadInput at a record that cannot be written."""
        if self._plan.single is not None:
            await self._write(Place(STDIN, 1, whole=True), self._plan.single)
            return
        for path in self._plan.files:
            try:
                async with InputFile(path) as file:
                    await self._read(file)
            except OSError as error:
                name = "stdin" if path == STDIN else path
                message = f"{name}: {error.strerror or error}"
                raise BadInput(message, "UNREADABLE", EXIT_USAGE) from None

    async def _read(self, file: InputFile) -> None:
        form = self._plan.form
        parser = RecordInput(form, self._plan.defaults, self._topic.bytes_max)
        whole = form is InputFormat.raw
        while True:
            if not file.ready():
                await self._writer.send_open()
            data = await file.read()
            for line, record in parser.feed(data) if data else parser.end():
                await self._write(Place(file.path, line, whole), record)
            if not data:
                return

    async def _write(self, place: Place, record: Record | BadRecord) -> None:
        if self._plan.rate is not None:
            await self._pause(self._plan.rate)
        if isinstance(record, BadRecord):
            self._refuse(_bad_line(place, record, self._topic, self._plan.form), record)
            return
        partition = self._writer.partition_of(record)
        bad = self._unfit(place, record, partition)
        if bad is not None:
            self._refuse(bad, None)
        elif not self._writer.append(record, partition, place):
            await self._writer.add(record, partition, place)

    def _unfit(self, place: Place, record: Record, partition: int) -> BadInput | None:
        """Return the reason for which the topic does not take this record."""
        topic = self._topic
        if not fits(record, topic.bytes_max):
            return _too_large(place, "record", str(batch_bytes(record)), topic)
        if partition >= topic.partitions:
            reason = _no_partition(topic.name, partition, topic.partitions)
            return BadInput(f"{place}: {reason}", "UNKNOWN_PARTITION", EXIT_FAILED)
        if topic.compacted and record.key is None:
            reason = f"{topic.name} is compacted, and takes no record without a key"
            return BadInput(f"{place}: {reason}", "INVALID_RECORD", EXIT_FAILED)
        return None

    def _refuse(self, bad: BadInput, record: BadRecord | None) -> None:
        if not self._plan.skip_bad or isinstance(record, BadHeader):
            raise bad
        self._writer.totals.skipped += 1
        self._watch.skipped(str(bad))

    async def _pause(self, rate: int) -> None:
        now_s = self._loop.time()
        self._due_s = max(self._due_s, now_s - _PAUSE_S_MIN)
        if self._due_s - now_s > _PAUSE_S_MIN:
            await self._writer.send_open()
            await asyncio.sleep(self._due_s - now_s)
        self._due_s += 1 / rate


def _bad_line(place: Place, bad: BadRecord, topic: _Topic, form: InputFormat) -> BadInput:
    if isinstance(bad, TooLong):
        size = str(bad.size) if bad.exact else f"more than {bad.size}"
        what = "record" if form in (InputFormat.lines, InputFormat.raw) else "line"
        return _too_large(place, what, size, topic)
    column = f" column {bad.column}" if bad.column else ""
    reason = str(bad)
    if len(reason) > _REASON_MAX:
        reason = f"{reason[:_REASON_MAX]}..."
    return BadInput(f"{place}{column}: {reason}", "BAD_INPUT", EXIT_BAD_INPUT)


def _too_large(place: Place, what: str, size: str, topic: _Topic) -> BadInput:
    limit = f"{topic.bytes_max} (max.message.bytes)" if topic.named_limit else str(topic.bytes_max)
    message = f"{place}: the {what} has {size} bytes, and {topic.name} takes at most {limit}"
    return BadInput(message, "MESSAGE_TOO_LARGE", EXIT_FAILED)
