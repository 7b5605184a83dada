"""ListOffsets in read_committed: the last stable offset, times behind it."""

from __future__ import annotations

from tests.compat.differential.script import Answer, Script, Topic, case
from tests.compat.differential.transactional import writer

KEY = 2
LATEST, EARLIEST, MAX_TIMESTAMP = -1, -2, -3
MAX_FROM = 7


def _ask(
    script: Script, topic: Topic, timestamp: int, isolation: int = 1, replica: int = -1
) -> Answer:
    row = {"partition_index": 0, "current_leader_epoch": -1, "timestamp": timestamp}
    topics = [{"name": topic.name, "partitions": [row]}]
    fields = {"replica_id": replica, "topics": topics, "timeout": 10_000}
    return script.ask(isolation_level=isolation, **fields)


def _opened(script: Script) -> Topic:
    """Return a topic with two plain records, and two of an open transaction behind them."""
    topic, mine = script.topic("one"), writer(script)
    script.fill(topic, 2, base_timestamp=500)
    mine.add(topic)
    mine.write(topic, 2, 0)
    return topic


@case(KEY, since=2, transactions=True)
def an_open_transaction(script: Script) -> None:
    topic = _opened(script)
    script.fill(topic, 2, base_timestamp=2_000)
    for isolation in (0, 1):
        for timestamp in (LATEST, EARLIEST, 0, 501, 502, 1_000, 1_500, 2_000, 3_000):
            _ask(script, topic, timestamp, isolation)


@case(KEY, since=2, transactions=True)
def after_an_end(script: Script) -> None:
    topic = script.topic("one")
    for commit in (True, False):
        mine = writer(script, f"id-{commit}")
        mine.one(topic, 2, 0, commit=commit)
        for timestamp in (LATEST, EARLIEST, 1_000, 1_001, 2_000):
            _ask(script, topic, timestamp)


@case(KEY, since=2, transactions=True)
def two_open_transactions(script: Script) -> None:
    topic = script.topic("one")
    first, second = writer(script, "a"), writer(script, "b")
    for each in (first, second):
        each.add(topic)
        each.write(topic, 1, 0)
    _ask(script, topic, LATEST)
    first.end(commit=True)
    _ask(script, topic, LATEST)
    second.end(commit=False)
    _ask(script, topic, LATEST)


@case(KEY, since=MAX_FROM, transactions=True)
def the_largest_time(script: Script) -> None:
    topic = _opened(script)
    for isolation in (0, 1):
        _ask(script, topic, MAX_TIMESTAMP, isolation)


@case(KEY, since=2, transactions=True)
def an_empty_open_transaction(script: Script) -> None:
    topic, mine = script.topic("one"), writer(script)
    script.fill(topic, 2)
    mine.add(topic)
    _ask(script, topic, LATEST)


@case(KEY, since=2, transactions=True)
def an_open_transaction_for_replicas(script: Script) -> None:
    topic = _opened(script)
    for replica in (-2, -3, 4_711):
        for timestamp in (LATEST, EARLIEST, 501, 1_000):
            _ask(script, topic, timestamp, replica=replica)
