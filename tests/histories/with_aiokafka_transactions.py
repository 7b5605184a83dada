"""aiokafka with transactions, recorded; it speaks the older protocol of transactions."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from contextlib import suppress

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.errors import KafkaError

from tests.histories.history import OK, Key, key_of, place_of
from tests.histories.recorder import Recorder
from tests.histories.transacting import Choices, Note
from tests.histories.with_aiokafka import BACKOFF_MS, CLIENT

CALL_S = 15.0
POLL_MS = 100
FAULTS = (KafkaError, TimeoutError)


async def _new_producer(
    bootstrap: str, name: str, stop: threading.Event
) -> AIOKafkaProducer | None:
    """Return a producer that has fenced the earlier ones of this id, or None once stopped."""
    while True:
        producer = AIOKafkaProducer(
            bootstrap_servers=bootstrap,
            transactional_id=name,
            retry_backoff_ms=BACKOFF_MS,
            request_timeout_ms=5_000,
        )
        try:
            async with asyncio.timeout(CALL_S):
                await producer.start()
            return producer
        except FAULTS:
            await _stop(producer)
            if stop.is_set():
                return None


async def _stop(producer: AIOKafkaProducer) -> None:
    with suppress(*FAULTS):
        async with asyncio.timeout(CALL_S):
            await producer.stop()


def _consumer(bootstrap: str, group: str | None = None) -> AIOKafkaConsumer:
    return AIOKafkaConsumer(
        bootstrap_servers=bootstrap,
        group_id=group,
        enable_auto_commit=False,
        auto_offset_reset="earliest",
        isolation_level="read_committed",
        retry_backoff_ms=BACKOFF_MS,
        fetch_max_wait_ms=100,
    )


async def _polled(consumer: AIOKafkaConsumer) -> dict[Key, list[tuple[int, int]]]:
    found = await consumer.getmany(timeout_ms=POLL_MS)
    return {
        key_of(place.topic, place.partition): [(each.offset, int(each.value)) for each in records]
        for place, records in found.items()
        if records
    }


async def _send(producer: AIOKafkaProducer, note: Note, targets: Sequence[Key]) -> None:
    """Send a record to each of these keys, and wait until all are acknowledged."""

    async def one(key: Key) -> None:
        value = note.sending(key)
        topic, partition = place_of(key)
        found = await producer.send_and_wait(topic, b"%d" % value, partition=partition)
        note.sent(value, found.offset)

    async with asyncio.timeout(CALL_S):
        for key in targets:
            await one(key)


async def _end(producer: AIOKafkaProducer, note: Note, abort: bool) -> None:
    async with asyncio.timeout(CALL_S):
        if abort:
            await producer.abort_transaction()
            note.aborted()
        else:
            note.committing()
            await producer.commit_transaction()
            note.committed()


async def mix(
    recorder: Recorder, bootstrap: str, keys: Sequence[Key], process: str, stop: threading.Event
) -> None:
    """Transactions that read what is committed, and write to the same keys."""
    choices = Choices(process, keys)
    consumer = _consumer(bootstrap)
    await consumer.start()
    consumer.assign([TopicPartition(*place_of(key)) for key in keys])
    recorder.add(process, CLIENT, "assign", OK, recorder.now_s(), list(keys))
    producer = await _new_producer(bootstrap, process, stop)
    while producer is not None and not stop.is_set():
        await producer.begin_transaction()
        note = Note(recorder, CLIENT, process)
        try:
            await _send(producer, note, choices.targets())
            start_s = recorder.now_s()
            note.polled(start_s, await _polled(consumer))
            await _end(producer, note, choices.abort())
        except FAULTS as error:
            note.given_up(error)
            await _stop(producer)
            producer = await _new_producer(bootstrap, process, stop)
    if producer is not None:
        await _stop(producer)
    await consumer.stop()
