"""Goal: bytes that are not a request are refused: they cause no abort, no wait and no allocation.

Method: a valid request of every API and version of kio, with every field filled, is truncated at
every byte, and overwritten at every byte with false counts and lengths. A request whose false count
is not found aborts the whole test process. Hypothesis draws random bytes for the rest.
"""

from __future__ import annotations

import resource
from itertools import chain, count, islice, repeat

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kio.schema.index import api_key_map, schema_name_map
from kio.static.constants import EntityType

from gateway.handlers.api import Api, Peer
from gateway.server.dispatch import Dispatcher, RequestRefused
from gateway.wire.bounds_check import ELEMENTS_MAX, STRING_BYTES_MAX, OversizedMessage, Tally
from gateway.wire.messages import (
    MalformedMessage,
    decode_request,
    decode_with,
    encode_request,
    request_codec,
)
from gateway.wire.produce_reply import PartitionProduced, _one_partition, encode_produce
from gateway.wire.schema import shape_of

PEER = Peer("10.0.0.1", 50_000, "10.0.0.9", 9092)
MESSAGES = [
    (key, version)
    for key, name in api_key_map.items()
    for version, types in schema_name_map[name].items()
    if EntityType.request in types
]
VALUES = {
    "string": "abc",
    "bytes": b"xyz12345",
    "records": b"r" * 20,
    "uuid": b"u" * 16,
    "bool": True,
    "error_code": 3,
    "float64": 1.5,
}
LIES = [
    b"\xff",
    b"\x00",
    b"\xff\xff",
    b"\x7f\xff\xff\xff",
    b"\x00\x0f\xff\xff",
    b"\xff\xff\xff\x00",
    b"\xff\xff\xff\xff\x07",
    b"\x80\x80\x80\x80\x80",
    b"\xff" * 10,
]


SHORT_TEXTS = repeat(VALUES["string"])


def sample(entity, texts=SHORT_TEXTS):
    """Return a body with every field filled and two elements in every array.

    Each string field takes the next of `texts`.
    """
    shape = shape_of(entity)
    filled = {}
    for field in (*shape.fields, *shape.tagged):
        if field.struct:
            one = sample(field.struct, texts)
        else:
            one = next(texts) if field.kind == "string" else VALUES.get(field.kind, 5)
        filled[field.name] = [one, one] if field.array else one
    return filled


def valid(key, version):
    """Return a frame and the offset of its body."""
    codec = request_codec(key, version)
    frame = encode_request(key, version, 1, "me", sample(codec.entity))
    return frame, 13 if codec.flexible else 12


def dispatcher_for(key, version):
    api = Api(key=key, name="it", versions=range(version, version + 1), handle=lambda *_: None)
    return Dispatcher({key: api}, None)


@pytest.mark.parametrize(("key", "version"), MESSAGES)
def test_a_request_cut_at_any_byte_is_refused(key, version):
    frame, _ = valid(key, version)
    dispatcher = dispatcher_for(key, version)
    request, _ = dispatcher.open(frame, PEER)
    assert request.client_id == "me"
    for size in range(len(frame)):
        with pytest.raises(RequestRefused):
            dispatcher.open(frame[:size], PEER)


@pytest.mark.parametrize(("key", "version"), MESSAGES)
def test_a_request_that_lies_at_any_byte_is_read_or_refused(key, version):
    frame, start = valid(key, version)
    entity = request_codec(key, version).entity
    for position in range(start, len(frame)):
        for lie in LIES:
            lying = frame[:position] + lie + frame[position + len(lie) :]
            try:
                assert isinstance(decode_request(key, version, lying, start), entity)
            except MalformedMessage:
                pass


@pytest.mark.parametrize(("key", "version"), [(0, 8), (0, 11), (3, 4), (3, 12), (1, 11), (19, 5)])
def test_a_count_beyond_the_bytes_takes_no_memory(key, version):
    frame, start = valid(key, version)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for position in range(start, len(frame)):
        for claim in (b"\x7f\xff\xff\xff", b"\xff\xff\xff\xff\x07"):
            with_claim = frame[:position] + claim + frame[position + len(claim) :]
            try:
                decode_request(key, version, with_claim, start)
            except MalformedMessage:
                pass
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 16 * 1024


def test_more_elements_than_an_honest_request_has_are_refused():
    empty_topic = b"\x01\x01\0"  # no name, no partitions, no tags
    body = b"\0" + b"\xff\xff" + bytes(4)  # transactional id, acks, timeout
    count = ELEMENTS_MAX + 2  # compact: one more than there are
    varint = bytes([count & 0x7F | 0x80, count >> 7 & 0x7F | 0x80, count >> 14])
    with pytest.raises(MalformedMessage, match="more elements"):
        decode_request(0, 9, body + varint + empty_topic * (ELEMENTS_MAX + 1) + b"\0", 0)


def test_elements_of_nested_arrays_are_counted_together():
    partition = b"\0\0\0\0\x01\0"
    partitions = 1000
    topic = b"\x01" + bytes([(partitions + 1) & 0x7F | 0x80, (partitions + 1) >> 7])
    topic += partition * partitions + b"\0"
    topics = 300
    body = b"\0" + b"\xff\xff" + bytes(4) + bytes([(topics + 1) & 0x7F | 0x80, (topics + 1) >> 7])
    with pytest.raises(MalformedMessage, match="more elements"):
        decode_request(0, 9, body + topic * topics + b"\0", 0)


@pytest.mark.parametrize(
    ("key", "version"), [m for m in MESSAGES if request_codec(*m).flexible and m[0] != 18]
)
def test_a_string_longer_than_a_short_is_refused_in_every_field(key, version):
    """Kafka refuses it as well: "string field X had invalid length"."""
    entity = request_codec(key, version).entity
    places = count()
    sample(entity, map(str, places))
    for place in range(next(places)):
        for size in (STRING_BYTES_MAX, STRING_BYTES_MAX + 1):
            texts = chain(islice(SHORT_TEXTS, place), ["x" * size], SHORT_TEXTS)
            body = sample(entity, texts)
            frame = encode_request(key, version, 1, "me", body)
            if size <= STRING_BYTES_MAX:
                decode_request(key, version, frame, 13)
                continue
            with pytest.raises(MalformedMessage, match="a string of more than"):
                decode_request(key, version, frame, 13)


def test_bytes_may_be_longer_than_a_string():
    body = {"group_id": "g", "assignments": [{"member_id": "m", "assignment": b"x" * 100_000}]}
    frame = encode_request(14, 5, 1, "me", body)
    assert len(decode_request(14, 5, frame, 13).assignments[0].assignment) == 100_000


@pytest.mark.parametrize(("tags", "refused"), [(5, False), (6, True)])
def test_unknown_tagged_fields_count_as_elements(tags, refused):
    """A walk over them takes as long as one over elements: 100 topics with 64 tags are 6,500."""
    section = bytes([tags]) + b"".join(bytes([20 + each, 0]) for each in range(tags))
    topics = b"\x02t" + section
    body = b"\x65" + topics * 100 + b"\x01\x01\x01\0"  # 100 topics, flags, no tags of the body
    codec = request_codec(3, 9)
    tally = Tally(600)
    if refused:
        with pytest.raises(OversizedMessage, match="too many tagged fields"):
            codec.walk(body, 0, tally)
        assert len(tally.cuts) < 600
        return
    assert len(decode_with(codec, body, 0, 600).topics) == 100


@settings(deadline=None)
@given(st.binary(max_size=400))
def test_random_bytes_are_refused_or_a_request_of_that_kind(noise):
    for key, version in ((0, 3), (0, 11), (1, 17), (3, 12), (11, 9), (18, 3)):
        head = key.to_bytes(2, "big") + version.to_bytes(2, "big") + b"\0\0\0\1\xff\xff"
        try:
            request, _ = dispatcher_for(key, version).open(head + noise, PEER)
        except RequestRefused:
            continue
        assert (request.key, request.version) == (key, version)


@pytest.mark.parametrize("header", range(10))
def test_a_header_cut_short_is_refused(header):
    frame, _ = valid(12, 0)
    with pytest.raises(RequestRefused):
        dispatcher_for(12, 0).open(frame[:header], PEER)


@pytest.mark.parametrize("length", [-2, -(2**15), 2**15 - 1])
def test_a_client_id_of_impossible_length_is_refused(length):
    frame, _ = valid(12, 0)
    lying = frame[:8] + length.to_bytes(2, "big", signed=True) + frame[10:]
    with pytest.raises(RequestRefused):
        dispatcher_for(12, 0).open(lying, PEER)


def test_a_client_id_that_is_no_text_is_refused():
    frame, _ = valid(12, 0)
    with pytest.raises(RequestRefused):
        dispatcher_for(12, 0).open(frame[:10] + b"\xff\xfe" + frame[12:], PEER)


@pytest.mark.parametrize(
    "tags",
    [
        b"\xff\xff\xff\xff\x07",  # 2^31 tags
        b"\xff\xff\xff\xff\xff\x01",  # a varint of six bytes
        b"\x41" + b"\x00\x00" * 65,  # more than any client sends
        b"\x01\x00\xff\xff\xff\xff\x07",  # a tag of 2 GiB
        b"\x01\x00\x7f",  # a tag beyond the end
        b"\x80",
        b"",
    ],
)
def test_a_header_with_impossible_tags_is_refused(tags):
    frame, start = valid(3, 12)
    with pytest.raises(RequestRefused):
        dispatcher_for(3, 12).open(frame[: start - 1] + tags, PEER)


def test_unknown_header_tags_are_skipped():
    frame, start = valid(3, 12)
    tagged = frame[: start - 1] + b"\x02\x00\x03abc\x63\x00" + frame[start:]
    request, _ = dispatcher_for(3, 12).open(tagged, PEER)
    assert request.body.topics[0].name == "abc"


@pytest.mark.parametrize(
    ("key", "version"), [m for m in MESSAGES if request_codec(*m).flexible and m[0] != 18]
)
def test_unknown_body_tags_are_skipped(key, version):
    codec = request_codec(key, version)
    frame = encode_request(key, version, 1, "me", {})
    assert frame[-1] == 0  # no tags at the end of the body
    tagged = frame[:-1] + b"\x02\xe7\x07\x03abc\xe8\x07\x00"
    assert decode_request(key, version, tagged, 13) == codec.read(frame, 13)[0]


def test_unknown_tags_inside_an_array_are_skipped_beside_known_ones():
    body = sample(request_codec(1, 12).entity)
    frame = encode_request(1, 12, 1, None, body)
    honest = decode_request(1, 12, frame, 11)
    # The cluster id is tag 0 of the body: another tag goes in front of it and one behind.
    known = b"\x01\x00\x04\x04abc"
    assert frame.endswith(known)
    tagged = frame[: -len(known)] + b"\x03\x00\x04\x04abc\x05\x01x\x06\x00"
    assert decode_request(1, 12, tagged, 11) == honest


@pytest.mark.parametrize("size", [0, 1, 3, 5])
def test_a_known_tag_of_another_size_than_its_value_is_refused(size):
    frame = encode_request(1, 12, 1, None, sample(request_codec(1, 12).entity))
    known = b"\x01\x00\x04\x04abc"
    assert frame.endswith(known)
    lying = frame[: -len(known)] + b"\x01\x00" + bytes([size]) + b"\x04abc" + b"x"
    with pytest.raises(MalformedMessage):
        decode_request(1, 12, lying, 11)


@pytest.mark.parametrize(
    ("version", "empty", "null"),
    [(5, b"\0\0\0\0", b"\xff\xff\xff\xff"), (7, b"\x01\0", b"\0\0")],
)
def test_null_for_an_array_that_must_be_there_is_refused(version, empty, null):
    """Kafka refuses it as well. kio decodes it as None, for which no handler is prepared."""
    body = {**sample(request_codec(2, version).entity), "topics": []}
    frame = encode_request(2, version, 1, "me", body)
    assert frame.endswith(empty)
    with pytest.raises(RequestRefused, match="null"):
        dispatcher_for(2, version).open(frame.removesuffix(empty) + null, PEER)


def test_an_api_may_admit_fewer_elements():
    api = Api(key=3, name="it", versions=range(1, 2), handle=lambda *_: None, elements_max=10)
    dispatcher = Dispatcher({3: api}, None)
    frames = [
        encode_request(3, 1, 1, "me", {"topics": [{"name": "t"}] * count}) for count in (10, 11)
    ]
    request, _ = dispatcher.open(frames[0], PEER)
    assert len(request.body.topics) == 10
    with pytest.raises(RequestRefused, match="elements"):
        dispatcher.open(frames[1], PEER)


def test_long_client_ids_and_topic_names_are_not_kept():
    """A client chooses both, in up to 32,767 bytes. Thousands of them are kept for others."""
    api = Api(key=3, name="it", versions=range(1, 2), handle=lambda *_: None)
    dispatcher = Dispatcher({3: api}, None)
    _one_partition.clear()
    for number in range(20):
        long = f"{number:02}" + "n" * 32_000
        request, _ = dispatcher.open(encode_request(3, 1, 1, long, {"topics": []}), PEER)
        assert request.client_id == long
        for version in (8, 12):
            encode_produce(version, 1, [(long, [PartitionProduced(0, 3)])])
    kept = sum(map(len, dispatcher._client_ids)) + sum(map(len, _one_partition.values()))
    assert kept < 32_000
    request, _ = dispatcher.open(encode_request(3, 1, 1, "short", {"topics": []}), PEER)
    assert list(dispatcher._client_ids) == [b"short"]


def test_null_for_an_array_that_may_be_null_is_read():
    frame = encode_request(3, 8, 1, "me", {**sample(request_codec(3, 8).entity), "topics": None})
    request, _ = dispatcher_for(3, 8).open(frame, PEER)
    assert request.body.topics is None
