"""A bookie process in a cluster: the order of its start and, reversed, of its shutdown.

directory locked and claimed -> cluster and cookie match it -> log replayed -> possible losses
fenced and in limbo -> this start counted -> TCP and gRPC listen -> registered
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from ledger.adapters.grpc.grpc_config import GrpcServerConfig
from ledger.adapters.posix.posix_disk import PosixDisk
from ledger.adapters.rocksdb.rocks_table import RocksTable
from ledger.adapters.system import machine
from ledger.adapters.system.clock import SystemClock
from ledger.adapters.tcp.tcp_config import TcpServerConfig
from ledger.bookie.bookie import Bookie
from ledger.bookie.config import BookieConfig
from ledger.bookie.directory import VERSION, bookie_id, claim_directory
from ledger.bookie.gc.scheduler import GcScheduler
from ledger.bookie.grpc_server import BookieServer
from ledger.bookie.identity_file import StartCount
from ledger.bookie.tcp_server import TcpServer
from ledger.errors import LedgerError
from ledger.exposition import Family
from ledger.ids import BookieId
from ledger.node.cluster_ledgers import ClusterLedgers
from ledger.node.config import NodeConfig
from ledger.node.identity import BookieIdentity, is_new, load_identity
from ledger.node.losses import ledgers_at_risk
from ledger.node.tls import identity_for
from ledger.ports.bookies import BookieInfo
from ledger.ports.metadata import MetadataStore
from ledger.registry import cookie, layout
from ledger.registry.cookie import Cookie
from ledger.registry.ledger_ids import first_unused_ledger
from ledger.registry.limbo_bookies import announce_limbo
from ledger.registry.registration import Registration, wait_until_unregistered
from ledger.tasks import start_restarting

_CHECK_S = 1.0  # seconds between two checks of the disk space
_CHECKS_PER_COLLECTION = 30
_SHUTDOWN_CALL_S = 1.0  # limit in seconds for each call to ZooKeeper at shutdown
_OLD_NODE_S = 2.0  # wait beyond the session length for an earlier session's node to expire

Stop = Callable[[], Awaitable[None]]
# The argument is True if a missing chroot should be created
Connect = Callable[[bool], Awaitable[MetadataStore]]


class StorageNode:
    """One bookie process. Call `start` once, then `stop`, even if `start` failed."""

    def __init__(self, config: NodeConfig, connect: Connect, log: Any) -> None:
        """Read the TLS files, if there are any. Raises TlsFault."""
        self._config = config
        # The identity that both servers show, and an auditor beside them. None without TLS.
        self.tls = identity_for(config)
        self._connect = connect
        self._log = log
        # Functions that stop the started parts, in order of their start. Emptied by `stop`.
        self._stops: list[Stop] = []
        # The bookie. None before `start`.
        self._bookie: Bookie | None = None
        # Searches for deleted ledgers. None before it is started.
        self.collector: GcScheduler | None = None
        self._stopping = False
        # The address that clients connect to. The port is 0 before `start`.
        self.host = config.advertised_host or config.host
        self.port = 0

    @property
    def bookie(self) -> Bookie:
        """The bookie. Valid after `start`."""
        assert self._bookie is not None
        return self._bookie

    def not_ready(self) -> list[str]:
        """Return why clients cannot use this bookie now, a sentence for each reason.

        A read-only bookie is ready: it serves reads.
        """
        if self._stopping:
            return ["it is stopping"]
        if self._bookie is None or self.collector is None:
            return ["it is starting"]
        failure = self._bookie.failure
        return [] if failure is None else [f"nothing more is acknowledged: {failure}"]

    async def families(self) -> list[Family]:
        """Return the samples of the bookie, none before it serves."""
        if self._bookie is None or self.collector is None:
            return []
        from ledger.node.node_metrics import bookie_families  # most bookies are never asked

        return await bookie_families(self._bookie, self.collector)

    async def start(self) -> None:
        """Start everything, serve and register.

        Raises DirectoryInUse, ForeignDirectory, ForeignLayout, BookieIdInUse, CorruptFormat,
        OSError, or MetadataUnavailable if ZooKeeper does not answer.
        """
        config = self._config
        disk = PosixDisk(config.data, io=config.io)
        self._stops.append(_closing(disk.close))
        name = bookie_id(config.name, await claim_directory(disk, machine.new_instance))
        new = await is_new(disk)
        store = await self._connect(new)
        self._stops.append(store.close)
        cluster = await self._find_cluster(store, new=new)
        start = machine.new_instance().hex()[:8]
        rack, grpc_port = config.rack, config.grpc_port
        info = BookieInfo(self.host, grpc_port, rack, start=start, tcp_port=config.port)
        await wait_until_unregistered(store, name, info, self._registration_wait_s, replace=False)
        identity = await self._identify(disk, store, cluster, name)
        bookie = await self._open_bookie(disk, store, identity, start)
        await self._handle_losses(bookie, store, identity)
        await identity.started()
        self._stops.append(lambda: _stop_bookie(bookie, identity))
        grpc_port = await self._listen(bookie)
        info = info._replace(port=grpc_port, tcp_port=self.port, read_only=not bookie.writable)
        registration = Registration(
            store, name, info, wait_s=self._registration_wait_s, on_problem=self._on_problem
        )
        await registration.start()
        self._stops.append(lambda: _briefly(registration.stop()))
        ledgers = ClusterLedgers(store, identity)
        collector = GcScheduler(
            *(bookie, ledgers.list_all, ledgers.exists),
            interval_s=config.gc_interval,
            compaction_threshold=config.rewrite_share / 100,
            log=self._log,
        )
        collector.start()
        self.collector = collector
        self._stops.append(collector.stop)
        self._watch_disk_space(bookie, registration, collector)

    async def _listen(self, bookie: Bookie) -> int:
        """Serve TCP, then gRPC within the same bounds. Returns the gRPC port."""
        config, tls = self._config, self.tls
        tcp = TcpServer(bookie, TcpServerConfig(answers_bytes_max=config.answers_max), tls)
        grpc = BookieServer(bookie, GrpcServerConfig(), tls, tcp.rooms)

        async def stop() -> None:
            grace_s = 0.0 if bookie.failure else config.drain
            await asyncio.gather(tcp.stop(grace_s), grpc.stop(grace_s))

        self._stops.append(stop)
        self.port = await tcp.start(config.host, config.port)
        return await grpc.start(config.host, config.grpc_port)

    async def stop(self) -> None:
        """Stop the parts, newest first, and settle everything accepted."""
        self._stopping = True
        while self._stops:
            stop = self._stops.pop()
            try:
                await stop()
            except (LedgerError, OSError, TimeoutError) as error:
                reason = str(error) or type(error).__name__
                self._log().warning("a part did not stop cleanly", reason=reason)

    @property
    def _registration_wait_s(self) -> float:
        return self._config.session + _OLD_NODE_S

    def _on_problem(self, what: str) -> None:
        self._log().warning(what)

    async def _find_cluster(self, store: MetadataStore, *, new: bool) -> str:
        """Return the cluster's instance id. Only a new bookie creates the layout of a cluster."""
        if not new:
            await layout.read_instance_id(store, self._config.zookeeper)
        fresh = machine.new_instance_id()
        cluster = await layout.init_layout(store, lambda: fresh)
        if cluster == fresh:
            self._log().info(
                "laid out a new cluster", zookeeper=self._config.zookeeper, cluster=cluster
            )
        return cluster

    async def _identify(
        self, disk: PosixDisk, store: MetadataStore, cluster: str, name: BookieId
    ) -> BookieIdentity:
        data = self._config.data.absolute()
        place = (data / VERSION).stat().st_ino
        made_of = Cookie(name, str(data), (str(data),), cluster, (str(data / "index"),))
        wanted = StartCount(cluster, name, 0, "stopped", place)
        return await load_identity(disk, store, wanted, cookie.encode(made_of))

    async def _open_bookie(
        self, disk: PosixDisk, store: MetadataStore, identity: BookieIdentity, start_id: str
    ) -> Bookie:
        config = self._config
        table = RocksTable(config.data / "index")
        self._stops.append(_closing(table.close))
        bookie = Bookie(
            *(disk, table, SystemClock(), machine.new_instance),
            name=config.name,
            config=_bookie_config(config),
            start_id=start_id,
        )
        self._bookie = bookie
        next_ledger = await first_unused_ledger(store)
        await bookie.start(
            boot_id=machine.boot_id(),
            next_ledger=next_ledger,
            served_before=identity.served_before,
        )
        return bookie

    async def _handle_losses(
        self, bookie: Bookie, store: MetadataStore, identity: BookieIdentity
    ) -> None:
        """After an old copy of the directory, put the ledgers at risk into limbo, durably.

        Older ledgers are fenced. A loss that the bookie detected put it into limbo already. The
        next start finds `identity.loss` again unless this one was counted.
        """
        replayed = bookie.replayed
        assert replayed is not None
        if replayed.corrupt:
            self._log().error("damaged log", places=str(replayed.corrupt)[:500])
        if identity.served_before and replayed.index_lost:
            self._log_loss(bookie, "the index is lost, and the log is incomplete")
        if identity.loss or bookie.limbo_below > 0:
            await announce_limbo(store, bookie.bookie_id)
        if not identity.loss:
            return
        ledgers = await ledgers_at_risk(store, bookie.bookie_id)
        next_ledger = await first_unused_ledger(store)
        await bookie.enter_limbo(ledgers, fenced_below=next_ledger)
        self._log_loss(bookie, identity.loss, ledgers=len(ledgers))

    def _log_loss(self, bookie: Bookie, reason: str, **numbers: int) -> None:
        self._log().error(
            "this bookie may have lost entries; its ledgers are fenced and in limbo until it is "
            "repaired",
            reason=reason,
            bookie=bookie.bookie_id,
            **numbers,
        )

    def _watch_disk_space(
        self, bookie: Bookie, registration: Registration, collector: GcScheduler
    ) -> None:
        task = start_restarting(
            "the watch on disk space",
            lambda: self._monitor_disk_space(bookie, registration, collector),
        )

        async def stop() -> None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

        self._stops.append(stop)

    async def _monitor_disk_space(
        self, bookie: Bookie, registration: Registration, collector: GcScheduler
    ) -> None:
        """Register as writable or read-only by disk space; collect garbage while space is short."""
        was_writable = True  # True, so that a start without disk space is logged too
        checks = 0
        while True:
            if bookie.writable != was_writable:
                was_writable, checks = bookie.writable, 0
                self._log_disk_space(bookie)
                await registration.set_read_only(not was_writable)
            if not was_writable and checks % _CHECKS_PER_COLLECTION == 0:
                collector.request()
            checks += 1
            await asyncio.sleep(_CHECK_S)
            bookie.check_disk_space()

    def _log_disk_space(self, bookie: Bookie) -> None:
        if bookie.failure is not None:
            return  # the failure is logged elsewhere
        free, needed = bookie.disk_space
        if bookie.writable:
            self._log().warning("writable again", free_bytes=free)
            return
        self._log().warning(
            "short of room: read-only, adds are refused",
            free_bytes=free,
            needed_bytes=needed,
            data=str(self._config.data),
            fix="free space on this disk, or change --disk-free-min or --disk-used-max",
        )


def _bookie_config(config: NodeConfig) -> BookieConfig:
    """Convert shares of the disk into bytes of this disk."""
    disk_bytes = machine.disk_bytes(config.data)
    headroom = max(config.disk_free_min, disk_bytes * (100 - config.disk_used_max) // 100)
    return BookieConfig(
        journal_sync=config.journal_sync,
        entry_bytes_max=config.entry_max,
        queue_bytes_max=config.queue_max,
        write_cache_bytes=config.write_cache,
        read_ahead_bytes=config.read_ahead,
        headroom_bytes=headroom,
        headroom_resume_bytes=max(
            config.disk_free_min + config.disk_free_min // 4,
            disk_bytes * (100 - config.disk_used_resume) // 100,
        ),
    )


async def _stop_bookie(bookie: Bookie, identity: BookieIdentity) -> None:
    """Stop the bookie, and count the clean stop unless it failed."""
    failed = bookie.failure is not None
    await bookie.stop()
    if not failed:
        await _briefly(identity.stopped())


async def _briefly(call: Awaitable[None]) -> None:
    """Wait up to `_SHUTDOWN_CALL_S` for a call to ZooKeeper. Raises TimeoutError."""
    async with asyncio.timeout(_SHUTDOWN_CALL_S):
        await call


def _closing(close: Callable[[], None]) -> Stop:
    async def stop() -> None:
        close()

    return stop
