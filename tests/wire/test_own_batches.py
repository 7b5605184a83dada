"""Goal: batches that the gateway writes are batches of Kafka, and damaged ones are refused.

Method: aiokafka's reader and our checks of produced batches read what our encoder writes.
"""

from __future__ import annotations

import pytest
from aiokafka.record.default_records import DefaultRecordBatch
from hypothesis import given
from hypothesis import strategies as st

from gateway.wire import batches
from gateway.wire.own_batches import RECORD_OVERHEAD, decode_batch, encode_batch
from ledger.errors import CorruptFormat

RECORDS = st.lists(
    st.tuples(st.binary(max_size=300), st.none() | st.binary(max_size=300)), min_size=1, max_size=90
)


@given(RECORDS, st.integers(0, 2**41))
def test_kafkas_reader_reads_what_was_encoded(records, timestamp):
    batch = encode_batch(records, timestamp)
    reader = DefaultRecordBatch(batch)
    assert reader.validate_crc()
    found = list(reader)
    assert [(each.key, each.value) for each in found] == records
    assert [each.offset for each in found] == list(range(len(records)))
    assert {each.timestamp for each in found} == {timestamp}
    header = batches.check_batch(memoryview(batch), 11, len(batch))
    assert header.records == len(records)


@given(RECORDS)
def test_a_batch_is_decoded_again(records):
    assert list(decode_batch(encode_batch(records, 7), "log")) == records


@given(RECORDS)
def test_the_overhead_of_a_record_is_bounded(records):
    size = sum(RECORD_OVERHEAD + len(key) + len(value or b"") for key, value in records)
    assert len(encode_batch(records, 7)) <= batches.HEADER_BYTES + size


@given(RECORDS, st.data())
def test_a_batch_that_is_cut_or_extended_is_refused(records, data):
    batch = encode_batch(records, 7)
    at = data.draw(st.integers(batches.HEADER_BYTES, len(batch) - 1))
    for damaged in (batch[:at], batch + b"\0"):
        with pytest.raises(CorruptFormat, match="log: the batch at offset 0 has a damaged record"):
            list(decode_batch(damaged, "log"))


def test_a_compressed_batch_is_refused():
    batch = bytearray(encode_batch([(b"k", b"v")], 7))
    batch[22] |= batches.CODEC_ZSTD
    with pytest.raises(CorruptFormat, match="is compressed"):
        list(decode_batch(batch, "log"))
