"""Goal: exactly the records that every Kafka client can decode are accepted, at native speed.

Method: Hypothesis draws batches of records, regular and irregular, and damages some of their bytes.
A plain decoder of Kafka's rules must accept the same batches and see the same keys and timestamps.
"""

import io
import struct

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from kio.schema.errors import ErrorCode

from gateway.wire.batches import BatchRefused, read_header
from gateway.wire.record_check import RecordRules, check_now, check_steps
from gateway.wire.record_walk import BadRecord, RecordWalk, same_shape
from gateway.wire.steps import result_of
from tests.batches import HEADER_BYTES, built_batch, plain_batch, raw_batch, record, varint

CAP = 16 << 20
ANY = RecordRules(CAP, keyed=False, timestamps=None)
BLOCK = 8192


# -- the slow twin --------------------------------------------------------------------------------


def number(data, bits):
    value = 0
    for shift in range(0, 7 * (5 if bits == 32 else 10), 7):
        (byte,) = take(data, 1)
        value |= (byte & 127) << shift
        if byte < 128:
            assert value < 1 << bits
            return value >> 1 ^ -(value & 1)
    raise AssertionError("a varint is too long")


def take(data, size):
    taken = data.read(max(size, 0))
    assert len(taken) == max(size, 0)
    return taken


def decoded(data, count):
    """Return the timestamp delta of each record, and whether it has a key. Raises if malformed."""
    data, found = io.BytesIO(data), []
    for at in range(count):
        size = number(data, 32)
        assert size >= 0
        body = io.BytesIO(take(data, size))
        take(body, 1)
        delta = number(body, 64)
        assert number(body, 32) == at
        key = number(body, 32)
        take(body, key)
        take(body, number(body, 32))
        headers = number(body, 32)
        assert headers >= 0
        for _ in range(headers):
            name = number(body, 32)
            assert name >= 0
            take(body, name)
            take(body, number(body, 32))
        assert not body.read()
        found.append((delta, key >= 0))
    assert not data.read()
    return found


def twin(data, count):
    try:
        return decoded(data, count)
    except AssertionError:
        return None


def walked(data, count):
    """Return the walk after its end, or None if it refused the records."""
    walk = RecordWalk(data, 0, count)
    seen = same_shape(data, 0, count)
    try:
        for _ in walk.steps():
            pass
    except BadRecord as bad:
        assert 0 <= bad.index < count
        assert seen is None
        return None
    assert seen is None or (seen == (walk.high, walk.keyless) and not walk.low)
    return walk


def agree(data, count):
    due, walk = twin(data, count), walked(data, count)
    assert (walk is None) == (due is None)
    if walk is None or not due:
        return walk
    deltas = [delta for delta, _ in due]
    assert walk.high == max(deltas)
    assert walk.low <= min(deltas)
    assert walk.low in (0, min(deltas))
    assert walk.keyless == any(not keyed for _, keyed in due)
    return walk


# -- drawn batches --------------------------------------------------------------------------------

BODIES = st.none() | st.binary(max_size=3) | st.integers(55, 70).map(bytes) | st.just(bytes(8200))
DELTAS = st.integers(0, 3) | st.integers(-70, 70) | st.integers(-(2**40), 2**40)
HEADERS = st.just([]) | st.lists(st.tuples(st.binary(max_size=3), BODIES), max_size=2)


def headed(at, delta, key, value, headers):
    body = b"\0" + varint(delta) + varint(at)
    for part in (key, value):
        body += varint(-1) if part is None else varint(len(part)) + part
    body += varint(len(headers))
    for name, text in headers:
        body += varint(len(name)) + name
        body += varint(-1) if text is None else varint(len(text)) + text
    return varint(len(body)) + body


@st.composite
def runs(draw):
    """A few shapes, each for some records in a row."""
    shapes = []
    for _ in range(draw(st.integers(1, 3))):
        shape = draw(st.tuples(DELTAS, BODIES, BODIES, HEADERS))
        shapes.append((shape, draw(st.integers(1, 3) | st.integers(14, 90))))
    return shapes


DAMAGE = st.lists(
    st.tuples(st.integers(0, 2**20), st.sampled_from([0, 1, 127, 128, 255]) | st.integers(0, 255)),
    max_size=2,
)


@settings(max_examples=300)
@given(runs(), DAMAGE, st.sampled_from([0, 0, 0, 1, -1]), st.sampled_from([b"", b"", b"", b"\0"]))
def test_a_walk_accepts_what_a_plain_decoder_accepts(drawn, damage, more, behind):
    shapes = [shape for shape, count in drawn for _ in range(count)]
    records = [headed(at, *shape) for at, shape in enumerate(shapes)]
    data = bytearray(b"".join(records) + behind)
    for at, byte in damage:
        data[at % len(data)] = byte
    agree(bytes(data), max(1, len(records) + more))


@settings(max_examples=200)
@given(st.lists(st.tuples(DELTAS, BODIES, BODIES, HEADERS), min_size=1, max_size=40), DAMAGE)
@example([(0, None, None, [])] * 40, [(2 * 8 + 4, 0x80)])
def test_irregular_records_are_walked_alike(shapes, damage):
    data = bytearray(b"".join(headed(at, *shape) for at, shape in enumerate(shapes)))
    for at, byte in damage:
        data[at % len(data)] = byte
    agree(bytes(data), len(shapes))


@given(st.binary(max_size=200), st.integers(1, 30))
def test_any_bytes_are_walked_alike(data, count):
    agree(data, count)


@pytest.mark.parametrize("count", [1, 15, 16, 63, 64, 65, 100, BLOCK - 1, BLOCK, BLOCK + 1, 20_000])
@pytest.mark.parametrize("value", [b"x" * 100, b"", None], ids=["hundred", "empty", "null"])
def test_runs_end_where_offset_deltas_grow(count, value):
    records = [record(at, at % 50, None, value) for at in range(count)]
    walk = agree(b"".join(records), count)
    assert walk is not None
    for wrong in {0, count // 2, count - 1}:
        other = [*records[:wrong], record(wrong + 1, 0, None, value), *records[wrong + 1 :]]
        assert walked(b"".join(other), count) is None
    assert count == 1 or walked(b"".join(records), count - 1) is None
    assert walked(b"".join(records), count + 1) is None


@pytest.mark.parametrize("count", [1, 15, 64, 65, 150, BLOCK])
def test_records_of_one_shape_need_no_walk(count):
    records = [record(at, at * 60 // count, None, b"x" * 1024) for at in range(count)]
    assert same_shape(b"".join(records), 0, count) == (60 * (count - 1) // count, True)
    keyed = [*records[: count - 1], record(count - 1, 63, b"key", b"x" * 1020)]
    assert same_shape(b"".join(keyed), 0, count) == (
        None if count not in (1, 65) else (63, count > 1)
    )


@pytest.mark.parametrize("step", [1, 5, 100, 9_000, -3, 3_000_000])
def test_timestamps_of_runs_and_single_records_are_seen(step):
    for value in (lambda _: 50, lambda at: at % 90):
        records = [record(at, at * step, b"key", bytes(value(at))) for at in range(300)]
        walk = agree(b"".join(records), 300)
        assert walk.high == max(0, 299 * step)
        assert not walk.keyless


@pytest.mark.parametrize("key", [None, b"key"], ids=["no key", "key"])
@pytest.mark.parametrize("number", [1, 40, 70, 99])
def test_every_bit_of_the_structure_of_a_record_in_a_run_counts(key, number):
    records = [record(at, 3, key, b"v" * 100) for at in range(100)]
    data = b"".join(records)
    begins = sum(map(len, records[:number]))
    ends = begins + len(records[number])
    for at in {*range(begins, begins + 14), ends - 1}:
        for bit in range(8):
            damaged = bytearray(data)
            damaged[at] ^= 1 << bit
            agree(bytes(damaged), 100)


def wide(value, size):
    """Return a varint with needless bytes."""
    short = varint(value)
    return short[:-1] + bytes([short[-1] | 128]) + b"\x80" * (size - len(short) - 1) + b"\0"


@pytest.mark.parametrize("regular", [True, False], ids=["regular", "irregular"])
@pytest.mark.parametrize(
    ("field", "size", "sound"),
    [
        (0, 2, False),
        (1, 3, True),
        (1, 10, True),
        (1, 11, False),
        *((field, size, size == 5) for field in (2, 3, 4, 5) for size in (5, 6)),
    ],
)
def test_varints_of_needless_bytes_are_taken_as_kafka_takes_them(field, size, sound, regular):
    """Aiokafka takes all of them, and attributes of two bytes besides."""

    def build(at):
        fields = [b"\0", varint(3), varint(at), varint(-1), varint(4), varint(0)]
        fields[field] = wide([0, 3, at, -1, 4, 0][field], size)
        body = b"".join(fields[:5]) + b"xxxx" + fields[5]
        return varint(len(body)) + body

    pads = 0 if regular else 1
    records = [build(at) if at % 2 or not pads else record(at, 1, None, b"") for at in range(40)]
    assert (agree(b"".join(records), 40) is not None) == sound


def test_header_keys_that_are_not_utf_8_are_taken():
    records = [headed(at, 0, None, b"v", [(b"\xff", b"1")]) for at in range(3)]
    assert agree(b"".join(records), 3) is not None


def test_a_large_batch_that_only_the_strict_reader_decides_is_refused_without_reading_it():
    records = record(0, 0, None, b"odd") + b"".join(
        headed(at, 0, None, b"", [(b"\xff", None)]) for at in range(1, 100_002)
    )
    walk = RecordWalk(records, 0, 100_002)
    with pytest.raises(BadRecord):
        list(walk.steps())


# -- what a topic requires ------------------------------------------------------------------------


def checked(batch, rules=ANY):
    header = read_header(batch)
    now = check_now(batch, header, rules)
    if now is not None:
        assert result_of(check_steps(batch, header, rules)) == now
        return now
    return result_of(check_steps(batch, header, rules))


def refusal(batch, rules=ANY):
    with pytest.raises(BatchRefused) as refused:
        checked(batch, rules)
    return refused.value


@pytest.mark.parametrize("codec", range(5))
def test_the_greatest_timestamp_is_that_of_the_records_whatever_the_header_says(codec):
    times = [5, 900, 7] * 20
    batch = bytearray(built_batch(times, codec=codec, size=30))
    batch[35:43] = struct.pack(">q", 10**6)
    assert checked(bytes(batch)) == 900


def test_records_without_timestamps_keep_none():
    batch = raw_batch(record(0, 0, None, b"x"), base_timestamp=-1)
    assert checked(batch, RecordRules(CAP, keyed=False, timestamps=(10, 20))) == -1


@pytest.mark.parametrize("codec", range(5))
def test_garbage_and_a_wrong_count_are_refused(codec):
    sound = built_batch([1, 2, 3], codec=codec, size=40)
    body = sound[HEADER_BYTES:]
    for count in (2, 4, 300):
        wrong = raw_batch(body, count, attributes=codec)
        assert refusal(wrong).code is ErrorCode.invalid_record
    garbage = raw_batch(b"\xff" * 70, 3, attributes=codec)
    due = ErrorCode.corrupt_message if codec else ErrorCode.invalid_record
    assert refusal(garbage).code is due


def test_each_record_without_a_key_is_named():
    rules = RecordRules(CAP, keyed=True, timestamps=None)
    records = [record(at, 0, None if at in (3, 70) else b"k", b"v") for at in range(100)]
    refused = refusal(raw_batch(b"".join(records), 100), rules)
    assert refused.code is ErrorCode.invalid_record
    assert [at for at, _ in refused.record_errors] == [3, 70]


def test_each_record_with_a_bad_timestamp_is_named_and_a_lower_bound_is_no_reason():
    rules = RecordRules(CAP, keyed=False, timestamps=(1000, 2000))
    refused = refusal(plain_batch([1000, 999, 2000, 2001]), rules)
    assert refused.code is ErrorCode.invalid_timestamp
    assert [at for at, _ in refused.record_errors] == [1, 3]
    assert [at for at, _ in refusal(plain_batch([1000, 999]), rules).record_errors] == [1]
    assert [at for at, _ in refusal(plain_batch([1000, 2001]), rules).record_errors] == [1]
    early_base = b"".join(record(at, 5, None, b"v") for at in range(40))
    assert checked(raw_batch(early_base, 40, base_timestamp=995), rules) == 1000
