"""Goal: the batch that ends a transaction has Kafka's bytes, and damaged ones are refused.

Method: bytes that Apache Kafka wrote, and changed bytes of its record.
"""

import pytest

from gateway.wire.batches import read_header
from gateway.wire.end_markers import (
    BATCH_BYTES,
    StoredMarker,
    encode_marker,
    read_marker,
    stored_marker,
)

RECORD_AT = 61
CHECKED = [RECORD_AT + at for at in (4, 5, 7, 8, 9, 10)]  # lengths, versions and the type


def test_a_marker_has_kafkas_checksum():
    batch = encode_marker(5, 1, 0, 1000, commit=True)
    assert (len(batch), read_header(batch).crc) == (BATCH_BYTES, 0x939974A8)


@pytest.mark.parametrize("commit", [False, True])
def test_a_marker_is_read_as_it_was_written(commit):
    batch = encode_marker(5, 1, 77, 1000, commit=commit)
    assert read_marker(batch, read_header(batch)) == StoredMarker(commit, 77)


@pytest.mark.parametrize("changed", range(6))
def test_each_partition_stores_the_marker_of_its_transaction_at_its_own_offset(changed):
    words = [5, 1, 0, 1000, 7, 3]  # producer, epoch, coordinator epoch, time, offset, leader epoch
    for commit in (True, False, True):
        for word in (words, [each + (at == changed) for at, each in enumerate(words)]):
            producer, epoch, coordinator, now_ms, offset, leader = word
            fields = (producer, epoch, coordinator)
            batch = b"".join(stored_marker(fields, now_ms, offset, leader, commit=commit))
            expected = encode_marker(*fields, now_ms, commit=commit)
            assert batch[16:] == expected[16:]
            header = read_header(batch)
            assert (header.base_offset, header.leader_epoch) == (offset, leader)
            assert header.length == read_header(expected).length


def test_a_batch_of_data_is_no_marker():
    header = read_header(encode_marker(5, 1, 0, 1000, commit=True))._replace(attributes=0x10)
    assert read_marker(b"", header) is None


def test_another_control_batch_is_refused():
    batch = encode_marker(5, 1, 0, 1000, commit=True)
    header = read_header(batch)
    with pytest.raises(ValueError, match="bytes"):
        read_marker(batch + b"\0", header)
    for at in CHECKED:
        damaged = batch[:at] + bytes([batch[at] ^ 0x80]) + batch[at + 1 :]
        with pytest.raises(ValueError, match="control record"):
            read_marker(damaged, header)
