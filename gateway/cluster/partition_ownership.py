"""Claim, publish and hand over the partitions of this broker.

`OwnershipState` decides which partitions are owned and what is written. `OwnershipRounds` carries
out these decisions. `PartitionOwnership` passes changes on to both, and holds the operations that
wait.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from uuid import UUID

from gateway.cluster.balancer import Balancer
from gateway.cluster.membership import ClusterMembership
from gateway.cluster.owners_table import each
from gateway.cluster.ownership_round import OwnershipRounds
from gateway.cluster.ownership_state import OwnershipState
from gateway.cluster.port import HandOver, StreamKey, StreamListener, TopicDirectory
from gateway.log import logger
from ledger.errors import LedgerError
from ledger.events import EventKind, note_event
from ledger.ports.clock import Clock
from ledger.ports.metadata import MetadataStore

# After this time a partition is handed over without a drain, and the next owner recovers it.
DRAIN_S_MAX = 10.0


class PartitionOwnership:
    """The partitions of the cluster, as far as this broker claims, leads or gives them away.

    `state` returns the owner and the leader of each partition.
    """

    def __init__(
        self,
        metadata: MetadataStore,
        catalog: TopicDirectory,
        clock: Clock,
        membership: ClusterMembership,
        *,
        session_ms: int,
        balance_settle_s: float,
        balance_at_once: int,
        keeps_epochs: bool = True,
    ) -> None:
        self.state = OwnershipState(membership, catalog, keeps_epochs=keeps_epochs)
        self.rounds = OwnershipRounds(
            metadata, catalog, clock, membership, self.state, session_ms=session_ms
        )
        self.balancer = Balancer(
            clock,
            self.state.surplus,
            self.move,
            settle_s=balance_settle_s,
            at_once=balance_at_once,
        )
        membership.on_stale = self.rounds.request_now
        # Must be the first callback, because later ones read the new ring.
        membership.on_changed(self._on_members)
        membership.on_expired(self._on_expired)

    async def start(self, listener: StreamListener) -> None:
        """Start to claim partitions; returns after the first round. Register the broker before."""
        await self.rounds.start(listener)

    async def stop(self) -> None:
        """Stop claiming. The listener is not notified of the partitions that are dropped."""
        self.balancer.cancel()
        await self.rounds.stop()

    def _on_members(self) -> None:
        joined = self.state.on_brokers()
        if joined:
            self.balancer.on_joined(joined)
        self.rounds.wake()

    def _on_expired(self) -> None:
        self.rounds.carry_out(self.state.on_session_ended())
        self.rounds.wake()

    def note_opened(self, key: StreamKey, epoch: int) -> None:
        """Publish this epoch soon. Ignored if this broker does not own the partition."""
        effects = self.state.note_opened(key, epoch)
        if effects is not None:
            note_event(
                EventKind.TAKEOVER,
                topic=self.state.topic_name(key.topic_id),
                partition=key.partition,
                leader_epoch=epoch,
            )
            self.rounds.carry_out(effects)
            self.rounds.request()

    async def opened(self, key: StreamKey, epoch: int) -> None:
        """Publish this epoch, and wait until all brokers can see it or the partition is lost."""
        self.note_opened(key, epoch)
        waiter = asyncio.get_running_loop().create_future()
        if self.state.await_published(key, waiter):
            await waiter

    async def move(self, key: StreamKey, hand_over: HandOver) -> None:
        """Drain the partition, give it to its candidate, and wait until the candidate has it.

        Also returns if the partition was lost, or if its owners node is corrupt.
        """
        if not self.state.start_drain(key):
            return
        try:
            async with asyncio.timeout(DRAIN_S_MAX):
                await hand_over(key)
        except Exception as error:  # noqa: BLE001 - the stream may be closed, so it is not kept
            expected = isinstance(error, LedgerError | TimeoutError)
            logger().warning(
                "handed over without a drain",
                topic=self.state.topic_name(key.topic_id),
                partition=key.partition,
                reason=str(error) or type(error).__name__,
                exc_info=None if expected else error,
            )
        finally:
            self.state.end_drain(key)
        if self.state.give_away(key):
            self.rounds.request_now()
            await self._moved(key)

    async def hand_over_all(self, hand_over: HandOver) -> None:
        """Drain every partition and give it to its candidate, many at the same time."""
        await self.balancer.stop()
        self._on_members()
        while keys := self.state.held_keys():
            await each(keys, lambda key: self.move(key, hand_over))
            await asyncio.gather(*(self._moved(key) for key in self.state.moving_keys()))
            await asyncio.sleep(0)  # the round that ends a hand-over may not have run yet

    async def _moved(self, key: StreamKey) -> None:
        """Wait until the hand-over of this partition has ended, if one is in progress."""
        waiter = asyncio.get_running_loop().create_future()
        if self.state.await_moved(key, waiter):
            await waiter

    async def wait_led(self, topic_id: UUID, timeout_s: float) -> bool:
        """Wait until every partition of the topic has an owner that opened it.

        Returns False after `timeout_s` seconds.
        """
        loop = asyncio.get_running_loop()
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                while not self.state.is_led(topic_id):
                    waiter = loop.create_future()
                    self.state.await_leaders(topic_id, waiter)
                    await waiter
        return self.state.is_led(topic_id)
