"""Goal: after any change, every lookup in a segment table agrees with a walk over all segments, and
retention removes exactly the segments that it may.

Method: random lists against plain loops. A table and a dumb twin go through the same random changes
of an owner and of a reader.
"""

from dataclasses import dataclass, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from ledger.core.epoch_table import EpochStart
from ledger.core.segment_table import SegmentTable
from ledger.core.segments import Segment, Truncation
from ledger.core.snapshot_format import SegmentSummary, StateSnapshot
from ledger.core.sparse_index import ANY_TIMESTAMP, NO_TIMESTAMP, SparseIndex
from ledger.errors import Truncated
from tests.ledger.segment_chains import chain, streams

OPEN = Segment(number=7, ledger=42, first_txid=100, start_sequence_id=100)
DONE = OPEN.complete(record_count=3, last_txid=102, last_entry=1, last_slot=2, completion_ms=1234)


@dataclass
class Live:
    """A segment that is written or followed; its records are one entry each."""

    number: int
    end_sequence_id: int
    last_entry: int = -1
    timestamp_max: int = NO_TIMESTAMP
    size_bytes: int = 0

    def __post_init__(self):
        self.index = SparseIndex(1)


def table_of(segments, *, sizes=None, start=0):
    sizes = sizes or [0] * len(segments)
    summaries = {
        s.number: SegmentSummary(s.number, 5, size, 1, s.start_sequence_id)
        for s, size in zip(segments, sizes, strict=True)
    }
    table = SegmentTable()
    table.reset(segments, summaries, SparseIndex(), 0, start_sequence_id=start, epoch=1)
    return table


# -- which segment --------------------------------------------------------------------------------


@given(streams(), st.integers(-5, 1500))
def test_a_sequence_id_is_found_where_a_plain_walk_finds_it(stream, sequence_id):
    found = table_of(stream).find(sequence_id)
    due = [s for s in stream if s.start_sequence_id <= sequence_id]
    assert found is (due[-1] if due else None)
    holders = [s for s in stream if s.start_sequence_id <= sequence_id < s.end_sequence_id]
    if holders:
        assert found is holders[0]


@given(streams(), st.integers(-5, 120))
def test_a_number_is_found_if_it_is_listed(stream, number):
    due = [s for s in stream if s.number == number]
    assert table_of(stream).segment(number) is (due[0] if due else None)


@pytest.mark.slow
@given(streams(), st.integers(-5, 1300), st.integers(0, 300), st.integers(0, 9))
def test_a_range_is_cut_at_the_segments_that_hold_it(stream, first, length, written):
    table = table_of(stream)
    if stream and not stream[-1].completed:
        at = stream[-1].start_sequence_id
        table.follow(Live(stream[-1].number, at + written, written - 1))
    parts = list(table.overlapping(first, first + length))
    holds = [
        (s, at)
        for s in stream
        for at in range(s.start_sequence_id, table.readable_end(s))
        if first <= at < first + length
    ]
    assert [(s, at) for s, low, high in parts for at in range(low, high)] == holds
    assert all(low < high for _, low, high in parts)


def test_an_index_is_looked_for_in_the_next_segment_that_has_an_entry():
    empty = replace(OPEN, number=8).complete(
        record_count=0, last_txid=-99, last_entry=-1, last_slot=-1, completion_ms=0
    )
    last = replace(OPEN, number=9, start_sequence_id=103)
    table = table_of([DONE, empty, last])
    assert table.next_with_entries(7) is None
    table.follow(live := Live(9, 103))
    assert table.next_with_entries(7) is None
    live.last_entry = 0
    assert table.next_with_entries(7) is last
    assert table.next_with_entries(9) is None


# -- how far a segment may be read ----------------------------------------------------------------


def test_a_segment_in_progress_is_readable_as_far_as_its_writer_or_follower_is():
    table = table_of([replace(DONE, number=6, start_sequence_id=97), OPEN])
    assert (table.last_readable_entry(OPEN), table.readable_end(OPEN)) == (-1, 100)
    table.follow(live := Live(7, 104, 3, timestamp_max=9, size_bytes=50))
    assert (table.last_readable_entry(OPEN), table.readable_end(OPEN)) == (3, 104)
    assert (table.timestamp_max_of(OPEN), table.size_of(OPEN)) == (9, 50)
    assert table.index(7) is live.index
    table.follow(Live(6, 5, 0))
    assert (table.last_readable_entry(OPEN), table.readable_end(OPEN)) == (-1, 100)
    assert table.readable_end(table.segments[0]) == 100, "a completed segment has its listed end"


def test_below_the_start_nothing_is_given():
    table = table_of([DONE], start=102)
    table.check_start(102)
    with pytest.raises(Truncated, match="101 is below the start 102"):
        table.check_start(101)


@given(streams(), st.data())
def test_no_segment_with_the_timestamp_is_left_out(stream, data):
    numbers = [segment.number for segment in stream]
    known = {n: data.draw(st.integers(-1, 9)) for n in numbers if data.draw(st.booleans())}
    summaries = {n: SegmentSummary(n, bound, 0, 1, 0) for n, bound in known.items()}
    table = SegmentTable()
    start = data.draw(st.integers(0, 1300))
    table.reset(stream, summaries, SparseIndex(), 0, start_sequence_id=start, epoch=1)
    timestamp, first = data.draw(st.integers(0, 9)), data.draw(st.integers(0, 1300))
    due = [
        s
        for s in stream
        if known.get(s.number, timestamp) >= timestamp
        and (
            not s.completed
            or any(at >= max(first, start) for at in range(s.start_sequence_id, s.end_sequence_id))
        )
    ]
    assert list(table.with_timestamp(timestamp, first)) == due
    assert table.timestamp_max == max(known.values(), default=NO_TIMESTAMP)


def test_a_lookup_by_time_sees_what_changed_since_the_last_one():
    segments = [
        replace(DONE, number=number, start_sequence_id=start, record_count=10)
        for number, start in ((1, 0), (2, 10), (3, 20))
    ]
    table = SegmentTable()
    known = {n: SegmentSummary(n, bound, 0, 1, 0) for n, bound in ((1, 0), (2, 0), (3, 5))}
    table.reset(segments, known, SparseIndex(), 0, start_sequence_id=0, epoch=1)
    assert list(table.with_timestamp(5, 0)) == segments[2:]
    table.move_start(15)
    assert list(table.with_timestamp(5, 0)) == segments[2:]
    later = [SegmentSummary(2, 9, 0, 1, 0)]
    table.learn(9, StateSnapshot(summaries=later))
    assert list(table.with_timestamp(5, 0)) == segments[1:]
    table.relist(segments[2:])
    assert list(table.with_timestamp(5, 0)) == segments[2:]


# -- truncation and retention ---------------------------------------------------------------------


@given(
    streams(),
    st.data(),
    st.integers(0, 2000),
    st.integers(-1, 1000),
    st.integers(-1, 100),
)
def test_retention_removes_the_oldest_as_far_as_it_may(stream, data, now_ms, ttl_ms, bytes_max):
    sizes = [data.draw(st.integers(0, 30)) for _ in stream]
    table = table_of(stream, sizes=sizes)
    removed = table.expired(now_ms=now_ms, ttl_ms=ttl_ms, bytes_max=bytes_max)
    holding = [at for at, s in enumerate(stream) if s.completed and s.last_entry >= 0]
    newest = holding[-1] if holding else 0
    assert removed <= newest, "the newest completed one with an entry stays"
    for at, segment in enumerate(stream[: removed + 1]):
        old = ttl_ms >= 0 and now_ms - segment.completion_ms >= ttl_ms
        heavy = bytes_max >= 0 and sum(sizes[at + 1 :]) >= bytes_max
        if at < removed:
            assert segment.completed
            assert old or heavy
        elif at < newest:
            assert not (old or heavy), "it could have gone"


def test_truncated_segments_go_when_their_grace_is_over_and_weigh_nothing():
    def done(number, truncation):
        open_one = replace(OPEN, number=number, ledger=number, truncation=truncation)
        return open_one.complete(
            record_count=3, last_txid=102, last_entry=1, last_slot=2, completion_ms=0
        )

    gone, whole = Truncation.TRUNCATED, Truncation.ACTIVE
    table = table_of([done(1, gone), done(2, gone), done(3, whole), done(4, whole)], sizes=[5] * 4)

    def removable(kept_long_enough=(), **more):
        bounds = {"now_ms": 10, "ttl_ms": -1, "bytes_max": -1} | more
        return table.expired(**bounds, kept_long_enough=kept_long_enough)

    assert removable() == 0
    assert removable({2}) == 0, "in order"
    assert removable({1}) == 1
    assert removable({1, 2}) == 2
    assert removable({1, 2}, bytes_max=5) == 3
    assert removable({1, 2}, bytes_max=6) == 2, "truncated segments count no bytes"
    assert removable(bytes_max=0) == 0, "within its grace it stays"
    assert removable(ttl_ms=5) == 3, "the newest completed one stays"


def test_an_empty_segment_does_not_push_out_the_last_state_snapshot():
    empty = replace(OPEN, number=8).complete(
        record_count=0, last_txid=-99, last_entry=-1, last_slot=-1, completion_ms=0
    )
    table = table_of([DONE, empty], sizes=[1, 1])
    assert table.expired(now_ms=10**9, ttl_ms=0, bytes_max=0) == 0


@given(st.lists(st.one_of(st.none(), st.integers(0, 20)), max_size=8), st.data())
def test_marks_are_due_on_completed_segments_below_the_start(sizes, data):
    stream = chain(data.draw, sizes)
    start = data.draw(st.integers(0, stream[-1].end_sequence_id + 2 if stream else 5))
    table = table_of(stream, start=start)
    due = table.unmarked()
    first_open = next((at for at, s in enumerate(stream) if not s.completed), len(stream))
    assert due == [s for s in stream[:first_open] if s.start_sequence_id < start]
    table.mark(
        [replace(s, truncation=Truncation.TRUNCATED) for s in due if s.end_sequence_id <= start]
    )
    assert table.unmarked() == [s for s in due if s.end_sequence_id > start]


# -- a dumb twin ----------------------------------------------------------------------------------


def index_of(number):
    """Return an index that differs from that of every other number."""
    index = SparseIndex()
    index.add(number, number, 1, number)
    return index


class Twins(RuleBasedStateMachine):
    """A table beside a list of rows, each with all facts about one segment."""

    @initialize(start=st.integers(0, 5))
    def begin(self, start):
        self.table = SegmentTable()
        self.table.reset([], {}, SparseIndex(), 0, start_sequence_id=start, epoch=1)
        self.rows = []  # [segment, epoch, timestamp_max, size]
        self.start = self.end = start
        self.epoch = 1
        self.removed_epoch = 1  # of the newest segment that was removed
        self.index_before = 0
        self.indexes = {}  # of completed segments with records, by number
        self.numbers = 0
        self.live = None

    # -- an owner's changes

    def last(self):
        return self.rows[-1][0] if self.rows else None

    def writing(self):
        return self.live is not None and self.last() is not None and not self.last().completed

    @precondition(lambda self: not self.writing())
    @rule()
    def a_segment_begins(self):
        self.numbers += 1
        start = self.end
        segment = Segment(number=self.numbers, ledger=1, first_txid=start, start_sequence_id=start)
        self.table.begin(segment)
        self.rows.append([segment, self.epoch, NO_TIMESTAMP, 0])
        self.live = Live(self.numbers, start)
        self.table.follow(self.live)

    @precondition(lambda self: self.writing())
    @rule(timestamp=st.integers(-1, 20), size=st.integers(1, 9))
    def a_record_is_durable(self, timestamp, size):
        self.live.index.add(self.live.end_sequence_id, self.live.last_entry + 1, size, timestamp)
        self.live.last_entry += 1
        self.live.end_sequence_id += 1
        self.live.size_bytes += size
        self.live.timestamp_max = max(self.live.timestamp_max, timestamp)

    @precondition(lambda self: self.writing())
    @rule(now_ms=st.integers(0, 100))
    def the_segment_is_completed(self, now_ms):
        live, segment = self.live, self.last()
        completed = segment.complete(
            record_count=live.end_sequence_id - segment.start_sequence_id,
            last_txid=live.end_sequence_id - 1,
            last_entry=live.last_entry,
            last_slot=0,
            completion_ms=now_ms,
        )
        self.table.complete(
            completed,
            timestamp_max=live.timestamp_max,
            size_bytes=live.size_bytes,
            index=live.index,
        )
        self.rows[-1] = [completed, self.epoch, live.timestamp_max, live.size_bytes]
        self.end = live.end_sequence_id
        if completed.record_count:
            self.index_before = completed.number
            self.indexes[completed.number] = live.index

    @precondition(lambda self: self.live is not None and not self.writing())
    @rule()
    def nothing_is_written(self):
        self.table.follow(None)
        self.live = None

    @rule(by=st.integers(0, 9))
    def the_start_moves(self, by):
        self.start = min(self.start + by, max(self.start, self.end))
        self.table.move_start(self.start)
        due = self.table.unmarked()
        whole = [
            replace(s, truncation=Truncation.TRUNCATED)
            for s in due
            if s.end_sequence_id <= self.start
        ]
        self.table.mark(whole)
        marked = {segment.number: segment for segment in whole}
        for row in self.rows:
            row[0] = marked.get(row[0].number, row[0])
        assert all(s.end_sequence_id > self.start for s in self.table.unmarked())

    @precondition(lambda self: len(self.rows) > 1)
    @rule()
    def the_oldest_is_removed(self):
        self.table.remove_oldest(1)
        self.removed_epoch = max(self.removed_epoch, self.rows.pop(0)[1])

    # -- what a reader does with a stored list

    @rule(head=st.integers(1, 30), epoch=st.integers(1, 9), timestamp=st.integers(-1, 20))
    def a_head_snapshot_is_read(self, head, epoch, timestamp):
        epoch = min([epoch, *(row[1] for row in self.rows if row[0].number > head)])
        epoch = max(epoch, self.removed_epoch)  # epochs never fall
        summaries = [
            SegmentSummary(row[0].number, timestamp, 3, epoch, row[0].start_sequence_id)
            for row in self.rows
            if row[0].number <= head
        ]
        self.table.learn(head, StateSnapshot(summaries=summaries))
        for row in self.rows:
            if row[0].number < head:
                row[1:] = [epoch, timestamp, 3]
            elif row[0].number == head:
                row[1] = epoch
        if summaries:
            self.epoch = max(self.epoch, epoch)

    @rule()
    def the_same_list_is_read_again(self):
        self.table.relist([row[0] for row in self.rows])

    @rule(by=st.integers(0, 3))
    def the_end_is_seen_to_move(self, by):
        if self.writing():
            return  # an owner moves its end only by completing a segment
        moved = self.table.move_end(self.end + by)
        assert moved is (by > 0)
        self.end += by

    def is_unwritten(self, sequence_id):
        last = self.last()
        return last.completed and sequence_id >= last.end_sequence_id

    # -- they agree

    @invariant()
    def both_find_the_same(self):
        table, rows = self.table, self.rows
        assert [row[0] for row in rows] == list(table.segments)
        assert (table.start_sequence_id, table.epoch) == (self.start, self.epoch)
        assert table.end_sequence_id == self.end
        sizes = 0
        for segment, _, timestamp_max, size in rows:
            if not segment.completed and self.live is not None:
                timestamp_max, size = self.live.timestamp_max, self.live.size_bytes
            sizes += size
            assert table.timestamp_max_of(segment) == timestamp_max
            assert table.size_of(segment) == size
            assert table.segment(segment.number) == segment
        assert table.size_bytes == sizes
        for sequence_id in range(-1, 12):
            holders = [row for row in rows if row[0].start_sequence_id <= sequence_id]
            if holders and holders[-1] is rows[-1] and self.is_unwritten(sequence_id):
                holders = []  # the present owner will write it
            assert table.epoch_at(sequence_id) == (holders[-1][1] if holders else self.epoch)
        last = self.last()
        assert table.in_progress == (last if last is not None and not last.completed else None)

    @invariant()
    def the_newest_indexes_are_known(self):
        listed = [row[0].number for row in self.rows if row[0].number in self.indexes]
        for number in listed[-16:]:
            assert self.table.index(number) is self.indexes[number]

    @invariant()
    def a_snapshot_holds_what_is_listed(self):
        snapshot = self.table.snapshot(SparseIndex(), b"state")
        known = [(s.number, s.epoch, s.timestamp_max, s.size_bytes) for s in snapshot.summaries]
        assert known == [(row[0].number, *row[1:]) for row in self.rows]
        assert snapshot.index_before_number == self.index_before
        assert snapshot.owner_state == b"state"


TestTwins = pytest.mark.slow(Twins.TestCase)


# -- what a reader learns -------------------------------------------------------------------------


def test_of_its_own_segment_a_head_snapshot_holds_only_the_epoch():
    table = SegmentTable()
    table.relist([replace(DONE, number=6, start_sequence_id=97), DONE])
    own = [SegmentSummary(6, 50, 1000, 4, 97), SegmentSummary(7, NO_TIMESTAMP, 0, 4, 100)]
    table.learn(7, StateSnapshot(summaries=own))
    assert [table.timestamp_max_of(s) for s in table.segments] == [50, ANY_TIMESTAMP]
    assert table.epoch_at(100) == table.epoch == 4
    later = [*own[:1], SegmentSummary(7, 60, 900, 4, 100)]
    table.learn(8, StateSnapshot(summaries=later))
    table.learn(7, StateSnapshot(summaries=own))
    assert [table.timestamp_max_of(s) for s in table.segments] == [50, 60]


def test_a_segment_without_summary_is_an_epoch_of_its_own():
    table = SegmentTable()
    table.relist([DONE])
    assert not table.knows(DONE)
    table.learn_own_epoch(7, 100)
    assert table.knows(DONE) and table.epoch_at(101) == table.epoch == 7
    assert table.timestamp_max_of(DONE) == ANY_TIMESTAMP
    table.learn(8, StateSnapshot(summaries=[SegmentSummary(7, 60, 900, 5, 100)]))
    table.learn_own_epoch(7, 100)
    assert (table.epoch_at(101), table.timestamp_max_of(DONE)) == (5, 60)


def segments_of(numbers):
    """Return completed segments of three records each, from offset 3 * number on."""
    return [replace(DONE, number=number, start_sequence_id=3 * number) for number in numbers]


def test_a_reader_keeps_no_row_of_the_segments_below_the_start():
    table = SegmentTable()
    for newest in range(8, 200):
        listed = segments_of(range(newest - 3, newest + 1))
        summaries = [SegmentSummary(s.number, 5, 9, s.number, 3 * s.number) for s in listed]
        table.learn(newest, StateSnapshot(summaries=summaries))
        table.relist(listed)
        table.move_start(listed[0].start_sequence_id)
        assert table._summaries.further == []
        assert [table.epoch_at(3 * s.number) for s in listed] == [s.number for s in listed]


def test_epochs_of_removed_segments_stay_until_the_start_passes_them():
    table = SegmentTable()
    listed = segments_of((5, 6, 7))
    table.learn(7, StateSnapshot(summaries=[SegmentSummary(n, 5, 9, n, 3 * n) for n in (5, 6, 7)]))
    table.relist(listed)
    table.relist(listed[2:])
    assert table.epoch_end(5, 24) == (5, 18)
    table.move_start(19)
    assert table._summaries.further == [(6, 19)]
    assert table.epoch_end(6, 24) == (6, 21)
    table.move_start(21)
    assert table._summaries.further == []


def test_the_epochs_of_a_merged_segment_need_no_order():
    table = SegmentTable()
    table.relist([DONE])
    own = [SegmentSummary(7, NO_TIMESTAMP, 0, 1, 100)]
    inside = [EpochStart(3, 102), EpochStart(2, 101)]
    table.learn(7, StateSnapshot(summaries=own, epochs=inside))
    assert [table.epoch_at(at) for at in (100, 101, 102)] == [1, 2, 3]


def test_indexes_are_kept_for_the_segments_that_were_used_last():
    stream = [replace(DONE, number=number) for number in range(1, 31)]
    table = table_of(stream)
    for number in range(1, 17):
        table.remember_index(number, index_of(number))
    assert table.index(1).entries[0] == 1
    table.remember_index(17, index_of(17))
    assert table.index(2) is None
    assert [n for n in range(1, 31) if table.index(n)] == [1, *range(3, 18)]
    table.remove_oldest(5)
    assert [n for n in range(1, 31) if table.index(n)] == list(range(6, 18))
    table.forget_indexes()
    assert not any(table.index(n) for n in range(1, 31))


def test_the_index_that_the_next_head_snapshot_needs_is_never_forgotten():
    table = table_of([replace(DONE, number=6, start_sequence_id=97)])
    table.begin(OPEN)
    index = index_of(7)
    table.complete(DONE, timestamp_max=1, size_bytes=1, index=index)
    for number in range(8, 40):
        table.remember_index(number, index_of(number))
    table.forget_indexes()
    assert table.index(7) is index
    snapshot = table.snapshot(index_of(8), b"")
    assert (snapshot.index_before_number, snapshot.index_before) == (7, index)
