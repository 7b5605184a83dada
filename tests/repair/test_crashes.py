"""Goal: a worker may die anywhere; what it leaves is a mark and copies that nobody counts.

Method: every call of the worker to the outside is a point to die, before it happens or after it
took effect but before its answer; each point is tried once. After the death the ledger must still
be readable as its metadata say, and a second worker must finish.
"""

import asyncio

import pytest

from ledger.errors import MetadataUnavailable
from tests.repair.rig import Rig, mend
from tests.sim.loop import simulate

_CALLS = {
    *("get", "exists", "set", "create", "delete", "multi", "children", "paths", "sync"),
    *("read", "read_many", "read_lac", "list_entries", "end_limbo", "stats", "add"),
}


class Death:
    """Counts calls; at number `point` the process is dead, before or after that call."""

    def __init__(self, point, after):
        self.point = point
        self.after = after
        self.calls = 0
        self.dead = False
        self.worker = None

    def of(self, port):
        return Mortal(port, self)

    def counted(self):
        """True when this very call is the last one."""
        if self.dead:
            raise MetadataUnavailable("this process is dead")
        self.calls += 1
        return self.calls == self.point

    def die(self):
        self.dead = True
        self.worker.cancel()


class Mortal:
    """A port whose calls count."""

    def __init__(self, port, death):
        self._port = port
        self._death = death

    def __getattr__(self, name):
        real = getattr(self._port, name)
        if name not in _CALLS:
            return real
        return self._add(real) if name == "add" else self._call(real)

    def _call(self, real):
        async def call(*args, **how):
            last = self._death.counted()
            if last and self._death.after:
                await asyncio.gather(real(*args, **how), return_exceptions=True)
            if last:
                self._death.die()
                await asyncio.Event().wait()
            return await real(*args, **how)

        return call

    def _add(self, real):
        def add(*args, **how):
            last = self._death.counted()
            if not last or self._death.after:
                real(*args, **how)
            if last:
                self._death.die()

        return add


async def lost_bookie(rig):
    ledger = await rig.ledger(4)
    lost = rig.members(ledger)[0]
    rig.lose(lost)
    await rig.underreplicated.mark(ledger, [lost])
    return ledger


async def holes_and_limbo(rig):
    ledger = await rig.ledger(4)
    one, other, _ = rig.members(ledger)
    rig.forget(one, ledger, 1, 2)
    rig.forget(other, ledger, 3)
    rig.bookie(other).begin_limbo(ledger + 1)
    await rig.underreplicated.mark(ledger, [one])
    return ledger


async def narrow(rig):
    rig.lose("b0", "b1", "b2")
    ledger = await rig.ledger(4)
    for name in ("b0", "b1", "b2"):
        rig.bookie(name).restart()
    await rig.underreplicated.mark(ledger, [])
    return ledger


async def open_ledger(rig):
    writer, _ = await rig.ledger(4, close=False)
    lost = writer.metadata.last_fragment.ensemble[0]
    rig.lose(lost)
    await rig.underreplicated.mark(writer.metadata.ledger, [lost])
    return writer.metadata.ledger


async def die_at(point, after, prepare):
    """Calls made until the death, or None when the worker was through before."""
    rig = Rig(5)
    ledger = await prepare(rig)
    death = Death(point, after)
    session = rig.session("mortal")
    worker = rig.worker(
        "mortal",
        death.of(session),
        death.of(rig.bookies("mortal")),
        grace_s=0.0,
        settle_s=0.01,
    )
    death.worker = asyncio.create_task(mend(worker))
    await asyncio.gather(death.worker, return_exceptions=True)
    if not death.dead:
        assert death.worker.exception() is None
        assert rig.faults(ledger) == []
        return None
    rig.world.tree.end_session(session.session)
    await read_back(rig, ledger)
    await mend(rig.worker("second", grace_s=0.0, settle_s=0.01), passes=2)
    assert await rig.marked() == []
    assert rig.faults(ledger) == []
    return death.calls


async def read_back(rig, ledger):
    """All entries can be read by what the metadata say now."""
    reader = await rig.world.client("reader").recover(ledger)
    entries = []
    while len(entries) < 4:
        entries += await reader.read(len(entries), 3, 1 << 20)
    assert [bytes(payload) for _, payload in entries] == [b"entry %d" % n for n in range(4)]


@pytest.mark.slow
@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("prepare", [lost_bookie, holes_and_limbo, narrow, open_ledger])
def test_a_worker_may_die_at_any_call(prepare, after):
    point = 1
    while simulate(die_at(point, after, prepare)) is not None:
        point += 1
    assert point > 15
