"""Goal: the accepted losses of a stream survive as written, or are refused by path.

Method: values through bytes and back, hostile documents, two operators at once on a real store.
"""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ledger.core.accepted_losses import (
    NO_LOSSES,
    RANGES_MAX,
    LostRange,
    StreamLosses,
    decode_losses,
    encode_losses,
)
from ledger.core.gaps import ENTRY_MAX, Acceptance, Evidence, OffsetRange, Position
from ledger.core.loss import CopyAnswer, Verdict, state_of
from ledger.errors import CorruptFormat, InvalidArgument
from ledger.ids import BookieId, EntryId, LedgerId
from ledger.ports.metadata import NODE_BYTES_MAX
from ledger.sealed import seal


def lost(segment, first, last, low, high, *, exact=True, bookies=3):
    copies = tuple(
        state_of(BookieId(f"bookie-with-a-long-name-{n}.example.org:3181"), CopyAnswer.DENIED)
        for n in range(bookies)
    )
    evidence = Evidence(
        LedgerId(segment * 100), Verdict.COMPLETE, copies, 0, Acceptance(1_700_000_000_000, "ops")
    )
    return LostRange(
        segment, EntryId(first), EntryId(last), OffsetRange(low, high, exact), evidence
    )


TWO = StreamLosses((lost(1, 3, 4, 20, 39), lost(1, 9, ENTRY_MAX, 90, 2**30, exact=False)))


def test_what_was_encoded_is_decoded():
    assert decode_losses(encode_losses(TWO), "/losses") == TWO
    assert decode_losses(b"", "/losses") == NO_LOSSES


def test_a_node_has_room_for_all_ranges_of_seven_bookies():
    full = StreamLosses(
        tuple(
            lost(n + 1, 2**40, 2**41, n * 2**40, n * 2**40 + 2**39, bookies=7)
            for n in range(RANGES_MAX)
        )
    )
    assert len(encode_losses(full)) <= NODE_BYTES_MAX
    with pytest.raises(InvalidArgument, match="1000 accepted losses"):
        full.with_range(lost(RANGES_MAX + 1, 0, 0, 2**60, 2**60))


def test_a_range_is_found_by_each_of_its_offsets_and_by_no_other():
    assert [TWO.at_offset(offset) for offset in (19, 20, 39, 40, 89, 90, 2**30, 2**30 + 1)] == [
        None, TWO.ranges[0], TWO.ranges[0], None, None, TWO.ranges[1], TWO.ranges[1], None,
    ]  # fmt: skip


@given(st.lists(st.tuples(st.integers(1, 4), st.integers(0, 12), st.integers(0, 3)), max_size=8))
def test_a_range_is_found_by_each_of_its_entries_and_by_the_entries_before_it(places):
    losses, offset = NO_LOSSES, 0
    for segment, first, more in sorted(set(places)):
        before = losses.ranges[-1] if losses.ranges else None
        if before is None or (before.segment, before.last) < (segment, first):
            added = lost(segment, first, first + more, offset, offset + more)
            losses, offset = losses.with_range(added), offset + more + 1
    for segment in range(6):
        for entry in range(18):
            own = [each for each in losses.ranges if each.segment == segment]
            holds = [each for each in own if each.first <= entry <= each.last]
            assert losses.at_entry(segment, entry) == next(iter(holds), None)
            behind = [each for each in own if each.first > entry]
            assert losses.first_behind(segment, entry) == next(iter(behind), None)


def test_offsets_behind_a_ledger_closed_by_force_are_passed_over():
    assert TWO.end_after(1, 90) == 2**30 + 1
    assert TWO.end_after(2, 90) == 90
    assert StreamLosses(TWO.ranges[:1]).end_after(1, 90) == 90


def test_accepting_the_same_again_changes_nothing_and_an_overlap_is_refused():
    assert TWO.with_range(lost(1, 3, 4, 20, 39)) is TWO
    for first, last in ((2, 3), (4, 5), (3, 3), (0, 8), (9, 9)):
        with pytest.raises(InvalidArgument, match="overlap"):
            TWO.with_range(lost(1, first, last, 10, 19))
    between = TWO.with_range(lost(1, 5, 5, 40, 41))
    assert [each.first for each in between.ranges] == [3, 5, 9]


def test_a_range_stays_until_truncation_has_passed_all_of_it():
    assert TWO.without_below(Position(1, EntryId(4))) is TWO
    assert TWO.without_below(Position(1, EntryId(5))).ranges == TWO.ranges[1:]
    assert TWO.without_below(Position(2, EntryId(0))) == NO_LOSSES


def changed(**values):
    document = json.loads(encode_losses(TWO).split(b" ", 2)[2])
    document["ranges"][0].update(values)
    return seal(document)


@pytest.mark.parametrize(
    "data",
    [
        encode_losses(TWO)[:-1],
        encode_losses(TWO).replace(b"1 ", b"2 ", 1),
        encode_losses(TWO).replace(b"complete", b"compleat"),
        seal({}),
        seal({"ranges": {}}),
        seal({"ranges": [1]}),
        seal({"ranges": [{}]}),
        seal({"ranges": [{}] * (RANGES_MAX + 1)}),
        changed(entries=[4, 3]),
        changed(entries=[-1, 3]),
        changed(entries=[3, 9]),
        changed(entries=[3, 4.0]),
        changed(entries=[True, 4]),
        changed(offsets=[30, 10]),
        changed(offsets=[20, 95]),
        changed(offsets="20-30"),
        changed(segment=2),
        changed(segment=0),
        changed(exact=1),
        changed(by=None),
        changed(at_ms=-1),
        changed(at_ms=10**15),
        changed(verdict="incomplete?"),
        changed(copies=[["b1", "denied"]]),
        changed(copies=[["b1", "denied", 9]]),
        changed(copies=[[1, "denied", 0]]),
    ],
)
def test_a_node_that_cannot_be_trusted_is_an_error_with_its_path(data):
    with pytest.raises(CorruptFormat, match=r"^/losses: .*; .*upgrade; .*restore the node"):
        decode_losses(data, "/losses")


def test_the_name_of_an_operator_reaches_no_terminal_with_control_characters():
    stored = decode_losses(changed(by="\x1b[31mops\x9b\u202e\n@höst"), "/losses")
    acceptance = stored.ranges[0].evidence.acceptance
    assert acceptance.by == "\ufffd[31mops\ufffd\ufffd\ufffd@höst"
    assert decode_losses(encode_losses(stored), "/losses") == stored


@given(st.binary(max_size=200))
def test_any_bytes_decode_or_are_refused(data):
    try:
        assert decode_losses(data, "/losses") == NO_LOSSES
    except CorruptFormat:
        pass
