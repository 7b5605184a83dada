"""Goal: no two live brokers own a partition, and no topic with work is ever forgotten.

Method: a random walk by Hypothesis over three `OwnershipState`s that share one store of owners
nodes. Lists of brokers, topics and nodes arrive late, replies get lost, sessions end. A dumb twin
recomputes from the nodes what each broker must hold. In the end every partition has one leader.
"""

from __future__ import annotations

from uuid import UUID

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from gateway.cluster.ownership_state import Gained, Lost, Resume
from gateway.cluster.port import ClusterMember, Leader, StreamKey
from gateway.core.ownership import NOBODY, Incarnation, Owners
from gateway.core.ring import Assignment, Ring
from tests.ownership.state_rig import TOPICS, Broker, Store

NODES = (1, 2, 3)
PARTITIONS_MAX = 3
KEYS = [StreamKey(topic_id, p) for topic_id in TOPICS for p in range(PARTITIONS_MAX)]

nodes = st.sampled_from(NODES)
topics = st.sampled_from(TOPICS)
sizes = st.integers(1, PARTITIONS_MAX)


class RandomWalk(RuleBasedStateMachine):
    """Brokers come, go, hang and hand over; topics come, grow and go; in any order."""

    @initialize(registered=st.sets(nodes), sizes=st.dictionaries(topics, sizes))
    def start(self, registered, sizes):
        self.store = Store()
        self.brokers = {node_id: Broker(self.store, node_id) for node_id in NODES}
        self.store.topics = dict(sizes)
        self.shown = {}  # (broker, key): the leader epoch that the broker showed last
        for node in sorted(registered):
            self.register(node)
        self.all_read_and_do_a_round()

    @rule(node=nodes)
    def register(self, node):
        broker = self.brokers[node]
        held = any(member.node_id == node for member in self.store.live.values())
        if not broker.registered and not broker.leaving and not held:
            self.store.live[broker.token] = ClusterMember(node, "host", 9092, "", broker.token)
            broker.registered = True
            broker.read_members()

    @rule(node=nodes)
    def end_session(self, node):
        """In the store; the broker learns it when it reads the members."""
        self.store.live.pop(self.brokers[node].token, None)

    @rule(node=nodes)
    def leave(self, node):
        broker = self.brokers[node]
        if broker.lives_still:
            broker.leaving = True
            self.store.live[broker.token] = ClusterMember(
                node, "host", 9092, "", broker.token, True
            )
            broker.read_members()

    @rule(node=nodes)
    def restart(self, node):
        """A new process under the same node id, once the old one has no session any more."""
        if not self.brokers[node].lives_still:
            lives = self.brokers[node].lives
            self.brokers[node] = Broker(self.store, node, lives)

    @rule(topic_id=topics, count=sizes)
    def create_or_grow(self, topic_id, count):
        self.store.topics[topic_id] = max(count, self.store.topics.get(topic_id, 0))

    @rule(node=nodes)
    def read_members(self, node):
        self.brokers[node].read_members()

    @rule(node=nodes)
    def read_topics(self, node):
        self.brokers[node].read_topics()

    @rule(node=nodes, topic_id=topics)
    def read_owners(self, node, topic_id):
        self.brokers[node].read_owners(topic_id)

    @rule(node=nodes, topic_id=topics)
    def read_corrupt_owners(self, node, topic_id):
        self.brokers[node].corrupt_owners(topic_id)

    @rule(topic_id=topics)
    def delete(self, topic_id):
        """The id is never used again in the product; here it must have left all catalogs first."""
        if topic_id in self.store.topics:
            del self.store.topics[topic_id]
            for broker in self.brokers.values():
                broker.read_topics()
            self.store.owners.pop(topic_id, None)

    @rule(node=nodes, lose_reply=st.booleans())
    def round(self, node, lose_reply):
        self.brokers[node].round(lose_reply=lose_reply)

    @rule()
    def all_read_and_do_a_round(self):
        for broker in self.brokers.values():
            broker.read_all()
            broker.round()

    @rule(draw=st.data(), node=nodes)
    def open_one(self, draw, node):
        broker = self.brokers[node]
        if broker.open:
            broker.open_held(draw.draw(st.sampled_from(sorted(broker.open))))

    @rule(node=nodes)
    def open_all(self, node):
        self.brokers[node].open_all(sorted(self.brokers[node].open))

    @rule(draw=st.data(), node=nodes)
    def drain(self, draw, node):
        held = self.brokers[node].state.held_keys()
        if held:
            self.brokers[node].drain(draw.draw(st.sampled_from(held)))

    @rule(node=nodes)
    def drain_all(self, node):
        for key in self.brokers[node].state.held_keys():
            self.brokers[node].drain(key)

    @rule(node=nodes, topic_id=topics)
    def await_leaders(self, node, topic_id):
        self.brokers[node].await_leaders(topic_id)

    @invariant()
    def a_partition_has_one_live_owner(self):
        for key in KEYS:
            owners = [b for b in self.brokers.values() if b.lives_still and b.state.owns(key)]
            assert len(owners) <= 1, f"{key}: two owners"

    @invariant()
    def what_is_held_is_what_the_applied_node_names(self):
        for broker in self.brokers.values():
            held = {
                StreamKey(topic_id, partition)
                for topic_id, held in broker.applied.items()
                for partition in held
            }
            assert held == {key for key in KEYS if _holds(broker, key)}
            moving = set(broker.state.moving_keys())
            assert moving <= held
            assert {key for key in KEYS if broker.state.owns(key)} == held - moving
            assert broker.open <= held - moving

    @invariant()
    def the_leader_is_what_the_nodes_say(self):
        for broker in self.brokers.values():
            for key in KEYS:
                assert broker.state.leader(key) == _leader(broker, key)

    @invariant()
    def the_epoch_that_a_broker_shows_never_falls(self):
        for broker in self.brokers.values():
            for key in KEYS:
                before = self.shown.pop((broker, key), -1)
                if broker.state.get(key.topic_id) is not None:  # the rig uses ids of topics again
                    self.shown[broker, key] = broker.state.leader_epoch(key)
                    assert self.shown[broker, key] >= before

    @invariant()
    def an_epoch_is_shown_once_it_is_in_a_node_that_can_be_written(self):
        for broker in self.brokers.values():
            for key in KEYS:
                topic = broker.state.get(key.topic_id)
                if topic is None or key.topic_id not in self.store.owners:
                    continue
                shown = broker.state.leader_epoch(key)
                if shown != topic.exposed.get(key.partition):
                    _, owners = self.store.owners[key.topic_id]
                    assert shown <= owners.last_epoch(key.partition, 0)

    @invariant()
    def candidates_are_those_of_the_listed_brokers_and_known_topics(self):
        for broker in self.brokers.values():
            stay = [each.node_id for each in broker.listed.values() if not each.leaving]
            if broker.leaving and broker.node_id in stay:
                stay.remove(broker.node_id)
            expected = Assignment(Ring(stay), broker.sizes.items())
            for topic_id in broker.sizes:
                found = broker.state.assignment().candidates(topic_id)
                assert list(found) == list(expected.candidates(topic_id))

    @invariant()
    def a_task_waits_while_there_is_something_to_wait_for(self):
        for broker in self.brokers.values():
            moving = set(broker.state.moving_keys())
            for what, key, _ in broker.waiting:
                if what == "moved":
                    assert key in moving
                elif what == "published":
                    assert key.partition in broker.state.get(key.topic_id).unpublished

    @invariant()
    def a_topic_that_is_not_due_has_nothing_to_do(self):
        for broker in self.brokers.values():
            state = broker.state
            if state._all_due:
                continue
            for topic_id, topic in state._topics.items():
                if topic_id not in state._due:
                    assert all(
                        holder.token in broker.listed or holder.token in broker.dead
                        for holder in topic.owners.holders
                        if holder != NOBODY
                    )
                    assert not topic.moving
                    assert not state.wants_change(topic)
                    assert state.next_owners(topic) is None
                    effects = state.apply(topic)
                    assert all(isinstance(effect, Resume) for effect in effects)
                    broker.carry_out(effects)

    def teardown(self):
        """With all views up to date, each partition gets one live leader, and no task waits.

        A broker that leaves ends: it opens no partition any more, and may be unable to give one
        away.
        """
        for node in NODES:
            if self.brokers[node].leaving:
                self.end_session(node)
                self.read_members(node)
                self.restart(node)
        if not any(broker.lives_still and not broker.leaving for broker in self.brokers.values()):
            for node in NODES:
                self.end_session(node)
                self.read_members(node)
                self.restart(node)
            self.register(NODES[0])
        for _ in range(6):
            self.all_read_and_do_a_round()
            for broker in self.brokers.values():
                led = broker.state.leader
                broker.open_all([key for key in sorted(broker.open) if led(key).epoch < 0])
        live = [broker for broker in self.brokers.values() if broker.lives_still]
        for topic_id, count in self.store.topics.items():
            for partition in range(count):
                key = StreamKey(topic_id, partition)
                (owner,) = [broker for broker in live if broker.state.owns(key)]
                leader = Leader(owner.node_id, self.store.epochs[key])
                assert {broker.state.leader(key) for broker in live} == {leader}
            assert all(broker.state.is_led(topic_id) for broker in live)
        for broker in self.brokers.values():
            broker.carry_out(broker.state.close())
            assert not broker.waiting


def _holds(broker, key):
    topic = broker.state.get(key.topic_id)
    return topic is not None and key.partition in topic.held


def _leader(broker, key):
    """By the definition: what this broker holds, else what the node says of a listed broker."""
    epoch = broker.applied.get(key.topic_id, {}).get(key.partition)
    if epoch is not None:
        topic = broker.state.get(key.topic_id)
        hidden = key.partition in topic.unpublished and topic.exposed.get(key.partition) != epoch
        return Leader(broker.node_id, -1 if hidden else epoch)
    if broker.state.get(key.topic_id) is None:
        return Leader()
    rows = broker.read.get(key.topic_id, (-1, Owners()))[1].rows()
    owner, epoch = rows[key.partition] if key.partition < len(rows) else (NOBODY, -1)
    member = broker.listed.get(owner.token)
    if member is None or owner.token == broker.token:
        return Leader()
    return Leader(member.node_id, epoch)


TestRandomWalk = pytest.mark.slow(RandomWalk.TestCase)
TestRandomWalk.settings = settings(max_examples=150, stateful_step_count=50, deadline=None)


# -- scale: a round examines what changed, however many topics there are ---------------------------


def one_broker(topic_count):
    store = Store()
    broker = Broker(store, 1)
    store.live[broker.token] = ClusterMember(1, "host", 9092, "", broker.token)
    broker.registered = True
    store.topics = {UUID(int=number): 1 for number in range(topic_count)}
    broker.read_members()
    broker.read_topics()
    broker.round()
    broker.round()  # what was written is examined once more
    assert len(broker.open) == topic_count
    return broker


def test_a_round_examines_only_the_topics_that_changed():
    broker = one_broker(1_000)
    assert broker.take_due() == []
    key = StreamKey(UUID(int=7), 0)
    broker.open_held(key)
    for _ in range(2):  # it publishes, and examines what it wrote
        assert [topic.topic_id for topic in broker.state._due.values()] == [key.topic_id]
        broker.round()
    assert broker.take_due() == []


def test_a_broker_joins_when_a_list_has_it_for_the_first_time():
    store = Store()
    broker = Broker(store, 1)
    store.live["one"] = ClusterMember(1, "host", 9092, "", broker.token)
    store.live["two"] = two = ClusterMember(2, "host", 9092, "", "two")
    broker.listed = dict(store.live)
    assert broker.state.on_brokers() == []  # the first list has no news
    broker.listed = {**store.live, "three": ClusterMember(3, "host", 9092, "", "three")}
    assert broker.state.on_brokers() == [3]
    broker.listed = {**store.live, "two": two._replace(token="again", leaving=True)}
    assert broker.state.on_brokers() == []
    assert broker.state.ring.nodes == (1,)


def test_a_drained_partition_that_this_broker_keeps_is_gained_again():
    broker = one_broker(1)
    key = StreamKey(UUID(int=0), 0)
    broker.open_held(key)
    broker.drain(key)
    assert not broker.state.owns(key)
    effects = broker.state.apply(broker.state.get(key.topic_id))
    assert Gained(key) in effects
    assert broker.state.leader(key) == Leader(1, -1)
    assert broker.state.note_opened(key, 0) is not None  # whatever was opened before is void


def test_what_a_leaving_broker_is_given_is_passed_on_unopened():
    broker = one_broker(1)
    broker.carry_out(broker.state.on_session_ended())
    broker.leaving = True
    topic = broker.state.get(UUID(int=0))
    assert not any(isinstance(effect, Gained) for effect in broker.state.apply(topic))
    assert broker.state.moving_keys() == [StreamKey(UUID(int=0), 0)]
    assert broker.state.next_owners(topic).owner(0) == Incarnation(1, broker.token)


# -- cases that a walk of this length seldom meets -------------------------------------------------


def two_brokers(partitions=8):
    """Both own a part of one topic and know each other. Returns the first, its keys, the second."""
    store = Store()
    one, two = Broker(store, 1), Broker(store, 2)
    for broker in (one, two):
        store.live[broker.token] = ClusterMember(broker.node_id, "host", 9092, "", broker.token)
        broker.registered = True
    store.topics = {TOPICS[0]: partitions}
    for _ in range(2):
        for broker in (one, two):
            broker.read_all()
            broker.round()
    return one, sorted(one.open), two


def test_an_owner_that_is_not_listed_is_not_dead():
    one, _, two = two_brokers()
    owned = set(two.open)
    del one.listed[two.token]  # an old list
    one.state.on_brokers()
    one.round()
    topic = one.state.get(TOPICS[0])
    assert one.state.next_owners(topic) is None
    assert not owned & one.open
    one.store.live.pop(two.token)
    one.round()  # looks it up
    assert owned <= one.open


def test_a_hand_over_ends_when_the_node_turns_out_corrupt():
    one, mine, _ = two_brokers()
    one.leaving = True
    one.state.on_brokers()
    one.drain(mine[0])
    one.corrupt_owners(TOPICS[0])
    effects = one.state.apply(one.state.get(TOPICS[0]))
    assert [type(effect) for effect in effects] == [Resume]  # it leaves, so it opens nothing
    assert one.state.moving_keys() == []
    assert one.state.held_keys() == []
    one.leaving = False
    assert one.state.start_drain(mine[1]) is False


def test_what_a_leaving_broker_cannot_give_away_is_taken_over_when_it_ends():
    walk = RandomWalk()
    walk.start({1, 2}, {TOPICS[0]: 3})
    leaver = walk.brokers[1]
    key = sorted(leaver.open)[0]
    walk.leave(1)
    leaver.drain(key)
    walk.read_corrupt_owners(1, TOPICS[0])
    walk.round(1, lose_reply=False)
    assert leaver.state.owns(key)
    assert key not in leaver.open, "nobody opened it"
    walk.teardown()


def test_an_epoch_from_before_a_drain_is_not_published_after_it():
    one, mine, two = two_brokers()
    one.open_held(mine[0])
    one.store.live.pop(two.token)
    one.drain(mine[0])
    one.read_members()  # the only broker is the candidate of everything
    topic = one.state.get(TOPICS[0])
    one.carry_out(one.state.apply(topic))
    assert mine[0] in one.open
    assert not one.waiting
    assert topic.unpublished == {}


def test_a_node_that_was_read_and_not_applied_yet_is_not_overwritten():
    one, mine, two = two_brokers()
    one.leaving = True
    one.state.on_brokers()
    for key in mine:
        one.open_held(key)
    one.drain(mine[0])
    topic = one.state.get(TOPICS[0])
    taken = topic.owners.changed(dict.fromkeys((key.partition for key in mine), two.incarnation))
    one.state.on_owners(TOPICS[0], taken)
    assert one.state.next_owners(topic) is None
    lost = [effect.key for effect in one.state.apply(topic) if isinstance(effect, Lost)]
    assert lost == mine


def test_a_partition_that_was_claimed_and_not_applied_yet_has_no_leader():
    one, _, _ = two_brokers()
    topic = one.state.get(TOPICS[0])
    free = 8
    one.state.on_owners(TOPICS[0], topic.owners.changed({free: one.incarnation}))
    assert one.state.leader(StreamKey(TOPICS[0], free)) == Leader()
    one.carry_out(one.state.apply(topic))
    assert one.state.leader(StreamKey(TOPICS[0], free)) == Leader(1, -1)


def test_after_the_session_ended_every_topic_is_examined():
    one, _, _ = two_brokers()
    assert one.take_due() == []
    one.end()
    assert [topic.topic_id for topic in one.state.take_due()] == TOPICS[:1]
