"""The bookies port over simulated links: latency, loss, cuts, crashes, all by seed.

`Network` joins hosts (writers, recoverers, readers) to bookies. `SimBookies` is one host's port.
Adds to one bookie arrive in the order they were sent, as on one connection; reads run beside
them. A lost request or reply is UNREACHABLE after the timeout, and the bookie may have acted.
"""

import asyncio
from dataclasses import dataclass

from ledger.world.bookies import (
    DEFAULT_RACK,
    BookieInfo,
    BookieStats,
    EntriesReply,
    ReadManyReply,
    ReadReply,
    Status,
)


@dataclass
class Weather:
    """How bad the links are. Rates are probabilities per message."""

    latency_s: float = 0.001  # mean, each way
    tail_rate: float = 0.1  # so often a message takes `tail_factor` times as long
    tail_factor: float = 50.0
    loss: float = 0.0
    timeout_s: float = 1.0


class Network:
    """All links. `cut(host, bookie)` stops messages both ways until `heal`."""

    def __init__(self, draw, weather, bookies):
        self.draw = draw
        self.weather = weather
        self.bookies = bookies  # by id
        self.cuts = set()
        self.slow = {}  # by (host, bookie): so many times slower than the others
        self.racks = {}  # by bookie; the default rack where none is set
        self.on_added = lambda bookie, ledger, entry, body, recovery: None  # says the bookie
        self._lanes = {}  # when the last add of one (host, bookie) arrives

    def cut(self, host, bookie):
        self.cuts.add((host, bookie))

    def heal(self):
        self.cuts.clear()
        self.slow.clear()
        self.weather.loss = 0.0
        self.weather.tail_rate = 0.0

    def delay_s(self, host, bookie):
        weather = self.weather
        delay_s = self.draw.expovariate(1 / weather.latency_s) * self.slow.get((host, bookie), 1)
        if self.draw.random() < weather.tail_rate:
            delay_s *= weather.tail_factor
        return delay_s

    def lost(self, host, bookie):
        return (host, bookie) in self.cuts or self.draw.random() < self.weather.loss

    def arrival_s(self, lane):
        """When an add sent now arrives: never before one sent earlier on the same lane."""
        now_s = asyncio.get_running_loop().time()
        at_s = max(now_s + self.delay_s(*lane), self._lanes.get(lane, 0.0) + 1e-9)
        self._lanes[lane] = at_s
        return at_s


class SimBookies:
    """One host's port to all bookies of a network."""

    def __init__(self, network, host):
        self.network = network
        self.host = host
        self.dead = False  # a dead host hears nothing more; what it sent still arrives

    def available(self):
        return tuple(sorted(b for b, info in self.registered().items() if not info.read_only))

    def registered(self):
        racks = self.network.racks
        return {
            name: BookieInfo(
                str(name), 1, racks.get(name, DEFAULT_RACK), read_only=not bookie.writable
            )
            for name, bookie in self.network.bookies.items()
            if bookie.up
        }

    def add(self, bookie, ledger, entry, master_key, body, on_added, *, recovery=False):
        assert not self.dead
        _AddUnderWay(self, bookie, on_added).send(ledger, entry, master_key, tuple(body), recovery)

    async def read(self, bookie, ledger, entry, *, fence_key=None):
        reply = await self._ask(bookie, lambda b: b.read(ledger, entry, fence_key=fence_key))
        return reply or ReadReply(Status.UNREACHABLE)

    async def read_many(self, bookie, ledger, first, last, max_bytes):
        reply = await self._ask(bookie, lambda b: b.read_many(ledger, first, last, max_bytes))
        return reply or ReadManyReply(Status.UNREACHABLE)

    async def read_lac(self, bookie, ledger):
        reply = await self._ask(bookie, lambda b: b.read_lac(ledger))
        return reply or ReadReply(Status.UNREACHABLE)

    async def write_lac(self, bookie, ledger, master_key, lac):
        reply = await self._ask(bookie, lambda b: b.write_lac(ledger, master_key, lac))
        return Status.UNREACHABLE if reply is None else reply

    async def wait_lac(self, bookie, ledger, previous, timeout_s):
        reply = await self._ask(
            bookie, lambda b: b.wait_lac(ledger, previous, timeout_s), more_s=timeout_s
        )
        return reply or ReadReply(Status.UNREACHABLE)

    async def list_entries(self, bookie, ledger):
        reply = await self._ask(bookie, lambda b: b.list_entries(ledger))
        return reply or EntriesReply(Status.UNREACHABLE)

    async def end_limbo(self, bookie, ledger, master_key):
        reply = await self._ask(bookie, lambda b: b.end_limbo(ledger, master_key))
        return Status.UNREACHABLE if reply is None else reply

    async def stats(self, bookie):
        reply = await self._ask(bookie, lambda b: b.stats())
        return reply or BookieStats(Status.UNREACHABLE)

    async def _ask(self, bookie_id, ask, more_s=0.0):
        """The bookie's reply, or None after the timeout (and `more_s`)."""
        network = self.network
        if bookie_id not in network.bookies:
            return None
        try:
            async with asyncio.timeout(network.weather.timeout_s + more_s):
                await asyncio.sleep(network.delay_s(self.host, bookie_id))
                bookie = network.bookies[bookie_id]
                if network.lost(self.host, bookie_id) or not bookie.up:
                    await asyncio.Event().wait()
                reply = await ask(bookie)
                await asyncio.sleep(network.delay_s(self.host, bookie_id))
                if network.lost(self.host, bookie_id):
                    await asyncio.Event().wait()
                return reply
        except TimeoutError:
            return None


class _AddUnderWay:
    """One add between a host and a bookie; tells its sender once."""

    def __init__(self, port, bookie_id, on_added):
        self.port = port
        self.bookie_id = bookie_id
        self.on_added = on_added
        self.told = False

    def send(self, ledger, entry, master_key, body, recovery):
        network = self.port.network
        loop = asyncio.get_running_loop()
        loop.call_later(network.weather.timeout_s, self.tell, Status.UNREACHABLE)
        arrives_s = network.arrival_s((self.port.host, self.bookie_id))
        if network.lost(self.port.host, self.bookie_id):
            return

        def arrive():
            bookie = network.bookies.get(self.bookie_id)
            if bookie is not None and bookie.up:
                bookie.add(ledger, entry, master_key, body, answered, recovery=recovery)

        def answered(status):
            if status is Status.OK:
                network.on_added(self.bookie_id, ledger, entry, b"".join(body), recovery)
            if not network.lost(self.port.host, self.bookie_id):
                loop.call_later(network.delay_s(self.port.host, self.bookie_id), self.tell, status)

        loop.call_at(arrives_s, arrive)

    def tell(self, status):
        if not self.told and not self.port.dead:
            self.told = True
            self.on_added(status)
