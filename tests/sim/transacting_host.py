"""One gateway of a simulated cluster that serves transactions, and the network around it.

Everything inside the process is real and assembled as in `gateway.process`: the dispatcher with all
handlers, partitions, groups, coordinators of transactions, markers and the verifier. Requests are
Kafka's bytes. Bookies, metadata and `Network` are simulated.

A request over the network may be lost, or its reply; or its sender gives it up, and it arrives
later all the same.
"""

from __future__ import annotations

import asyncio
import itertools
from dataclasses import dataclass
from functools import partial
from random import Random

from gateway.cluster.zookeeper_cluster import ZooKeeperCluster
from gateway.config import GatewayConfig, TransactionLimits
from gateway.core.feature_levels import supported_levels
from gateway.core.fetch_session import FetchSessions
from gateway.features.features import Features
from gateway.groups.coordinator import Coordinator
from gateway.groups.read_only_groups import ReadOnlyGroups
from gateway.handlers.api import ConnectionEnds, Context, Peer
from gateway.handlers.table import rows
from gateway.process.broker_lifecycle import BrokerLifecycle
from gateway.process.cluster_layout import epoch_base, lay_out_cluster
from gateway.process.transactions import add_transactions
from gateway.server.dispatch import Dispatcher, RequestRefused
from gateway.settings.stored_settings import StoredSettings
from gateway.topics.catalog import Catalog
from gateway.topics.partitions import Partitions
from gateway.topics.producer_ids import ProducerIds
from gateway.topics.reply_memory import ReplyMemory
from gateway.wire.messages import decode_response, encode_request, encode_request_header
from ledger.client.client import LedgerClient
from ledger.streams.plain_log import LogQuorum, PlainLogs
from ledger.streams.stream import StreamServices
from subscriptions.rollout.open_store import open_store
from tests.sim.gateway_host import SESSION_S, Host
from tests.sim.loop import SimClock

PORT = 9_000
ANSWER_S = 1.5  # after it the sender of a request gives it up
LATE_S = 2.0  # mean: a request that was given up arrives so much later
SCAN_MS = 500  # how often coordinators look for timeouts
ENCODING_S_MAX = 0.05
PEER_VERSIONS = {24: 5, 27: 2}
PEER = Peer("10.0.0.1", 50_000, "gateway", PORT)


@dataclass
class Losses:
    """Probabilities per request."""

    unsent: float = 0.0
    reply_lost: float = 0.0
    late: float = 0.0  # given up, and arrives later
    hasty_late: float = 0.0  # the same of requests whose clients have little patience
    link_late: float = 0.0  # the same of requests from gateway to gateway
    latency_s: float = 0.002


class Network:
    """Carries requests to hosts. Those of one sender to one host arrive in the order of sending."""

    def __init__(self, draw, losses):
        self.draw = draw
        self.losses = losses
        self.cuts = set()  # pairs of node ids between which nothing passes
        self._lanes = {}  # by sender and host: when the last request arrives
        self._correlation = itertools.count(1)

    async def request(self, sender, host, key, version, fields, *, late=True, patience_s=None):
        """Return the decoded answer of a client's request, or None if none came in time."""
        frame = encode_request(key, version, next(self._correlation), "client", fields)
        answered = asyncio.get_running_loop().create_future()
        losses, on_reply = self.losses, answered.set_result
        rate = losses.late if patience_s is None else losses.hasty_late
        rates = {"late": rate if late else 0.0, "patience_s": patience_s}
        self.carry(sender, host, frame, on_reply, **rates)
        whole = await answered
        return None if whole is None else decode_response(key, version, whole).body

    def carry(self, sender, host, frame, on_reply, *, late, patience_s=None):
        """Bring the frame to the host. `on_reply` runs once, with the reply or None.

        `late` is the probability that the sender gives it up, and that it arrives later.
        """
        loop, draw, losses = asyncio.get_running_loop(), self.draw, self.losses
        fate, arrives_s = draw.random(), self._arrival_s(sender, host)
        open_ = [True]

        def reply(whole):
            if open_:
                open_.clear()
                giving_up.cancel()
                on_reply(whole)

        giving_up = loop.call_later(patience_s or ANSWER_S, reply, None)
        cut = self._is_cut(sender, host)
        fate -= losses.unsent
        if fate < 0 or cut:
            return
        fate -= late
        if fate < 0:
            loop.call_later(draw.expovariate(1 / losses.latency_s), reply, None)
            after_s = draw.expovariate(1 / LATE_S)
            loop.call_later(after_s, host.receive, frame, lambda whole: None)
            return
        lost = draw.random() < losses.reply_lost

        def on_answer(whole):
            if not lost and not self._is_cut(sender, host):
                loop.call_later(draw.expovariate(1 / losses.latency_s), reply, whole)

        loop.call_at(arrives_s, host.receive, frame, on_answer)

    def _arrival_s(self, sender, host):
        now_s = asyncio.get_running_loop().time()
        lane = (sender, host)
        at_s = now_s + self.draw.expovariate(1 / self.losses.latency_s)
        at_s = self._lanes[lane] = max(at_s, self._lanes.get(lane, 0.0) + 1e-9)
        return at_s

    def _is_cut(self, sender, host):
        return (getattr(sender, "node_id", None), host.node_id) in self.cuts

    def cut(self, node_id):
        """Separate a gateway from all other gateways. Clients and stores reach it."""
        for other in range(10):
            self.cuts |= {(node_id, other), (other, node_id)}

    def heal(self):
        self.cuts.clear()


class SimLinks:
    """The connections of one host to the others, in place of `PeerLinks`."""

    def __init__(self, world, host):
        self.world = world
        self.host = host
        self.correlation = itertools.count(1)
        self.waiting = {}  # by an answer that is due: the member that it is due from
        self.closed = False

    def ask(self, node_id, key, encode, on_answer):
        members = self.host.cluster.members()
        member = next((each for each in members if each.node_id == node_id), None)
        to = self.world.process(node_id)
        if member is None or to is None or self.closed:
            asyncio.get_running_loop().call_soon(on_answer, None)
            return
        version = PEER_VERSIONS[key]
        frame = encode_request_header(key, version, next(self.correlation), "gateway")
        frame += encode(version)
        due = object()
        self.waiting[due] = (member._replace(leaving=False), on_answer)
        on_reply = partial(self._on_reply, due, key, version)
        carry = partial(self.world.network.carry, self.host, to, bytes(frame), on_reply)
        self.host.send(partial(carry, late=self.world.losses.link_late))

    def _on_reply(self, due, key, version, whole):
        self.host.told(partial(self._answer, due, key, version, whole))

    def _answer(self, due, key, version, whole):
        _, on_answer = self.waiting.pop(due, (None, None))
        if on_answer is not None and self.host.alive:
            on_answer(None if whole is None else decode_response(key, version, whole).body)

    def on_members_changed(self):
        """What is due from members that left gets None."""
        alive = {each._replace(leaving=False) for each in self.host.cluster.members()}
        for due, (member, _) in list(self.waiting.items()):
            if member not in alive:
                asyncio.get_running_loop().call_soon(self._answer, due, 0, 0, None)

    async def close(self):
        self.closed = True
        for due in list(self.waiting):
            self._answer(due, 0, 0, None)


class TransactionHost(Host):
    """One process under a node id, with transactions."""

    async def start(self):
        clock, world = SimClock(), self.world
        client = LedgerClient(self.session, self.port, clock, world.client_config)
        self.client = client
        supported = supported_levels()
        layout = await self.retried(lambda: lay_out_cluster(self.session, supported))
        self.services = StreamServices(
            self.session, client, clock, world.limits, epoch_base=epoch_base(layout)
        )
        self.catalog = Catalog(self.session, bookies=lambda: len(world.storage.bookies))
        await self.retried(self.catalog.load)
        stored = StoredSettings(self.session)
        await self.retried(stored.load)
        self.cluster = ZooKeeperCluster(
            self.session,
            self.catalog,
            clock,
            node_id=self.node_id,
            host="gateway",
            port=PORT + self.node_id,
            rack="",
            session_ms=int(SESSION_S * 1000),
            lease=self.lease,
            new_token=lambda: f"token-{world.draw.getrandbits(64):016x}",
            keeps_epochs=layout.keeps_epochs,
            supported=supported,
        )
        features = Features(self.session, supported, self.node_id, self.cluster.supported_by_others)
        await self.retried(features.load)
        self.ctx = self._context(clock, layout, stored, features)
        self.links = []
        self.end_links = add_transactions(self.ctx, self.cluster, self._new_links)
        if world.seed % 4 == 3:
            self._encode_late()
        self.dispatcher = Dispatcher(rows(), self.ctx)
        ended = asyncio.get_running_loop().create_future()
        self.sharing = BrokerLifecycle(self.cluster, self.partitions, self.groups, ended)
        place = ("gateway", PORT + self.node_id)
        await self.retried(lambda: self.sharing.start(*place, place))
        await self.partitions.start()
        await self.groups.start()
        await self.ctx.transactions.start()
        self.started = True

    def _encode_late(self):
        """Encode each record of a transaction a while after it was accepted, as if it were long."""
        records, draw = self.ctx.transactions.long_records, Random(f"{self.world.seed}:encoding")
        records.longer_than = -1
        loop = asyncio.get_running_loop()
        records._later = lambda work: loop.call_later(draw.uniform(0, ENCODING_S_MAX), work)

    def _new_links(self):
        links = SimLinks(self.world, self)
        self.links.append(links)
        return links

    def _context(self, clock, layout, stored, features):
        world, draw = self.world, self.world.draw
        config = GatewayConfig(
            zookeeper="simulated",
            node_id=self.node_id,
            transaction=TransactionLimits(scan_ms=SCAN_MS),
            groups=world.group_limits,
        )
        self.partitions = Partitions(
            self.catalog, self.services, config, self.on_freed, self.cluster
        )
        self.partitions._stream_config = lambda topic: world.stream_config  # small segments
        logs = PlainLogs(self.client, lambda: LogQuorum.majority_of(len(world.storage.bookies)))
        self.groups = Coordinator(
            self.session,
            self.catalog,
            clock,
            config.groups,
            store=self._open_store(logs, clock),
            claims=self.cluster,
        )
        return Context(
            config=config,
            clock=clock,
            cluster_id=layout.cluster_id,
            catalog=self.catalog,
            partitions=self.partitions,
            groups=self.groups,
            read_only_groups=ReadOnlyGroups(self.catalog, clock, self.cluster, config.readers),
            producer_ids=ProducerIds(self.session),
            fetch_sessions=FetchSessions(100, 120_000, lambda: draw.getrandbits(31)),
            cluster=self.cluster,
            reply_memory=ReplyMemory(config.connection.reply_bytes_max),
            stored=stored,
            features=features,
        )

    def _open_store(self, logs, clock):
        return open_store(True, self.session, logs, clock)

    # -- requests -----------------------------------------------------------------------------

    def send(self, work):
        """Send something now, or once this host is reachable again."""
        if self.alive:
            self.told(work)

    def receive(self, frame, on_answer):
        """Handle the frame, now or once this host wakes up. A dead host answers nothing."""
        if self.serving:
            self.told(partial(self._handle, frame, on_answer))

    def _handle(self, frame, on_answer):
        if self.serving:
            request, handle = self.dispatcher.open(frame, PEER)
            task = asyncio.ensure_future(self._respond(request, handle, on_answer))
            self.world.tasks.add(task)
            task.add_done_callback(self.world.tasks.discard)

    async def _respond(self, request, handle, on_answer):
        try:
            result = self.dispatcher.start(request, handle)
            if asyncio.isfuture(result) or asyncio.iscoroutine(result):
                result = await result
            whole = b"".join(self.dispatcher.encode(request, result))
        except (ConnectionEnds, RequestRefused):
            return
        except Exception as error:
            self.world.report("handler", f"key {request.key} raised {error!r}")
            return
        if self.alive:
            self.told(partial(on_answer, whole))

    # -- ends ---------------------------------------------------------------------------------

    def kill(self):
        super().kill()
        if self.started:
            for links in self.links:
                links.closed = True
                links.waiting.clear()

    async def stop(self):
        """End as a process that was asked to."""
        self.leaving = True
        await self.sharing.stop()
        await self.ctx.transactions.stop()
        await self.groups.stop()
        await self.partitions.stop()
        await self.end_links()
        await self.ctx.features.close()
        await self.ctx.stored.close()
        await self.catalog.close()
        self.alive = False
        await self.session.close()
