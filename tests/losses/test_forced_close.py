"""Goal: after a forced close no offset that was acknowledged is ever assigned again.

Method: a simulated partition loses bookies and entries; the loss is accepted, with a kill at every
change of the metadata; then the next owner writes.
"""

import asyncio

import pytest

from gateway.admin.client import AdminError
from gateway.admin.ledgers import recover
from gateway.admin.losses import preview_recovery
from ledger.core.accepted_losses import RESERVED_OFFSETS
from ledger.core.gaps import ENTRY_MAX, OffsetRange
from ledger.core.segments import Segment
from ledger.errors import LedgerError
from ledger.ids import STREAM_KEY
from ledger.streams.segment_store import SegmentStore, losses_path
from tests.ledger.follow_rig import Owner
from tests.losses.rig import STREAM, loss_rig
from tests.sim.metadata import SimMetadata
from tests.sim.network import SimBookies


class Killed(Exception):
    """The operator's process is gone."""


class DyingMetadata:
    """The metadata store of a process that is killed at its change number `at`."""

    def __init__(self, store, at, *, after):
        self.store = store
        self.left = at
        self.after = after

    def __getattr__(self, name):
        method = getattr(self.store, name)
        if name not in ("create", "set", "delete", "multi"):
            return method

        async def change(*args, **more):
            self.left -= 1
            if self.left == 0 and not self.after:
                raise Killed
            result = await method(*args, **more)
            if self.left == 0:
                raise Killed
            return result

        return change


async def half_lost(rig):
    """An open ledger whose last acknowledged entries no bookie that is left has.

    Returns the owner before, the ledger, and the bookies that are away.
    """
    owner = await rig.written([1, 1, 1, 1, 1, 1])
    await asyncio.sleep(1)
    [segment] = rig.listed()
    owner.kill()
    left, *away = rig.members(segment.ledger)
    rig.lose(*away)
    last = max(rig.world.bookies[left].ledgers[segment.ledger].entries)
    rig.forget(segment.ledger, *range(last - 3, last + 1), on=[left])
    return owner, segment.ledger, away


async def next_owner(rig, away):
    for name in away:
        rig.world.bookies[name].restart()
    owner = Owner(rig, "next")
    await owner.stream.open(begin=True)
    if not owner.stream.writable:
        await owner.stream.begin()
    await owner.add(2)
    return owner


async def test_the_offsets_behind_the_end_are_reserved_and_never_assigned_again(monkeypatch):
    async with loss_rig(monkeypatch) as rig:
        owner, ledger, away = await half_lost(rig)
        found = await recover(rig.storage(), ledger, accept_loss=True)
        [reserved] = rig.losses().ranges
        assert found["forced"]
        assert (reserved.first, reserved.last) == (found["last_entry"] + 1, ENTRY_MAX)
        assert reserved.offsets == OffsetRange(2, 2 + RESERVED_OFFSETS - 1, False)
        assert reserved.evidence.verdict.lost
        follower = await next_owner(rig, away)
        assert set(follower.answers.values()).isdisjoint(owner.answers.values())
        assert min(follower.answers.values()) == 2 + RESERVED_OFFSETS


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("at", range(1, 8))
async def test_after_a_kill_at_any_change_a_rerun_finishes(monkeypatch, at, after):
    async with loss_rig(monkeypatch) as rig:
        owner, ledger, away = await half_lost(rig)
        dying = DyingMetadata(SimMetadata(rig.world.tree), at, after=after)
        try:
            await recover(rig.storage(dying), ledger, accept_loss=True)
        except Killed:
            pass
        closed = rig.world.metadata_of(ledger).closed
        assert bool(rig.losses().ranges) == closed, "closed and reserved in one step"
        await recover(rig.storage(), ledger, accept_loss=True)
        [reserved] = rig.losses().ranges
        assert reserved.forced
        assert rig.world.metadata_of(ledger).last_entry == reserved.first - 1
        follower = await next_owner(rig, away)
        assert set(follower.answers.values()).isdisjoint(owner.answers.values())


async def test_an_owner_that_loaded_the_list_before_cannot_begin_behind_a_forced_close(
    monkeypatch,
):
    async with loss_rig(monkeypatch) as rig:
        before, ledger, away = await half_lost(rig)
        stale = Owner(rig, "stale")
        held = asyncio.Event()
        recover_of = stale.services.client.recover

        async def late(wanted):
            await held.wait()
            return await recover_of(wanted)

        monkeypatch.setattr(stale.services.client, "recover", late)
        opening = asyncio.create_task(stale.stream.open(begin=True))
        await asyncio.sleep(1)
        await recover(rig.storage(), ledger, accept_loss=True)
        for name in away:
            rig.world.bookies[name].restart()
        held.set()
        with pytest.raises(LedgerError):
            await opening
        owner = await next_owner(rig, [])
        assert set(owner.answers.values()).isdisjoint(before.answers.values())


async def test_a_recovery_that_succeeds_reserves_nothing(monkeypatch):
    async with loss_rig(monkeypatch) as rig:
        owner = await rig.written([1, 1])
        owner.kill()
        [segment] = rig.listed()
        found = await recover(rig.storage(), segment.ledger, accept_loss=True)
        assert not found["forced"]
        assert rig.losses().ranges == ()


async def test_all_in_limbo_the_end_is_unknown_so_offsets_are_reserved(monkeypatch):
    async with loss_rig(monkeypatch) as rig:
        owner = await rig.written([1, 1, 1])
        await asyncio.sleep(1)
        owner.kill()
        [segment] = rig.listed()
        members = rig.members(segment.ledger)
        last = max(rig.world.bookies[members[0]].ledgers[segment.ledger].entries)
        rig.forget(segment.ledger, *range(last - 1, last + 1))
        for name in members:
            rig.world.bookies[name].begin_limbo(segment.ledger + 1)
        found = await recover(rig.storage(), segment.ledger, accept_loss=True)
        assert found["forced"]
        assert sorted(found["limbo_ended"]) == sorted(members)
        follower = await next_owner(rig, [])
        assert set(follower.answers.values()).isdisjoint(owner.answers.values())


async def test_a_lost_end_of_a_closed_ledger_that_is_not_listed_yet_reserves_offsets(monkeypatch):
    async with loss_rig(monkeypatch) as rig:
        owner = await rig.written([1, 1, 1])
        await asyncio.sleep(1)
        owner.kill()
        [segment] = rig.listed()
        await rig.world.client("recovery").recover(segment.ledger)
        last = rig.world.metadata_of(segment.ledger).last_entry
        rig.forget(segment.ledger, last - 1, last)
        await recover(rig.storage(), segment.ledger, accept_loss=True)
        [reserved] = rig.losses().ranges
        assert (reserved.first, reserved.forced) == (last - 1, True)
        follower = await next_owner(rig, [])
        assert set(follower.answers.values()).isdisjoint(owner.answers.values())


class Meanwhile:
    """A port on which something happens right before the first `method` of `path`."""

    def __init__(self, store, method, happen, path=None):
        self.store = store
        self.method = method
        self.path = path
        self.happen = happen

    def __getattr__(self, name):
        method = getattr(self.store, name)
        if name != self.method:
            return method

        async def changed(*args, **more):
            if self.happen is not None and self.path in (None, args[0]):
                happen, self.happen = self.happen, None
                await happen()
            return await method(*args, **more)

        return changed


async def test_a_forced_close_gives_up_no_earlier_entry_that_a_silent_bookie_may_have(monkeypatch):
    async with loss_rig(monkeypatch, bookies=4) as rig:
        owner = await rig.written([1, 1, 1])
        [segment] = rig.listed()
        first, second, third = rig.members(segment.ledger)
        rig.lose(third)
        rig.append(owner, 1)
        while third in rig.members(segment.ledger):
            await asyncio.sleep(1)
        owner.kill()
        [spare] = set(rig.members(segment.ledger)) - {first, second}
        rig.world.bookies[spare].ledgers.pop(segment.ledger, None)
        for bookie in (first, second):
            rig.world.bookies[bookie].crash()
        rig.world.bookies[third].restart()
        rig.world.network.cut("admin", third)
        with pytest.raises(AdminError, match=r"may have entry . and does not answer"):
            await recover(rig.storage(), segment.ledger, accept_loss=True)
        assert rig.losses().ranges == ()
        assert not rig.world.metadata_of(segment.ledger).closed
        rig.world.network.mend()
        await recover(rig.storage(), segment.ledger, accept_loss=True)
        [reserved] = rig.losses().ranges
        assert reserved.offsets.first == 3, "what the silent bookie had is kept"


async def test_a_registered_bookie_of_the_last_fragment_that_is_silent_is_named_and_kept(
    monkeypatch,
):
    """Seed 002: a bookie that may come back is waited for, whatever the operator confirmed."""
    async with loss_rig(monkeypatch) as rig:
        owner, ledger, away = await half_lost(rig)
        silent, gone = away
        rig.world.bookies[silent].restart()
        rig.world.network.cut("admin", silent)
        asked = await preview_recovery(rig.storage(), ledger)
        assert f"the copies of {gone}, which is not registered" in asked
        assert f"but nothing that {silent} may have, which is registered and does not" in asked
        with pytest.raises(AdminError, match=f"not fenced at {silent}: registered") as refused:
            await recover(rig.storage(), ledger, accept_loss=True)
        assert gone not in str(refused.value)
        assert rig.losses().ranges == ()
        assert not rig.world.metadata_of(ledger).closed
        rig.world.network.mend()
        found = await recover(rig.storage(), ledger, accept_loss=True)
        assert rig.losses().ranges == (), "it had all that was acknowledged"
        assert not found["forced"]
        follower = await next_owner(rig, [gone])
        assert min(follower.answers.values()) == len(owner.answers)


async def test_a_bookie_whose_last_entry_is_damaged_is_fenced_and_what_it_has_is_kept(monkeypatch):
    async with loss_rig(monkeypatch) as rig:
        owner = await rig.written([1, 1, 1, 1])
        await asyncio.sleep(1)
        owner.kill()
        [segment] = rig.listed()
        left, *away = rig.members(segment.ledger)
        rig.lose(*away)
        last = max(rig.world.bookies[left].ledgers[segment.ledger].entries)
        rig.world.bookies[left].rotten[segment.ledger, last] = "unreadable"
        found = await recover(rig.storage(), segment.ledger, accept_loss=True)
        assert (found["forced"], found["last_entry"]) == (True, last - 1)


async def test_a_bookie_that_registers_during_a_forced_close_is_not_given_up(monkeypatch):
    async with loss_rig(monkeypatch) as rig:
        owner, ledger, away = await half_lost(rig)

        async def come_back():
            rig.world.bookies[away[0]].restart()

        bookies = Meanwhile(SimBookies(rig.world.network, "admin"), "read_many", come_back)
        with pytest.raises(AdminError, match=f"not fenced at {away[0]}"):
            await recover(rig.storage(bookies=bookies), ledger, accept_loss=True)
        await recover(rig.storage(), ledger, accept_loss=True)
        assert rig.losses().ranges == ()
        follower = await next_owner(rig, [away[1]])
        assert min(follower.answers.values()) == len(owner.answers)


async def test_a_ledger_of_which_no_bookie_has_a_trace_reserves_its_offsets(monkeypatch):
    """To a recovery it looks like one that was never written."""
    async with loss_rig(monkeypatch) as rig:
        owner = await rig.written([1, 1], [1, 1, 1])
        await asyncio.sleep(1)
        owner.kill()
        _, segment = rig.listed()
        for name in rig.members(segment.ledger):
            del rig.world.bookies[name].ledgers[segment.ledger]
        assert "no bookie has one" in await preview_recovery(rig.storage(), segment.ledger)
        found = await recover(rig.storage(), segment.ledger, accept_loss=True)
        assert (found["forced"], found["last_entry"]) == (True, -1)
        [reserved] = rig.losses().ranges
        assert (reserved.first, reserved.offsets.first) == (0, 2)
        follower = await next_owner(rig, [])
        assert set(follower.answers.values()).isdisjoint(owner.answers.values())


@pytest.mark.parametrize("start", [6, -1])
async def test_the_offsets_of_a_segment_in_progress_behind_it_are_kept_apart(monkeypatch, start):
    """Another program may list a segment before it completes the one before it."""
    async with loss_rig(monkeypatch) as rig:
        _, ledger, away = await half_lost(rig)
        writer = await rig.world.client("other").create(
            ensemble_size=1,
            write_quorum=1,
            ack_quorum=1,
            custom={STREAM_KEY: STREAM.encode()},
        )
        store = SegmentStore(SimMetadata(rig.world.tree), STREAM)
        await store.load()
        await store.start(
            Segment(number=2, ledger=writer.ledger, first_txid=6, start_sequence_id=start)
        )
        await recover(rig.storage(), ledger, accept_loss=True)
        [reserved] = rig.losses().ranges
        end = 6 if start == 6 else 2 + RESERVED_OFFSETS
        assert reserved.offsets == OffsetRange(2, end - 1, False)
        follower = await next_owner(rig, away)
        assert min(follower.answers.values()) == end
        assert rig.listed()[1].start_sequence_id == end


async def test_a_segment_that_is_completed_during_the_acceptance_is_looked_at_again(monkeypatch):
    async with loss_rig(monkeypatch) as rig:
        owner = await rig.written([1, 1, 1])
        await asyncio.sleep(1)
        owner.kill()
        [segment] = rig.listed()
        await rig.world.client("recovery").recover(segment.ledger)
        last = rig.world.metadata_of(segment.ledger).last_entry
        holder, *others = rig.members(segment.ledger)
        rig.forget(segment.ledger, last, on=others)
        rig.lose(holder)
        takeovers = []

        async def take_over():
            takeovers.append(await next_owner(rig, [holder]))

        store = Meanwhile(SimMetadata(rig.world.tree), "sync", take_over, losses_path(STREAM))
        found = await recover(rig.storage(store), segment.ledger, accept_loss=True)
        assert len(takeovers) == 1
        assert rig.losses().ranges == ()
        assert found["waiting"] == []


async def test_a_ledger_that_is_listed_during_its_forced_close_has_its_offsets_reserved(
    monkeypatch,
):
    async with loss_rig(monkeypatch) as rig:
        owner = await rig.written([1, 1])
        await owner.stream.close()
        config = rig.config
        writer = await owner.services.client.create(
            ensemble_size=config.ensemble_size,
            write_quorum=config.write_quorum,
            ack_quorum=config.ack_quorum,
            custom={STREAM_KEY: STREAM.encode()},
        )
        _, *away = rig.members(writer.ledger)
        rig.lose(*away)

        async def list_it():
            store = SegmentStore(SimMetadata(rig.world.tree), STREAM)
            await store.load()
            await store.start(
                Segment(number=2, ledger=writer.ledger, first_txid=2, start_sequence_id=2)
            )

        store = Meanwhile(SimMetadata(rig.world.tree), "multi", list_it)
        await recover(rig.storage(store), writer.ledger, accept_loss=True)
        [reserved] = rig.losses().ranges
        assert reserved.forced and reserved.offsets.first == 2


async def test_a_takeover_that_closes_the_ledger_first_wins(monkeypatch):
    async with loss_rig(monkeypatch) as rig:
        owner, ledger, away = await half_lost(rig)

        async def take_over():
            rig.world.network.mend()
            await next_owner(rig, away)

        store = Meanwhile(SimMetadata(rig.world.tree), "sync", take_over, losses_path(STREAM))
        found = await recover(rig.storage(store), ledger, accept_loss=True)
        assert found["last_entry"] == rig.world.metadata_of(ledger).last_entry
        assert len(owner.answers) == 6
        assert rig.losses().ranges == ()


async def test_offsets_are_reserved_only_behind_a_known_offset(monkeypatch):
    """The entry before the lost end may be on a bookie that is silent."""
    shape = {"ensemble_size": 4, "write_quorum": 2, "ack_quorum": 2}
    async with loss_rig(monkeypatch, bookies=4, **shape) as rig:
        owner = await rig.written([1] * 8)
        await asyncio.sleep(1)
        owner.kill()
        [segment] = rig.listed()
        await rig.world.client("recovery").recover(segment.ledger)
        metadata = rig.world.metadata_of(segment.ledger)
        last = metadata.last_entry
        silent, second = metadata.bookies_of(last - 1)
        rig.forget(segment.ledger, last, on=metadata.bookies_of(last))
        rig.forget(segment.ledger, last - 1, on=[second])
        rig.world.network.cut("admin", silent)
        found = await recover(rig.storage(), segment.ledger, accept_loss=True)
        assert rig.losses().ranges == ()
        assert [row["entries"] for row in found["waiting"]] == [[last - 1] * 2, [last] * 2]
        rig.world.network.mend()
        await recover(rig.storage(), segment.ledger, accept_loss=True)
        [reserved] = rig.losses().ranges
        sound = segment.start_sequence_id + len(owner.answers)
        assert reserved.first == last and reserved.offsets.first >= sound - 1
        follower = await next_owner(rig, [])
        assert set(follower.answers.values()).isdisjoint(owner.answers.values())
