"""Produce in transactions: verification, implicit adding from v12, fencing, refused batches."""

from __future__ import annotations

from typing import Any

from tests.compat.differential.script import Answer, Script, Topic, batch, case
from tests.compat.differential.steps import Batch
from tests.compat.differential.transactional import (
    BUSY,
    TRANSACTIONAL,
    Writer,
    initialise,
    producers_of,
    reading,
    writer,
)

KEY = 0
ADDS_FROM = 12
CONTROL = 0x20
LAST_SEQUENCE = 2**31 - 1


def _write(
    script: Script, mine: Writer, topic: Topic, *records: Batch, acks: int = -1, **changed: Any
) -> Answer:
    partitions = [{"index": index, "records": each} for index, each in enumerate(records)]
    rows = [{**topic.ref, "partition_data": partitions}]
    fields = {"transactional_id": mine.name, "acks": acks, "timeout": 10_000, "topic_data": rows}
    return script.ask(**{**fields, **changed})


def _begun(script: Script, topic: Topic, word: str = "id") -> Writer:
    """Return a producer that may write: until v11 its partition is added."""
    mine = writer(script, word)
    if script.version < ADDS_FROM:
        mine.add(topic)
    return mine


def _end(script: Script, mine: Writer, *, commit: bool) -> None:
    """End the transaction in the protocol of the version under test."""
    if script.version < ADDS_FROM:
        mine.end(commit=commit)
        return
    for _ in range(2):
        script.prepare(26, 5, again=BUSY, **mine.ref, committed=commit)
    mine.epoch += 1


@case(KEY, since=3, transactions=True)
def a_transaction(script: Script) -> None:
    topic = script.topic("one")
    mine = _begun(script, topic)
    for sequence, count in ((0, 2), (2, 1), (2, 1)):
        script.settled(_write(script, mine, topic, mine.batch(count, sequence)), BUSY)
    producers_of(script, topic)
    script.other(65, 0, transactional_ids=[mine.name])
    _end(script, mine, commit=True)
    script.other(1, 11, **reading(topic.name))


@case(KEY, since=3, transactions=True)
def two_transactions(script: Script) -> None:
    topic = script.topic("one")
    mine = _begun(script, topic)
    raises = script.version >= ADDS_FROM
    for sequence, commit in enumerate((False, True)):
        if sequence and not raises:
            mine.add(topic)
        records = mine.batch(1, 0 if raises else sequence)
        script.settled(_write(script, mine, topic, records), BUSY)
        _end(script, mine, commit=commit)
    script.other(1, 11, **reading(topic.name))


@case(KEY, since=3, transactions=True)
def a_partition_that_was_not_added(script: Script) -> None:
    topic, mine = script.topic("one"), writer(script)
    script.settled(_write(script, mine, topic, mine.batch(1, 0)), BUSY)
    script.other(65, 0, transactional_ids=[mine.name])
    producers_of(script, topic)


@case(KEY, since=3, transactions=True)
def several_partitions(script: Script) -> None:
    topic, mine = script.topic("one", partitions=3), writer(script)
    if script.version < ADDS_FROM:
        mine.add(topic, 0, 1)
    records = [mine.batch(1, 0) for _ in range(3)]
    script.settled(_write(script, mine, topic, *records), BUSY)


@case(KEY, since=3, transactions=True)
def after_the_end(script: Script) -> None:
    topic = script.topic("one")
    mine = _begun(script, topic)
    _write(script, mine, topic, mine.batch(1, 0))
    late = mine.batch(1, 1)
    _end(script, mine, commit=True)
    _write(script, mine, topic, late)


@case(KEY, since=3, transactions=True)
def wrong_producers_and_epochs(script: Script) -> None:
    topic = script.topic("one")
    mine, other = _begun(script, topic), writer(script, "other")
    for producer, epoch in (
        (other.producer, 0),
        (mine.producer, 1),
        (mine.producer, 5),
        (mine.producer, 0),
        (mine.producer, 1),
        (other.producer, 0),
    ):
        _write(script, mine, topic, mine.batch(1, 0, producer=producer, epoch=epoch))


@case(KEY, since=3, transactions=True)
def a_fenced_producer(script: Script) -> None:
    topic = script.topic("one")
    mine = _begun(script, topic)
    _write(script, mine, topic, mine.batch(1, 0))
    initialise(script, mine.name)
    _write(script, mine, topic, mine.batch(1, 1))


@case(KEY, since=3, transactions=True)
def a_fenced_producer_that_wrote_nothing(script: Script) -> None:
    topic = script.topic("one")
    mine = writer(script)
    initialise(script, mine.name)
    _write(script, mine, topic, mine.batch(1, 0))


@case(KEY, since=3, transactions=True)
def an_id_that_is_not_the_producers(script: Script) -> None:
    topic = script.topic("one")
    mine, other = _begun(script, topic), writer(script, "other")
    for name in (other.name, script.name("missing"), ""):
        _write(script, mine, topic, mine.batch(1, 0), transactional_id=name)


@case(KEY, since=3, transactions=True)
def a_transactional_batch_without_an_id(script: Script) -> None:
    topic = script.topic("one")
    mine = _begun(script, topic)
    _write(script, mine, topic, mine.batch(1, 0), transactional_id=None)


@case(KEY, since=3, transactions=True)
def a_plain_batch_with_an_id(script: Script) -> None:
    topic = script.topic("one")
    mine = _begun(script, topic)
    _write(script, mine, topic, batch(1))
    _write(script, mine, topic, mine.batch(1, 0, attributes=0))


@case(KEY, since=3, transactions=True)
def a_plain_batch_inside_an_open_transaction(script: Script) -> None:
    topic = script.topic("one")
    mine = _begun(script, topic)
    script.settled(_write(script, mine, topic, mine.batch(1, 0)), BUSY)
    _write(script, mine, topic, mine.batch(1, 1, attributes=0))
    _write(script, mine, topic, mine.batch(1, 1, attributes=0), transactional_id=None)
    _write(script, mine, topic, batch(1), transactional_id=None)


@case(KEY, since=3, transactions=True)
def two_producers_in_one_request(script: Script) -> None:
    topic = script.topic("one", partitions=2)
    mine, other = writer(script), writer(script, "other")
    if script.version < ADDS_FROM:
        mine.add(topic, 0, 1)
        other.add(topic, 0, 1)
    _write(script, mine, topic, mine.batch(1, 0), other.batch(1, 0))
    _write(script, mine, topic, mine.batch(1, 0), batch(1))
    _write(script, mine, topic, batch(1), other.batch(1, 0), transactional_id=None)


@case(KEY, since=3, transactions=True)
def a_transactional_and_a_plain_partition(script: Script) -> None:
    topic = script.topic("one", partitions=2)
    mine = writer(script)
    if script.version < ADDS_FROM:
        mine.add(topic, 0, 1)
    _write(script, mine, topic, mine.batch(1, 0), mine.batch(1, 0, attributes=0))


@case(KEY, since=3, transactions=True)
def control_batches(script: Script) -> None:
    topic = script.topic("one")
    mine = _begun(script, topic)
    _write(script, mine, topic, mine.batch(1, 0, attributes=CONTROL))
    _write(script, mine, topic, mine.batch(1, 0, attributes=CONTROL | TRANSACTIONAL))
    _write(script, mine, topic, mine.batch(1, -1, attributes=CONTROL | TRANSACTIONAL))
    script.other(1, 11, **reading(topic.name))


@case(KEY, since=3, transactions=True)
def fewer_acknowledgements(script: Script) -> None:
    topic = script.topic("one")
    mine = _begun(script, topic)
    _write(script, mine, topic, mine.batch(1, 0), acks=1)
    script.other(1, 11, **reading(topic.name, isolation=0))


@case(KEY, since=3, transactions=True)
def no_acknowledgement(script: Script) -> None:
    topic = script.topic("one")
    mine = _begun(script, topic)
    rows = [{**topic.ref, "partition_data": [{"index": 0, "records": mine.batch(1, 0)}]}]
    script.send(transactional_id=mine.name, acks=0, timeout=10_000, topic_data=rows)
    script.settled(_write(script, mine, topic, mine.batch(1, 1)), BUSY)
    script.other(1, 11, **reading(topic.name, isolation=0))


@case(KEY, since=3, transactions=True)
def batches_without_a_producer(script: Script) -> None:
    topic = script.topic("one")
    mine = _begun(script, topic)
    for producer, epoch, sequence in ((-1, -1, -1), (mine.producer, -1, 0), (mine.producer, 0, -1)):
        changed = {"producer": producer, "epoch": epoch, "sequence": sequence}
        _write(script, mine, topic, batch(1, attributes=TRANSACTIONAL, **changed))


@case(KEY, since=3, transactions=True)
def sequences(script: Script) -> None:
    topic = script.topic("one")
    mine = _begun(script, topic)
    for sequence, count in ((3, 1), (0, 2), (5, 1), (2, 1), (0, 2), (1, 1)):
        script.settled(_write(script, mine, topic, mine.batch(count, sequence)), BUSY)


@case(KEY, since=3, transactions=True)
def sequences_that_wrap(script: Script) -> None:
    topic = script.topic("one")
    mine = _begun(script, topic)
    for sequence, count in ((LAST_SEQUENCE - 1, 3), (1, 1), (LAST_SEQUENCE, 1), (0, 1)):
        script.settled(_write(script, mine, topic, mine.batch(count, sequence)), BUSY)


@case(KEY, since=3, transactions=True)
def sequences_over_a_bump_of_the_epoch(script: Script) -> None:
    topic = script.topic("one")
    mine = _begun(script, topic)
    script.settled(_write(script, mine, topic, mine.batch(2, 0)), BUSY)
    mine.end(commit=True)
    initialise(script, mine.name)
    mine.epoch = 1
    if script.version < ADDS_FROM:
        mine.add(topic)
    for sequence in (2, LAST_SEQUENCE, 0, 1):
        script.settled(_write(script, mine, topic, mine.batch(1, sequence)), BUSY)


@case(KEY, since=3, transactions=True)
def an_idempotent_producer_that_becomes_transactional(script: Script) -> None:
    topic, mine = script.topic("one"), writer(script)
    plain = mine.batch(2, 0, attributes=0)
    _write(script, mine, topic, plain, transactional_id=None)
    if script.version < ADDS_FROM:
        mine.add(topic)
    script.settled(_write(script, mine, topic, mine.batch(1, 2)), BUSY)


@case(KEY, since=3, until=12, transactions=True)
def an_unknown_topic(script: Script) -> None:
    mine = writer(script)
    unknown = Topic(script.name("missing"), script.topic("one").topic_id)
    _write(script, mine, unknown, mine.batch(1, 0))


@case(KEY, since=3, until=12, transactions=True)
def internal_topics(script: Script) -> None:
    mine = writer(script)
    for name in ("__consumer_offsets", "__transaction_state"):
        records = [{"index": 0, "records": mine.batch(1, 0)}]
        rows = [{"name": name, "partition_data": records}]
        script.ask(transactional_id=mine.name, acks=-1, timeout=10_000, topic_data=rows)
        records = [{"index": 0, "records": batch(1)}]
        rows = [{"name": name, "partition_data": records}]
        script.ask(transactional_id=None, acks=-1, timeout=10_000, topic_data=rows)
