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
        b"4;1;2;3;4;5;6",
        b"5;1;2;3;4;5",
        b"\xff\xfe",
        b"5;1;2",
    ],
)
def test_other_versions_and_other_bytes_are_refused_by_path(data):
    with pytest.raises(CorruptFormat, match="/streams/here"):
        decode_segment(data, where="/streams/here")


@given(st.binary(max_size=40))
def test_no_bytes_fail_otherwise(data):
    try:
        decode_segment(data, where="here")
    except CorruptFormat:
        pass


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
