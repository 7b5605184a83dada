"""Which streams this gateway owns, and who owns the others.

    news (members, topics, owners, epochs) ─▶ one round at a time:
    registered? ─▶ read what changed ─▶ gained, lost ─▶ claim, publish, give away: one CAS a topic

What is written decides: a stream is ours while its topic's node names this incarnation. So a
lost reply, a refusal and a gift all end in the same way, by reading the node.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from typing import TypeVar
from uuid import UUID

from gateway.cluster.balancer import Balancer
from gateway.cluster.membership import SESSIONS_WAITED, Membership
from gateway.cluster.owners_table import OwnersTable, TopicOwners, each
from gateway.cluster.port import HandOver, Leader, StreamKey, StreamListener, TopicDirectory
from gateway.core.ownership import NOBODY, Incarnation, Owners
from gateway.core.ring import Assignment, Ring
from gateway.log import logger
from ledger.errors import LedgerError
from ledger.ports.clock import Clock
from ledger.ports.metadata import MetadataStore

LOOK_AGAIN_S = 5.0  # watches wake earlier; a lost one costs no more than this
DRAIN_S_MAX = 10.0  # then a stream is given away as it is, and the next owner recovers it
PAUSE_S_MAX = 0.25
_PAUSE_SHARE = 4  # rounds that are about epochs only take a fifth of the time
_RETRY_S_FIRST = 0.05
_RETRY_S_MAX = 1.0
_REGISTER_AGAIN_S = 0.2

_NONE: frozenset[int] = frozenset()

V = TypeVar("V")


class PartitionOwnership:
    """All streams of the cluster, as this gateway sees them."""

    def __init__(
        self,
        metadata: MetadataStore,
        catalog: TopicDirectory,
        clock: Clock,
        membership: Membership,
        *,
        session_ms: int,
        balance_settle_s: float,
        balance_at_once: int,
    ) -> None:
        self.on_replaced: list[Callable[[str], None]] = []
        self._catalog = catalog
        self._clock = clock
        self._membership = membership
        self._session_s = session_ms / 1000
        self._table = OwnersTable(metadata, self._on_owners)
        self.balancer = Balancer(
            clock,
            self._surplus,
            self.move,
            settle_s=balance_settle_s,
            at_once=balance_at_once,
        )
        membership.on_stale = self._on_stale_members
        membership.on_changed(self._on_members)  # before anybody else is told
        membership.on_expired(self._on_expired)
        self._listener: StreamListener | None = None
        self._held: dict[UUID, set[int]] = {}
        self._opened: dict[UUID, dict[int, int]] = {}  # epochs of what is held
        self._unpublished: dict[UUID, dict[int, int]] = {}
        self._published: dict[StreamKey, asyncio.Future[None]] = {}  # who waits for that
        self._draining: set[StreamKey] = set()
        self._moving: dict[UUID, dict[int, asyncio.Future[None]]] = {}  # drained, to be given away
        self._vanished: set[UUID] = set()  # not in the catalog, and perhaps with a node
        self._waiters: dict[UUID, list[asyncio.Future[None]]] = {}
        self._ring = Ring(())
        self._nodes: dict[int, Incarnation] = {}  # of the ring
        self._known: set[str] | None = None  # tokens of the last list of members
        self._assignment: Assignment | None = None  # None: to be made
        self._assigned_before: Assignment | None = None
        self._counts: dict[UUID, int] = {}  # partitions of each topic that is followed
        self._grown: set[UUID] = set()
        self._free: set[UUID] = set()  # others should have some of it, and had not when seen last
        self._all = True  # every topic is to be looked at
        self._topics_changed = True
        self._wanted = asyncio.Event()  # a round
        self._urgent = asyncio.Event()  # without a pause
        self._round_over = asyncio.Event()
        self._other_since_s: float | None = None
        self._task: asyncio.Task[None] | None = None

    # Life.

    async def start(self, listener: StreamListener) -> None:
        """Streams are claimed from now on; a first round is over. The gateway is registered."""
        self._listener = listener
        self._catalog.on_changed.append(self._on_topics)
        self._wake()
        self._task = asyncio.get_running_loop().create_task(self._run())
        self._task.add_done_callback(self._on_ended)
        over = asyncio.get_running_loop().create_task(self._round_over.wait())
        try:
            await asyncio.wait([over, self._task], return_when=asyncio.FIRST_COMPLETED)
        finally:
            over.cancel()

    async def stop(self) -> None:
        """Nothing is claimed any more and nobody is told."""
        self._listener = None
        if self._on_topics in self._catalog.on_changed:
            self._catalog.on_changed.remove(self._on_topics)
        self.balancer.cancel()
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        self._table.close()
        for topic_id in list(self._held):
            self._drop_all(topic_id)
        self._tell_waiters(list(self._waiters))

    # Asking.

    @property
    def ring(self) -> Ring:
        """Of gateways that live and stay."""
        return self._ring

    def owns(self, key: StreamKey) -> bool:
        return key.partition in self._held.get(key.topic_id, _NONE) and (
            key.partition not in self._moving.get(key.topic_id, ())
        )

    def leader(self, key: StreamKey) -> Leader:
        if key.partition in self._held.get(key.topic_id, _NONE):
            epoch = self._opened.get(key.topic_id, {}).get(key.partition, -1)
            return Leader(self._membership.node_id, epoch)
        topic = self._table.get(key.topic_id)
        if topic is None:
            return Leader()
        owner = topic.owners.owner(key.partition)
        member = self._membership.member(owner.token)
        if member is None or member.token == self._membership.self_member.token:
            return Leader()  # ours, but not taken yet
        return Leader(member.node_id, topic.owners.epoch(key.partition))

    def replicas(self, key: StreamKey, count: int) -> list[int]:
        leader = self.leader(key).node_id
        order = self._assigned().successors(key.topic_id, key.partition)
        if leader < 0:
            return list(order[:count])
        return [leader, *(node for node in order if node != leader)][:count]

    # What the owner says.

    def note_opened(self, key: StreamKey, epoch: int) -> None:
        """The epoch will be published. Nothing happens if the stream is not ours (any more)."""
        topic_id, partition = key
        if partition not in self._held.get(topic_id, _NONE):
            return
        opened = self._opened.setdefault(topic_id, {})
        if epoch <= opened.get(partition, -1):
            return  # epochs rise: a late word of an earlier opening
        opened[partition] = epoch
        self._unpublished.setdefault(topic_id, {})[partition] = epoch
        self._tell_waiters([topic_id])
        self._wanted.set()

    async def opened(self, key: StreamKey, epoch: int) -> None:
        """All gateways can see the epoch, or the stream is not ours any more."""
        self.note_opened(key, epoch)
        if key.partition in self._unpublished.get(key.topic_id, ()):
            loop = asyncio.get_running_loop()
            await asyncio.shield(self._published.setdefault(key, loop.create_future()))

    async def move(self, key: StreamKey, hand_over: HandOver) -> None:
        """The stream is drained and its next candidate's. Returns too when it was lost, or when
        who owns it cannot be read, and so not be changed."""
        if not self.owns(key) or key in self._draining or not self._givable(key.topic_id):
            return
        self._draining.add(key)
        try:
            async with asyncio.timeout(DRAIN_S_MAX):
                await hand_over(key)
        except (LedgerError, TimeoutError) as error:
            logger().warning("a stream is given away as it is", stream=str(key), reason=str(error))
        finally:
            self._draining.discard(key)
        if self.owns(key):
            moved: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._moving.setdefault(key.topic_id, {})[key.partition] = moved
            self._wanted.set()
            self._urgent.set()
            await asyncio.shield(moved)

    async def hand_over_all(self, hand_over: HandOver) -> None:
        """Every stream is drained and its next candidate's; some at once."""
        await self.balancer.stop()
        self._wake(members=True)
        while keys := [
            StreamKey(topic_id, partition)
            for topic_id, held in self._held.items()
            if self._givable(topic_id)
            for partition in sorted(held)
        ]:
            await each(keys, lambda key: self.move(key, hand_over))
            await self._moved()

    def _givable(self, topic_id: UUID) -> bool:
        topic = self._table.get(topic_id)
        return topic is None or topic.readable

    async def _moved(self) -> None:
        """What was on its way when `hand_over_all` came has gone too."""
        under_way = [moved for of_topic in self._moving.values() for moved in of_topic.values()]
        if under_way:
            await asyncio.wait(under_way)
        await asyncio.sleep(0)

    async def wait_led(self, topic_id: UUID, timeout_s: float) -> bool:
        """Every partition of the topic has an owner that has opened it; False: not in time."""
        loop = asyncio.get_running_loop()
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                while not self._is_led(topic_id):
                    told: asyncio.Future[None] = loop.create_future()
                    self._waiters.setdefault(topic_id, []).append(told)
                    await told
        return self._is_led(topic_id)

    def _is_led(self, topic_id: UUID) -> bool:
        topic = self._catalog.by_id(topic_id)
        return topic is not None and all(
            self.leader(StreamKey(topic_id, partition)).epoch >= 0
            for partition in range(topic.partitions)
        )

    # News.

    def _wake(self, *, members: bool = False) -> None:
        self._all = True
        if members:
            self._on_members()
        self._wanted.set()
        self._urgent.set()

    def _on_stale_members(self) -> None:
        self._wanted.set()
        self._urgent.set()

    def _on_members(self) -> None:
        """Who may be given streams has changed."""
        members = self._membership.members()
        gone = self._membership.leaving
        own = self._membership.node_id
        stay = [m for m in members if not m.leaving and not (gone and m.node_id == own)]
        nodes = {member.node_id: Incarnation(member.node_id, member.token) for member in stay}
        if tuple(sorted(nodes)) != self._ring.nodes:
            self._ring = Ring(nodes)
            self._assignment = None
        self._nodes = nodes
        tokens = {member.token for member in members}
        if self._known is not None:
            joined = [m.node_id for m in stay if m.token not in self._known and m.node_id != own]
            if joined:
                self.balancer.on_joined(joined)
        self._known = tokens
        self._wake()

    def _on_topics(self) -> None:
        """Many may come one after the other, so there is a pause between rounds for them."""
        self._topics_changed = True
        self._assignment = None
        self._wanted.set()

    def _on_owners(self) -> None:
        self._wanted.set()

    def _on_expired(self) -> None:
        """The session has ended, and with it all that was owned."""
        for topic_id in list(self._held):
            self._drop_all(topic_id)
        self._wake()

    # The rounds.

    async def _run(self) -> None:
        retry_s = _RETRY_S_FIRST
        while True:
            try:
                async with asyncio.timeout(LOOK_AGAIN_S):
                    await self._wanted.wait()
            except TimeoutError:
                self._membership.stale = True
            self._wanted.clear()
            self._urgent.clear()
            began_s = self._clock.monotonic_s()
            try:
                await self._round()
            except LedgerError as error:
                logger().warning("ownership of streams is not up to date", reason=str(error))
                self._all = True
                self._wanted.set()
                await asyncio.sleep(retry_s)
                retry_s = min(2 * retry_s, _RETRY_S_MAX)
                continue
            retry_s = _RETRY_S_FIRST
            self._round_over.set()
            pause_s = min(PAUSE_S_MAX, _PAUSE_SHARE * (self._clock.monotonic_s() - began_s))
            with suppress(TimeoutError):
                async with asyncio.timeout(pause_s):
                    await self._urgent.wait()

    async def _round(self) -> None:
        """What was news is known, and what this gateway has to do about it is done."""
        membership = self._membership
        if not membership.registered and not membership.leaving:
            await self._register_again()
        if membership.stale:
            await membership.refresh()
        if self._topics_changed:
            await self._follow_topics()
        await self._table.refresh()
        topics = await self._to_look_at()
        for topic in topics:
            self._apply(topic)
        if membership.registered:
            await each([topic for topic in topics if self._wants(topic)], self._change)
        await self._remove_vanished()

    async def _register_again(self) -> None:
        """Registered, if nobody else lives under this node id; else tried again soon."""
        other = await self._membership.try_register()
        if other is None:
            self._other_since_s = None
            return
        now_s = self._clock.monotonic_s()
        if self._other_since_s is None:
            self._other_since_s = now_s
        if now_s - self._other_since_s > SESSIONS_WAITED * self._session_s:
            self._other_since_s = float("inf")  # told once
            self._tell_replaced(other)
        asyncio.get_running_loop().call_later(_REGISTER_AGAIN_S, self._wanted.set)

    def _on_ended(self, task: asyncio.Task[None]) -> None:
        """A gateway that does not follow ownership any more is of no use."""
        if not task.cancelled() and task.exception() is not None:
            self._tell_replaced(f"ownership of streams is not followed: {task.exception()!r}")

    def _tell_replaced(self, reason: str) -> None:
        logger().error("this gateway is to end", reason=reason)
        for replaced in list(self.on_replaced):
            replaced(reason)

    async def _follow_topics(self) -> None:
        """The table has the topics that there are."""
        self._topics_changed = False
        before, known = self._counts, {t.topic_id: t.partitions for t in self._catalog.all()}
        self._counts = known
        for topic_id, partitions in known.items():
            if before.get(topic_id) != partitions:
                self._table.follow(topic_id)
                self._grown.add(topic_id)
        self._vanished -= known.keys()
        for topic_id in before.keys() - known.keys():
            self._table.unfollow(topic_id)
            self._free.discard(topic_id)
            self._drop_all(topic_id)
            self._tell_waiters([topic_id])
            self._vanished.add(topic_id)
        if not self._round_over.is_set():  # what went while this gateway was not there
            try:
                self._vanished.update(set(await self._table.names()) - known.keys())
            except BaseException:
                self._topics_changed = True
                raise

    async def _remove_vanished(self) -> None:
        """No node is left of a topic that was deleted."""
        for topic_id in list(self._vanished):
            if self._catalog.by_id(topic_id) is None and not await self._catalog.is_stored(
                topic_id
            ):
                await self._table.remove(topic_id)
            self._vanished.discard(topic_id)

    async def _to_look_at(self) -> list[TopicOwners]:
        """Topics of which something changed. Whether their owners live is known."""
        look_at_all, self._all = self._all, False
        changed = self._table.take_changed()
        try:
            if await self._find_dead(self._table.all() if look_at_all else changed):
                look_at_all = True
        except BaseException:
            self._all = True
            raise
        if look_at_all:
            self._grown.clear()
            return self._table.all()
        topics = {topic.topic_id: topic for topic in changed}
        for topic_id in (*self._unpublished, *self._moving, *self._grown, *self._free):
            topic = self._table.get(topic_id)
            if topic is not None:
                topics[topic_id] = topic
        self._grown.clear()
        return list(topics.values())

    async def _find_dead(self, topics: Sequence[TopicOwners]) -> bool:
        """Of each owner it is known whether it lives. True: somebody was found dead."""
        membership = self._membership
        named = {holder for topic in topics for holder in topic.owners.holders}
        found = False
        for holder in sorted(named - {NOBODY}):
            if membership.member(holder.token) is None and not membership.is_known_dead(holder):
                dead = await membership.is_dead(holder)
                found |= dead
                self._all |= not dead  # it may go before the list ever has it
        return found

    # One topic.

    def _apply(self, topic: TopicOwners) -> None:
        """What the node says is so here: gained, lost, published, given away."""
        me = self._membership.incarnation
        topic_id, owners = topic.topic_id, topic.owners
        mine = set(owners.owned_by(me)) if me is not None else set[int]()
        held = self._held.get(topic_id, _NONE)
        for partition in sorted(held - mine):
            self._drop(StreamKey(topic_id, partition))
        for partition in sorted(mine - held):
            self._gain(StreamKey(topic_id, partition))
        unpublished = self._unpublished.get(topic_id, {})
        for partition in [p for p, epoch in unpublished.items() if owners.epoch(p) == epoch]:
            self._on_published(StreamKey(topic_id, partition))
        self._keep_own(topic_id)
        self._tell_waiters([topic_id])

    def _gain(self, key: StreamKey) -> None:
        self._held.setdefault(key.topic_id, set()).add(key.partition)
        if self._membership.leaving:  # given to us before the giver knew: it goes on at once
            moved = asyncio.get_running_loop().create_future()
            self._moving.setdefault(key.topic_id, {})[key.partition] = moved
        elif self._listener is not None:
            self._listener.gained(key)

    def _drop(self, key: StreamKey) -> None:
        held = self._held[key.topic_id]
        held.discard(key.partition)
        if not held:
            del self._held[key.topic_id]
        opened = self._opened.get(key.topic_id)
        if opened is not None:
            opened.pop(key.partition, None)
            if not opened:
                del self._opened[key.topic_id]
        self._on_published(key)
        self._on_moved(key)
        if self._listener is not None:
            self._listener.lost(key)

    def _drop_all(self, topic_id: UUID) -> None:
        for partition in sorted(self._held.get(topic_id, _NONE)):
            self._drop(StreamKey(topic_id, partition))

    def _on_published(self, key: StreamKey) -> None:
        _take(self._unpublished, key)
        waiting = self._published.pop(key, None)
        if waiting is not None and not waiting.done():
            waiting.set_result(None)

    def _on_moved(self, key: StreamKey) -> None:
        moved = _take(self._moving, key)
        if moved is not None and not moved.done():
            moved.set_result(None)

    def _keep_own(self, topic_id: UUID) -> None:
        """What was drained to be given away, and is ours again by now, is opened again. So is
        what cannot be given, unless this gateway ends."""
        me, leaving = self._membership.node_id, self._membership.leaving
        givable = self._givable(topic_id)
        for partition in list(self._moving.get(topic_id, ())):
            if givable and (leaving or self._assigned().candidate(topic_id, partition) != me):
                continue
            key = StreamKey(topic_id, partition)
            self._on_moved(key)
            if not leaving:
                _take(self._opened, key)
                if self._listener is not None:
                    self._listener.gained(key)

    def _wants(self, topic: TopicOwners) -> bool:
        """Something may be to be written."""
        if topic.topic_id in self._unpublished or topic.topic_id in self._moving:
            return True
        return bool(self._claimable(topic))

    async def _change(self, topic: TopicOwners) -> None:
        if not await self._table.change(topic, self._next) and topic.readable:
            self._wanted.set()
        if self._table.get(topic.topic_id) is topic:
            self._apply(topic)

    def _next(self, topic: TopicOwners) -> Owners | None:
        """What the node should say; None: what it says."""
        me = self._membership.incarnation
        if me is None or self._table.get(topic.topic_id) is not topic:
            return None
        owners = topic.owners
        new = dict.fromkeys(self._claimable(topic), me)
        assigned = self._assigned()
        for partition in self._moving.get(topic.topic_id, ()):
            if owners.owner(partition) == me:
                node = assigned.candidate(topic.topic_id, partition)
                new[partition] = NOBODY if node is None else self._nodes[node]
        epochs = {
            partition: epoch
            for partition, epoch in self._unpublished.get(topic.topic_id, {}).items()
            if partition not in new
            and owners.owner(partition) == me
            and owners.epoch(partition) != epoch
        }
        return owners.changed(new, epochs) if new or epochs else None

    def _claimable(self, topic: TopicOwners) -> list[int]:
        """Partitions that nobody who lives has, and that this gateway should have."""
        known = self._catalog.by_id(topic.topic_id)
        if known is None or self._membership.leaving:
            return []
        free = topic.owners.free(known.partitions, self._membership.is_known_dead)
        if not free:
            self._free.discard(topic.topic_id)
            return []
        self._free.add(topic.topic_id)  # candidates are others with each topic that is heard of
        me = self._membership.node_id
        candidates = self._assigned().candidates(topic.topic_id)
        return [p for p in free if p < len(candidates) and candidates[p] == me]

    def _assigned(self) -> Assignment:
        if self._assignment is None:
            topics = ((topic.topic_id, topic.partitions) for topic in self._catalog.all())
            self._assignment = Assignment(self._ring, topics, self._assigned_before)
            self._assigned_before = self._assignment
        return self._assignment

    def _surplus(self, nodes: Collection[int]) -> list[StreamKey]:
        """Streams of ours that one of these should have."""
        found: list[StreamKey] = []
        others = set(nodes) - {self._membership.node_id}
        for topic_id, held in self._held.items():
            candidates = self._assigned().candidates(topic_id)
            given = (p for p in sorted(held) if p < len(candidates) and candidates[p] in others)
            found.extend(StreamKey(topic_id, partition) for partition in given)
        return [key for key in found if self.owns(key) and self._givable(key.topic_id)]

    def _tell_waiters(self, topics: Sequence[UUID]) -> None:
        for topic_id in topics:
            for told in self._waiters.pop(topic_id, ()):
                if not told.done():
                    told.set_result(None)


def _take(of: dict[UUID, dict[int, V]], key: StreamKey) -> V | None:
    """What there is for the stream, which has none any more."""
    inner = of.get(key.topic_id)
    if inner is None:
        return None
    found = inner.pop(key.partition, None)
    if not inner:
        del of[key.topic_id]
    return found
