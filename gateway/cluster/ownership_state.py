"""Decide which partitions this broker owns, and what it writes about them. Pure.

    on_owners, on_topics, on_brokers, note_opened, hand_over ─▶ topics that are due
    take_due ─▶ apply ─▶ effects: Gained, Lost, Resume
            └─▶ next_owners ─▶ what one compare-and-set should write

A broker owns a partition while the owners node of the topic names the broker's incarnation.
Therefore a lost reply, a refused write and a hand-over all end the same way: the node is read, and
`apply` compares its content with the partitions that this broker holds.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import NamedTuple, Protocol
from uuid import UUID

from gateway.cluster.port import ClusterMember, Leader, StreamKey, TopicSize
from gateway.core.ownership import NOBODY, Incarnation, Owners
from gateway.core.ring import Assignment, Ring


class Gained(NamedTuple):
    """Notify the listener that this broker owns the partition and must open it."""

    key: StreamKey


class Lost(NamedTuple):
    """Notify the listener that this broker owns the partition no longer."""

    key: StreamKey


class Resume(NamedTuple):
    """Resume the task that waits with this object."""

    waiter: object


Effect = Gained | Lost | Resume


class LiveBrokers(Protocol):
    """The live brokers, as `ClusterMembership` holds them. Every method answers from memory."""

    @property
    def node_id(self) -> int: ...

    @property
    def token(self) -> str:
        """The token of this broker's present incarnation, registered or not."""
        ...

    @property
    def incarnation(self) -> Incarnation | None:
        """The present incarnation of this broker, or None while it is not registered."""
        ...

    @property
    def leaving(self) -> bool: ...

    def members(self) -> Sequence[ClusterMember]: ...

    def member(self, token: str) -> ClusterMember | None: ...

    def is_known_dead(self, who: Incarnation) -> bool: ...


class KnownTopics(Protocol):
    """The topics, as the catalog holds them. Every method answers from memory."""

    def by_id(self, topic_id: UUID) -> TopicSize | None: ...

    def all(self) -> Sequence[TopicSize]: ...


class TopicOwnership:
    """One topic: the owners of its partitions, and the state of the partitions held here."""

    __slots__ = (
        "changed",
        "exposed",
        "has_free",
        "held",
        "moving",
        "owners",
        "partitions",
        "read",
        "readable",
        "topic_id",
        "unpublished",
    )

    def __init__(self, topic_id: UUID) -> None:
        self.topic_id = topic_id
        # How many partitions the catalog listed in the last round that followed topics.
        self.partitions = 0
        # The content of the owners node as it was last read or written. Empty while the node does
        # not exist; kept while the node is corrupt.
        self.owners = Owners()
        # True once `owners` are what the store had, which may be no node at all. True at once for a
        # new topic, which has no node yet.
        self.read = False
        # False while the node is corrupt. The node is not written then, and no partition is handed
        # over.
        self.readable = True
        # The partitions that this broker owns, with their leader epochs; -1 until a partition is
        # open. Set by `apply` from `owners`. Removed when another owner is read or the session
        # ends.
        self.held: dict[int, int] = {}
        # Held partitions whose epoch is not in the node yet, with the tasks that wait for it. An
        # entry lasts from `note_opened` until the node has the epoch or the partition is lost.
        self.unpublished: dict[int, list[object]] = {}
        # Epochs that clients may see although they are not in the node, because it is corrupt and
        # cannot be written. At most one entry for each partition.
        self.exposed: dict[int, int] = {}
        # Held partitions that are drained and go to their candidate, with the tasks that wait for
        # the move. An entry lasts from `hand_over` until another owner is read or this broker keeps
        # the partition.
        self.moving: dict[int, list[object]] = {}
        # True if the owners or the number of partitions changed after the last `take_due`.
        self.changed = True
        # True if a partition had no live owner when it was last examined. Candidates change with
        # every new topic, so this topic is examined in each round.
        self.has_free = False

    def expose_unpublished(self) -> None:
        """Show the epochs that cannot be published while the node is corrupt."""
        if not self.readable:
            self.exposed.update({each: self.held[each] for each in self.unpublished})


class TopicChanges(NamedTuple):
    """The changes of the catalog since the previous round that followed topics."""

    added: list[UUID]
    removed: list[UUID]
    effects: list[Effect]


class OwnershipState:
    """The ownership of all partitions as last read, and this broker's decisions about it."""

    def __init__(
        self, brokers: LiveBrokers, topics: KnownTopics, *, keeps_epochs: bool = True
    ) -> None:
        """`keeps_epochs`: the nodes keep last epochs, and the first epoch of a new stream is 0."""
        self.keeps_epochs = keeps_epochs
        # The live brokers that are not leaving. Replaced in `on_brokers` when the set of node ids
        # changes.
        self.ring = Ring(())
        # Partitions that a task is draining, from `start_drain` to `end_drain`. A partition may be
        # lost during its drain.
        self.draining: set[StreamKey] = set()
        self._brokers = brokers
        self._catalog = topics
        # One record per topic. Created by the round that finds the topic in the catalog, and
        # removed by the round that no longer finds it.
        self._topics: dict[UUID, TopicOwnership] = {}
        # The records with work for the next round: `changed`, `unpublished`, `moving` or
        # `has_free`. `_index` updates this table after each change of a record.
        self._due: dict[UUID, TopicOwnership] = {}
        # True if the next round must examine all topics: the brokers changed or a round failed.
        self._all_due = True
        # False until the first round follows topics. Topics that are not followed later are new.
        self._followed = False
        # Tasks that wait until the leaders of a topic change. They are not in the record, because
        # the creator of a topic waits before a round has followed the topic.
        self._leader_waiters: dict[UUID, list[object]] = {}
        # The incarnations of the ring's brokers, by node id.
        self._nodes: dict[int, Incarnation] = {}
        # The tokens of the brokers that `on_brokers` read last. None before its first call.
        self._tokens: set[str] | None = None
        # The candidate of each partition. Set to None when the ring or the topics change, and
        # computed again on demand from `_assigned_before`.
        self._assignment: Assignment | None = None
        self._assigned_before: Assignment | None = None

    # Queries. All are answered from memory.

    def get(self, topic_id: UUID) -> TopicOwnership | None:
        return self._topics.get(topic_id)

    def topic_name(self, topic_id: UUID) -> str:
        """Return the name of the topic for log lines, or its id if it is unknown."""
        topic = self._catalog.by_id(topic_id)
        return str(topic_id) if topic is None else topic.name

    def owns(self, key: StreamKey) -> bool:
        """Return whether this broker owns the partition and has not drained it to give it away."""
        topic = self._topics.get(key.topic_id)
        return (
            topic is not None and key.partition in topic.held and key.partition not in topic.moving
        )

    def leader(self, key: StreamKey) -> Leader:
        """Return the live owner and its epoch, as last read by this broker.

        The epoch of a partition that this broker holds is -1 until it is published: if this broker
        died before, the others would show a lower one. While the node is corrupt, no epoch waits.
        """
        topic = self._topics.get(key.topic_id)
        if topic is None:
            return self._leader_by_ring(key)
        epoch = topic.held.get(key.partition)
        if epoch is not None:
            if key.partition in topic.unpublished and epoch != topic.exposed.get(key.partition):
                epoch = -1
            return Leader(self._brokers.node_id, epoch)
        owner = topic.owners.owner(key.partition)
        member = self._brokers.member(owner.token)
        if member is None or member.token == self._brokers.token:
            return Leader()  # the node names this broker, but `apply` has not seen it yet
        return Leader(member.node_id, topic.owners.epoch(key.partition))

    def _leader_by_ring(self, key: StreamKey) -> Leader:
        """Return the leader of a partition that has no stream: its candidate."""
        known = self._catalog.by_id(key.topic_id)
        if known is None or known.has_streams:
            return Leader()
        node = self.assignment().candidate(key.topic_id, key.partition)
        return Leader() if node is None else Leader(node, 0)

    def leader_epoch(self, key: StreamKey) -> int:
        """Return the last epoch that was published: of the leader, or of an owner before.

        Returns -1 before the first round. Also if the node does not keep epochs, and this broker
        did not see the last one.
        """
        first = 0 if self.keeps_epochs else -1
        topic = self._topics.get(key.topic_id)
        if topic is None:
            led = self._leader_by_ring(key).epoch
            return max(led, first) if self._followed else led
        published = topic.owners.last_epoch(key.partition, first) if topic.read else -1
        return max(published, topic.exposed.get(key.partition, -1))

    def replicas(self, key: StreamKey, count: int) -> list[int]:
        """Return up to `count` node ids: the leader first, then the next brokers of the ring."""
        leader = self.leader(key).node_id
        order = self.assignment().successors(key.topic_id, key.partition)
        if leader < 0:
            return list(order[:count])
        return [leader, *(node for node in order if node != leader)][:count]

    def is_led(self, topic_id: UUID) -> bool:
        """Return whether every partition has a live owner that has opened it."""
        topic = self._catalog.by_id(topic_id)
        return topic is not None and all(
            self._is_open(StreamKey(topic_id, partition)) for partition in range(topic.partitions)
        )

    def _is_open(self, key: StreamKey) -> bool:
        topic = self._topics.get(key.topic_id)
        if topic is not None and topic.held.get(key.partition, -1) >= 0:
            return True  # published or not
        return self.leader(key).epoch >= 0

    def held_keys(self) -> list[StreamKey]:
        """Return the partitions that this broker holds and can give away."""
        return [
            StreamKey(topic.topic_id, partition)
            for topic in self._topics.values()
            if topic.readable
            for partition in sorted(topic.held)
        ]

    def moving_keys(self) -> list[StreamKey]:
        return [
            StreamKey(topic.topic_id, partition)
            for topic in self._topics.values()
            for partition in topic.moving
        ]

    def surplus(self, nodes: Collection[int]) -> list[StreamKey]:
        """Return the owned partitions whose candidate is one of `nodes` and not this broker."""
        others = set(nodes) - {self._brokers.node_id}
        found: list[StreamKey] = []
        for topic in self._topics.values():
            if topic.held and topic.readable:
                chosen = self.assignment().candidates(topic.topic_id)
                found.extend(
                    StreamKey(topic.topic_id, partition)
                    for partition in sorted(topic.held.keys() - topic.moving.keys())
                    if partition < len(chosen) and chosen[partition] in others
                )
        return found

    def assignment(self) -> Assignment:
        """Return the candidate of each partition for the present ring and topics."""
        if self._assignment is None:
            topics = ((topic.topic_id, topic.partitions) for topic in self._catalog.all())
            self._assignment = Assignment(self.ring, topics, self._assigned_before)
            self._assigned_before = self._assignment
        return self._assignment

    # Events from outside.

    def on_brokers(self) -> list[int]:
        """Build the ring of the brokers that live and stay. Returns the node ids that joined."""
        members, own = self._brokers.members(), self._brokers.node_id
        leaves = self._brokers.leaving
        stay = [m for m in members if not m.leaving and not (leaves and m.node_id == own)]
        nodes = {member.node_id: Incarnation(member.node_id, member.token) for member in stay}
        if tuple(sorted(nodes)) != self.ring.nodes:
            self.ring = Ring(nodes)
            self._assignment = None
        self._nodes = nodes
        before, self._tokens = self._tokens, {member.token for member in members}
        self._all_due = True
        if before is None:
            return []
        return [m.node_id for m in stay if m.token not in before and m.node_id != own]

    def on_catalog_changed(self) -> None:
        """Forget the candidates. `on_topics` follows the topics themselves, once per round."""
        self._assignment = None

    def on_topics(self) -> TopicChanges:
        """Follow the topics of the catalog."""
        are_new, self._followed = self._followed, True
        all_topics = self._catalog.all()
        known = {topic.topic_id: topic.partitions for topic in all_topics if topic.has_streams}
        added: list[UUID] = []
        for topic_id, partitions in known.items():
            topic = self._topics.get(topic_id)
            if topic is None:
                topic = self._topics[topic_id] = TopicOwnership(topic_id)
                topic.read = are_new
                added.append(topic_id)
            if topic.partitions != partitions:
                topic.partitions = partitions
                self._mark_changed(topic)
        removed = list(self._topics.keys() - known.keys())
        effects: list[Effect] = []
        for topic_id in removed:
            effects += self._drop_all(self._topics[topic_id])
            effects += self._resume_leader_waiters(topic_id)
            del self._topics[topic_id]
            self._due.pop(topic_id, None)
        return TopicChanges(added, removed, effects)

    def on_owners(self, topic_id: UUID, owners: Owners | None) -> None:
        """Take the content of the topic's node, or None if the node is corrupt."""
        topic = self._topics.get(topic_id)
        if topic is None:
            return
        topic.readable = owners is not None
        topic.expose_unpublished()
        if owners is not None:
            topic.owners = owners.remembering(topic.owners)
            topic.read = True
            self._mark_changed(topic)

    def on_session_ended(self) -> list[Effect]:
        """Drop every partition, because this incarnation owns nothing any more."""
        self._all_due = True
        return [effect for topic in self._topics.values() for effect in self._drop_all(topic)]

    def close(self) -> list[Effect]:
        """Drop every partition and resume every task that waits."""
        effects = self.on_session_ended()
        for topic_id in list(self._leader_waiters):
            effects += self._resume_leader_waiters(topic_id)
        return effects

    # Events from the tasks of this broker.

    def note_opened(self, key: StreamKey, epoch: int) -> list[Effect] | None:
        """Publish this epoch of a held partition in the next round.

        Returns None and changes nothing if the partition is not held. The same holds for an epoch
        that is not newer than the known one, because it belongs to an earlier opening.
        """
        topic = self._topics.get(key.topic_id)
        known = None if topic is None else topic.held.get(key.partition)
        if topic is None or known is None or epoch <= known:
            return None
        topic.held[key.partition] = epoch
        topic.unpublished.setdefault(key.partition, [])
        topic.expose_unpublished()
        self._index(topic)
        return self._resume_leader_waiters(key.topic_id)

    def await_published(self, key: StreamKey, waiter: object) -> bool:
        """Resume `waiter` once the epoch is published or the partition is lost.

        Returns False if no epoch is to be published.
        """
        topic = self._topics.get(key.topic_id)
        if topic is None or key.partition not in topic.unpublished:
            return False
        topic.unpublished[key.partition].append(waiter)
        return True

    def await_leaders(self, topic_id: UUID, waiter: object) -> None:
        """Resume `waiter` when the leaders of the topic may have changed."""
        self._leader_waiters.setdefault(topic_id, []).append(waiter)

    def await_moved(self, key: StreamKey, waiter: object) -> bool:
        """Resume `waiter` once the hand-over of this partition has ended.

        Returns False if no hand-over is in progress.
        """
        topic = self._topics.get(key.topic_id)
        if topic is None or key.partition not in topic.moving:
            return False
        topic.moving[key.partition].append(waiter)
        return True

    def start_drain(self, key: StreamKey) -> bool:
        """Reserve the partition for one drain. Returns False if no hand-over is possible now."""
        topic = self._topics.get(key.topic_id)
        if not self.owns(key) or key in self.draining or topic is None or not topic.readable:
            return False
        self.draining.add(key)
        return True

    def end_drain(self, key: StreamKey) -> None:
        """End the drain, whether it succeeded or not."""
        self.draining.discard(key)

    def give_away(self, key: StreamKey) -> bool:
        """Give the drained partition to its candidate in the next round.

        Returns False if this broker lost the partition during the drain.
        """
        topic = self._topics.get(key.topic_id)
        if topic is None or not self.owns(key):
            return False
        topic.moving[key.partition] = []
        self._index(topic)
        return True

    # A round.

    def examine_all(self) -> None:
        """Make the next `take_due` return all topics."""
        self._all_due = True

    def take_due(self) -> list[TopicOwnership]:
        """Return the topics that this round must examine."""
        due = list((self._topics if self._all_due else self._due).values())
        self._all_due = False
        for topic in due:
            topic.changed = False
        return due

    def apply(self, topic: TopicOwnership) -> list[Effect]:
        """Update the partitions that this broker holds to agree with the node."""
        effects: list[Effect] = []
        me = self._brokers.incarnation
        mine = set(topic.owners.owned_by(me)) if me is not None else set[int]()
        if topic.held.keys() != mine:
            for partition in sorted(topic.held.keys() - mine):
                effects += self._drop(topic, partition)
            for partition in sorted(mine - topic.held.keys()):
                effects += self._gain(topic, partition)
        written = topic.owners.epoch
        for partition in [p for p in topic.unpublished if written(p) == topic.held[p]]:
            effects += _resume(topic.unpublished.pop(partition))
        effects += self._keep_own(topic)
        self._index(topic)
        effects += self._resume_leader_waiters(topic.topic_id)
        return effects

    def wants_change(self, topic: TopicOwnership) -> bool:
        """Return whether `next_owners` may have something to write."""
        return bool(topic.unpublished or topic.moving or self._claimable(topic))

    def next_owners(self, topic: TopicOwnership) -> Owners | None:
        """Return the next content of the topic's node, or None if the node needs no change.

        The content claims free partitions of which this broker is the candidate, gives away drained
        ones, and publishes epochs.
        """
        me = self._brokers.incarnation
        if me is None or self._topics.get(topic.topic_id) is not topic:
            return None
        owners = topic.owners
        new = dict.fromkeys(self._claimable(topic), me)
        for partition in topic.moving:
            if owners.owner(partition) == me:
                node = self.assignment().candidate(topic.topic_id, partition)
                new[partition] = NOBODY if node is None else self._nodes[node]
        epochs = {
            partition: topic.held[partition]
            for partition in topic.unpublished
            if partition not in new
            and owners.owner(partition) == me
            and owners.epoch(partition) != topic.held[partition]
        }
        return owners.changed(new, epochs) if new or epochs else None

    # One topic.

    def _gain(self, topic: TopicOwnership, partition: int) -> list[Effect]:
        topic.held[partition] = -1
        # The previous owner gave away this partition before it read that we leave: pass it on
        # unopened.
        if self._brokers.leaving:
            topic.moving[partition] = []
            return []
        return [Gained(StreamKey(topic.topic_id, partition))]

    def _drop(self, topic: TopicOwnership, partition: int) -> list[Effect]:
        waiters = [*topic.unpublished.pop(partition, ()), *topic.moving.pop(partition, ())]
        del topic.held[partition]
        return [*_resume(waiters), Lost(StreamKey(topic.topic_id, partition))]

    def _drop_all(self, topic: TopicOwnership) -> list[Effect]:
        dropped = [self._drop(topic, partition) for partition in sorted(topic.held)]
        self._index(topic)
        return [effect for effects in dropped for effect in effects]

    def _keep_own(self, topic: TopicOwnership) -> list[Effect]:
        """End the hand-overs that cannot happen, and open their partitions again.

        A hand-over cannot happen if this broker has become the candidate again, or if the node is
        corrupt. While this broker leaves, a corrupt node ends the wait, and nothing is opened.
        """
        effects: list[Effect] = []
        own, leaving = self._brokers.node_id, self._brokers.leaving
        for partition in list(topic.moving):
            candidate = self.assignment().candidate(topic.topic_id, partition)
            if topic.readable and (leaving or candidate != own):
                continue  # this hand-over can still happen
            effects += _resume(topic.moving.pop(partition))
            if not leaving:
                effects += _resume(topic.unpublished.pop(partition, ()))
                topic.held[partition] = -1
                effects.append(Gained(StreamKey(topic.topic_id, partition)))
        return effects

    def _claimable(self, topic: TopicOwnership) -> list[int]:
        """Return the partitions without a live owner of which this broker is the candidate."""
        known = self._catalog.by_id(topic.topic_id)
        if known is None or self._brokers.leaving:
            return []
        free = topic.owners.free(known.partitions, self._brokers.is_known_dead)
        topic.has_free = bool(free)
        self._index(topic)
        if not free:
            return []
        own, chosen = self._brokers.node_id, self.assignment().candidates(topic.topic_id)
        return [p for p in free if p < len(chosen) and chosen[p] == own]

    def _mark_changed(self, topic: TopicOwnership) -> None:
        topic.changed = True
        self._due[topic.topic_id] = topic

    def _index(self, topic: TopicOwnership) -> None:
        """Add this topic to `_due` if it has work for the next round, otherwise remove it."""
        if topic.changed or topic.unpublished or topic.moving or topic.has_free:
            self._due[topic.topic_id] = topic
        else:
            self._due.pop(topic.topic_id, None)

    def _resume_leader_waiters(self, topic_id: UUID) -> list[Effect]:
        return _resume(self._leader_waiters.pop(topic_id, ()))


def _resume(waiters: Iterable[object]) -> list[Effect]:
    return [Resume(waiter) for waiter in waiters]
