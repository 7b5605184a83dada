"""Assembles a gateway from its metadata store and its ledgers.

    streams ─▶ catalog ─▶ cluster ─▶ partitions ─▶ groups ─▶ Kafka port

`embedded` and `clustered` choose the adapters behind the ports.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from gateway.cluster.single_broker import SingleBroker
from gateway.config import GatewayConfig
from gateway.core.feature_levels import Supported
from gateway.core.fetch_session import PARTITION_BYTES, FetchSessions
from gateway.features.cluster_form import ClusterForm
from gateway.features.features import Features, alone
from gateway.groups.coordinator import Coordinator
from gateway.groups.read_only_groups import ReadOnlyGroups
from gateway.handlers.api import Api, Context, Request, Result
from gateway.handlers.table import rows
from gateway.log import logger
from gateway.process.greylist_view import avoided_bookies
from gateway.process.transactions import add_transactions
from gateway.server.dispatch import Dispatcher
from gateway.server.listener import Server
from gateway.settings.stored_settings import StoredSettings
from gateway.topics.catalog import Catalog
from gateway.topics.partitions import Partitions
from gateway.topics.producer_ids import ProducerIds
from gateway.topics.reply_memory import ReplyMemory
from gateway.wire.messages import PRIVATE_KEY
from ledger.errors import LedgerError
from ledger.ids import Buffer
from ledger.streams.stream import StreamServices
from ledger.tasks import report
from subscriptions.store import SubscriptionsStore

if TYPE_CHECKING:
    from gateway.cluster.zookeeper_cluster import ZooKeeperCluster
    from gateway.metrics.http import MetricsServer

_STILL_SHARE = 1 / 3  # share of a session that is left when the lease has ended

Stop = Callable[[], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class Parts:
    """The parts that a gateway is assembled from."""

    services: StreamServices
    layout: ClusterForm
    supported: Supported  # levels of features
    bookies: Callable[[], int]  # number of copies that an entry can have now
    collect: Stop  # called after ledgers were deleted
    subscriptions: SubscriptionsStore
    # None if this broker is the only one.
    cluster: Callable[[Catalog], ZooKeeperCluster] | None = None
    session_ms: int = 0  # session timeout in a cluster, after which other brokers take over


class Running:
    """A running gateway.

    `stop` runs once. Everything accepted is durable and closed afterwards. `lost` completes with
    the reason when the gateway must stop serving.
    """

    def __init__(self, server: Server, ctx: Context, stops: list[Stop]) -> None:
        self.ctx = ctx
        self.lost: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self.server = server
        self.metrics: MetricsServer | None = None
        self.ledger_port: int | None = None  # port for readers of ledgers, or None
        self.stops = stops

    @property
    def host(self) -> str:
        return self.server.host

    @property
    def port(self) -> int:
        return self.server.port

    @property
    def metrics_port(self) -> int | None:
        """Return the port of the metrics page, or None."""
        return None if self.metrics is None else self.metrics.port

    async def stop(self) -> None:
        await stop_all(self.stops)


async def stop_all(stops: list[Stop]) -> None:
    """Stop the newest part first. A failure does not keep the other parts from stopping.

    The parts that are left after a cancellation do not stop; the process ends.
    """
    while stops:
        stop = stops.pop()
        try:
            await stop()
        except (LedgerError, OSError) as error:
            logger().warning("a part did not stop cleanly", reason=str(error))
        except asyncio.CancelledError as error:
            task = asyncio.current_task()
            if task is None or task.cancelling():
                raise
            report("the end of a part", error)  # cancelled by what it awaited
        except Exception as error:  # noqa: BLE001  the session must be closed all the same
            report("the end of a part", error)


async def serve(config: GatewayConfig, parts: Parts, stops: list[Stop]) -> Running:
    """Serve clients. Each started part is added to `stops`, even if a later step raises."""
    metadata, clock = parts.services.metadata, parts.services.clock
    catalog = Catalog(metadata, config.topics, bookies=parts.bookies)
    await catalog.load()
    stops.append(catalog.close)
    stored = StoredSettings(metadata)
    await stored.load()
    stops.append(stored.close)
    shared = parts.cluster(catalog) if parts.cluster else None
    others = alone if shared is None else shared.supported_by_others
    features = Features(metadata, parts.supported, config.node_id, others)
    await features.load()
    stops.append(features.close)
    cluster = shared or SingleBroker(config.node_id)
    partitions = Partitions(catalog, parts.services, config, parts.collect, cluster)
    if shared is None:
        await partitions.learn_epochs()
    groups = Coordinator(
        metadata, catalog, clock, config.groups, store=parts.subscriptions, claims=cluster
    )
    ctx = Context(
        config=config,
        clock=clock,
        cluster_id=parts.layout.cluster_id,
        catalog=catalog,
        partitions=partitions,
        groups=groups,
        read_only_groups=ReadOnlyGroups(catalog, clock, cluster, config.readers),
        producer_ids=ProducerIds(metadata),
        fetch_sessions=FetchSessions(
            config.fetch.sessions_max,
            int(config.fetch.session_idle_s_max * 1000),
            lambda: secrets.randbits(31),
            config.connection.session_bytes_max // PARTITION_BYTES,
        ),
        cluster=cluster,
        reply_memory=ReplyMemory(config.connection.reply_bytes_max),
        stored=stored,
        features=features,
        advertised_host=config.advertised_host,
        advertised_port=config.advertised_port,
        metadata_address=config.zookeeper or None,
        avoided_bookies=partial(avoided_bookies, parts.services.client.health),
    )
    stall_s_max = parts.session_ms / 1000 * _STILL_SHARE if shared else None
    stops.append(add_transactions(ctx, shared))
    dispatcher = Dispatcher({**rows(), PRIVATE_KEY: _private_questions()}, ctx)
    server = Server(dispatcher, config.connection, stall_s_max, ctx.reply_memory)
    running = Running(server, ctx, stops)
    ctx.process_report = partial(_process_report, running, parts.session_ms)
    return await _start(running, shared)


def _process_report(running: Running, session_ms: int) -> dict[str, Any]:
    from gateway.process.process_report import process_report  # few gateways are asked for it

    return process_report(running, session_ms)


def _private_questions() -> Api:
    """Return the row of the private request. Its handler is imported at the first one."""

    def handle(request: Request, ctx: Context) -> Coroutine[Any, Any, Result]:
        from gateway.handlers import private_questions

        return private_questions.handle(request, ctx)

    def decode(version: int, frame: Buffer, offset: int) -> dict[str, Any]:
        from gateway.wire import private_request

        return private_request.decode_body(version, frame, offset)

    return Api(
        key=PRIVATE_KEY,
        name="PrivateQuestions",
        versions=range(1),
        handle=handle,
        decode=decode,
        private=True,
    )


async def _start(running: Running, shared: ZooKeeperCluster | None) -> Running:
    """Bind the port, then join the cluster, which publishes the address."""
    ctx, stops = running.ctx, running.stops
    partitions, groups, config = ctx.partitions, ctx.groups, ctx.config

    async def release_waiters() -> None:
        groups.release_waiters()  # members that wait in a rebalance must not delay the drain

    stops.append(partitions.stop)
    stops.append(groups.stop)
    if ctx.transactions is not None:
        stops.append(ctx.transactions.stop)
    if ctx.cleaner is not None:
        stops.append(ctx.cleaner.stop)
    await running.server.start(config.host, config.port)
    stops.append(running.server.stop)
    ctx.altered.limit_connections(running.server.registry.limit_connections)
    if isinstance(ctx.cluster, SingleBroker):
        port = config.advertised_port or running.port
        ctx.cluster.address = (config.advertised_host or config.host, port)
    if config.metrics_port is not None:
        from gateway.metrics.http import MetricsServer

        running.metrics = MetricsServer(ctx)
        stops.append(running.metrics.stop)
        await running.metrics.start(config.host, config.metrics_port)
    stops.append(release_waiters)
    if shared is not None:
        from gateway.process.broker_lifecycle import (
            BrokerLifecycle,  # an embedded gateway does not import this module
        )

        share = BrokerLifecycle(shared, partitions, groups, running.lost)
        stops.append(share.stop)
        peer = (config.peer_host or "", config.peer_port or running.port)
        await share.start(config.advertised_host or config.host, running.port, peer)
    await partitions.start()
    await groups.start()
    if ctx.transactions is not None:
        await ctx.transactions.start()
    if ctx.cleaner is not None:
        ctx.cleaner.start()
    return running
