"""Goal: no acknowledged entry, fence, LAC or deletion is lost, and nothing is invented, whatever
moment the power is cut. Method: seeds of random load over a simulated disk and table that keep,
lose or tear what was not synced; after each boot a checker compares all answers with all promises.
A failure names its seed: `run_seed(seed)` repeats it.
"""

from __future__ import annotations

import asyncio
from functools import partial

import pytest

from ledger.ports.bookies import Status
from tests.sim import first_seeds
from tests.sim.bookie_mistakes import (
    BOOTS,
    MISTAKES,
    collected,
    crashes,
    finds,
    glanced,
    misdirected,
    missing,
    repaired,
    submitted,
    submitted_misdirected,
)
from tests.sim.bookie_world import BookieWorld
from tests.sim.disk import DiskFaults
from tests.sim.loop import simulate
from tests.sim.seeds import first_at_commit

AT_ONCE = 40
FIRSTS = first_at_commit(range(0, 120, AT_ONCE), 1)
PLANTED_SEEDS_MAX = 600


def run_seed(seed: int, **how) -> None:
    try:
        simulate(crashes(BookieWorld(seed, **how)))
    except Exception as error:
        raise AssertionError(f"seed {seed}: {error}") from error


@pytest.mark.slow
@pytest.mark.parametrize("first", FIRSTS)
def test_every_promise_survives_power_cuts_kills_and_failed_syncs(first):
    for seed in range(first, first + AT_ONCE):
        run_seed(seed)


@pytest.mark.slow
@pytest.mark.parametrize(
    "world",
    [submitted, misdirected, submitted_misdirected, missing, collected, glanced, repaired],
)
@pytest.mark.parametrize("first", FIRSTS)
def test_every_promise_survives_this_disk(world, first):
    seeds = range(first, first + AT_ONCE)
    found = {seed: how for seed in seeds if (how := finds(seed, world))}
    assert not found


@pytest.mark.slow
@pytest.mark.parametrize("mistake", MISTAKES, ids=lambda mistake: mistake.name)
def test_a_planted_mistake_is_found(mistake):
    with mistake.plant():
        found = partial(finds, world=mistake.world)
        assert first_seeds.found("bookie", mistake.name, found, PLANTED_SEEDS_MAX)


def test_a_disk_that_lies_about_syncs_is_found_out():
    with pytest.raises(AssertionError, match="seed"):
        for seed in range(20):
            run_seed(seed, faults=DiskFaults(lying_sync=True))


def test_a_disk_that_lies_about_completions_is_found_out():
    with pytest.raises(AssertionError, match="seed"):
        for seed in range(20):
            run_seed(seed, faults=DiskFaults(lying_sync=True, uring=True))


def test_an_acknowledgement_before_the_sync_is_found_out():
    async def hides_the_reboot(world: BookieWorld) -> None:
        await world.start()
        for _ in range(BOOTS):
            await world.work(30)
            world.stop_tasks()
            world.power_cut(same_boot_id=True)
            await world.start()
            await world.check()

    with pytest.raises(AssertionError):
        for seed in range(20):
            simulate(hides_the_reboot(BookieWorld(seed, journal_sync="never")))


def test_without_sync_a_reboot_leads_to_limbo_and_never_to_a_wrong_no():
    async def main(world: BookieWorld) -> None:
        await world.start()
        await world.work(60)
        world.stop_tasks()
        world.power_cut()
        await world.start()
        await world.check(limbo=True, corrupt=True)

    for seed in range(20):
        simulate(main(BookieWorld(seed, journal_sync="never")))


def test_without_sync_a_kill_loses_nothing():
    async def main(world: BookieWorld) -> None:
        await world.start()
        for _ in range(BOOTS):
            await world.work(40)
            world.stop_tasks()
            world.kill()
            await world.start()
            await world.check()

    for seed in range(20):
        simulate(main(BookieWorld(seed, journal_sync="never")))


def test_one_seed_gives_one_history():
    async def main(world: BookieWorld) -> tuple:
        await world.start()
        await world.work(80)
        return sorted(world.acked), world.disk.syncs, asyncio.get_running_loop().time()

    first, second = (simulate(main(BookieWorld(7))) for _ in range(2))
    assert first == second
    assert first[0]


@pytest.mark.slow
def test_rot_below_what_was_durable_leads_to_limbo_and_never_to_a_wrong_no():
    async def main(world: BookieWorld) -> bool:
        await world.start()
        await world.work(60)
        await asyncio.sleep(2)  # the idle mark says that all was durable, however late it is
        world.stop_tasks()
        world.kill()
        name = max(name for name in world.disk.names() if name.startswith("log-"))
        size = len(world.disk._names[name].view)
        world.disk.flip_bit(name, world.random.randrange(0, size), world.random.randrange(8))
        await world.start()
        rotten = bool(world.bookie.replayed.corrupt)
        await world.check(limbo=rotten, corrupt=True)
        if rotten:
            reply = await world.bookie.read(0, 10_000)
            assert reply.status is Status.UNKNOWN_LEDGER_STATE or 0 in world.delete_asked
        return rotten

    found = [simulate(main(BookieWorld(seed))) for seed in range(60)]
    assert any(found)
