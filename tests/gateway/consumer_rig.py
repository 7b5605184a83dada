"""A group of the consumer protocol with modelled members, for the tests of its pure core.

A member behaves as Kafka's consumer does: it uses what it was assigned, gives up what it must
revoke, and reports what it owns once it has. It repeats a heartbeat whose answer was lost.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from uuid import UUID

from gateway.core.consumer_group import ConsumerGroup
from gateway.core.consumer_members import (
    ConsumerHeartbeat,
    ConsumerRefused,
    ConsumerSettings,
    ConsumerTiming,
    Now,
)

TIMING = ConsumerTiming(assignment_interval_ms=0)


@dataclass(frozen=True)
class FakeTopic:
    name: str
    topic_id: UUID
    partitions: int


@dataclass
class FakeTopics:
    """The topics of a cluster. Ids are numbers, so that runs repeat."""

    known: dict[str, FakeTopic] = field(default_factory=dict)
    version: int = 0
    created: int = 0

    def make(self, name, partitions=3):
        self.created += 1
        self._put(FakeTopic(name, UUID(int=(self.created << 64) + 7 * self.created), partitions))
        return self.known[name]

    def grow(self, name, partitions):
        self._put(replace(self.known[name], partitions=partitions))

    def delete(self, name):
        del self.known[name]
        self.version += 1

    def _put(self, topic):
        self.known[topic.name] = topic
        self.version += 1

    def by_name(self, name):
        return self.known.get(name)

    def by_id(self, topic_id):
        return next((each for each in self.known.values() if each.topic_id == topic_id), None)


def places(epochs):
    """Return the partitions of an assignment as a set of pairs."""
    return frozenset((topic, each) for topic, some in epochs.items() for each in some)


def by_topic(pairs):
    found = {}
    for topic, partition in pairs:
        found.setdefault(topic, set()).add(partition)
    return {topic: frozenset(some) for topic, some in found.items()}


@dataclass(frozen=True)
class Client:
    """One member as its client sees itself. `owned` is what it reads now."""

    name: str
    topics: frozenset[str] = frozenset({"t"})
    epoch: int = -1  # -1 before it joins, and after it was fenced
    owned: frozenset = frozenset()
    assigned: frozenset = frozenset()  # the last assignment that it was told
    pending: bool = False  # it has yet to take the last assignment, and to acknowledge it
    reports: bool = False  # the next heartbeat lists what it owns
    instance: str | None = None

    @property
    def joined(self):
        return self.epoch > 0

    def request(self):
        """Return the next heartbeat. A full one joins, or repeats one whose answer was lost."""
        full = self.epoch <= 0 or self.reports
        return ConsumerHeartbeat(
            member_id=self.name,
            epoch=max(self.epoch, 0),
            instance_id=self.instance,
            rebalance_timeout_ms=60_000 if full else -1,
            topics=self.topics if full else None,
            owned=by_topic(self.owned if self.epoch > 0 else ()) if full else None,
            client_id=self.name,
            client_host="/1.2.3.4",
        )

    def taken(self, answer):
        """Return the client after an answer. It no longer reads what it must revoke."""
        if answer.assigned is None:
            return replace(self, epoch=answer.epoch, reports=False)
        assigned = places(answer.assigned)
        return replace(self, epoch=answer.epoch, assigned=assigned, pending=True, reports=False)

    def revoked(self):
        """Return the client after it has reconciled. Only then it reads the new partitions."""
        return replace(self, owned=self.assigned, pending=False, reports=True)

    def fenced(self):
        nothing = frozenset()
        return replace(
            self, epoch=-1, owned=nothing, assigned=nothing, pending=False, reports=False
        )


def fresh_group(**settings):
    return ConsumerGroup("g", ConsumerSettings(**settings))


def copy_of(group, now_ms=0):
    """Return the group as a broker that takes it over finds it."""
    return ConsumerGroup.restore(
        "g", ConsumerSettings(), group.roster.records(), now_ms, TIMING.session_timeout_ms
    )


def beat(group, client, topics, *, lost=False, now_ms=0, timing=TIMING):
    """Send one heartbeat, and return the client after it."""
    try:
        outcome = group.heartbeat(client.request(), Now(now_ms, topics, timing))
    except ConsumerRefused:
        return client if lost else client.fenced()
    return replace(client, reports=True) if lost else client.taken(outcome.answer)


def settle(group, clients, topics, rounds=12):
    """Let all clients send heartbeats and revoke. Returns them when nothing changes any more."""
    for _ in range(rounds):
        after = [beat(group, each, topics) for each in clients]
        after = [each.revoked() if each.pending else each for each in after]
        if after == clients:
            return after
        clients = after
    raise AssertionError("the group did not come to rest")
