"""The life of a broker in a cluster: register, own streams, hand over.

    port bound ─▶ registered ─▶ streams claimed ─▶ opened ─▶ their epochs published
    SIGTERM ─▶ leaving ─▶ each stream drained and handed over ─▶ groups released

Source: Kafka, BrokerLifecycleManager.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from gateway.cluster.authorizer_watch import AuthorizerWatch
from gateway.cluster.port import ListenerAddress
from gateway.cluster.zookeeper_cluster import ZooKeeperCluster
from gateway.groups.coordinator import Coordinator
from gateway.log import logger
from gateway.topics.partitions import Partitions
from ledger.errors import LedgerError
from ledger.tasks import start_restarting

HAND_OVER_S_MAX = 30.0


class BrokerLifecycle:
    """Connects the cluster with the partitions and groups of this process.

    `start` runs once, `stop` runs once.
    """

    def __init__(
        self,
        cluster: ZooKeeperCluster,
        partitions: Partitions,
        groups: Coordinator,
        ended: asyncio.Future[str],
        *,
        authorizes: bool = False,
    ) -> None:
        self._cluster = cluster
        self._partitions = partitions
        self._groups = groups
        self._ended = ended
        self._adopting: asyncio.Task[None] | None = None
        self._adopt_again = False
        self._authorizers = AuthorizerWatch(authorizes=authorizes)

    async def start(
        self,
        host: str,
        port: int,
        peer: tuple[str, int],
        listeners: Sequence[ListenerAddress] = (),
    ) -> None:
        """Register the broker, and claim, open and lead streams from now on.

        `host` and `port` are for clients of brokers of earlier releases, `listeners` for all
        others, `peer` is for other brokers. Raises NotOwner (another process has this node id),
        MetadataUnavailable.
        """
        cluster = self._cluster
        self._partitions.on_opened = cluster.note_opened
        cluster.set_hand_over(self._partitions.hand_over)
        cluster.on_members_changed(self._members_changed)
        cluster.on_expired(self._groups.lost)
        cluster.on_replaced(self._replaced)
        await cluster.set_address(host, port, peer, listeners)
        await cluster.start(self._partitions)

    async def stop(self) -> None:
        """Hand over all streams and groups, so that no other broker waits for the session to end.

        If the metadata store is unavailable, nothing can be handed over. Other brokers then take
        over when the session ends.
        """
        try:
            async with asyncio.timeout(HAND_OVER_S_MAX):
                await asyncio.gather(
                    self._cluster.hand_over_all(self._partitions.hand_over),
                    self._groups.hand_over(),
                )
        except (LedgerError, TimeoutError) as error:
            logger().warning("others take over when the session ends", reason=str(error))
        if self._adopting is not None:
            self._adopting.cancel()
            await asyncio.gather(self._adopting, return_exceptions=True)
        await self._cluster.stop()

    def _replaced(self, reason: str) -> None:
        if not self._ended.done():
            self._ended.set_result(reason)

    def _members_changed(self) -> None:
        """Load the groups that a dead broker coordinated, before their members ask."""
        self._authorizers.look(self._cluster.members())
        self._adopt_again = True
        if self._adopting is None or self._adopting.done():
            self._adopting = start_restarting(
                "the adoption of groups", self._adopt, self._on_adopt_died
            )

    def _on_adopt_died(self) -> None:
        self._adopt_again = True

    async def _adopt(self) -> None:
        while self._adopt_again:
            self._adopt_again = False
            try:
                await self._groups.adopt(await self._cluster.orphans())
            except LedgerError as error:
                logger().warning("groups of a lost gateway wait for requests", reason=str(error))
