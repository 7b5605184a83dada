"""OffsetCommit: with and without members, wrong members and generations, unknown topics."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from tests.compat.differential.consumers import beat, consumer_group, join, owned
from tests.compat.differential.script import Script, Topic, case

KEY = 8
NOBODY = UUID("00000000-0000-4000-8000-000000000007")


def _row(offset: int, index: int = 0, **fields: Any) -> dict[str, Any]:
    return {
        "partition_index": index,
        "committed_offset": offset,
        "committed_leader_epoch": -1,
        "committed_metadata": "",
        **fields,
    }


def _commit(
    script: Script, group: str, topic: dict[str, Any], *rows: dict[str, Any], **fields: Any
) -> None:
    wanted = {
        "group_id": group,
        "generation_id_or_member_epoch": -1,
        "member_id": "",
        "group_instance_id": None,
        "retention_time": -1,
        "topics": [{**topic, "partitions": list(rows)}],
    }
    script.ask(**{**wanted, **fields})


def _topic_and_group(script: Script) -> tuple[Topic, str]:
    group = script.name("group")
    script.coordinator(group)
    return script.topic("one", partitions=2), group


@case(KEY)
def without_a_member(script: Script) -> None:
    topic, group = _topic_and_group(script)
    _commit(script, group, topic.ref, _row(5), _row(7, 1, committed_metadata="note"))
    script.other(9, 5, group_id=group, topics=None)


@case(KEY)
def odd_offsets(script: Script) -> None:
    topic, group = _topic_and_group(script)
    for offset in (0, -1, -2, 1 << 62):
        _commit(script, group, topic.ref, _row(offset))
    script.other(9, 5, group_id=group, topics=None)


@case(KEY)
def long_and_absent_notes(script: Script) -> None:
    topic, group = _topic_and_group(script)
    for note in ("n" * 4096, "n" * 4097, None):
        _commit(script, group, topic.ref, _row(1, committed_metadata=note))
    script.other(9, 5, group_id=group, topics=None)


@case(KEY)
def unknown_topics_and_partitions(script: Script) -> None:
    topic, group = _topic_and_group(script)
    _commit(script, group, topic.ref, _row(1), _row(1, 7), _row(1, -1))
    _commit(script, group, {"name": script.name("missing"), "topic_id": NOBODY}, _row(1))


@case(KEY)
def an_empty_group(script: Script) -> None:
    topic, _ = _topic_and_group(script)
    _commit(script, "", topic.ref, _row(1))


@case(KEY)
def unknown_members_of_an_unknown_group(script: Script) -> None:
    topic, group = _topic_and_group(script)
    _commit(script, group, topic.ref, _row(1), member_id="nobody")
    _commit(script, group, topic.ref, _row(1), generation_id_or_member_epoch=3)
    _commit(script, group, topic.ref, _row(1), member_id="nobody", generation_id_or_member_epoch=3)


@case(KEY)
def a_member(script: Script) -> None:
    topic, group = _topic_and_group(script)
    joined = script.join(group)
    member, generation = joined.take("member_id"), joined.take("generation_id")
    good = {"member_id": member, "generation_id_or_member_epoch": generation}
    _commit(script, group, topic.ref, _row(1), **good)
    _commit(script, group, topic.ref, _row(2), **{**good, "generation_id_or_member_epoch": 99})
    _commit(script, group, topic.ref, _row(3), **{**good, "member_id": "nobody"})
    _commit(script, group, topic.ref, _row(4))
    script.other(9, 5, group_id=group, topics=None)


@case(KEY, since=7)
def a_static_member(script: Script) -> None:
    topic, group = _topic_and_group(script)
    joined = script.join(group, group_instance_id="static")
    good = {
        "member_id": joined.take("member_id"),
        "generation_id_or_member_epoch": joined.take("generation_id"),
    }
    for instance in ("static", "other", None):
        _commit(script, group, topic.ref, _row(1), **good, group_instance_id=instance)
    wrong = {**good, "member_id": "nobody"}
    _commit(script, group, topic.ref, _row(1), **wrong, group_instance_id="static")


@case(KEY)
def nothing(script: Script) -> None:
    _, group = _topic_and_group(script)
    script.ask(
        group_id=group,
        generation_id_or_member_epoch=-1,
        member_id="",
        retention_time=-1,
        topics=[],
    )


@case(KEY)
def a_partition_twice(script: Script) -> None:
    topic, group = _topic_and_group(script)
    _commit(script, group, topic.ref, _row(1), _row(2))
    script.other(9, 5, group_id=group, topics=None)


@case(KEY)
def members_of_the_consumer_protocol(script: Script) -> None:
    topic, group = script.topic("four", 4), consumer_group(script)
    _commit(script, group, topic.ref, _row(1))
    join(script, group, "a", topic)
    for epoch in (2, 1, 3, 0, -1):
        _commit(
            script,
            group,
            topic.ref,
            _row(5),
            generation_id_or_member_epoch=epoch,
            member_id="a",
        )
    _commit(script, group, topic.ref, _row(6))
    _commit(script, group, topic.ref, _row(6), generation_id_or_member_epoch=2, member_id="nobody")
    join(script, group, "b", topic)
    beat(script, group, "a", 2, topic_partitions=owned(topic, 0, 1, 2, 3))
    beat(script, group, "a", 2, topic_partitions=owned(topic, 0, 1))
    for index in (0, 2):
        _commit(
            script,
            group,
            topic.ref,
            _row(7, index),
            generation_id_or_member_epoch=2,
            member_id="a",
        )
    beat(script, group, "a", -1)
    beat(script, group, "b", -1)
    _commit(script, group, topic.ref, _row(8))
