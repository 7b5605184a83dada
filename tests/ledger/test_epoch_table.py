"""Goal: an epoch table answers as Kafka's LeaderEpochFileCache does, whatever its log's start is.

Method: random owners that write nothing or a few records, held against a transcription of Kafka's
class; and segment tables whose segments are removed or merged.
"""

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from ledger.core.epoch_table import EpochEnd, EpochStart, EpochTable
from ledger.core.segment_table import SegmentTable
from ledger.core.segments import Segment
from ledger.core.snapshot_format import SegmentSummary, decode_snapshot
from ledger.core.sparse_index import SparseIndex


class KafkaCache:
    """LeaderEpochFileCache of Kafka 4.3: `assign`, `truncateFromStart`, `endOffsetFor`."""

    def __init__(self):
        self.entries = {}

    def assign(self, epoch, start):
        newest = max(self.entries, default=None)
        if newest is not None and newest == epoch and start >= self.entries[newest]:
            return
        for other in sorted(self.entries, reverse=True):
            if other < epoch and self.entries[other] < start:
                break
            del self.entries[other]
        self.entries[epoch] = start

    def truncate_from_start(self, start):
        removed = []
        for epoch in sorted(self.entries):
            if self.entries[epoch] > start:
                break
            removed.append(epoch)
            del self.entries[epoch]
        if removed:
            self.entries[removed[-1]] = start

    def end_offset_for(self, epoch, end):
        if epoch == -1:
            return None
        if self.entries and max(self.entries) == epoch:
            return EpochEnd(epoch, end)
        higher = [each for each in sorted(self.entries) if each > epoch]
        if not higher:
            return None
        floor = [each for each in sorted(self.entries) if each <= epoch]
        return EpochEnd(floor[-1] if floor else epoch, self.entries[higher[0]])


owners = st.lists(st.tuples(st.integers(1, 3), st.integers(0, 4)), max_size=8)
"""For each owner, by how much the epoch rises, and how many records it writes."""


@given(owners, st.integers(0, 30))
def test_an_epoch_ends_where_it_ends_in_kafka(written, start):
    kafka, entries, epoch, end = KafkaCache(), [], -1, 0
    for step, count in written:
        epoch += step
        kafka.assign(epoch, end)
        entries.append((epoch, end))
        end += count
    start = min(start, end)
    kafka.truncate_from_start(start)
    table = EpochTable(entries)
    for asked in range(-3, epoch + 3):
        assert table.end_of(asked, start, end) == kafka.end_offset_for(asked, end)
    assert dict(table.entries_from(start)) == kafka.entries


# -- the table of a stream ------------------------------------------------------------------------


def segment(number, start, count):
    begun = Segment(number=number, ledger=number, first_txid=start, start_sequence_id=start)
    return begun.complete(
        record_count=count,
        last_txid=start + count - 1,
        last_entry=count - 1,
        last_slot=0,
        completion_ms=1,
    )


def table_of(rows, *, epoch, start=0, epochs=()):
    """Return the table of segments (number, start, count, epoch)."""
    table = SegmentTable()
    table.reset(
        [segment(*row[:3]) for row in rows],
        {row[0]: SegmentSummary(row[0], 5, 10, row[3], row[1]) for row in rows},
        SparseIndex(),
        0,
        start_sequence_id=start,
        epoch=epoch,
        epochs=epochs,
    )
    return table


ROWS = [(1, 0, 10, 0), (2, 10, 10, 0), (3, 20, 10, 2), (4, 30, 10, 3)]


def test_an_ownership_without_a_segment_begins_at_the_end():
    table = table_of(ROWS, epoch=6)
    assert table.epoch_end(6, 40) == (6, 40)
    assert table.epoch_end(3, 40) == table.epoch_end(5, 40) == (3, 40)
    assert table.epoch_end(1, 40) == (0, 20)
    assert table.epoch_end(7, 40) is None
    table.begin(Segment(number=7, ledger=7, first_txid=40, start_sequence_id=40))
    assert table.epoch_end(6, 45) == (6, 45)
    assert table.epoch_end(5, 45) == (3, 40)


def test_the_epochs_of_an_empty_stream_are_those_of_its_owner():
    table = table_of([], epoch=0)
    assert table.epoch_end(0, 0) == (0, 0)
    assert table.epoch_end(1, 0) is None


def test_removed_segments_leave_the_answer_that_their_truncation_made():
    kept, removed = table_of(ROWS, epoch=6, start=25), table_of(ROWS, epoch=6)
    removed.remove_oldest(2)
    removed.move_start(25)
    for asked in range(-2, 9):
        assert removed.epoch_end(asked, 40) == kept.epoch_end(asked, 40)
    assert removed.epoch_end(0, 40) == (0, 25)
    assert removed.snapshot(SparseIndex(), b"").epochs == []  # the summaries show them all


def merged():
    """Return a table in which one segment has the records of epochs 1 to 3."""
    rows = [(1, 0, 10, 0), (2, 10, 30, 1), (3, 40, 10, 4)]
    return table_of(rows, epoch=5, epochs=[EpochStart(2, 20), EpochStart(3, 30)])


def test_epochs_within_a_merged_segment_are_known():
    table = merged()
    assert [table.epoch_at(at) for at in (0, 10, 19, 20, 29, 30, 39, 40, 50)] == [
        *(0, 1, 1, 2, 2, 3, 3, 4, 5)
    ]
    assert [table.epoch_end(epoch, 50) for epoch in range(7)] == [
        *((0, 10), (1, 20), (2, 30), (3, 40), (4, 50), (5, 50), None)
    ]


def test_a_snapshot_hands_on_the_epochs_that_no_summary_shows():
    taken = decode_snapshot(merged().snapshot(SparseIndex(), b"state").encode())
    assert taken.epochs == [(2, 20), (3, 30)]
    assert taken.owner_state == b"state"
    listed = {s.number: s for s in merged().segments}
    reader = SegmentTable()
    reader.relist(listed.values())
    assert not reader.knows_epochs
    for _ in range(2):
        reader.learn(4, taken)
    assert reader.knows_epochs
    assert [reader.epoch_end(epoch, 50) for epoch in (1, 2, 3)] == [(1, 20), (2, 30), (3, 40)]


def test_epochs_below_the_start_are_dropped():
    table = merged()
    table.move_start(25)
    assert table.snapshot(SparseIndex(), b"").epochs == [(2, 25), (3, 30)]
    assert table.epoch_end(1, 50) == (1, 25)
    table.move_start(40)
    assert table.snapshot(SparseIndex(), b"").epochs == []


def test_a_segment_without_records_needs_no_epoch():
    table = SegmentTable()
    table.relist([segment(1, 0, 10), replace(segment(2, 10, 0), last_entry=-1)])
    table.learn_own_epoch(1, 0)
    assert table.knows_epochs
