"""Goal: a ListOffsets request is decoded as kio decodes it, in every version, hostile bytes are
refused before they take memory, and the partitions of a long one are not decoded in one step.

Method: requests encoded by kio's schemas, compared field by field; Hypothesis draws them, cuts them
and overwrites bytes.
"""

import struct
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.wire.body_reader import TAGGED_MAX, TOPICS_MAX
from gateway.wire.bounds_check import STRING_BYTES_MAX
from gateway.wire.encode import put_count
from gateway.wire.list_offsets_request import ELEMENTS_MAX, decode_list_offsets
from gateway.wire.messages import MalformedMessage, decode_request, encode_request_body

VERSIONS = range(1, 12)
INT32 = st.integers(-(2**31), 2**31 - 1)
INT64 = st.integers(-(2**63), 2**63 - 1)
PARTITIONS = st.fixed_dictionaries(
    {"partition_index": INT32, "current_leader_epoch": INT32, "timestamp": INT64}
)
TOPICS = st.fixed_dictionaries(
    {
        "name": st.text(st.characters(codec="utf-8"), max_size=20),
        "partitions": st.lists(PARTITIONS, max_size=4),
    }
)
BODIES = st.fixed_dictionaries(
    {
        "replica_id": st.just(-1) | INT32,
        "isolation_level": st.integers(0, 2),
        "topics": st.lists(TOPICS, max_size=3),
    }
)


def encoded(version, body):
    return bytes(encode_request_body(2, version, body))


def naming(topics, partitions):
    """Return the fields of a request of `topics` topics with `partitions` partitions each."""
    asked = [{"partition_index": at, "timestamp": -1} for at in range(partitions)]
    return {"replica_id": -1, "topics": [{"name": "t", "partitions": asked}] * topics}


def by_kio(version, raw):
    """Return what kio decodes, in the form of `seen`."""
    body = decode_request(2, version, raw, 0)
    topics = [
        (
            topic.name,
            [
                (each.partition_index, getattr(each, "current_leader_epoch", -1), each.timestamp)
                for each in topic.partitions
            ],
        )
        for topic in body.topics
    ]
    committed = getattr(body, "isolation_level", 0) == 1 and body.replica_id == -1
    return committed, topics


def seen(asked):
    return asked.committed, [(topic.name, list(topic)) for topic in asked.topics]


@pytest.mark.parametrize("version", VERSIONS)
@settings(deadline=None, max_examples=30)
@given(body=BODIES)
def test_it_is_decoded_as_kio_decodes_it(version, body):
    raw = encoded(version, body)
    asked = decode_list_offsets(version, memoryview(b"head" + raw + b"tail"), 4)
    assert seen(asked) == by_kio(version, raw)
    assert list(map(len, asked.topics)) == [len(topic["partitions"]) for topic in body["topics"]]


@pytest.mark.parametrize("version", [2, 11])
def test_the_isolation_level_counts_for_clients_only(version):
    for replica, committed in ((-1, True), (-2, False), (0, False), (7, False)):
        raw = encoded(version, {"replica_id": replica, "isolation_level": 1, "topics": []})
        assert decode_list_offsets(version, raw, 0).committed is committed


@pytest.mark.parametrize("version", VERSIONS)
@settings(deadline=None, max_examples=60)
@given(body=BODIES, data=st.data())
def test_damaged_bytes_are_refused_or_decoded_as_kio_decodes_them(version, body, data):
    raw = encoded(version, body)
    damaged = bytearray(raw[: data.draw(st.integers(0, len(raw)))])
    for _ in range(data.draw(st.integers(0, 3))):
        if damaged:
            damaged[data.draw(st.integers(0, len(damaged) - 1))] = data.draw(st.integers(0, 255))
    try:
        expected = by_kio(version, bytes(damaged))
    except MalformedMessage:
        with pytest.raises(MalformedMessage):
            decode_list_offsets(version, bytes(damaged), 0)
        return
    assert seen(decode_list_offsets(version, bytes(damaged), 0)) == expected


@pytest.mark.parametrize("version", [1, 4, 6, 11])
def test_the_partitions_of_a_long_request_are_decoded_when_they_are_read(version):
    raw = encoded(version, naming(10, 10_000))
    before = sys.getallocatedblocks()
    asked = decode_list_offsets(version, raw, 0)
    assert sys.getallocatedblocks() - before < 1_000
    assert sum(map(len, asked.topics)) == 100_000
    assert list(asked.topics[9])[-1] == (9_999, -1, -1)


def test_more_elements_than_a_request_may_have_are_refused():
    most = ELEMENTS_MAX // 10 - 1
    assert sum(map(len, decode_list_offsets(1, encoded(1, naming(10, most)), 0).topics)) == 109_990
    with pytest.raises(MalformedMessage, match="limit"):
        decode_list_offsets(1, encoded(1, naming(10, most + 1)), 0)


def test_more_topics_than_are_decoded_in_one_step_are_refused():
    assert len(decode_list_offsets(1, encoded(1, naming(TOPICS_MAX, 0)), 0).topics) == TOPICS_MAX
    with pytest.raises(MalformedMessage, match="topics"):
        decode_list_offsets(1, encoded(1, naming(TOPICS_MAX + 1, 0)), 0)


@pytest.mark.parametrize("count", [-1, -(2**31), 2**31 - 1])
def test_a_count_that_the_bytes_cannot_hold_is_refused(count):
    raw = encoded(1, naming(1, 1))
    for at in (4, 11):  # of the topics, and of the partitions
        assert raw[at : at + 4] == struct.pack(">i", 1)
        with pytest.raises(MalformedMessage):
            decode_list_offsets(1, raw[:at] + struct.pack(">i", count) + raw[at + 4 :], 0)


def test_tagged_fields_of_partitions_are_dropped_up_to_a_limit():
    def body(partitions):
        out = bytearray(struct.pack(">ib", -1, 0) + b"\x02\x02t")
        put_count(out, partitions, flexible=True)
        return bytes(out + (struct.pack(">iiq", 3, 5, 7) + b"\x01\x05\0") * partitions + b"\0\0")

    most = TAGGED_MAX // 2
    _, [(_, found)] = seen(decode_list_offsets(6, body(most), 0))
    assert found == [(3, 5, 7)] * most
    with pytest.raises(MalformedMessage, match="tagged"):
        decode_list_offsets(6, body(most + 1), 0)


def test_a_name_longer_than_kafkas_is_refused():
    for size in (STRING_BYTES_MAX, STRING_BYTES_MAX + 1):
        raw = encoded(6, {"replica_id": -1, "topics": [{"name": "x" * size, "partitions": []}]})
        if size <= STRING_BYTES_MAX:
            assert seen(decode_list_offsets(6, raw, 0)) == by_kio(6, raw)
            continue
        with pytest.raises(MalformedMessage, match="a string of more than"):
            decode_list_offsets(6, raw, 0)


@pytest.mark.parametrize("version", [1, 6])
def test_names_that_no_topic_can_have_count_as_many_elements(version):
    """Work for each of their bytes would hold the event loop for long."""

    def named(topics, size):
        topic = {"name": "x" * size, "partitions": []}
        return encoded(version, {"replica_id": -1, "topics": [topic] * topics})

    most = ELEMENTS_MAX // (1 + 32_000 // 64)
    assert len(decode_list_offsets(version, named(most, 32_000), 0).topics) == most
    with pytest.raises(MalformedMessage, match="limit"):
        decode_list_offsets(version, named(most + 1, 32_000), 0)
    valid = decode_list_offsets(version, named(TOPICS_MAX, 249), 0)
    assert len(valid.topics) == TOPICS_MAX
    assert valid.held_bytes == decode_list_offsets(version, named(TOPICS_MAX, 1), 0).held_bytes
