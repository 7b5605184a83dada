"""Goal: a bounded read passes each offset once and in order, as a record or in an accepted loss.

Method: random segments and losses against a brute-force twin, which looks at one offset at a time.
"""

from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ledger.core.gaps import ENTRY_MAX
from ledger.core.slice_order import EntryRun, SliceOrder
from ledger.errors import CorruptFormat
from tests.ledger.test_accepted_losses import lost


class Record(NamedTuple):
    """A record of one entry."""

    first: int
    end: int
    entry: int


class World(NamedTuple):
    """A segment of one record per entry, and its accepted losses: runs of entries."""

    records: list[Record]
    losses: list[object]
    first: int
    end: int


@st.composite
def worlds(draw):
    sizes = draw(st.lists(st.integers(1, 5), min_size=1, max_size=20))
    at, records = 100, []
    for entry, size in enumerate(sizes):
        records.append(Record(at, at + size, entry))
        at += size
    gone = draw(st.lists(st.booleans(), min_size=len(sizes), max_size=len(sizes)))
    losses, start = [], None
    for each, lost_here in zip([*records, None], [*gone, False], strict=True):
        if start is not None and (not lost_here or draw(st.booleans())):
            stop = each.entry - 1 if each else len(sizes) - 1
            losses.append(lost(1, start, stop, records[start].first, records[stop].end - 1))
            start = None
        if lost_here and start is None:
            start = each.entry
    first = draw(st.integers(100, at - 1))
    return World(records, losses, first, draw(st.integers(first + 1, at)))


def read(order, world, *, found_again=False):
    """Read as a slice does. Returns the losses and the records that were delivered, in order."""
    delivered = []
    wanted = [r for r in world.records if r.end > world.first and r.first < world.end]
    entry, last = wanted[0].entry, wanted[-1].entry
    while (run := order.next_run(entry, last)) is not None:
        if found_again:
            run = EntryRun(entry, last)
        for each in [r for r in wanted if run.first <= r.entry <= run.last]:
            delivered += order.before(each.first)
            delivered += [each] if order.take(each.first, each.end) else []
        entry = run.last + 1
    return delivered + order.rest()


def twin(world):
    """Return the same, found by looking at each offset."""
    seen = []
    for offset in range(world.first, world.end):
        gone = [x for x in world.losses if x.offsets.first <= offset <= x.offsets.last]
        here = [r for r in world.records if r.first <= offset < r.end]
        (item,) = gone or here
        if item not in seen:
            seen.append(item)
    return seen


@given(worlds(), st.booleans())
def test_each_offset_is_passed_once_by_a_record_or_by_a_loss(world, found_again):
    order = SliceOrder("stream", world.first, world.end)
    order.learn(world.losses)
    assert read(order, world, found_again=found_again) == twin(world)
    assert order.complete


@given(worlds())
def test_offsets_that_no_loss_explains_are_an_error_or_leave_the_slice_incomplete(world):
    order = SliceOrder("stream", world.first, world.end)
    seen = [each for each in twin(world) if isinstance(each, Record)]
    try:
        for each in seen:
            assert order.before(each.first) == []
            order.take(each.first, each.end)
    except CorruptFormat:
        assert len(seen) < len(twin(world))
    else:
        assert order.complete == (len(seen) == len(twin(world)))


def test_a_loss_does_not_explain_offsets_before_it():
    order = SliceOrder("stream", 0, 30)
    order.learn([lost(1, 3, 4, 10, 19)])
    assert order.take(0, 5)
    assert order.before(20) == []
    with pytest.raises(CorruptFormat, match="expected record 5, read 20"):
        order.take(20, 30)


def test_a_loss_that_is_known_stays_when_truncation_removes_it_from_the_node():
    order = SliceOrder("stream", 0, 30)
    order.learn([lost(1, 3, 4, 10, 19)])
    order.learn([])
    assert order.is_lost(4)
    assert not order.is_lost(5)
    assert order.next_run(2, 9) == (2, 2)
    assert order.next_run(3, 9) == (5, 9)


def test_a_loss_that_is_learned_in_its_middle_covers_the_rest():
    order = SliceOrder("stream", 0, 30)
    assert order.take(0, 12)
    order.learn([lost(1, 3, 4, 10, 19)])
    assert [each.offsets.last for each in order.before(12)] == [19]
    assert not order.take(12, 20)
    assert order.take(20, 30)
    assert order.complete


def test_entries_without_offsets_are_left_out_and_nothing_is_delivered_for_them():
    order = SliceOrder("stream", 0, 20)
    order.learn([lost(1, 3, 4, 10, 9), lost(1, 8, ENTRY_MAX, 20, 2**40, exact=False)])
    assert order.next_run(0, 9) == (0, 2)
    assert order.next_run(5, 9) == (5, 7)
    assert order.next_run(8, 9) is None
    assert order.before(10) == []
    assert order.take(0, 10)
    assert order.take(10, 20)
    assert order.rest() == []
    assert order.complete


@pytest.mark.parametrize("at", [(11, 12), (5, 10), (0, 5)])
def test_a_record_that_does_not_follow_is_an_error(at):
    order = SliceOrder("stream", 0, 20)
    assert order.take(0, 10)
    with pytest.raises(CorruptFormat, match="expected record 10, read"):
        order.take(*at)
