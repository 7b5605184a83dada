"""Goal: a lost range is passed by every reader of Kafka's format, however long it is.

Method: the bytes are compared with batches that tests build by hand, and decoded by aiokafka.
"""

from __future__ import annotations

import pytest
from aiokafka.record.memory_records import MemoryRecords
from hypothesis import given
from hypothesis import strategies as st

from gateway.wire.lost_batches import MARKER_HEADER, OFFSETS_MAX, empty_batches, marker_batch
from tests.batches import raw_batch


def batches_of(data: bytes):
    found = MemoryRecords(data)
    while (batch := found.next_batch()) is not None:
        assert batch.validate_crc()
        yield batch


def test_an_empty_batch_is_kafkas():
    ((batch,), end) = empty_batches(10, 14, 10, 7, 16)
    none = {"base_timestamp": -1, "max_timestamp": -1}
    expected = raw_batch(b"", 0, base_offset=10, leader_epoch=7, last_offset_delta=4, **none)
    assert (batch, end) == (expected, 15)


@given(
    first=st.integers(0, 2**62),
    count=st.integers(1, 4 * OFFSETS_MAX),
    inside=st.floats(0, 1, exclude_max=True),
)
def test_empty_batches_cover_a_range_of_any_length_from_any_place(first, count, inside):
    position, last = first + int(count * inside), first + count - 1
    position = min(position, last)
    batches, end = empty_batches(first, last, position, 1, 16)
    found = list(batches_of(b"".join(batches)))
    assert end == last + 1 == found[-1].next_offset
    assert found[0].base_offset <= position < found[0].next_offset
    assert [each.base_offset for each in found[1:]] == [each.next_offset for each in found[:-1]]
    assert not any(list(each) for each in found)
    # Two readers see the same batches, wherever they begin.
    whole, _ = empty_batches(first, last, first, 1, 16)
    assert batches == whole[len(whole) - len(batches) :]


def test_the_number_of_batches_is_bounded():
    batches, end = empty_batches(5, 2**62, 5, 1, 3)
    assert (len(batches), end) == (3, 5 + 3 * OFFSETS_MAX)


@pytest.mark.parametrize("size", [0, 1, 63, 64, 127, 128, 20_000])
def test_a_marker_is_one_record_without_key_and_value(size):
    description = b"x" * size
    (batch,) = batches_of(marker_batch(77, 3, description))
    assert (batch.base_offset, batch.next_offset) == (77, 78)
    (record,) = batch
    assert (record.offset, record.key, record.value) == (77, None, None)
    assert record.timestamp == 0
    assert record.headers == [(MARKER_HEADER, description)]
