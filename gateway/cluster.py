"""A gateway of a cluster: metadata in ZooKeeper, bookies over gRPC, the gateway in front.

    /gateway/serving   ephemeral: who the gateway is that serves, and where
    /gateway/served    who served last, for good

Streams are not shared between gateways yet, so one serves at a time: a second one refuses to
start. That is courtesy; what keeps records safe is fencing. The other place where ports meet
what stands behind them is `embedded`.
"""

from __future__ import annotations

import asyncio
import json
import uuid
from collections.abc import Callable

from gateway.assembly import Parts, Running, Stop, serve, stop_all
from gateway.config import GatewayConfig
from gateway.log import logger
from ledger.client.client import LedgerClient
from ledger.client.config import LedgerClientConfig
from ledger.errors import BadVersion, LedgerError, MetadataUnavailable, NodeExists, NoNode, NotOwner
from ledger.ids import BookieId
from ledger.registry.discovery import Discovery
from ledger.registry.layout import INSTANCE_ID
from ledger.repair.suspicions import Suspicions
from ledger.repair.underreplication import Underreplication
from ledger.streams.stream import StreamServices
from ledger.world.clock import SystemClock
from ledger.world.grpc_bookies import GrpcBookies
from ledger.world.grpc_config import GrpcClientConfig, TlsFiles
from ledger.world.metadata import ANY_VERSION, MetadataStore, Node
from ledger.world.zookeeper import connect_zookeeper
from subscriptions.znode_store import GroupPositions

SEAT = "/gateway/serving"
LAST = "/gateway/served"
_LOOK_S = 0.2
_NOBODY = "that just left"


async def start_in_cluster(config: GatewayConfig) -> Running:
    """Clients are served. Raises MetadataUnavailable, NotOwner (another gateway serves), NoNode
    (no bookie ever made this cluster), OSError."""
    stops: list[Stop] = []
    try:
        return await _start(config, stops)
    except BaseException:
        await stop_all(stops)
        raise


async def _start(config: GatewayConfig, stops: list[Stop]) -> Running:
    servers, slash, path = config.zookeeper.partition("/")
    metadata = await connect_zookeeper(servers, session_ms=config.session_ms, chroot=slash + path)
    stops.append(metadata.close)
    await metadata.get(INSTANCE_ID)  # NoNode: no bookie has been here
    seat = SoleGateway(metadata, config)
    await seat.take()
    stops.append(seat.leave)
    discovery = Discovery(metadata)
    await discovery.start()
    stops.append(discovery.stop)
    bookies = GrpcBookies(discovery.registered, GrpcClientConfig(), _tls(config))
    stops.append(bookies.close)
    clock = SystemClock()
    client = LedgerClient(metadata, bookies, clock, LedgerClientConfig(rack=config.rack or None))
    suspicions = Suspicions(Underreplication(metadata, clock, BookieId(f"gateway-{seat.token}")))
    client.health.on_corrupt = suspicions.on_corrupt
    stops.append(suspicions.stop)
    services = StreamServices(metadata, client, clock)

    async def collected_by_bookies() -> None:
        """Each bookie looks for deleted ledgers itself."""

    parts = Parts(
        services,
        bookies=lambda: len(bookies.available()),
        collect=collected_by_bookies,
        subscriptions=GroupPositions(metadata),
    )
    running = await serve(config, parts, stops)
    await seat.tell(running.port)
    seat.tell_when_lost(running.lost.set_result)
    return running


def _tls(config: GatewayConfig) -> TlsFiles | None:
    files = config.bookie_tls
    return None if files is None else TlsFiles(cert=files[0], key=files[1], ca=files[2])


class SoleGateway:
    """The place of the one gateway that serves; taken again when the session was lost.

    But not when another one has served meanwhile, even if that one is gone: what this process
    remembers of topics, groups and ends of partitions is too old then.
    """

    def __init__(self, metadata: MetadataStore, config: GatewayConfig) -> None:
        self._metadata = metadata
        self._config = config
        self.token = uuid.uuid4().hex
        self._port = config.port
        self._seated = False  # once
        self._lost: str | None = None  # why it may not serve any longer
        self._on_lost: Callable[[str], None] | None = None
        self._task: asyncio.Task[None] | None = None
        self._unwatch = metadata.watch_session(self._renewed)

    async def take(self) -> None:
        """No other gateway serves. One that was killed is waited for as long as its session
        may live; but who served before ends at once. Raises NotOwner, MetadataUnavailable."""
        loop = asyncio.get_running_loop()
        give_up_at_s = loop.time() + 2 * self._config.session_ms / 1000
        while True:
            other = await self._other()
            if other is None:
                await self._sign()
                return
            if loop.time() > give_up_at_s or (self._seated and other != _NOBODY):
                raise NotOwner(f"gateway {other} serves this cluster already; one does at a time")
            await asyncio.sleep(_LOOK_S)

    async def _other(self) -> str | None:
        """Who serves; None: the seat is this process's."""
        try:
            await self._metadata.create(SEAT, self._said(), ephemeral=True, parents=True)
        except NodeExists:
            return await self._holder()
        return None

    async def _sign(self) -> None:
        """This process is the last one that served. Raises NotOwner if another was meanwhile."""
        token = self.token.encode()
        try:
            await self._metadata.create(LAST, token)
        except NodeExists:
            last = await self._metadata.get(LAST)
            if self._seated and last.data != token:
                await self._free()
                raise NotOwner("another gateway served this cluster meanwhile") from None
            await self._metadata.set(LAST, token, ANY_VERSION)
        self._seated = True

    async def _holder(self) -> str | None:
        """As `_other`, of a seat that is taken: perhaps by this process, whose reply was lost."""
        try:
            said = json.loads((await self._metadata.get(SEAT)).data)
        except NoNode:
            return _NOBODY
        if said["token"] == self.token:
            return None
        return f"{said['node_id']} at {said['host']}:{said['port']}"

    def _said(self) -> bytes:
        said = {
            "node_id": self._config.node_id,
            "host": self._config.advertised_host or self._config.host,
            "port": self._port,
            "token": self.token,
        }
        return json.dumps(said).encode()

    async def tell(self, port: int) -> None:
        """The seat names the port that was bound."""
        self._port = port
        try:
            node = await self._metadata.get(SEAT)
            if self._is_ours(node):
                await self._metadata.set(SEAT, self._said(), node.version)
        except LedgerError as error:
            logger().warning("the gateway's address is not registered", reason=str(error))

    def _is_ours(self, node: Node) -> bool:
        return json.loads(node.data)["token"] == self.token

    def tell_when_lost(self, on_lost: Callable[[str], None]) -> None:
        """`on_lost` runs once, with the reason, when this process may not serve any longer."""
        self._on_lost = on_lost
        if self._lost is not None:
            on_lost(self._lost)

    def _renewed(self) -> None:
        if self._task is not None:
            self._task.cancel()
        self._task = asyncio.get_running_loop().create_task(self._take_again())

    async def _take_again(self) -> None:
        while self._lost is None:
            try:
                await self.take()
            except NotOwner as error:
                self._lost = str(error)
                if self._on_lost is not None:
                    self._on_lost(self._lost)
            except MetadataUnavailable as error:
                logger().warning("this gateway has no seat yet", reason=str(error))
                await asyncio.sleep(_LOOK_S)
            else:
                return

    async def leave(self) -> None:
        """The seat is free."""
        self._unwatch()
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        await self._free()

    async def _free(self) -> None:
        try:
            node = await self._metadata.get(SEAT)
            if self._is_ours(node):
                await self._metadata.delete(SEAT, node.version)
        except (NoNode, BadVersion):
            pass
