"""Goal: WriteTxnMarkers is decoded as kio decodes it, our tagged fields travel beside Kafka's
fields, and hostile bytes are refused before they take memory.

Method: Hypothesis draws requests. They are encoded by kio's schemas and decoded here, and encoded
here and decoded by kio; then bytes are cut and overwritten.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import Any
from uuid import UUID

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gateway.wire.bounds_check import STRING_BYTES_MAX
from gateway.wire.encode import put_count, struct_writer
from gateway.wire.marker_request import (
    STRUCTS_MAX,
    TAGS_MAX,
    MarkedTopic,
    RequestedMarker,
    decode_markers,
    encode_markers,
)
from gateway.wire.messages import MalformedMessage, decode_request
from gateway.wire.schema import request_class

KEY = 27
QUICK = settings(max_examples=30, suppress_health_check=list(HealthCheck), deadline=None)
VERSIONS = (1, 2)
INT32 = st.integers(-(2**31), 2**31 - 1)
NAMES = st.text("abé漢", max_size=5)
PLAIN_TOPICS = st.tuples(NAMES, st.lists(INT32, max_size=5).map(tuple)).map(
    lambda fields: MarkedTopic(*fields)
)


@st.composite
def owned_topics(draw: st.DrawFn) -> MarkedTopic:
    owned = draw(st.lists(st.tuples(INT32, INT32), max_size=5))
    indexes, epochs = tuple(each[0] for each in owned), tuple(each[1] for each in owned)
    return MarkedTopic(draw(NAMES), indexes, draw(st.uuids()), epochs)


def markers_of(topics: st.SearchStrategy[MarkedTopic], numbers: st.SearchStrategy[int]) -> Any:
    marker = st.tuples(
        st.integers(-(2**63), 2**63 - 1),
        st.integers(-(2**15), 2**15 - 1),
        st.booleans(),
        st.lists(topics, max_size=3),
        INT32,
        st.integers(0, 127),
        numbers,
    )
    return st.lists(marker.map(lambda fields: RequestedMarker(*fields)), max_size=3)


OURS = markers_of(owned_topics() | PLAIN_TOPICS, st.integers(-1, 2**63 - 1))
KAFKAS = markers_of(PLAIN_TOPICS, st.just(-1))


def kafkas_fields(markers: list[RequestedMarker]) -> list[dict[str, Any]]:
    """The markers as kio names their fields, without what Kafka does not have."""
    return [
        {
            "producer_id": each.producer_id,
            "producer_epoch": each.epoch,
            "transaction_result": each.commit,
            "topics": tuple(
                {"name": topic.name, "partition_indexes": tuple(topic.indexes)}
                for topic in each.topics
            ),
            "coordinator_epoch": each.coordinator_epoch,
            "transaction_version": each.version,
        }
        for each in markers
    ]


def at_version(version: int, markers: list[RequestedMarker]) -> list[RequestedMarker]:
    return markers if version >= 2 else [each._replace(version=0) for each in markers]


@pytest.mark.parametrize("version", VERSIONS)
@given(markers=KAFKAS)
@QUICK
def test_a_request_of_kafka_is_decoded_field_by_field(
    version: int, markers: list[RequestedMarker]
) -> None:
    body = bytearray(b"head")
    struct_writer(request_class(KEY, version))(body, {"markers": kafkas_fields(markers)})
    assert decode_markers(version, bytes(body), 4) == at_version(version, markers)


@pytest.mark.parametrize("version", VERSIONS)
@given(markers=OURS)
@QUICK
def test_our_fields_travel_beside_those_of_kafka(
    version: int, markers: list[RequestedMarker]
) -> None:
    body = encode_markers(version, markers)
    assert decode_markers(version, body, 0) == at_version(version, markers)
    read = asdict(decode_request(KEY, version, body, 0))["markers"]
    expected = kafkas_fields(at_version(version, markers))
    for each in expected if version < 2 else ():
        del each["transaction_version"]
    assert list(read) == expected


@given(markers=OURS, data=st.data())
@QUICK
def test_damaged_bytes_are_decoded_or_refused(
    markers: list[RequestedMarker], data: st.DataObject
) -> None:
    body = bytearray(encode_markers(2, markers))
    at = data.draw(st.integers(0, len(body) - 1))
    body[at] = data.draw(st.integers(0, 255))
    try:
        decode_markers(2, bytes(body), 0)
    except MalformedMessage:
        pass
    with pytest.raises(MalformedMessage):
        decode_markers(2, encode_markers(2, markers)[:at], 0)


def test_leader_epochs_of_another_number_of_partitions_are_malformed() -> None:
    topic = MarkedTopic("t", (0, 1), UUID(int=1), (5, 6))
    body = encode_markers(2, [RequestedMarker(1, 0, True, [topic], 3)])
    name_at = body.index(b"\x02t")
    damaged = body[: name_at + 2] + b"\x02" + body[name_at + 7 :]  # one partition, two epochs
    with pytest.raises(MalformedMessage, match="leader epochs"):
        decode_markers(2, damaged, 0)


@pytest.mark.parametrize(
    "body",
    [
        pytest.param(b"\xff\xff\xff\xff\x0f", id="2^32 markers"),
        pytest.param(b"\x00", id="null"),
        pytest.param(b"", id="nothing"),
    ],
)
def test_counts_are_checked_before_memory_is_taken(body: bytes) -> None:
    with pytest.raises(MalformedMessage):
        decode_markers(2, body, 0)


def test_a_topic_name_longer_than_a_string_may_be_is_malformed() -> None:
    for size in (STRING_BYTES_MAX, STRING_BYTES_MAX + 1):
        topic = MarkedTopic("t" * size, (0,))
        body = encode_markers(2, [RequestedMarker(1, 0, True, [topic], 3)])
        if size <= STRING_BYTES_MAX:
            assert decode_markers(2, body, 0)[0].topics == [topic]
            continue
        with pytest.raises(MalformedMessage, match="a string of more than"):
            decode_markers(2, body, 0)


def test_too_many_markers_are_malformed() -> None:
    marker = RequestedMarker(1, 0, True, [], 0)
    assert len(decode_markers(2, encode_markers(2, [marker] * STRUCTS_MAX), 0)) == STRUCTS_MAX
    with pytest.raises(MalformedMessage, match="limit"):
        decode_markers(2, encode_markers(2, [marker] * (STRUCTS_MAX + 1)), 0)


def test_tagged_fields_have_one_limit_in_a_request() -> None:
    marker = encode_markers(2, [RequestedMarker(1, 0, True, [], 3)])[1:-1]
    assert marker[-1] == 0
    marker = marker[:-1] + b"\x40" + b"\x05\0" * 64

    def body(markers: int) -> bytes:
        out = bytearray()
        put_count(out, markers, flexible=True)
        return bytes(out + marker * markers + b"\0")

    most = TAGS_MAX // 64
    assert len(decode_markers(2, body(most), 0)) == most
    with pytest.raises(MalformedMessage, match="tagged"):
        decode_markers(2, body(most + 1), 0)


def test_a_request_may_name_100_000_partitions() -> None:
    topic = MarkedTopic("t", range(100_000), UUID(int=1), [0] * 100_000)
    (marker,) = decode_markers(2, encode_markers(2, [RequestedMarker(1, 0, True, [topic], 3)]), 0)
    assert marker.partitions == 100_000
