"""TxnOffsetCommit: pending offsets, both outcomes, members, fencing. From v5 it adds the group."""

from __future__ import annotations

from typing import Any

from tests.compat.differential.script import Answer, Script, Topic, case
from tests.compat.differential.transactional import BUSY, Writer, initialise, writer

KEY = 28
ADDS_FROM = 5
MEMBERS_FROM = 3
OFFSET_FETCH = 9


def _row(index: int, offset: int, metadata: str | None = "note") -> dict[str, Any]:
    return {
        "partition_index": index,
        "committed_offset": offset,
        "committed_leader_epoch": -1,
        "committed_metadata": metadata,
    }


def _commit(script: Script, mine: Writer, group: str, topic: str, *rows: Any, **changed: Any):
    fields = {
        **mine.ref,
        "group_id": group,
        "generation_id": -1,
        "member_id": "",
        "group_instance_id": None,
        "topics": [{"name": topic, "partitions": list(rows)}],
    }
    return script.ask(**{**fields, **changed})


def _fetch(script: Script, group: str, topic: Topic, *, stable: bool) -> Answer:
    topics = [{"name": topic.name, "partition_indexes": [0, 1]}]
    return script.other(OFFSET_FETCH, 7, group_id=group, topics=topics, require_stable=stable)


def _ready(script: Script) -> tuple[Topic, Writer, str]:
    topic, mine, group = script.topic("one", partitions=2), writer(script), script.name("group")
    script.coordinator(group)
    if script.version < ADDS_FROM:
        mine.add_group(group)
    return topic, mine, group


def _end(script: Script, mine: Writer, *, commit: bool) -> None:
    if script.version < ADDS_FROM:
        mine.end(commit=commit)
        return
    for _ in range(2):
        script.prepare(26, 5, again=BUSY, **mine.ref, committed=commit)
    mine.epoch += 1


def _both_fetches(script: Script, group: str, topic: Topic) -> None:
    for stable in (False, True):
        _fetch(script, group, topic, stable=stable)


@case(KEY, transactions=True)
def a_commit(script: Script) -> None:
    topic, mine, group = _ready(script)
    _commit(script, mine, group, topic.name, _row(0, 5), _row(1, 7, None))
    _both_fetches(script, group, topic)
    _end(script, mine, commit=True)
    _both_fetches(script, group, topic)


@case(KEY, transactions=True)
def an_abort(script: Script) -> None:
    topic, mine, group = _ready(script)
    _commit(script, mine, group, topic.name, _row(0, 5))
    _end(script, mine, commit=False)
    _both_fetches(script, group, topic)


@case(KEY, transactions=True)
def twice_in_one_transaction(script: Script) -> None:
    topic, mine, group = _ready(script)
    for offset in (5, 3, 9):
        _commit(script, mine, group, topic.name, _row(0, offset))
    _end(script, mine, commit=True)
    _both_fetches(script, group, topic)


@case(KEY, transactions=True)
def over_committed_offsets(script: Script) -> None:
    topic, mine, group = _ready(script)
    rows = [{"partition_index": 0, "committed_offset": 2, "committed_metadata": ""}]
    plain = {
        "group_id": group,
        "member_id": "",
        "generation_id_or_member_epoch": -1,
        "topics": [{"name": topic.name, "partitions": rows}],
    }
    script.prepare(8, 9, **plain)
    _commit(script, mine, group, topic.name, _row(0, 5))
    _both_fetches(script, group, topic)
    rows[0] = {**rows[0], "committed_offset": 3}
    script.prepare(8, 9, **plain)
    _both_fetches(script, group, topic)
    _end(script, mine, commit=True)
    _both_fetches(script, group, topic)


@case(KEY, transactions=True)
def without_adding_the_group(script: Script) -> None:
    topic, mine, group = script.topic("one"), writer(script), script.name("group")
    script.coordinator(group)
    _commit(script, mine, group, topic.name, _row(0, 5))
    script.other(65, 0, transactional_ids=[mine.name])


@case(KEY, transactions=True)
def after_the_end(script: Script) -> None:
    topic, mine, group = _ready(script)
    _commit(script, mine, group, topic.name, _row(0, 5))
    old = mine.epoch
    _end(script, mine, commit=True)
    _commit(script, mine, group, topic.name, _row(0, 6), producer_epoch=old)
    _commit(script, mine, group, topic.name, _row(0, 7))
    _fetch(script, group, topic, stable=False)


@case(KEY, transactions=True)
def wrong_producers_and_epochs(script: Script) -> None:
    topic, mine, group = _ready(script)
    other = writer(script, "other")
    for producer, epoch in (
        (other.producer, 0),
        (-1, 0),
        (mine.producer, 1),
        (mine.producer, -1),
    ):
        changed = {"producer_id": producer, "producer_epoch": epoch}
        _commit(script, mine, group, topic.name, _row(0, 5), **changed)
    _commit(script, mine, group, topic.name, _row(0, 5), transactional_id="")
    unknown = script.name("missing")
    _commit(script, mine, group, topic.name, _row(0, 5), transactional_id=unknown)
    _both_fetches(script, group, topic)


@case(KEY, transactions=True)
def a_fenced_epoch(script: Script) -> None:
    topic, mine, group = _ready(script)
    _commit(script, mine, group, topic.name, _row(0, 5))
    initialise(script, mine.name)
    _commit(script, mine, group, topic.name, _row(0, 6))
    _both_fetches(script, group, topic)


@case(KEY, since=MEMBERS_FROM, transactions=True)
def members(script: Script) -> None:
    topic, mine = script.topic("one"), writer(script)
    group = script.name("group")
    joined = script.join(group)
    if script.version < ADDS_FROM:
        mine.add_group(group)
    member, generation = joined.take("member_id"), joined.take("generation_id")
    for its_member, its_generation in (
        ("", -1),
        ("nobody", generation),
        (member, 7),
        (member, -1),
        (member, generation),
    ):
        changed = {"member_id": its_member, "generation_id": its_generation}
        _commit(script, mine, group, topic.name, _row(0, 5), **changed)
    _end(script, mine, commit=True)
    _fetch(script, group, topic, stable=True)


@case(KEY, since=MEMBERS_FROM, transactions=True)
def instances(script: Script) -> None:
    topic, mine = script.topic("one"), writer(script)
    group = script.name("group")
    joined = script.join(group, group_instance_id="first")
    if script.version < ADDS_FROM:
        mine.add_group(group)
    member, generation = joined.take("member_id"), joined.take("generation_id")
    for instance, its_member in (("other", member), ("first", "nobody"), ("first", member)):
        changed = {
            "member_id": its_member,
            "generation_id": generation,
            "group_instance_id": instance,
        }
        _commit(script, mine, group, topic.name, _row(0, 5), **changed)


@case(KEY, since=MEMBERS_FROM, transactions=True)
def generations_of_an_unknown_group(script: Script) -> None:
    topic, mine, group = _ready(script)
    changed = {"member_id": "nobody", "generation_id": 3}
    _commit(script, mine, group, topic.name, _row(0, 5), **changed)
    _commit(script, mine, group, topic.name, _row(0, 5), generation_id=0)


@case(KEY, transactions=True)
def odd_groups_and_partitions(script: Script) -> None:
    topic, mine, group = _ready(script)
    _commit(script, mine, "", topic.name, _row(0, 5))
    _commit(script, mine, group, topic.name, _row(7, 5), _row(-1, 5))
    _commit(script, mine, group, script.name("missing"), _row(0, 5))
    _commit(script, mine, group, topic.name, _row(0, -1))
    _commit(script, mine, group, topic.name, _row(0, 5, "m" * 4_097), _row(1, 5))
    script.ask(**{**mine.ref, "group_id": group, "generation_id": -1, "member_id": ""}, topics=[])
    _fetch(script, group, topic, stable=True)


@case(KEY, transactions=True)
def two_producers_of_one_group(script: Script) -> None:
    topic, mine, group = _ready(script)
    other = writer(script, "other")
    if script.version < ADDS_FROM:
        other.add_group(group)
    _commit(script, mine, group, topic.name, _row(0, 5))
    _commit(script, other, group, topic.name, _row(0, 6), _row(1, 6))
    _end(script, other, commit=True)
    _both_fetches(script, group, topic)
    _end(script, mine, commit=False)
    _both_fetches(script, group, topic)


@case(KEY, transactions=True)
def two_groups_of_one_producer(script: Script) -> None:
    topic, mine, group = _ready(script)
    second = script.name("second")
    script.coordinator(second)
    if script.version < ADDS_FROM:
        mine.add_group(second)
    _commit(script, mine, group, topic.name, _row(0, 5))
    _commit(script, mine, second, topic.name, _row(1, 6))
    _end(script, mine, commit=True)
    _fetch(script, group, topic, stable=True)
    _fetch(script, second, topic, stable=True)


@case(KEY, transactions=True)
def a_group_that_is_deleted_meanwhile(script: Script) -> None:
    topic, mine, group = _ready(script)
    _commit(script, mine, group, topic.name, _row(0, 5))
    script.other(42, 2, groups_names=[group])
    _end(script, mine, commit=True)
    _fetch(script, group, topic, stable=True)
