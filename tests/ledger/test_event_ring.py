"""Goal: the ring keeps the newest events, in order, and says how many were dropped before them."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from ledger.events import TEXT_MAX, EventKind, EventRing


def ring_with(count: int, size: int) -> EventRing:
    ring = EventRing(size)
    for number in range(1, count + 1):
        ring.add(EventKind.ROLL, 1000 + number, {"segment": number})
    return ring


@given(count=st.integers(0, 40), size=st.integers(1, 20), after=st.integers(0, 50))
def test_the_events_behind_a_number_are_the_newest_ones_in_order(count, size, after):
    ring = ring_with(count, size)
    kept = range(max(1, count - size + 1), count + 1)
    assert [each.number for each in ring.after(after, 100)] == [n for n in kept if n > after]
    assert ring.newest == count


@given(count=st.integers(1, 40), size=st.integers(1, 20), step=st.integers(1, 5))
def test_reading_in_steps_meets_every_event_that_is_kept_once(count, size, step):
    ring = ring_with(count, size)
    found: list[int] = []
    while more := ring.after(found[-1] if found else 0, step):
        assert len(more) <= step
        found += [each.number for each in more]
    assert found == list(range(max(1, count - size + 1), count + 1))


def test_a_fact_is_cut_to_its_bound():
    ring = EventRing(2)
    ring.add(EventKind.CHANGE, 5, {"group": "g" * 5000, "partition": 3})
    (event,) = ring.after(0, 10)
    assert event.facts == {"group": "g" * TEXT_MAX, "partition": 3}
    assert (event.at_ms, event.kind) == (5, "change")
