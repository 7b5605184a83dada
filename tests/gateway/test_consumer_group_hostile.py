"""Goal: what no member of the consumer protocol should send gets Kafka's code and text, changes
nothing, and neither holds the loop nor takes memory without a bound.

Method: real requests to a coordinator over simulated bookies, on virtual time; processor time of
single calls of the pure core; and groups with small limits.
"""

import asyncio
from dataclasses import replace
from uuid import UUID

import pytest

from gateway.core.consumer_members import (
    ConsumerHeartbeat,
    ConsumerMember,
    ConsumerRefused,
    Now,
    RecordKey,
    RecordKind,
    ResolvedRegex,
)
from gateway.groups.topic_patterns import pattern_fault
from tests.gateway.consumer_rig import TIMING, FakeTopics, copy_of, fresh_group
from tests.gateway.consumer_world import partitions
from tests.gateway.test_consumer_group_handlers import world
from tests.steps import counted

MANY = 10_000
STEPS_MAX = 10_000_000  # of the interpreter, for one heartbeat that moves 10,000 partitions
PIECES_MIN = 40  # of an assignment of 4,000 topics; between two of them others run
HOST = "/1.2.3.4"


async def two_members(w):
    """Let `b` take two of the four partitions of `a`, and return those that `a` keeps."""
    await w.beat("a")
    await w.beat("b")
    kept = partitions(await w.beat("a", 2, topic_partitions=w.owned(0, 1, 2, 3)))
    assert (await w.beat("a", 2, topic_partitions=w.owned(*kept))).member_epoch == 3
    return kept


# epochs and ids


@pytest.mark.parametrize("extra", ["another partition", "an unknown topic", "nothing reported"])
async def test_an_epoch_behind_is_fenced_unless_the_member_owns_only_what_it_was_given(extra):
    async with world() as w:
        kept = await two_members(w)
        (gone, _) = sorted({0, 1, 2, 3} - set(kept))
        owned = {
            "another partition": w.owned(*kept, gone),
            "an unknown topic": [*w.owned(*kept), {"topic_id": UUID(int=7), "partitions": [0]}],
            "nothing reported": None,
        }[extra]
        before = await w.described()
        reply = await w.beat("a", 2, topic_partitions=owned)
        assert reply.error_code.name == "fenced_member_epoch"
        assert reply.error_message == (
            "The consumer group member has a smaller member epoch (2) than the one known by the "
            "group coordinator (3). The member must abandon all its partitions and rejoin."
        )
        assert await w.described() == before
        again = await w.beat("a", 2, topic_partitions=w.owned(*kept))
        assert (again.error_code.name, again.member_epoch) == ("none", 3)


@pytest.mark.parametrize("epoch", [3, 99, 2**31 - 1])
async def test_an_epoch_ahead_is_fenced_whatever_the_member_owns(epoch):
    async with world() as w:
        await w.beat("a")
        before = await w.described()
        for owned in (None, [], w.owned(0, 1, 2, 3)):
            reply = await w.beat("a", epoch, topic_partitions=owned)
            assert reply.error_code.name == "fenced_member_epoch"
            assert f"greater member epoch ({epoch})" in reply.error_message
        assert await w.described() == before


async def test_two_clients_with_one_id_are_one_member_and_no_partition_is_given_twice():
    async with world() as w:
        first = await w.beat("a")
        second = await w.beat("a")  # the other client joins by the same id
        assert (first.member_epoch, second.member_epoch) == (2, 2)
        assert partitions(second) == partitions(first) == [0, 1, 2, 3]
        await w.beat("b")
        kept = partitions(await w.beat("a", 2, topic_partitions=w.owned(0, 1, 2, 3)))
        assert (await w.beat("a", 2, topic_partitions=w.owned(*kept))).member_epoch == 3
        late = await w.beat("a", 2, topic_partitions=w.owned(0, 1, 2, 3))
        assert late.error_code.name == "fenced_member_epoch"
        members = (await w.described()).members
        assert [each.member_id for each in members] == ["a", "b"]
        assert (await w.beat("a", -1)).error_code.name == "none"
        gone = await w.beat("a", 3)  # one client has left for both
        assert gone.error_code.name == "unknown_member_id"


async def test_two_static_members_with_one_instance_id_are_not_both_admitted():
    async with world() as w:
        await w.beat("a", instance_id="i")
        before = await w.described()
        refused = await w.beat("b", instance_id="i")
        assert refused.error_code.name == "unreleased_instance_id"
        posing = await w.beat("b", 2, instance_id="i")
        assert posing.error_code.name == "fenced_instance_id"
        assert await w.described() == before


@pytest.mark.parametrize(
    ("field", "code", "text"),
    [
        ("topic_partitions", "invalid_request", "TopicPartitions must be empty when (re-)joining."),
        (
            "subscribed_topic_names",
            "invalid_request",
            "Either SubscribedTopicNames or SubscribedTopicRegex must be non-null when "
            "(re-)joining.",
        ),
    ],
)
async def test_a_null_that_a_first_heartbeat_must_not_have_creates_no_group(field, code, text):
    async with world() as w:
        reply = await w.beat("a", **{field: None})
        assert (reply.error_code.name, reply.error_message) == (code, text)
        assert (await w.described()).error_code.name == "group_id_not_found"
        assert await w.groups.list() == []


# many topics


async def test_very_many_unknown_topics_cost_little_and_give_nothing():
    async with world() as w:
        unknown = [{"topic_id": UUID(int=at + 1), "partitions": [0]} for at in range(MANY)]
        names = [f"none-{at}" for at in range(2_000)]
        reply = await w.beat("a", subscribed_topic_names=names)
        assert (reply.error_code.name, partitions(reply)) == ("none", [])
        adds = w.process.steps.adds
        with counted() as steps:
            reply = await w.beat("a", reply.member_epoch, topic_partitions=unknown)
        assert steps.count < STEPS_MAX
        assert (reply.error_code.name, partitions(reply)) == ("none", None)
        assert w.process.steps.adds == adds


class Topics(FakeTopics):
    """Topics whose ids are found by a table, as a catalog finds them."""

    def __init__(self, count):
        super().__init__()
        for at in range(count):
            self.make(f"topic-{at}", 1)
        self._by_id = {each.topic_id: each for each in self.known.values()}

    def by_id(self, topic_id):
        return self._by_id.get(topic_id)


def beat(group, known, member, epoch=0, **fields):
    """Send a heartbeat to the core. Returns the outcome."""
    full = {"rebalance_timeout_ms": 60_000, "owned": {}} if epoch == 0 else {}
    request = ConsumerHeartbeat(member_id=member, epoch=epoch, client_host=HOST, **(full | fields))
    return group.heartbeat(request, Now(0, known, TIMING))


@pytest.mark.slow
@pytest.mark.parametrize("assignor", ["uniform", "range"])
def test_ten_thousand_topics_in_each_heartbeat_hold_the_loop_only_briefly(assignor):
    """Looking for each topic in a list of all took three seconds for each member that joined."""
    topics, group = Topics(MANY), fresh_group()
    names = frozenset(topics.known)
    longest = 0
    for member in ("a", "b", "c"):
        with counted() as steps:
            outcome = beat(group, topics, member, topics=names, assignor=assignor)
        longest = max(longest, steps.count)
    held = {topic: frozenset(some) for topic, some in group.members["a"].assigned.items()}
    assert sum(map(len, held.values())) == MANY
    with counted() as steps:
        beat(group, topics, "a", 2, topics=names, owned=held)
    assert max(longest, steps.count) < STEPS_MAX
    targets = [sum(map(len, each.values())) for each in group.roster.targets.values()]
    assert sum(targets) == MANY
    assert assignor == "range" or max(targets) - min(targets) <= 1  # topics of one partition
    assert outcome.answer.assigned == {}


async def test_a_storm_of_heartbeats_that_change_nothing_writes_nothing_and_keeps_nothing():
    async with world() as w:
        await w.beat("a")
        adds, bytes_used = w.process.steps.adds, w.groups._loaded_groups.memory.size_bytes
        replies = await asyncio.gather(*(w.beat("a", 2) for _ in range(500)))
        assert {(each.error_code.name, each.member_epoch) for each in replies} == {("none", 2)}
        assert w.process.steps.adds == adds
        assert w.groups._loaded_groups.memory.size_bytes == bytes_used


async def test_a_storm_of_changed_subscriptions_leaves_the_memory_of_one():
    async with world() as w:
        await w.beat("a")
        used = w.groups._loaded_groups.memory.size_bytes
        epoch = 2
        for at in range(100):
            names = ["t", "u"] if at % 2 == 0 else ["t"]
            reply = await w.beat("a", epoch, subscribed_topic_names=names)
            assert reply.error_code.name == "none"
            epoch = reply.member_epoch
        assert w.groups._loaded_groups.memory.size_bytes == used
        assert len((await w.described()).members) == 1


# limits of one group


async def test_one_member_more_than_a_group_may_have_is_refused_in_kafkas_words():
    async with world(consumer_members_max=2) as w:
        for member in ("a", "b"):
            assert (await w.beat(member)).error_code.name == "none"
        before = await w.described()
        reply = await w.beat("c")
        assert reply.error_code.name == "group_max_size_reached"
        assert reply.error_message == (
            "The consumer group has reached its maximum capacity of 2 members."
        )
        assert await w.described() == before
        assert (await w.beat("a")).error_code.name == "none"  # a member joins again
        assert (await w.beat("b", -1)).error_code.name == "none"
        assert (await w.beat("c")).error_code.name == "none"


async def test_members_that_would_be_too_large_together_are_refused_and_may_shrink():
    async with world(group_bytes_max=2_000) as w:
        large = [f"topic-{at:04}" for at in range(40)]
        reply = await w.beat("a", subscribed_topic_names=large)
        assert reply.error_code.name == "none"
        before = await w.described()
        refused = await w.beat("b", subscribed_topic_names=large)
        assert refused.error_code.name == "group_max_size_reached"
        assert refused.error_message == (
            "The members of the consumer group would take more than 2000 bytes."
        )
        more = [*large, *(f"more-{at:04}" for at in range(40))]
        refused = await w.beat("a", reply.member_epoch, subscribed_topic_names=more)
        assert refused.error_code.name == "group_max_size_reached"
        assert await w.described() == before
        shrunk = await w.beat("a", reply.member_epoch, subscribed_topic_names=["t"])
        assert shrunk.error_code.name == "none"
        assert (await w.beat("b")).error_code.name == "none"


def of_regex(regex):
    return {"subscribed_topic_names": None, "subscribed_topic_regex": regex}


async def test_one_expression_more_than_a_group_may_have_is_refused():
    async with world(consumer_regexes_max=2) as w:
        for member, regex in (("a", "x.*"), ("b", "y.*"), ("c", "x.*")):
            assert (await w.beat(member, **of_regex(regex))).error_code.name == "none"
        before = await w.described()
        reply = await w.beat("d", **of_regex("z.*"))
        assert reply.error_code.name == "invalid_regular_expression"
        assert reply.error_message == (
            "SubscribedTopicRegex `z.*` is not a valid regular expression: its group has 2 others, "
            "and at most 2 are allowed."
        )
        assert await w.described() == before
        # The only member with an expression may replace it.
        assert (await w.beat("b", **of_regex("z.*"))).error_code.name == "none"
        assert (await w.beat("d", **of_regex("y.*"))).error_code.name == (
            "invalid_regular_expression"
        )
        assert (await w.beat("b", -1)).error_code.name == "none"
        assert (await w.beat("d", **of_regex("y.*"))).error_code.name == "none"


async def test_the_topics_of_expressions_count_for_the_address_that_brought_them():
    async with world() as w:
        memory = w.groups._loaded_groups.memory
        reply = await w.beat("a", **of_regex("none-.*"))
        await asyncio.sleep(1)
        used = memory.size_bytes
        for at in range(20):
            await w.catalog.create(f"none-{at}", 1, 1, {})
        await asyncio.sleep(11)
        await w.beat("a", reply.member_epoch)
        await asyncio.sleep(1)
        assert memory.size_bytes == used + 20 * 64
        assert (await w.beat("a", -1)).error_code.name == "none"
        assert memory.size_bytes == 0


def joined(group, topics, member, regex):
    return beat(group, topics, member, regex=regex)


def bytes_of(group):
    """Return the memory that a group counts, as if it had not been looked at yet."""
    return sum(group.roster.take_byte_changes().values())


def test_the_memory_of_expressions_is_given_back_in_every_order():
    topics, group = Topics(30), fresh_group(regex_fault=pattern_fault)
    total = 0
    joined(group, topics, "a", "topic-1.*")
    joined(group, topics, "b", "topic-1.*")
    found = frozenset(name for name in topics.known if name.startswith("topic-1"))
    group.on_resolved({"topic-1.*": found}, 30, 0, Now(0, topics, TIMING))
    total += bytes_of(group)
    assert total == group.roster.size_bytes + 64 * len(found)
    again = copy_of(group)  # a broker that takes the group over counts the same
    assert bytes_of(again) == total
    for member in ("a", "b"):  # the host of the expression stays until its last member goes
        moved = replace(group.members[member], client_host="/9.9.9.9")
        group.roster.apply(RecordKey(RecordKind.MEMBER, member), moved)
    total += bytes_of(group)
    group.remove(["a"], Now(0, topics, TIMING))
    group.remove(["b"], Now(0, topics, TIMING))
    total += bytes_of(group)
    assert (total, group.roster.size_bytes) == (0, 0)
    assert not group.roster.resolved


def test_a_resolved_expression_without_a_member_is_counted_and_given_back():
    group = fresh_group()
    key = RecordKey(RecordKind.REGEX, "x.*")
    group.roster.apply(key, ResolvedRegex(frozenset({"x1", "x2"})))
    assert bytes_of(group) == 128
    group.roster.apply(key, None)
    assert bytes_of(group) == -128


def test_a_static_member_that_comes_back_to_a_full_group_does_not_count_twice():
    topics = Topics(3)
    one = ConsumerMember(member_id="a", instance_id="i", client_host=HOST)
    names = frozenset(topics.known)
    size = replace(one, topics=names).size_bytes
    group = fresh_group(bytes_max=size + 10)
    beat(group, topics, "a", topics=names, instance_id="i")
    beat(group, topics, "a", -2, instance_id="i")
    outcome = beat(group, topics, "b", topics=names, instance_id="i")
    assert outcome.answer.member_id == "b"
    with pytest.raises(ConsumerRefused):
        beat(group, topics, "c", topics=names)


# assignments that take long


def mixed(topics, count):
    """Return a group whose members subscribe to different thousands of topics."""
    group, names = fresh_group(), sorted(topics.known)
    for at in range(count):
        some = frozenset(names[at : at + len(names) - count])
        beat(group, topics, f"m{at}", topics=some)
    return group


def steps_due(group, topics):
    """Return the steps of the next target, which a heartbeat of the first member begins."""
    group.on_assigned(None)  # those of the last join are not run
    outcome = beat(group, topics, "m0", group.members["m0"].epoch)
    return outcome.assign


def run(steps):
    """Run all steps. Returns the targets, and the number of pauses."""
    pauses = 0
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return end.value, pauses
        pauses += 1


@pytest.mark.slow
def test_different_subscriptions_to_very_many_topics_are_assigned_step_by_step():
    topics = Topics(4_000)
    group = mixed(topics, 10)
    before, assigned = group.assignment_epoch, dict(group.roster.targets)
    steps = steps_due(group, topics)
    again = beat(group, topics, "m1", group.members["m1"].epoch)
    assert again.assign is None  # one at a time
    found, pauses = run(steps)
    assert pauses >= PIECES_MIN
    assert (group.assignment_epoch, dict(group.roster.targets)) == (before, assigned)
    beat(group, topics, "m9", -1)  # it leaves meanwhile
    changes = group.on_assigned(found)
    assert RecordKey(RecordKind.TARGET, "m9") not in changes
    assert group.assignment_epoch == group.epoch - 1
    sizes = [sum(map(len, each.values())) for each in group.roster.targets.values()]
    assert len(sizes) == 9 and max(sizes) - min(sizes) <= 1
    assert steps_due(group, topics) is not None  # the epoch of the leave has no target yet


@pytest.mark.slow
def test_a_target_that_names_a_static_member_by_its_former_id_is_not_taken():
    topics = Topics(4_000)
    group = mixed(topics, 10)
    beat(group, topics, "m0", group.members["m0"].epoch, instance_id=None)
    beat(group, topics, "s", topics=frozenset(topics.known), instance_id="i")
    beat(group, topics, "s", -2, instance_id="i")
    steps = steps_due(group, topics)
    beat(group, topics, "z", topics=frozenset(topics.known), instance_id="i")
    before = group.assignment_epoch
    assert group.on_assigned(run(steps)[0]) == {}
    assert group.assignment_epoch == before
    assert steps_due(group, topics) is not None


@pytest.mark.slow
async def test_other_tasks_run_while_a_large_group_is_assigned():
    async with world() as w:
        names = [f"many-{at}" for at in range(1_500)]
        await asyncio.gather(*(w.catalog.create(name, 1, 1, {}) for name in names))
        for at in range(14):
            reply = await w.beat(f"m{at}", subscribed_topic_names=names[at:])
            assert reply.error_code.name == "none"
        group = w.groups._loaded_groups.groups["g"].consumer
        last = asyncio.ensure_future(w.beat("m14", subscribed_topic_names=names[14:]))
        turns = 0
        for _ in range(300):
            turns += group._assigning is not None
            await asyncio.sleep(0)
        assert turns > 10
        assert (await last).error_code.name == "none"
        for _ in range(12):
            await asyncio.sleep(2)
            for member in [f"m{at}" for at in range(15)]:
                owned = [
                    {"topic_id": topic, "partitions": sorted(some)}
                    for topic, some in group.members[member].assigned.items()
                ]
                at = group.members[member].epoch
                await w.beat(member, at, topic_partitions=owned)
        described = await w.described()
        assert described.group_state == "Stable"
        held = [
            sum(len(row.partitions) for row in each.assignment.topic_partitions)
            for each in described.members
        ]
        assert sum(held) == 1_500 and max(held) - min(held) <= 1
