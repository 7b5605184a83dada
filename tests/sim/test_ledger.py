"""Goal: no acknowledged entry is ever lost, whoever crashes or takes over, and a break is seen.

Method: the real writer, recovery and reader on virtual time, over simulated bookies, links and
metadata with faults drawn by seed; `LedgerChecks` watches all the while. Then the same with known
mistakes planted: each must be found. A failure prints the command that repeats it; a range of
seeds is run by `python -m tests.sim.test_ledger FIRST LAST`.
"""

import asyncio
import random
import sys

import pytest

from ledger.client import metadata_format
from ledger.client.config import LedgerClientConfig
from ledger.core.entry_format import DigestType, EntryFormat, master_key
from ledger.errors import LedgerError
from tests.sim import first_seeds
from tests.sim.cluster import Cluster, drawn_weather, retried
from tests.sim.disk_bookie import DiskBookie
from tests.sim.loop import simulate
from tests.sim.planted import PLANTS, planted

pytestmark = pytest.mark.slow

SEEDS = 150
PLANT_SEEDS = 3_000
GIVE_UP_S = 400.0


class Scenario:
    """One writer, one or two that take over, faults until `heal_s`; then one last recovery."""

    def __init__(self, seed, bookie=None):
        self.seed = seed
        draw = self.draw = random.Random(f"{seed}:scenario")
        weather = drawn_weather(draw)
        config = LedgerClientConfig(
            pending_entries_max=draw.choice([3, 1000]),
            recovery_window_entries=draw.choice([1, 2, 16]),
            read_timeout_s=2 * weather.timeout_s,
        )
        self.cluster = Cluster(seed, weather=weather, config=config, bookie=bookie)
        self.cluster.metadata_faults.unsent = draw.choice([0.0, 0.05])
        self.cluster.metadata_faults.reply_lost = draw.choice([0.0, 0.05])
        self.quorums = draw.choice([(3, 3, 2), (3, 2, 2), (3, 3, 2), (3, 2, 1), (1, 1, 1)])
        self.heal_s = draw.uniform(0.3, 3.0)
        self.death_rate = 0.5  # of those who take over
        self.ledger = None
        self.closed_at = []  # what each recovery returned

    async def run(self):
        await self.cluster.start()
        heal_at_s = asyncio.get_running_loop().time() + self.heal_s
        writer = await self.retry(self.create)
        self.ledger = writer.ledger
        faults = asyncio.create_task(self.faults())
        others = [asyncio.create_task(self.write(writer))]
        for number in range(self.draw.choice([1, 2, 2])):
            others.append(asyncio.create_task(self.take_over(f"recoverer{number}")))
        await asyncio.sleep(max(0.0, heal_at_s - asyncio.get_running_loop().time()))
        faults.cancel()
        self.cluster.heal()
        async with asyncio.timeout(GIVE_UP_S):
            await asyncio.gather(*others)
            reader = await self.retry(lambda: self.cluster.client("last").recover(self.ledger))
        self.closed_at.append(reader.last_add_confirmed)
        await self.cluster.checks.final(self.ledger)
        if len(set(self.closed_at)) > 1:
            self.cluster.checks.report("states", f"recoveries ended at {self.closed_at}")
        return self.cluster.checks.violations

    async def create(self):
        e, qw, qa = self.quorums
        client = self.cluster.client("writer")
        return await client.create(ensemble_size=e, write_quorum=qw, ack_quorum=qa)

    async def retry(self, attempt):
        return await retried(attempt, self.draw)

    async def write(self, writer):
        """Adds until it fails, closes or is killed; a zombie goes on after its takeover."""
        draw, checks = self.draw, self.cluster.checks
        pause_s = draw.choice([0.0, 0.002, 0.02])
        for _ in range(draw.randint(1, 40)):
            await writer.room()
            if writer.failed is not None:
                return
            entry = writer.lap + 1

            def on_confirmed(error, entry=entry):
                if error is None:
                    checks.on_acked(writer.ledger, entry)

            writer.add([b"%d:" % entry, draw.randbytes(draw.randint(0, 20))], on_confirmed)
            if draw.random() < 0.02:
                self.cluster.kill("writer")
                return
            if pause_s and draw.random() < 0.7:
                await asyncio.sleep(draw.expovariate(1 / pause_s))
        if draw.random() < 0.3:
            try:
                self.closed_at.append(await writer.close())
            except LedgerError:
                pass

    def life_s(self):
        """How long one who takes over has before it dies."""
        return self.draw.expovariate(1 / 0.05)

    async def take_over(self, host):
        draw = self.draw
        await asyncio.sleep(draw.expovariate(1 / 0.1))
        if draw.random() < self.death_rate:
            client = self.cluster.client(host)
            attempt = asyncio.create_task(client.recover(self.ledger))
            await asyncio.sleep(self.life_s())
            self.cluster.kill(host)
            attempt.cancel()
            await asyncio.gather(attempt, return_exceptions=True)
            await asyncio.sleep(draw.expovariate(1 / 0.1))
        reader = await self.retry(lambda: self.cluster.client(host).recover(self.ledger))
        self.closed_at.append(reader.last_add_confirmed)

    async def faults(self):
        """Bookies crash and come back, links are cut for spells."""
        draw, cluster = self.draw, self.cluster
        names = sorted(cluster.bookies)
        while True:
            await asyncio.sleep(draw.expovariate(1 / 0.1))
            bookie = cluster.bookies[draw.choice(names)]
            kind = draw.choice(["crash", "restart", "cut", "cut", "mend"])
            if kind == "crash" and bookie.up:
                bookie.crash()
            elif kind == "restart" and not bookie.up:
                bookie.restart()
            elif kind == "cut":
                host = draw.choice(["writer", "recoverer0", "recoverer1"])
                cluster.network.cut(host, draw.choice(names))
            elif kind == "mend":
                cluster.network.cuts.clear()


class Overtaken(Scenario):
    """No crash, no cut, no loss: only messages that are overtaken by others sent later."""

    def __init__(self, seed, bookie=None):
        super().__init__(seed, bookie)
        self.quorums = (3, 3, 2)
        self.cluster.weather.loss = 0.0
        self.cluster.weather.tail_rate = self.draw.choice([0.2, 0.35])
        slower = self.draw.choice([10, 30])
        for name in self.cluster.bookies:
            self.cluster.network.slow["writer", name] = self.draw.choice([1, slower])

    async def faults(self):
        pass


class Abandoned(Scenario):
    """One bookie gets nothing from the writer's burst, nor from who takes over and dies early."""

    def __init__(self, seed, bookie=None):
        super().__init__(seed, bookie)
        self.quorums = (3, 2, 2)
        self.heal_s = 5.0
        self.death_rate = 0.8
        self.cluster.weather.tail_rate = 0.02
        self.cluster.weather.loss = 0.0

    def life_s(self):
        return self.cluster.weather.timeout_s + self.draw.uniform(0.0, 0.2)

    async def write(self, writer):
        unlucky = self.draw.choice(writer.metadata.last_fragment.ensemble)
        self.cluster.network.cut("writer", unlucky)
        self.cluster.network.cut("recoverer0", unlucky)
        for number in range(self.draw.randint(3, 20)):
            if not writer.full:
                writer.add([b"%d" % number], lambda _: None)
        self.cluster.kill("writer")

    async def faults(self):
        pass


class SecondFragment(Scenario):
    """The writer's bookies were changed after `n` entries, it sent some more, and it is gone."""

    async def run(self):
        await self.cluster.start()
        self.cluster.heal()
        client = self.cluster.client("writer")
        writer = await client.create(ensemble_size=3, write_quorum=3, ack_quorum=2)
        ledger = self.ledger = writer.ledger
        for entry in range(self.draw.randint(1, 5)):
            writer.add(
                [b"%d" % entry], lambda error, e=entry: self.cluster.checks.on_acked(ledger, e)
            )
            await asyncio.sleep(0.1)
        self.change_bookies(writer)
        await self.send_some(writer)
        kept = writer.metadata.last_fragment.ensemble[0]
        if self.draw.random() < 0.5:  # who might have told the LAC
            self.cluster.bookies[kept].crash()
        reader = await self.retry(lambda: self.cluster.client("other").recover(ledger))
        self.closed_at.append(reader.last_add_confirmed)
        self.cluster.heal()
        await self.cluster.checks.final(ledger)
        return self.cluster.checks.violations

    def change_bookies(self, writer):
        old = writer.metadata.last_fragment.ensemble
        new = (old[0], *sorted(set(self.cluster.bookies) - set(old)))
        changed = writer.metadata.with_ensemble(writer.lac + 1, new)
        path = metadata_format.ledger_path(writer.ledger)
        self.cluster.tree.set(path, metadata_format.encode(changed), 0)

    async def send_some(self, writer):
        """Each entry reaches some bookies of the new ensemble; none was acknowledged."""
        port, ledger, lac = self.cluster.ports["writer"], writer.ledger, writer.lac
        ensemble = self.cluster.metadata_of(ledger).last_fragment.ensemble
        layout = EntryFormat(DigestType.CRC32C)
        for entry in range(lac + 1, lac + 1 + self.draw.randint(0, 3)):
            payload = b"late %d" % entry
            length = writer.length + 6 * (entry - lac)
            body = (layout.pack(ledger, entry, lac, length, [payload]), payload)
            for bookie in self.draw.sample(ensemble, self.draw.randint(0, 1)):
                port.add(bookie, ledger, entry, master_key(b""), body, lambda status: None)
        await asyncio.sleep(0.1)


SCENARIOS = [Scenario, Overtaken, Abandoned, SecondFragment]
SHOWN_BY = {
    "recovery reads do not fence": Overtaken,
    "a copy tells of unpublished progress": Abandoned,
    "recovery starts below the last fragment": SecondFragment,
}


def run(seed, bookie=None, scenario=Scenario):
    """What was found wrong."""
    return simulate(scenario(seed, bookie).run())


@pytest.mark.parametrize("bookie", [None, DiskBookie], ids=["model bookie", "real bookie"])
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_nothing_acknowledged_is_ever_lost(scenario, bookie):
    for seed in range(SEEDS):
        found = run(seed, bookie, scenario)
        assert found == [], f"repeat: python -m tests.sim.test_ledger {seed}"


@pytest.mark.parametrize("name", PLANTS)
def test_a_planted_mistake_is_found(name):
    kind = SHOWN_BY.get(name, Scenario)
    assert first_seeds.found("ledger", name, lambda seed: finds(name, kind(seed)), PLANT_SEEDS)


def finds(name, scenario):
    """The mistake showed, in the checks or in an assertion of the product itself."""
    with planted(name, scenario.cluster.tree):
        try:
            return simulate(scenario.run()) != []
        except AssertionError:
            return True


@pytest.mark.parametrize("bookie", [None, DiskBookie], ids=["model bookie", "real bookie"])
def test_the_same_seed_tells_the_same_story(bookie):
    def story(seed):
        scenario = Scenario(seed, bookie)
        told, tell = [], scenario.cluster.network.on_added

        def on_added(*facts):
            told.append((asyncio.get_running_loop().time(), *facts))
            tell(*facts)

        scenario.cluster.network.on_added = on_added
        simulate(scenario.run())
        return told

    for seed in range(10):
        assert story(seed) == story(seed)


if __name__ == "__main__":
    for seed in range(int(sys.argv[1]), int(sys.argv[-1]) + 1):
        for scenario in SCENARIOS:
            for bookie in (None, DiskBookie):
                found = run(seed, bookie, scenario)
                if found or len(sys.argv) == 2:
                    print(seed, scenario.__name__, bookie, found)
