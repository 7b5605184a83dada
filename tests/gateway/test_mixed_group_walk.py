"""Goal: what must hold of a group with members of both protocols always holds.

Method: a random walk by Hypothesis over the pure core. Members of the consumer protocol, and eager
and cooperative classic ones, lose answers, are slow, and expire; the group is taken over, and
becomes a classic group and one of the consumer protocol again. In the end it must come to rest.
"""

from dataclasses import dataclass, replace
from itertools import combinations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from kio.schema.errors import ErrorCode

from gateway.core.consumer_group import ConsumerGroup
from gateway.core.consumer_members import ConsumerHeartbeat, ConsumerRefused, ConsumerSettings, Now
from gateway.core.consumer_protocol import decode_assignment
from gateway.core.group import Group
from gateway.core.group_members import GroupSettings, Joining, Syncing
from tests.gateway.consumer_rig import TIMING, Client, FakeTopics, beat, copy_of, fresh_group
from tests.gateway.subscription_bytes import subscription

CONSUMERS, CLASSICS = "ab", "xyz"  # z is cooperative
PARTITIONS = 4


@dataclass(frozen=True)
class Classic:
    """A classic member as its client sees itself. `owned` is what it reads now."""

    name: str
    generation: int = -1
    owned: frozenset = frozenset()
    joined: bool = False  # it has to sync
    rejoins: bool = False  # it has to join again, because an answer was lost

    @property
    def eager(self):
        return self.name != "z"

    def joining(self):
        owned = () if self.eager else sorted(partition for _, partition in self.owned)
        return Joining(
            member_id=self.name,
            protocol_type="consumer",
            protocols=(("range", subscription(["t"], owned, self.generation)),),
            session_timeout_ms=40_000,
            rebalance_timeout_ms=60_000,
            fresh_id=self.name,
            client_host="/h",
        )

    def lost(self):
        return replace(self, generation=-1, owned=frozenset(), joined=False)


class RandomWalk(RuleBasedStateMachine):
    """Members of both protocols in any order."""

    @initialize()
    def start(self):
        self.topics = FakeTopics()
        self.topic = self.topics.make("t", PARTITIONS).topic_id
        self.now_ms = 0
        self.group = fresh_group(downgrades=False)
        self.clients = {name: Client(name) for name in CONSUMERS}
        self.classics = {name: Classic(name) for name in CLASSICS}
        self.epoch = 1

    @property
    def now(self):
        return Now(self.now_ms, self.topics, TIMING)

    @rule(name=st.sampled_from(CONSUMERS), lost=st.booleans())
    def consumer_heartbeat(self, name, lost):
        client = self.clients[name]
        self.clients[name] = beat(self.group, client, self.topics, lost=lost, now_ms=self.now_ms)

    @rule(name=st.sampled_from(CONSUMERS))
    def revoke(self, name):
        if self.clients[name].joined:
            self.clients[name] = self.clients[name].revoked()

    @rule(name=st.sampled_from(CONSUMERS))
    def leave(self, name):
        if self.clients[name].joined and name in self.group.members:
            request = ConsumerHeartbeat(member_id=name, epoch=-1)
            self.group.heartbeat(request, self.now)
        self.clients[name] = self.clients[name].fenced()

    @rule(name=st.sampled_from(CLASSICS), lost=st.booleans())
    def join(self, name, lost):
        client = self.classics[name]
        if client.eager:
            client = replace(client, owned=frozenset())
        try:
            joined = self.group.join(client.joining(), self.now).joined
        except ConsumerRefused as refused:
            assert refused.code is ErrorCode.unknown_member_id
            self.classics[name] = client.lost()
            return
        client = replace(client, joined=not lost, rejoins=lost)
        self.classics[name] = client if lost else replace(client, generation=joined.generation)

    @rule(name=st.sampled_from(CLASSICS), lost=st.booleans())
    def sync(self, name, lost):
        client = self.classics[name]
        if not client.joined:
            return
        try:
            synced = self.group.sync(Syncing(name, client.generation), self.now)
        except ConsumerRefused as refused:
            gone = refused.code is not ErrorCode.rebalance_in_progress
            self.classics[name] = client.lost() if gone else replace(client, joined=False)
            return
        self.classics[name] = replace(client, joined=False, rejoins=True)
        if not lost:
            some = decode_assignment(synced.assignment).partitions.get("t", ())
            owned = frozenset((self.topic, each) for each in some)
            self.classics[name] = replace(client, owned=owned, joined=False)

    @rule(name=st.sampled_from(CLASSICS))
    def heartbeat(self, name):
        client = self.classics[name]
        if client.generation < 0:
            return
        try:
            self.group.classic_heartbeat(name, client.generation, None, self.now)
        except ConsumerRefused:
            self.classics[name] = client.lost()

    @rule(ms=st.sampled_from([500, 5_000, 30_000]))
    def wait(self, ms):
        self.now_ms += ms
        self.group.tick(self.now)

    @rule()
    def take_over(self):
        taken = copy_of(self.group, self.now_ms)
        assert taken.roster.records() == self.group.roster.records()
        self.group = ConsumerGroup.restore(
            "g", ConsumerSettings(downgrades=False), taken.roster.records(), self.now_ms, 45_000
        )

    @precondition(lambda self: self.group.members and not any(map(self._reads, CONSUMERS)))
    @rule()
    def there_and_back(self):
        """Let all consumers go, so that the group becomes a classic one, and one more comes."""
        self.group._settings = ConsumerSettings()
        gone = [name for name in CONSUMERS if name in self.group.members]
        if gone and len(gone) < len(self.group.members):
            self.group.remove(gone, self.now)
            classic = Group.restore(self.group.ended, GroupSettings(), self.now_ms)
            settings = ConsumerSettings(downgrades=False)
            self.classics = {
                name: each if name in classic.members else each.lost()
                for name, each in self.classics.items()
            }
            self.group, _ = ConsumerGroup.upgrade("g", classic, settings, self.now)
            self.clients["a"] = self.clients["a"].fenced()
            self.consumer_heartbeat("a", lost=False)
        self.group._settings = ConsumerSettings(downgrades=False)

    def _reads(self, name):
        return bool(self.clients[name].owned)

    @invariant()
    def no_partition_has_two_readers(self):
        members = self.group.members
        live = [
            each.owned
            for each in self.clients.values()
            if each.joined and each.name in members and each.epoch <= members[each.name].epoch
        ]
        live += [each.owned for each in self.classics.values() if each.name in members]
        for one, other in combinations(live, 2):
            assert not one & other

    @invariant()
    def epochs_never_fall(self):
        assert self.group.epoch >= self.epoch
        self.epoch = self.group.epoch

    @invariant()
    def every_member_has_a_deadline(self):
        assert (self.group.deadline_ms is not None) == bool(self.group.members)

    def teardown(self):
        """Let all come to rest, and check who reads what."""
        members = self.group.members
        gone = [name for name in CONSUMERS if name in members and not self.clients[name].joined]
        self.group.remove(gone, self.now)
        for _ in range(20):
            for name in CONSUMERS:
                if name in self.group.members:
                    self.consumer_heartbeat(name, lost=False)
                    self.revoke(name)
            for name in [each for each in CLASSICS if each in self.group.members]:
                self._live(name)
        live = [*self.clients.values(), *self.classics.values()]
        live = [each for each in live if each.name in self.group.members]
        read = [place for each in live for place in each.owned]
        assert len(read) == len(set(read))
        if self.group.members:
            assert set(read) == {(self.topic, each) for each in range(PARTITIONS)}
            assert self.group.state.value == "Stable"

    def _live(self, name):
        """Let a classic client do what it does next."""
        client = self.classics[name]
        code = ErrorCode.rebalance_in_progress
        if client.generation >= 0 and not client.joined and not client.rejoins:
            try:
                code, _, _ = self.group.classic_heartbeat(name, client.generation, None, self.now)
            except ConsumerRefused:
                self.classics[name] = client.lost()
        if code is not ErrorCode.none:
            self.join(name, lost=False)
            self.sync(name, lost=False)


class TestRandomWalk(RandomWalk.TestCase):
    settings = settings(max_examples=100, stateful_step_count=40, deadline=None)
