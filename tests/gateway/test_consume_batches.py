"""Goal: readers see every record that they may see, of every codec, and no aborted one.

Method: batches by aiokafka's builder and by hand; Hypothesis draws transactions of several
producers, and a slow twin says which records a consumer sees.
"""

from __future__ import annotations

import gzip
import struct
import tracemalloc
from itertools import chain

import cramjam
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from gateway.admin.consume_batches import (
    HEADERS_MAX,
    AbortedTransactions,
    DamagedBatch,
    check,
    read_records,
    split,
)
from tests.batches import raw_batch, record, varint

TRANSACTIONAL, CONTROL, APPEND_TIME = 0x10, 0x20, 0x08
ABORT, COMMIT = 0, 1
XERIAL = b"\x82SNAPPY\0" + struct.pack(">ii", 1, 1)
CODECS = {
    0: bytes,
    1: gzip.compress,
    2: lambda data: bytes(cramjam.snappy.compress_raw(data)),
    3: lambda data: bytes(cramjam.lz4.compress(data)),
    4: zstandard.ZstdCompressor().compress,
}


def in_blocks(data, size=32_768):
    """Snappy as Java writes it."""
    parts = [
        bytes(cramjam.snappy.compress_raw(data[at : at + size])) for at in range(0, len(data), size)
    ]
    return XERIAL + b"".join(struct.pack(">i", len(part)) + part for part in parts)


def batch_of(values, base=0, codec=0, compress=None, attributes=0, **header):
    records = b"".join(record(at, at, None, value) for at, value in enumerate(values))
    body = (compress or CODECS[codec])(records)
    return raw_batch(body, len(values), base_offset=base, attributes=attributes | codec, **header)


def marker(base, producer, kind):
    key = struct.pack(">hh", 0, kind)
    body = record(0, 0, key, struct.pack(">hi", 0, 0))
    return raw_batch(
        body, producer=producer, epoch=0, base_offset=base, attributes=TRANSACTIONAL | CONTROL
    )


def shown(data, first=0, end=None, aborted=()):
    found = []
    transactions = AbortedTransactions(aborted)
    for batch in split(data, first):
        check(batch)
        if not transactions.hides(batch):
            found += chain.from_iterable(read_records(batch, first, end))
    return [(each.offset, each.value) for each in found]


VALUES = st.lists(st.none() | st.binary(max_size=300), min_size=1, max_size=40)


@given(values=VALUES, codec=st.sampled_from(sorted(CODECS)), base=st.integers(0, 2**50))
def test_every_codec_gives_the_records_back(values, codec, base):
    assert shown(batch_of(values, base, codec), base) == list(enumerate(values, base))


@given(values=VALUES, first=st.integers(0, 60), size=st.integers(0, 60))
def test_records_outside_of_the_asked_offsets_are_left_out(values, first, size):
    data = batch_of(values[:1]) + batch_of(values, 1)
    whole = enumerate([values[0], *values])
    asked = [each for each in whole if first <= each[0] < first + size]
    assert shown(data, first, first + size) == asked


@pytest.mark.parametrize("codec", sorted(CODECS))
def test_a_large_batch_is_read_in_pieces_and_gives_the_same_records(codec):
    values = [b"%06d" % at * 20 for at in range(60_000)] + [bytes(3_000_000), b"last"]
    data = batch_of(values, codec=codec)
    assert shown(data) == list(enumerate(values))


def test_snappy_in_blocks_of_java_is_read():
    values = [b"%05d" % at * 30 for at in range(50_000)]
    assert shown(batch_of(values, codec=2, compress=in_blocks)) == list(enumerate(values))


def test_a_part_of_a_batch_at_the_end_is_left_for_the_next_request():
    data = batch_of([b"a"]) + batch_of([b"b"], 1)[:-1]
    assert shown(data) == [(0, b"a")]


def test_an_empty_batch_of_a_compacted_log_moves_on():
    empty = raw_batch(b"", 0, base_offset=3, last_offset_delta=4)
    (batch,) = split(empty, 3)
    assert (batch.last_offset, list(read_records(batch))) == (7, [])


def test_log_append_time_is_the_time_of_every_record():
    data = batch_of([b"a", b"b"], attributes=APPEND_TIME, max_timestamp=77)
    (batch,) = split(data, 0)
    found = [*chain.from_iterable(read_records(batch))]
    assert [(each.timestamp, each.timestamp_type) for each in found] == [(77, 1), (77, 1)]


def test_the_name_of_a_header_need_not_be_utf_8():
    headers = varint(1) + varint(2) + b"\xff\xfe" + varint(1) + b"v"
    body = b"\0" + varint(0) + varint(0) + varint(-1) + varint(1) + b"x" + headers
    (batch,) = split(raw_batch(varint(len(body)) + body), 0)
    ((found,),) = read_records(batch)
    assert (found.value, found.headers) == (b"x", [("\\xff\\xfe", b"v")])


@given(place=st.integers(21, 90), codec=st.sampled_from(sorted(CODECS)))
def test_a_changed_byte_is_noticed(place, codec):
    data = bytearray(batch_of([b"some text" * 5, b"more"], codec=codec))
    data[place % (len(data) - 21) + 21] ^= 1
    with pytest.raises(DamagedBatch):
        shown(bytes(data))


@given(st.binary(min_size=1, max_size=200), st.sampled_from(sorted(CODECS)), st.integers(0, 9))
def test_any_bytes_with_a_right_checksum_end_in_records_or_a_damaged_batch(body, codec, count):
    try:
        found = shown(raw_batch(body, count, attributes=codec, last_offset_delta=9))
    except DamagedBatch as error:
        assert str(error)
    else:
        assert len(found) <= count


@given(st.binary(min_size=1, max_size=150))
def test_any_bytes_are_no_batch(data):
    with pytest.raises(DamagedBatch):
        shown(data)


def test_a_batch_of_lengths_that_lie_is_damaged():
    for count in (1, 3):
        with pytest.raises(DamagedBatch):
            shown(raw_batch(record(0, 0, None, b"a") * 2, count, last_offset_delta=2))


# batches that decompress to much more than they have

MIB = 1024 * 1024


@pytest.mark.parametrize("codec", [1, 2, 4])
@pytest.mark.parametrize("size", [varint(2**62), varint(-1), b"\xff" * 10, varint(2**31)])
def test_a_size_that_no_record_has_is_refused_before_the_rest_is_decompressed(codec, size):
    compress = in_blocks if codec == 2 else CODECS[codec]
    body = compress(record(0, 0, None, b"a") + size + bytes(60 * MIB))
    tracemalloc.start()
    with pytest.raises(DamagedBatch, match="the size of a record is impossible"):
        shown(raw_batch(body, 3, attributes=codec, last_offset_delta=2))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 20 * MIB


def with_headers(count, delta=0):
    body = b"\0" + varint(0) + varint(delta) + varint(-1) + varint(1) + b"x" + varint(count)
    body += (varint(0) + varint(-1)) * count
    return varint(len(body)) + body


@pytest.mark.parametrize("codec", sorted(CODECS))
@pytest.mark.parametrize("more", [b"", bytes(5 * MIB)])
def test_a_record_with_too_many_headers_is_refused(codec, more):
    records = record(0, 0, None, b"a") + record(0, 1, None, b"b" * 100) + record(0, 2, None, more)

    def read(count):
        body = CODECS[codec](records + with_headers(count, 3))
        return shown(raw_batch(body, 4, attributes=codec))

    assert len(read(HEADERS_MAX)) == 4
    with pytest.raises(DamagedBatch, match="a record has 100001 headers") as refused:
        read(HEADERS_MAX + 1)
    assert refused.value.offset == 3


@pytest.mark.parametrize("codec", [1, 3, 4])
def test_a_batch_that_decompresses_to_too_much_is_refused(codec, monkeypatch):
    monkeypatch.setattr("gateway.admin.consume_batches.DECOMPRESSED_BYTES_MAX", 20 * MIB)
    with pytest.raises(DamagedBatch, match="decompresses to more than"):
        shown(batch_of([bytes(8 * MIB)] * 3, codec=codec))


# transactions

STEPS = st.lists(
    st.tuples(st.integers(1, 3), st.sampled_from(["write", "commit", "abort"]), st.integers(1, 3)),
    max_size=25,
)


def log_of(steps):
    """The bytes of a log, its aborted transactions, and the records of whole transactions."""
    data, base, open_at, written, aborted, seen = b"", 0, {}, {}, [], []
    for producer, what, count in [*steps, *((each, "commit", 1) for each in (1, 2, 3))]:
        if what == "write":
            open_at.setdefault(producer, base)
            values = [b"%d-%d" % (producer, base + at) for at in range(count)]
            header = {"producer": producer, "epoch": 0, "sequence": 0}
            data += batch_of(values, base, attributes=TRANSACTIONAL, **header)
            written.setdefault(producer, []).extend(enumerate(values, base))
            base += count
        elif producer in open_at:
            first, records = open_at.pop(producer), written.pop(producer)
            if what == "abort":
                aborted.append((producer, first))
            else:
                seen += records
            data += marker(base, producer, ABORT if what == "abort" else COMMIT)
            base += 1
    return data, aborted, sorted(seen)


@given(STEPS)
def test_aborted_records_and_markers_are_never_shown(steps):
    data, aborted, seen = log_of(steps)
    if data:
        assert shown(data, aborted=aborted) == seen


@given(STEPS)
def test_uncommitted_readers_see_all_records_but_no_marker(steps):
    data, _, _ = log_of(steps)
    if data:
        count = sum(each[2] for each in steps if each[1] == "write")
        assert len(shown(data)) == count
