"""Goal: the client of `make bench-groups` packs and unpacks as kio does, and judges ratios rightly.

Method: its bytes are decoded by the gateway's messages, and answers encoded by these are unpacked.
"""

from __future__ import annotations

from datetime import timedelta
from uuid import UUID

import pytest

from gateway.wire.messages import decode_request, encode_request_header, encode_response
from tests.bench import group_wire as wire
from tests.bench.groups import page, worst

pytestmark = pytest.mark.unit
TOPIC_ID = UUID(int=7 << 64 | 9)


def decoded(frame, api):
    assert int.from_bytes(frame[:4], "big") == len(frame) - 4
    head = len(encode_request_header(*api, 0, "bench-groups"))
    return decode_request(*api, frame[4:], head)


def answered(api, **fields):
    """Return an answer without its correlation id, as a connection of the bench gives it."""
    return b"".join(encode_response(*api, 0, fields))[4:]


def test_a_heartbeat_of_the_consumer_protocol():
    api = wire.CONSUMER_HEARTBEAT
    joins = decoded(wire.consumer_heartbeat("g", "m" * 200, 0, topics=["t"]), api)
    assert (joins.group_id, joins.member_id, joins.member_epoch) == ("g", "m" * 200, 0)
    assert (list(joins.subscribed_topic_names), list(joins.topic_partitions)) == (["t"], [])
    assert joins.rebalance_timeout == timedelta(seconds=300)
    full = decoded(wire.consumer_heartbeat("g", "m", 3, owned=(TOPIC_ID, range(200))), api)
    (topic,) = full.topic_partitions
    assert (topic.topic_id, list(topic.partitions)) == (TOPIC_ID, list(range(200)))
    assert full.subscribed_topic_names is None
    small = decoded(wire.consumer_heartbeat("g", "m", 3), api)
    assert (small.topic_partitions, small.subscribed_topic_names) == (None, None)
    nothing = decoded(wire.consumer_heartbeat("g", "m", 3, owned=(TOPIC_ID, ())), api)
    assert list(nothing.topic_partitions) == []


@pytest.mark.parametrize("partitions", [None, (), (1, 500)])
def test_an_answer_to_it(partitions):
    topics = [{"topic_id": TOPIC_ID, "partitions": partitions}] if partitions else []
    answer = answered(
        wire.CONSUMER_HEARTBEAT,
        throttle_time=timedelta(0),
        error_code=0,
        error_message="some text",
        member_id="m" * 130,
        member_epoch=4,
        heartbeat_interval=timedelta(seconds=5),
        assignment=None if partitions is None else {"topic_partitions": topics},
    )
    shown = None if partitions is None else frozenset(partitions)
    assert wire.parse_beat(answer) == wire.Beat(0, 4, shown)


def test_the_requests_of_the_classic_protocol():
    joins = decoded(wire.join("g", "m", 6_000, "t"), wire.JOIN)
    assert (joins.session_timeout, joins.protocols[0].name) == (timedelta(seconds=6), "range")
    syncs = decoded(wire.sync("g", 2, "m", {"m": b"x", "n": b""}), wire.SYNC)
    assert [(each.member_id, each.assignment) for each in syncs.assignments] == [
        ("m", b"x"),
        ("n", b""),
    ]
    beats = decoded(wire.heartbeat("g", 2, "m"), wire.HEARTBEAT)
    leaves = decoded(wire.leave("g", "m"), wire.LEAVE)
    assert (beats.generation_id, leaves.member_id) == (2, "m")


def test_the_answers_of_the_classic_protocol():
    members = [{"member_id": name, "metadata": b"xyz"} for name in ("a", "bb")]
    answer = answered(
        wire.JOIN,
        throttle_time=timedelta(0),
        error_code=0,
        generation_id=3,
        protocol_name="range",
        leader="a",
        member_id="bb",
        members=members,
    )
    assert wire.parse_joined(answer) == wire.Joined(0, 3, "a", "bb", ("a", "bb"))
    answer = answered(wire.SYNC, throttle_time=timedelta(0), error_code=27, assignment=b"12")
    assert wire.parse_synced(answer) == (27, b"12")


def test_the_worst_of_all_runs_counts():
    runs = [
        {
            "kafka": {"heartbeats_per_s": 100.0, "one_left_s": 1.0, "one_left_bytes": 1.0},
            "gateway": {"heartbeats_per_s": rate, "one_left_s": took, "one_left_bytes": 9.0},
        }
        for rate, took in ((90.0, 1.0), (60.0, 2.5))
    ]
    row = worst("consumer", runs)
    assert row["ratios"] == {"heartbeats_per_s": 0.6, "one_left_s": 2.5, "one_left_bytes": 9.0}
    assert (row["late"], row["within"]) == (["one_left_s"], False)
    assert "2.5 (above the goal)" in page({"consumer": row}, 10, 20, 2)
