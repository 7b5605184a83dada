"""ConsumerGroupHeartbeat: members that join, move, come back, and send what they must not."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from tests.compat.differential.consumers import (
    beating,
    classic,
    classic_group,
    consumer_group,
    fields,
    owned,
    syncing,
)
from tests.compat.differential.script import Answer, Script, Topic, case

KEY = 68
NOBODY = UUID("00000000-0000-4000-8000-000000000007")


def _beat(script: Script, group: str, member: str, epoch: Any, **more: Any) -> Answer:
    return script.ask(**_known(script, fields(group, member, epoch) | more))


def _join(script: Script, group: str, member: str, topic: Topic, **more: Any) -> Answer:
    return script.ask(**_known(script, fields(group, member, 0, topic) | more))


def _known(script: Script, asked: dict[str, Any]) -> dict[str, Any]:
    if script.version < 1:
        del asked["subscribed_topic_regex"]
    return asked


@case(KEY)
def a_member(script: Script) -> None:
    topic, group = script.topic("four", 4), consumer_group(script)
    _join(script, group, "a", topic)
    _beat(script, group, "a", 2)
    _beat(script, group, "a", 2, topic_partitions=owned(topic, 0, 1, 2, 3))
    for wrong in (1, 3, 99):
        _beat(script, group, "a", wrong)
    _beat(script, group, "b", 2)
    _join(script, group, "a", topic)
    _beat(script, group, "a", -1)
    _beat(script, group, "a", 2)
    _beat(script, group, "a", -1)
    _join(script, group, "a", topic)


@case(KEY)
def two_members(script: Script) -> None:
    topic, group = script.topic("four", 4), consumer_group(script)
    _join(script, group, "a", topic)
    _join(script, group, "b", topic)
    _beat(script, group, "b", 3)
    _beat(script, group, "a", 2)
    _beat(script, group, "a", 2, topic_partitions=owned(topic, 0, 1, 2, 3))
    _beat(script, group, "b", 3)
    _beat(script, group, "a", 2, topic_partitions=owned(topic, 0, 1))
    _beat(script, group, "a", 3)
    _beat(script, group, "b", 3)
    _beat(script, group, "b", -1)
    _beat(script, group, "a", 3)


@case(KEY)
def a_lost_answer(script: Script) -> None:
    topic, group = script.topic("four", 4), consumer_group(script)
    _join(script, group, "a", topic)
    _join(script, group, "b", topic)
    _beat(script, group, "a", 2, topic_partitions=owned(topic, 0, 1, 2, 3))
    for _ in range(2):
        _beat(script, group, "a", 2, topic_partitions=owned(topic, 0, 1))
    _beat(script, group, "a", 2, topic_partitions=owned(topic, 0, 1, 2))
    _beat(script, group, "a", 2)
    _beat(script, group, "a", 3)


@case(KEY)
def three_members_and_the_range(script: Script) -> None:
    topic, group = script.topic("seven", 7), consumer_group(script)
    for member in ("a", "b", "c"):
        _join(script, group, member, topic, server_assignor="range")
    _beat(script, group, "a", 2, topic_partitions=owned(topic, 0, 1, 2))
    _beat(script, group, "a", 4)
    _beat(script, group, "b", 3, topic_partitions=[])
    _beat(script, group, "c", 4)
    _beat(script, group, "b", 4)
    _join(script, group, "d", topic, instance_id="a-static")
    _beat(script, group, "c", -1)
    for member in ("a", "b"):
        _beat(script, group, member, 4)


@case(KEY)
def static_members(script: Script) -> None:
    topic, group = script.topic("four", 4), consumer_group(script)
    _join(script, group, "a", topic, instance_id="i")
    _join(script, group, "b", topic, instance_id="i")
    _beat(script, group, "b", 2, instance_id="i")
    _beat(script, group, "a", 2, instance_id="j")
    _beat(script, group, "a", 2, instance_id="i")
    _join(script, group, "c", topic, instance_id="k")
    _beat(script, group, "a", -2, instance_id="i")
    _beat(script, group, "a", 2, instance_id="i")
    _beat(script, group, "c", 3, instance_id="k")
    _join(script, group, "b", topic, instance_id="i")
    _beat(script, group, "a", 2, instance_id="i")
    _beat(script, group, "b", -1, instance_id="i")
    _beat(script, group, "c", 3, instance_id="k")


@case(KEY)
def an_id_from_the_server(script: Script) -> None:
    topic, group = script.topic("two", 2), consumer_group(script)
    joined = _join(script, group, "", topic)
    if script.version < 1:
        _beat(script, group, joined.take("member_id"), 2)  # type: ignore[arg-type]


@case(KEY)
def bad_requests(script: Script) -> None:
    topic, group = script.topic("two", 2), consumer_group(script)
    _join(script, group, "a", topic)
    _join(script, group, "b", topic, rebalance_timeout=-1)
    _join(script, group, "b", topic, topic_partitions=None)
    _join(script, group, "b", topic, topic_partitions=owned(topic, 0))
    _join(script, group, "b", topic, subscribed_topic_names=None)
    for name in ("instance_id", "rack_id"):
        _join(script, group, "b", topic, **{name: " "})
    _join(script, " ", "b", topic)
    _join(script, group, "b", topic, server_assignor="strange")
    _beat(script, group, "", 1)
    _beat(script, group, "", -1)
    for epoch in (-2, -3):
        _beat(script, group, "a", epoch)
    _beat(script, group, "a", 2, topic_partitions=[{"topic_id": NOBODY, "partitions": [0]}])


@case(KEY)
def unknown_groups(script: Script) -> None:
    group = consumer_group(script, "missing")
    for epoch in (1, -1):
        _beat(script, group, "a", epoch)
    _beat(script, group, "a", -2, instance_id="i")
    classic = script.name("classic")
    script.join(classic)
    for epoch in (1, -1):
        _beat(script, classic, "a", epoch)


@case(KEY)
def subscriptions_that_change(script: Script) -> None:
    one, two = script.topic("one", 2), script.topic("two", 1)
    group = consumer_group(script)
    _join(script, group, "a", one)
    _beat(script, group, "a", 2, subscribed_topic_names=[one.name, two.name])
    _beat(script, group, "a", 3, subscribed_topic_names=[two.name])
    _beat(script, group, "a", 3, topic_partitions=owned(two, 0))
    _beat(script, group, "a", 4, subscribed_topic_names=[])
    _beat(script, group, "a", 4, topic_partitions=[])
    _beat(script, group, "a", 5, subscribed_topic_names=[script.name("missing")])


@case(KEY)
def topics_that_grow_and_go(script: Script) -> None:
    topic, group = script.topic("one", 2), consumer_group(script)
    _join(script, group, "a", topic)
    grown = {"name": topic.name, "count": 4, "assignments": None}
    script.prepare(37, 3, topics=[grown], timeout=10_000, validate_only=False)
    script.published()
    _beat(script, group, "a", 2)
    script.prepare(20, 6, topics=[{"name": topic.name, "topic_id": None}], timeout=10_000)
    script.published()
    _beat(script, group, "a", 3)
    _beat(script, group, "a", 3, topic_partitions=[])
    _beat(script, group, "a", 4)


@case(KEY)
def a_full_heartbeat(script: Script) -> None:
    topic, group = script.topic("two", 2), consumer_group(script)
    _join(script, group, "a", topic)
    again = {"rebalance_timeout": 60_000, "subscribed_topic_names": [topic.name]}
    _beat(script, group, "a", 2, topic_partitions=owned(topic, 0, 1), **again)
    _beat(script, group, "a", 2, **again)
    _beat(script, group, "a", 2, rack_id="rack", **again)


@case(KEY, since=1)
def bad_expressions(script: Script) -> None:
    topic, group = script.topic("two", 2), consumer_group(script)
    _join(script, group, "a", topic)
    for regex in ("[", "(", "a**b", "*", "\\", "a{2,1}", "(?P<n", "[z-a]", "(?<=a)"):
        _join(script, group, "b", topic, subscribed_topic_names=None, subscribed_topic_regex=regex)
    _join(script, group, "b", topic, subscribed_topic_names=None, subscribed_topic_regex="")


@case(KEY)
def group_configs(script: Script) -> None:
    topic = script.topic("two", 2)
    group = consumer_group(script, **{"consumer.heartbeat.interval.ms": "7000"})
    _join(script, group, "a", topic)
    _beat(script, group, "a", 2)


@case(KEY)
def a_classic_group_with_members_and_back(script: Script) -> None:
    topic, group = script.topic("two", 2), consumer_group(script)
    joined = classic_group(script, group, topic, 0, 1)
    member, generation = joined.take("member_id"), joined.take("generation_id")
    _join(script, group, "a", topic)
    script.other(69, 1, group_ids=[group], include_authorized_operations=False)
    script.other(12, 4, **beating(group, member, generation))
    again = script.other(11, 9, **classic(group, topic, member))
    script.other(14, 5, **syncing(group, member, again.take("generation_id")))
    _beat(script, group, "a", 2)
    script.other(12, 4, **beating(group, member, again.take("generation_id")))
    script.other(69, 1, group_ids=[group], include_authorized_operations=False)
    _beat(script, group, "a", -1)
    script.other(12, 4, **beating(group, member, again.take("generation_id")))
    script.other(69, 1, group_ids=[group], include_authorized_operations=False)
    _beat(script, group, "a", 2)
    last = script.other(11, 9, **classic(group, topic, member))
    script.other(12, 4, **beating(group, member, last.take("generation_id")))


@case(KEY)
def classic_groups_that_stay_what_they_are(script: Script) -> None:
    topic = script.topic("two", 2)
    group = consumer_group(script, "malformed")
    script.join(group)
    _join(script, group, "a", topic)
    other = consumer_group(script, "connect")
    asked = classic(other, topic, protocol_type="connect")
    first = script.prepare(11, 9, **asked)
    script.prepare(11, 9, **(asked | {"member_id": first.take("member_id")}))
    _join(script, other, "a", topic)


@case(KEY)
def static_members_that_change_their_protocol(script: Script) -> None:
    topic, group = script.topic("two", 2), consumer_group(script)
    _join(script, group, "a", topic, instance_id="i")
    _join(script, group, "b", topic, instance_id="j")
    taken = script.other(11, 9, **classic(group, topic, group_instance_id="i"))
    member, generation = taken.take("member_id"), taken.take("generation_id")
    script.other(14, 5, **syncing(group, member, generation, group_instance_id="i"))
    _join(script, group, "c", topic, instance_id="i")
    script.other(12, 4, **beating(group, member, generation, "i"))
