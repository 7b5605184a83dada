"""Goal: a compressed entry is DistributedLog's, is read as it was before, and a bad one is refused
before it takes memory.

Method: a block made by hand, drawn records, cuts and flips at every byte.
"""

import tracemalloc
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ledger.core import records
from ledger.errors import CorruptFormat
from ledger.streams.compressed_entries import RAW_BYTES_MAX, compressed, decompressed

LZ4 = 1


def plain(*data, distance=0):
    """Return an entry of plain records."""
    parts = [
        records.RECORD.pack(number << 16, 1_700_000_000_000, len(each)) + each
        for number, each in enumerate(data, 1)
    ]
    body = b"".join(parts)
    return records.envelope(len(body), distance) + body


def entry(raw, block, flags=LZ4, stored=None):
    stored = len(block) if stored is None else stored
    return records.ENVELOPE.pack(1, flags, raw, stored) + block


def alike(count, size=60):
    """Return an entry that compression makes smaller."""
    return plain(*(b"%d" % number + b"x" * size for number in range(count)))


# One literal, a copy of it 15 + 4 + 10 times, and five literals at the end.
BLOCK = bytes.fromhex("1f 61 0100 0a 50 6162636465")
RAW = b"a" * 30 + b"abcde"


def test_a_block_has_no_frame_and_no_length():
    found = decompressed(entry(len(RAW), BLOCK))
    assert bytes(found) == records.envelope(len(RAW), 0) + RAW


@given(st.lists(st.binary(max_size=200) | st.just(b"same" * 40), max_size=20))
def test_records_are_read_as_they_were(data):
    whole = plain(*data, distance=9)
    stored = compressed(whole)
    assert len(stored) <= len(whole)
    assert bytes(decompressed(stored)) == whole
    assert [bytes(each.data) for each in records.parse_entry(decompressed(stored))] == data


def test_an_entry_that_would_gain_nothing_is_unchanged():
    for whole in (plain(), plain(b"x" * 15), plain(Random(1).randbytes(5_000))):
        assert compressed(whole) == whole
        assert decompressed(whole) is whole


def test_an_entry_gains_from_a_few_alike_records_on():
    stored = compressed(alike(3))
    assert len(stored) < len(alike(3)) / 2
    version, flags, raw, size = records.ENVELOPE.unpack_from(stored)
    assert (version, flags, raw) == (1, LZ4, len(alike(3)) - records.ENVELOPE_BYTES)
    assert size == len(stored) - records.ENVELOPE_BYTES


def test_the_largest_records_are_compressed_and_larger_ones_are_not():
    most = RAW_BYTES_MAX - records.RECORD_BYTES
    assert bytes(decompressed(compressed(plain(bytes(most))))) == plain(bytes(most))
    assert compressed(plain(bytes(most + 1))) == plain(bytes(most + 1))


@pytest.mark.parametrize(
    "bad",
    [
        entry(len(RAW) - 1, BLOCK),
        entry(len(RAW) + 1, BLOCK),  # the rest would be zeros, which are a record without data
        entry(len(RAW) + 20, BLOCK),
        entry(0, BLOCK),
        entry(0, b"\0"),
        entry(len(RAW), BLOCK[:-1]),
        entry(len(RAW), BLOCK + b"x"),
        entry(len(RAW), BLOCK, stored=len(BLOCK) - 1),
        entry(len(RAW), BLOCK, stored=len(BLOCK) + 1),
        entry(len(RAW), b""),
        entry(len(RAW), b"\xff" * 40),
    ],
)
def test_a_bad_block_is_refused(bad):
    with pytest.raises(CorruptFormat, match="compressed entry"):
        decompressed(bad)


@pytest.mark.parametrize(
    ("raw", "block"),
    [
        (2**32 - 1, b"\xff" * 100_000),
        (2**31 - 1, b"\xff" * 100_000),
        (RAW_BYTES_MAX + 1, b"\xff" * 100_000),
        (RAW_BYTES_MAX, b"\xff" * 1_000),  # no block of this size has so much in it
    ],
)
def test_a_length_that_cannot_be_takes_no_memory(raw, block):
    bad = entry(raw, block)
    tracemalloc.start()
    try:
        with pytest.raises(CorruptFormat):
            decompressed(bad)
        assert tracemalloc.get_traced_memory()[1] < 50_000
    finally:
        tracemalloc.stop()


@given(st.data())
def test_no_bytes_make_the_reader_fail_otherwise(data):
    stored = bytearray(compressed(alike(data.draw(st.integers(3, 9)))))
    for _ in range(data.draw(st.integers(1, 4))):
        stored[data.draw(st.integers(0, len(stored) - 1))] = data.draw(st.integers(0, 255))
    size = data.draw(st.integers(0, len(stored)))
    for damaged in (bytes(stored), bytes(stored[:size])):
        try:
            list(records.parse_entry(decompressed(damaged)))
        except CorruptFormat:
            continue


def test_the_readers_of_streams_refuse_a_compressed_entry():
    stored = compressed(alike(5))
    for read in (
        lambda: list(records.parse_entry(stored)),
        lambda: records.user_records(memoryview(stored), 0, 5),
        lambda: records.snapshot_distance(stored),
    ):
        with pytest.raises(CorruptFormat, match="codec 1"):
            read()
