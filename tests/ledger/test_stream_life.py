"""Goal: a takeover of a stream follows the design: no owner harms the next one, and none waits
longer than necessary.

Method: real streams over a simulated cluster on virtual time. The tests observe the requests that
reach the metadata store and the bookies.
"""

import asyncio
from dataclasses import replace

import pytest

from ledger.client import metadata_format
from ledger.core.segments import Segment
from ledger.errors import BadVersion, Fenced, LedgerError, NotEnoughBookies
from ledger.streams.recovery import REPLAYED_PER_STEP
from tests.ledger.follow_rig import NoState, Owner
from tests.ledger.life_rig import (
    LEDGERS,
    answered,
    everything,
    fails,
    listed,
    listen,
    stored,
    taking_over,
    watched_rig,
)

# Taking over


async def test_who_takes_over_can_write_at_once_and_another_one_would_find_its_state():
    async with watched_rig() as rig:
        owner = await taking_over(rig, "a")
        assert owner.stream.writable
        assert owner.stream.epoch == 1
        segment = owner.stream.segments[-1]
        owner.kill()
        reader = await rig.world.client("reader").recover(segment.ledger)
        assert reader.last_add_confirmed >= 0, "the head snapshot is durable"


async def test_each_ownership_has_a_segment_and_an_epoch_of_its_own():
    async with watched_rig() as rig:
        epochs = []
        for host in "abc":
            owner = await taking_over(rig, host)
            epochs.append(owner.stream.epoch)
            owner.kill()
        assert epochs == [1, 2, 3]
        assert [s.record_count for s in listed(rig)] == [0, 0, 0]
        assert [s.completed for s in listed(rig)] == [True, True, False]


async def test_completing_and_creating_in_parallel_takes_less_than_the_one_and_then_the_other():
    async def seconds(of_rig, host, open_it):
        owner = Owner(of_rig, host)
        began_s = asyncio.get_running_loop().time()
        await open_it(owner.stream)
        taken_s = asyncio.get_running_loop().time() - began_s
        await owner.add(3)
        owner.kill()
        return taken_s

    async def at_once(stream):
        await stream.open(begin=True)

    async def one_after_the_other(stream):
        await stream.open()
        await stream.begin()
        await stream._writer.wait_until_durable()

    async with watched_rig() as rig:
        (await taking_over(rig, "first")).kill()
        parallel = [await seconds(rig, f"p{n}", at_once) for n in range(20)]
        serial = [await seconds(rig, f"s{n}", one_after_the_other) for n in range(20)]
        assert sum(parallel) < 0.8 * sum(serial)


class CountingState(NoState):
    """Counts the records that are replayed, and most of them between two turns of the loop."""

    def __init__(self):
        self.replayed = self.now = self.most = 0

    def replay(self, sequence_id, data):
        if not self.now:
            asyncio.get_running_loop().call_soon(self.end)
        self.replayed += 1
        self.now += 1
        self.most = max(self.most, self.now)

    def end(self):
        self.now = 0


@pytest.mark.parametrize("entries", [1, 3 * REPLAYED_PER_STEP])
async def test_a_takeover_replays_many_small_records_in_steps(entries):
    count = 3 * REPLAYED_PER_STEP
    async with watched_rig() as rig:
        owner = await taking_over(rig, "a")
        await owner.writable()
        for _ in range(count):
            owner.append()
            if entries > 1:
                await owner.settle()
        await owner.settle()
        owner.kill()
        state = CountingState()
        next_owner = Owner(rig, "b", state=state)
        await next_owner.stream.open(begin=True)
        assert state.replayed == count
        assert state.most <= REPLAYED_PER_STEP


async def test_the_step_that_completes_the_last_segment_begins_the_next():
    async with watched_rig() as rig:

        def version():
            return rig.world.tree.nodes[LEDGERS].version

        owner = await taking_over(rig, "a")
        await owner.add(3)
        before = version()
        await owner.roll()
        assert version() == before + 1
        await owner.add(3)
        owner.kill()
        await taking_over(rig, "b")
        assert version() == before + 2
        assert rig.in_progress_max == 1


async def test_a_takeover_is_not_over_before_the_head_snapshot_is_durable():
    """Otherwise readers could see an epoch that the next owner never finds."""
    async with watched_rig() as rig:

        def cut(path, data, version):
            if "/inprogress_" in path:
                for bookie in rig.world.bookies:
                    rig.world.network.cut("a", bookie)

        (await taking_over(rig, "first")).kill()
        listen(rig.world.tree, "on_set", cut)
        await fails(taking_over(rig, "a"))


async def test_a_stream_that_is_opened_again_is_not_disturbed_by_what_it_was():
    async with watched_rig(control_ms=1000) as rig:
        owner = await taking_over(rig, "a")
        await owner.add(3)
        await owner.stream.open(begin=True)
        await owner.add(1)
        await asyncio.sleep(5)
        assert not owner.failures
        assert await everything(owner) == answered(owner)


async def test_the_end_does_not_fall_while_the_stream_is_opened_again():
    async with watched_rig() as rig:
        owner = await taking_over(rig, "a")
        await owner.add(3)
        opening = asyncio.create_task(owner.stream.open(begin=True))
        ends = set()
        while not opening.done():
            await asyncio.sleep(0.0001)
            ends.add((owner.stream.end_sequence_id, owner.stream.next_sequence_id))
        await opening
        assert ends == {(3, 3)}


@pytest.mark.parametrize("how", ["close", "abandon"])
async def test_a_stream_that_is_not_written_any_more_keeps_no_live_segment(how):
    async with watched_rig() as rig:
        owner = await taking_over(rig, "a")
        await owner.add(3)
        assert owner.stream._table.live is not None
        await getattr(owner.stream, how)()
        assert owner.stream._table.live is None
        assert owner.stream.end_sequence_id == 3


async def two_left_in_progress(rig):
    """An owner that lists the next segment before it completes the last one leaves two."""
    owner = await taking_over(rig, "a")
    await owner.add(4)
    first = owner.stream.segments[-1]
    client = rig.world.client("maker")
    writer = await client.create(ensemble_size=3, write_quorum=3, ack_quorum=2)
    second = Segment(number=2, ledger=writer.ledger, first_txid=4, start_sequence_id=-1)
    tree = rig.world.tree
    tree.create(f"{LEDGERS}/{second.node_name}", second.encode())
    tree.set(LEDGERS, b"2", -1)
    owner.kill()
    return owner, first, second


async def test_of_two_segments_in_progress_the_lower_is_fenced_and_completed_first():
    async with watched_rig() as rig:
        owner, first, second = await two_left_in_progress(rig)
        seen = {}

        def on_fence_reply(host, bookie, ledger, reply):
            left = [s.number for s in listed(rig) if not s.completed]
            seen.setdefault(ledger, left)

        listen(rig.world.network.observer, "on_fence_reply", on_fence_reply)
        new = await taking_over(rig, "b")
        assert seen == {first.ledger: [1, 2], second.ledger: [2]}
        assert new.stream.epoch == 3
        assert [s.start_sequence_id for s in new.stream.segments] == [0, 4, 4]
        assert await everything(new) == answered(owner)


async def test_where_nobody_was_writing_nothing_is_begun():
    """Otherwise a takeover of ten thousand idle streams would create a ledger for each."""
    async with watched_rig() as rig:
        owner = await taking_over(rig, "a")
        await owner.add(3)
        await owner.stream.close()
        before = set(rig.world.tree.nodes)
        new = Owner(rig, "b")
        await new.stream.open(begin=True)
        assert set(rig.world.tree.nodes) == before
        assert not new.stream.writable
        assert new.stream.epoch == 2
        await new.stream.begin()
        await new.add(1)
        assert await everything(new) == answered(owner, new)


async def test_where_no_ledger_can_be_made_what_somebody_was_writing_can_be_read():
    """Without enough writable bookies the stream accepts no records and stays readable."""
    async with watched_rig() as rig:
        owner = await taking_over(rig, "a")
        await owner.add(3)
        owner.kill()
        for bookie in rig.world.network.bookies.values():
            bookie.read_only = True
        new = Owner(rig, "b")
        await new.stream.open(begin=True)
        assert await everything(new) == answered(owner)
        assert isinstance(await fails(new.stream.begin()), NotEnoughBookies)
        for bookie in rig.world.network.bookies.values():
            bookie.read_only = False
        await new.stream.begin()
        await new.add(1)
        assert await everything(new) == answered(owner, new)


async def test_a_takeover_that_fails_leaves_no_further_segment_behind():
    """Otherwise each attempt would begin one."""
    async with watched_rig() as rig:
        owner = await taking_over(rig, "a")
        await owner.add(2)
        owner.kill()
        new = Owner(rig, "b")
        for bookie in rig.world.bookies:
            rig.world.network.cut("b", bookie)
        for _ in range(3):
            with pytest.raises(LedgerError):
                await new.stream.open(begin=True)
        assert [s.number for s in listed(rig)] == [1]
        rig.world.network.heal()
        await new.stream.open(begin=True)
        assert [s.number for s in listed(rig)] == [1, 2]
        made = [p for p in rig.world.tree.nodes if metadata_format.ledger_of_path(p) is not None]
        assert len(made) == 2, "the ledger of the first try is used by the last"


# The old owner


async def test_an_old_owner_is_refused_whatever_it_tries():
    async with watched_rig() as rig:
        old = await taking_over(rig, "a")
        for _ in range(2):
            await old.add(3)
            await old.roll()
        await old.add(3)
        new = await taking_over(rig, "b")
        await new.add(2)
        before = stored(rig)
        assert isinstance(await fails(old.stream.truncate(4)), BadVersion)
        rig.config = replace(rig.config, retention_bytes=0)
        assert isinstance(await fails(old.stream.expire()), BadVersion)
        await asyncio.sleep(5)
        assert old.failures, "it noticed that it is not the owner"
        assert not old.stream.writable
        await old.stream.close()
        assert stored(rig) == before
        assert await everything(new) == answered(old, new)


async def test_an_old_owner_acknowledges_nothing_any_more():
    async with watched_rig() as rig:
        old = await taking_over(rig, "a")
        await old.add(3)
        await taking_over(rig, "b")
        lost = old.append()
        await old.settle()
        assert lost not in old.answers
        assert isinstance(old.failures[0], Fenced)


async def test_an_idle_old_owner_learns_it_from_its_next_control_record():
    async with watched_rig(control_ms=1000) as rig:
        old = await taking_over(rig, "a")
        await old.add(1)
        await taking_over(rig, "b")
        assert not old.failures
        await asyncio.sleep(5)
        assert isinstance(old.failures[0], Fenced)


async def test_an_owner_whose_metadata_somebody_else_changed_looks_again():
    async with watched_rig() as rig:
        first = await taking_over(rig, "first")
        await first.add(6)
        await first.stream.close()
        old, new = Owner(rig, "a"), Owner(rig, "b")
        for owner in (old, new):
            await owner.stream.open(begin=True)
        await old.stream.truncate(2)  # no segment was begun since, so its add is not refused
        assert isinstance(await fails(new.stream.truncate(4)), BadVersion)
        assert [type(error) for error in new.failures] == [BadVersion]
        await new.stream.open(begin=True)
        assert new.stream.start_sequence_id == 2
        await new.stream.truncate(4)
        assert new.stream.start_sequence_id == 4


async def test_an_old_owner_that_rolls_leaves_the_list_as_it_is():
    async with watched_rig() as rig:
        old = await taking_over(rig, "a")
        await old.add(3)
        new = await taking_over(rig, "b")
        before = stored(rig)
        old.stream.roll_soon()
        await asyncio.sleep(5)
        assert old.failures
        assert stored(rig) == before
        await new.add(1)
        assert await everything(new) == answered(old, new)
