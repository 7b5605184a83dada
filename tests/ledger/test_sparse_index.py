"""Goal: a seek by the index never starts past its target, nor more than a stride before it.
Method: random entries against a plain list; bytes round and cut.
"""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ledger.core.sparse_index import NO_TIMESTAMP, SparseIndex
from ledger.errors import CorruptFormat

STRIDE = 100


@st.composite
def entries(draw):
    """(first sequence id, entry, size, greatest timestamp), as a writer adds them."""
    made, sequence_id, entry = [], draw(st.integers(0, 5)), draw(st.integers(0, 2))
    for _ in range(draw(st.integers(0, 40))):
        size, timestamp = draw(st.integers(1, 150)), draw(st.integers(-1, 60))
        made.append((sequence_id, entry, size, timestamp))
        sequence_id += draw(st.integers(1, 9))
        entry += draw(st.integers(1, 3))
    return made, sequence_id


def built(made):
    index = SparseIndex(STRIDE)
    for one in made:
        index.add(*one)
    return index


@given(entries(), st.integers(0, 400))
def test_a_seek_starts_at_or_before_the_entry_within_a_stride(case, wanted):
    made, _ = case
    start = built(made).entry_for(wanted)
    before = [one for one in made if one[0] <= wanted]
    if not before:
        assert start == (made[0][1] if made and made[0][0] <= wanted else 0)
        return
    holder = before[-1]
    assert start <= holder[1]
    skipped = sum(size for _, entry, size, _ in before[:-1] if entry >= start)
    assert skipped < STRIDE + 150


@pytest.mark.slow
@given(entries(), st.integers(-1, 61), st.integers(0, 400))
def test_a_timestamp_is_never_passed_by(case, timestamp, start):
    made, end = case
    found = next((low for low, _ in built(made).stretches_with(timestamp, start)), None)
    ends = [one[0] for one in made[1:]] + [end] * bool(made)
    due = [
        max(one[0], start)
        for one, after in zip(made, ends, strict=True)
        if one[3] >= timestamp and after > start
    ]
    if due:
        assert found is not None
        assert start <= found <= due[0]
    if found is not None:
        assert found >= start


@given(entries(), st.integers(-1, 61), st.integers(0, 400))
def test_every_stretch_but_the_first_has_the_timestamp(case, timestamp, start):
    """Seed 000 D26: so a lookup reads no stretch in vain but the one that holds its start."""
    made, end = case
    stretches = list(built(made).stretches_with(timestamp, start))
    assert all(low >= start for low, _ in stretches)
    for low, following in stretches[1:]:
        after = end if following is None else following
        assert any(low <= one[0] < after and one[3] >= timestamp for one in made)


def test_nothing_is_found_in_an_index_without_points():
    index = SparseIndex(STRIDE)
    assert index.entry_for(5) == 0
    assert list(index.stretches_with(0, 0)) == []
    assert index.timestamp_max == NO_TIMESTAMP


@given(entries())
def test_the_greatest_timestamp_is_known(case):
    made, _ = case
    assert built(made).timestamp_max == max((one[3] for one in made), default=NO_TIMESTAMP)


@given(entries())
def test_what_is_encoded_is_decoded_and_leaves_the_index_as_it_was(case):
    index = built(case[0])
    data = index.encode()
    again = SparseIndex.decode(memoryview(data))
    assert again.encode() == index.encode() == data
    assert list(again.entries) == list(index.entries)


@pytest.mark.slow
@given(entries(), entries())
def test_a_decoded_index_grows_on(case, more):
    """The index of a recovered segment is the snapshot's, extended by the later entries."""
    made, end = case
    index = SparseIndex.decode(built(made).encode())
    last = made[-1][1] if made else 0
    added = [(end + one[0], last + 1 + one[1], one[2], one[3]) for one in more[0]]
    for one in added:
        index.add(*one)
    for sequence_id, entry, _, timestamp in made + added:
        assert index.entry_for(sequence_id) <= entry
        assert any(True for _ in index.stretches_with(timestamp, 0))


def test_the_bytes_are_three_columns_of_big_endian_numbers():
    index = built([(5, 0, 100, 7), (9, 1, 100, 3)])
    numbers = (5, 9, 0, 1, 7, 3)
    assert index.encode() == b"\0\0\0\x02" + b"".join(n.to_bytes(8, "big") for n in numbers)


def test_an_index_cut_anywhere_or_too_long_is_refused():
    whole = built([(5, 0, 100, 7), (9, 1, 100, 3)]).encode()
    for end in range(len(whole)):
        with pytest.raises(CorruptFormat):
            SparseIndex.decode(whole[:end])
    with pytest.raises(CorruptFormat):
        SparseIndex.decode(whole + b"\0")


def test_a_count_without_bytes_takes_no_memory():
    with pytest.raises(CorruptFormat):
        SparseIndex.decode(b"\xff\xff\xff\xff" + bytes(24))


@pytest.mark.slow
@given(entries(), st.integers(0, 400), st.integers(1, 400))
def test_no_record_of_a_range_has_a_timestamp_above_its_bound(case, first, length):
    made, end = case
    bound = built(made).timestamp_max_between(first, first + length)
    ends = [one[0] for one in made[1:]] + [end] * bool(made)
    inside = [
        one[3]
        for one, after in zip(made, ends, strict=True)
        if one[0] < first + length and after > first
    ]
    if bound is None:
        assert not made or first < made[0][0]
    else:
        assert all(timestamp <= bound for timestamp in inside)


@given(entries(), st.integers(0, 400))
def test_points_around_a_place_are_entries_that_begin_there(case, wanted):
    made, _ = case
    index = built(made)
    at, entry = index.point_before(wanted)
    assert (at, entry) == (-1, 0) or (at <= wanted and (at, entry) in [one[:2] for one in made])
    assert index.entry_for(wanted) == entry
    after = index.entry_from(wanted)
    assert after is None or all(one[1] < after for one in made if one[0] < wanted)
