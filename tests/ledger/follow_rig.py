"""One stream of a simulated cluster, with owners that write it and followers that read it.

Every record is one user record `r<number>` with a timestamp of its own. An owner and a
follower are a process each, with a ledger client, a metadata session and caches of their own.
"""

import asyncio
from contextlib import asynccontextmanager

from ledger.client.client import LedgerClient
from ledger.streams.config import StreamConfig, StreamLimits
from ledger.streams.follower import FollowedStream
from ledger.streams.segment_store import create_streams
from ledger.streams.stream import Stream, StreamServices
from tests.ledger.calm_cluster import cluster
from tests.ledger.reader_rig import ReaderPort
from tests.sim.loop import SimClock
from tests.sim.metadata import SimMetadata
from tests.sim.network import SimBookies

NAME = "stream"


def data_of(number, timestamp, size=24):
    return (b"r%d %d " % (number, timestamp)).ljust(size, b".")


def timestamp_of(data):
    return int(bytes(data).split(b" ", 2)[1])


class NoState:
    """An owner without any state."""

    def encode(self, end_sequence_id):
        return b"state"

    def load(self, data):
        return iter(())

    def replay(self, sequence_id, data):
        pass

    def pass_loss(self, first, last):
        pass

    def timestamp_max(self, data):
        return timestamp_of(data)


class Owner:
    """`answers` maps a record's data to its sequence id, once it is durable."""

    def __init__(self, rig, host, *, faults=None, state=None):
        self.rig = rig
        self.host = host
        client = rig.world.client(host, faults)
        self.session = rig.world.sessions[host]
        self.services = StreamServices(self.session, client, SimClock(), rig.limits)
        self.failures = []
        self.answers = {}
        self.pending = 0
        self.stream = Stream(
            NAME,
            self.services,
            lambda: rig.config,
            state or NoState(),
            on_advanced=lambda end: None,
            on_failed=self.failures.append,
        )

    async def open(self):
        await self.stream.open()
        await self.stream.begin()
        return self

    def append(self, size=24, timestamp=None):
        """Append one record and return its data."""
        data = self.rig.new_data(size, timestamp)
        at = self.stream.next_sequence_id
        self.pending += 1

        def on_durable(error):
            self.pending -= 1
            if error is None:
                self.answers[data] = at

        self.stream.append((data,), len(data), 1, timestamp_of(data), on_durable)
        return data

    async def add(self, count=1, size=24):
        """Append `count` records, each in an entry of its own, durable before the next."""
        for _ in range(count):
            await self.writable()
            self.append(size)
            await self.settle()

    async def settle(self):
        async with asyncio.timeout(60):
            while self.pending:
                await asyncio.sleep(0.0005)

    async def writable(self):
        async with asyncio.timeout(60):
            while not self.stream.writable:
                await asyncio.sleep(0.0005)

    async def roll(self):
        """Complete the segment and wait until the next one accepts records."""
        number = self.stream.segments[-1].number
        self.stream.roll_soon()
        async with asyncio.timeout(60):
            while self.stream.segments[-1].number == number or not self.stream.writable:
                await asyncio.sleep(0.0005)

    def kill(self):
        self.rig.world.kill(self.host)


class Follower:
    """`ends` collects every reported end, `port` counts the requests to bookies."""

    def __init__(self, rig, host, *, faults=None, limits=None):
        self.rig = rig
        self.port = ReaderPort(SimBookies(rig.world.network, host))
        self.session = SimMetadata(rig.world.tree, faults or rig.world.metadata_faults)
        self._hear_in_order()
        self.calls = []
        self._count_calls()
        client = LedgerClient(self.session, self.port, SimClock(), rig.world.config)
        self.services = StreamServices(self.session, client, SimClock(), limits or rig.limits)
        self.ends = []
        self.stream = FollowedStream(NAME, self.services, timestamp_of, self.ends.append)

    def _hear_in_order(self):
        """Show a notified session the change in every later read, as ZooKeeper does."""
        watch = self.session.watch

        def watch_in_order(path, on_changed):
            def tell():
                self.session._catch_up()
                on_changed()

            return watch(path, tell)

        self.session.watch = watch_in_order

    def _count_calls(self):
        call = self.session._call

        async def counted(step, *args):
            self.calls.append(step)
            return await call(step, *args)

        self.session._call = counted

    async def until(self, end, timeout_s=60.0):
        """Wait until its end is at `end`, and return the seconds that took."""
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        async with asyncio.timeout(timeout_s):
            while self.stream.end_sequence_id < end:
                await asyncio.sleep(0.0005)
        return loop.time() - began_s

    async def read_all(self, at=None, bytes_max=200):
        """Read from `at`, by default the start, to the end. Returns the data by sequence id."""
        stream = self.stream
        at = stream.start_sequence_id if at is None else at
        found = {}
        while at < stream.end_sequence_id:
            records = stream.read_cached(at, bytes_max) or await stream.read(at, bytes_max)
            for record in records:
                assert record.sequence_id == at, (record.sequence_id, at)
                found[at] = b"".join(record.data)
                at = record.end_sequence_id
        return found


class FollowRig:
    """Created inside the simulated loop; `start` creates the stream."""

    def __init__(self, world, *, limits=None, **config):
        self.world = world
        self.limits = limits or StreamLimits(entry_bytes_max=64 * 1024)
        settings = {"ensemble_size": 3, "write_quorum": 3, "ack_quorum": 2, **config}
        self.config = StreamConfig(**settings)
        self.numbers = 0

    async def start(self):
        await create_streams(SimMetadata(self.world.tree), [NAME])
        return self

    def new_data(self, size=24, timestamp=None):
        self.numbers += 1
        return data_of(self.numbers, 1000 + self.numbers if timestamp is None else timestamp, size)

    async def owner(self, host="owner", state=None):
        return await Owner(self, host, state=state).open()

    async def follower(self, host="follower", **more):
        follower = Follower(self, host, **more)
        await follower.stream.open()
        return follower


@asynccontextmanager
async def started_rig(*, limits=None, **config):
    """A started rig of three bookies without faults."""
    rig = await FollowRig(cluster(), limits=limits, **config).start()
    yield rig


def by_sequence_id(*owners):
    return {at: data for owner in owners for data, at in owner.answers.items()}
