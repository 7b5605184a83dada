"""Goal: a reader covers every position once and in order, by records, by a gap with exact bounds,
or silently; and the Kafka offsets of a gap are those of the records in it.

Method: the core is driven over random streams, with entries lost and plugged, trims and waits. A
brute-force twin knows what each position holds, and says of each alone what must come of it.
"""

from dataclasses import replace
from itertools import pairwise
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ledger.core.accepted_losses import NO_LOSSES, LostRange
from ledger.core.deliveries import Deliveries, ReadRange
from ledger.core.gaps import (
    ENTRY_MAX,
    LAST_POSITION,
    Acceptance,
    Evidence,
    Gap,
    GapKind,
    OffsetRange,
    Position,
    joined,
)
from ledger.core.loss import CopyAnswer, Verdict, state_of
from ledger.core.records import LogRecord
from ledger.core.segments import Segment
from ledger.errors import CorruptFormat, InvalidArgument

PROOF = Evidence(7, Verdict.COMPLETE, (state_of("B1", CopyAnswer.DENIED),))


class Entry(NamedTuple):
    """`counts` are the user records of its record sets; none: control records only."""

    counts: tuple[int, ...] = ()
    lost: bool = False
    hole: bool = False
    given_up: bool = False


ACCEPTED = PROOF._replace(acceptance=Acceptance(1, "operator"))


class Chain:
    """Segments from entries. The last one is in progress if `open_end`.

    Behind the segments of these numbers, `reserved` has the count of offsets that a forced close
    reserved.
    """

    def __init__(self, entries, open_end=False, reserved=()):
        self.entries = entries
        self.reserved = {at: count for at, count in dict(reserved).items() if at < len(entries)}
        self.segments = []
        self.offsets = {}  # of each entry: first, and one past the last
        self.losses = NO_LOSSES
        at = 0
        for number, held in enumerate(entries, 1):
            start = at
            for entry, each in enumerate(held):
                self.offsets[number, entry] = at, at + sum(each.counts)
                at += sum(each.counts)
            segment = Segment(number=number, ledger=number, first_txid=0, start_sequence_id=start)
            if number < len(entries) or not open_end:
                segment = segment.complete(
                    record_count=at - start,
                    last_txid=at - 1,
                    last_entry=len(held) - 1,
                    last_slot=0,
                    completion_ms=0,
                )
            self.segments.append(segment)
            for first, last in runs(held):
                low, high = self.offsets[number, first][0], self.offsets[number, last][1] - 1
                self._give_up(number, first, last, OffsetRange(low, high))
            count = self.reserved.get(number)
            if count is not None:
                self.offsets[number, len(held)] = at, at + count
                offsets = OffsetRange(at, at + count - 1, exact=False)
                self._give_up(number, len(held), ENTRY_MAX, offsets)
                at += count

    def _give_up(self, number, first, last, offsets):
        self.losses = self.losses.with_range(LostRange(number, first, last, offsets, ACCEPTED))

    def records(self, number, entry):
        held = self.entries[number - 1][entry]
        if held.hole:
            return []
        at = self.offsets[number, entry][0]
        start = self.segments[number - 1].start_sequence_id
        if not held.counts:
            return [LogRecord(0, at - start, at - 1, 0, True, memoryview(b""))]
        found, slot = [], 0
        for count in held.counts:
            data = memoryview(b"%d" % at)
            found.append(LogRecord(slot, at - start + 1, at + count - 1, count, False, data))
            slot, at = slot + count, at + count
        return found

    def positions(self):
        """Every position in order; a BRIDGE counts as one."""
        for segment in self.segments:
            held = self.entries[segment.number - 1]
            yield from (Position(segment.number, entry) for entry in range(len(held)))
            if segment.completed:
                yield Position(segment.number, len(held))


def runs(held):
    """The runs of entries that were given up, as (first, last)."""
    found = []
    for at, each in enumerate(held):
        if each.given_up and found and found[-1][1] == at - 1:
            found[-1] = found[-1][0], at
        elif each.given_up:
            found.append((at, at))
    return found


def step(chain, core):
    """Pass what the stream has at `next`. Returns None at the end of what is known."""
    number, entry = core.next
    if number > len(chain.segments):
        return None
    segment = chain.segments[number - 1]
    core.begin(segment)
    given_up = chain.losses.at_entry(number, entry)
    if given_up is not None:
        return core.on_accepted(given_up)
    held = chain.entries[number - 1]
    if entry < len(held):
        if held[entry].lost:
            return core.on_lost(entry, PROOF)
        return core.on_entry(entry, chain.records(number, entry))
    return core.on_segment_end(segment) if segment.completed else None


def read(chain, wanted, events=()):
    """Deliver all. `events`: number of the step -> "wait", or the position of a trim."""
    core, found, events = Deliveries(wanted), [], dict(events)
    for turn in range(10_000):
        event = events.get(turn)
        if event == "wait":
            found += core.on_wait()
        elif event is not None:
            found += core.on_trim(event, chain.offsets.get(event, (0,))[0])
        if core.done:
            return found
        some = step(chain, core)
        if some is None:
            return found + core.on_wait()
        found += some
    raise AssertionError("no end")


counts = st.lists(st.integers(1, 3), min_size=1, max_size=2).map(tuple)
kinds = st.one_of(
    counts.map(Entry),
    counts.map(Entry),
    st.sampled_from([(), (1,), (2, 1)]).map(lambda held: Entry(held, lost=True)),
    st.sampled_from([(), (1,), (2, 1)]).map(lambda held: Entry(held, given_up=True)),
    st.just(Entry()),
    st.just(Entry(hole=True)),
)
chains = st.builds(
    Chain,
    st.lists(st.lists(kinds, max_size=5), min_size=1, max_size=4),
    st.booleans(),
    st.dictionaries(st.integers(1, 3), st.integers(1, 50), max_size=2),
)


def twin(chain, first, until):
    """What each position alone must become, without trims and waits."""
    for at in chain.positions():
        if not first <= at <= until:
            continue
        held = chain.entries[at.segment - 1]
        if at.entry == len(held):
            reserved = at.segment in chain.reserved
            yield at, GapKind.DATALOSS if reserved else GapKind.BRIDGE
        elif held[at.entry].lost or held[at.entry].given_up:
            yield at, GapKind.DATALOSS
        elif held[at.entry].hole:
            yield at, GapKind.HOLE
        elif held[at.entry].counts:
            yield at, [chain.offsets[at][0] + n for n in range(sum(held[at.entry].counts))]


def spread(chain, found):
    """The deliveries, position by position."""
    for each in found:
        if not isinstance(each, Gap):
            at = Position(each[0].dlsn.segment, each[0].dlsn.entry)
            yield at, [r.offset + n for r in each for n in range(r.records)]
            continue
        for at in chain.positions():
            if each.first <= at <= each.last:
                yield at, each.kind


@given(st.data())
def test_every_position_is_covered_once_and_in_order(data):
    """Seed 002 L6, L26: records, BRIDGE, HOLE and DATALOSS as the twin says, each once."""
    chain = data.draw(chains)
    places = list(chain.positions()) or [Position(1, 0)]
    first, until = sorted(data.draw(st.tuples(*[st.sampled_from(places)] * 2)))
    until = data.draw(st.sampled_from([until, LAST_POSITION]))
    waits = data.draw(st.dictionaries(st.integers(0, 20), st.just("wait")))
    found = read(chain, ReadRange(first, until=until), waits)
    assert list(spread(chain, found)) == list(twin(chain, first, until))


@given(st.data())
def test_neighbouring_lost_entries_are_one_gap_with_exact_bounds(data):
    """Seed 002 L16: issued once, then the next record; offsets as the lost records had them."""
    chain = data.draw(chains)
    found = read(chain, ReadRange(Position(1, 0)))
    losses = [each for each in found if isinstance(each, Gap) and each.kind is GapKind.DATALOSS]
    for before, after in pairwise(losses):
        joint = before.last.segment == after.first.segment
        alike = before.evidence == after.evidence == PROOF
        assert not (joint and alike) or before.last.entry + 1 < after.first.entry
    for gap in losses:
        assert gap.first.segment == gap.last.segment
        accepted = chain.losses.at_entry(*gap.first) is not None
        assert gap.evidence == (ACCEPTED if accepted else PROOF)
        last = min(gap.last, Position(gap.last.segment, len(chain.entries[gap.last.segment - 1])))
        begin, end = chain.offsets[gap.first][0], chain.offsets[last][1]
        if gap.offsets.exact or accepted:
            assert (gap.offsets.first, gap.offsets.last) == (begin, end - 1)
        else:
            assert gap.offsets.first <= begin
            assert gap.offsets.last >= end - 1


@given(st.data())
def test_a_trim_covers_what_was_not_delivered_before_it(data):
    """Seed 002 L6: one TRIM up to the new start, also over lost entries that were not issued."""
    chain = data.draw(chains)
    entries = sorted(chain.offsets) or [(1, 0)]
    start = Position(*data.draw(st.sampled_from(entries)))
    turn = data.draw(st.integers(0, 12))
    found = read(chain, ReadRange(Position(1, 0)), {turn: start})
    spread_out = list(spread(chain, found))
    trimmed = {at for at, what in spread_out if what is GapKind.TRIM}
    assert all(at < start for at in trimmed)
    expected = dict(twin(chain, Position(1, 0), LAST_POSITION))
    places = [at for at in chain.positions() if at in expected or at in trimmed]
    assert [at for at, _ in spread_out] == places
    assert all(what == expected[at] for at, what in spread_out if at not in trimmed)
    assert sum(isinstance(each, Gap) and each.kind is GapKind.TRIM for each in found) <= 1


@given(chains, st.integers(0, 40))
def test_an_offset_leaves_out_what_is_below_it(chain, offset):
    """Whole record sets that end at or below the offset are left out, and no other."""
    found = read(chain, ReadRange(Position(1, 0), offset=offset))
    got = [r for each in found if not isinstance(each, Gap) for r in each]
    every = read(chain, ReadRange(Position(1, 0)))
    wanted = [r for each in every if not isinstance(each, Gap) for r in each]
    assert got == [r for r in wanted if r.offset + r.records > offset]


@given(chains, st.integers(0, 40))
def test_nothing_past_the_last_wanted_offset_is_delivered(chain, offset):
    found = read(chain, ReadRange(Position(1, 0), until_offset=offset))
    got = [r for each in found if not isinstance(each, Gap) for r in each]
    every = read(chain, ReadRange(Position(1, 0)))
    wanted = [r for each in every if not isinstance(each, Gap) for r in each]
    assert got == [r for r in wanted if r.offset <= offset]


def one_entry(*counts):
    return Chain([[Entry(counts)]])


def test_a_dlsn_begins_within_an_entry_and_ends_within_one():
    only = Position(1, 0)
    found = read(one_entry(2, 3, 1), ReadRange(only, slot=2, until=only, until_slot=4))
    assert [(r.dlsn, r.offset) for each in found for r in each] == [((1, 0, 2), 2)]


def test_a_slot_within_a_set_brings_the_whole_set():
    found = read(one_entry(2, 3, 1), ReadRange(Position(1, 0), slot=3))
    assert [r.offset for r in found[0]] == [2, 5]


def test_a_slot_past_the_last_one_is_refused_unless_it_follows_a_delivered_record():
    with pytest.raises(InvalidArgument, match=r"\(1, 0, 3\): the last slot of this entry is 2"):
        read(one_entry(3), ReadRange(Position(1, 0), slot=3))
    (bridge,) = read(one_entry(3), ReadRange(Position(1, 0), slot=3, after=True))
    assert bridge.kind is GapKind.BRIDGE


def test_a_missing_record_is_corruption_and_no_gap():
    core = Deliveries(ReadRange(Position(1, 0)))
    core.begin(Segment(number=1, ledger=1, first_txid=0, start_sequence_id=0))
    with pytest.raises(CorruptFormat, match="offset 1 follows offset 0"):
        core.on_entry(0, [LogRecord(0, 2, 1, 1, False, memoryview(b""))])


def test_an_accepted_loss_that_was_delivered_in_part_begins_behind_what_was_delivered():
    chain = Chain([[Entry((2,)), Entry((2,)), Entry((2,))], [Entry((1,))]], reserved={1: 90})
    core = Deliveries(ReadRange(Position(1, 0)))
    for _ in range(2):
        step(chain, core)
    lost = LostRange(1, 1, ENTRY_MAX, OffsetRange(2, 95, exact=False), ACCEPTED)
    (gap,) = core.on_accepted(lost)
    assert gap == (GapKind.DATALOSS, (1, 2), (1, ENTRY_MAX), (4, 95, False), ACCEPTED)
    assert core.next == (2, 0)
    core.begin(chain.segments[1])
    assert [r.offset for r in core.on_entry(0, chain.records(2, 0))[0]] == [96]


def test_records_behind_a_loss_with_an_unknown_side_may_lie_at_its_offsets():
    chain = Chain([[Entry((1,)), Entry((1,)), Entry((1,))]], open_end=True)
    core = Deliveries(ReadRange(Position(1, 0)))
    step(chain, core)
    (gap,) = core.on_accepted(LostRange(1, 1, 1, OffsetRange(1, 5, exact=False), ACCEPTED))
    assert gap.offsets == (1, 5, False)
    assert [r.offset for r in step(chain, core)[0]] == [2]


@pytest.mark.parametrize(("until", "last"), [((1, 2), (1, 2)), ((2, 0), (1, ENTRY_MAX))])
def test_an_accepted_loss_ends_at_until(until, last):
    chain = Chain([[Entry((1,))], []], reserved={1: 5})
    found = read(chain, ReadRange(Position(1, 0), until=Position(*until)))
    assert (found[1].first, found[1].last) == ((1, 1), last)


def test_a_segment_that_begins_past_the_end_of_the_one_before_it_is_corruption():
    chain = Chain([[Entry((2,))], [Entry((1,))]])
    core = Deliveries(ReadRange(Position(1, 0)))
    for _ in range(2):
        step(chain, core)
    with pytest.raises(CorruptFormat, match="begins at offset 9, and the one before it ends at"):
        core.begin(replace(chain.segments[1], start_sequence_id=9))


@pytest.mark.parametrize("kind", [GapKind.ACCESS, GapKind.NOTINCONFIG])
def test_a_refused_key_and_a_deleted_stream_end_the_reader(kind):
    """The gap runs to `until`; what was proved lost before it is issued first."""
    chain = Chain([[Entry((2,)), Entry((1,), lost=True), Entry((1,))]])
    core = Deliveries(ReadRange(Position(1, 0), until=Position(3, 4)))
    core.begin(chain.segments[0])
    core.on_entry(0, chain.records(1, 0))
    core.on_lost(1, PROOF)
    loss, end = core.on_end(kind)
    assert (loss.kind, loss.first, loss.last) == (GapKind.DATALOSS, (1, 1), (1, 1))
    assert (end.kind, end.first, end.last) == (kind, (1, 2), (3, 4))
    assert core.done


def test_a_trim_may_span_many_segments():
    chain = Chain([[Entry((1,))], [], [Entry((1,))], [Entry((1,)), Entry((1,))]])
    gap, *_ = read(chain, ReadRange(Position(1, 0)), {0: Position(4, 1)})
    assert (gap.kind, gap.first, gap.last) == (GapKind.TRIM, (1, 0), (4, 0))
    assert gap.offsets == (0, 2, True)
    gap, *_ = read(chain, ReadRange(Position(2, 0)), {0: Position(4, 0)})
    assert (gap.first, gap.last) == ((2, 0), (3, ENTRY_MAX))
    assert gap.offsets == (0, 1, False)


def test_what_a_trim_covered_up_to_within_a_segment_is_covered_once():
    """The entry of the new start is among lost ones, so the trim ends before all of them."""
    chain = Chain([[Entry((3,))], [Entry((1,), lost=True), Entry((2,), lost=True), Entry((1,))]])
    core = Deliveries(ReadRange(Position(1, 0)))
    step(chain, core)
    (before,) = core.on_trim(Position(2, 0), 4)
    assert (before.kind, before.first, before.offsets) == (GapKind.TRIM, (1, 1), (3, 3, True))
    while core.next < (2, 2):
        assert step(chain, core) == []
    (behind,) = core.on_trim(Position(2, 2), 6)
    assert (behind.kind, behind.first, behind.offsets) == (GapKind.TRIM, (2, 0), (4, 5, True))


@pytest.mark.parametrize(("slot", "exact"), [(0, True), (1, False)])
def test_a_trim_from_an_entry_that_may_be_partly_read_has_no_exact_offsets(slot, exact):
    """A reader that is resumed behind a record cannot know the offset, once the entry is lost."""
    chain = Chain([[Entry((1,))], [Entry((2,), lost=True), Entry((1,))], [Entry((1,))]])
    core = Deliveries(ReadRange(Position(2, 0), slot=slot, after=slot > 0))
    assert step(chain, core) == []
    (gap,) = core.on_trim(Position(3, 0), 4)
    assert (gap.kind, gap.first, gap.offsets) == (GapKind.TRIM, (2, 0), (1, 3, exact))


def test_joined_evidence_is_weak_if_a_part_is_and_accepted_only_together():
    weak = Evidence(7, Verdict.NON_AUTHORITATIVE, (state_of("B1", CopyAnswer.LOST),))
    both = joined([PROOF, weak])
    assert both.verdict is Verdict.NON_AUTHORITATIVE
    assert [(c.bookie, c.answer) for c in both.copies] == [
        ("B1", CopyAnswer.DENIED),
        ("B1", CopyAnswer.LOST),
    ]
    accepted = PROOF._replace(acceptance=Acceptance(1, "operator"))
    assert joined([accepted, PROOF]).acceptance is None
    assert joined([accepted, accepted]).acceptance == accepted.acceptance


# The cases of LogDevice's ClientReadStreamTest, by meaning. Its LSN e1n1 is our position (1, 0).


def kept(*entries):
    """One segment: a number holds that many records, `None` is lost, "hole" is a plug."""
    return [
        Entry((1,), lost=True)
        if each is None
        else Entry(hole=True)
        if each == "hole"
        else Entry((each,))
        for each in entries
    ]


def told(chain, until=LAST_POSITION, events=()):
    """Offsets of records, and (kind, first entry, last entry) of gaps but BRIDGE."""
    found = read(chain, ReadRange(Position(1, 0), until=until), events)
    return [
        (each.kind.name, each.first.entry, each.last.entry)
        if isinstance(each, Gap)
        else [r.offset for r in each]
        for each in found
        if not (isinstance(each, Gap) and each.kind is GapKind.BRIDGE)
    ]


def open_chain(*entries):
    return Chain([kept(*entries)], open_end=True)


def test_simple_gap():
    assert told(open_chain(None, None, 1, 1)) == [("DATALOSS", 0, 1), [2], [3]]


def test_two_gaps():
    found = told(open_chain(None, None, None, None, 1, None, 1))
    assert found == [("DATALOSS", 0, 3), [4], ("DATALOSS", 5, 5), [6]]


def test_gap_after_delivered():
    found = told(open_chain(1, 1, None, None, None, 1, 1))
    assert found == [[0], [1], ("DATALOSS", 2, 4), [5], [6]]


def test_multiple_gaps_inside_window_are_one_gap_here():
    """LogDevice reports one gap for each answer; entries here are dense, so neighbours join."""
    assert told(open_chain(None, None, None, None, 1)) == [("DATALOSS", 0, 3), [4]]


def test_epoch_bump_and_an_empty_epoch():
    chain = Chain([kept(1), [], kept(1)], open_end=True)
    found = read(chain, ReadRange(Position(1, 0)))
    bridges = [(each.kind, each.first, each.last) for each in found if isinstance(each, Gap)]
    assert bridges == [
        (GapKind.BRIDGE, (1, 1), (1, ENTRY_MAX)),
        (GapKind.BRIDGE, (2, 0), (2, ENTRY_MAX)),
    ]


def test_non_monotonic_gaps_are_split_at_the_trim_point():
    chain = open_chain(1, *[None] * 20, 1)
    found = told(chain, events={15: Position(1, 11)})
    assert found == [[0], ("TRIM", 1, 10), ("DATALOSS", 11, 20), [21]]


def test_a_trim_gap_ends_at_until():
    chain = open_chain(*[1] * 20)
    assert told(chain, Position(1, 9), {0: Position(1, 15)}) == [("TRIM", 0, 9)]


def test_a_lower_trim_after_a_higher_one_changes_nothing():
    chain = open_chain(*[1] * 8)
    found = told(chain, events={0: Position(1, 6), 1: Position(1, 4)})
    assert found == [("TRIM", 0, 5), [6], [7]]


def test_data_loss_at_log_end():
    chain = open_chain(None, None, 1, None, None, None)
    assert told(chain, Position(1, 4)) == [("DATALOSS", 0, 1), [2], ("DATALOSS", 3, 4)]


def test_hole_gap():
    found = told(open_chain(1, None, "hole", 1))
    assert found == [[0], ("DATALOSS", 1, 1), ("HOLE", 2, 2), [2]]


def test_moot_gap_then_proper_gap():
    assert told(open_chain(1, 1, None, None, None)) == [[0], [1], ("DATALOSS", 2, 4)]
