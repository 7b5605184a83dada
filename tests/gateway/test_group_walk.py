"""Goal: what must hold of a group always holds. Method: a random walk by Hypothesis over the pure
state machine; every invariant is checked after every step, and in the end all must come to rest.
"""

from collections import Counter

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from gateway.core.group_members import State
from tests.gateway.group_driver import RANGE, Driver

BOTH = (("range", b"r"), ("sticky", b"s"))
STICKY_FIRST = (("sticky", b"s"), ("range", b"r"))


class RandomWalk(RuleBasedStateMachine):
    """Members that join, rejoin, sync, leave, restart, and fall silent, in any order."""

    @initialize(delay=st.sampled_from([0, 3_000]), size=st.sampled_from([3, 100]))
    def start(self, delay, size):
        self.driver = Driver(
            holding=True,
            initial_rebalance_delay_ms=delay,
            members_max=size,
            new_member_timeout_ms=20_000,
        )
        self.generation = 0
        self.leaders = {}
        self.bytes_by_host = Counter()
        self.waiters = []

    @property
    def group(self):
        return self.driver.group

    def some_member(self, draw):
        return draw.draw(st.sampled_from([*self.group.members, "nobody"]))

    @rule(
        instance=st.sampled_from([None, None, "i", "j"]),
        protocols=st.sampled_from([RANGE, BOTH, STICKY_FIRST]),
        id_required=st.booleans(),
    )
    def join_new(self, instance, protocols, id_required):
        self.waiters.append(
            self.driver.join(instance=instance, protocols=protocols, id_required=id_required)
        )

    @rule(draw=st.data())
    def join_with_a_given_id(self, draw):
        given = sorted(self.group._roster.pending)
        if given:
            self.waiters.append(self.driver.join(draw.draw(st.sampled_from(given))))

    @rule(draw=st.data(), protocols=st.sampled_from([RANGE, BOTH, STICKY_FIRST]))
    def rejoin(self, draw, protocols):
        member_id = self.some_member(draw)
        member = self.group.members.get(member_id)
        instance = member.instance_id if member else None
        self.waiters.append(self.driver.join(member_id, instance, protocols))

    @rule(draw=st.data(), stale=st.booleans())
    def sync(self, draw, stale):
        generation = self.group.generation - stale
        assignments = [(each, b"%d" % generation) for each in self.group.members]
        member_id = self.some_member(draw)
        self.waiters.append(self.driver.sync(member_id, generation, assignments))

    @rule()
    def everybody_syncs(self):
        assignments = [(each, b"%d" % self.group.generation) for each in self.group.members]
        for member_id in list(self.group.members):
            self.waiters.append(self.driver.sync(member_id, None, assignments))

    @rule()
    def everybody_rejoins(self):
        for member_id, member in list(self.group.members.items()):
            waiter = self.driver.join(member_id, member.instance_id, member.protocols)
            self.waiters.append(waiter)

    @rule(draw=st.data())
    def heartbeat(self, draw):
        self.driver.heartbeat(self.some_member(draw))

    @rule(draw=st.data())
    def leave(self, draw):
        self.driver.leave((self.some_member(draw),))

    @rule(wait_ms=st.sampled_from([1, 500, 3_000, 10_000, 60_000]))
    def wait(self, wait_ms):
        self.driver.wait(wait_ms)

    @precondition(lambda self: self.driver.held)
    @rule()
    def become_durable(self):
        self.driver.release()

    @precondition(lambda self: self.driver.held)
    @rule()
    def be_too_large(self):
        self.driver.refuse()

    @invariant()
    def the_counted_bytes_are_true(self):
        roster = self.group._roster
        assert roster.size_bytes == sum(m.size_bytes for m in self.group.members.values())
        assert roster.pending_bytes == sum(map(len, roster.pending))
        assigned = [len(m.assignment) for m in self.group.members.values()]
        assert roster.assigned_bytes == sum(assigned)
        for host, more in self.group.take_byte_changes().items():
            self.bytes_by_host[host] += more
        counted = Counter()
        for member in self.group.members.values():
            counted[member.client_host] += member.size_bytes + len(member.assignment)
        for member_id, host in roster.pending.items():
            counted[host] += len(member_id)
        assert +self.bytes_by_host == counted
        assert min(self.bytes_by_host.values(), default=0) >= 0

    @invariant()
    def the_generation_only_rises(self):
        assert self.group.generation >= self.generation
        self.generation = self.group.generation

    @invariant()
    def somebody_leads_exactly_when_there_is_a_member(self):
        assert (self.group.leader in self.group.members) or not self.group.members
        assert self.group.members or self.group.leader is None

    @invariant()
    def one_member_leads_a_generation(self):
        for joined in self.driver.joined.values():
            if joined.members and not joined.skip_assignment:
                leader = self.leaders.setdefault(joined.generation, joined.leader)
                static = any(m.member_id == joined.leader and m.instance_id for m in joined.members)
                assert leader == joined.leader or static

    @invariant()
    def every_member_of_a_stable_group_has_an_assignment_of_its_generation(self):
        if self.group.state is State.STABLE:
            for member in self.group.members.values():
                assert member.assignment == b"%d" % self.group.generation

    @invariant()
    def only_an_empty_group_or_one_that_prepares_has_no_members(self):
        if self.group.state is State.EMPTY:
            assert not self.group.members
        elif self.group.state is not State.PREPARING_REBALANCE:
            assert self.group.members

    @invariant()
    def the_count_of_waiting_joins_is_true(self):
        waiting = sum(bool(member.join_waiters) for member in self.group.members.values())
        assert self.group._roster.awaiting_join == waiting

    @invariant()
    def all_members_know_the_protocol(self):
        if self.group.state in (State.STABLE, State.COMPLETING_REBALANCE):
            for member in self.group.members.values():
                assert self.group.protocol in [name for name, _ in member.protocols]

    @invariant()
    def what_is_stored_last_is_what_stable_members_see(self):
        if self.group.state is State.STABLE and not self.driver.held:
            assert self.driver.stored[-1].generation == self.group.generation
            stored = {record.member_id for record in self.driver.stored[-1].members}
            assert stored == set(self.group.members)

    def teardown(self):
        """Left alone, the group is empty in the end and nobody waits for an answer."""
        for _ in range(40):
            while self.driver.held:
                self.driver.release()
            self.driver.wait(60_000)
        assert self.group.state is State.EMPTY
        assert self.group.deadline_ms is None
        assert self.driver.joined.keys() | self.driver.synced.keys() >= set(self.waiters)


TestRandomWalk = pytest.mark.slow(RandomWalk.TestCase)
TestRandomWalk.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
