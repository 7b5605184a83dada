"""Goal: an entry is found by few reads, also where entries are lost, and a record that lies in a
lost entry is told from one that is readable.

Method: random lists of entries, some of them lost; the result is compared with a walk over all
entries, and the reads are counted.
"""

from math import ceil, log2

from hypothesis import given, settings
from hypothesis import strategies as st

from ledger.core.entry_search import LOST_MAX, EntrySearch, PlaceSearch
from ledger.core.loss import EntryAwaited, EntryLost
from ledger.core.records import LogRecord


def run(keys, lost, target, high, hint=None):
    search, reads = EntrySearch(0, high, hint), []
    while (at := search.wanted) is not None:
        reads.append(at)
        if at in lost:
            search.on_lost(at)
        else:
            search.on_read(at, keys[at] >= target)
    return search.result, reads


@given(st.lists(st.integers(0, 30), min_size=1).map(sorted), st.integers(0, 31), st.booleans())
def test_the_first_entry_at_or_past_the_target_is_found(keys, target, last_is_known):
    """Seed 000 D26: at most ceil(log2(n + 1)) reads, one less if the last entry is known."""
    known = last_is_known and keys[-1] >= target
    high = len(keys) - 1 if known else len(keys)
    result, reads = run(keys, (), target, high)
    assert result == next((n for n, key in enumerate(keys) if key >= target), len(keys))
    assert len(reads) <= ceil(log2(high + 1))


@given(st.data())
def test_lost_entries_are_stepped_over_and_asked_for_once(data):
    """The result is the first lost entry behind the last one that is known to be below."""
    keys = sorted(data.draw(st.lists(st.integers(0, 30), min_size=1)))
    lost = data.draw(st.sets(st.integers(0, len(keys) - 1)))
    target = data.draw(st.integers(0, 31))
    hint = data.draw(st.none() | st.integers(0, len(keys)))
    result, reads = run(keys, lost, target, len(keys), hint)
    below = [n for n, key in enumerate(keys) if n not in lost and key < target]
    assert result == max(below, default=-1) + 1
    assert len(set(reads)) == len(reads)


def test_a_right_hint_at_the_low_end_costs_one_read():
    search = EntrySearch(399, 999, hint=399)
    assert search.wanted == 399
    search.on_read(399, reached=True)
    assert (search.wanted, search.result) == (None, 399)


@settings(deadline=None)
@given(st.integers(1, 3000), st.data())
def test_a_long_run_of_lost_entries_is_left_after_few_reads(count, data):
    first = data.draw(st.integers(0, count - 1))
    end = data.draw(st.integers(first + 1, count))
    target = data.draw(st.integers(0, count))
    result, reads = run(range(count), range(first, end), target, count)
    assert len(reads) <= LOST_MAX + 3 * ceil(log2(count + 1)) + 2
    assert result == (first if first <= target <= end else target)


START = 100


def records_of(begin, end):
    """An entry with these offsets, as one record set; a control record if it has none."""
    if begin == end:
        return [LogRecord(0, end - START, 0, 0, True, memoryview(b""))]
    return [LogRecord(0, begin - START + 1, 0, end - begin, False, memoryview(b""))]


def find(counts, lost, awaited, target, *, low=0, error=None):
    bounds = [START]
    for each in counts:
        bounds.append(bounds[-1] + each)
    search = PlaceSearch(low, len(counts), start_sequence_id=START, sequence_id=target, error=error)
    asked = []
    while (at := search.wanted) is not None:
        asked.append(at)
        if at in lost:
            search.on_error(at, EntryLost(f"entry {at}", 7, at, ()))
        elif at in awaited:
            search.on_error(at, EntryAwaited(f"entry {at}"))
        else:
            search.on_records(at, records_of(bounds[at], bounds[at + 1]))
    return search.place, bounds, asked


@settings(deadline=None)
@given(st.data())
def test_a_record_is_found_or_the_error_of_an_entry_that_may_hold_it(data):
    counts = data.draw(st.lists(st.integers(0, 3), min_size=1, max_size=30))
    lost = data.draw(st.sets(st.integers(0, len(counts) - 1)))
    target = START + data.draw(st.integers(0, sum(counts) + 1))
    place, bounds, asked = find(counts, lost, (), target)
    assert len(asked) == len(set(asked))
    holder = next((n for n in range(len(counts)) if bounds[n] <= target < bounds[n + 1]), None)
    if holder is not None and holder not in lost:
        assert place == (holder, bounds[holder], None)
        return
    readable = [n for n in range(len(counts)) if n not in lost]
    behind = next((n for n in readable if bounds[n] > target), None)
    assert place.sequence_id == (None if behind is None else bounds[behind])
    assert place.entry == (len(counts) if behind is None else behind)
    before = max((n for n in readable if bounds[n + 1] <= target), default=-1)
    if holder is not None:
        assert isinstance(place.error, EntryLost)
        assert before < place.error.entry < place.entry


def test_the_neighbour_of_a_lost_entry_is_asked_first():
    error = EntryLost("entry 4", 7, 4, ())
    place, _, asked = find([1] * 1000, {4}, (), START + 4, low=5, error=error)
    assert (asked, place) == ([5], (5, START + 5, error))
    place, _, asked = find([1] * 1000, {4}, (), START + 5, low=5, error=error)
    assert (asked, place) == ([5], (5, START + 5, None))


def test_an_entry_that_cannot_be_read_now_is_named_before_a_lost_one():
    """Its bookie may yet return the record, so the record is not proved lost."""
    place, *_ = find([1] * 9, {3, 5}, {4}, START + 4)
    assert isinstance(place.error, EntryAwaited)
    place, *_ = find([1] * 9, {3, 5}, {4}, START + 6)
    assert place == (6, START + 6, None)


def test_few_entries_are_asked_whose_bookies_do_not_answer():
    place, _, asked = find([1] * 1000, (), range(1000), START + 4)
    assert isinstance(place.error, EntryAwaited)
    assert len(asked) == 3
