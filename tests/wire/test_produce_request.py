"""Goal: a Produce request is decoded as kio decodes it, in every version and whatever its bytes,
and the usual form without kio.

Method: requests encoded by kio's schemas, compared field by field; Hypothesis draws them, cuts them
and overwrites bytes.
"""

from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.wire.messages import MalformedMessage, decode_with, encode_request_body, request_codec
from gateway.wire.produce_request import ELEMENTS_MAX, ProduceBody, decode_produce

VERSIONS = range(3, 14)
NAMES = st.text(st.characters(codec="utf-8"), max_size=140)
RECORDS = (
    st.none()
    | st.binary(max_size=40)
    | st.sampled_from([126, 127, 16_382, 16_383, 70_000]).map(bytes)
)
IDS = st.just(UUID(int=0)) | st.uuids()
PARTITIONS = st.fixed_dictionaries({"index": st.integers(-(2**31), 2**31 - 1), "records": RECORDS})
TOPICS = st.fixed_dictionaries(
    {
        "name": NAMES,
        "topic_id": IDS,
        "partition_data": st.just([]) | st.lists(PARTITIONS, min_size=1, max_size=2),
    }
)
ONE = st.fixed_dictionaries(
    {
        "name": NAMES,
        "topic_id": IDS,
        "partition_data": st.lists(PARTITIONS, min_size=1, max_size=1),
    }
)
BODIES = st.fixed_dictionaries(
    {
        "transactional_id": st.just(None) | st.text(max_size=3),
        "acks": st.integers(-(2**15), 2**15 - 1),
        "timeout": st.integers(0, 2**31 - 1),
        "topic_data": st.lists(ONE, min_size=1, max_size=1) | st.lists(TOPICS, max_size=3),
    }
)


def encoded(version, body):
    return bytes(encode_request_body(0, version, body))


def seen(version, body):
    def part(each):
        return each.index, None if each.records is None else bytes(each.records)

    def named(topic):  # kio has None for the id of zeros
        return topic.name if version < 13 else topic.topic_id or UUID(int=0)

    topics = [(named(each), list(map(part, each.partition_data))) for each in body.topic_data]
    return body.transactional_id, body.acks, topics


def by_kio(version, raw):
    return seen(version, decode_with(request_codec(0, version), raw, 0, ELEMENTS_MAX))


@pytest.mark.parametrize("version", VERSIONS)
@settings(deadline=None, max_examples=60)
@given(body=BODIES)
def test_it_is_decoded_as_kio_decodes_it(version, body):
    raw = encoded(version, body)
    whole = b"head" + raw + b"tail"
    for buffer in (whole, memoryview(whole)):
        assert seen(version, decode_produce(version, buffer, 4)) == by_kio(version, raw)


def usual(name="orders", size=16_384):
    part = {"index": 3, "records": bytes(size)}
    topic = {"name": name, "topic_id": UUID(int=7), "partition_data": [part]}
    return {"transactional_id": None, "acks": -1, "timeout": 1, "topic_data": [topic]}


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("size", [1, 126, 127, 16_382, 16_383, 1_000_000])
def test_the_usual_form_is_read_without_kio(version, size):
    raw = encoded(version, usual(size=size))
    body = decode_produce(version, raw, 0)
    assert isinstance(body, ProduceBody)
    assert seen(version, body) == by_kio(version, raw)


@pytest.mark.parametrize("version", VERSIONS)
@settings(deadline=None, max_examples=120)
@given(body=BODIES, data=st.data())
def test_damaged_bytes_are_refused_or_decoded_as_kio_decodes_them(version, body, data):
    raw = encoded(version, body)
    damaged = bytearray(raw[: data.draw(st.integers(0, len(raw)) | st.just(len(raw)))])
    for _ in range(data.draw(st.integers(0, 3))):
        if damaged:
            at = data.draw(st.integers(0, min(len(damaged), 200) - 1) | st.just(len(damaged) - 1))
            damaged[at] = data.draw(
                st.sampled_from([0, 1, 2, 3, 127, 128, 255]) | st.integers(0, 255)
            )
    try:
        expected = by_kio(version, bytes(damaged))
    except MalformedMessage:
        with pytest.raises(MalformedMessage):
            decode_produce(version, bytes(damaged), 0)
        return
    assert seen(version, decode_produce(version, bytes(damaged), 0)) == expected
