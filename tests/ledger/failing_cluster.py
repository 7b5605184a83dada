"""A calm cluster in which one thing at a time goes wrong while a ledger is written."""

import asyncio

from ledger.client import metadata_format
from ledger.errors import MetadataUnavailable
from ledger.ports.bookies import Status
from tests.ledger.calm_cluster import Told, cluster, create
from tests.sim.metadata import SimMetadata


async def nothing_was_lost(world, ledger):
    """Recover the ledger in a healthy cluster and check all that was acknowledged."""
    assert world.checks.violations == []
    world.heal()
    await world.all_up()
    await world.client("last").recover(ledger)
    await world.checks.final(ledger)
    assert world.checks.violations == []


def now_s():
    return asyncio.get_running_loop().time()


def without_error(told, count):
    assert told.news == [(entry, None) for entry in range(count)]


class Watched(Told):
    """As `Told`, and the cluster's checks hear of each acknowledgement the moment it comes."""

    def __init__(self, world, writer):
        super().__init__(writer)
        self.world = world

    def add(self, *payload):
        entry = self.writer.lap + 1

        def on_confirmed(error):
            self.news.append((entry, error))
            if error is None:
                self.world.checks.on_acked(self.writer.ledger, entry)

        return self.writer.add(payload, on_confirmed)

    async def add_all(self, count, pause_s=0.0):
        """So many more entries `entry <id>`; returns when all were told of."""
        for _ in range(count):
            await self.writer.room()
            self.add(b"entry %d" % (self.writer.lap + 1))
            if pause_s:
                await asyncio.sleep(pause_s)
        await self.wait(self.writer.lap + 1)


async def writing(bookies=4, count=3, shape=(3, 3, 2), **config):
    """A world, a writer with `count` confirmed entries, and who is told of them. Its metadata
    store is so quick that a change is made before any bookie has acknowledged anything.
    """
    world = cluster(bookies, **config)
    world.metadata_faults.latency_s = 1e-6
    writer = await create(world, *shape)
    told = Watched(world, writer)
    await told.add_all(count)
    return world, writer, told


def ensemble_of(world, writer):
    return world.metadata_of(writer.ledger).last_fragment.ensemble


def fragments_of(world, writer):
    return world.metadata_of(writer.ledger).fragments


def spares_of(world, writer):
    return sorted(set(world.bookies) - set(ensemble_of(world, writer)))


def store(world, writer, change):
    """Somebody else changes what is stored, whatever its version."""
    path = metadata_format.ledger_path(writer.ledger)
    changed = change(world.metadata_of(writer.ledger))
    world.tree.set(path, metadata_format.encode(changed), -1)


class Sets:
    """The writer's own sets of metadata, counted; `before` runs just before the first `times`,
    the replies of the first `lost` are lost, so many more never reach the store.
    """

    def __init__(self, writer, before=None, times=1, lost=0, unsent=0):
        self.session = writer._metadata_store.store
        self.before, self.times, self.lost, self.unsent = before, times, lost, unsent
        self.count = 0
        self.session.set = self.set

    async def set(self, path, data, version):
        self.count += 1
        if self.before is not None and self.count <= self.times:
            answer = self.before()
            if asyncio.iscoroutine(answer):
                await answer
        if self.lost < self.count <= self.lost + self.unsent:
            raise MetadataUnavailable("the request was lost")
        result = await SimMetadata.set(self.session, path, data, version)
        if self.count <= self.lost:
            raise MetadataUnavailable("the reply was lost")
        return result


class Answers:
    """What the writer sends to one bookie, and what it hears from there while told otherwise."""

    def __init__(self, world, name, host="writer"):
        self.name = name
        self.got = []  # entries
        self.bodies = []
        self.status = None  # answered at once, and nothing arrives
        self.kept = None  # answers held back, while a list
        self.port = world.ports[host]
        self.real = self.port.add
        self.port.add = self.add

    def add(self, bookie, ledger, entry, key, body, on_added, *, recovery=False):
        if bookie != self.name:
            self.real(bookie, ledger, entry, key, body, on_added, recovery=recovery)
            return
        self.got.append(entry)
        self.bodies.append(body)
        if self.status is not None:
            asyncio.get_running_loop().call_soon(on_added, self.status)
            return

        def told(status):
            if self.kept is None:
                on_added(status)
            else:
                self.kept.append(lambda: on_added(status))

        self.real(bookie, ledger, entry, key, body, told, recovery=recovery)

    def refuse(self, status=Status.IO_ERROR):
        self.status = status
        return self

    def hold(self):
        """It stores what it gets, and its answers stay away until `let_go`."""
        self.kept = []
        return self

    def let_go(self):
        kept, self.kept = self.kept, None
        for tell in kept:
            tell()


class Unheard:
    """A bookie that gets nothing of the writer's adds; the test answers in its name."""

    def __init__(self, world, name):
        self.name = name
        self.waiting = {}
        self.port = world.ports["writer"]
        self.real = self.port.add
        self.port.add = self.add

    def add(self, bookie, ledger, entry, key, body, on_added, *, recovery=False):
        if bookie == self.name:
            self.waiting[entry] = on_added
        else:
            self.real(bookie, ledger, entry, key, body, on_added, recovery=recovery)

    def tell(self, entry, status):
        self.waiting.pop(entry)(status)
