"""Goal: whatever fails while ledgers are mended, in the end each is whole and what was written.

Method: by seed: bookies crash and come back, some for good; calls to metadata and bookies are
lost, also after they took effect; workers die. Then all is healed, and one worker finishes. The
cluster's own checks watch every event.
"""

import asyncio
import random

import pytest

from tests.repair.rig import Rig, mend
from tests.sim.loop import simulate
from tests.sim.metadata import MetadataFaults


async def trouble(seed):
    draw = random.Random(seed)
    rig = Rig(7)
    shapes = [(3, 3, 2), (3, 2, 2), (4, 3, 2), (2, 2, 1)]
    ledgers = []
    for _ in range(4):
        e, qw, qa = draw.choice(shapes)
        ledgers.append(await rig.ledger(draw.randint(0, 12), e=e, qw=qw, qa=qa))
    writer, told = await rig.ledger(draw.randint(0, 8), close=False)
    ledgers.append(writer.metadata.ledger)
    gone = draw.choice(list(rig.world.bookies))
    rig.lose(gone)
    for ledger in ledgers:
        await rig.underreplicated.mark(ledger, [gone])
    workers = []

    def begin(number):
        session = rig.session(f"w{number}")
        session.faults = MetadataFaults(draw, unsent=0.03, reply_lost=0.03)
        worker = rig.worker(f"w{number}", session, grace_s=1.0, settle_s=0.05, poll_s=0.2)
        workers.append((asyncio.create_task(worker.run()), session))

    begin(0)
    begin(1)
    rig.world.weather.loss = draw.choice([0.0, 0.02, 0.1])
    for number in range(2, 8):
        await asyncio.sleep(draw.random())
        await disturb(rig, draw, gone, ledgers)
        if draw.random() < 0.5:
            task, session = workers.pop(0)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            rig.world.tree.end_session(session.session)
            begin(number)
    for task, session in workers:
        assert not task.done(), task
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        rig.world.tree.end_session(session.session)
    rig.world.network.heal()
    for name, bookie in rig.world.bookies.items():
        if not bookie.up and name != gone:
            bookie.restart()
    await rig.world.client("recoverer").recover(writer.metadata.ledger)
    await asyncio.sleep(2)
    await mend(rig.worker("last", grace_s=0.0, settle_s=0.05), passes=3)
    assert [fault for ledger in ledgers for fault in rig.faults(ledger)] == []
    assert await rig.marked() == []
    assert rig.world.checks.violations == []
    assert rig.metadata(writer.metadata.ledger).last_entry >= len(told.news) - 1


async def disturb(rig, draw, gone, ledgers):
    """One more thing goes wrong, or is over."""
    names = [name for name in rig.world.bookies if name != gone]
    down = [name for name in names if not rig.bookie(name).up]
    if down and draw.random() < 0.6:
        rig.bookie(draw.choice(down)).restart()
    elif len(down) < 2:
        name = draw.choice(names)
        if rig.bookie(name).up:
            rig.lose(name)
    await rig.underreplicated.mark(draw.choice(ledgers), draw.sample(names, 1))


@pytest.mark.parametrize("seed", range(25))
def test_after_trouble_of_every_kind_each_ledger_is_whole(seed):
    simulate(trouble(seed))
