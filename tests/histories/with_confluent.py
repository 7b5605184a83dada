"""librdkafka as a recorded client; each runs in a thread of its own, until `stop` is set."""

from __future__ import annotations

import contextlib
import itertools
import threading
import time
from collections.abc import Sequence
from functools import partial

from confluent_kafka import (
    OFFSET_BEGINNING,
    Consumer,
    KafkaError,
    KafkaException,
    Producer,
    TopicPartition,
)

from tests.histories.history import FAIL, INFO, OK, Key, key_of, place_of
from tests.histories.recorder import Recorder

CLIENT = "librdkafka"
CALL_S_MAX = 10.0
GIVE_UP_S_MAX = 10.0
COMMON = {
    "reconnect.backoff.ms": 20,
    "reconnect.backoff.max.ms": 100,
    "retry.backoff.ms": 50,
    "retry.backoff.max.ms": 200,
    "socket.timeout.ms": 10_000,
    "topic.metadata.refresh.fast.interval.ms": 50,
    "log_level": 0,
}
REDIRECTED = (  # librdkafka looks for the coordinator, and leaves it to its user to ask again
    KafkaError.NOT_COORDINATOR,
    KafkaError.COORDINATOR_NOT_AVAILABLE,
)
NEVER_SENT = (KafkaError._PURGE_QUEUE, KafkaError.MSG_SIZE_TOO_LARGE)
REFUSED = (
    KafkaError.ILLEGAL_GENERATION,
    KafkaError.UNKNOWN_MEMBER_ID,
    KafkaError.REBALANCE_IN_PROGRESS,
    KafkaError._NO_OFFSET,
    KafkaError._ASSIGNMENT_LOST,
)


def send(
    recorder: Recorder,
    bootstrap: str,
    keys: Sequence[Key],
    process: str,
    stop: threading.Event,
    *,
    idempotent: bool,
    pause_s: float,
) -> None:
    """A producer that writes one record after the other, each to the next key.

    It is replaced after a fatal error: librdkafka may not retry what is perhaps written already.
    """
    options = {"enable.idempotence": idempotent, "acks": "all", "linger.ms": 0}
    if not idempotent:
        options["max.in.flight.requests.per.connection"] = 1  # else a retry may change the order
    settings = {"bootstrap.servers": bootstrap, "delivery.timeout.ms": 60_000, **COMMON, **options}
    client = f"{CLIENT} {'idempotent' if idempotent else 'plain'}"

    def done(key: Key, value: int, start_s: float, error: KafkaError | None, message) -> None:
        result = OK
        if error is not None:
            recorder.complain(process, error)
            result = FAIL if error.code() in NEVER_SENT else INFO
        offset = message.offset() if error is None else None
        recorder.add(process, client, "send", result, start_s, [(key, value, offset)])

    producer = Producer(settings)
    for key in itertools.cycle(keys):
        if stop.is_set():
            break
        value, start_s = recorder.value(), recorder.now_s()
        topic, partition = place_of(key)
        told = partial(done, key, value, start_s)
        try:
            producer.produce(topic, b"%d" % value, partition=partition, on_delivery=told)
        except KafkaException as fatal:
            recorder.complain(process, fatal)
            _give_up(producer)
            producer = Producer(settings)
        _serve(producer, pause_s)
        stop.wait(pause_s)
    with contextlib.suppress(KafkaException):
        producer.flush(60.0)
    _give_up(producer)


def _serve(producer: Producer, wait_s: float) -> None:
    """Call back about what was delivered. A fatal error is raised by `produce` as well."""
    with contextlib.suppress(KafkaException):
        producer.poll(wait_s)


def _give_up(producer: Producer) -> None:
    """Let every record that is not acknowledged fail."""
    producer.purge()
    until_s = time.monotonic() + GIVE_UP_S_MAX
    while len(producer) and time.monotonic() < until_s:
        _serve(producer, 0.1)


def _consumer(bootstrap: str, group: str) -> Consumer:
    return Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": group,
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
            "fetch.wait.max.ms": 200,
            "session.timeout.ms": 10_000,
            "heartbeat.interval.ms": 500,
            **COMMON,
        }
    )


def read(
    recorder: Recorder,
    bootstrap: str,
    keys: Sequence[Key],
    process: str,
    stop: threading.Event,
) -> None:
    """A consumer of these keys, from their start."""
    consumer = _consumer(bootstrap, "unused")
    try:
        recorder.add(process, CLIENT, "assign", OK, recorder.now_s(), list(keys))
        consumer.assign([TopicPartition(*place_of(key), OFFSET_BEGINNING) for key in keys])
        while not stop.is_set():
            _poll(recorder, consumer, process)
    finally:
        consumer.close()


def _poll(
    recorder: Recorder,
    consumer: Consumer,
    process: str,
    moved: dict[Key, int] | None = None,
) -> dict[Key, int]:
    """Where the consumer is now, of what it was shown."""
    start_s = recorder.now_s()
    pairs: dict[Key, list[tuple[int, int]]] = {}
    for message in consumer.consume(200, 0.2):
        error = message.error()
        if error is not None:
            recorder.complain(process, error)
            continue
        key = key_of(message.topic(), message.partition())
        pairs.setdefault(key, []).append((message.offset(), int(message.value())))
    changed = tuple(moved or ())
    for key in changed:
        moved[key] -= 1
        if moved[key] == 0:
            del moved[key]
    if pairs or changed:
        recorder.add(process, CLIENT, "poll", OK, start_s, pairs, changed)
    return {key: found[-1][0] + 1 for key, found in pairs.items()}


def read_in_group(
    recorder: Recorder,
    bootstrap: str,
    topic: str,
    group: str,
    process: str,
    stop: threading.Event,
) -> None:
    """A member of the group; it commits what it has been shown."""
    consumer = _consumer(bootstrap, group)
    moved: dict[Key, int] = {}

    def note(_, partitions) -> None:
        moved.update({key_of(each.topic, each.partition): 2 for each in partitions})

    def assigned(consumer, partitions) -> None:
        recorder.rebalanced(process)
        note(consumer, partitions)

    recorder.add(process, CLIENT, "subscribe", OK, recorder.now_s(), [topic])
    consumer.subscribe([topic], on_assign=assigned, on_revoke=note, on_lost=note)
    try:
        while not stop.is_set():
            wanted = _poll(recorder, consumer, process, moved)
            if wanted:
                _commit(recorder, consumer, group, wanted, process)
    finally:
        consumer.close()


def _commit(
    recorder: Recorder, consumer: Consumer, group: str, wanted: dict[Key, int], process: str
) -> None:
    start_s = recorder.now_s()
    offsets = [TopicPartition(*place_of(key), offset) for key, offset in wanted.items()]
    result = OK
    try:
        answers = consumer.commit(offsets=offsets, asynchronous=False)
        faults = [answer.error for answer in answers if answer.error is not None]
    except KafkaException as raised:
        faults = [raised.args[0]]
    for fault in faults:
        result = FAIL if fault.code() in REFUSED and len(faults) >= len(wanted) else INFO
        _complain(recorder, process, fault)
    recorder.add(process, CLIENT, "commit", result, start_s, (group, wanted))


def commit_and_fetch(
    recorder: Recorder,
    bootstrap: str,
    keys: Sequence[Key],
    group: str,
    process: str,
    stop: threading.Event,
    *,
    pause_s: float,
) -> None:
    """Commits offsets that nobody committed before, and asks what is committed."""
    consumer = _consumer(bootstrap, group)
    try:
        for key in itertools.cycle(keys):
            if stop.is_set():
                break
            _commit(recorder, consumer, group, {key: recorder.value()}, process)
            stop.wait(pause_s)
            _fetch(recorder, consumer, group, key, process)
            stop.wait(pause_s)
    finally:
        consumer.close()


def _complain(recorder: Recorder, process: str, fault: KafkaError) -> None:
    if fault.code() in REDIRECTED:
        recorder.redirects[process] += 1
    elif fault.code() not in REFUSED:
        recorder.complain(process, fault)


def _fetch(recorder: Recorder, consumer: Consumer, group: str, key: Key, process: str) -> None:
    start_s = recorder.now_s()
    try:
        (found,) = consumer.committed([TopicPartition(*place_of(key))], CALL_S_MAX)
    except KafkaException as raised:
        _complain(recorder, process, raised.args[0])
        return
    if found.error is not None:
        _complain(recorder, process, found.error)
        return
    value = {key: found.offset if found.offset >= 0 else -1}
    recorder.add(process, CLIENT, "fetch", OK, start_s, (group, value))
