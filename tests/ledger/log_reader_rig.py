"""Native readers of one stream on a simulated cluster, with counted requests."""

import asyncio
from contextlib import asynccontextmanager

from ledger.client.client import LedgerClient
from ledger.core.gaps import Gap
from ledger.streams.log_reader import LogReader
from ledger.streams.stream_seek import Edge
from tests.ledger.calm_cluster import cluster
from tests.ledger.follow_rig import NAME, FollowRig, timestamp_of
from tests.ledger.reader_rig import ReaderPort
from tests.sim.loop import SimClock
from tests.sim.metadata import SimMetadata
from tests.sim.network import SimBookies


class Reading:
    """A native reader. `port` counts its requests to bookies, `calls` those to the metadata."""

    def __init__(self, rig, host="reader", **options):
        self.rig = rig
        self.port = ReaderPort(SimBookies(rig.world.network, host))
        self.session = SimMetadata(rig.world.tree, rig.world.metadata_faults)
        self.gets = []  # every path that was read
        self._count_gets()
        client = LedgerClient(self.session, self.port, SimClock(), rig.world.config)
        options = {"timestamp_max": timestamp_of, **options}
        self.reader = LogReader(NAME, self.session, client, **options)

    def _count_gets(self):
        get = self.session.get

        async def counted(path):
            self.gets.append(path)
            return await get(path)

        self.session.get = counted

    @property
    def entry_reads(self):
        return sum(self.port.count("read_many").values())

    @property
    def ledger_reads(self):
        """Reads of the metadata of ledgers."""
        return sum(path.startswith("/ledgers/") for path in self.gets)

    async def start(self, first=Edge.EARLIEST, until=None):
        await self.reader.start(first, until)
        return self

    async def take(self, records=0, gaps=0, timeout_s=60.0):
        """Read until there are so many records and gaps. Returns both kinds, in order."""
        found = []
        async with asyncio.timeout(timeout_s):
            while (
                sum(not isinstance(each, Gap) for each in found) < records
                or sum(isinstance(each, Gap) for each in found) < gaps
            ):
                some, gap = await self.reader.read(records or 1, timeout_s)
                assert not (some and gap)
                found += some
                found += [gap] if gap else []
                assert some or gap or not self.reader.ended, found
        return found

    async def rest(self):
        """Read up to the end of a reader that ends."""
        found = []
        async with asyncio.timeout(60):
            while not self.reader.ended:
                some, gap = await self.reader.read(1000, 60.0)
                found += some
                found += [gap] if gap else []
        return found


def brief(found):
    """Records as (offset, data), gaps as (kind, first, last, offsets)."""
    return [
        (each.kind.name, tuple(each.first), tuple(each.last), tuple(each.offsets))
        if isinstance(each, Gap)
        else (each.offset, bytes(each.data))
        for each in found
    ]


def lose(rig, ledger, entry, bookies=None):
    """Every bookie (or those named) has forgotten the entry, and does not know that it has."""
    for name, bookie in rig.world.bookies.items():
        if bookies is None or name in bookies:
            bookie.ledgers[ledger].entries.pop(entry, None)


@asynccontextmanager
async def reading_rig(bookies=3, limits=None, **config):
    config = {"control_ms": 100, **config}
    rig = await FollowRig(cluster(bookies), limits=limits, **config).start()
    yield rig
