"""Goal: what must hold of a group of the consumer protocol always holds.

Method: a random walk by Hypothesis over the pure core with modelled members. Topics appear, grow or
go, answers are lost, members leave, come back as static ones, expire, and the group is taken
over. Every invariant is checked after every step, and in the end the group must come to rest.
"""

from dataclasses import replace
from itertools import combinations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from gateway.core.consumer_members import ConsumerHeartbeat, ConsumerRefused, Now
from tests.gateway.consumer_rig import (
    TIMING,
    Client,
    FakeTopics,
    beat,
    copy_of,
    fresh_group,
    settle,
)

NAMES = "abcd"
INTERVALS = st.sampled_from([0, 1_000])


class RandomWalk(RuleBasedStateMachine):
    """Members that send heartbeats, revoke late, leave and expire, in any order."""

    @initialize(interval_ms=INTERVALS)
    def start(self, interval_ms):
        self.topics = FakeTopics()
        self.topics.make("t", 3)
        self.topics.make("u", 2)
        self.timing = TIMING._replace(assignment_interval_ms=interval_ms)
        self.now_ms = 0
        self.group = fresh_group()
        self.clients = {name: Client(name, instance="i" if name == "d" else None) for name in NAMES}
        self.epochs = (1, 1)

    @rule(name=st.sampled_from(NAMES), lost=st.booleans())
    def heartbeat(self, name, lost):
        self.clients[name] = beat(
            self.group,
            self.clients[name],
            self.topics,
            lost=lost,
            now_ms=self.now_ms,
            timing=self.timing,
        )

    @rule(name=st.sampled_from(NAMES))
    def revoke(self, name):
        if self.clients[name].joined:
            self.clients[name] = self.clients[name].revoked()

    @rule(name=st.sampled_from(NAMES), topics=st.sets(st.sampled_from("tuv")))
    def subscribe(self, name, topics):
        if not self.clients[name].joined:
            self.clients[name] = replace(self.clients[name], topics=frozenset(topics))

    @rule(name=st.sampled_from(NAMES), for_a_while=st.booleans())
    def leave(self, name, for_a_while):
        client = self.clients[name]
        static = client.instance is not None
        request = ConsumerHeartbeat(
            member_id=name,
            epoch=-2 if static and for_a_while else -1,
            instance_id=client.instance,
        )
        try:
            self.group.heartbeat(request, Now(self.now_ms, self.topics, self.timing))
        except ConsumerRefused:
            assert name not in self.group.members
        self.clients[name] = client.fenced()

    @rule(ms=st.sampled_from([500, 5_000, 30_000]))
    def wait(self, ms):
        self.now_ms += ms
        self.group.tick(Now(self.now_ms, self.topics, self.timing))

    @rule()
    def take_over(self):
        taken = copy_of(self.group, self.now_ms)
        assert taken.roster.records() == self.group.roster.records()
        self.group = taken

    @rule(name=st.sampled_from("tuv"), partitions=st.integers(1, 5))
    def change_topics(self, name, partitions):
        known = self.topics.by_name(name)
        if known is None:
            self.topics.make(name, partitions)
        elif partitions > known.partitions:
            self.topics.grow(name, partitions)
        elif partitions == 1:
            self.topics.delete(name)

    @invariant()
    def no_partition_has_two_readers(self):
        live = [
            each
            for each in self.clients.values()
            if each.joined
            and each.name in self.group.members
            and each.epoch <= self.group.members[each.name].epoch
        ]
        for one, other in combinations(live, 2):
            assert not one.owned & other.owned

    @invariant()
    def epochs_never_fall(self):
        now = self.group.epoch, self.group.assignment_epoch
        assert all(before <= after for before, after in zip(self.epochs, now, strict=True))
        assert now[1] <= now[0]
        self.epochs = now

    @invariant()
    def every_member_has_a_deadline(self):
        assert (self.group.deadline_ms is not None) == bool(self.group.members)

    def teardown(self):
        """Let every member that still lives come to rest, and check who reads what."""
        members = self.group.members
        gone = [name for name, each in members.items() if not self.clients[name].joined]
        self.group.remove(gone, Now(self.now_ms, self.topics, TIMING))
        live = [each for each in self.clients.values() if each.name in members]
        if not live:
            return
        self.group._assigned_at_ms = None
        clients = settle(self.group, live, self.topics, rounds=20)
        wanted = {
            (topic.topic_id, partition)
            for topic in self.topics.known.values()
            if any(topic.name in self.group.members[each.name].topics for each in clients)
            for partition in range(topic.partitions)
        }
        read = [place for each in clients for place in each.owned]
        assert len(read) == len(set(read))
        assert set(read) == wanted
        assert self.group.state.value == "Stable"


class TestRandomWalk(RandomWalk.TestCase):
    settings = settings(max_examples=120, stateful_step_count=40, deadline=None)
