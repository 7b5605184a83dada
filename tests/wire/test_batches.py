"""Goal: a client's batch is stored unchanged or refused with Kafka's code, and Kafka's readers
accept the fields that the broker writes. Method: the reference vector, batches built by aiokafka,
each refusal once, searches for timestamps against a plain scan.
"""

import struct

import pytest
from aiokafka.record.default_records import DefaultRecordBatch
from hypothesis import given
from hypothesis import strategies as st
from kio.schema.errors import ErrorCode

from gateway.wire import batches
from gateway.wire import record_scan as inside
from gateway.wire.batches import BatchRefused, check_batch, with_append_time, with_offset
from gateway.wire.steps import result_of
from tests.batches import HEADER_BYTES, built_batch, plain_batch, raw_batch, record

VECTOR = bytes.fromhex(
    "000000000000000000000039ffffffff02ebf1884b00000000000000000000000003e8"
    "00000000000003e8ffffffffffffffffffffffffffff000000010e00000001026100"
)
BYTES_MAX = 1_048_588
CODECS = {0: "none", 1: "gzip", 2: "snappy", 3: "lz4", 4: "zstd"}
timestamps = st.lists(st.integers(0, 10_000), min_size=1, max_size=20)


def check(batch, version=13, bytes_max=BYTES_MAX):
    return check_batch(memoryview(batch), version, bytes_max)


def refusal(batch, version=13, bytes_max=BYTES_MAX):
    with pytest.raises(BatchRefused) as refused:
        check(batch, version, bytes_max)
    assert str(refused.value), "clients are told why"
    return refused.value.code


def times_of(batch):
    """Return (timestamp, offset) of each record, as a client decodes the batch."""
    reader = DefaultRecordBatch(bytes(batch))
    assert reader.validate_crc()
    return [(each.timestamp, each.offset) for each in reader]


def first_at_or_after(batch, timestamp, start):
    return result_of(inside.first_at_or_after(batch, timestamp, start, BYTES_MAX))


def record_of_timestamp_max(batch, start):
    return result_of(inside.record_of_timestamp_max(batch, start, BYTES_MAX))


# -- taken ----------------------------------------------------------------------------------------


def test_the_reference_vector_is_read_field_by_field():
    header = check(VECTOR)
    assert header == (0, 57, -1, 2, 0xEBF1884B, 0, 0, 1000, 1000, -1, -1, -1, 1)
    assert batches.timestamp_max(memoryview(VECTOR)) == 1000


def test_our_own_hand_made_batches_are_the_reference_vector():
    assert raw_batch(record(0, 0, None, b"a")) == VECTOR


@pytest.mark.parametrize("codec", CODECS, ids=CODECS.get)
def test_aiokafkas_batches_of_every_codec_are_taken(codec):
    header = check(built_batch([5, 9, 7], codec=codec, size=300))
    assert header.attributes & batches.CODEC_MASK == codec
    assert (header.records, header.max_timestamp) == (3, 9)


def test_the_smallest_records_there_are_fit():
    nothing = b"".join(record(at, 0, None, None) for at in range(10))
    assert len(nothing) == 10 * batches.RECORD_BYTES_MIN
    assert check(raw_batch(nothing, 10)).records == 10


def test_an_idempotent_batch_is_taken_with_its_sequence():
    header = check(raw_batch(bytes(7), producer=3, epoch=0, sequence=2**31 - 1))
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (3, 0, 2**31 - 1)


def test_a_batch_of_exactly_the_greatest_size_is_taken():
    batch = plain_batch([1, 2])
    assert check(batch, bytes_max=len(batch)).records == 2


# -- refused --------------------------------------------------------------------------------------

REFUSALS = {
    "no bytes": (b"", ErrorCode.invalid_record),
    "less than a header": (VECTOR[:60], ErrorCode.corrupt_message),
    "a cut batch": (VECTOR[:-1], ErrorCode.corrupt_message),
    "bytes behind it": (VECTOR + b"\0", ErrorCode.invalid_record),
    "two batches": (VECTOR + VECTOR, ErrorCode.invalid_record),
    "magic 0": (raw_batch(bytes(7), magic=0), ErrorCode.invalid_record),
    "magic 1": (raw_batch(bytes(7), magic=1), ErrorCode.invalid_record),
    "magic 3": (raw_batch(bytes(7), magic=3), ErrorCode.invalid_record),
    "another checksum": (VECTOR[:-1] + b"\x01", ErrorCode.corrupt_message),
    "another base offset": (raw_batch(bytes(7), base_offset=1), ErrorCode.invalid_record),
    "no record": (raw_batch(b"", 0), ErrorCode.invalid_record),
    "a negative count": (raw_batch(b"", -1), ErrorCode.invalid_record),
    "another last offset": (
        raw_batch(bytes(70), 2, last_offset_delta=2),
        ErrorCode.invalid_record,
    ),
    "more records than bytes": (raw_batch(bytes(70), 11), ErrorCode.invalid_record),
    "2^31 - 1 records in nothing": (raw_batch(bytes(7), 2**31 - 1), ErrorCode.invalid_record),
    "2^31 - 1 records, compressed": (
        raw_batch(bytes(7), 2**31 - 1, attributes=4),
        ErrorCode.invalid_record,
    ),
    "a control batch": (raw_batch(bytes(7), attributes=0x20), ErrorCode.invalid_record),
    "a transaction": (
        raw_batch(bytes(7), attributes=0x10, producer=1, epoch=0, sequence=0),
        ErrorCode.invalid_txn_state,
    ),
    "its own log append time": (
        raw_batch(bytes(7), attributes=0x08),
        ErrorCode.invalid_timestamp,
    ),
    "an unknown codec": (
        raw_batch(bytes(7), attributes=5),
        ErrorCode.unsupported_compression_type,
    ),
    "a producer without a sequence": (
        raw_batch(bytes(7), producer=1, epoch=0, sequence=-1),
        ErrorCode.invalid_record,
    ),
    "a producer without an epoch": (
        raw_batch(bytes(7), producer=1, epoch=-1, sequence=0),
        ErrorCode.invalid_record,
    ),
}


@pytest.mark.parametrize("name", REFUSALS)
def test_it_is_refused(name):
    batch, code = REFUSALS[name]
    assert refusal(batch) is code


def test_a_batch_over_the_topics_limit_is_too_large():
    assert refusal(VECTOR, bytes_max=len(VECTOR) - 1) is ErrorCode.message_too_large


@pytest.mark.parametrize("length", [-1, 0, 48, 49, 56, 58, 2**31 - 1])
def test_a_wrong_length_field_is_refused(length):
    batch = VECTOR[:8] + struct.pack(">i", length) + VECTOR[12:]
    assert refusal(batch) in (ErrorCode.corrupt_message, ErrorCode.invalid_record)


def test_zstd_requires_a_produce_version_with_zstd():
    batch = built_batch([1], codec=4)
    assert refusal(batch, version=6) is ErrorCode.unsupported_compression_type
    assert check(batch, version=7).records == 1


# -- what we write into it ------------------------------------------------------------------------


@given(timestamps, st.integers(0, 2**60), st.integers(0, 2**31 - 1))
def test_a_placed_batch_differs_in_its_first_sixteen_bytes_only(times, offset, epoch):
    batch = memoryview(built_batch(times))
    stored = b"".join(with_offset(batch, check(batch), offset, epoch))
    assert stored[16:] == batch[16:]
    assert batches.read_header(stored)[:3] == (offset, len(batch) - 12, epoch)
    assert [at for _, at in times_of(stored)] == list(range(offset, offset + len(times)))


@pytest.mark.parametrize("codec", CODECS, ids=CODECS.get)
def test_log_append_time_is_what_readers_see_in_every_record(codec):
    batch = memoryview(built_batch([5, 9, 7], codec=codec, size=300))
    stamped = with_append_time(batch, check(batch), 123_456)
    stored = b"".join(with_offset(stamped, check(batch), 40, 1))
    assert times_of(stored) == [(123_456, 40), (123_456, 41), (123_456, 42)]
    assert batches.timestamp_max(stored) == 123_456
    assert stored[HEADER_BYTES:] == batch[HEADER_BYTES:]
    assert len(stored) == len(batch)


# -- looking inside -------------------------------------------------------------------------------


@given(timestamps, st.sampled_from(sorted(CODECS)), st.integers(-1, 10_001), st.integers(0, 130))
def test_a_timestamp_is_found_where_a_plain_scan_finds_it(times, codec, timestamp, start):
    batch = memoryview(built_batch(times, codec=codec))
    stored = b"".join(with_offset(batch, check(batch), 100, 1))
    due = [(t, at) for at, t in enumerate(times, 100) if t >= timestamp and at >= start]
    found = first_at_or_after(stored, timestamp, start)
    assert found == (due[0] if due else None)


@given(timestamps, st.sampled_from(sorted(CODECS)), st.integers(0, 130))
def test_the_greatest_timestamp_is_found_where_a_plain_scan_finds_it(times, codec, start):
    batch = memoryview(built_batch(times, codec=codec))
    stored = b"".join(with_offset(batch, check(batch), 100, 1))
    due = [(t, at) for at, t in enumerate(times, 100) if at >= start]
    best = max((t for t, _ in due), default=None)
    found = record_of_timestamp_max(stored, start)
    assert found == next(((t, at) for t, at in due if t == best), None)


def test_all_records_of_a_stamped_batch_have_its_time():
    batch = memoryview(plain_batch([5, 9, 7]))
    stored = bytes(with_append_time(batch, check(batch), 50))
    assert first_at_or_after(stored, 50, 1) == (50, 1)
    assert first_at_or_after(stored, 51, 0) is None
    assert record_of_timestamp_max(stored, 2) == (50, 2)


@pytest.mark.parametrize("codec", CODECS, ids=CODECS.get)
def test_a_batch_that_cannot_be_decoded_is_searched_by_its_header(codec):
    garbage = raw_batch(b"\xff" * 70, 3, attributes=codec, base_timestamp=5, max_timestamp=9)
    assert first_at_or_after(garbage, 7, 1) == (9, 1)
    assert first_at_or_after(garbage, 10, 0) is None
    assert first_at_or_after(garbage, 7, 3) is None
    assert record_of_timestamp_max(garbage, 2) == (9, 2)
