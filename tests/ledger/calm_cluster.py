"""A simulated cluster without chance, and writers and readers on it, for tests of the client."""

import asyncio

from ledger.client.config import LedgerClientConfig
from tests.sim.cluster import Cluster
from tests.sim.network import Weather

CALM = {"tail_rate": 0.0, "timeout_s": 0.5}


def cluster(bookies=3, **config):
    settings = LedgerClientConfig(read_timeout_s=1.0, **config)
    return Cluster(1, bookies=bookies, weather=Weather(**CALM), config=settings)


async def create(world, e=3, qw=3, qa=2, host="writer"):
    client = world.client(host)
    return await client.create(ensemble_size=e, write_quorum=qw, ack_quorum=qa)


class Told:
    """Collects (entry, error) as the writer tells them."""

    def __init__(self, writer):
        self.writer = writer
        self.news = []

    def add(self, *payload):
        entry = self.writer.lap + 1
        return self.writer.add(payload, lambda error: self.news.append((entry, error)))

    async def wait(self, count):
        async with asyncio.timeout(60):
            while len(self.news) < count:
                await asyncio.sleep(0.001)

    @property
    def errors(self):
        return [type(error) for _, error in self.news]


async def written(world, count=5, **shape):
    """A writer with `count` confirmed entries `entry 0`, `entry 1` ..."""
    writer = await create(world, **shape)
    told = Told(writer)
    for number in range(count):
        await writer.room()
        told.add(b"entry ", b"%d" % number)
    await told.wait(count)
    return writer, told


def held_by(world, ledger, entry):
    """Those of the entry's bookies, as metadata name them, that durably hold it."""
    bookies = world.metadata_of(ledger).bookies_of(entry)
    return [name for name in bookies if entry in world.bookies[name].durable_entries(ledger)]


def payloads(entries):
    return [(entry, bytes(payload)) for entry, payload in entries]


def expected(first, last):
    return [(n, b"entry %d" % n) for n in range(first, last + 1)]


def refusing(bookie, status, times):
    """The bookie answers `times` adds so; then as it does."""
    left, real = [times], bookie.add

    def add(ledger, entry, key, body, on_added, *, recovery=False):
        if left[0] > 0:
            left[0] -= 1
            asyncio.get_running_loop().call_soon(on_added, status)
        else:
            real(ledger, entry, key, body, on_added, recovery=recovery)

    bookie.add = add
