"""librdkafka with transactions, recorded; each client runs in a thread until `stop` is set."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from functools import partial

from confluent_kafka import (
    OFFSET_BEGINNING,
    Consumer,
    KafkaError,
    KafkaException,
    Message,
    Producer,
    TopicPartition,
)

from tests.histories.history import FINAL, OK, Key, key_of, place_of
from tests.histories.recorder import Recorder
from tests.histories.transacting import Choices, Note
from tests.histories.with_confluent import CLIENT, COMMON

CALL_S = 10.0
POLL_S = 0.1
POLLED_MAX = 20
BETWEEN_FETCHES_S = 0.05


class Failed(Exception):
    """A record of a transaction was not acknowledged."""


def new_producer(
    bootstrap: str, name: str, stop: threading.Event, **options: object
) -> Producer | None:
    """Return a producer that has fenced the earlier ones of this id, or None once stopped."""
    settings = {"bootstrap.servers": bootstrap, "transactional.id": name, "linger.ms": 0}
    while True:
        producer = Producer(settings | COMMON | options)
        try:
            producer.init_transactions(CALL_S)
            return producer
        except KafkaException:
            if stop.wait(POLL_S):
                return None


def _consumer(bootstrap: str, group: str, **options: object) -> Consumer:
    settings = {
        "bootstrap.servers": bootstrap,
        "group.id": group,
        "enable.auto.commit": False,
        "auto.offset.reset": "earliest",
        "isolation.level": "read_committed",
        "fetch.wait.max.ms": 100,
    }
    return Consumer(settings | COMMON | options)


def _polled(consumer: Consumer) -> dict[Key, list[tuple[int, int]]]:
    pairs: dict[Key, list[tuple[int, int]]] = {}
    for message in consumer.consume(POLLED_MAX, POLL_S):
        if message.error() is None:
            key = key_of(message.topic(), message.partition())
            pairs.setdefault(key, []).append((message.offset(), int(message.value())))
    return pairs


def _send(producer: Producer, note: Note, targets: Sequence[Key]) -> None:
    """Send a record to each of these keys, and wait until all are acknowledged."""

    def told(value: int, error: KafkaError | None, message: Message) -> None:
        note.sent(value, message.offset() if error is None else None)

    for key in targets:
        value = note.sending(key)
        topic, partition = place_of(key)
        producer.produce(
            topic, b"%d" % value, partition=partition, on_delivery=partial(told, value)
        )
    if producer.flush(CALL_S):
        raise Failed("records are not acknowledged")


def _end(producer: Producer, note: Note, abort: bool) -> None:
    if abort:
        producer.abort_transaction(CALL_S)
        note.aborted()
    else:
        note.committing()
        producer.commit_transaction(CALL_S)
        note.committed()


def _attempt(producer: Producer, note: Note, work: Callable[[], None]) -> bool:
    """Do the rest of a transaction. False if it failed, and its producer must be replaced."""
    try:
        work()
    except (KafkaException, Failed) as error:
        producer.purge()
        with suppress(KafkaException):
            producer.poll(0)
        note.given_up(error)
        return False
    return True


def bounded(call: Callable[[], object], patience_s: float = 2 * CALL_S) -> None:
    """Make a call that may never return. Raises Failed, and leaves its thread behind.

    librdkafka 2.16 never checks the timeout of offsets in a transaction, and waits for ever if
    their coordinator is killed at the wrong moment (its issue 5456).
    """
    outcome: Future[None] = Future()

    def run() -> None:
        try:
            call()
        except KafkaException as error:
            outcome.set_exception(error)
        else:
            outcome.set_result(None)

    threading.Thread(target=run, name="offsets", daemon=True).start()
    try:
        outcome.result(patience_s)
    except TimeoutError:
        raise Failed("the offsets of a transaction are not answered") from None


def mix(
    recorder: Recorder, bootstrap: str, keys: Sequence[Key], process: str, stop: threading.Event
) -> None:
    """Transactions that read what is committed, and write to the same keys."""
    choices = Choices(process, keys)
    consumer = _consumer(bootstrap, "unused")
    consumer.assign([TopicPartition(*place_of(key), OFFSET_BEGINNING) for key in keys])
    producer = new_producer(bootstrap, process, stop)
    while producer is not None and not stop.is_set():
        producer.begin_transaction()
        note = Note(recorder, CLIENT, process)

        def work(producer: Producer = producer, note: Note = note) -> None:
            _send(producer, note, choices.targets())
            start_s = recorder.now_s()
            note.polled(start_s, _polled(consumer))
            _end(producer, note, choices.abort())

        if not _attempt(producer, note, work):
            producer = new_producer(bootstrap, process, stop)
    consumer.close()


def copy(
    recorder: Recorder,
    bootstrap: str,
    keys: Sequence[Key],
    target: Key,
    group: str,
    process: str,
    stop: threading.Event,
) -> None:
    """Copy committed records with their offsets, each exactly once."""
    choices = Choices(process, keys)
    consumer = _consumer(bootstrap, group)
    producer = new_producer(bootstrap, process, stop)
    again = True
    while producer is not None and not stop.is_set():
        if again and not _continue(recorder, consumer, keys, process):
            continue
        again = False
        start_s = recorder.now_s()
        polled = _polled(consumer)
        if not polled:
            continue
        producer.begin_transaction()
        note = Note(recorder, CLIENT, process)
        note.polled(start_s, polled)
        again = choices.abort()

        def work(producer=producer, note=note, polled=polled, abort=again) -> None:
            _send(producer, note, [target for pairs in polled.values() for _ in pairs])
            committed = {key: pairs[-1][0] + 1 for key, pairs in polled.items()}
            note.offsets(group, committed)
            offsets = [TopicPartition(*place_of(key), at) for key, at in committed.items()]
            metadata = consumer.consumer_group_metadata()
            bounded(partial(producer.send_offsets_to_transaction, offsets, metadata, CALL_S))
            _end(producer, note, abort)

        if not _attempt(producer, note, work):
            producer, again = new_producer(bootstrap, process, stop), True
    consumer.close()


def _continue(recorder: Recorder, consumer: Consumer, keys: Sequence[Key], process: str) -> bool:
    """Read on where the group has committed."""
    places = [TopicPartition(*place_of(key)) for key in keys]
    try:
        committed = consumer.committed(places, CALL_S)
    except KafkaException:
        return False
    if any(place.error is not None for place in committed):
        return False
    consumer.unassign()
    for wanted in ([], list(keys)):
        recorder.add(process, CLIENT, "assign", OK, recorder.now_s(), wanted)
    consumer.assign(
        [TopicPartition(each.topic, each.partition, max(each.offset, 0)) for each in committed]
    )
    return True


def fetch(
    recorder: Recorder,
    bootstrap: str,
    keys: Sequence[Key],
    groups: Sequence[str],
    stop: threading.Event,
) -> None:
    """Ask for the stable offsets of these groups, until stopped and then once more."""
    consumers = {group: _consumer(bootstrap, group) for group in groups}
    last = False
    while not last:
        last = stop.wait(BETWEEN_FETCHES_S)
        for group, consumer in consumers.items():
            start_s = recorder.now_s()
            with suppress(KafkaException):
                found = consumer.committed([TopicPartition(*place_of(k)) for k in keys], CALL_S)
                value = {
                    key_of(each.topic, each.partition): max(each.offset, -1)
                    for each in found
                    if each.error is None
                }
                recorder.add("fetches", CLIENT, "fetch", OK, start_s, (group, value))
    for consumer in consumers.values():
        consumer.close()


def read_all(recorder: Recorder, bootstrap: str, keys: Sequence[Key]) -> None:
    """Read everything that is committed. All transactions have ended."""
    consumer = _consumer(bootstrap, "unused", **{"enable.partition.eof": True})
    process = f"{FINAL}-reader"
    recorder.add(process, CLIENT, "assign", OK, recorder.now_s(), list(keys))
    consumer.assign([TopicPartition(*place_of(key), OFFSET_BEGINNING) for key in keys])
    left = set(keys)
    while left:
        start_s, pairs = recorder.now_s(), dict[Key, list[tuple[int, int]]]()
        for message in consumer.consume(POLLED_MAX * 10, POLL_S):
            key, error = key_of(message.topic(), message.partition()), message.error()
            if error is None:
                pairs.setdefault(key, []).append((message.offset(), int(message.value())))
            elif error.code() == KafkaError._PARTITION_EOF:
                left.discard(key)
        recorder.add(process, CLIENT, "poll", OK, start_s, pairs)
    consumer.close()
