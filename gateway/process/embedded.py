"""Everything in one process: metadata in SQLite, bookies in process, the gateway in front.

    data/metadata.sqlite · data/bookie-1[..3]/{VERSION, log-…, index/}

This module chooses the adapters behind the ports, as `clustered` does for a cluster.
"""

from __future__ import annotations

import asyncio
import errno
import sys
from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from gateway.config import GatewayConfig
from gateway.core.feature_levels import supported_levels
from gateway.log import logger, named
from gateway.process.assemble import Parts, Running, Stop, serve, stop_all
from gateway.process.cluster_layout import epoch_base, lay_out_cluster, read_layout
from gateway.process.disk_monitor import EmbeddedBookieMonitor
from gateway.process.embedded_identity import (
    METADATA,
    EmbeddedIdentity,
    check_named,
    lay_out,
    read_cluster,
    require_metadata,
)
from gateway.settings.scram_users import DECOY_SECRET
from gateway.settings.scram_users import ROOT as SCRAM_USERS
from gateway.topics.partitions import stream_name
from ledger.adapters.sqlite.sqlite_metadata import SqliteMetadata
from ledger.adapters.system.clock import SystemClock
from ledger.adapters.system.memory import keep_freed_memory
from ledger.bookie.bookie import Bookie
from ledger.bookie.config import BookieConfig
from ledger.bookie.in_process import LocalBookie, LocalBookies, open_local_bookie
from ledger.client.client import LedgerClient
from ledger.client.config import LedgerClientConfig
from ledger.client.update_metadata import LedgerMetadataStore
from ledger.core.bookie_health import SlowDetection
from ledger.errors import LedgerError, MetadataUnavailable
from ledger.node.cluster_ledgers import ClusterLedgers
from ledger.node.identity import BookieIdentity
from ledger.registry.ledger_ids import first_unused_ledger
from ledger.streams.config import StreamLimits
from ledger.streams.plain_log import LogQuorum, PlainLogs
from ledger.streams.segment_store import ROOT as STREAMS
from ledger.streams.stream import StreamServices
from ledger.tasks import start_restarting
from subscriptions.rollout.open_store import open_store

if TYPE_CHECKING:
    from ledger.node.read_port import ReadPort
    from ledger.ports.bookies import Bookies
    from ledger.ports.metadata import MetadataStore

_RECOVER_S_MAX = 10.0  # time to recover segments that a crash left open, before readers are served
_ACCEPTED_BY = "gateway dev --accept-loss"
# Read from disk ahead of a reader in order: the journal bypasses the page cache, so the cleaner and
# consumers that lag would wait for the disk.
_READ_AHEAD_BYTES = 4 * 1024 * 1024
_COLLECT_S = 600.0  # longest time between two collections of deleted ledgers

_HIDDEN = (SCRAM_USERS, DECOY_SECRET)  # keys of users: secret to readers of ledgers

_Place = tuple[str, int]  # the topic and index of a partition


class _OwnBookie(NamedTuple):
    """A bookie of this process whose directory and metadata belong together."""

    local: LocalBookie
    loss: str  # the reason why this start put its ledgers into limbo, or ""
    identity: BookieIdentity


async def start_embedded(config: GatewayConfig) -> Running:
    """Start an embedded gateway.

    Raises OSError, or an error of `ledger.errors` for a directory that cannot be used.
    """
    keep_freed_memory()  # each read of a bookie allocates 1 MiB
    stops: list[Stop] = []
    try:
        return await _start(config, stops)
    except BaseException:
        await stop_all(stops)
        raise


async def _start(config: GatewayConfig, stops: list[Stop]) -> Running:
    config.data.mkdir(parents=True, exist_ok=True)
    clock = SystemClock()
    require_metadata(config.data)
    metadata = SqliteMetadata(config.data / METADATA)
    stops.append(metadata.close)
    in_segments = config.log_segment_based_subscriptions_store_enabled is not False
    supported = supported_levels(log_segments=in_segments)
    await read_layout(metadata)  # refuses other forms before anything is written
    local = await _open_bookies(config, metadata, clock, stops)
    bookies = LocalBookies([each.local.bookie for each in local])
    # All bookies share this process and its disk, so a comparison would measure chance.
    alike = LedgerClientConfig(reader_slow_shards_detection=SlowDetection.DISABLED)
    client = LedgerClient(metadata, bookies, clock, alike)
    in_limbo = [each.local.bookie for each in local if _report_loss(each, config.accept_loss)]
    if config.accept_loss:
        await _accept_losses(in_limbo, bookies, client, metadata)
    collector = _Collector(metadata, local)
    stops.append(collector.stop)
    watch = EmbeddedBookieMonitor(
        [(each.local.path, each.local.bookie) for each in local], collector.soon
    )
    stops.append(watch.stop)
    watch.start()
    layout = await lay_out_cluster(metadata, supported)
    if config.secure is not None:
        from gateway.process.secure_dev import write_admin  # few gateways import this

        await write_admin(config, metadata)
    limits = StreamLimits(
        tail_cache_bytes=config.tail_cache_bytes,
        read_ahead_bytes=config.connection.read_ahead_bytes_max,
    )
    services = StreamServices(metadata, client, clock, limits, epoch_base(layout))
    parts = Parts(
        services,
        layout,
        supported,
        bookies=lambda: config.bookies,
        collect=collector.soon,
        subscriptions=open_store(
            in_segments,
            metadata,
            PlainLogs(client, lambda: LogQuorum.majority_of(config.bookies)),
            clock,
        ),
    )
    running = await serve(config, parts, stops)
    running.ctx.disks_blocked = [each.local.blocked for each in local]
    # The web page reads by it where the ledger port is closed.
    running.ctx.own_ledgers = partial(_own_ledgers, metadata, local, client)
    if config.ledger_port is not None:
        await _show_ledgers(config, running, metadata, local, client)
    return running


async def _own_ledgers(
    metadata: SqliteMetadata, local: list[_OwnBookie], client: LedgerClient
) -> tuple[MetadataStore, Bookies]:
    """Return the ledgers for a reader in this process."""
    # Few gateways have such a reader.
    from ledger.adapters.links.shown_metadata import ShownMetadata
    from ledger.bookie.read_only_view import ReadOnlyView
    from ledger.node.shown_bookies import ShownBookies
    from ledger.ports.bookies import BookieInfo

    views = [ReadOnlyView(each.local.bookie, client.confirmed) for each in local]
    infos = {each.bookie_id: BookieInfo(read_only=True) for each in views}
    return ShownMetadata(metadata, {}, _HIDDEN), ShownBookies(views, infos)


async def _show_ledgers(
    config: GatewayConfig,
    running: Running,
    metadata: SqliteMetadata,
    local: list[_OwnBookie],
    client: LedgerClient,
) -> None:
    """Serve readers of ledgers on this machine. A failure does not keep Kafka from being served."""
    from ledger.node.read_port import ReadPort

    shown = ReadPort(
        metadata,
        [each.local.bookie for each in local],
        client.confirmed,
        lambda: _recover_crashed(running, metadata),
        # The port has no authentication.
        hidden=_HIDDEN,
    )
    port = config.ledger_port
    assert port is not None
    try:
        await _listen(shown, port, or_any=config.any_ledger_port)
    except OSError as error:
        print(
            f"gateway: ledger-port {port}: {error.strerror or error}; ledgers "
            "cannot be read there (--ledger-port takes another port, --no-ledger-port none)",
            file=sys.stderr,
            flush=True,
        )
        return
    running.ledger_port = shown.port
    running.ctx.metadata_address = f"grpc://127.0.0.1:{shown.port}"
    running.ctx.own_ledgers = shown.shown
    running.stops.append(shown.stop)


async def _listen(shown: ReadPort, port: int, *, or_any: bool) -> None:
    """Listen on the port, or on any free one if it is in use and `or_any`. Raises OSError."""
    try:
        await shown.start(port)
    except OSError as error:
        if not or_any or error.errno != errno.EADDRINUSE:
            raise
        await shown.start(0)


async def _recover_crashed(running: Running, metadata: SqliteMetadata) -> None:
    """Recover the segments that a crash left open, without waiting for a Kafka client.

    Before recovery, bookies serve all but the last acknowledged entry, so readers would miss
    acknowledged records. A stream that cannot be opened in time is retried later.
    """
    partitions = running.ctx.partitions
    places = {
        stream_name(topic.topic_id, index): (topic.name, index)
        for topic in running.ctx.catalog.all()
        for index in range(topic.partitions)
    }
    opening = [
        asyncio.ensure_future(partition.ensure_readable())
        for place in await _left_open(places, metadata)
        if (partition := partitions.find(*place)) is not None
    ]
    if opening:
        _, late = await asyncio.wait(opening, timeout=_RECOVER_S_MAX)
        for task in late:
            task.cancel()
        await asyncio.gather(*opening, return_exceptions=True)


async def _left_open(places: Mapping[str, _Place], metadata: SqliteMetadata) -> list[_Place]:
    """Return the partitions whose streams have a segment in progress.

    Partitions whose metadata cannot be read are logged. Opening them would only cost time.
    """
    try:
        found = {path.split("/")[2] for path in await metadata.paths(STREAMS) if _in_progress(path)}
        return [place for stream, place in places.items() if stream in found]
    except MetadataUnavailable as error:  # such as a damaged page of the file, below some streams
        reason = str(error)
    left_open: list[_Place] = []
    unreadable: list[str] = []
    for stream, place in places.items():
        try:
            if any(map(_in_progress, await metadata.paths(f"{STREAMS}/{stream}"))):
                left_open.append(place)
        except MetadataUnavailable:
            unreadable.append(f"{place[0]}-{place[1]}")
    logger().error(
        "cannot recover partitions: their metadata cannot be read",
        partitions=named(unreadable),
        count=len(unreadable),
        reason=reason,
    )
    return left_open


def _in_progress(path: str) -> bool:
    return path.rpartition("/")[2].startswith("inprogress_")


async def _open_bookies(
    config: GatewayConfig, metadata: SqliteMetadata, clock: SystemClock, stops: list[Stop]
) -> list[_OwnBookie]:
    """Open the bookies, and check that the metadata is theirs before this start is counted.

    Raises ForeignDirectory.
    """
    cluster = await read_cluster(metadata)
    next_ledger = await first_unused_ledger(metadata)
    opened: list[tuple[LocalBookie, EmbeddedIdentity]] = []
    for number in range(1, config.bookies + 1):
        name = f"bookie-{number}"
        identity = EmbeddedIdentity(name, metadata, cluster)
        bookie = await open_local_bookie(
            config.data / name,
            name=name,
            config=BookieConfig(
                journal_sync="never" if config.journal_sync == "never" else "group",
                read_ahead_bytes=_READ_AHEAD_BYTES,
            ),
            io=config.io,
            next_ledger=next_ledger,
            clock=clock,
            identity=identity,
        )
        stops.append(bookie.close)
        opened.append((bookie, identity))
    await check_named(metadata, [(identity, each.bookie) for each, identity in opened])
    cluster = await lay_out(metadata)
    return [
        _OwnBookie(local, identity.loss, await identity.accept(cluster, str(local.path.absolute())))
        for local, identity in opened
    ]


def _report_loss(own: _OwnBookie, accept: bool) -> bool:
    """Report a bookie that may have lost entries. Returns False for any other bookie.

    Unless the loss is accepted, the bookie answers "unknown" for missing entries, and the
    partitions that need these entries stay offline. So a loss is not mistaken for the end of a log.
    """
    bookie, data = own.local.bookie, str(own.local.path)
    replayed = bookie.replayed
    if replayed is not None and replayed.corrupt:
        places = str(replayed.corrupt)[:500]
        logger().error("damaged log", bookie=bookie.bookie_id, places=places, data=data)
    if bookie.limbo_below and not accept:
        logger().error(
            "this bookie may have lost entries; partitions that need it stay offline. Restart "
            "with --accept-loss to go on with what is left",
            bookie=bookie.bookie_id,
            reason=own.loss or "damage, a lost index, or a power cut without syncs",
            data=data,
        )
    return bool(bookie.limbo_below)


async def _accept_losses(
    in_limbo: list[Bookie], bookies: LocalBookies, client: LedgerClient, metadata: SqliteMetadata
) -> None:
    """Go on with what is left: store what is lost of each ledger, then end its limbo.

    Copies that rotted count as lost too, so all entries are read. A ledger that cannot be settled
    now stays in limbo, so the next start tries again.
    """
    from ledger.losses.acceptance import LossAcceptor  # few starts accept losses
    from ledger.repair.entry_ranges import count

    config = LedgerClientConfig()
    store = LedgerMetadataStore(metadata, config)
    acceptor = LossAcceptor(client, store, bookies, SystemClock(), config)
    ledgers = await client.list_ledgers()
    given_up = 0
    for ledger in sorted(ledgers):
        try:
            loss = await acceptor.accept_ledger(ledger, _ACCEPTED_BY)
        except LedgerError as error:
            logger().error("a loss was not accepted", ledger=ledger, reason=str(error))
            continue
        for bookie in in_limbo:
            await bookie.end_limbo(ledger)
        given_up += count(loss.given_up)
    if in_limbo or given_up:
        names = [bookie.bookie_id for bookie in in_limbo]
        logger().warning("loss accepted", bookies=names, ledgers=len(ledgers), entries=given_up)


class _Collector:
    """A task that frees disk space soon after ledgers were deleted, and at a long interval."""

    def __init__(self, metadata: SqliteMetadata, bookies: list[_OwnBookie]) -> None:
        self._bookies = [
            (each.local.bookie, ClusterLedgers(metadata, each.identity)) for each in bookies
        ]
        self._asked = asyncio.Event()
        self._task = start_restarting("the collection of ledgers", self._run)

    async def soon(self) -> None:
        """Schedule a collection, without delaying the caller."""
        self._asked.set()

    async def stop(self) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self) -> None:
        while True:
            try:
                async with asyncio.timeout(_COLLECT_S):
                    await self._asked.wait()
            except TimeoutError:
                pass
            self._asked.clear()
            from ledger.bookie.gc.collector import collect  # no start waits for it

            for bookie, ledgers in self._bookies:
                try:
                    await collect(bookie, ledgers.list_all, ledger_exists=ledgers.exists)
                except (LedgerError, OSError) as error:
                    logger().warning("collection failed, it is tried again", reason=str(error))
