"""AddPartitionsToTxn: partitions, fencing, states; from v4 batched and verify-only.

Kafka requires the rights of a broker from v4. Without an authorizer any client has them. Kafka 4.3
never answers a request without transactions, so no case sends one.
"""

from __future__ import annotations

from typing import Any

from tests.compat.differential.script import Answer, Script, Topic, case
from tests.compat.differential.transactional import BUSY, Writer, coordinated, initialise, writer

KEY = 24
BATCHED_FROM = 4


def _topics(*rows: tuple[str, tuple[int, ...]]) -> list[dict[str, Any]]:
    return [{"name": name, "partitions": list(indexes)} for name, indexes in rows]


def _add(
    script: Script, mine: Writer, *rows: tuple[str, tuple[int, ...]], verify: bool = False
) -> Answer:
    """Add these partitions in the version under test."""
    topics = _topics(*rows)
    if script.version < BATCHED_FROM:
        return script.ask(**mine.old_ref, v3_and_below_topics=topics)
    return script.ask(transactions=[{**mine.ref, "verify_only": verify, "topics": topics}])


def _with(mine: Writer, **changed: Any) -> Writer:
    fields = {"name": mine.name, "producer": mine.producer, "epoch": mine.epoch, **changed}
    return Writer(mine.script, **fields)


@case(KEY, transactions=True)
def partitions(script: Script) -> None:
    topic, mine = script.topic("one", partitions=3), writer(script)
    for indexes in ((0,), (0,), (1, 2), (0, 1, 2)):
        script.settled(_add(script, mine, (topic.name, indexes)), BUSY)
    script.other(65, 0, transactional_ids=[mine.name])


@case(KEY, transactions=True)
def two_topics(script: Script) -> None:
    one, two, mine = script.topic("one"), script.topic("two", partitions=2), writer(script)
    script.settled(_add(script, mine, (one.name, (0,)), (two.name, (1,))), BUSY)
    script.other(65, 0, transactional_ids=[mine.name])


@case(KEY, transactions=True)
def an_unknown_topic_among_partitions(script: Script) -> None:
    topic, mine = script.topic("one", partitions=2), writer(script)
    _add(script, mine, (topic.name, (0, 1)), (script.name("missing"), (0,)))
    _add(script, mine, (topic.name, (0, 7, -1)))
    script.other(65, 0, transactional_ids=[mine.name])


@case(KEY, transactions=True)
def odd_topics(script: Script) -> None:
    mine = writer(script)
    for name in ("", "..", "a/b"):
        _add(script, mine, (name, (0,)))


@case(KEY, transactions=True)
def internal_topics(script: Script) -> None:
    mine = writer(script)
    _add(script, mine, ("__consumer_offsets", (0,)))
    _add(script, mine, ("__transaction_state", (0,)))


@case(KEY, transactions=True)
def nothing(script: Script) -> None:
    mine = writer(script)
    _add(script, mine)
    script.other(65, 0, transactional_ids=[mine.name])


@case(KEY, transactions=True)
def a_topic_without_partitions(script: Script) -> None:
    topic, mine = script.topic("one"), writer(script)
    _add(script, mine, (topic.name, ()))


@case(KEY, transactions=True)
def a_topic_twice(script: Script) -> None:
    topic, mine = script.topic("one", partitions=2), writer(script)
    _add(script, mine, (topic.name, (0,)), (topic.name, (1,)))
    _add(script, mine, (topic.name, (1, 1)))


@case(KEY, transactions=True)
def unknown_ids(script: Script) -> None:
    topic, mine = script.topic("one"), writer(script)
    name = script.name("missing")
    coordinated(script, name)
    for unknown in (name, ""):
        _add(script, _with(mine, name=unknown), (topic.name, (0,)))


@case(KEY, transactions=True)
def wrong_producers_and_epochs(script: Script) -> None:
    topic, mine, other = script.topic("one"), writer(script), writer(script, "other")
    for producer, epoch in (
        (other.producer, 0),
        (-1, 0),
        (mine.producer, 1),
        (mine.producer, -1),
        (mine.producer, 32_767),
    ):
        _add(script, _with(mine, producer=producer, epoch=epoch), (topic.name, (0,)))


@case(KEY, transactions=True)
def a_fenced_epoch(script: Script) -> None:
    topic, mine = script.topic("one"), writer(script)
    initialise(script, mine.name)
    _add(script, mine, (topic.name, (0,)))


@case(KEY, transactions=True)
def after_commit_and_abort(script: Script) -> None:
    topic, mine = script.topic("one"), writer(script)
    for sequence, commit in enumerate((True, False)):
        mine.one(topic, 1, sequence, commit=commit)
        script.settled(_add(script, mine, (topic.name, (0,))), BUSY)
        mine.end(commit=True)


@case(KEY, transactions=True)
def an_epoch_that_only_committed_before(script: Script) -> None:
    topic, mine = script.topic("one"), writer(script)
    mine.one(topic, 1, 0, commit=True)
    initialise(script, mine.name)
    _add(script, mine, (topic.name, (0,)))
    mine.epoch = 1
    _add(script, mine, (topic.name, (0,)))


@case(KEY, since=BATCHED_FROM, transactions=True)
def verify_only(script: Script) -> None:
    topic, mine = script.topic("one", partitions=2), writer(script)
    _add(script, mine, (topic.name, (0,)), verify=True)
    mine.add(topic)
    _add(script, mine, (topic.name, (0,)), verify=True)
    _add(script, mine, (topic.name, (0, 1)), verify=True)
    _add(script, mine, (script.name("missing"), (0,)), verify=True)
    mine.end(commit=True)
    _add(script, mine, (topic.name, (0,)), verify=True)


@case(KEY, since=BATCHED_FROM, transactions=True)
def verify_only_of_wrong_producers(script: Script) -> None:
    topic, mine, other = script.topic("one"), writer(script), writer(script, "other")
    mine.add(topic)
    for wrong in (
        _with(mine, producer=other.producer),
        _with(mine, epoch=1),
        _with(mine, epoch=-1),
        _with(mine, name=""),
        _with(mine, name=script.name("missing")),
    ):
        coordinated(script, wrong.name or "x")
        _add(script, wrong, (topic.name, (0,)), verify=True)


@case(KEY, since=BATCHED_FROM, transactions=True)
def many_transactions(script: Script) -> None:
    topic = script.topic("one", partitions=2)
    mine, other = writer(script), writer(script, "other")
    script.ask(transactions=[_row(mine, topic, 0), _row(other, topic, 1)])
    script.ask(transactions=[_row(mine, topic, 0, verify=True), _row(other, topic, 0, verify=True)])
    script.ask(transactions=[_row(mine, topic, 1), _row(_with(other, epoch=4), topic, 0)])


@case(KEY, since=BATCHED_FROM, transactions=True)
def an_id_twice(script: Script) -> None:
    topic, mine = script.topic("one", partitions=2), writer(script)
    script.ask(transactions=[_row(mine, topic, 0), _row(mine, topic, 1)])


def _row(mine: Writer, topic: Topic, index: int, *, verify: bool = False) -> dict[str, Any]:
    topics = _topics((topic.name, (index,)))
    return {**mine.ref, "verify_only": verify, "topics": topics}
