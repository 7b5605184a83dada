"""WriteTxnMarkers, as a coordinator or an administrator sends them: forged, old, repeated."""

from __future__ import annotations

from typing import Any

from tests.compat.differential.script import Answer, Script, Topic, case
from tests.compat.differential.transactional import (
    MINUTE_MS,
    Writer,
    producers_of,
    reading,
    writer,
)

KEY = 27


def _marker(mine: Writer, *topics: tuple[str, tuple[int, ...]], **changed: Any) -> dict[str, Any]:
    return {
        "producer_id": mine.producer,
        "producer_epoch": mine.epoch,
        "transaction_result": False,
        "topics": [{"name": name, "partition_indexes": list(rows)} for name, rows in topics],
        "coordinator_epoch": 0,
        "transaction_version": 0,
        **changed,
    }


def _mark(script: Script, mine: Writer, topic: Topic, **changed: Any) -> Answer:
    return script.ask(markers=[_marker(mine, (topic.name, (0,)), **changed)])


def _open(script: Script, topic: Topic, word: str = "id", **options: int) -> Writer:
    mine = writer(script, word, **options)
    mine.add(topic)
    mine.write(topic, 2, 0)
    return mine


@case(KEY, transactions=True)
def an_open_transaction(script: Script) -> None:
    topic = script.topic("one")
    for result in (True, False):
        mine = _open(script, topic, f"id-{result}")
        _mark(script, mine, topic, transaction_result=result)
        producers_of(script, topic)
        script.other(1, 11, **reading(topic.name))


@case(KEY, transactions=True)
def an_abort_by_an_administrator(script: Script) -> None:
    topic = script.topic("one")
    mine = _open(script, topic)
    _mark(script, mine, topic, coordinator_epoch=-1)
    producers_of(script, topic)
    script.other(1, 11, **reading(topic.name))


@case(KEY, transactions=True)
def a_marker_twice(script: Script) -> None:
    topic = script.topic("one")
    mine = _open(script, topic)
    for result in (False, False, True):
        _mark(script, mine, topic, transaction_result=result)
    script.other(1, 11, **reading(topic.name))


@case(KEY, transactions=True)
def producers_without_a_transaction(script: Script) -> None:
    topic, mine = script.topic("one"), writer(script)
    _mark(script, mine, topic)
    _mark(script, mine, topic, producer_id=1 << 40, producer_epoch=3)
    _mark(script, mine, topic, producer_id=-1, producer_epoch=-1)
    script.other(1, 11, **reading(topic.name))


@case(KEY, transactions=True)
def producer_epochs(script: Script) -> None:
    topic = script.topic("one")
    mine = _open(script, topic)
    for epoch in (-1, 3, 2, 3):
        _mark(script, mine, topic, producer_epoch=epoch)
    producers_of(script, topic)
    script.other(1, 11, **reading(topic.name))


@case(KEY, transactions=True)
def coordinator_epochs(script: Script) -> None:
    # Once it timed out, the forged epoch would make its coordinator begin a new one. Other cases
    # have ids at that coordinator, and a slow machine needs more than the usual minute for all.
    topic = script.topic("one")
    mine = _open(script, topic, timeout_ms=15 * MINUTE_MS)
    for epoch in (5, 4, 5, -1, 6):
        _mark(script, mine, topic, coordinator_epoch=epoch)
    producers_of(script, topic)


@case(KEY, since=2, transactions=True)
def transaction_versions(script: Script) -> None:
    topic = script.topic("one")
    mine = _open(script, topic)
    for version, epoch in ((2, 0), (2, 1), (1, 1), (2, 1), (3, 2), (-1, 3)):
        _mark(script, mine, topic, transaction_version=version, producer_epoch=epoch)
    producers_of(script, topic)


@case(KEY, transactions=True)
def unknown_topics_and_partitions(script: Script) -> None:
    topic, mine = script.topic("one", partitions=2), writer(script)
    rows = ((topic.name, (0, 7, -1)), (script.name("missing"), (0,)), ("", (0,)), ("a/b", (0,)))
    script.ask(markers=[_marker(mine, *rows)])


@case(KEY, transactions=True)
def several_markers(script: Script) -> None:
    # Each producer has a topic of its own: Kafka writes the markers of one request in any order.
    topic, another = script.topic("one"), script.topic("other")
    mine, other = _open(script, topic), _open(script, another, "other")
    markers = [
        _marker(mine, (topic.name, (0,))),
        _marker(other, (another.name, (0,)), transaction_result=True),
    ]
    script.ask(markers=markers)
    script.other(1, 11, **reading(topic.name))
    script.other(1, 11, **reading(another.name))


@case(KEY, transactions=True)
def nothing(script: Script) -> None:
    script.ask(markers=[])
    script.ask(markers=[_marker(writer(script))])


@case(KEY, transactions=True)
def internal_topics(script: Script) -> None:
    mine = writer(script)
    script.ask(markers=[_marker(mine, ("__consumer_offsets", (0,)))])
    script.ask(markers=[_marker(mine, ("__consumer_offsets", (50,)))])


@case(KEY, transactions=True)
def the_producer_goes_on_after_a_forged_marker(script: Script) -> None:
    topic = script.topic("one")
    mine = _open(script, topic)
    _mark(script, mine, topic)
    records = mine.batch(1, 2)
    rows = [{"name": topic.name, "partition_data": [{"index": 0, "records": records}]}]
    fields = {"acks": -1, "timeout": 10_000, "topic_data": rows}
    script.other(0, 11, transactional_id=mine.name, **fields)
    script.other(1, 11, **reading(topic.name))
    mine.end(commit=True)
    script.other(1, 11, **reading(topic.name))
