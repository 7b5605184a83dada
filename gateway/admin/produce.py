"""Reads records from files or stdin, and writes them to a topic with an idempotent producer.

What has been read is sent when a batch is full, or when the input has no more bytes for the moment.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
from collections.abc import AsyncGenerator, AsyncIterable, Coroutine, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from aiokafka import AIOKafkaProducer, errors  # pyright: ignore[reportMissingTypeStubs]

from gateway.admin.bad_input import BadInput
from gateway.admin.client import AdminClient, AdminError, Unreachable, raise_for
from gateway.admin.client_settings import ClientSettings, Reach, raise_token_fault
from gateway.admin.input_chunks import STDIN, InputFile
from gateway.admin.record_input import (
    BrokenInput,
    Defaults,
    InputFormat,
    RecordInput,
    TooLong,
    UnclosedQuote,
    batch_bytes,
    fits,
)
from gateway.admin.record_json import BadRecord, Record
from gateway.admin.record_writer import (
    Place,
    RecordWriter,
    Totals,
    Watch,
    cancelled,
    refusal,
)
from gateway.admin.topics import settings
from ledger.command_line.exit_codes import EXIT_BAD_INPUT, EXIT_FAILED, EXIT_USAGE

if TYPE_CHECKING:
    from gateway.admin.avro_input import AvroTarget

_METADATA: Final = 3
_CREATION_S_MAX: Final = 5.0  # how long a topic is waited for that the server may be creating
_RETRY_S: Final = 0.2
_REQUEST_MS_MAX: Final = 30_000
_START_S_MAX: Final = 15.0
_STOP_S_MAX: Final = 2.0
_INTERRUPTED_S_MAX: Final = 5.0  # how long acknowledgements are waited for after Ctrl-C
_BATCH_BYTES: Final = 512 * 1024
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
    avro: AvroTarget | None = None  # of the format avro


class Outcome(NamedTuple):
    """How the work ended. `error` is None if all records were acknowledged."""

    error: Exception | None = None
    interrupted: bool = False  # by Ctrl-C or SIGTERM
    terminated: bool = False  # by SIGTERM


class _Topic(NamedTuple):
    name: str
    partitions: int
    bytes_max: int
    named_limit: bool  # whether `bytes_max` is max.message.bytes
    compacted: bool


async def produce(client: AdminClient, plan: Plan, totals: Totals, watch: Watch) -> Outcome:
    """Write all records, and return how that ended.

    Raises AdminError or Unreachable if nothing was read and written yet.
    """
    logger = logging.getLogger("aiokafka")  # it logs what it also raises
    logger.disabled = True
    logger.addHandler(logging.NullHandler())
    logger.propagate = False
    asyncio.get_running_loop().set_exception_handler(_on_unhandled)
    terminated = _cancel_at_sigterm()
    try:
        outcome = await _produce(client, plan, totals, watch)
    except asyncio.CancelledError:
        if not terminated.is_set():
            raise
        outcome = Outcome(interrupted=True)
    return outcome._replace(terminated=outcome.interrupted and terminated.is_set())


def _on_unhandled(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """Log what no task handled, except errors of batches that aiokafka leaves behind."""
    if not isinstance(context.get("exception"), (errors.KafkaError, asyncio.CancelledError)):
        loop.default_exception_handler(context)


def _cancel_at_sigterm() -> asyncio.Event:
    """Cancel this task at SIGTERM. Returns an event that is set then."""
    terminated, task = asyncio.Event(), asyncio.current_task()
    assert task is not None

    def on_signal() -> None:
        terminated.set()
        task.cancel()

    with contextlib.suppress(RuntimeError):  # not in the main thread, which alone gets signals
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, on_signal)
    return terminated


async def _produce(client: AdminClient, plan: Plan, totals: Totals, watch: Watch) -> Outcome:
    async with _feeding(client, plan, totals, watch) as (writer, feed):
        return await _run(writer, feed.run())


async def write_records(
    client: AdminClient, topic: str, records: AsyncIterable[Record], timeout_s: float
) -> tuple[Outcome, Totals]:
    """Write these records to a topic that exists, each within `timeout_s`, for a server of ours.

    Raises AdminError or Unreachable if nothing was written. Signals, the log and the handlers of
    the loop stay as they are.
    """
    found = await _metadata(client, topic, creates=False)
    if found.error_code.name == "unknown_topic_or_partition":
        raise AdminError(f"Topic '{topic}' does not exist.", "UNKNOWN_TOPIC_OR_PARTITION")
    plan = Plan(
        topic=topic,
        files=(),
        form=InputFormat.jsonl,
        defaults=Defaults(),
        compression=None,
        acks="all",
        rate=None,
        skip_bad=False,
        timeout_s=timeout_s,
    )
    totals = Totals()
    watch = Watch(_ignore, _ignore, _ignore, timestamps=False)
    async with _feeding(client, plan, totals, watch) as (writer, feed):
        outcome = await _run(writer, feed.write_all(records))
    if outcome.interrupted:  # some of the records were not taken: there is no result
        raise asyncio.CancelledError
    return outcome, totals


def _ignore(_: object) -> None:
    """Watch nothing."""


@contextlib.asynccontextmanager
async def _feeding(
    client: AdminClient, plan: Plan, totals: Totals, watch: Watch
) -> AsyncGenerator[tuple[RecordWriter, _Feed]]:
    topic = await _find_topic(client, plan, watch)
    async with _started(client.settings, plan, topic) as producer:
        partitions = await _known_partitions(producer, topic)
        topic = topic._replace(partitions=len(partitions))
        totals.started = True
        writer = RecordWriter(producer, topic.name, plan.timeout_s, partitions, totals, watch)
        yield writer, _Feed(plan, topic, writer, watch)


async def _run(writer: RecordWriter, work: Coroutine[Any, Any, None]) -> Outcome:
    """Run `work`, then wait for all acknowledgements."""
    feed = asyncio.create_task(work)
    try:
        return Outcome(await _ended(writer, feed))
    except asyncio.CancelledError:
        await cancelled(feed)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_INTERRUPTED_S_MAX):
                await writer.flush()
        return Outcome(interrupted=True)


async def _ended(writer: RecordWriter, feed: asyncio.Task[None]) -> Exception | None:
    """Return the error that ended the work, or None once all records are acknowledged."""
    await asyncio.wait({feed, writer.failure}, return_when=asyncio.FIRST_COMPLETED)
    await cancelled(feed)
    error = None
    if not feed.cancelled() and feed.exception() is not None:
        error = _expected(feed.exception())
    if not writer.failure.done():
        await writer.flush()
    if not writer.failure.done():
        return error
    with contextlib.suppress(TimeoutError):  # the batches beside the one that was refused
        async with asyncio.timeout(_STOP_S_MAX):
            await writer.answered()
    return await writer.find_refused() or writer.failure.result()


def _expected(error: BaseException | None) -> Exception:
    if isinstance(error, (BadInput, AdminError, Unreachable)):
        return error
    assert error is not None
    raise error


# the topic


async def _metadata(client: AdminClient, topic: str, *, creates: bool) -> Any:
    asked = {"topics": [{"name": topic}], "allow_auto_topic_creation": creates}
    (found,) = (await client.send(_METADATA, asked)).topics
    return found


async def _find_topic(client: AdminClient, plan: Plan, watch: Watch) -> _Topic:
    """Return the topic, which the server may create. Raises AdminError if it does not exist."""
    loop = asyncio.get_running_loop()
    end_s = loop.time() + _CREATION_S_MAX
    found = await _metadata(client, plan.topic, creates=False)
    code = found.error_code.name
    existed = code != "unknown_topic_or_partition"
    while code in ("unknown_topic_or_partition", "leader_not_available") and loop.time() < end_s:
        found = await _metadata(client, plan.topic, creates=True)
        code = found.error_code.name
        if code in ("unknown_topic_or_partition", "leader_not_available"):
            await asyncio.sleep(_RETRY_S)
    if code == "unknown_topic_or_partition":
        fix = f"create it with gateway topic create {plan.topic}"
        raise AdminError(f"{plan.topic} does not exist; {fix}", code.upper())
    raise_for(found.error_code, None, plan.topic)
    if not existed:
        watch.noted(f"created topic {plan.topic}")
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
async def _started(connection: ClientSettings, plan: Plan, topic: _Topic) -> AsyncGenerator[Any]:
    bootstrap, arguments = connection.bootstrap, connection.for_aiokafka()
    producer: Any = AIOKafkaProducer(
        **arguments,
        client_id="gateway-topic-produce",
        acks=plan.acks,
        enable_idempotence=plan.acks == "all",
        compression_type=plan.compression,
        max_batch_size=max(1, min(_BATCH_BYTES, topic.bytes_max)),
        request_timeout_ms=_request_ms(plan),
    )
    if connection.reach is not None:
        _reach_by(producer.client.cluster, connection.reach)
    try:
        try:
            async with asyncio.timeout(_START_S_MAX):
                await producer.start()
        except TimeoutError:
            raise_token_fault(arguments)
            raise Unreachable(f"no producer id from {bootstrap} in {_START_S_MAX:g} s") from None
        except errors.KafkaError as error:
            raise_token_fault(arguments)
            raise refusal(error, f"no producer id from {bootstrap}") from None
        yield producer
    finally:
        # Without acknowledgements, `stop` would wait for them for ever.
        with contextlib.suppress(TimeoutError, errors.KafkaError):
            async with asyncio.timeout(_STOP_S_MAX):
                await producer.stop()


def _reach_by(cluster: Any, reach: Reach) -> None:
    """Let a client of aiokafka connect to each broker where it is reached from here.

    aiokafka looks up the address of a broker in its metadata before each new connection.
    """
    advertised = cluster.broker_metadata

    def reached(node_id: int | str) -> Any:
        broker = advertised(node_id)
        if broker is None or isinstance(node_id, str):  # a bootstrap server has no number
            return broker
        host, port = reach(node_id, broker.host, broker.port)
        return broker._replace(host=host, port=port)

    cluster.broker_metadata = reached


def _request_ms(plan: Plan) -> int:
    """Return how long aiokafka waits for a response.

    An idempotent producer sends again after that. Any other one gives up, so it waits for as long
    as a record may.
    """
    if plan.acks == "all":
        return _REQUEST_MS_MAX
    return max(_REQUEST_MS_MAX, round(plan.timeout_s * 1000))


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
        raise refusal(error, topic.name) from None
    return sorted(found)


class _Feed:
    """Reads the input and gives its records to the writer."""

    def __init__(self, plan: Plan, topic: _Topic, writer: RecordWriter, watch: Watch) -> None:
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

    async def write_all(self, records: AsyncIterable[Record]) -> None:
        """Write records that were read elsewhere. Raises BadInput at one that cannot be written."""
        number = 0
        async for record in records:
            number += 1
            await self._write(Place(STDIN, number, unit="record"), record)

    async def _read(self, file: InputFile) -> None:
        if self._plan.avro is not None:
            await self._read_avro(file, self._plan.avro)
            return
        form = self._plan.form
        parser = RecordInput(form, self._plan.defaults, self._topic.bytes_max)
        whole = form is InputFormat.raw
        while True:
            data = await self._piece(file)
            for line, record in parser.feed(data) if data else parser.end():
                await self._write(Place(file.path, line, whole), record)
            if not data:
                return

    async def _read_avro(self, file: InputFile, target: AvroTarget) -> None:
        from gateway.admin.avro_input import AvroInput

        parser = AvroInput(target, self._plan.defaults, self._topic.bytes_max)
        while True:
            data = await self._piece(file)
            try:
                await parser.prepare(data)
            except BrokenInput as broken:
                place = Place(file.path, 1, whole=True)
                raise _bad_line(place, broken, self._topic, self._plan.form) from None
            for number, record in parser.feed(data) if data else parser.end():
                await self._write(Place(file.path, number, unit=parser.unit), record)
            if not data:
                return

    async def _piece(self, file: InputFile) -> bytes:
        """Return the next bytes. What was read before is sent if they have to be waited for."""
        if not file.ready():
            await self._writer.send_open()
        return await file.read()

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
        if not self._plan.skip_bad or isinstance(record, BrokenInput):
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
    if isinstance(bad, UnclosedQuote):
        return BadInput(f"{place.up_to(bad.last_line)}: {bad}", "BAD_INPUT", EXIT_BAD_INPUT)
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
