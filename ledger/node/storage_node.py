"""A bookie in a cluster: what it stands on, in the order in which it may be relied upon.

Directory locked and claimed -> cluster and cookie agree with it -> log replayed -> what may be
lost is fenced and in limbo -> this start is counted -> gRPC listens -> registered. At the end the
other way round.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from ledger.adapters.grpc.grpc_config import GrpcServerConfig, TlsFiles
from ledger.adapters.posix.posix_disk import PosixDisk
from ledger.adapters.rocksdb.rocks_table import RocksTable
from ledger.adapters.system import machine
from ledger.adapters.system.clock import SystemClock
from ledger.bookie.bookie import Bookie
from ledger.bookie.config import BookieConfig
from ledger.bookie.directory import VERSION, bookie_id, claim_directory
from ledger.bookie.gc.scheduler import GcScheduler
from ledger.bookie.grpc_server import BookieServer
from ledger.bookie.identity_file import StartCount
from ledger.errors import LedgerError
from ledger.ids import BookieId
from ledger.node.cluster_ledgers import ClusterLedgers
from ledger.node.config import NodeConfig
from ledger.node.identity import BookieIdentity, is_new, load_identity
from ledger.node.losses import ledgers_at_risk
from ledger.ports.bookies import BookieInfo
from ledger.ports.metadata import MetadataStore
from ledger.registry import cookie, layout
from ledger.registry.cookie import Cookie
from ledger.registry.ledger_ids import first_unused_ledger
from ledger.registry.registration import Registration, wait_until_unregistered

_LOOK_S = 1.0  # between two looks at the free space
_LOOKS_PER_COLLECTION = 30
_FAREWELL_S = 1.0  # for each word to ZooKeeper at the end; sessions end by themselves too
_LEFT_OVER_S = 2.0  # beyond a session, for the node of an earlier one to go

Stop = Callable[[], Awaitable[None]]
Connect = Callable[[bool], Awaitable[MetadataStore]]  # True: a chroot that is missing is made


class StorageNode:
    """Everything of one bookie process. `start` once, then `stop`, also when `start` failed."""

    def __init__(self, config: NodeConfig, connect: Connect, log: Any) -> None:
        self._config = config
        self._connect = connect
        self._log = log
        self._stops: list[Stop] = []
        self._bookie: Bookie | None = None
        self.host = config.advertised_host or config.host
        self.port = 0

    @property
    def bookie(self) -> Bookie:
        """After `start` only."""
        assert self._bookie is not None
        return self._bookie

    async def start(self) -> None:
        """It serves and is registered.

        Raises DirectoryInUse, ForeignDirectory, ForeignLayout, BookieIdInUse, CorruptFormat,
        OSError; MetadataUnavailable: nothing is wrong here.
        """
        config = self._config
        disk = PosixDisk(config.data)
        self._stops.append(_closing(disk.close))
        name = bookie_id(config.name, await claim_directory(disk, machine.new_instance))
        new = await is_new(disk)
        store = await self._connect(new)
        self._stops.append(store.close)
        cluster = await self._find_cluster(store, new=new)
        info = BookieInfo(self.host, config.port, config.rack)
        await wait_until_unregistered(store, name, info, self._patience_s, replace=False)
        identity = await self._identify(disk, store, cluster, name)
        bookie = await self._open_bookie(disk, store)
        await self._settle_losses(bookie, store, identity)
        await identity.started()
        self._stops.append(lambda: _stop_bookie(bookie, identity))
        server = BookieServer(bookie, GrpcServerConfig(), _tls(config))
        self.port = await server.start(config.host, config.port)
        self._stops.append(lambda: server.stop(0.0 if bookie.failure else config.drain))
        info = info._replace(port=self.port, read_only=not bookie.writable)
        registration = Registration(
            store, name, info, wait_s=self._patience_s, on_problem=self._on_problem
        )
        await registration.start()
        self._stops.append(lambda: _bounded(registration.stop()))
        ledgers = ClusterLedgers(store, identity)
        collector = GcScheduler(
            *(bookie, ledgers.list_all, ledgers.exists),
            interval_s=config.gc_interval,
            compaction_threshold=config.rewrite_share / 100,
            log=self._log,
        )
        collector.start()
        self._stops.append(collector.stop)
        self._watch_room(bookie, registration, collector)

    async def stop(self) -> None:
        """Nothing runs any more; what was accepted is settled. The newest part goes first."""
        while self._stops:
            stop = self._stops.pop()
            try:
                await stop()
            except (LedgerError, OSError, TimeoutError) as error:
                reason = str(error) or type(error).__name__
                self._log().warning("a part did not stop cleanly", reason=reason)

    @property
    def _patience_s(self) -> float:
        return self._config.session + _LEFT_OVER_S

    def _on_problem(self, what: str) -> None:
        self._log().warning(what)

    async def _find_cluster(self, store: MetadataStore, *, new: bool) -> str:
        """Its instance id. Only a bookie that is new lays one out where there is none."""
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

    async def _open_bookie(self, disk: PosixDisk, store: MetadataStore) -> Bookie:
        config = self._config
        table = RocksTable(config.data / "index")
        self._stops.append(_closing(table.close))
        bookie = Bookie(
            *(disk, table, SystemClock(), machine.new_instance),
            name=config.name,
            config=_bookie_config(config),
        )
        self._bookie = bookie
        next_ledger = await first_unused_ledger(store)
        await bookie.start(boot_id=machine.boot_id(), next_ledger=next_ledger)
        return bookie

    async def _settle_losses(
        self, bookie: Bookie, store: MetadataStore, identity: BookieIdentity
    ) -> None:
        """What may be lost is never denied, and takes no writer's adds any more."""
        replayed = bookie.replayed
        assert replayed is not None
        loss = identity.loss
        if replayed.corrupt:
            self._log().error("damaged log", places=str(replayed.corrupt)[:500])
        if (
            not loss
            and identity.served_before
            and (replayed.incomplete or replayed.next_file_id == 1)
        ):
            loss = "the index is lost, and the log is not whole"
        if not loss:
            return
        ledgers = await ledgers_at_risk(store, bookie.bookie_id)
        next_ledger = await first_unused_ledger(store)
        await bookie.enter_limbo(ledgers, fenced_below=next_ledger)
        self._log().error(
            "this bookie may have lost entries; it fences what it held and denies nothing until "
            "it is repaired",
            reason=loss,
            bookie=bookie.bookie_id,
            ledgers=len(ledgers),
        )

    def _watch_room(
        self, bookie: Bookie, registration: Registration, collector: GcScheduler
    ) -> None:
        task = asyncio.get_running_loop().create_task(
            self._keep_watching_room(bookie, registration, collector)
        )

        async def stop() -> None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

        self._stops.append(stop)

    async def _keep_watching_room(
        self, bookie: Bookie, registration: Registration, collector: GcScheduler
    ) -> None:
        """Registered as what it is; short of room, it looks for some again and again."""
        was_writable = True  # one that begins without room says so too
        looks = 0
        while True:
            if bookie.writable != was_writable:
                was_writable, looks = bookie.writable, 0
                self._say_room(bookie)
                await registration.set_read_only(not was_writable)
            if not was_writable and looks % _LOOKS_PER_COLLECTION == 0:
                collector.request()
            looks += 1
            await asyncio.sleep(_LOOK_S)
            bookie.check_disk_space()

    def _say_room(self, bookie: Bookie) -> None:
        if bookie.failure is not None:
            return  # another line says that
        free, needed = bookie.disk_space
        if bookie.writable:
            self._log().warning("writable again", free_bytes=free)
            return
        self._log().warning(
            "short of room: read-only, it takes no writes",
            free_bytes=free,
            needed_bytes=needed,
            data=str(self._config.data),
            fix="free space on this disk, or change --disk-free-min or --disk-used-max",
        )


def _bookie_config(config: NodeConfig) -> BookieConfig:
    """Shares of the disk as bytes of this disk."""
    disk_bytes = machine.disk_bytes(config.data)
    headroom = max(config.disk_free_min, disk_bytes * (100 - config.disk_used_max) // 100)
    return BookieConfig(
        journal_sync=config.journal_sync,
        entry_bytes_max=config.entry_max,
        queue_bytes_max=config.queue_max,
        headroom_bytes=headroom,
        headroom_resume_bytes=max(
            config.disk_free_min + config.disk_free_min // 4,
            disk_bytes * (100 - config.disk_used_resume) // 100,
        ),
    )


def _tls(config: NodeConfig) -> TlsFiles | None:
    if config.tls_cert is None or config.tls_key is None or config.tls_ca is None:
        return None
    return TlsFiles(cert=config.tls_cert, key=config.tls_key, ca=config.tls_ca)


async def _stop_bookie(bookie: Bookie, identity: BookieIdentity) -> None:
    """Settled and closed; only a bookie that did not fail has stopped cleanly."""
    failed = bookie.failure is not None
    await bookie.stop()
    if not failed:
        await _bounded(identity.stopped())


async def _bounded(farewell: Awaitable[None]) -> None:
    """A word to ZooKeeper that is worth a moment. Raises TimeoutError."""
    async with asyncio.timeout(_FAREWELL_S):
        await farewell


def _closing(close: Callable[[], None]) -> Stop:
    async def stop() -> None:
        close()

    return stop
