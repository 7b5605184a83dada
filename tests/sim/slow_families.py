"""A world for `mutations` in which bookies are slow, dead, or slow all together, by seed.

An oracle knows which bookies are slow: each of them is left after some reads, no other one may be
found slow, of each write set at most Qw - 1 are out, and no read waits for a dead bookie while a
slow one could answer.
"""

from random import Random

from ledger.core.bookie_health import Reason
from ledger.core.latency import SampleKind
from ledger.errors import LedgerError
from ledger.ports.bookies import Status
from tests.ledger.calm_cluster import cluster, written
from tests.ledger.reader_rig import reader_of, settled, timed

SHAPES = ((3, 3, 2), (3, 3, 2), (2, 2, 2), (5, 3, 2), (6, 3, 2), (5, 5, 3))
ENTRIES = 12
LATE_S = 0.25
READS_MAX = 3 * 64 + 16  # until a bookie that is not slow is probed, and the suspicion is certain


class Slowness:
    """One seed: some slow bookies, at times a dead one, and times in which all are slow."""

    def __init__(self, seed):
        self.draw = Random(f"{seed}:slowness")
        self.found = []

    async def run(self):
        draw = self.draw
        e, qw, qa = draw.choice(SHAPES)
        self.world = cluster(bookies=e)
        writer, _ = await written(self.world, ENTRIES, e=e, qw=qw, qa=qa)
        await settled(self.world, writer.ledger, ENTRIES)
        await writer.close()
        self.rig = await reader_of(self.world, writer.ledger)
        self.names = list(self.world.metadata_of(writer.ledger).last_fragment.ensemble)
        self.base_s = draw.choice([0.0, 0.0, 0.02])  # all of them, as if on other disks
        self.slow = draw.sample(self.names, draw.randint(0, min(qw - 1, (e - 1) // 2)))
        for name in self.names:
            self.rig.port.delays[name] = self.base_s
        for name in self.slow:
            self.rig.port.delays[name] = draw.choice([0.17, 0.2])
        await self._read(draw.randint(50, 400))
        for name in self.slow:
            if self.rig.port.count("read_many")[name] > READS_MAX:
                self.found.append(f"L45: {name} is slow, and still read")
        if draw.random() < 0.5:
            await self._load()
        if draw.random() < 0.5:
            await self._die()
        return self.found

    async def _load(self):
        """This process is busy: for a while all answers take long to reach it."""
        usual = dict(self.rig.port.delays)
        for name in self.names:
            self.rig.port.delays[name] = usual[name] + 0.15
        await self._read(40)
        self.rig.port.delays.update(usual)
        await self._read(100)

    async def _die(self):
        """A bookie refuses from now on. Once that is known, a slow one is asked instead."""
        dead = self.draw.choice([name for name in self.names if name not in self.slow] or ["b0"])
        self.world.bookies[dead].crash()
        self.rig.port.delays.pop(dead)
        self.rig.port.answers[dead] = Status.UNREACHABLE
        if self.draw.random() < 0.5:
            del self.rig.port.answers[dead]
            self.rig.port.stalled.add(dead)
        await self._read(10)
        await self._read(20, late_s=LATE_S)

    async def _read(self, count, late_s=None):
        late = 0
        for number in range(count):
            entry = number % ENTRIES
            found, seconds = await timed(self.rig.reader.read(entry, entry, 1))
            if isinstance(found, LedgerError):
                self.found.append(f"L44: entry {entry}: {found}")
            late += late_s is not None and seconds >= late_s
            self._check(self.rig.reader.metadata.bookies_of(entry))
        if late > count // 2:
            self.found.append(f"L44: {late} of {count} reads wait for a dead bookie")

    def _check(self, write_set):
        health, most = self.rig.health, len(write_set) - 1
        registered = self.rig.port.registered()
        entries = [each.found for each in health.greylist()]
        failing = {one.bookie for one in entries if one.reason is Reason.FAILING}
        out = {name for name in write_set if name in failing or name not in registered}
        last = health.ask_last(write_set, most, SampleKind.READ)
        if len(last | out) > max(most, len(out)):
            self.found.append(f"L45: of {write_set} all are out: {sorted(last | out)}")
        for one in entries:
            if one.reason is Reason.SLOW and one.bookie not in self.slow:
                self.found.append(f"L45: {one.bookie} is not slow: {one.why}")
