"""JoinGroup: first members, static members, rebalances of two, and what is refused."""

from __future__ import annotations

from typing import Any

from tests.compat.differential.consumers import classic, consumer_group, subscription, syncing
from tests.compat.differential.consumers import join as join_consumer
from tests.compat.differential.script import Answer, Script, case

KEY = 11
MEMBER_ID_REQUIRED_FROM = 4
STATIC_FROM = 5


def _wanted(group: str, **fields: Any) -> dict[str, Any]:
    return {
        "group_id": group,
        "session_timeout": 30_000,
        "rebalance_timeout": 30_000,
        "member_id": "",
        "group_instance_id": None,
        "protocol_type": "consumer",
        "protocols": [{"name": "range", "metadata": b"meta"}],
        "reason": None,
        **fields,
    }


def _group(script: Script) -> str:
    group = script.name("group")
    script.coordinator(group)
    return group


def _joined(script: Script, group: str, *, on: str = "a", **fields: Any) -> Answer:
    """Join as a new member, in one request or in two."""
    answer = script.ask(on=on, **_wanted(group, **fields))
    if script.version < MEMBER_ID_REQUIRED_FROM or fields.get("group_instance_id"):
        return answer
    member = answer.take("member_id")
    return script.ask(on=on, **_wanted(group, **{**fields, "member_id": member}))


@case(KEY)
def the_first_member(script: Script) -> None:
    group = _group(script)
    joined = _joined(script, group)
    script.ask(**_wanted(group, member_id=joined.take("member_id")))


@case(KEY)
def two_protocols(script: Script) -> None:
    protocols = [{"name": name, "metadata": b"meta"} for name in ("sticky", "range")]
    _joined(script, _group(script), protocols=protocols)


@case(KEY)
def other_protocol_types(script: Script) -> None:
    group = _group(script)
    _joined(script, group, protocol_type="connect")
    script.ask(on="b", **_wanted(group, member_id="x", protocol_type="consumer"))


@case(KEY)
def no_protocols(script: Script) -> None:
    group = _group(script)
    script.ask(**_wanted(group, protocols=[]))
    script.ask(**_wanted(group, protocol_type=""))


@case(KEY)
def an_empty_group(script: Script) -> None:
    script.ask(**_wanted(""))


@case(KEY)
def session_timeouts_outside_of_the_bounds(script: Script) -> None:
    group = _group(script)
    for timeout in (5_999, 1_800_001, 0, -1):
        script.ask(**_wanted(group, session_timeout=timeout))


@case(KEY)
def an_unknown_member(script: Script) -> None:
    group = _group(script)
    script.ask(**_wanted(group, member_id="nobody"))
    _joined(script, group, on="b")
    script.ask(**_wanted(group, member_id="nobody"))


@case(KEY, since=STATIC_FROM)
def a_static_member(script: Script) -> None:
    group = _group(script)
    first = script.ask(**_wanted(group, group_instance_id="static"))
    script.ask(**_wanted(group, group_instance_id="static", member_id=first.take("member_id")))
    script.ask(**_wanted(group, group_instance_id="static", member_id="nobody"))
    script.ask(on="b", **_wanted(group, group_instance_id="static"))


@case(KEY, since=STATIC_FROM)
def an_unknown_static_member(script: Script) -> None:
    group = _group(script)
    script.ask(**_wanted(group, group_instance_id="static", member_id="nobody"))


@case(KEY, since=STATIC_FROM)
def invalid_instance_ids(script: Script) -> None:
    for number, instance in enumerate(("", ".", "..", "a/b", "i" * 250)):
        group = script.name(f"group-{number}")
        script.coordinator(group)
        script.ask(**_wanted(group, group_instance_id=instance))


@case(KEY)
def no_common_protocol(script: Script) -> None:
    group = _group(script)
    _joined(script, group)
    other = [{"name": "sticky", "metadata": b""}]
    script.ask(on="b", **_wanted(group, protocols=other, member_id="x"))


@case(KEY, until=MEMBER_ID_REQUIRED_FROM - 1)
def a_second_member(script: Script) -> None:
    group = _group(script)
    first = script.ask(**_wanted(group))
    second = script.send(on="b", **_wanted(group))
    member = first.take("member_id")
    beat = {"group_id": group, "generation_id": first.take("generation_id"), "member_id": member}
    script.prepare(12, 0, on="c", again=("none",), **beat)
    again = script.send(**_wanted(group, member_id=member))
    script.receive(again)
    script.receive(second)


@case(KEY, since=MEMBER_ID_REQUIRED_FROM)
def a_second_member_in_two_steps(script: Script) -> None:
    group = _group(script)
    first = _joined(script, group)
    asked = script.ask(on="b", **_wanted(group))
    second = script.send(on="b", **_wanted(group, member_id=asked.take("member_id")))
    member = first.take("member_id")
    beat = {"group_id": group, "generation_id": first.take("generation_id"), "member_id": member}
    script.prepare(12, 0, on="c", again=("none",), **beat)
    again = script.send(**_wanted(group, member_id=member))
    script.receive(again)
    script.receive(second)


@case(KEY)
def a_member_of_a_consumer_group(script: Script) -> None:
    topic, group = script.topic("four", 4), consumer_group(script)
    join_consumer(script, group, "a", topic)
    protocols = [{"name": "range", "metadata": subscription(topic)}]
    joined = _joined(script, group, protocols=protocols)
    member, generation = joined.take("member_id"), joined.take("generation_id")
    script.other(14, 5, **syncing(group, member, generation))
    script.other(69, 1, group_ids=[group], include_authorized_operations=False)
    script.ask(**_wanted(group, member_id=member, protocols=protocols))
    two = [{"name": each, "metadata": subscription(topic)} for each in ("sticky", "range")]
    script.ask(**_wanted(group, member_id=member, protocols=two))
    for wrong in ({"protocol_type": "connect"}, {"protocols": []}, {"protocols": two[:1]}):
        script.ask(**_wanted(group, member_id=member, **wrong))


@case(KEY, since=STATIC_FROM)
def a_static_member_of_a_consumer_group(script: Script) -> None:
    topic, group = script.topic("two", 2), consumer_group(script)
    join_consumer(script, group, "a", topic)
    protocols = [{"name": "range", "metadata": subscription(topic)}]
    asked = classic(group, topic, group_instance_id="i") | {"protocols": protocols}
    del asked["group_id"]
    first = script.ask(**_wanted(group, **asked))
    script.ask(**_wanted(group, **asked))
    script.ask(**_wanted(group, **(asked | {"member_id": first.take("member_id")})))
    script.ask(**_wanted(group, **(asked | {"member_id": "x", "group_instance_id": "j"})))
