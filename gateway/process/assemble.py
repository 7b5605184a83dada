"""Assembles a gateway from its metadata store and its ledgers.

    streams ─▶ catalog ─▶ cluster ─▶ partitions ─▶ groups ─▶ Kafka port

`embedded` and `clustered` choose the adapters behind the ports.
"""

from __future__ import annotations

import asyncio
import errno
import os
import secrets
import socket
import ssl
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, Any

from gateway.access import auditing
from gateway.cluster.port import ListenerAddress
from gateway.cluster.single_broker import SingleBroker
from gateway.config import PLAINTEXT, GatewayConfig, Listener
from gateway.core.feature_levels import GROUP_VERSION, Supported
from gateway.core.fetch_session import PARTITION_BYTES, FetchSessions
from gateway.features.cluster_form import ClusterForm
from gateway.features.features import Features, alone
from gateway.groups.coordinator import Coordinator
from gateway.groups.read_only_groups import ReadOnlyGroups
from gateway.handlers.api import Context, Phase, Request
from gateway.handlers.table import rows
from gateway.log import logger
from gateway.process.late_questions import ask_figures, ask_metrics, private_questions_row
from gateway.process.transactions import add_transactions
from gateway.server.dispatch import Dispatcher
from gateway.server.listener import Server
from gateway.settings.group_timing import GroupTiming
from gateway.settings.stored_settings import StoredSettings
from gateway.topics.catalog import Catalog
from gateway.topics.partitions import Partitions
from gateway.topics.producer_ids import ProducerIds
from gateway.topics.reply_memory import ReplyMemory
from gateway.wire.messages import PRIVATE_KEY
from ledger.errors import LedgerError
from ledger.streams.stream import StreamServices
from ledger.tasks import in_thread, report, start_once
from subscriptions.store import SubscriptionsStore

if TYPE_CHECKING:
    from gateway.cluster.zookeeper_cluster import ZooKeeperCluster
    from gateway.http.password_file import Hashed
    from gateway.http.server import HttpServer
    from gateway.process.quota_wiring import QuotaWiring
    from gateway.server.secure_listeners import SecureListeners
    from gateway.settings.stored_acls import StoredAcls
    from gateway.topics.greylist_report import AvoidedBookies
    from ledger.client.health import BookieHealth
    from ledger.ports.clock import Clock
    from ledger.ports.metadata import MetadataStore

_HISTORY_AFTER_S = 10.0  # so that no start waits for its modules
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

    def __init__(
        self,
        server: Server,
        ctx: Context,
        stops: list[Stop],
        secure: SecureListeners | None = None,
    ) -> None:
        self.ctx = ctx
        self.lost: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self.server = server
        self.metrics: WebPort | None = None
        self.http: WebPort | None = None
        self.ledger_port: int | None = None  # port for readers of ledgers, or None
        # What listeners with TLS or SASL need; None without one.
        self.secure = secure
        # Functions that read other certificates again: those for bookies.
        self.reloads: list[Callable[[], object]] = []
        self.stops = stops

    @property
    def host(self) -> str:
        return self.server.host

    @property
    def port(self) -> int:
        return self.server.port

    @property
    def listeners(self) -> tuple[Listener, ...]:
        """Return the listeners with the ports that they have."""
        return self.server.listeners

    @property
    def listener_for_brokers(self) -> Listener:
        """Return the listener by which brokers reach each other, and the page this one."""
        listeners = self.ctx.config.all_listeners
        return listeners[_for_brokers(self.ctx.config, [each.name for each in listeners])]

    def apply(self, config: GatewayConfig) -> None:
        """Take over what may change of a configuration, and read certificates again."""
        from gateway.process.reload import apply  # at a SIGHUP, and never by a start

        apply(config, self)

    @property
    def http_port(self) -> int | None:
        """Return the port of the web page, or None."""
        return None if self.http is None else self.http.port

    @property
    def metrics_port(self) -> int | None:
        """Return the port of the metrics page, or None."""
        return None if self.metrics is None else self.metrics.port

    async def stop(self) -> None:
        self.ctx.phase = Phase.DRAINING
        await stop_all(self.stops)


class PortUnavailable(OSError):
    """The gateway cannot listen on a port for HTTP, or not as configured."""


class WebPort:
    """A port for HTTP. Its code is imported at the first connection, and never by a start."""

    def __init__(self, running: Running, *, metrics_only: bool) -> None:
        self._running = running
        self._settings = running.ctx.config.http
        self._name = "metrics-port" if metrics_only else "http-port"
        self._metrics_only = metrics_only
        self._listener: asyncio.Server | None = None
        # Answers requests. None before the first connection.
        self._server: HttpServer | None = None
        self._tls: ssl.SSLContext | None = None
        self._passwords: Mapping[str, Hashed] | None = None
        self.port = 0

    async def start(self, host: str, port: int) -> None:
        """Listen, on any free port if `port` is 0. Raises PortUnavailable."""
        self._read_secrets()
        loop = asyncio.get_running_loop()
        try:
            self._listener = await loop.create_server(self._arrived, host, port)
        except (OSError, UnicodeError) as error:
            raise self._unavailable(host, port, error) from error
        self.port = self._listener.sockets[0].getsockname()[1]
        self._running.stops.append(self.stop)

    async def stop(self) -> None:
        """Stop accepting connections, and end those that are open."""
        if self._listener is not None:
            self._listener.close()
        if self._server is not None:
            await self._server.stop()

    def _unavailable(self, host: str, port: int, error: OSError | UnicodeError) -> PortUnavailable:
        if isinstance(error, UnicodeError):  # of a host name that IDNA does not encode
            reason = "this is not the name of a host"
        elif isinstance(error, socket.gaierror) or not error.errno:
            reason = error.strerror or str(error)
        else:
            reason = os.strerror(error.errno)  # without the words of the loop
        unavailable = PortUnavailable(
            f"{self._name} {port}: cannot listen there on {host}: {reason}"
        )
        if isinstance(error, OSError):
            unavailable.errno = error.errno
        return unavailable

    def _arrived(self) -> asyncio.Protocol:
        if self._server is None:
            from gateway.http.server import HttpServer, load_application

            load = load_application(
                self._running.ctx,
                self._settings,
                _own_bootstrap(self._running.ctx.config, self._running.listeners),
                self._passwords,
                metrics_only=self._metrics_only,
            )
            self._server = HttpServer(self._settings, load, self._tls)
        return self._server.connection()

    def _read_secrets(self) -> None:
        """Read the certificate and the passwords, which stay as they are in this process."""
        file, key = self._settings.certificate, self._settings.private_key
        if file is not None:
            self._tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
            try:
                self._tls.load_cert_chain(file, key, _no_passphrase)
            except (OSError, ValueError) as error:
                raise PortUnavailable(f"--http-cert {file}: cannot be used: {error}") from error
            self._tls.set_alpn_protocols(["http/1.1"])
        if self._settings.password_file is not None:
            from gateway.http.password_file import PasswordFault, read_passwords

            file = self._settings.password_file
            try:
                self._passwords = read_passwords(file)
            except PasswordFault as fault:
                raise PortUnavailable(f"--http-password-file {file}: {fault}") from fault


def _no_passphrase() -> str:
    raise ValueError("its key has a passphrase; write the key without one")


def _begin_consumer_groups(ctx: Context) -> None:
    """Let the configs of groups act, and log if this gateway refuses the consumer protocol."""
    timing = GroupTiming(ctx.stored.configs, ctx.altered, ctx.config.groups)
    ctx.groups.consumers.timing_of = timing.of
    if ctx.features.level(GROUP_VERSION) and not ctx.groups.keeps_records:
        logger().warning(
            "groups of the consumer protocol are refused here: committed offsets must be in log "
            "segments, see --log-segment-based-subscriptions-store-enabled",
            feature=GROUP_VERSION,
        )


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
    _begin_audit(config, clock, stops)
    catalog = Catalog(metadata, config.topics, bookies=parts.bookies)
    await catalog.load()
    stops.append(catalog.close)
    stored, acls = await _load_stored(config, metadata, stops)
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
        authorizer=acls,
        acls=acls,
        metadata_address=config.zookeeper or None,
        copies=parts.bookies,
        streams=parts.services,
        avoided_bookies=partial(_avoided_bookies, parts.services.client.health),
        questions={
            **dict.fromkeys(("groups", "topics"), ask_figures),
            **dict.fromkeys(("health", "history", "record_times", "slow"), ask_metrics),
        },
    )
    _begin_consumer_groups(ctx)
    stops.append(add_transactions(ctx, shared))
    stall_s_max = parts.session_ms / 1000 * _STILL_SHARE if shared else None
    secure = await _secure_ports(config, parts, stored, cluster, stops)
    dispatcher = Dispatcher({**rows(), PRIVATE_KEY: private_questions_row()}, ctx, ctx.requests)
    server = Server(dispatcher, config.connection, stall_s_max, ctx.reply_memory, secure)
    running = Running(server, ctx, stops, secure)
    ctx.process_report = partial(_process_report, running, parts.session_ms)
    _join_local_cluster(ctx)
    return await _start(running, shared)


async def _secure_ports(
    config: GatewayConfig,
    parts: Parts,
    stored: StoredSettings,
    cluster: SingleBroker | ZooKeeperCluster,
    stops: list[Stop],
) -> SecureListeners | None:
    """Return what listeners with TLS or SASL need, or None without one. Raises PortUnavailable.

    Links to other gateways connect as their listener asks for, from now on.
    """
    _secure_links(config, cluster)
    if all(each.protocol == PLAINTEXT for each in config.all_listeners):
        return None
    from gateway.process.secure_ports import CannotSecure, secure_listeners

    try:
        return await secure_listeners(config, parts.services.metadata, stored.scram, stops)
    except CannotSecure as error:
        raise PortUnavailable(str(error)) from error


def _secure_links(config: GatewayConfig, cluster: SingleBroker | ZooKeeperCluster) -> None:
    """Let gateways connect to each other as their listener asks for. Raises PortUnavailable."""
    names = [each.name for each in config.all_listeners]
    listener = config.all_listeners[_for_brokers(config, names)]
    cluster.peer_listener = listener.name
    if listener.protocol == PLAINTEXT:
        return
    from gateway.process.secure_ports import CannotSecure, connecting

    try:
        cluster.peer_security = connecting(config, listener)
    except CannotSecure as error:
        raise PortUnavailable(str(error)) from error


def _join_local_cluster(ctx: Context) -> None:
    if "LEDGER_CLUSTER_DIRECTORY" in os.environ:  # few gateways import this
        from gateway.process.local_cluster.own import own_cluster

        ctx.local_cluster = own_cluster()


async def _load_stored(
    config: GatewayConfig, metadata: MetadataStore, stops: list[Stop]
) -> tuple[StoredSettings, StoredAcls | None]:
    """Return the settings of the cluster, and its ACLs if there is an authorizer.

    Raises LedgerError.
    """
    stored = StoredSettings(metadata)
    await stored.load()
    stops.append(stored.close)
    if not config.authorization.authorizer:
        return stored, None
    from gateway.settings.stored_acls import StoredAcls  # few gateways have an authorizer

    acls = StoredAcls(metadata, config.authorization)
    await acls.load()
    stops.append(acls.close)
    return stored, acls


def _avoided_bookies(health: BookieHealth) -> AvoidedBookies:
    from gateway.process.greylist_view import avoided_bookies  # few gateways are asked for it

    return avoided_bookies(health)


def _process_report(running: Running, session_ms: int) -> dict[str, Any]:
    from gateway.process.process_report import process_report  # few gateways are asked for it

    return process_report(running, session_ms)


def _first_synced(ctx: Context, request: Request, ended_s: float) -> float | None:
    from gateway.handlers.slow_requests import first_synced_s  # not before a slow request

    return first_synced_s(ctx, request, ended_s)


def _begin_audit(config: GatewayConfig, clock: Clock, stops: list[Stop]) -> None:
    """Note denials, failed logins and changes from now on. Raises PortUnavailable."""
    if not config.audit_log:
        return
    from gateway.security.audit_log import AuditLog  # few gateways have one

    try:
        log = auditing.sink = AuditLog(config.audit_log, config.node_id, clock.now_ms)
    except OSError as error:
        raise PortUnavailable(f"--audit-log {config.audit_log}: {error.strerror}") from error

    async def end() -> None:
        auditing.sink = None
        await log.close()

    stops.append(end)


def _enforce_quotas(ctx: Context, server: Server) -> None:
    """Enforce client quotas from the first one on that is stored."""
    wirings: list[QuotaWiring] = []

    def on_changed() -> None:
        if not wirings:
            if next(ctx.stored.quotas.all(), None) is None:
                return
            from gateway.process.quota_wiring import QuotaWiring  # few gateways have quotas

            wirings.append(QuotaWiring(ctx, server))
        wirings[0].apply_soon()

    ctx.stored.quotas.on_changed.append(on_changed)
    on_changed()


async def _close_lazy_parts(ctx: Context) -> None:
    while ctx.lazy:
        _, part = ctx.lazy.popitem()
        await part.close()


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
    stops.append(partial(_close_lazy_parts, ctx))
    # For clients that come before the last port is bound.
    ctx.listeners = {each.name: each for each in config.all_listeners}
    await running.server.start_all(config.all_listeners)
    stops.append(running.server.stop)
    ctx.listeners = {each.name: each for each in running.server.listeners}
    ctx.altered.limit_connections(running.server.registry.limit_connections)
    _enforce_quotas(ctx, running.server)
    ctx.connections = running.server.registry.counts
    ctx.requests.first_synced = partial(_first_synced, ctx)
    if isinstance(ctx.cluster, SingleBroker):
        ctx.cluster.address = _advertised(running.server.listeners[0])[1:]
    if config.metrics_port is not None:
        running.metrics = WebPort(running, metrics_only=True)
        await running.metrics.start(config.host, config.metrics_port)
    if config.http.port is not None:
        await _start_page(running, config.http.port)
    stops.append(release_waiters)
    stops.append(partial(_close_lazy_parts, ctx))
    if shared is not None:
        from gateway.process.broker_lifecycle import (
            BrokerLifecycle,  # an embedded gateway does not import this module
        )

        authorizes = ctx.authorizer is not None
        share = BrokerLifecycle(shared, partitions, groups, running.lost, authorizes=authorizes)
        stops.append(share.stop)
        addresses = [_advertised(each) for each in running.server.listeners]
        _, host, port = addresses[0]
        await share.start(host, port, _peer_address(config, addresses), addresses)
    await partitions.start()
    await groups.start()
    if ctx.transactions is not None:
        await ctx.transactions.start()
    if ctx.cleaner is not None:
        ctx.cleaner.start()
    ctx.phase = Phase.SERVING
    _begin_history_later(running)
    return running


def _advertised(listener: Listener) -> ListenerAddress:
    """Return the address of a bound listener as other brokers give it to clients."""
    return ListenerAddress(listener.name, *listener.address(listener.host, listener.port))


def _peer_address(config: GatewayConfig, addresses: Sequence[ListenerAddress]) -> tuple[str, int]:
    """Return the address for other brokers: that of a listener, or of `peer_host`."""
    if not config.listeners:
        return config.peer_host or "", config.peer_port or addresses[0].port
    return addresses[_for_brokers(config, [each.name for each in addresses])][1:]


def _for_brokers(config: GatewayConfig, names: Sequence[str]) -> int:
    """Return the place of the listener by which brokers of the cluster reach each other."""
    name = config.inter_broker_listener or PLAINTEXT
    return names.index(name) if name in names else 0


def _own_bootstrap(config: GatewayConfig, listeners: Sequence[Listener]) -> str:
    """Return the address at which the page asks this gateway as a client.

    It is that of the listener for brokers: what others advertise for clients outside may be out of
    reach from here.
    """
    listener = listeners[_for_brokers(config, [each.name for each in listeners])]
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(listener.host, listener.host)
    return f"[{host}]:{listener.port}" if ":" in host else f"{host}:{listener.port}"


def _begin_history_later(running: Running) -> None:
    loop = asyncio.get_running_loop()
    timer = loop.call_later(_HISTORY_AFTER_S, _begin_history, running.ctx)

    async def cancel() -> None:
        timer.cancel()

    running.stops.append(cancel)


def _begin_history(ctx: Context) -> None:
    start_once("the import of the history", _import_history(ctx))


async def _import_history(ctx: Context) -> None:
    module: Any = await in_thread(import_module, "gateway.metrics.history")
    if ctx.phase is Phase.SERVING:
        module.begin(ctx)


async def _start_page(running: Running, port: int) -> None:
    """Serve the web page, or Kafka alone if the default port is in use."""
    settings = running.ctx.config.http
    page = WebPort(running, metrics_only=False)
    try:
        await page.start(settings.host, port)
    except PortUnavailable as error:
        if not settings.may_be_taken or error.errno != errno.EADDRINUSE:
            raise
        print(
            f"gateway: http-port {port}: in use on {settings.host}; there is no web page "
            "(--http-port takes another port, --no-http-port none)",
            file=sys.stderr,
            flush=True,
        )
        return
    running.http = page
