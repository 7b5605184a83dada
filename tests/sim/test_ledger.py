"""Goal: no acknowledged entry is ever lost, whoever crashes or takes over, and a break is seen.

Method: the real writer, recovery and reader on virtual time, over simulated bookies, links and
metadata with faults drawn by seed; `LedgerChecks` watches all the while. Then the same with known
mistakes planted: each must be found. A failure prints its seed; `--ledger-seed` is not needed,
run `python -m tests.sim.test_ledger SEED`.
"""

import asyncio
import random
import sys

import pytest

from ledger.client.config import LedgerClientConfig
from ledger.errors import LedgerError
from tests.sim.cluster import Cluster
from tests.sim.loop import simulate
from tests.sim.network import Weather

SEEDS = 150
GIVE_UP_S = 400.0


class Scenario:
    """One writer, one or two that take over, faults until `heal_s`; then one last recovery."""

    def __init__(self, seed):
        self.seed = seed
        draw = self.draw = random.Random(f"{seed}:scenario")
        weather = Weather(
            latency_s=0.001 * draw.choice([1, 1, 5]),
            tail_rate=draw.choice([0.02, 0.1, 0.35]),
            tail_factor=draw.choice([20.0, 100.0]),
            loss=draw.choice([0.0, 0.0, 0.05, 0.15]),
            timeout_s=draw.choice([0.3, 1.0]),
        )
        config = LedgerClientConfig(
            pending_entries_max=draw.choice([3, 1000]),
            recovery_window_entries=draw.choice([1, 2, 16]),
            read_timeout_s=2 * weather.timeout_s,
        )
        self.cluster = Cluster(seed, weather=weather, config=config)
        self.cluster.metadata_faults.unsent = draw.choice([0.0, 0.05])
        self.cluster.metadata_faults.reply_lost = draw.choice([0.0, 0.05])
        self.quorums = draw.choice([(3, 3, 2), (3, 2, 2), (3, 3, 2), (3, 2, 1), (1, 1, 1)])
        self.heal_s = draw.uniform(0.3, 3.0)
        self.ledger = None
        self.closed_at = []  # what each recovery returned

    async def run(self):
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
        while True:
            try:
                return await attempt()
            except LedgerError as error:
                if not error.retryable:
                    raise
                await asyncio.sleep(self.draw.uniform(0.01, 0.3))

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

    async def take_over(self, host):
        draw = self.draw
        await asyncio.sleep(draw.expovariate(1 / 0.1))
        if draw.random() < 0.3:  # dies on the way
            client = self.cluster.client(host)
            attempt = asyncio.create_task(client.recover(self.ledger))
            await asyncio.sleep(draw.expovariate(1 / 0.05))
            self.cluster.kill(host)
            attempt.cancel()
            await asyncio.gather(attempt, return_exceptions=True)
            await asyncio.sleep(draw.expovariate(1 / 0.1))
        reader = await self.retry(lambda: self.cluster.client(host).recover(self.ledger))
        self.closed_at.append(reader.last_add_confirmed)

    async def faults(self):
        """At most Qa - 1 bookies are down at once; links are cut for spells."""
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


def run(seed):
    return simulate(Scenario(seed).run())


@pytest.mark.parametrize("block", range(10))
def test_nothing_acknowledged_is_ever_lost(block):
    for seed in range(block * SEEDS // 10, (block + 1) * SEEDS // 10):
        assert run(seed) == [], f"repeat with: python -m tests.sim.test_ledger {seed}"


if __name__ == "__main__":
    for seed in range(int(sys.argv[1]), int(sys.argv[-1]) + 1):
        found = run(seed)
        if found or len(sys.argv) == 2:
            print(seed, found)
