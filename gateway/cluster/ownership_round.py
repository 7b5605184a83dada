"""Carry out the rounds of partition ownership, one at a time.

    brokers, topics, owners or epochs changed ─▶ a round:
    registered? ─▶ read what changed ─▶ apply it ─▶ claim, publish, give away: one CAS per topic

`OwnershipState` decides. A round reads and writes the metadata store and carries out the effects.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import cast
from uuid import UUID

from gateway.cluster.membership import SESSIONS_WAITED, ClusterMembership
from gateway.cluster.owners_table import OwnersTable, each
from gateway.cluster.ownership_state import (
    Effect,
    Gained,
    OwnershipState,
    Resume,
    TopicOwnership,
)
from gateway.cluster.port import StreamListener, TopicDirectory
from gateway.core.ownership import NOBODY
from gateway.log import logger
from ledger.errors import LedgerError
from ledger.ports.clock import Clock
from ledger.ports.metadata import MetadataStore
from ledger.tasks import start_once

# Seconds between looks at the brokers, and at some of the owners, that no watch asked for.
LOOK_AGAIN_S = 5.0
PAUSE_S_MAX = 0.25
# The pause as a multiple of a round's duration, so that rounds take a fifth of the time.
_PAUSE_SHARE = 4
_RETRY_S_FIRST = 0.05
_RETRY_S_MAX = 1.0
_REGISTER_AGAIN_S = 0.2


class OwnershipRounds:
    """The task that keeps this broker's ownership and the metadata store in agreement."""

    def __init__(
        self,
        metadata: MetadataStore,
        catalog: TopicDirectory,
        clock: Clock,
        membership: ClusterMembership,
        state: OwnershipState,
        *,
        session_ms: int,
    ) -> None:
        # Called with a reason when this process must end, because another one has its node id.
        self.on_replaced: list[Callable[[str], None]] = []
        # The task that runs the rounds, from `start` on. It ends in `stop`, or by a bug.
        self.task: asyncio.Task[None] | None = None
        self._catalog = catalog
        self._clock = clock
        self._membership = membership
        self._state = state
        self._session_s = session_ms / 1000
        self._table = OwnersTable(
            metadata,
            self.request,
            state.on_owners,
            state.topic_name,
            keeps_epochs=state.keeps_epochs,
        )
        # Held while the changes of one topic are carried out: a step for each partition.
        self._applying = asyncio.Lock()
        # Is notified of gained and lost partitions, from `start` to `stop`.
        self._listener: StreamListener | None = None
        # True from a change of the catalog until a round has followed the topics.
        self._topics_changed = True
        # Topics that may still have a node although the catalog does not have them. A round removes
        # the node once the metadata store confirms that the topic is deleted.
        self._vanished: set[UUID] = set()
        # Set when a round is requested. Cleared when the round begins.
        self._requested = asyncio.Event()
        # Set when the next round must begin without a pause. Cleared when the round begins.
        self._urgent = asyncio.Event()
        # Set when the first round has ended, and never cleared.
        self._first_over = asyncio.Event()
        # The monotonic time of the last look that no watch asked for.
        self._looked_s = clock.monotonic_s()
        # The monotonic time since which another process holds this node id. None if no other
        # process holds it; infinity once the conflict was reported.
        self._other_since_s: float | None = None

    async def start(self, listener: StreamListener) -> None:
        """Start the rounds, and wait until the first one has ended. Register the broker before."""
        loop = asyncio.get_running_loop()
        self._listener = listener
        self._catalog.on_changed.append(self._on_topics)
        self.wake()
        self.task = start_once("the rounds of ownership", self._run(), self._on_died)
        over = loop.create_task(self._first_over.wait())
        try:
            await asyncio.wait([over, self.task], return_when=asyncio.FIRST_COMPLETED)
        finally:
            over.cancel()

    async def stop(self) -> None:
        """End the rounds and resume waiting tasks. The listener is not notified any more."""
        self._listener = None
        if self._on_topics in self._catalog.on_changed:
            self._catalog.on_changed.remove(self._on_topics)
        if self.task is not None:
            self.task.cancel()
            await asyncio.gather(self.task, return_exceptions=True)
        self._table.close()
        self.carry_out(self._state.close())

    def request(self) -> None:
        """Request a round, which begins after the usual pause."""
        self._requested.set()

    def request_now(self) -> None:
        """Begin a round as soon as the present one has ended."""
        self._requested.set()
        self._urgent.set()

    def wake(self) -> None:
        """Begin a round now, and examine all topics in it."""
        self._state.examine_all()
        self.request_now()

    def carry_out(self, effects: Iterable[Effect]) -> None:
        for effect in effects:
            if isinstance(effect, Resume):
                waiter = cast("asyncio.Future[None]", effect.waiter)
                if not waiter.done():
                    waiter.set_result(None)
            elif self._listener is None:
                continue
            elif isinstance(effect, Gained):
                self._listener.gained(effect.key)
            else:
                self._listener.lost(effect.key)

    def _on_topics(self) -> None:
        """Request a round after the usual pause, because many topics may be created in a row."""
        self._topics_changed = True
        self._state.on_catalog_changed()
        self.request()

    async def _run(self) -> None:
        retry_s = _RETRY_S_FIRST
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(LOOK_AGAIN_S):
                    await self._requested.wait()
            self._look_again()
            self._requested.clear()
            self._urgent.clear()
            began_s = self._clock.monotonic_s()
            try:
                await self._round()
            except LedgerError as error:
                logger().warning("cannot update ownership", reason=str(error))
                self._state.examine_all()
                self.request()
                await asyncio.sleep(retry_s)
                retry_s = min(2 * retry_s, _RETRY_S_MAX)
                continue
            retry_s = _RETRY_S_FIRST
            self._first_over.set()
            pause_s = min(PAUSE_S_MAX, _PAUSE_SHARE * (self._clock.monotonic_s() - began_s))
            with suppress(TimeoutError):
                async with asyncio.timeout(pause_s):
                    await self._urgent.wait()

    def _look_again(self) -> None:
        """Distrust the watches once in a while, also when rounds follow each other."""
        now_s = self._clock.monotonic_s()
        if now_s - self._looked_s >= LOOK_AGAIN_S:
            self._looked_s = now_s
            self._membership.stale = True
            self._table.look_again()

    async def _round(self) -> None:
        membership, state = self._membership, self._state
        if not membership.registered and not membership.leaving:
            await self._register_again()
        if membership.stale:
            await membership.refresh()
        if self._topics_changed:
            await self._follow_topics()
        await self._table.refresh()
        topics = await self._take_due()
        for topic in topics:
            self.carry_out(state.apply(topic))
        if membership.registered:
            await each([topic for topic in topics if state.wants_change(topic)], self._change)
        await self._remove_vanished()

    async def _register_again(self) -> None:
        """Register this broker, or retry soon if another process has its node id."""
        other = await self._membership.try_register()
        if other is None:
            self._other_since_s = None
            return
        now_s = self._clock.monotonic_s()
        if self._other_since_s is None:
            self._other_since_s = now_s
        if now_s - self._other_since_s > SESSIONS_WAITED * self._session_s:
            self._other_since_s = float("inf")  # infinity prevents a second report
            self._report_replaced(other)
        asyncio.get_running_loop().call_later(_REGISTER_AGAIN_S, self.request)

    def _on_died(self, error: BaseException) -> None:
        """End the process after a bug: without rounds it would lead no partition."""
        self._report_replaced(f"ownership of streams is not followed: {error!r}")

    def _report_replaced(self, reason: str) -> None:
        logger().error("shutting down", reason=reason)
        for replaced in list(self.on_replaced):
            replaced(reason)

    async def _follow_topics(self) -> None:
        self._topics_changed = False
        changes = self._state.on_topics()
        for topic_id in changes.added:
            self._table.follow(topic_id)
        for topic_id in changes.removed:
            self._table.unfollow(topic_id)
        self._vanished.difference_update(changes.added)
        self._vanished.update(changes.removed)
        self.carry_out(changes.effects)
        if self._first_over.is_set():
            return
        try:  # find topics that were deleted while this broker was down
            stored = await self._table.topic_ids()
        except BaseException:
            self._topics_changed = True
            raise
        self._vanished.update(found for found in stored if self._state.get(found) is None)

    async def _remove_vanished(self) -> None:
        """Remove the nodes of deleted topics."""
        for topic_id in list(self._vanished):
            if self._catalog.by_id(topic_id) is None and not await self._catalog.is_stored(
                topic_id
            ):
                await self._table.remove(topic_id)
            self._vanished.discard(topic_id)

    async def _take_due(self) -> Sequence[TopicOwnership]:
        """Look up unlisted owners, then return the topics to examine."""
        state = self._state
        due = state.take_due()
        try:
            found_dead, unsure = await self._find_dead(due)
        except BaseException:
            state.examine_all()
            raise
        if found_dead:
            state.examine_all()
            due = state.take_due()
        if unsure:
            state.examine_all()  # an unlisted owner may end before any list contains it
        return due

    async def _find_dead(self, topics: Sequence[TopicOwnership]) -> tuple[bool, bool]:
        """Look up each owner that is neither listed nor known to be dead.

        Returns two flags: whether an owner was found dead, and whether an unlisted owner may live.
        """
        membership = self._membership
        named = {holder for topic in topics for holder in topic.owners.holders}
        found_dead = unsure = False
        for holder in sorted(named - {NOBODY}):
            if membership.member(holder.token) is None and not membership.is_known_dead(holder):
                if await membership.is_dead(holder):
                    found_dead = True
                else:
                    unsure = True
        return found_dead, unsure

    async def _change(self, topic: TopicOwnership) -> None:
        state = self._state
        done = await self._table.change(topic.topic_id, lambda: state.next_owners(topic))
        if not done and topic.readable:
            self.request()
        async with self._applying:
            if state.get(topic.topic_id) is topic:
                self.carry_out(state.apply(topic))
            await asyncio.sleep(0)  # requests for the first partitions go on between two topics
