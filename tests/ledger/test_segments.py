"""Goal: segment metadata are DistributedLog's bytes; positions find their segment; retention
removes what it may and no more. Method: vectors of the format, plain twins on random lists."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ledger.core import segments
from ledger.core.segments import EMPTY_TXID, Segment, Truncation, decode_segment
from ledger.errors import CorruptFormat

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


def chain(draw, sizes):
    """Consecutive segments of these record counts; None: in progress."""
    made, start = [], draw(st.integers(0, 1000))
    first = draw(st.integers(1, 100))
    for number, size in enumerate(sizes, first):
        segment = Segment(number=number, ledger=number, first_txid=start, start_sequence_id=start)
        if size is not None:
            segment = segment.complete(
                record_count=size,
                last_txid=start + size - 1,
                last_entry=0,
                last_slot=0,
                completion_ms=draw(st.integers(0, 1000)),
            )
        made.append(segment)
        start = segment.end_sequence_id
    return made


@st.composite
def streams(draw):
    sizes = draw(st.lists(st.integers(0, 20), max_size=12))
    return chain(draw, [*sizes, None] if draw(st.booleans()) else sizes)


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
        b"6;1;2;3;4;5;6",
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


@given(streams(), st.integers(-5, 1500))
def test_a_sequence_id_is_found_where_a_plain_walk_finds_it(stream, sequence_id):
    at = segments.find(stream, sequence_id)
    due = [i for i, s in enumerate(stream) if s.start_sequence_id <= sequence_id]
    assert at == max(due, default=-1)
    holders = [s for s in stream if s.start_sequence_id <= sequence_id < s.end_sequence_id]
    if holders:
        assert stream[at] is holders[0]


@given(
    streams(),
    st.data(),
    st.integers(0, 2000),
    st.integers(-1, 1000),
    st.integers(-1, 100),
)
def test_retention_removes_the_oldest_as_far_as_it_may(stream, data, now_ms, ttl_ms, bytes_max):
    sizes = [data.draw(st.integers(0, 30)) for _ in stream]
    removed = segments.expired(
        stream, now_ms=now_ms, ttl_ms=ttl_ms, bytes_max=bytes_max, sizes=sizes
    )
    completed = [segment for segment in stream if segment.completed]
    assert removed <= max(len(completed) - 1, 0), "the newest completed one stays"
    for at, segment in enumerate(stream[: removed + 1]):
        old = ttl_ms >= 0 and now_ms - segment.completion_ms >= ttl_ms
        heavy = bytes_max >= 0 and sum(sizes[at + 1 :]) >= bytes_max
        if at < removed:
            assert segment.completed
            assert old or heavy
        elif segment in completed[:-1]:
            assert not (old or heavy), "it could have gone"


def test_truncated_segments_go_when_their_grace_is_over_and_weigh_nothing():
    def done(number, truncation):
        open_one = replace(OPEN, number=number, ledger=number, truncation=truncation)
        return open_one.complete(
            record_count=3, last_txid=102, last_entry=1, last_slot=2, completion_ms=0
        )

    gone, whole = Truncation.TRUNCATED, Truncation.ACTIVE
    stream = [done(1, gone), done(2, gone), done(3, whole), done(4, whole)]

    def removable(kept_long_enough=(), **more):
        bounds = {"now_ms": 10, "ttl_ms": -1, "bytes_max": -1} | more
        return segments.expired(
            stream, **bounds, sizes=[5, 5, 5, 5], kept_long_enough=kept_long_enough
        )

    assert removable() == 0
    assert removable({2}) == 0, "in order"
    assert removable({1}) == 1
    assert removable({1, 2}) == 2
    assert removable({1, 2}, bytes_max=5) == 3
    assert removable({1, 2}, bytes_max=6) == 2, "what is truncated weighs nothing"
    assert removable(bytes_max=0) == 0, "within its grace it stays"
    assert removable(ttl_ms=5) == 3, "the newest completed one stays"


def test_an_empty_segment_does_not_push_out_the_last_state_snapshot():
    empty = replace(OPEN, number=8).complete(
        record_count=0, last_txid=-99, last_entry=-1, last_slot=-1, completion_ms=0
    )
    assert segments.expired([DONE, empty], now_ms=10**9, ttl_ms=0, bytes_max=0, sizes=[1, 1]) == 0


@given(st.lists(st.one_of(st.none(), st.integers(0, 20)), max_size=8), st.data())
def test_marks_are_due_on_completed_segments_below_the_start(sizes, data):
    stream = chain(data.draw, sizes)
    start = data.draw(st.integers(0, stream[-1].end_sequence_id + 2 if stream else 5))
    due = segments.unmarked(stream, start)
    first_open = next((at for at, s in enumerate(stream) if not s.completed), len(stream))
    assert due == [s for s in stream[:first_open] if s.start_sequence_id < start]
    marked = [
        replace(s, truncation=Truncation.TRUNCATED)
        if s in due and s.end_sequence_id <= start
        else s
        for s in stream
    ]
    assert segments.unmarked(marked, start) == [s for s in due if s.end_sequence_id > start]
