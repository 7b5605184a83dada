"""Goal: a state snapshot is decoded completely or refused. Method: random snapshots, split and
joined; cuts at every byte, flips, missing, foreign and repeated parts.
"""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ledger.core.epoch_table import EpochStart
from ledger.core.snapshot_format import (
    MAGIC,
    SegmentSummary,
    StateSnapshot,
    decode_snapshot,
    is_part,
    join,
    split,
)
from ledger.core.sparse_index import SparseIndex
from ledger.errors import CorruptFormat

i64 = st.integers(-(2**63), 2**63 - 1)


@st.composite
def indexes(draw):
    index = SparseIndex(1)
    for number, timestamp in enumerate(draw(st.lists(i64, max_size=4))):
        index.add(number, number, 1, timestamp)
    return index


@st.composite
def snapshots(draw):
    return StateSnapshot(
        summaries=[
            SegmentSummary(*five) for five in draw(st.lists(st.tuples(*[i64] * 5), max_size=3))
        ],
        index_before=draw(indexes()),
        index_before_number=draw(i64),
        index=draw(indexes()),
        owner_state=draw(st.binary(max_size=60)),
        epochs=[EpochStart(*two) for two in draw(st.lists(st.tuples(i64, i64), max_size=3))],
    )


EXAMPLE = StateSnapshot(
    summaries=[SegmentSummary(1, 2, 3, 4, 5)],
    index_before_number=6,
    owner_state=b"state of the owner",
)


def same(one, other):
    alike = one.summaries == other.summaries and one.epochs == other.epochs
    return alike and one.encode() == other.encode()


@given(snapshots(), st.integers(1, 100))
def test_a_snapshot_in_any_number_of_parts_comes_back(snapshot, part_bytes):
    parts = split(snapshot.encode(), part_bytes)
    assert all(is_part(part) for part in parts)
    assert same(decode_snapshot(join(parts)), snapshot)


def test_what_follows_the_last_part_does_not_matter():
    whole = EXAMPLE.encode()
    assert join([*split(whole, 20), *split(b"another one", 4)]) == whole
    assert join([*split(whole, 20), b"anything"]) == whole


@given(st.data())
def test_without_one_of_its_parts_a_snapshot_does_not_count(data):
    parts = split(EXAMPLE.encode(), 20)
    missing = data.draw(st.integers(0, len(parts) - 1))
    assert join(parts[:missing] + parts[missing + 1 :]) is None
    assert join(parts[:missing]) is None


def test_parts_of_two_snapshots_never_make_one():
    one, other = split(EXAMPLE.encode(), 20), split(b"x" + EXAMPLE.encode()[1:], 20)
    with pytest.raises(CorruptFormat):
        join(one[:2] + other[2:])


def test_a_flipped_byte_in_any_part_is_refused_or_is_no_part():
    parts = split(EXAMPLE.encode(), 20)
    for number, part in enumerate(parts):
        for at in range(len(part)):
            damaged = bytearray(part)
            damaged[at] ^= 0x40
            try:
                found = join([*parts[:number], bytes(damaged), *parts[number + 1 :]])
            except CorruptFormat:
                continue
            assert found is None or found == EXAMPLE.encode()


def test_a_part_cut_in_its_head_is_refused():
    (part,) = split(b"whole")
    for end in range(16):
        with pytest.raises(CorruptFormat):
            join([part[:end]])


def test_records_of_others_are_no_parts():
    assert not is_part(b"control")
    assert not is_part(memoryview(b"LSS"))
    assert is_part(MAGIC)
    assert join([b"no snapshot at all"]) is None
    assert join([]) is None


def test_a_snapshot_cut_at_any_byte_is_refused():
    for whole in (EXAMPLE.encode(), replace(EXAMPLE, epochs=[EpochStart(2, 5)]).encode()):
        for end in range(len(whole)):
            with pytest.raises(CorruptFormat):
                decode_snapshot(whole[:end])
        with pytest.raises(CorruptFormat):
            decode_snapshot(whole + b"\0")


def test_only_a_snapshot_with_epochs_is_refused_by_releases_without_them():
    assert EXAMPLE.encode()[0] == 1
    assert replace(EXAMPLE, epochs=[EpochStart(2, 5)]).encode()[0] == 2


@given(snapshots(), st.data())
def test_a_changed_byte_is_refused_or_read_again_from_what_it_encodes(snapshot, data):
    whole = bytearray(snapshot.encode())
    whole[data.draw(st.integers(0, len(whole) - 1))] = data.draw(st.integers(0, 255))
    try:
        read = decode_snapshot(bytes(whole))
    except CorruptFormat:
        return
    assert same(decode_snapshot(read.encode()), read)


def test_another_version_is_refused_by_its_number():
    with pytest.raises(CorruptFormat, match="version 03"):
        decode_snapshot(b"\x03" + EXAMPLE.encode()[1:])
