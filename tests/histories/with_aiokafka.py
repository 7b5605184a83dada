"""aiokafka as a recorded client: senders, readers by assignment or in a group, and committers."""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import Sequence
from functools import partial

from aiokafka import (
    AIOKafkaConsumer,
    AIOKafkaProducer,
    ConsumerRebalanceListener,
    TopicPartition,
)
from aiokafka.errors import CommitFailedError, IllegalStateError, KafkaError
from aiokafka.structs import OffsetAndMetadata

from tests.histories.history import FAIL, INFO, OK, Key, key_of, place_of
from tests.histories.recorder import Recorder

CLIENT = "aiokafka"
REQUEST_MS = 40_000  # its default: a shorter one gives up on records while a node sleeps
BACKOFF_MS = 50
POLL_S = 0.05  # between two polls; else each of them brings one record
COMMIT_S = 0.2
logging.getLogger("aiokafka").setLevel(logging.CRITICAL)  # what matters is raised, or recorded


def _partition(key: Key) -> TopicPartition:
    return TopicPartition(*place_of(key))


async def send(
    recorder: Recorder,
    bootstrap: str,
    keys: Sequence[Key],
    process: str,
    stop: asyncio.Event,
    *,
    idempotent: bool,
    pause_s: float,
) -> None:
    """A producer that writes one record after the other, each to the next key, until `stop`.

    An idempotent one is replaced after a failure, because its sequences may have a hole then.
    """
    client = f"{CLIENT} {'idempotent' if idempotent else 'plain'}"
    failed = asyncio.Event()

    async def started() -> AIOKafkaProducer:
        failed.clear()
        producer = AIOKafkaProducer(
            bootstrap_servers=bootstrap,
            enable_idempotence=idempotent,
            acks="all",
            request_timeout_ms=REQUEST_MS,
            retry_backoff_ms=BACKOFF_MS,
        )
        await producer.start()
        return producer

    def done(key: Key, value: int, start_s: float, sent: asyncio.Future) -> None:
        error = sent.exception()
        if error is not None:
            recorder.complain(process, error)
            failed.set()
        result, offset = (OK, sent.result().offset) if error is None else (INFO, None)
        recorder.add(process, client, "send", result, start_s, [(key, value, offset)])

    producer = await started()
    try:
        for key in itertools.cycle(keys):
            if stop.is_set():
                break
            if idempotent and failed.is_set():
                await producer.stop()
                producer = await started()
            value, start_s = recorder.value(), recorder.now_s()
            topic, partition = place_of(key)
            sent = await producer.send(topic, b"%d" % value, partition=partition)
            sent.add_done_callback(partial(done, key, value, start_s))
            await asyncio.sleep(pause_s)
    finally:
        await producer.stop()


class _Rebalances(ConsumerRebalanceListener):
    """Remembers which keys moved; the poll under way and the next one may have to do with it."""

    def __init__(self, recorder: Recorder, process: str) -> None:
        self._recorder = recorder
        self._process = process
        self._moved: dict[Key, int] = {}

    def _note(self, partitions) -> None:
        for place in partitions:
            self._moved[key_of(place.topic, place.partition)] = 2

    async def on_partitions_revoked(self, revoked) -> None:
        self._note(revoked)

    async def on_partitions_assigned(self, assigned) -> None:
        self._recorder.rebalanced(self._process)
        self._note(assigned)

    def take(self) -> tuple[Key, ...]:
        moved = tuple(self._moved)
        self._moved = {key: left - 1 for key, left in self._moved.items() if left > 1}
        return moved


def _consumer(bootstrap: str, group: str | None = None, **options) -> AIOKafkaConsumer:
    return AIOKafkaConsumer(
        bootstrap_servers=bootstrap,
        group_id=group,
        enable_auto_commit=False,
        auto_offset_reset="earliest",
        request_timeout_ms=REQUEST_MS,
        retry_backoff_ms=BACKOFF_MS,
        fetch_max_wait_ms=200,
        **options,
    )


async def read(
    recorder: Recorder,
    bootstrap: str,
    keys: Sequence[Key],
    process: str,
    stop: asyncio.Event,
    *,
    ends: dict[Key, int] | None = None,
) -> None:
    """A consumer of these keys, from their start until `stop`, or until it has passed `ends`."""
    consumer = _consumer(bootstrap)
    await consumer.start()
    try:
        recorder.add(process, CLIENT, "assign", OK, recorder.now_s(), list(keys))
        consumer.assign([_partition(key) for key in keys])
        left = dict(ends) if ends is not None else None
        while not stop.is_set() and (left is None or left):
            found = await _poll(recorder, consumer, process)
            if left is not None:
                at = {key: pairs[-1][0] + 1 for key, pairs in found.items()}
                left = {key: end for key, end in left.items() if at.get(key, -1) < end}
    finally:
        await consumer.stop()


async def _poll(
    recorder: Recorder,
    consumer: AIOKafkaConsumer,
    process: str,
    rebalances: _Rebalances | None = None,
) -> dict[Key, list[tuple[int, int]]]:
    start_s = recorder.now_s()
    try:
        found = await consumer.getmany(timeout_ms=200)
    except KafkaError as error:
        recorder.complain(process, error)
        recorder.add(process, CLIENT, "poll", FAIL, start_s, {})
        return {}
    pairs = {
        key_of(place.topic, place.partition): [(each.offset, int(each.value)) for each in records]
        for place, records in found.items()
        if records
    }
    moved = rebalances.take() if rebalances is not None else ()
    if pairs or moved:
        recorder.add(process, CLIENT, "poll", OK, start_s, pairs, moved)
    await asyncio.sleep(POLL_S)
    return pairs


async def read_in_group(
    recorder: Recorder,
    bootstrap: str,
    topic: str,
    group: str,
    process: str,
    stop: asyncio.Event,
) -> None:
    """A member of the group, until `stop`; it commits what it has been shown."""
    rebalances = _Rebalances(recorder, process)
    consumer = _consumer(bootstrap, group, session_timeout_ms=10_000, heartbeat_interval_ms=500)
    consumer.subscribe([topic], listener=rebalances)
    recorder.add(process, CLIENT, "subscribe", OK, recorder.now_s(), [topic])
    await consumer.start()
    next_s = 0.0
    try:
        while not stop.is_set():
            pairs = await _poll(recorder, consumer, process, rebalances)
            wanted = {key: records[-1][0] + 1 for key, records in pairs.items()}
            if wanted and recorder.now_s() > next_s:
                next_s = recorder.now_s() + COMMIT_S
                await _commit(recorder, consumer, group, wanted, process)
    finally:
        await consumer.stop()


async def _commit(
    recorder: Recorder,
    consumer: AIOKafkaConsumer,
    group: str,
    wanted: dict[Key, int],
    process: str,
) -> None:
    start_s = recorder.now_s()
    offsets = {_partition(key): OffsetAndMetadata(offset, "") for key, offset in wanted.items()}
    try:
        await consumer.commit(offsets)
        result = OK
    except (CommitFailedError, IllegalStateError):  # another generation, or not ours any more
        result = FAIL
    except KafkaError as error:
        recorder.complain(process, error)
        result = INFO
    recorder.add(process, CLIENT, "commit", result, start_s, (group, wanted))


async def commit_and_fetch(
    recorder: Recorder,
    bootstrap: str,
    keys: Sequence[Key],
    group: str,
    process: str,
    stop: asyncio.Event,
    *,
    pause_s: float,
) -> None:
    """Commits offsets that nobody committed before, and asks what is committed, until `stop`."""
    consumer = _consumer(bootstrap, group)
    await consumer.start()
    try:
        consumer.assign([_partition(key) for key in keys])
        for key in itertools.cycle(keys):
            if stop.is_set():
                break
            await _commit(recorder, consumer, group, {key: recorder.value()}, process)
            await asyncio.sleep(pause_s)
            await _fetch(recorder, consumer, group, key, process)
            await asyncio.sleep(pause_s)
    finally:
        await consumer.stop()


async def _fetch(
    recorder: Recorder, consumer: AIOKafkaConsumer, group: str, key: Key, process: str
) -> None:
    start_s = recorder.now_s()
    try:
        found = await consumer.committed(_partition(key))
    except KafkaError as error:
        recorder.complain(process, error)
        return
    # None is "nothing committed" or a refusal: it does not look at the group's error
    result = INFO if found is None else OK
    recorder.add(process, CLIENT, "fetch", result, start_s, (group, {key: found}))
