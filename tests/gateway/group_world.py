"""A coordinator on virtual time over simulated metadata, asked in Kafka's own bytes."""

from __future__ import annotations

import asyncio
import inspect

from gateway.cluster.single_broker import SingleBroker
from gateway.config import GatewayConfig, GroupLimits, ReaderLimits
from gateway.core.feature_levels import supported_levels
from gateway.core.group_members import Joining, Syncing
from gateway.features.features import Features
from gateway.groups.coordinator import Coordinator, fresh_id
from gateway.groups.read_only_groups import ReadOnlyGroups
from gateway.handlers.api import Context, Peer
from gateway.handlers.table import rows
from gateway.process.cluster_layout import lay_out_cluster
from gateway.server.dispatch import Dispatcher
from gateway.settings.stored_settings import StoredSettings
from gateway.topics.catalog import Catalog
from gateway.topics.reply_memory import ReplyMemory
from gateway.wire.messages import decode_response, encode_request
from subscriptions.committed_offset import CommittedOffset, TopicIdPartition
from tests.sim.loop import SimClock
from tests.sim.metadata import MetadataTree
from tests.subscriptions.memory_metadata import MemoryMetadata

RANGE = (("range", b"r"),)
PEER = Peer("127.0.0.1", 50_000, "127.0.0.1", 9_092)


class World:
    """One gateway's groups, with topics `t` (4 partitions) and `u` (1). Enter it to start."""

    def __init__(self, *, tree=None, delay_s=0.001, **limits):
        self.tree = MetadataTree() if tree is None else tree
        self.metadata = MemoryMetadata(self.tree, delay_s)
        self.clock = SimClock()
        self.limits = GroupLimits(**limits)
        self.reader_limits = ReaderLimits()
        self.claims = None  # no other gateway exists
        self.cluster = SingleBroker(0, lambda _: -1)
        self.store = None

    async def __aenter__(self):
        supported = supported_levels()
        await lay_out_cluster(self.metadata, supported)
        features = Features(self.metadata, supported, 0)
        await features.load()
        self.catalog = Catalog(self.metadata)
        await self.catalog.load()
        for name, partitions in (("t", 4), ("u", 1)):
            if self.catalog.by_name(name) is None:
                await self.catalog.create(name, partitions, 1, {})
        self.groups = Coordinator(
            self.metadata,
            self.catalog,
            self.clock,
            self.limits,
            store=self.store,
            claims=self.claims,
        )
        await self.groups.start()
        self.readers = ReadOnlyGroups(self.catalog, self.clock, self.cluster, self.reader_limits)
        self.context = Context(
            config=GatewayConfig(groups=self.limits),
            clock=self.clock,
            cluster_id="cluster",
            catalog=self.catalog,
            partitions=None,
            groups=self.groups,
            read_only_groups=self.readers,
            producer_ids=None,
            fetch_sessions=None,
            cluster=self.cluster,
            reply_memory=ReplyMemory(1),
            stored=StoredSettings(self.metadata),
            features=features,
        )
        self.dispatcher = Dispatcher(rows(), self.context)
        return self

    async def __aexit__(self, *error):
        await self.groups.stop()

    @property
    def loaded(self):
        """Groups in memory, by name."""
        return self.groups._loaded_groups.groups

    def rival(self):
        """Another process on the same metadata."""
        limits = {name: getattr(self.limits, name) for name in self.limits.__slots__}
        return World(tree=self.tree, **limits)

    def crashed(self):
        """The next process, over what was durable when this one ended."""
        self.metadata.closed = True
        self.groups._background.cancel()
        return self.rival()

    async def ask(self, key, version, body, client="c"):
        """The decoded answer of the handler, through the bytes of request and reply."""
        return decode_response(key, version, await self.encoded(key, version, body, client)).body

    async def encoded(self, key, version, body, client="c"):
        """The bytes of the answer."""
        frame = encode_request(key, version, 7, client, body)
        request, handle = self.dispatcher.open(frame, PEER)
        result = self.dispatcher.start(request, handle)
        if inspect.isawaitable(result):
            result = await result
        return b"".join(self.dispatcher.encode(request, result))

    def fetched(self, client, offset, partition=0, topic="t"):
        """The client has asked for this offset; of a Fetch nothing more matters here."""
        asked = {
            "partition": partition,
            "fetch_offset": offset,
            "partition_max_bytes": 1,
            "current_leader_epoch": -1,
            "log_start_offset": -1,
            "last_fetched_epoch": -1,
        }
        body = {
            "replica_id": -1,
            "max_wait": 0,
            "min_bytes": 1,
            "topics": [{"topic": topic, "partitions": [asked]}],
        }
        frame = encode_request(1, 12, 7, client, body)
        request, _ = self.dispatcher.open(frame, PEER)
        host, now_ms = f"/{PEER.host}", self.clock.now_ms()
        for _ in self.readers.note(client, host, request.body, now_ms=now_ms):
            pass

    def key(self, partition=0, topic="t"):
        return TopicIdPartition(self.catalog.by_name(topic).topic_id, partition)

    async def commit(self, group, offset, partition=0, member="", generation=-1, topic="t"):
        position = CommittedOffset(offset=offset, commit_time_ms=self.clock.now_ms())
        positions = {self.key(partition, topic): position}
        return (await self.groups.commit(group, member, generation, None, positions)).name

    async def committed(self, group, partition=0, topic="t"):
        position = (await self.groups.offsets(group)).get(self.key(partition, topic))
        return None if position is None else position.offset

    def consumer(self, group="g", name="c", **more):
        return Consumer(self, group, name, **more)


class Consumer:
    """A member as clients are: joins, syncs, sends heartbeats, rejoins when told to."""

    def __init__(self, world, group, name, instance=None, session_ms=10_000, protocols=RANGE):
        self.world = world
        self.group = group
        self.name = name
        self.instance = instance
        self.session_ms = session_ms
        self.protocols = protocols
        self.member_id = ""
        self.generation = -1
        self.assignment = b""
        self.joins = 0
        self.errors = []
        self._task = None

    async def join(self):
        """In the group, with an assignment."""
        self.assignment = b""
        while True:
            self.joins += 1
            joined = await self.world.groups.join(self.group, self._joining())
            if joined.error.name == "member_id_required":
                self.member_id = joined.member_id
                continue
            if not self._welcome(joined.error):
                await asyncio.sleep(0.1)
                continue
            self.member_id, self.generation = joined.member_id, joined.generation
            synced = await self.world.groups.sync(self.group, self._syncing(joined))
            if self._welcome(synced.error):
                self.assignment = synced.assignment
                return

    def _welcome(self, error):
        if error.name == "none":
            return True
        self.errors.append(error.name)
        if error.name == "unknown_member_id":
            self.member_id = ""
        assert error.name != "fenced_instance_id"
        return False

    def _joining(self):
        return Joining(
            member_id=self.member_id,
            protocol_type="consumer",
            protocols=self.protocols,
            session_timeout_ms=self.session_ms,
            rebalance_timeout_ms=60_000,
            fresh_id=fresh_id(),
            instance_id=self.instance,
            client_id=self.name,
            client_host="/127.0.0.1",
        )

    def _syncing(self, joined):
        parts = tuple(
            (each.member_id, b"part %d of %d" % (n, len(joined.members)))
            for n, each in enumerate(joined.members, 1)
        )
        return Syncing(self.member_id, self.generation, self.instance, "consumer", "range", parts)

    async def heartbeat(self):
        code = await self.world.groups.heartbeat(
            self.group, self.member_id, self.generation, self.instance
        )
        return code.name

    async def live(self):
        """Heartbeats for ever, rejoining when asked to."""
        while True:
            await asyncio.sleep(3.0)
            error = await self.heartbeat()
            if error != "none":
                self.errors.append(error)
                if error == "unknown_member_id":
                    self.member_id = ""
                await self.join()

    def start(self):
        async def main():
            await self.join()
            await self.live()

        self._task = asyncio.get_running_loop().create_task(main())
        return self

    async def die(self):
        """Silent from now on."""
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
