"""DescribeTransactions: every state that lasts, unknown ids, several ids."""

from __future__ import annotations

from tests.compat.differential.script import Script, case
from tests.compat.differential.transactional import coordinated, initialise, writer

KEY = 65


@case(KEY, transactions=True)
def each_state(script: Script) -> None:
    topic, mine = script.topic("one", partitions=3), writer(script, timeout_ms=12_345)
    script.ask(transactional_ids=[mine.name])
    for sequence, commit in enumerate((True, False)):
        mine.add(topic, 2, 0)
        script.ask(transactional_ids=[mine.name])
        mine.write(topic, 1, sequence)
        mine.end(commit=commit)
        script.ask(transactional_ids=[mine.name])
    initialise(script, mine.name)
    script.ask(transactional_ids=[mine.name])


@case(KEY, transactions=True)
def with_a_group(script: Script) -> None:
    mine = writer(script)
    mine.add_group("a-group-of-a-known-partition")
    script.ask(transactional_ids=[mine.name])


@case(KEY, transactions=True)
def a_topic_that_is_deleted_meanwhile(script: Script) -> None:
    topic, other, mine = script.topic("one"), script.topic("two"), writer(script)
    mine.add(topic)
    mine.add(other)
    mine.write(topic, 1, 0)
    script.prepare(20, 5, topic_names=[topic.name], timeout=10_000, again=())
    script.published()
    script.ask(transactional_ids=[mine.name])
    mine.end(commit=True)
    script.ask(transactional_ids=[mine.name])


@case(KEY, transactions=True)
def unknown_ids(script: Script) -> None:
    mine, missing = writer(script), script.name("missing")
    coordinated(script, missing)
    script.ask(transactional_ids=[missing])
    script.ask(transactional_ids=[missing, mine.name])
    script.ask(transactional_ids=[""])


@case(KEY, transactions=True)
def several_ids(script: Script) -> None:
    names = [writer(script, word).name for word in ("a", "b")]
    script.ask(transactional_ids=names)
    script.ask(transactional_ids=[names[0], names[0]])
    script.ask(transactional_ids=[])
