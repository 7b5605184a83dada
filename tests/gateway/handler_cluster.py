"""Calls handlers as the dispatcher does, over a catalog in the simulator's metadata store.

Requests and replies are encoded and decoded, so a field that a version lacks or requires is found.
"""

import inspect
from contextlib import asynccontextmanager

from gateway.cluster.single_broker import SingleBroker
from gateway.config import GatewayConfig
from gateway.features.features import Features
from gateway.handlers.api import Context, Peer, Request
from gateway.process.cluster_layout import lay_out_cluster
from gateway.settings.stored_settings import StoredSettings
from gateway.topics.catalog import Catalog
from gateway.topics.producer_ids import ProducerIds
from gateway.topics.reply_memory import ReplyMemory
from gateway.wire.messages import decode_request, decode_response, encode_request, encode_response
from gateway.wire.schema import request_class
from tests.gateway.releases import THIS
from tests.sim.loop import SimClock
from tests.sim.metadata import SimMetadata

PEER = Peer("127.0.0.1", 50000, "127.0.0.1", 19092)
HEADER = 10  # key, version, correlation id, client id of null


class Epochs:
    """Partition 0 of each topic is open, in epoch 7; the others are not."""

    def leader_epoch(self, topic, index):
        return 7 if index == 0 else -1

    def epoch_of(self, key):
        return self.leader_epoch(None, key.partition)


class Cluster:
    def __init__(self, supported=THIS, **settings):
        self.config = GatewayConfig(node_id=3, **settings)
        self.peer = PEER
        self.store = SimMetadata()
        self.catalog = Catalog(self.store, self.config.topics, bookies=lambda: self.config.bookies)
        self.context = Context(
            config=self.config,
            clock=SimClock(),
            cluster_id="cluster-1",
            catalog=self.catalog,
            partitions=Epochs(),
            groups=None,
            read_only_groups=None,
            producer_ids=ProducerIds(self.store),
            fetch_sessions=None,
            cluster=SingleBroker(3),
            reply_memory=ReplyMemory(self.config.connection.reply_bytes_max),
            stored=StoredSettings(self.store),
            features=Features(self.store, supported, 3),
        )
        self.context.cluster.epoch_of = Epochs().epoch_of

    async def ask(self, module, version, **fields):
        """Return the decoded reply to one request."""
        reply = await self.answered(module, version, **fields)
        out = b"".join(encode_response(module.API.key, version, 1, reply))
        return decode_response(module.API.key, version, out).body

    async def answered(self, module, version, **fields):
        """Return the reply before it is encoded: kio decodes no time of -1."""
        reply = await self.handled(module, self.request(module, version, **fields))
        assert encode_response(module.API.key, version, 1, reply)
        return reply

    def request(self, module, version, **fields):
        """Return a decoded request."""
        key = module.API.key
        frame = encode_request(key, version, 1, None, fields)
        flexible = 1 if frame[HEADER : HEADER + 1] == b"\0" and _flexible(key, version) else 0
        body = decode_request(key, version, frame, HEADER + flexible)
        return Request(key, version, 1, None, self.peer, body)

    async def handled(self, module, request):
        """Return what the handler returns for a decoded request."""
        reply = module.API.handle(request, self.context)
        return await reply if inspect.isawaitable(reply) else reply


def _flexible(key, version):
    return request_class(key, version).__header_schema__.__flexible__


@asynccontextmanager
async def loaded_cluster(**settings):
    cluster = Cluster(**settings)
    await cluster.catalog.load()
    await cluster.context.stored.load()
    await lay_out_cluster(cluster.store, cluster.context.features.supported)
    await cluster.context.features.load()
    yield cluster
