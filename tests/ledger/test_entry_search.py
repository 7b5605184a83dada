"""Goal: an entry is found by few reads, also where entries are lost.

Method: random lists of keys with lost entries; the search's result is compared with a walk over
all entries, and its reads are counted.
"""

from math import ceil, log2

from hypothesis import given
from hypothesis import strategies as st

from ledger.core.entry_search import EntrySearch


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
