"""Goal: compaction in a whole cluster loses, moves or brings back no record, whatever fails.

Method: `CompactingWorld` adds cleaners to a cluster with transactions; `CompactedOracle` and
`ListedSegments` compare what readers see, and what the metadata store lists, with what was written.
Known mistakes are planted, and seeds must find each. `tests.sim.proof_transactions` runs the seeds.
"""

import asyncio
import json
import os

import pytest

from ledger.client.metadata_format import ledger_path
from ledger.core.segments import Segment
from ledger.streams.segment_store import SegmentStore, create_streams
from tests.sim.compacting_mistakes import MISTAKES, unversioned
from tests.sim.compacting_oracle import CompactedOracle, ListedSegments, Rules, Stored
from tests.sim.metadata import MetadataTree, SimMetadata
from tests.sim.test_transacting import MISTAKE_SEEDS, names, prepared, proof
from tests.sim.transacting_oracle import COMMIT

QUICK_SEEDS = 8
PROOF_FIRST, PROOF_SEEDS = 100_000, 1_000


@pytest.mark.slow
def test_no_seed_breaks_compaction_while_segments_are_replaced_and_ledgers_deleted():
    found = json.loads(proof("--compacted", "--seeds", QUICK_SEEDS).splitlines()[-1])
    assert found["violations"] == 0
    assert found["swaps"] > 20
    assert found["deleted"] > 0
    assert found["audits"] > 20
    assert found["strikes"] > 0


@pytest.mark.proof
@pytest.mark.timeout(4 * 3600)
def test_compacted_clusters_over_a_thousand_seeds():
    workers = os.cpu_count() or 1
    proof("--compacted", "--seeds", PROOF_SEEDS, "--first", PROOF_FIRST, "--workers", workers)


@pytest.mark.proof
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("mistake", MISTAKES, ids=lambda mistake: mistake.name)
def test_a_planted_mistake_of_the_cleaner_is_found(mistake):
    proof("--mistakes", mistake.name, "--seeds", MISTAKE_SEEDS)


# -- the oracle notices each error ----------------------------------------------------------------

NOW_MS = 10_000


def oracle(*records, lag_ms=0, retention_ms=1_000):
    """Return an oracle with (offset, key, tombstone, timestamp) of one committed transaction."""
    found = CompactedOracle(Rules(lag_ms, retention_ms, 0))
    one = found.begin("pay", 1, 0)
    one.asked = COMMIT
    stored = [Stored(one.number, sequence, *record) for sequence, record in enumerate(records)]
    for each in stored:
        found.place(0, each)
    found.on_durable(prepared(1, 0))
    return found, stored


def view(found, shown, *, end=9, began_ms=NOW_MS, quiet=False):
    found.check_view(0, shown, end, began_ms, NOW_MS, quiet=quiet)
    return names(found)


def test_a_superseded_record_may_be_gone_and_the_last_of_a_key_may_not():
    records = (0, b"a", False, 0), (1, b"b", False, 0), (2, b"a", False, 0)
    found, stored = oracle(*records)
    assert view(found, stored[1:]) == []
    assert view(found, stored[:2]) == ["lost"]


def test_a_reader_that_ended_before_the_last_record_of_a_key_need_not_see_the_one_before():
    found, stored = oracle((0, b"a", False, 0), (1, b"b", False, 0), (5, b"a", False, 0))
    assert view(found, stored[1:2], end=5) == []


def test_a_record_that_is_too_young_to_go_must_be_there():
    records = (0, b"a", False, NOW_MS - 500), (2, b"a", False, NOW_MS - 400)
    found, stored = oracle(*records, lag_ms=501)
    assert view(found, stored[1:]) == ["lost"]
    found, stored = oracle(*records, lag_ms=500)
    assert view(found, stored[1:]) == []


def test_a_tombstone_may_go_after_its_time_with_all_that_it_deleted():
    for age_ms, shows, expected in ((999, 0, ["early"]), (1_000, 0, []), (1_000, 1, ["kept"])):
        found, stored = oracle((0, b"a", False, 0), (2, b"a", True, NOW_MS - age_ms))
        assert view(found, stored[:shows]) == expected
    found, stored = oracle((0, b"a", False, 0), (2, b"a", True, 0))
    assert view(found, stored[:1], began_ms=0) == []  # it was read before the tombstone went
    assert view(found, stored[:1], began_ms=0, quiet=True) == ["kept"]


def test_a_record_that_moves_and_an_offset_that_changes_are_noticed():
    found, stored = oracle((0, b"a", False, 0))
    found.place(0, stored[0])
    assert names(found) == []
    found.place(0, stored[0]._replace(offset=1))
    found.place(0, stored[0]._replace(key=b"b"))
    assert names(found) == ["moved"] * 2


class Listing:
    """A stream with one completed segment of offsets 0 to 9, in ledger 1, and its owner."""

    async def begin(self, delay_ms=0):
        self.oracle = CompactedOracle(Rules(0, 0, delay_ms))
        self.tree = MetadataTree()
        self.listed = ListedSegments(self.oracle, self.tree, {"s-0": 0}.get)
        await create_streams(SimMetadata(self.tree), ["s-0"])
        self.owner = await self.store()
        begun = await self.begin_segment(self.owner, 1, 0)
        self.segment = begun.complete(
            record_count=10, last_txid=9, last_entry=0, last_slot=0, completion_ms=0
        )
        await self.owner.complete(begun, self.segment)
        return self

    async def store(self):
        store = SegmentStore(SimMetadata(self.tree), "s-0")
        await store.load()
        self.listed.loaded_s[store] = asyncio.get_running_loop().time()
        return store

    async def begin_segment(self, store, number, start):
        begun = Segment(number=number, ledger=number, first_txid=start, start_sequence_id=start)
        self.listed.on_write(store, begun)
        await store.start(begun)
        return begun

    async def swap(self, store):
        """Put ledger 100 in the place of ledger 1, whatever the versions are."""
        after = self.segment.with_ledger(100, 0, 0)
        self.listed.on_write(store, after)
        await unversioned(store, [self.segment], after)

    async def found(self):
        self.listed.look()
        return names(self.oracle)


async def test_a_swap_after_another_gateway_took_over_is_noticed():
    listing = await Listing().begin()
    await listing.swap(listing.owner)
    assert await listing.found() == []
    listing = await Listing().begin()
    await asyncio.sleep(1)
    heir = await listing.store()
    await asyncio.sleep(1)
    await listing.begin_segment(heir, 2, 10)
    await listing.swap(listing.owner)
    assert await listing.found() == ["zombie"]
    listing = await Listing().begin()
    await asyncio.sleep(1)
    heir = await listing.store()
    await listing.begin_segment(heir, 2, 10)
    await listing.swap(heir)
    assert await listing.found() == []


async def test_a_swap_of_an_undecided_record_is_noticed():
    for outcome, expected in ((None, ["past"]), (COMMIT, [])):
        listing = await Listing().begin()
        listing.oracle.begin("pay", 1, 0).outcome = outcome
        listing.oracle.place(0, Stored(1, 0, 9, b"a", False, 0))
        await listing.swap(listing.owner)
        assert await listing.found() == expected


async def test_a_replaced_ledger_that_is_deleted_early_is_noticed():
    for after_s, expected in ((0.9, ["early"]), (1.0, [])):
        listing = await Listing().begin(delay_ms=1_000)
        listing.tree.create(ledger_path(1), b"", parents=True)
        await listing.swap(listing.owner)
        await asyncio.sleep(after_s)
        listing.tree.delete(ledger_path(1))
        assert await listing.found() == expected
        assert (listing.listed.swaps, listing.listed.deleted) == (1, 1)
        assert listing.listed.ledgers(0) == {1: 100}
