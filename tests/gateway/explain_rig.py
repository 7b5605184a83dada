"""A broker over several bookies, on virtual time, and `gateway explain` against it.

The handlers answer the command's requests, and the bookies are real ones over simulated disks.
"""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager

from gateway.admin.client import AdminClient
from gateway.admin.explain import explain
from gateway.admin.explain_kafka import view_partition
from gateway.admin.storage import Storage
from gateway.wire.client_link import VERSION_MAX, Served
from ledger.bookie.bookie import Bookie
from ledger.bookie.config import BookieConfig
from ledger.bookie.gc.collector import collect
from ledger.bookie.in_process import LocalBookies
from ledger.client.config import LedgerClientConfig
from ledger.ports.bookies import LocateReply, Status
from ledger.repair.config import RepairConfig
from ledger.repair.replication_worker import ReplicationWorker
from tests.gateway.cleaning_rig import CleaningCluster
from tests.gateway.explain_walk import check_explanation
from tests.ledger.log_walk import files_of, newest
from tests.sim.disk import DiskFaults, SimDisk
from tests.sim.table import SimTable

API_VERSIONS = 18


class Ensemble(LocalBookies):
    """Bookies of this process. Those that left answer nothing, and are not registered."""

    def __init__(self, bookies):
        super().__init__(bookies)
        self.every = dict(self._bookies)
        self.earlier = set()  # bookies of a release without Locate

    def leave(self, name):
        del self._bookies[name]

    def come_back(self, name):
        self._bookies[name] = self.every[name]

    async def locate(self, bookie, ledger, entry):
        if bookie in self.earlier:
            return LocateReply(Status.BAD_VERSION)
        return await super().locate(bookie, ledger, entry)


class DirectLink:
    """A connection to the broker without a network."""

    peer = "broker"
    is_over = False

    def __init__(self, cluster):
        self._cluster = cluster
        self._served = Served(self.peer)

    async def open(self):
        self._served.learn(await self._cluster.answer(API_VERSIONS, 0))
        return self

    async def close(self):
        pass

    def version(self, key, version_max=VERSION_MAX):
        return self._served.version(key, version_max)

    async def send(self, key, fields, version_max=VERSION_MAX):
        return await self._cluster.answer(key, self.version(key, version_max), **fields)


class DirectClient(AdminClient):
    """The client of the admin commands; all its connections lead to one broker."""

    def __init__(self, link):
        super().__init__("127.0.0.1:9092")
        self._first = link

    async def _link(self, host, port):
        return self._first


class ExplainCluster(CleaningCluster):
    """One broker with `count` bookies, three of which store each entry."""

    def __init__(self, count=3, **settings):
        super().__init__(bookies=3, **settings)
        self.count = count

    async def start(self):
        self.disks, bookies = {}, []
        for number in range(self.count):
            disk = SimDisk(self.draw, DiskFaults(sync_s_max=0.001))
            bookie = Bookie(
                disk,
                SimTable(self.draw),
                self.clock,
                lambda: self.draw.randbytes(16),
                name=f"bookie-{number + 1}",
                config=BookieConfig(
                    file_bytes=1 << 16,
                    preallocate_bytes=4096,
                    headroom_bytes=0,
                    index_batch_entries=4,
                ),
            )
            await bookie.start()
            self.disks[bookie.bookie_id] = disk
            bookies.append(bookie)
        self.port = Ensemble(bookies)
        await self.start_gateway()
        self.client = DirectClient(await DirectLink(self).open())

    async def start_gateway(self):
        await super().start_gateway()
        self.catalog._bookies = lambda: 3

    async def topic(self, name="t", partitions=1, **configs):
        """Create a topic with three copies, and return its first partition, open."""
        settings = {key.replace("_", "."): str(value) for key, value in configs.items()}
        await self.catalog.create(name, partitions, 3, settings)
        partition = await self.partition(name)
        await partition.stream.begin()
        return partition

    def storage(self):
        return Storage(self.metadata, self.port, self.clock, "admin")

    def files(self):
        """The log files of each bookie, also of those that left."""
        return {name: files_of(disk) for name, disk in self.disks.items()}

    async def view(self, offset, at_ms=None):
        return await view_partition(self.client, "t", 0, offset, at_ms)

    async def explain(self, offset, **changes):
        view = (await self.view(offset))._replace(**changes)
        return await explain(self.storage(), view)

    async def checked(self, offset, **changes):
        """An explanation that the files agree with."""
        found = await self.explain(offset, **changes)
        check_explanation(found, self.files())
        return found

    async def rewrite_files(self):
        """Let every bookie begin a log file, and rewrite the others. Returns how many it wrote."""
        rewritten = 0
        for bookie in self.port._bookies.values():

            async def all_exist(bookie=bookie):
                return bookie.ledgers()

            await bookie.storage.journal.roll()
            await bookie.storage.checkpoint()
            rewritten += (
                await collect(bookie, all_exist, compaction_threshold=1.0)
            ).files_rewritten
        return rewritten

    async def repair(self, ledger, gone):
        """Replace a bookie of a closed ledger that left, as `bookie audit` does."""
        await self.storage().underreplicated.mark(ledger, [gone])
        worker = ReplicationWorker(
            self.metadata,
            self.port,
            self.clock,
            "worker",
            self.draw.random,
            RepairConfig(),
            LedgerClientConfig(read_timeout_s=1.0),
        )
        return await worker.repair(ledger)

    def spoil(self, name, ledger, entry):
        """Flip a bit of the payload of an entry on the disk of one bookie."""
        place = newest(files_of(self.disks[name]), ledger, entry)
        self.disks[name].flip_bit(place.file, place.position + place.length - 1)


async def settled():
    """Let what is under way reach the slowest bookies."""
    await asyncio.sleep(1)


@asynccontextmanager
async def explained(count=3, **settings):
    cluster = ExplainCluster(count, **settings)
    await cluster.start()
    yield cluster
