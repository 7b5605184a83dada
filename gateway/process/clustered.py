"""A gateway of a cluster: metadata in ZooKeeper, bookies over TCP, other brokers beside it.

`embedded` is the other module that chooses the adapters behind the ports.
"""

from __future__ import annotations

import asyncio
from functools import partial

from gateway.admin.zookeeper_access import gateway_access
from gateway.cluster.lease import Lease
from gateway.cluster.zookeeper_cluster import ZooKeeperCluster
from gateway.config import GatewayConfig
from gateway.core.feature_levels import Supported, supported_levels
from gateway.features.cluster_form import ClusterForm
from gateway.log import logger
from gateway.process.assemble import Parts, Running, Stop, serve, stop_all
from gateway.process.cluster_layout import (
    epoch_base,
    keeps_log_segments,
    lay_out_cluster,
    read_layout,
)
from gateway.topics.catalog import Catalog
from ledger.adapters.links.link_config import TlsFiles
from ledger.adapters.links.tls_identity import TlsIdentity
from ledger.adapters.open_bookies import open_bookies
from ledger.adapters.system.clock import SystemClock
from ledger.adapters.system.hourly import warn_each_hour
from ledger.adapters.zookeeper.session_closer import SessionCloser
from ledger.adapters.zookeeper.zookeeper_metadata import ZooKeeperMetadata, connect_zookeeper
from ledger.client.client import LedgerClient
from ledger.client.config import LedgerClientConfig
from ledger.core.bookie_health import SlowDetection
from ledger.ids import BookieId
from ledger.ports.bookies import BookieTransport
from ledger.registry.discovery import Discovery
from ledger.registry.layout import read_instance_id
from ledger.repair.corruption_reports import CorruptionReporter
from ledger.repair.underreplicated_ledgers import UnderreplicatedLedgers
from ledger.streams.config import StreamLimits
from ledger.streams.plain_log import LogQuorum, PlainLogs
from ledger.streams.stream import StreamServices
from subscriptions.rollout.open_store import open_store

COPIES = 3  # copies of each subscription log


async def start_in_cluster(config: GatewayConfig) -> Running:
    """Start a gateway of a cluster.

    Raises OSError, MetadataUnavailable, OpenToAnyone, NotOwner (another process has this node id),
    ForeignLayout (no bookie ever created this cluster), or CorruptFormat (a later release laid it
    out). Nothing was written if it raises one of the last two.
    """
    stops: list[Stop] = []
    try:
        return await _start(config, stops)
    except BaseException:
        await stop_all(stops)
        raise


async def _start(config: GatewayConfig, stops: list[Stop]) -> Running:
    closer = SessionCloser()
    closer.start()
    stops.append(closer.stop)
    metadata = await _connect(config, closer)
    stops[-1] = partial(_end_session, metadata, closer)
    await read_instance_id(metadata, config.zookeeper)
    _tell_session(config, metadata)
    if config.zookeeper_security is not None:
        warn_each_hour(asyncio.get_running_loop(), config.zookeeper_security.warning)
    discovery = Discovery(metadata)
    await discovery.start()
    stops.append(discovery.stop)
    transport = BookieTransport(config.bookie_transport)
    tls = _tls(config)
    bookies = open_bookies(discovery.registered, transport, tls)
    stops.append(bookies.close)
    clock = SystemClock()
    client = LedgerClient(metadata, bookies, clock, _client_config(config))
    suspicions = CorruptionReporter(
        UnderreplicatedLedgers(metadata, clock, BookieId(f"gateway-{config.node_id}"))
    )
    client.health.on_corrupt = suspicions.on_corrupt
    if not bookies.available():
        _warn_without_bookies(config, client)
    stops.append(suspicions.stop)
    flag = config.log_segment_based_subscriptions_store_enabled
    # A cluster that is not laid out yet will keep log segments.
    is_new = await read_layout(metadata) is None
    in_segments = await keeps_log_segments(metadata, True if flag is None and is_new else flag)
    supported = supported_levels(log_segments=in_segments)
    layout = await lay_out_cluster(metadata, supported)
    limits = StreamLimits(
        tail_cache_bytes=config.tail_cache_bytes,
        read_ahead_bytes=config.connection.read_ahead_bytes_max,
    )
    services = StreamServices(metadata, client, clock, limits, epoch_base(layout))

    async def collected_by_bookies() -> None:
        """Do nothing: each bookie looks for deleted ledgers itself."""

    parts = Parts(
        services,
        layout,
        supported,
        bookies=lambda: len(bookies.available()),
        collect=collected_by_bookies,
        subscriptions=open_store(
            in_segments,
            metadata,
            PlainLogs(client, lambda: _quorum(len(bookies.available()))),
            clock,
        ),
        cluster=partial(_cluster, config, metadata, clock, layout, supported),
        session_ms=metadata.negotiated_session_ms,
    )
    running = await serve(config, parts, stops)
    if tls is not None:
        running.reloads.append(tls.reload)
    return running


def _cluster(
    config: GatewayConfig,
    metadata: ZooKeeperMetadata,
    clock: SystemClock,
    layout: ClusterForm,
    supported: Supported,
    catalog: Catalog,
) -> ZooKeeperCluster:
    lease = Lease(clock, lambda: metadata.confirmed_s, lambda: metadata.negotiated_session_ms)
    return ZooKeeperCluster(
        metadata,
        catalog,
        clock,
        node_id=config.node_id,
        host=config.advertised_host or config.host,
        port=config.port,
        rack=config.rack,
        session_ms=metadata.negotiated_session_ms,
        lease=lease,
        keeps_epochs=layout.keeps_epochs,
        supported=supported,
        authorizes=bool(config.authorization.authorizer),
    )


async def _end_session(metadata: ZooKeeperMetadata, closer: SessionCloser) -> None:
    """Close the session, then end the child, which closes it if this fails."""
    await metadata.close()
    await closer.stop()


def _warn_without_bookies(config: GatewayConfig, client: LedgerClient) -> None:
    logger().warning(
        "no bookie takes writes: producers are told to try again until one does",
        zookeeper=config.zookeeper,
        reason=client.health.summary(),
    )


async def _connect(config: GatewayConfig, closer: SessionCloser) -> ZooKeeperMetadata:
    """Connect to ZooKeeper, with proofs of the session for the lease.

    `closer` closes the session if this process dies.
    """
    servers, slash, path = config.zookeeper.partition("/")
    return await connect_zookeeper(
        servers,
        session_ms=config.session_ms,
        chroot=slash + path,
        make_root=False,
        prove_session=True,
        on_session=closer.keep,
        access=gateway_access(config),
    )


def _client_config(config: GatewayConfig) -> LedgerClientConfig:
    return LedgerClientConfig(
        rack=_rack(config),
        reader_slow_shards_detection=SlowDetection(config.reader_slow_shards_detection),
    )


def _rack(config: GatewayConfig) -> str | None:
    """Return the rack as bookies write it, with a slash at the start."""
    return f"/{config.rack.lstrip('/')}" if config.rack else None


def _quorum(bookies: int) -> LogQuorum:
    """Return the quorum of subscription logs: three copies, or fewer if there are fewer bookies."""
    return LogQuorum.majority_of(max(1, min(COPIES, bookies)))


def _tell_session(config: GatewayConfig, metadata: ZooKeeperMetadata) -> None:
    """Log the negotiated session timeout if it is longer than the requested one."""
    granted_ms = metadata.negotiated_session_ms
    if granted_ms > config.session_ms:
        logger().warning(
            "ZooKeeper grants longer sessions than asked for: what a killed gateway owned is "
            "taken over that much later; lower its tickTime and minSessionTimeout",
            asked_ms=config.session_ms,
            granted_ms=granted_ms,
        )


def _tls(config: GatewayConfig) -> TlsIdentity | None:
    """Return the identity that bookies see, whose files are read again on SIGHUP.

    Raises TlsFault.
    """
    files = config.bookie_tls
    if files is None:
        return None
    roles = config.bookie_tls_roles
    if not roles:
        loop = asyncio.get_running_loop()
        warn_each_hour(loop, "bookies are accepted without a role (--bookie-tls-roles off)")
    return TlsIdentity(TlsFiles(cert=files[0], key=files[1], ca=files[2], roles=roles))
