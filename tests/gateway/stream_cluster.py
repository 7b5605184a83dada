"""Runs a broker's topics on real streams, ledgers and a bookie, on virtual time.

`hold` delays the confirmation of every add until `release`; `refuse` fails adds with a status.
"""

import asyncio
import copy
import itertools
import struct
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from random import Random

from gateway.config import FetchLimits, GatewayConfig
from gateway.core.feature_levels import supported_levels
from gateway.core.fetch_session import FetchSessions
from gateway.features.features import Features
from gateway.groups.read_only_groups import ReadOnlyGroups
from gateway.handlers.api import Context, Peer
from gateway.handlers.table import rows
from gateway.process.cluster_layout import lay_out_cluster
from gateway.server.dispatch import Dispatcher
from gateway.settings.stored_settings import StoredSettings
from gateway.topics.catalog import Catalog
from gateway.topics.partitions import Partitions
from gateway.topics.reply_memory import ReplyMemory
from gateway.topics.timestamp_search import PARTS_MAX, SearchBudget
from gateway.wire.messages import decode_response, encode_request
from ledger.bookie.bookie import Bookie
from ledger.bookie.config import BookieConfig
from ledger.client.client import LedgerClient
from ledger.ids import BookieId
from ledger.ports.bookies import BookieInfo, ReadManyReply, ReadReply, Status, fence_each
from ledger.streams.config import StreamLimits
from ledger.streams.stream import StreamServices
from tests.batches import plain_batch
from tests.sim.disk import DiskFaults, SimDisk
from tests.sim.loop import SimClock
from tests.sim.metadata import SimMetadata
from tests.sim.table import SimTable

PEER = Peer("127.0.0.1", 50_000, "127.0.0.1", 9_092)
NEVER_S = 3600.0
PRODUCE, FETCH, LIST_OFFSETS = 0, 1, 2


def batch(sequence=None, *, producer=1, epoch=0, records=2, at=1000):
    """Return a valid batch; with a sequence, that of an idempotent producer."""
    if sequence is None:
        return plain_batch([at] * records)
    return plain_batch([at] * records, producer=producer, epoch=epoch, sequence=sequence)


def times_of(named, epoch=-1):
    """Return the fields of a ListOffsets request for {topic: [(partition, timestamp)]}."""
    topics = [
        {
            "name": topic,
            "partitions": [
                {"partition_index": at, "timestamp": time, "current_leader_epoch": epoch}
                for at, time in asked
            ],
        }
        for topic, asked in named.items()
    ]
    return {"replica_id": -1, "isolation_level": 0, "timeout": 1000, "topics": topics}


def base_offsets(stored):
    return [struct.unpack_from(">q", each)[0] for each in stored]


class Port:
    """A bookies port to one bookie that can hold, refuse or lose adds."""

    def __init__(self, bookie):
        self.bookie = bookie
        self.name = BookieId(bookie.bookie_id)
        self.held = None
        self.refusal = None
        self.keeps = None
        self.adds = 0
        self.bytes_added = 0
        self.reads = 0
        self.read_delay_s = 0.0
        self.missing = {}  # (ledger, entry): the status with which it is not returned

    def available(self):
        return (self.name,)

    def registered(self):
        return {self.name: BookieInfo()}

    async def stats(self, bookie):
        return await self.bookie.stats()

    def add(self, bookie, ledger, entry, master_key, body, on_added, *, recovery=False):
        self.adds += 1
        self.bytes_added += sum(map(len, body)) if isinstance(body, list | tuple) else len(body)
        if self.keeps is not None and not recovery:
            if not self.keeps:
                return
            self.keeps -= 1
        if self.refusal is not None and not recovery:
            asyncio.get_running_loop().call_soon(on_added, self.refusal)
            return
        tell = partial(self._tell, on_added)
        self.bookie.add(ledger, entry, master_key, body, tell, recovery=recovery)

    def _tell(self, on_added, status):
        if self.held is None:
            on_added(status)
        else:
            self.held.append((on_added, status))

    def hold(self):
        """Hold the bookie's responses to adds until `release`."""
        self.held = []

    def release(self):
        held, self.held = self.held, None
        for on_added, status in held:
            on_added(status)

    def refuse(self, status=Status.IO_ERROR):
        """Refuse every add until `accept`, except those of a recovery."""
        self.refusal = status

    def lose_after(self, adds):
        """Lose all adds after the next `adds`."""
        self.keeps = adds

    def accept(self):
        self.refusal = None

    async def read(self, bookie, ledger, entry, *, fence_key=None):
        if fence_key is not None:
            status = await self.bookie.fence(ledger, fence_key)
            if status is not Status.OK:
                return ReadReply(status)
        if (ledger, entry) in self.missing:
            return ReadReply(self.missing[ledger, entry])
        return await self.bookie.read(ledger, entry)

    async def fence_many(self, bookie, ledgers):
        return await fence_each(self, bookie, ledgers)

    async def read_many(self, bookie, ledger, first, last, max_bytes):
        self.reads += 1
        if self.read_delay_s:
            await asyncio.sleep(self.read_delay_s)
        if (ledger, first) in self.missing:
            return ReadManyReply(self.missing[ledger, first])
        absent = [entry for of, entry in self.missing if of == ledger and entry > first]
        last = min([last, *(entry - 1 for entry in absent)])
        return await self.bookie.read_many(ledger, first, last, max_bytes)

    async def read_lac(self, bookie, ledger):
        return await self.bookie.read_lac(ledger)

    async def wait_lac(self, bookie, ledger, previous, timeout_s):
        return await self.bookie.wait_lac(ledger, previous, timeout_s)

    async def write_lac(self, bookie, ledger, master_key, lac):
        return await self.bookie.write_lac(ledger, master_key, lac)


class StreamCluster:
    """One broker and one bookie. `restart` closes the partitions first, `crash` does not."""

    def __init__(self, *, limits=None, fetch=None, cluster=None, epoch_base=1, **settings):
        self.limits = limits or StreamLimits()
        self.config = GatewayConfig(fetch=fetch or FetchLimits(), **settings)
        self.cluster = cluster  # None: alone
        self.epoch_base = epoch_base  # the one of new streams; 0 in clusters of form 0
        self.draw = Random(1)
        self.clock = SimClock()
        self.metadata = SimMetadata()
        self.disk = SimDisk(self.draw, DiskFaults(sync_s_max=0.001))
        self.table = SimTable(self.draw)
        self.freed = 0
        self.client_id = "test"
        self.correlation = itertools.count(1)

    async def start(self):
        bookie = Bookie(
            self.disk,
            self.table,
            self.clock,
            lambda: self.draw.randbytes(16),
            config=BookieConfig(file_bytes=1 << 20, preallocate_bytes=4096, headroom_bytes=0),
        )
        await bookie.start()
        self.port = Port(bookie)
        await self.start_gateway()

    async def start_gateway(self):
        client = LedgerClient(self.metadata, self.port, self.clock)
        self.catalog = Catalog(self.metadata, self.config.topics)
        await self.catalog.load()
        self.services = StreamServices(
            self.metadata, client, self.clock, self.limits, epoch_base=self.epoch_base
        )
        self.partitions = Partitions(
            self.catalog, self.services, self.config, self.on_freed, self.cluster
        )
        if self.cluster is None:
            await self.partitions.learn_epochs()
        ids = itertools.count(1)
        supported = supported_levels()
        self.context = Context(
            config=self.config,
            clock=self.clock,
            cluster_id="cluster",
            catalog=self.catalog,
            partitions=self.partitions,
            groups=None,
            read_only_groups=ReadOnlyGroups(
                self.catalog, self.clock, self.partitions.cluster, self.config.readers
            ),
            producer_ids=None,
            fetch_sessions=FetchSessions(10, 120_000, lambda: next(ids)),
            cluster=self.partitions.cluster,
            reply_memory=ReplyMemory(self.config.connection.reply_bytes_max),
            stored=StoredSettings(self.metadata),
            features=Features(self.metadata, supported, self.config.node_id),
        )
        await lay_out_cluster(self.metadata, supported)
        await self.context.features.load()
        self.dispatcher = Dispatcher(rows(), self.context)

    async def beside(self, cluster, **settings):
        """Start another broker on the same streams and bookie."""
        other = copy.copy(self)
        other.config = replace(self.config, **settings)
        other.cluster = cluster
        await other.start_gateway()
        return other

    async def on_freed(self):
        self.freed += 1

    async def restart(self):
        await self.partitions.stop()
        await self.start_gateway()

    async def crash(self):
        """End the process; the machine and its bookie go on."""
        for partition in self.partitions._by_name.values():
            partition.closed = True
        old, self.port = self.port, Port(self.port.bookie)
        old.held = []
        await self.start_gateway()

    async def topic(self, name="t", partitions=1, **configs):
        """Create a topic and return its first partition, open."""
        settings = {key.replace("_", "."): str(value) for key, value in configs.items()}
        await self.catalog.create(name, partitions, 1, settings)
        return await self.partition(name)

    async def partition(self, name="t", index=0):
        partition = self.partitions.find(name, index)
        await partition.ensure_readable()
        return partition

    # -- producing and reading without the wire -----------------------------------------------

    async def at_time(self, partition, timestamp, parts=PARTS_MAX):
        """Search for the first record at or after the timestamp, or for the greatest (None)."""
        search = partition.search(SearchBudget(parts))
        if timestamp is None:
            return await search.of_timestamp_max()
        return await search.first_at_or_after(timestamp)

    def send(self, partition, batch, version=13):
        """Send one batch; return the list to which its result will be appended."""
        answers = []
        partition.append(memoryview(batch), version, answers.append)
        return answers

    async def sent(self, partition, *batches):
        """Send batches and return their results."""
        waiting = [self.send(partition, batch) for batch in batches]
        async with asyncio.timeout(60):
            while not all(waiting):
                await asyncio.sleep(0.001)
        return [answers[0] for answers in waiting]

    async def read_all(self, partition, offset=None):
        """Return every batch from `offset` (the log start) to the high watermark, as stored."""
        at = partition.log_start_offset if offset is None else offset
        found = []
        while at < partition.high_watermark:
            records = await partition.read(at, 10_000)
            found += [b"".join(record.data) for record in records]
            at = records[-1].end_sequence_id
        return found

    # -- in Kafka's bytes ---------------------------------------------------------------------

    def ask(self, key, version, **fields):
        """Return the handler's result for one request, a future of one, or a coroutine."""
        frame = encode_request(key, version, next(self.correlation), self.client_id, fields)
        request, handle = self.dispatcher.open(frame, PEER)
        return request, self.dispatcher.start(request, handle)

    def decoded(self, request, result):
        buffers = self.dispatcher.encode(request, result)
        whole = b"".join(buffers)
        return decode_response(request.key, request.version, whole).body if whole else None

    async def answer(self, key, version, **fields):
        """Return the decoded reply, or None if there is none."""
        return self.decoded(*await self._finished(key, version, **fields))

    async def encoded(self, key, version, **fields):
        """Return the bytes of the reply."""
        return b"".join(self.dispatcher.encode(*await self._finished(key, version, **fields)))

    async def _finished(self, key, version, **fields):
        request, result = self.ask(key, version, **fields)
        if asyncio.isfuture(result) or asyncio.iscoroutine(result):
            async with asyncio.timeout(NEVER_S):
                result = await result
        return request, result


@asynccontextmanager
async def started_cluster(**settings):
    cluster = StreamCluster(**settings)
    await cluster.start()
    yield cluster
