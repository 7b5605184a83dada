"""Goal: cleaning a partition loses, reorders or brings back no record, whatever crashes meanwhile.

Method: `CleaningWorld` drops batches of completed segments in gateways that crash, are taken over
and truncate the log, and compares what readers get. Then known mistakes are planted, and each must
be found. Repeat a seed with `python -m tests.sim.test_cleaning SEED [SEED]`.
"""

import sys

import pytest

from ledger.core.segment_table import SegmentTable
from ledger.core.segments import names_segment
from ledger.errors import BadVersion, NoNode
from ledger.ports.metadata import Create, Delete
from ledger.streams.reads import SegmentReads
from ledger.streams.segment_rewriter import CleanedRecord
from ledger.streams.segment_store import SegmentStore
from ledger.streams.tail_cache import StreamTail
from tests.sim import cleaning_world, first_seeds
from tests.sim.cleaning_world import CleaningWorld
from tests.sim.seeds import first_at_commit, repeat, run_world

pytestmark = pytest.mark.slow

SEEDS = 200
BLOCKS = 10
PLANTED_SEEDS_MAX = 300


def run(seed):
    """Return the errors found with this seed. A hang or a crash counts as one."""
    return run_world(CleaningWorld, seed)


@pytest.mark.parametrize("block", first_at_commit(range(BLOCKS), 1))
def test_a_cleaned_partition_keeps_what_no_cleaning_dropped(block):
    for seed in range(block * SEEDS // BLOCKS, (block + 1) * SEEDS // BLOCKS):
        assert run(seed) == [], f"repeat with: python -m tests.sim.test_cleaning {seed}"


# -- planted mistakes: each one is a way to be wrong that the world must see ----------------------


def a_segment_is_replaced_without_a_version(patch):
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


def the_index_of_the_old_records_is_kept(patch):
    def replace(self, cleaned, footer, size_bytes):
        if cleaned.merged:
            original(self, cleaned, footer, size_bytes)
        else:
            self.mark([cleaned])

    def note_rewrites(self, before):
        ledgers = {each.number: each.ledger for each in before}
        for each in self.segments:
            if each.cleaned and ledgers.get(each.number) != each.ledger:
                self.rewrites += 1

    original = SegmentTable.replace
    patch.setattr(SegmentTable, "replace", replace)
    patch.setattr(SegmentTable, "_note_rewrites", note_rewrites)


def a_gap_lies_behind_its_batch(patch):
    def covering(segment, kept, epoch):
        if not kept:
            return before(segment, kept, epoch)
        ends = [*(first for (first, _, _), _ in kept[1:]), segment.end_sequence_id]
        at, found = segment.start_sequence_id, []
        for ((_, _, data), sent), end in zip(kept, ends, strict=True):
            found.append(CleanedRecord(end - at, sent.timestamp, data))
            at = end
        return found

    before = cleaning_world.covering
    patch.setattr(cleaning_world, "covering", covering)


def a_cursor_goes_on_in_the_new_ledger(patch):
    patch.setattr(
        SegmentReads, "_is_stale", lambda self, cursor: cursor.losses is not self._table.losses
    )


def the_tail_cache_keeps_what_was_dropped(patch):
    patch.setattr(StreamTail, "drop_below", lambda self, sequence_id: None)


def an_open_ledger_is_found_by_its_segment(patch):
    async def reader(self, segment):
        found = self._readers.get(segment.number)
        if found is None:
            found = self._readers[segment.number] = await self._client.open(segment.ledger)
        return found

    patch.setattr(SegmentReads, "_reader", reader)


PLANTED = [
    a_segment_is_replaced_without_a_version,
    the_index_of_the_old_records_is_kept,
    a_gap_lies_behind_its_batch,
    a_cursor_goes_on_in_the_new_ledger,
    the_tail_cache_keeps_what_was_dropped,
    an_open_ledger_is_found_by_its_segment,
]


@pytest.mark.parametrize("plant", PLANTED, ids=lambda plant: plant.__name__)
def test_a_planted_mistake_is_found(plant, monkeypatch):
    plant(monkeypatch)
    assert first_seeds.found("cleaning", plant.__name__, run, PLANTED_SEEDS_MAX)


if __name__ == "__main__":
    sys.exit(repeat(run))
