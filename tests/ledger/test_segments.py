"""Goal: segment metadata are DistributedLog's bytes, and lists of segments have no holes.

Method: vectors of the format, random segments and lists.
"""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ledger.core import segments
from ledger.core.segments import EMPTY_TXID, Segment, Truncation, decode_segment
from ledger.errors import CorruptFormat
from tests.ledger.segment_chains import streams

OPEN = Segment(number=7, ledger=42, first_txid=100, start_sequence_id=100)
DONE = OPEN.complete(record_count=3, last_txid=102, last_entry=1, last_slot=2, completion_ms=1234)
i63 = st.integers(0, 2**63 - 1)


def fields(version, rest):
    """Return what may be the metadata of a segment, or may not."""
    return ";".join(map(str, (version, *rest))).encode()


@st.composite
def any_segment(draw):
    segment = Segment(
        number=draw(st.integers(1, 2**62)),
        ledger=draw(i63),
        first_txid=draw(i63),
        start_sequence_id=draw(i63),
        truncation=draw(st.sampled_from(Truncation)),
        min_active_entry=draw(i63),
        min_active_slot=draw(i63),
    )
    if draw(st.booleans()):
        return segment
    count = draw(st.integers(0, 2**31 - 1))
    return segment.complete(
        record_count=count,
        last_txid=draw(i63),
        last_entry=draw(st.integers(-1, 2**62)),
        last_slot=draw(st.integers(-1, 2**31)),
        completion_ms=draw(i63),
    )


def test_version_5_with_3_records_is_the_number_12884901893():
    assert DONE.encode().split(b";")[0] == b"12884901893"
    assert decode_segment(DONE.encode(), where="here").record_count == 3


def test_the_same_truncated_is_the_number_12884902405():
    truncated = replace(DONE, truncation=Truncation.TRUNCATED)
    assert truncated.encode().split(b";")[0] == b"12884902405"
    assert decode_segment(truncated.encode(), where="here").truncation is Truncation.TRUNCATED


def test_a_segment_in_progress_has_seven_fields_in_this_order():
    assert OPEN.encode() == b"5;42;100;7;0;0;100"


def test_a_completed_segment_has_eleven_fields_in_this_order():
    assert DONE.encode() == b"12884901893;42;100;102;1234;7;1;2;0;0;100"


def test_what_distributedlog_writes_in_progress_starts_nowhere_yet():
    assert decode_segment(b"5;42;100;7;0;0;-1", where="here").start_sequence_id == -1


def test_nodes_are_named_by_state_and_eighteen_digits():
    assert OPEN.node_name == "inprogress_000000000000000007"
    assert DONE.node_name == "logrecs_000000000000000007"


@given(any_segment())
def test_what_is_encoded_is_decoded(segment):
    assert decode_segment(segment.encode(), where="here") == segment


def test_a_segment_without_records_has_no_last_transaction():
    empty = OPEN.complete(record_count=0, last_txid=5, last_entry=3, last_slot=0, completion_ms=1)
    assert empty.last_txid == EMPTY_TXID
    assert empty.end_sequence_id == empty.start_sequence_id


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b";",
        b"5",
        b"x",
        b"7;1;2;3;4;5;6",
        b"9;1;2;3;4;5;6;7;8;9;10",
        b"10;1;2;3;4;5;6;7;8;9;10",
        b"9;1;2;3;4;5;6;7;8;9;10;6",
        b"9;1;2;3;4;5;6;7;8;9;10;0",
        b"7;1;2;3;4;5;6;7;8;9;10;5",
        b"4;1;2;3;4;5;6",
        b"5;1;2;3;4;5",
        b"\xff\xfe",
        b"5;1;2",
    ],
)
def test_other_versions_and_other_bytes_are_refused_by_path(data):
    with pytest.raises(CorruptFormat, match="/streams/here"):
        decode_segment(data, where="/streams/here")


@given(
    st.binary(max_size=40)
    | st.builds(fields, st.integers(4, 10), st.lists(st.integers(), min_size=5, max_size=12))
)
def test_any_bytes_are_refused_or_read_again_from_what_they_encode(data):
    try:
        segment = decode_segment(data, where="here")
    except CorruptFormat:
        return
    assert decode_segment(segment.encode(), where="here") == segment


def test_a_segment_cut_anywhere_is_refused_or_reads_as_a_shorter_number():
    whole = DONE.encode()
    for end in range(len(whole)):
        try:
            assert decode_segment(whole[:end], where="here") != DONE
        except CorruptFormat:
            pass


def test_of_two_nodes_of_one_number_the_completed_one_counts():
    assert segments.order([DONE, OPEN], where="here") == [DONE]
    assert segments.order([OPEN, DONE], where="here") == [DONE]


def test_a_missing_number_is_refused_but_not_at_the_head():
    five, six, seven = (replace(DONE, number=number) for number in (5, 6, 7))
    assert segments.order([seven, six, five], where="here") == [five, six, seven]
    with pytest.raises(CorruptFormat, match="segment 6 is missing"):
        segments.order([seven, five], where="here")


@given(streams())
def test_what_is_visible_ends_with_the_first_segment_in_progress(stream):
    after = [replace(OPEN, number=999, start_sequence_id=-1)]
    seen = segments.visible(stream + after if stream and not stream[-1].completed else stream)
    assert seen == stream


@given(streams())
def test_a_start_that_is_not_stored_follows_from_the_segment_before(stream):
    stored = [s if s.completed else replace(s, start_sequence_id=-1) for s in stream]
    due = stream if len(stream) > 1 else [replace(s, start_sequence_id=0) for s in stream]
    if stream and stream[0].completed:
        due = stream
    assert segments.visible(stored) == due


# Merged segments


def cleaned_parts(*counts, first=5):
    """Return cleaned segments of these record counts, from number `first` on."""
    found, start = [], 100
    for number, count in enumerate(counts, first):
        segment = replace(
            OPEN, number=number, first_txid=start, start_sequence_id=start, ledger=number
        ).complete(
            record_count=count,
            last_txid=start + count - 1,
            last_entry=3,
            last_slot=0,
            completion_ms=number,
        )
        found.append(segment.with_ledger(50 + number, 2, 0))
        start += count
    return found


def test_a_merged_segment_has_twelve_fields_the_last_one_its_lowest_number():
    merged = segments.merged_segment(cleaned_parts(3, 0, 4), 99, 8, 0)
    assert merged.encode() == b"%d;99;100;106;7;7;8;0;0;0;100;5" % (9 | 7 << 32)
    assert decode_segment(merged.encode(), where="here") == merged
    assert (merged.first_number, merged.number, merged.end_sequence_id) == (5, 7, 107)
    again = merged.with_ledger(100, 1, 0)
    assert (again.layout_version, again.merged_from, again.ledger) == (9, 5, 100)
    truncated = replace(merged, truncation=Truncation.TRUNCATED)
    assert decode_segment(truncated.encode(), where="here") == truncated


def test_a_node_name_shows_the_numbers_that_it_holds():
    one, *_ = parts = cleaned_parts(3, 0, 4)
    merged = segments.merged_segment(parts, 99, 8, 0)
    held = [number for number in range(12) if segments.names_segment(merged.node_name, number)]
    assert held == [5, 6, 7]
    for each in (one, DONE, OPEN):
        held = [number for number in range(12) if segments.names_segment(each.node_name, number)]
        assert held == [each.number]
    assert not segments.names_segment("other", 5)


def test_a_merged_segment_replaces_its_parts_in_any_order_and_at_any_age():
    before, *parts, after = cleaned_parts(2, 3, 4, 5, 6)
    merged = segments.merged_segment(parts, 99, 8, 0)
    inner = segments.merged_segment(parts[:2], 90, 8, 0)
    outer = segments.merged_segment([before, merged], 100, 8, 0)
    every = [before, *parts, after, merged, inner]
    assert segments.order(every, where="here") == [before, merged, after]
    assert segments.order(every[::-1], where="here") == [before, merged, after]
    assert segments.order([*every, outer], where="here") == [outer, after]


def test_a_list_with_a_hole_or_an_overlap_beside_a_merged_segment_is_refused():
    before, *parts, after = cleaned_parts(2, 3, 4, 5, 6)
    merged = segments.merged_segment(parts, 99, 8, 0)
    for wrong, text in [
        ([before, segments.merged_segment(parts[1:], 99, 8, 0), after], "segment 6 is missing"),
        ([before, segments.merged_segment(parts[:-1], 99, 8, 0), after], "segment 8 is missing"),
        ([before, replace(merged, merged_from=5), after], None),
        ([segments.merged_segment([before, *parts[:1]], 90, 1, 0), merged, after], "overlap"),
        ([before, merged, replace(after, start_sequence_id=115)], "begins at 115"),
        ([replace(before, record_count=1), merged, after], "ends at 101"),
    ]:
        if text is None:
            assert segments.order(wrong, where="here") == wrong[1:]
            continue
        with pytest.raises(CorruptFormat, match=text):
            segments.order(wrong, where="here")


def test_only_clean_whole_neighbours_may_be_merged():
    parts = cleaned_parts(2, 3, 4)
    assert segments.can_merge(parts)
    one, two, three = parts
    for wrong in [
        [],
        [one],
        [one, three],
        [two, one],
        [one, replace(two, layout_version=5)],
        [one.with_jump, two],
        [replace(one, truncation=Truncation.PARTIALLY_TRUNCATED), two],
        [one, replace(two, start_sequence_id=103)],
    ]:
        assert not segments.can_merge(wrong)
