"""Goal: committed offsets survive encoding, and foreign bytes are refused.
Method: round trips by Hypothesis; golden bytes; stock protobuf reads the proposal's fields.
"""

from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ledger.errors import CorruptFormat
from ledger.ids import INVALID_DLSN, Dlsn
from subscriptions.committed_offset import (
    CommittedOffset,
    TopicIdPartition,
    decode_advance,
    decode_dlsn,
    encode_advance,
    encode_advances,
    encode_dlsn,
)
from subscriptions.records_pb2 import AdvanceLastCommitDLSN, Subscription
from subscriptions.znodes.znode_format import (
    decode_subscriber,
    encode_subscriber,
    node_name,
    seal,
    subscriber_of,
    unseal,
)

I64 = st.integers(-(2**63), 2**63 - 1)
DLSNS = st.builds(Dlsn, I64, I64, I64)
TEXT = st.text(st.characters(exclude_categories=["Cs"]))
KEYS = st.builds(TopicIdPartition, st.uuids(), st.integers(0, 2**31 - 1))
POSITIONS = st.builds(
    CommittedOffset,
    DLSNS,
    I64,
    st.integers(-1, 2**31 - 1),
    TEXT,
    I64,
    st.integers(-1, 2**63 - 1),
)


@given(KEYS, POSITIONS)
def test_a_position_survives_as_bytes(key, position):
    assert decode_advance(encode_advance(key, position), "/p") == (key, position)


NUMBERS = st.integers(-(2**63), 2**63 - 1) | st.integers(0, 64).map(lambda bits: 2**bits - 1)
ANY_POSITIONS = st.builds(
    CommittedOffset,
    DLSNS | st.just(INVALID_DLSN),
    NUMBERS.filter(lambda n: n < 2**63),
    st.integers(-1, 2**31 - 1),
    TEXT,
    NUMBERS.filter(lambda n: n < 2**63),
    st.integers(-1, 2**63 - 1),
)


@given(st.lists(st.tuples(KEYS, ANY_POSITIONS), max_size=5), st.data())
def test_the_fast_encoder_writes_protobufs_bytes(positions, data):
    topics = [topic for (topic, _), _ in positions]
    positions = [  # that share topics, DLSNs and the rest
        (TopicIdPartition(data.draw(st.sampled_from(topics)), partition), position)
        for (_, partition), position in positions
    ]
    positions = data.draw(st.lists(st.sampled_from(positions))) if positions else []
    assert encode_advances(positions) == [encode_advance(*each) for each in positions]


@given(st.binary())
def test_sealed_bytes_open_again(body):
    assert unseal(seal(body), "/p") == body


@given(st.binary(min_size=1), st.data())
def test_one_flipped_bit_is_noticed(body, data):
    sealed = bytearray(seal(body))
    bit = data.draw(st.integers(0, len(sealed) * 8 - 1))
    sealed[bit // 8] ^= 1 << bit % 8
    with pytest.raises(CorruptFormat, match="/p"):
        unseal(bytes(sealed), "/p")


@given(st.binary())
def test_any_bytes_are_decoded_or_refused_with_the_path(data):
    for decode in (unseal, decode_advance, decode_dlsn, decode_subscriber):
        try:
            decode(data, "/p")
        except CorruptFormat as error:
            assert str(error).startswith("/p: ")


@given(st.text())
def test_names_come_back_and_are_one_safe_part_of_a_path(subscriber):
    name = node_name(subscriber)
    assert subscriber_of(name) == subscriber
    assert name not in ("", ".", "..")
    assert "/" not in name
    assert name.isascii()
    assert name.isprintable()


@given(st.text(), st.text())
def test_different_names_stay_different(one, two):
    assert (node_name(one) == node_name(two)) == (one == two)


def test_a_dlsn_has_distributedlogs_bytes():
    dlsn = Dlsn(7, 42, 3)
    assert encode_dlsn(dlsn) == bytes.fromhex(
        "01 0000000000000007 000000000000002a 0000000000000003"
    )
    assert encode_subscriber(dlsn) == b"AQAAAAAAAAAHAAAAAAAAACoAAAAAAAAAAw=="
    assert decode_subscriber(encode_subscriber(dlsn), "/p") == dlsn


def test_a_dlsn_of_version_0_is_refused():
    with pytest.raises(CorruptFormat):
        decode_dlsn(b"\0" + encode_dlsn(INVALID_DLSN)[1:], "/p")


def test_a_reader_of_the_proposal_finds_its_field():
    body = encode_advance(TopicIdPartition(UUID(int=1), 2), CommittedOffset(Dlsn(7, 42, 3), 9))
    record = AdvanceLastCommitDLSN.FromString(body)
    assert record.commit_dlsn == encode_dlsn(Dlsn(7, 42, 3))
    assert (record.offset, record.partition, record.HasField("leader_epoch")) == (9, 2, False)


def test_unknown_fields_of_a_newer_writer_are_passed_over():
    key, position = TopicIdPartition(UUID(int=1), 2), CommittedOffset(offset=9)
    newer = encode_advance(key, position) + b"\xf8\x07\x01"  # field 127, varint 1
    assert decode_advance(newer, "/p") == (key, position)


def test_a_subscription_in_a_log_segment_is_refused_by_name():
    data = Subscription(name="app", segment_id=12).SerializeToString()
    with pytest.raises(CorruptFormat, match="/p: its position is in log segment 12"):
        decode_subscriber(data, "/p")
