"""Goal: the list keeps every mark until it is worked off, whoever writes at the same time.

Method: several sessions on one simulated metadata tree, with lost requests and replies.
"""

import asyncio
import random
from contextlib import asynccontextmanager

import pytest

from ledger.errors import MetadataUnavailable
from ledger.registry.underreplication_format import ledger_path_of, lock_path
from ledger.repair.entry_ranges import ranges_of
from ledger.repair.underreplicated_ledgers import NO_NOTE, RepairNote, UnderreplicatedLedgers
from tests.sim.loop import SimClock
from tests.sim.metadata import MetadataFaults, MetadataTree, SimMetadata


@asynccontextmanager
async def two_lists():
    tree = MetadataTree()
    yield tree, lists(tree, "one"), lists(tree, "two")


def lists(tree, owner, faults=None):
    return UnderreplicatedLedgers(SimMetadata(tree, faults), SimClock(), owner)


async def test_marks_of_one_ledger_are_merged_and_the_version_rises_each_time():
    async with two_lists() as (_tree, one, two):
        await one.mark(7, ["b1"])
        first = await one.get(7)
        await two.mark(7, ["b2"])
        await two.mark(7, ["b2"])
        mark = await one.get(7)
        assert mark.missing == {"b1", "b2"}
        assert (first.version, mark.version) == (0, 2)
        assert mark.since_ms == first.since_ms is not None


async def test_the_list_is_what_was_marked_and_not_done():
    async with two_lists() as (_tree, one, two):
        for ledger in (3, 70_000, 2**40):
            await one.mark(ledger, [])
        assert await two.ledgers() == [3, 70_000, 2**40]
        assert await one.mark_replicated(await one.get(70_000))
        assert await two.ledgers() == [3, 2**40]


async def test_done_leaves_a_ledger_that_was_marked_again_meanwhile():
    async with two_lists() as (_tree, one, two):
        await one.mark(7, ["b1"])
        mark = await one.get(7)
        await two.mark(7, ["b2"])
        assert not await one.mark_replicated(mark)
        assert (await one.get(7)).missing == {"b1", "b2"}


async def test_done_leaves_no_empty_nodes_behind_and_no_note():
    async with two_lists() as (tree, one, _two):
        await one.mark(1, [])
        before = set(tree.nodes)
        await one.mark(7, ["b1"])
        await one.set_note(7, RepairNote(reasons=("why",)))
        await one.mark_replicated(await one.get(7))
        left = set(tree.nodes) - before
        assert all("urL" not in path for path in left), left


async def test_many_marks_at_once_with_lost_calls_are_all_kept():
    async with two_lists() as (tree, one, _two):
        draw = random.Random(3)

        async def keep_marking(number):
            faults = MetadataFaults(draw, unsent=0.2, reply_lost=0.2)
            underreplicated = lists(tree, f"m{number}", faults)
            while True:
                try:
                    return await underreplicated.mark(7, [f"b{number}"])
                except MetadataUnavailable:
                    continue

        await asyncio.gather(*map(keep_marking, range(10)))
        assert (await one.get(7)).missing == {f"b{number}" for number in range(10)}


async def test_a_mark_that_does_not_parse_is_a_mark_all_the_same():
    async with two_lists() as (_tree, one, _two):
        await one.mark(7, ["b1"])
        await one.store.set(ledger_path_of(7), b"\xff{", -1)
        mark = await one.get(7)
        assert (mark.missing, await one.ledgers()) == (frozenset(), [7])
        await one.mark(7, ["b2"])
        assert (await one.get(7)).missing == {"b2"}


async def test_a_lock_has_one_owner_until_it_is_released():
    async with two_lists() as (_tree, one, two):
        assert await one.lock(7)
        assert not await two.lock(7)
        assert await two.locked_by(7) == "one"
        await two.release(7)
        assert not await two.lock(7)
        await one.release(7)
        assert await two.lock(7)


async def test_a_lock_ends_with_its_owners_session():
    async with two_lists() as (tree, one, two):
        assert await one.lock(7)
        tree.end_session(one.store.session)
        assert await two.lock(7)


async def test_a_lock_whose_reply_was_lost_is_ours():
    async with two_lists() as (tree, one, _two):
        one.store.faults = MetadataFaults(random.Random(1), reply_lost=1.0)
        with pytest.raises(MetadataUnavailable):
            await one.lock(7)
        one.store.faults = None
        assert tree.get(lock_path(7)).session == one.store.session
        assert await one.lock(7)


async def test_the_switch_is_seen_by_all():
    async with two_lists() as (_tree, one, two):
        assert await two.enabled()
        await one.disable()
        await one.disable()
        assert not await two.enabled()
        await two.enable()
        await two.enable()
        assert await one.enabled()


async def test_a_note_is_read_back_and_written_only_when_it_says_something_new():
    async with two_lists() as (tree, one, two):
        note = RepairNote(frozenset({"b1"}), ranges_of([3, 4]), ranges_of([3, 4, 9]), ("why",), 5)
        assert await one.note(7) == NO_NOTE
        await one.set_note(7, note)
        assert await two.note(7) == note
        writes = []
        tree.on_set = lambda path, data, version: writes.append(path)
        await one.set_note(7, RepairNote(*note.__getstate__()[:4], at_ms=99))
        assert writes == []
        await one.set_note(7, NO_NOTE)
        assert await two.note(7) == NO_NOTE


@pytest.mark.parametrize("data", [b"", b"{}", b"[]", b"\xff", b'{"suspects": 1}', b"null"])
async def test_a_note_that_does_not_parse_says_nothing(data):
    async with two_lists() as (tree, one, _two):
        await one.set_note(7, RepairNote(reasons=("why",)))
        (path,) = [path for path in tree.nodes if "/notes/" in path]
        await one.store.set(path, data, -1)
        assert await one.note(7) == NO_NOTE


async def test_a_suspect_is_noted_before_its_ledger_is_marked():
    async with two_lists() as (tree, one, two):
        seen = []
        tree.on_set = lambda path, data, version: seen.append(path)
        await one.report_corrupt(7, ["b1"])
        await two.report_corrupt(7, ["b2"])
        assert "/notes/" in next(path for path in seen if "urL" in path)
        assert (await one.note(7)).suspects == {"b1", "b2"}
        assert (await one.get(7)).missing == {"b1", "b2"}


async def test_bookies_being_emptied_are_listed_until_the_end():
    async with two_lists() as (_tree, one, two):
        assert await one.draining() == frozenset()
        await one.drain("b1")
        await one.drain("b1")
        assert await two.draining() == {"b1"}
        await two.end_drain("b1")
        await two.end_drain("b1")
        assert await one.draining() == frozenset()


async def test_prepare_makes_the_nodes_that_apache_bookkeeper_expects():
    async with two_lists() as (tree, one, two):
        await asyncio.gather(one.prepare(), two.prepare())
        assert b"BASIC" in tree.get("/ledgers/underreplication/LAYOUT").data
        for name in ("ledgers", "locks", "auditorelection"):
            assert f"/ledgers/underreplication/{name}" in tree.nodes
