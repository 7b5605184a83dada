"""Goal: a partition never loses, duplicates, reorders or changes acknowledged records in a crash.

Method: the real partition, streams, ledger client and bookies on virtual time, over simulated
disks and metadata with power cuts, lost replies, takeovers, rolls and truncation drawn by seed;
`StreamsWorld` compares every acknowledged record with the log. Then known mistakes are planted, and
each must be found. Repeat a seed with `python -m tests.sim.test_streams SEED [SEED]`.
"""

import sys

import pytest
from kio.schema.errors import ErrorCode

from gateway.core.producer_states import ProducerStates
from ledger.core.segments import Segment
from ledger.errors import MetadataUnavailable
from ledger.streams.reads import SegmentReads
from ledger.streams.segment_store import SegmentStore
from ledger.streams.stream import Stream
from ledger.streams.tail_cache import StreamTail
from ledger.streams.writer import SegmentWriter
from tests.sim import first_seeds
from tests.sim.loop import simulate
from tests.sim.seeds import first_at_commit, repeat, run_world
from tests.sim.streams_world import StreamsWorld

pytestmark = pytest.mark.slow

SEEDS = 500
BLOCKS = 10
PLANTED_SEEDS_MAX = 600


def run(seed):
    """Return the errors found with this seed. A hang or a crash counts as one."""
    return run_world(StreamsWorld, seed)


@pytest.mark.parametrize("block", first_at_commit(range(BLOCKS), 1))
def test_every_promise_of_a_partition_is_kept(block):
    for seed in range(block * SEEDS // BLOCKS, (block + 1) * SEEDS // BLOCKS):
        assert run(seed) == [], f"repeat with: python -m tests.sim.test_streams {seed}"


def test_a_seed_tells_the_same_story_twice():
    def story(seed):
        world = StreamsWorld(seed)
        simulate(world.run())
        return [
            (sent.number, sent.attempt, sent.offset, sent.state) for sent in world.sent.values()
        ]

    assert story(7) == story(7)


# -- planted mistakes: each one is a way to be wrong that the world must see ----------------------


def snapshot_holds_accepted_batches(patch):
    """After a crash the state has sequences that the log lacks: false duplicates."""
    encode = ProducerStates.encode
    patch.setattr(ProducerStates, "encode", lambda self, end_offset: encode(self, 2**62))


def snapshot_forgets_producers(patch):
    patch.setattr(ProducerStates, "encode", lambda self, end_offset: b"")


def head_snapshot_is_missing(patch):
    write = SegmentWriter.write_snapshot

    def write_snapshot(self):
        if self.number == 1:
            write(self)

    patch.setattr(SegmentWriter, "write_snapshot", write_snapshot)


def next_segment_takes_records_before_the_last_is_closed(patch):
    """The segment starts at the apparent end of the last one, which the list contradicts."""

    async def complete_later(self, writer):
        complete = Segment.complete
        segment = self.segments[-1]
        completed = complete(
            segment,
            record_count=writer.durable_count,
            last_txid=writer.last_txid,
            last_entry=writer.last_dlsn.entry,
            last_slot=writer.last_dlsn.slot,
            completion_ms=0,
        )
        self._table.mark([completed])

    patch.setattr(Stream, "_complete_segment", complete_later)


def readers_see_the_end_too_early(patch):
    append = SegmentWriter.append

    def acknowledge_at_once(self, data, size, count, timestamp_max, on_durable):
        append(self, data, size, count, timestamp_max, lambda error: None)
        self.end_sequence_id = self.next_sequence_id
        self._loop.call_soon(on_durable, None)

    patch.setattr(SegmentWriter, "append", acknowledge_at_once)


def a_retry_is_appended_again(patch):
    patch.setattr(ProducerStates, "check", lambda self, *batch: ErrorCode.none)


def a_reader_keeps_its_idea_of_a_segment(patch):
    """A cursor of a segment that was completed meanwhile moves to the next one."""
    fill = SegmentReads._fill

    async def skip_to_the_next(self, cursor):
        segment = self._table.segment(cursor.number)
        at_end = segment is not None and segment.completed and not cursor.ready
        if at_end and self._table.segment(cursor.number + 1) is not None and cursor.next_entry > 1:
            cursor.number, cursor.next_entry, cursor.ahead = cursor.number + 1, 0, None
        return await fill(self, cursor)

    patch.setattr(SegmentReads, "_fill", skip_to_the_next)


def the_cache_leaves_a_record_out(patch):
    append = StreamTail.append

    def append_most(self, record):
        if record.sequence_id % 37:
            append(self, record)

    patch.setattr(StreamTail, "append", append_most)


def truncation_forgets_the_start(patch):
    remove = SegmentStore.remove

    async def remove_only(self, segments, start_sequence_id):
        await remove(self, segments, 0)

    patch.setattr(SegmentStore, "remove", remove_only)


def a_lost_reply_counts_as_done(patch):
    async def multi(self, ops):
        try:
            await self._metadata.multi(ops)
        except MetadataUnavailable:
            pass

    patch.setattr(SegmentStore, "_multi", multi)


PLANTED = [
    snapshot_holds_accepted_batches,
    snapshot_forgets_producers,
    head_snapshot_is_missing,
    next_segment_takes_records_before_the_last_is_closed,
    readers_see_the_end_too_early,
    a_retry_is_appended_again,
    a_reader_keeps_its_idea_of_a_segment,
    the_cache_leaves_a_record_out,
    truncation_forgets_the_start,
    a_lost_reply_counts_as_done,
]


@pytest.mark.parametrize("plant", PLANTED, ids=lambda plant: plant.__name__)
def test_a_planted_mistake_is_found(plant, monkeypatch):
    plant(monkeypatch)
    assert first_seeds.found("streams", plant.__name__, run, PLANTED_SEEDS_MAX)


if __name__ == "__main__":
    sys.exit(repeat(run))
