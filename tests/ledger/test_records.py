"""Goal: records are DistributedLog's bytes, and the parser refuses all malformed bytes.

Method: vectors of the format, a plain parser as twin, cuts and flips at every byte.
"""

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ledger.core import records
from ledger.errors import CorruptFormat

sets = st.tuples(st.just("set"), st.integers(1, 2**31 - 1), st.binary(max_size=40))
controls = st.tuples(st.just("control"), st.just(0), st.binary(max_size=40))


def entry(*parts, distance=0):
    body = b"".join(parts)
    return records.envelope(len(body), distance) + body


def packed(kinds):
    """Return an entry of sets and control records, and the records that a reader must find."""
    parts, due = [], []
    position = slot = 0
    for kind, count, data in kinds:
        if kind == "set":
            parts.append(records.set_head(position + 1, 1000 + position + count, count, len(data)))
            parts.append(data)
            due.append((slot, position + 1, 1000 + position + count, count, False, data))
            position += count
            slot += count
        else:
            parts.append(records.control_record(position, 7, data))
            due.append((slot, position, 7, 0, True, data))
            slot += 1
    return entry(*parts), due


def parsed(payload):
    return [(*record[:5], bytes(record.data)) for record in records.parse_entry(payload)]


def test_a_plain_record_is_distributedlogs_vector():
    stored = bytes.fromhex("0000000000010000 00000000000003e8 00000005 68656c6c6f")
    assert parsed(entry(stored)) == [(0, 1, 1000, 1, False, b"hello")]


def test_an_envelope_is_version_codec_and_two_lengths():
    assert records.envelope(5, 0) == bytes.fromhex("01 00000000 00000005 00000005")


def test_a_record_set_says_its_count_and_its_lengths_twice():
    head = records.set_head(position=1, txid=9, count=3, size=4)
    assert head == struct.pack(">qqiiiii", 4 | 1 << 16, 9, 20, 0x1000, 3, 4, 4)


def test_a_control_record_repeats_the_position_and_spends_no_offset():
    payload, _ = packed([("set", 3, b"abc"), ("control", 0, b"x"), ("set", 2, b"de")])
    assert [(r.position, r.records) for r in records.parse_entry(payload)] == [
        (1, 3),
        (3, 0),
        (4, 2),
    ]


def test_an_end_of_stream_record_is_an_ordinary_one_to_the_parser():
    stored = records.RECORD.pack(2 | 5 << 16, 2**63 - 1, 3) + b"end"
    assert parsed(entry(stored)) == [(0, 5, 2**63 - 1, 1, False, b"end")]


@given(st.lists(sets | controls, max_size=8))
def test_what_was_packed_is_parsed(kinds):
    payload, due = packed(kinds)
    assert parsed(payload) == [
        (slot, position & records.POSITION_MAX, *rest) for slot, position, *rest in due
    ]


def test_data_are_views_and_no_copies():
    payload, _ = packed([("set", 1, b"abc")])
    (record,) = records.parse_entry(payload)
    assert record.data.obj is payload


@given(st.integers(0, records.SNAPSHOT_DISTANCE_MAX))
def test_the_way_back_to_the_snapshot_is_kept(distance):
    payload = entry(b"", distance=distance)
    assert records.snapshot_distance(payload) == distance
    assert parsed(payload) == []


def test_a_snapshot_too_far_back_counts_as_unknown():
    payload = entry(distance=records.SNAPSHOT_DISTANCE_MAX + 1)
    assert records.snapshot_distance(payload) == 0


def test_an_entry_cut_anywhere_is_refused():
    payload, _ = packed([("set", 3, b"abcdef"), ("control", 0, b"xyz"), ("set", 1, b"")])
    for end in range(len(payload)):
        with pytest.raises(CorruptFormat):
            parsed(payload[:end])


def test_records_cut_anywhere_under_a_right_envelope_are_refused():
    body, _ = packed([("set", 3, b"abcdef"), ("control", 0, b"xyz")])
    body = body[records.ENVELOPE_BYTES :]
    whole_records = {0, records.SET_HEAD_BYTES + 6, len(body)}
    for end in set(range(len(body))) - whole_records:
        with pytest.raises(CorruptFormat):
            parsed(entry(body[:end]))


@given(st.data())
def test_no_bytes_make_the_parser_fail_otherwise(data):
    payload, _ = packed(data.draw(st.lists(sets | controls, min_size=1, max_size=4)))
    damaged = bytearray(payload)
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(damaged) - 1))
        damaged[at] = data.draw(st.integers(0, 255))
    try:
        found = parsed(bytes(damaged))
    except CorruptFormat:
        return
    assert sum(len(record[-1]) for record in found) <= len(damaged)


@pytest.mark.parametrize(
    "head",
    [
        (2, 0, 0, 0),  # another version
        (1, 1, 0, 0),  # LZ4, which streams never have
        (1, 0, 1, 0),  # raw and stored differ
        (1, 0, 9, 9),  # longer than the entry
    ],
)
def test_an_envelope_that_we_never_write_is_refused(head):
    with pytest.raises(CorruptFormat):
        parsed(records.ENVELOPE.pack(*head))


@pytest.mark.parametrize(
    ("tag", "count", "raw", "stored"),
    [
        (0x1001, 1, 4, 4),
        (0x2000, 1, 4, 4),
        (0x1000, 0, 4, 4),
        (0x1000, -1, 4, 4),
        (0x1000, 1, 5, 4),
    ],
)
def test_a_record_set_that_we_never_write_is_refused(tag, count, raw, stored):
    head = records.SET_HEAD.pack(4 | 1 << 16, 0, 20, tag, count, raw, stored)
    with pytest.raises(CorruptFormat):
        parsed(entry(head, b"data"))


def stepped(payload, most):
    """Return what a reader of user records finds, `most` at a time."""
    view, at, found = memoryview(payload), 0, []
    while not at or at < len(view):
        some, at = records.user_records(view, at, most)
        assert len(some) <= most
        found += some
    return [(position, count, bytes(data)) for position, count, data in found]


@given(st.data(), st.integers(1, 5))
def test_a_reader_of_user_records_finds_what_the_parser_finds(data, most):
    kinds = st.lists(sets | controls, max_size=6)
    damaged = bytearray(packed(data.draw(kinds))[0])
    for _ in range(data.draw(st.integers(0, 3))):
        damaged[data.draw(st.integers(0, len(damaged) - 1))] = data.draw(st.integers(0, 255))
    try:
        due = [(each[1], each[3], each[5]) for each in parsed(bytes(damaged)) if not each[4]]
    except CorruptFormat:
        with pytest.raises(CorruptFormat):
            stepped(damaged, most)
        return
    assert stepped(damaged, most) == due


@pytest.mark.parametrize("size", [0, 5, 12])
def test_a_reader_of_user_records_refuses_what_is_no_entry(size):
    with pytest.raises(CorruptFormat):
        stepped(bytes(size), 9)
