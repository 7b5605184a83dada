"""Goal: merging cleaned segments loses, reorders or brings back no record, whatever crashes.

Method: `MergingWorld` cleans and merges in gateways that crash, are taken over and truncate the
log, and compares what readers get. Then known mistakes are planted, and each must be found. Repeat
a seed with `python -m tests.sim.test_merging SEED [SEED]`.
"""

import sys

import pytest

from ledger.core.segment_summaries import SegmentSummaries
from ledger.core.segment_table import SegmentTable
from ledger.core.segments import names_segment
from ledger.errors import BadVersion, NoNode
from ledger.ports.metadata import Create, Delete
from ledger.streams.reads import SegmentReads
from ledger.streams.segment_rewriter import CleanedRecord
from ledger.streams.segment_store import SegmentStore
from tests.sim import first_seeds, merging_world
from tests.sim.merging_world import MergingWorld
from tests.sim.seeds import first_at_commit, repeat, run_world

pytestmark = pytest.mark.slow

SEEDS = 60
BLOCKS = 6
PLANTED_SEEDS_MAX = 200


def run(seed):
    """Return the errors found with this seed. A hang or a crash counts as one."""
    return run_world(MergingWorld, seed)


@pytest.mark.parametrize("block", first_at_commit(range(BLOCKS), 1))
def test_a_merged_partition_keeps_what_no_cleaning_dropped(block):
    for seed in range(block * SEEDS // BLOCKS, (block + 1) * SEEDS // BLOCKS):
        assert run(seed) == [], f"repeat with: python -m tests.sim.test_merging {seed}"


# -- planted mistakes: each one is a way to be wrong that the world must see ----------------------


def segments_are_merged_without_a_version(patch):
    """A zombie puts its copy in the place of whatever the list has now."""

    async def replace(self, before, after):
        root = f"{self._root}/ledgers"
        names = await self._metadata.children(root)
        same = [n for n in names if any(names_segment(n, each.number) for each in before)]
        gone = [Delete(f"{root}/{name}") for name in same]
        try:
            await self._metadata.multi([*gone, Create(self._path(after), after.encode())])
        except NoNode as error:
            raise BadVersion(root) from error

    patch.setattr(SegmentStore, "replace", replace)


def a_merged_segment_drops_a_gap(patch):
    """The last batch of each part covers the gap of the next one, and lies in front of it."""

    def copies(records, *, whole):
        found = []
        for one in original(records, whole=whole):
            own = merging_world.batches.read_header(one.data).last_offset_delta + 1
            gap = one.count - own
            if found and gap > 0:
                found[-1] = CleanedRecord(
                    found[-1].count + gap, found[-1].timestamp_max, found[-1].data
                )
                one = CleanedRecord(own, one.timestamp_max, one.data)
            found.append(one)
        return found

    original = merging_world.copies
    patch.setattr(merging_world, "copies", copies)


def a_cursor_goes_on_in_the_merged_ledger(patch):
    """A reader of a part reads entries of the merged ledger at its old place."""
    patch.setattr(
        SegmentReads, "_is_stale", lambda self, cursor: cursor.losses is not self._table.losses
    )
    patch.setattr(SegmentReads, "_listed_segment", lambda self, n: self._table.segment(n))


def the_epochs_of_the_parts_are_forgotten(patch):
    patch.setattr(SegmentSummaries, "_take_epoch", lambda self, n: self._by_number.pop(n))


def a_merged_segment_has_the_times_of_its_last_part(patch):
    def join(self, segment, strays):
        for number in strays:
            if number < segment.number:
                self._take_epoch(number)
        known = self._by_number.get(segment.number)
        if known is not None:
            self._by_number[segment.number] = merging_world.replace(
                known, start_sequence_id=segment.start_sequence_id
            )

    patch.setattr(SegmentSummaries, "_join", join)


def the_index_of_the_last_part_is_kept(patch):
    def note_rewrites(self, before):
        ledgers = {each.number: each.ledger for each in before}
        for each in self.segments:
            if each.cleaned and ledgers.get(each.number) != each.ledger:
                self.rewrites += 1

    def replace(self, merged, footer, size_bytes):
        known = self.index(merged.number)
        original(self, merged, footer, size_bytes)
        if merged.merged and known is not None:
            self.remember_index(merged.number, known)
            if merged.number == self._index_before_number:
                self._index_before = known

    original = SegmentTable.replace
    patch.setattr(SegmentTable, "_note_rewrites", note_rewrites)
    patch.setattr(SegmentTable, "replace", replace)


PLANTED = [
    segments_are_merged_without_a_version,
    a_merged_segment_drops_a_gap,
    a_cursor_goes_on_in_the_merged_ledger,
    the_epochs_of_the_parts_are_forgotten,
    a_merged_segment_has_the_times_of_its_last_part,
    the_index_of_the_last_part_is_kept,
]


@pytest.mark.parametrize("mistake", PLANTED, ids=lambda mistake: mistake.__name__)
def test_the_mistake_is_found(mistake, monkeypatch):
    mistake(monkeypatch)
    assert first_seeds.found("merging", mistake.__name__, run, PLANTED_SEEDS_MAX)


if __name__ == "__main__":
    sys.exit(repeat(run))
