"""Brokers as `OwnershipState` sees them: their views of one store, and a dumb twin of each.

Every step of a round is a method, so a test can put the steps of several brokers in any order.
"""

from __future__ import annotations

from typing import NamedTuple
from uuid import UUID

from gateway.cluster.ownership_state import Gained, Lost, OwnershipState, Resume
from gateway.core.ownership import NOBODY, Incarnation, Owners

TOPICS = [UUID(int=number) for number in range(1, 4)]


class Size(NamedTuple):
    topic_id: UUID
    partitions: int
    has_streams: bool = True


class Store:
    """The truth: which incarnations live, which topics exist, and the owners nodes."""

    def __init__(self):
        self.live = {}  # token: member
        self.topics = {}  # topic id: partitions
        self.owners = {}  # topic id: (version, owners)
        self.epochs = {}

    def next_epoch(self, key):
        self.epochs[key] = self.epochs.get(key, -1) + 1
        return self.epochs[key]


class Broker:
    """One state, its views of the brokers and the topics, and the dumb twin."""

    def __init__(self, store, node_id, lives=0):
        self.store = store
        self.node_id = node_id
        self.lives = lives
        self.token = self._new_token()
        self.registered = False
        self.leaving = False
        self.listed = {}  # as last read
        self.dead = set()
        self.sizes = {}  # as last read
        self.read = {}  # topic id: (version, owners) as last read or written
        self.corrupt = set()
        self.applied = {}  # the twin, topic id: {partition: epoch that was opened, or -1}
        self.open = set()  # keys that the listener has, from Gained to Lost or to a drain
        self.waiting = set()
        self.resumed = set()
        self.state = OwnershipState(self, self)

    def _new_token(self):
        self.lives += 1
        return f"{self.node_id}-{self.lives}"

    # What the state asks.

    @property
    def incarnation(self):
        return Incarnation(self.node_id, self.token) if self.registered else None

    def members(self):
        return tuple(sorted(self.listed.values()))

    def member(self, token):
        return self.listed.get(token)

    def is_known_dead(self, who):
        return who.token not in self.listed and who.token in self.dead

    def by_id(self, topic_id):
        found = self.sizes.get(topic_id)
        return None if found is None else Size(topic_id, found)

    def all(self):
        return [Size(topic_id, count) for topic_id, count in self.sizes.items()]

    # What a round does, step by step.

    @property
    def lives_still(self):
        return self.registered and self.token in self.store.live

    def carry_out(self, effects):
        for effect in effects:
            if isinstance(effect, Gained):
                assert effect.key not in self.open, "gained twice"
                self.open.add(effect.key)
            elif isinstance(effect, Lost):
                assert not self.state.owns(effect.key)
                self.open.discard(effect.key)
            else:
                assert isinstance(effect, Resume)
                assert effect.waiter in self.waiting, "resumed twice"
                self.waiting.discard(effect.waiter)
                self.resumed.add(effect.waiter)

    def read_members(self):
        live = self.store.live
        self.listed = {t: member for t, member in live.items() if t not in self.dead}
        if self.registered and self.token not in live:
            self.end()
        self.state.on_brokers()

    def read_topics(self):
        self.sizes = dict(self.store.topics)
        self.state.on_catalog_changed()
        changes = self.state.on_topics()
        for topic_id in changes.removed:
            self.read.pop(topic_id, None)
            self.applied.pop(topic_id, None)
        self.carry_out(changes.effects)
        assert not {key for key in self.open if key.topic_id in changes.removed}
        for topic_id in changes.added:
            self.corrupt.discard(topic_id)
            self.read_owners(topic_id)

    def read_owners(self, topic_id):
        if self.state.get(topic_id) is None:
            return
        found = self.store.owners.get(topic_id, (-1, Owners()))
        if found != self.read.get(topic_id, (-1, Owners())) or topic_id in self.corrupt:
            self.corrupt.discard(topic_id)
            self.read[topic_id] = found
            self.state.on_owners(topic_id, found[1])

    def corrupt_owners(self, topic_id):
        if self.state.get(topic_id) is not None:
            self.corrupt.add(topic_id)
            self.state.on_owners(topic_id, None)

    def end(self):
        self.dead.add(self.token)
        self.listed.pop(self.token, None)
        self.token = self._new_token()
        self.registered = False
        self.applied.clear()
        self.carry_out(self.state.on_session_ended())
        assert not self.open, "the session ended and something is still open"

    def take_due(self):
        due = self.state.take_due()
        named = {holder for topic in due for holder in topic.owners.holders} - {NOBODY}
        unknown = {holder.token for holder in named if holder.token not in self.listed} - self.dead
        found = {token for token in unknown if token not in self.store.live}
        if found:
            self.dead |= found
            self.state.examine_all()
            due = self.state.take_due()
        if unknown - found:
            self.state.examine_all()
        assert all(self.state.get(topic.topic_id) is topic for topic in due)
        return due

    def apply(self, topic):
        self.carry_out(self.state.apply(topic))
        assert topic.readable or not topic.moving, "it waits for a node that is not written"
        if not self.leaving:
            candidate = self.state.assignment().candidate
            assert all(candidate(topic.topic_id, p) != self.node_id for p in topic.moving)
        held, before = {}, self.applied.get(topic.topic_id, {})
        for partition, (owner, _) in enumerate(topic.owners.rows()):
            if owner == self.incarnation:
                held[partition] = before.get(partition, -1)
        for partition in held:  # what is drained and kept is opened again
            if topic.held[partition] == -1:
                held[partition] = -1
        self.applied[topic.topic_id] = held

    def write(self, topic, *, lose_reply=False):
        """Compare and set, on what was read last and then on what is read after a refusal."""
        topic_id = topic.topic_id
        for _ in range(3):
            new = self.state.next_owners(topic) if topic_id not in self.corrupt else None
            if new is None:
                break
            version, _ = self.read.get(topic_id, (-1, None))
            if self.store.owners.get(topic_id, (-1, None))[0] != version:
                self.read_owners(topic_id)
                continue
            self.store.owners[topic_id] = (version + 1, new)
            if lose_reply:
                return
            self.read[topic_id] = (version + 1, new)
            self.state.on_owners(topic_id, new)
        if self.state.get(topic_id) is topic:
            self.apply(topic)

    def round(self, *, lose_reply=False):
        due = self.take_due()
        for topic in due:
            self.apply(topic)
        if self.registered:
            for topic in [each for each in due if self.state.wants_change(each)]:
                self.write(topic, lose_reply=lose_reply)

    def read_all(self):
        self.read_members()
        self.read_topics()
        for topic_id in TOPICS:
            self.read_owners(topic_id)

    def open_held(self, key):
        epoch = self.store.next_epoch(key)
        effects = self.state.note_opened(key, epoch)
        assert effects is not None
        self.carry_out(effects)
        self.applied[key.topic_id][key.partition] = epoch
        assert self.state.note_opened(key, epoch) is None
        assert self.state.note_opened(key, epoch - 1) is None
        self.wait_for("published", key, self.state.await_published)

    def open_all(self, keys):
        for key in keys:
            self.open_held(key)

    def drain(self, key):
        if not self.state.start_drain(key):
            return
        assert not self.state.start_drain(key), "drained twice at the same time"
        self.open.discard(key)
        self.state.end_drain(key)
        assert self.state.give_away(key)
        assert not self.state.owns(key)
        self.wait_for("moved", key, self.state.await_moved)

    def wait_for(self, what, key, wait):
        waiter = (what, key, len(self.resumed) + len(self.waiting))
        self.waiting.add(waiter)
        assert wait(key, waiter)

    def await_leaders(self, topic_id):
        waiter = ("leaders", topic_id, len(self.resumed) + len(self.waiting))
        self.waiting.add(waiter)
        self.state.await_leaders(topic_id, waiter)
