"""A reader of a simulated cluster whose every request is counted and may be held up."""

import asyncio
from collections import Counter

from ledger.client.health import BookieHealth
from ledger.client.reader import LedgerReader
from ledger.client.tail import TailReader
from ledger.client.update_metadata import LedgerMetadataStore
from ledger.ports.bookies import ReadManyReply, ReadReply, Status
from tests.ledger.calm_cluster import Told, create
from tests.sim.metadata import SimMetadata
from tests.sim.network import SimBookies

ASKING = {"read_many": ReadManyReply, "read_lac": ReadReply, "wait_lac": ReadReply}


class ReaderPort:
    """The bookies as the reader sees them.

    `stalled` bookies answer nothing, `delays` (seconds by bookie) answer later, `answers` (a
    status by bookie) are sick. `gone` ledgers were collected. An answer holds at most `most`
    entries, if that is set. `asked` is every request: (method, bookie, when), `batches` those for
    entries: (ledger, first, last).
    """

    def __init__(self, port):
        self.port = port
        self.stalled = set()
        self.delays = {}
        self.answers = {}
        self.most = None
        self.gone = set()
        self.asked = []
        self.batches = []

    def __getattr__(self, name):
        return getattr(self.port, name)

    def count(self, method):
        return Counter(bookie for what, bookie, _ in self.asked if what == method)

    async def _ask(self, method, bookie, *rest):
        self.asked.append((method, bookie, asyncio.get_running_loop().time()))
        if bookie in self.stalled:
            await asyncio.Event().wait()
        if bookie in self.delays:
            await asyncio.sleep(self.delays[bookie])
        if bookie in self.answers:
            return ASKING[method](self.answers[bookie])
        return await getattr(self.port, method)(bookie, *rest)

    async def read_many(self, bookie, ledger, first, last, max_bytes):
        self.batches.append((ledger, first, last))
        if ledger in self.gone:
            return ReadManyReply(Status.NO_LEDGER)
        reply = await self._ask("read_many", bookie, ledger, first, last, max_bytes)
        return reply._replace(bodies=reply.bodies[: self.most])

    async def read_lac(self, bookie, ledger):
        return await self._ask("read_lac", bookie, ledger)

    async def wait_lac(self, bookie, ledger, previous, timeout_s):
        return await self._ask("wait_lac", bookie, ledger, previous, timeout_s)


class ReaderRig:
    """One host's reader of one ledger, opened without asking any bookie."""

    def __init__(self, world, host):
        self.world = world
        self.port = ReaderPort(SimBookies(world.network, host))
        self.session = SimMetadata(world.tree, world.metadata_faults)
        loop = asyncio.get_running_loop()
        self.health = BookieHealth(self.port, world.config, loop.time, world.draw.random)

    async def open(self, ledger):
        store = LedgerMetadataStore(self.session, self.world.config)
        stored = await store.read(ledger)
        self.reader = LedgerReader(stored, store, self.port, self.world.config, self.health)
        self.tail = TailReader(self.reader, self.port, self.world.config, self.health)
        return self


async def reader_of(world, ledger, host="reader"):
    return await ReaderRig(world, host).open(ledger)


async def change_metadata(world, ledger, change):
    """Someone else, such as the repair, changes what is stored."""
    store = LedgerMetadataStore(SimMetadata(world.tree, world.metadata_faults), world.config)
    return await store.update(await store.read(ledger), change)


def copy_ledger(world, ledger, source, target):
    """`target` holds all that `source` holds of the ledger."""
    stored = world.bookies[source].ledgers[ledger]
    world.bookies[target].ledgers[ledger] = stored


async def settled(world, ledger, count):
    """Every bookie of the last ensemble holds its share of the first `count` entries."""
    metadata = world.metadata_of(ledger)
    share = [(bookie, n) for n in range(count) for bookie in metadata.bookies_of(n)]
    async with asyncio.timeout(60):
        while any(n not in world.bookies[b].durable_entries(ledger) for b, n in share):
            await asyncio.sleep(0.001)


async def grown(world, count, **shape):
    """A writer with `count` entries, each added when all before it were everywhere: so the
    bookies know that all but the last are confirmed.
    """
    writer = await create(world, **shape)
    told = Told(writer)
    for number in range(count):
        await add_one(world, told, number)
    return writer, told


async def add_one(world, told, number):
    told.add(b"entry %d" % number)
    await told.wait(number + 1)
    await settled(world, told.writer.ledger, number + 1)


async def timed(waiting):
    """(result or error, seconds until then)."""
    loop = asyncio.get_running_loop()
    began_s = loop.time()
    try:
        result = await waiting
    except Exception as error:
        result = error
    return result, loop.time() - began_s


SICK = [Status.IO_ERROR, Status.OVERLOADED, Status.UNREACHABLE, Status.UNKNOWN_LEDGER_STATE]
