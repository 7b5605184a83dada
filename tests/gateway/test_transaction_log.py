"""Goal: records of the transaction log are Kafka's, byte for byte, and damage is a typed error.

Method: records that Apache Kafka 4.3 wrote, as bytes; every state by Hypothesis; every prefix,
changed bytes, and lengths that no record has.
"""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.core.transaction_log import (
    ID_BYTES_MAX,
    decode_key,
    decode_value,
    encode_key,
    encode_value,
    value_bytes,
)
from gateway.core.transaction_states import (
    PREPARED,
    TopicPartition,
    TransactionMetadata,
    TransactionState,
    coordinator_partition,
)
from ledger.errors import CorruptFormat

# Written by Apache Kafka 4.3 for one commit by librdkafka.
OF_KAFKA = (
    "000000000000000000000000ea600000000001a20930e882ffffffffffffffff0100080000000000000000",
    "000000000000000000000000ea600102076f7264657273020000000000000001a20930ea40000001a20930ea40"
    "0100080000000000000000",
    "000000000000000000000000ea600202076f7264657273020000000000000001a20930eb93000001a20930ea40"
    "0100080000000000000000",
    "000000000000000000000000ea600401000001a20930ebb8000001a20930ea400100080000000000000000",
)

INT64 = st.integers(-(2**63), 2**63 - 1)
IDS = st.integers(0, 2**63 - 1)
PARTITIONS = st.frozensets(
    st.builds(TopicPartition, st.text(min_size=1, max_size=20), st.integers(0, 2**31 - 1)),
    max_size=12,
)


@st.composite
def metadata_of(draw):
    state = draw(st.sampled_from(TransactionState))
    empty = state is TransactionState.EMPTY
    return TransactionMetadata(
        transactional_id=draw(st.text(min_size=1, max_size=30)),
        producer_id=draw(IDS),
        epoch=draw(st.integers(0, 2**15 - 1)),
        previous_producer_id=draw(st.just(-1) | IDS),
        next_producer_id=draw(IDS) if state in PREPARED and draw(st.booleans()) else -1,
        timeout_ms=draw(st.integers(1, 2**31 - 1)),
        state=state,
        partitions=frozenset() if empty else draw(PARTITIONS),
        started_ms=draw(INT64),
        updated_ms=draw(INT64),
        version=draw(st.integers(0, 2)),
        tagged=draw(st.just(()) | st.just(((3, b"\0\1"), (200, b"later")))),
    )


def one(partitions=2):
    return TransactionMetadata(
        transactional_id="pay",
        producer_id=1_000,
        epoch=7,
        previous_producer_id=999,
        next_producer_id=1_001,
        timeout_ms=10_000,
        state=TransactionState.PREPARE_COMMIT,
        partitions=frozenset(TopicPartition("orders", at) for at in range(partitions)),
        started_ms=1,
        updated_ms=2,
        version=2,
    )


@settings(max_examples=60, deadline=None)
@given(metadata_of())
def test_version_1_returns_what_was_stored(metadata):
    assert decode_key(encode_key(metadata.transactional_id)) == metadata.transactional_id
    stored = encode_value(metadata, 1)
    assert decode_value(metadata.transactional_id, stored) == metadata
    assert len(stored) <= value_bytes(metadata)


@settings(max_examples=60, deadline=None)
@given(metadata_of())
def test_version_0_returns_all_but_the_tagged_fields(metadata):
    decoded = decode_value(metadata.transactional_id, encode_value(metadata, 0))
    assert (decoded.previous_producer_id, decoded.next_producer_id) == (-1, -1)
    assert (decoded.version, decoded.tagged) == (0, ())
    same = ("producer_id", "epoch", "timeout_ms", "state", "partitions", "started_ms", "updated_ms")
    for name in same:
        assert getattr(decoded, name) == getattr(metadata, name)


def test_what_kafka_wrote_is_read_and_written_again_byte_for_byte():
    assert encode_key("pay") == bytes.fromhex("00000003706179")
    seen = []
    for hexadecimal in OF_KAFKA:
        value = bytes.fromhex("0001" + hexadecimal)
        metadata = decode_value("pay", value)
        assert encode_value(metadata, 1) == value
        assert (metadata.producer_id, metadata.epoch, metadata.timeout_ms) == (0, 0, 60_000)
        seen.append((metadata.state.kafka_name, set(metadata.partitions)))
    orders = {TopicPartition("orders", 0)}
    states = ("Empty", "Ongoing", "PrepareCommit", "CompleteCommit")
    assert seen == list(zip(states, (set(), orders, orders, set()), strict=True))


def test_an_empty_state_stores_null_for_its_partitions():
    empty = TransactionMetadata(transactional_id="a", producer_id=5, timeout_ms=1, updated_ms=2)
    times = "0000000000000002ffffffffffffffff"
    head = "0000000000000005ffff0000000100"
    assert encode_value(empty, 0).hex() == "0000" + head + "ffffffff" + times
    assert encode_value(empty, 1).hex() == "0001" + head + "00" + times + "00"


@pytest.mark.parametrize("version", [0, 1])
def test_every_prefix_and_every_longer_value_is_refused(version):
    whole = encode_value(one(), version)
    for size in range(len(whole)):
        with pytest.raises(CorruptFormat, match="pay"):
            decode_value("pay", whole[:size])
    with pytest.raises(CorruptFormat, match="extra"):
        decode_value("pay", whole + b"\0")


@pytest.mark.parametrize("version", [0, 1])
def test_a_changed_byte_gives_another_state_or_the_typed_error(version):
    whole = encode_value(one(), version)
    refused = 0
    for at in range(len(whole)):
        for value in (0, 1, 0x7F, 0x80, 0xFF):
            damaged = whole[:at] + bytes((value,)) + whole[at + 1 :]
            try:
                assert isinstance(decode_value("pay", damaged), TransactionMetadata)
            except CorruptFormat:
                refused += 1
    assert refused > 20


@settings(max_examples=60, deadline=None)
@given(st.binary(max_size=200))
def test_random_bytes_give_a_state_or_the_typed_error(data):
    for read in (decode_key, lambda given: decode_value("a", given)):
        try:
            read(data)
        except CorruptFormat as error:
            assert "transaction log" in str(error)


@pytest.mark.parametrize("version", [2, 7, -1])
def test_a_newer_version_is_refused_with_its_number(version):
    newer = version.to_bytes(2, "big", signed=True) + encode_value(one(), 1)[2:]
    with pytest.raises(CorruptFormat, match=f"version {version}"):
        decode_value("pay", newer)
    with pytest.raises(CorruptFormat, match=f"version {version}"):
        decode_key(version.to_bytes(2, "big", signed=True) + encode_key("pay")[2:])


def test_a_count_beyond_the_value_allocates_nothing():
    head = encode_value(one(0), 0)[:17]
    with pytest.raises(CorruptFormat, match="truncated"):
        decode_value("pay", head + (2**31 - 1).to_bytes(4, "big"))
    named = head + (1).to_bytes(4, "big") + b"\0\1t" + (2**31 - 1).to_bytes(4, "big")
    with pytest.raises(CorruptFormat, match="truncated"):
        decode_value("pay", named + bytes(16))


def test_an_id_of_32_KiB_fits_and_its_partition_is_that_of_java():
    longest = "x" * ID_BYTES_MAX
    assert decode_key(encode_key(longest)) == longest
    # Java's String.hashCode of these: 96354, -1092130000 and, for the surrogate pair, 1772899.
    assert coordinator_partition("abc", 50) == 96354 % 50
    assert coordinator_partition("\N{GRINNING FACE}", 2**31) == 0xD83D * 31 + 0xDE00
    assert coordinator_partition("polygenelubricants", 50) == 0  # its hash is -2^31


def test_the_names_of_states_are_those_of_kafkas_tools():
    names = "Empty Ongoing PrepareCommit PrepareAbort CompleteCommit CompleteAbort Dead"
    assert [state.kafka_name for state in TransactionState] == [
        *names.split(),
        "PrepareEpochFence",
    ]
