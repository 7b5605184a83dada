"""Goal: batches decoded into Arrow columns equal the records that a Kafka client reads.

Method: aiokafka's builder makes them, and its reader is the dumb twin (Hypothesis). Batches that it
cannot make (control batches, log append time, damage) are made by hand.
"""

from __future__ import annotations

import contextlib
import gzip
import multiprocessing
import struct
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from datetime import UTC, datetime, timedelta
from operator import attrgetter
from pathlib import Path
from typing import Any

import cramjam
import pyarrow as pa
import pytest
import zstandard
from aiokafka.record.default_records import DefaultRecordBatch, DefaultRecordBatchBuilder
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.pipelines.direct import decode, walk
from gateway.pipelines.direct.decode import Decoder
from ledger.errors import CorruptFormat
from tests.batches import plain_batch, raw_batch, record, varint
from tests.peers.processes import status_bytes

pytestmark = pytest.mark.proof

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
ALL = (0, 1 << 62)
CONTROL, LOG_APPEND_TIME, TRANSACTIONAL = 0x20, 0x08, 0x10

maybe_bytes = st.none() | st.binary(max_size=80) | st.binary(min_size=60, max_size=300)
headers = st.lists(st.tuples(st.text(max_size=5), st.none() | st.binary(max_size=70)), max_size=3)
timestamps = st.integers(0, 3) | st.integers(-(2**40), 2**40)
one_record = st.tuples(timestamps, maybe_bytes, maybe_bytes, headers)
alike = st.builds(
    lambda each, count: [each] * count, one_record, st.integers(1, 150)
)  # runs of equal size
records = st.lists(one_record, min_size=1, max_size=30) | alike
several = st.lists(st.tuples(records, st.integers(0, 4)), min_size=1, max_size=6)


def built(content: list[Any], codec: int, base_offset: int, base_timestamp: int = 10**12) -> bytes:
    builder = DefaultRecordBatchBuilder(
        magic=2,
        compression_type=codec,
        is_transactional=0,
        producer_id=-1,
        producer_epoch=-1,
        base_sequence=-1,
        batch_size=1 << 24,
    )
    for at, (delta, key, value, with_headers) in enumerate(content):
        assert builder.append(at, base_timestamp + delta, key, value, with_headers) is not None
    batch = bytearray(builder.build())
    batch[0:8] = struct.pack(">q", base_offset)
    return bytes(batch)


def rows(
    batches: list[bytes], first: int = 0, end: int = ALL[1], include_headers: bool = True
) -> list[dict[str, Any]]:
    decoder = Decoder("topic", 3, include_headers)
    found: list[dict[str, Any]] = []
    for each in decoder.decode(batches, first, end):
        each.validate(full=True)
        assert each.schema == decoder.schema
        found += each.to_pylist()
    return found


def decode_all(batches: list[bytes]) -> list[dict[str, Any]]:
    """Decode and validate every value, except that header keys may be any bytes.

    Returns the rows without their headers.
    """
    found: list[dict[str, Any]] = []
    for each in Decoder("topic", 3, True).decode(batches, *ALL):
        header = pa.struct([("key", pa.binary()), ("value", pa.binary())])
        keys_as_bytes = each["headers"].view(pa.list_(header))
        keys_as_bytes.validate(full=True)
        without = each.drop_columns(["headers"])
        without.validate(full=True)
        assert len(keys_as_bytes.to_pylist()) == each.num_rows
        found += without.to_pylist()
    return found


def in_a_row(contents: list[tuple[list[Any], int]]) -> list[bytes]:
    """Make batches of these records and codecs, one after the other from offset 0 on."""
    batches: list[bytes] = []
    offset = 0
    for content, codec in contents:
        batches.append(built(content, codec, offset))
        offset += len(content)
    return batches


def twins_rows(batches: list[bytes]) -> list[dict[str, Any]]:
    return [
        {
            "key": each.key,
            "value": each.value,
            "topic": "topic",
            "partition": 3,
            "offset": each.offset,
            "timestamp": EPOCH + timedelta(milliseconds=each.timestamp),
            "timestampType": each.timestamp_type,
            "headers": [{"key": k, "value": v} for k, v in each.headers] or None,
        }
        for batch in batches
        for each in DefaultRecordBatch(batch)
    ]


@pytest.mark.slow
@settings(deadline=None, max_examples=80)
@given(several)
def test_rows_are_those_that_a_kafka_client_reads(contents: list[tuple[list[Any], int]]) -> None:
    batches = in_a_row(contents)
    assert rows(batches) == twins_rows(batches)


@pytest.mark.slow
@settings(deadline=None, max_examples=60)
@given(several, st.integers(0, 60), st.integers(0, 60))
def test_only_offsets_of_the_range_are_given(
    contents: list[tuple[list[Any], int]], first: int, length: int
) -> None:
    batches = in_a_row(contents)
    wanted = [r for r in twins_rows(batches) if first <= r["offset"] < first + length]
    assert rows(batches, first, first + length) == wanted


WAYS = {"alike": (1, 1 << 60), "in step": (1 << 60, 0), "each alone": (1 << 60, 1 << 60)}


@contextlib.contextmanager
def walking(way: str) -> Iterator[None]:
    """Force this way to walk batches wherever it applies, at any cost."""
    before = walk.ALIKE_FROM, walk.LOCKSTEP_FROM
    walk.ALIKE_FROM, walk.LOCKSTEP_FROM = WAYS[way]
    try:
        yield
    finally:
        walk.ALIKE_FROM, walk.LOCKSTEP_FROM = before


@pytest.mark.slow
@pytest.mark.parametrize("way", WAYS)
@settings(deadline=None, max_examples=25)
@given(st.lists(st.lists(one_record, min_size=1, max_size=9), min_size=1, max_size=9), st.data())
def test_each_way_to_walk_finds_the_same(
    way: str, contents: list[list[Any]], data: st.DataObject
) -> None:
    again = data.draw(st.lists(st.sampled_from(contents), max_size=9))
    batches = [built(content, 0, 1000 * at) for at, content in enumerate(contents + again)]
    with walking(way):
        assert rows(batches) == twins_rows(batches)


def test_batches_of_equal_size_and_different_layout_are_distinguished() -> None:
    orders = [(5, 10, 20), (5, 20, 10), (5, 10, 20), (20, 5, 10)]
    batches = [
        built([(0, None, bytes(size), []) for size in sizes], 0, 3 * at)
        for at, sizes in enumerate(orders)
    ]
    assert len({len(batch) for batch in batches}) == 1
    with walking("alike"):
        assert rows(batches) == twins_rows(batches)


@pytest.mark.slow
@pytest.mark.parametrize("way", WAYS)
@settings(deadline=None, max_examples=25)
@given(alike, st.integers(0, 400), st.integers(0, 255), st.integers(-3, 3))
def test_damage_is_noticed_or_harmless(
    way: str, content: list[Any], place: int, byte: int, more: int
) -> None:
    batch = built(content, 0, 0)
    body = bytearray(batch[61:])
    body[place % len(body)] = byte
    count = max(1, len(content) + more)
    damaged = raw_batch(bytes(body), count, base_offset=1000)
    with walking(way), contextlib.suppress(CorruptFormat):
        sound = decode_all([batch])
        found = decode_all([batch, damaged, batch])
        assert len(found) == 2 * len(sound) + count
        assert found[: len(sound)] == found[-len(sound) :] == sound


def test_offsets_within_a_batch_may_have_gaps() -> None:
    body = record(2, 5, b"k", b"one") + record(7, 9, None, b"two")
    batch = raw_batch(body, 2, base_offset=100, last_offset_delta=9)
    assert [(r["offset"], r["value"]) for r in rows([batch])] == [(102, b"one"), (107, b"two")]


def test_control_batches_have_no_rows() -> None:
    control = plain_batch([7], attributes=CONTROL | TRANSACTIONAL)
    after = plain_batch([8, 9], base_offset=1, attributes=TRANSACTIONAL)
    assert [r["offset"] for r in rows([control, after])] == [1, 2]
    assert rows([control]) == []


def test_a_batch_out_of_range_is_not_decoded() -> None:
    damaged = raw_batch(b"\xff\xff", 1, base_offset=5)
    assert [r["offset"] for r in rows([plain_batch([1, 2]), damaged], 0, 5)] == [0, 1]


def test_log_append_time_is_that_of_the_whole_batch() -> None:
    appended = plain_batch([1, 2], attributes=LOG_APPEND_TIME)
    created = plain_batch([3, 4], base_offset=2)
    found = rows([appended, created])
    assert [r["timestampType"] for r in found] == [1, 1, 0, 0]
    assert [(r["timestamp"] - EPOCH).microseconds // 1000 for r in found] == [2, 2, 3, 4]


def test_a_record_without_timestamp_is_a_millisecond_before_1970() -> None:
    assert rows([plain_batch([-1])])[0]["timestamp"] == EPOCH - timedelta(milliseconds=1)


def test_the_headers_column_exists_only_on_request() -> None:
    batch = built([(0, b"k", b"v", [("name", b"x")])], 0, 0)
    assert "headers" not in rows([batch], include_headers=False)[0]
    assert rows([batch])[0]["headers"] == [{"key": "name", "value": b"x"}]


@pytest.mark.parametrize(
    "body",
    [
        pytest.param(b"", id="nothing"),
        pytest.param(record(0, 0, b"k", b"v") + b"\0", id="bytes behind"),
        pytest.param(record(0, 0, b"k", b"v")[:-2], id="cut"),
        pytest.param(varint(6) + b"\0\0\0" + varint(100) + b"\0\0", id="key too long"),
        pytest.param(
            varint(15) + b"\0\0\0\1" + varint(2**63 - 1) + b"\0", id="value past all numbers"
        ),
        pytest.param(varint(2**63 - 1) + bytes(20), id="record past all numbers"),
        pytest.param(varint(-4), id="negative length"),
        pytest.param(b"\xff" * 12, id="endless number"),
    ],
)
def test_a_damaged_batch_is_reported_with_its_offset(body: bytes) -> None:
    for include_headers in (False, True):
        with pytest.raises(CorruptFormat, match="topic-3: the batch at offset 44"):
            rows([raw_batch(body, base_offset=44)], include_headers=include_headers)


def test_damaged_compression_is_reported_with_its_offset() -> None:
    with pytest.raises(CorruptFormat, match="topic-3: the batch at offset 44"):
        rows([raw_batch(b"no zstd at all", base_offset=44, attributes=4)])


# -- much in one batch -------------------------------------------------------------------------


@contextlib.contextmanager
def in_pieces(records_max: int, bytes_max: int) -> Iterator[None]:
    """Decode batches in pieces of at most that size."""
    names = {"RECORDS_AT_ONCE": records_max, "_PIECE_BYTES": bytes_max, "HEADERS_MAX": 3}
    before = {name: getattr(decode, name) for name in names}
    for name, value in names.items():
        setattr(decode, name, value)
    try:
        yield
    finally:
        for name, value in before.items():
            setattr(decode, name, value)


@pytest.mark.slow
@settings(deadline=None, max_examples=30)
@given(several, st.integers(1, 40), st.integers(1, 400), st.integers(0, 60), st.integers(0, 60))
def test_batches_in_pieces_have_the_same_rows(
    contents: list[tuple[list[Any], int]], records_max: int, bytes_max: int, first: int, length: int
) -> None:
    batches = in_a_row(contents)
    with in_pieces(records_max, bytes_max):
        assert rows(batches) == twins_rows(batches)
        found = rows(batches, first, first + length)
    assert found == [r for r in twins_rows(batches) if first <= r["offset"] < first + length]


@pytest.mark.slow
@settings(deadline=None, max_examples=40)
@given(alike, st.integers(1, 40), st.integers(0, 400), st.integers(0, 255), st.integers(-3, 3))
def test_damage_in_a_piece_is_noticed_or_harmless(
    content: list[Any], records_max: int, place: int, byte: int, more: int
) -> None:
    body = bytearray(built(content, 0, 0)[61:])
    body[place % len(body)] = byte
    count = max(1, len(content) + more)
    damaged = raw_batch(bytes(body), count, base_offset=1000)
    with in_pieces(records_max, 100), contextlib.suppress(CorruptFormat):
        assert len(decode_all([damaged])) == count


def test_a_piece_too_few_or_too_many_is_damage() -> None:
    body = b"".join(record(at, 0, b"k", b"v") for at in range(10))
    for count in (9, 11):
        for records_max in (1, 3, 9, 10):
            with in_pieces(records_max, 1000), pytest.raises(CorruptFormat, match="offset 44"):
                rows([raw_batch(body, count, base_offset=44)])


TINY = b"\x0c\0\0\0\1\1\0"  # a record of nothing
LARGE_BYTES = 32 * 1024 * 1024


def headed(count: int, header: bytes = b"\0\1") -> bytes:
    """Make a record of nothing but headers, without keys and values."""
    inside = b"\0\0\0\1\1" + varint(count) + header * count
    return varint(len(inside)) + inside


def large(kind: str) -> tuple[bytes, int]:
    """Make LARGE_BYTES of records. Returns them with their count."""
    if kind == "one value":
        return record(0, 0, None, bytes(LARGE_BYTES)), 1
    each = {
        "nothing": TINY,
        "two sizes": TINY + record(0, 0, None, b"12"),
        "headers": headed(100),
        "header keys that are no text": headed(100, b"\4\xff\xfe\1"),
    }[kind]
    count = LARGE_BYTES // len(each)
    return each * count, count * (2 if kind == "two sizes" else 1)


def decoded(kind: str, codec: int, often: int = 1) -> tuple[int, int]:
    """Decode a large batch repeatedly, in a process of its own.

    Returns the rows and the extra memory, without the results.
    """
    body, count = large(kind)
    compress = {1: gzip.compress, 3: cramjam.lz4.compress, 4: zstandard.compress}[codec]
    batch = raw_batch(bytes(compress(body)), count, attributes=codec)
    del body
    list(Decoder("t", 0, True).decode([built([(0, b"k", b"v", [("h", b"")])], 0, 0)], *ALL))
    Path("/proc/self/clear_refs").write_text("5")  # reset the peak to the current size
    before = status_bytes("self", "VmRSS")
    parts = Decoder("t", 0, True).decode([batch] * often, *ALL)
    found = sum(map(attrgetter("num_rows"), parts))
    return found, status_bytes("self", "VmHWM") - before


@pytest.mark.parametrize(
    ("kind", "codec"),
    [
        ("nothing", 1),
        ("nothing", 3),
        ("two sizes", 4),
        ("headers", 4),
        ("header keys that are no text", 4),
        ("one value", 4),
    ],
)
def test_a_large_batch_stays_within_the_documented_memory(kind: str, codec: int) -> None:
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as process:
        found, took = process.submit(decoded, kind, codec).result()
    assert found == large(kind)[1]
    assert took <= 3 * LARGE_BYTES + decode.WORKING_BYTES


def test_large_batches_one_after_another_take_no_more_memory_than_one() -> None:
    took: list[int] = []
    for often in (1, 3):
        with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as process:
            found, more = process.submit(decoded, "one value", 1, often).result()
        assert found == often
        took.append(more)
    assert took[1] < took[0] + LARGE_BYTES


@pytest.mark.parametrize("count", [2**31 - 1, 10, 0, -1], ids=["2^31 - 1", "10", "0", "-1"])
@pytest.mark.parametrize("size", [9 * 7, 6 * 1024 * 1024])
def test_a_batch_with_more_records_than_its_bytes_allow_is_refused(count: int, size: int) -> None:
    body = zstandard.compress(TINY * (size // 7))
    if size > 100 and count == 10:
        count = size // 7 + 1
    batch = raw_batch(body, count, base_offset=44, attributes=4, last_offset_delta=size)
    with pytest.raises(CorruptFormat, match="topic-3: the batch at offset 44"):
        rows([batch])


def test_a_batch_that_decompresses_to_too_much_is_refused() -> None:
    body = zstandard.compress(bytes(decode.DECOMPRESSED_BYTES_MAX + 1))
    assert len(body) < 1 << 20
    with pytest.raises(CorruptFormat, match=r"offset 44: .* decompresses to more than"):
        rows([raw_batch(body, 1, base_offset=44, attributes=4)])


@pytest.mark.slow
def test_a_record_with_too_many_headers_is_refused_if_headers_are_read() -> None:
    for count, fits in ((decode.HEADERS_MAX, True), (decode.HEADERS_MAX + 1, False)):
        batch = raw_batch(TINY + headed(count) + TINY, 3, base_offset=44, last_offset_delta=2)
        assert len(rows([batch], include_headers=False)) == 3
        if fits:
            found = rows([batch])
            assert [len(each["headers"] or ()) for each in found] == [0, count, 0]
        else:
            with pytest.raises(CorruptFormat, match=r"offset 44: .*without includeHeaders"):
                rows([batch])


def test_large_results_come_in_parts_of_bounded_size() -> None:
    value = bytes(100_000)
    batches = [built([(0, None, value, [])] * 10, 0, 10 * at) for at in range(12)]
    sizes = [each.nbytes for each in Decoder("t", 0).decode(batches, *ALL)]
    assert len(sizes) >= 3
    assert max(sizes) <= 5 * 1024 * 1024


@pytest.mark.parametrize("batches", [1, 300], ids=["one large batch", "many small ones"])
def test_small_records_come_in_parts_of_a_bounded_number(batches: int) -> None:
    count = 300_000 // batches
    small = [
        raw_batch(TINY * count, count, base_offset=count * at, last_offset_delta=count - 1)
        for at in range(batches)
    ]
    found = [each.num_rows for each in Decoder("t", 0).decode(small, *ALL)]
    assert sum(found) == 300_000
    assert len(found) == 3 and max(found) <= decode.RECORDS_AT_ONCE


# timestamps and header keys that Spark or Python cannot represent


@pytest.mark.parametrize("sign", [1, -1])
def test_a_timestamp_that_spark_cannot_represent_is_refused_or_given_up(sign: int) -> None:
    last = sign * decode.TIMESTAMP_MS_MAX
    batch = built([(0, b"k", b"v", []), (sign, b"k", b"w", [])], 0, 5, last)
    (good,) = Decoder("topic", 3).decode([batch], 0, 6)
    assert good["value"].to_pylist() == [b"v"], "records outside the range do not matter"
    with pytest.raises(decode.TimestampOutOfRange, match=rf"offset 6 .*{last + sign} ms"):
        list(Decoder("topic", 3).decode([batch], *ALL))
    met: list[tuple[int, int]] = []
    decoder = Decoder("topic", 3, False, lambda *record: met.append(record))
    (found,) = decoder.decode([batch], *ALL)
    assert found["timestamp"].cast("int64").to_pylist() == [last * 1000, None]
    assert found["value"].to_pylist() == [b"v", b"w"]
    assert met == [(6, last + sign)]


def test_a_header_key_keeps_its_bytes() -> None:
    keys = [b"", b"\xff\xfe", "é".encode(), b"a\x00"]
    plain = b"".join(varint(len(key)) + key + varint(-1) for key in keys)
    fields = b"\0\0\0" + varint(-1) + varint(-1) + varint(len(keys)) + plain
    batch = raw_batch(varint(len(fields)) + fields, 1)
    (found,) = Decoder("topic", 3, True).decode([batch], *ALL)
    stored = found["headers"].values.field("key").view("binary")
    assert stored.to_pylist() == keys
