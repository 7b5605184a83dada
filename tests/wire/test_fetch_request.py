"""Goal: a Fetch request is decoded as kio decodes it, in every version, and hostile bytes are
refused before they take memory.

Method: requests encoded by kio's schemas, compared field by field; Hypothesis draws them, cuts them
and overwrites bytes.
"""

from __future__ import annotations

import struct
from datetime import timedelta
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.wire.body_reader import TAGGED_MAX, TOPICS_MAX
from gateway.wire.bounds_check import ELEMENTS_MAX, STRING_BYTES_MAX
from gateway.wire.encode import put_count
from gateway.wire.fetch_request import FetchTopic, decode_fetch
from gateway.wire.messages import MalformedMessage, decode_request, encode_request

VERSIONS = range(4, 19)
INT32 = st.integers(-(2**31), 2**31 - 1)
INT64 = st.integers(-(2**63), 2**63 - 1)
NAMES = st.text(st.characters(codec="utf-8"), max_size=20)
PARTITIONS = st.fixed_dictionaries(
    {
        "partition": INT32,
        "fetch_offset": INT64,
        "partition_max_bytes": INT32,
        "current_leader_epoch": INT32,
        "last_fetched_epoch": INT32,
        "log_start_offset": INT64,
    }
)
TOPICS = st.lists(
    st.fixed_dictionaries(
        {
            "topic": NAMES,
            "topic_id": st.uuids(),
            "partitions": st.lists(PARTITIONS, max_size=4),
        }
    ),
    max_size=3,
)
FORGOTTEN = st.lists(
    st.fixed_dictionaries(
        {"topic": NAMES, "topic_id": st.uuids(), "partitions": st.lists(INT32, max_size=3)}
    ),
    max_size=2,
)
BODIES = st.fixed_dictionaries(
    {
        "replica_id": st.just(-1),
        "max_wait": st.integers(0, 2**31 - 1),
        "min_bytes": INT32,
        "max_bytes": INT32,
        "session_id": INT32,
        "session_epoch": INT32,
        "topics": TOPICS,
        "forgotten_topics_data": FORGOTTEN,
        "rack_id": NAMES,
    }
)


def encoded(version, body):
    """Return the frame and where its body begins."""
    frame = encode_request(1, version, 7, "c", body)
    return frame, 11 + (version >= 12)


def by_kio(version, frame, at):
    """Return what kio decodes, in the form of `seen`."""
    body = decode_request(1, version, frame, at)

    def topic_of(topic):
        return topic.topic if version < 13 else topic.topic_id or UUID(int=0)

    topics = [
        (
            topic_of(topic),
            [
                (
                    each.partition,
                    each.fetch_offset,
                    each.partition_max_bytes,
                    getattr(each, "current_leader_epoch", -1),
                    getattr(each, "last_fetched_epoch", -1),
                )
                for each in topic.partitions
            ],
        )
        for topic in body.topics
    ]
    forgotten = [
        (topic_of(topic), index)
        for topic in getattr(body, "forgotten_topics_data", ())
        for index in topic.partitions
    ]
    replica = getattr(body, "replica_id", -1)
    replica = getattr(getattr(body, "replica_state", None), "replica_id", replica)
    return (
        replica,
        body.max_wait // timedelta(milliseconds=1),
        body.min_bytes,
        body.max_bytes,
        getattr(body, "session_id", 0),
        getattr(body, "session_epoch", -1),
        getattr(body, "rack_id", ""),
        forgotten,
        topics,
    )


def seen(asked):
    topics = [
        (topic, [tuple(asked.read(entry)) for entry in entries.all()])
        for topic, entries in asked.topics
    ]
    return (
        asked.replica_id,
        asked.wait_ms,
        asked.min_bytes,
        asked.bytes_max,
        asked.session_id,
        asked.session_epoch,
        asked.rack,
        asked.forgotten,
        topics,
    )


@pytest.mark.parametrize("version", VERSIONS)
@settings(deadline=None, max_examples=30)
@given(body=BODIES)
def test_it_is_decoded_as_kio_decodes_it(version, body):
    frame, at = encoded(version, body)
    asked = decode_fetch(version, memoryview(frame), at)
    assert seen(asked) == by_kio(version, frame, at)
    assert asked.partitions_named == sum(len(topic["partitions"]) for topic in body["topics"])


@pytest.mark.parametrize("version", VERSIONS)
@settings(deadline=None, max_examples=60)
@given(body=BODIES, data=st.data())
def test_damaged_bytes_are_refused_or_decoded_as_kio_decodes_them(version, body, data):
    frame, at = encoded(version, body)
    damaged = bytearray(frame[: data.draw(st.integers(at, len(frame)))])
    for _ in range(data.draw(st.integers(0, 3))):
        if len(damaged) > at:
            damaged[data.draw(st.integers(at, len(damaged) - 1))] = data.draw(st.integers(0, 255))
    try:
        asked = decode_fetch(version, bytes(damaged), at)
    except MalformedMessage:
        return
    try:
        expected = by_kio(version, bytes(damaged), at)
    except (MalformedMessage, OverflowError):
        return  # kio's types are narrower: a wait below 0, for example
    assert seen(asked) == expected


def one_partition(version):
    partition = {"partition": 1, "fetch_offset": 5, "partition_max_bytes": 9}
    topic = {"topic": "t", "topic_id": UUID(int=7), "partitions": [partition]}
    return encoded(version, {"max_wait": 1, "min_bytes": 1, "topics": [topic]})


def test_a_topic_named_twice_is_two_topics():
    partition = {"partition": 1, "fetch_offset": 5, "partition_max_bytes": 9}
    topic = {"topic": "t", "partitions": [partition]}
    frame, at = encoded(11, {"max_wait": 1, "min_bytes": 1, "topics": [topic, topic]})
    topics = decode_fetch(11, frame, at).topics
    assert [(each.topic, len(each.entries)) for each in topics] == [("t", 1), ("t", 1)]
    assert isinstance(topics[0], FetchTopic)


def test_tagged_fields_of_a_partition_are_dropped():
    frame, at = one_partition(12)
    entry = frame.index(struct.pack(">iiq", 1, -1, 5))
    tag = entry + 32
    assert frame[tag] == 0
    tagged = frame[:tag] + b"\x01\x05\x02ab" + frame[tag + 1 :]
    assert seen(decode_fetch(12, tagged, at)) == seen(decode_fetch(12, frame, at))


@pytest.mark.parametrize("version", [4, 11])
@pytest.mark.parametrize("count", [-1, -(2**31), 2**31 - 1, 250_001])
def test_a_count_that_the_bytes_cannot_hold_is_refused(version, count):
    frame, at = one_partition(version)
    head = at + (17 if version < 7 else 25)
    assert frame[head : head + 4] == struct.pack(">i", 1)
    damaged = frame[:head] + struct.pack(">i", count) + frame[head + 4 :]
    with pytest.raises(MalformedMessage):
        decode_fetch(version, damaged, at)


def test_more_partitions_than_a_request_may_name_are_refused():
    entries = struct.pack(">iqi", 1, 5, 9) * 250_000
    head = struct.pack(">iiiib", -1, 1, 1, 1, 0) + struct.pack(">ih", 1, 1) + b"t"
    with pytest.raises(MalformedMessage, match="limit"):
        decode_fetch(4, head + struct.pack(">i", 250_000) + entries, 0)
    assert (
        decode_fetch(4, head + struct.pack(">i", 249_999) + entries, 0).partitions_named == 249_999
    )


@pytest.mark.parametrize(("topics", "tags"), [(1, 1), (10, 1), (10, 64)])
def test_tagged_fields_of_partitions_have_one_limit_in_a_request(topics, tags):
    """The partitions beside them are walked one by one, whatever topic they are of."""
    section = bytes([tags]) + b"\x05\0" * tags
    entry = struct.pack(">iiqiqi", 1, -1, 5, -1, -1, 9) + section
    head = struct.pack(">iiiibii", -1, 1, 1, 1, 0, 0, -1)

    def body(partitions):
        out = bytearray(head)
        put_count(out, topics, flexible=True)
        for _ in range(topics):
            out += b"\x02t"
            put_count(out, partitions, flexible=True)
            out += entry * partitions + b"\0"
        return bytes(out + b"\x01\x01\0")  # nothing forgotten, no rack, no tags

    most = TAGGED_MAX // (topics * (1 + tags))
    assert decode_fetch(12, body(most), 0).partitions_named == topics * most
    with pytest.raises(MalformedMessage, match="tagged"):
        decode_fetch(12, body(most + 1), 0)


def test_tagged_fields_of_topics_have_the_same_limit():
    section = b"\x40" + b"\x05\0" * 64
    head = struct.pack(">iiiibii", -1, 1, 1, 1, 0, 0, -1)
    most = TAGGED_MAX // 64

    def body(topics):
        out = bytearray(head)
        put_count(out, topics, flexible=True)
        return bytes(out + (b"\x02t\x01" + section) * topics + b"\x01\x01\0")

    assert len(decode_fetch(12, body(most), 0).topics) == most
    with pytest.raises(MalformedMessage, match="tagged"):
        decode_fetch(12, body(most + 1), 0)


@pytest.mark.parametrize("field", ["topic", "rack_id"])
def test_a_string_longer_than_kafkas_is_refused(field):
    for size in (STRING_BYTES_MAX, STRING_BYTES_MAX + 1):
        names = {"topic": "t", "rack_id": "r", field: "x" * size}
        topic = {"topic": names["topic"], "partitions": []}
        body = {"max_wait": 1, "min_bytes": 1, "topics": [topic], "rack_id": names["rack_id"]}
        frame, at = encoded(12, body)
        if size <= STRING_BYTES_MAX:
            assert seen(decode_fetch(12, frame, at)) == by_kio(12, frame, at)
            continue
        with pytest.raises(MalformedMessage, match="a string of more than"):
            decode_fetch(12, frame, at)


@pytest.mark.parametrize("version", range(15, 19))
def test_a_replica_is_known_by_its_tag(version):
    frame, at = one_partition(version)
    assert frame[-1] == 0
    state = struct.pack(">iq", 3, 1) + b"\0"
    tagged = frame[:-1] + b"\x01\x01" + bytes([len(state)]) + state
    assert decode_fetch(version, tagged, at).replica_id == 3
    with pytest.raises(MalformedMessage):
        decode_fetch(version, frame[:-1] + b"\x01\x01\x02ab", at)


@pytest.mark.parametrize("version", [4, 12])
def test_names_that_no_topic_can_have_count_as_many_elements(version):
    def named(topics, size):
        topic = {"topic": "x" * size, "partitions": []}
        frame, at = encoded(version, {"max_wait": 1, "min_bytes": 1, "topics": [topic] * topics})
        return decode_fetch(version, frame, at)

    most = ELEMENTS_MAX // (1 + 32_000 // 64)
    assert len(named(most, 32_000).topics) == most
    with pytest.raises(MalformedMessage, match="limit"):
        named(most + 1, 32_000)
    assert len(named(TOPICS_MAX, 249).topics) == TOPICS_MAX
