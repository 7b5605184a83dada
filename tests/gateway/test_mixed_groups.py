"""Goal: classic members of a group of the consumer protocol get Kafka's answers from durable state.

Method: real requests of both protocols to one coordinator over simulated bookies, on virtual time.
Topic `t` has four partitions.
"""

import asyncio

import pytest

from gateway.core.consumer_members import ConsumerRefused, Now
from gateway.core.consumer_protocol import encode_assignment
from gateway.core.group_members import Joining
from tests.gateway.consumer_rig import TIMING, Client, FakeTopics, beat, copy_of, fresh_group
from tests.gateway.consumer_world import partitions
from tests.gateway.mixed_rig import (
    assigned,
    classic_member,
    heartbeat,
    join,
    leave,
    rejoin,
    sync,
)
from tests.gateway.subscription_bytes import subscription
from tests.gateway.test_consumer_group_handlers import world

ALL = (0, 1, 2, 3)


async def mixed(w):
    """Let `a` of the consumer protocol and a classic member share the topic. Returns the latter."""
    await w.beat("a")
    other = await classic_member(w)
    assert other.partitions == ()
    kept = partitions(await w.beat("a", 2, topic_partitions=w.owned(*ALL)))
    await w.beat("a", 2, topic_partitions=w.owned(*kept))
    assert await heartbeat(w, other.member_id, other.generation) == "rebalance_in_progress"
    other = await rejoin(w, other)
    assert sorted((*kept, *other.partitions)) == list(ALL)
    return other


async def classic_group(w, count=2, assignments=None):
    """Let classic members form a classic group. Returns their ids, the leader first."""
    ids = [(await join(w)).member_id for _ in range(count)]
    joins = [asyncio.ensure_future(join(w, each)) for each in ids]
    joined = [await each for each in joins]
    generation = joined[0].generation_id
    shares = {each: ALL[number::count] for number, each in enumerate(ids)}
    rows = [(each, encode_assignment([("t", some)], 3)) for each, some in shares.items()]
    leader = joined[0].leader
    syncs = [
        asyncio.ensure_future(
            sync(w, each, generation, assignments=(assignments or rows) if each == leader else ())
        )
        for each in ids
    ]
    for each in syncs:
        assert (await each).error_code.name == "none"
    return ids, generation


async def test_a_classic_member_gets_partitions_once_they_are_released():
    async with world() as w:
        other = await mixed(w)
        assert await heartbeat(w, other.member_id, other.generation) == "none"
        found = await w.described()
        assert found.group_state == "Stable"
        assert {each.member_type for each in found.members} == {0, 1}


async def test_a_cooperative_member_keeps_its_partitions_until_it_has_given_them_up():
    async with world(initial_rebalance_delay_ms=100) as w:
        (name,), generation = await classic_group(w, 1)
        epoch = (await w.beat("b")).member_epoch
        assert await heartbeat(w, name, generation) == "rebalance_in_progress"
        told = await join(w, name, ALL, generation)
        assert told.generation_id == generation  # it has not moved on
        kept = assigned(await sync(w, name, generation))
        assert len(kept) == 2
        assert partitions(await w.beat("b", epoch)) is None
        assert await heartbeat(w, name, generation) == "rebalance_in_progress"
        moved = await join(w, name, kept, generation)
        assert moved.generation_id == generation + 1
        given = partitions(await w.beat("b", epoch))
        assert sorted((*kept, *given)) == list(ALL)


async def test_an_eager_member_moves_on_by_one_join():
    async with world(initial_rebalance_delay_ms=100) as w:
        (name,), generation = await classic_group(w, 1)
        epoch = (await w.beat("b")).member_epoch
        moved = await join(w, name, (), generation)
        assert moved.generation_id == generation + 1
        kept = assigned(await sync(w, name, generation + 1))
        given = partitions(await w.beat("b", epoch))
        assert sorted((*kept, *given)) == list(ALL)


async def test_a_new_member_gets_an_id_first_and_older_versions_join_at_once():
    async with world() as w:
        await w.beat("a")
        reply = await join(w)
        assert (reply.error_code.name, bool(reply.member_id)) == ("member_id_required", True)
        old = await join(w, version=3)
        assert (old.error_code.name, old.generation_id) == ("none", 3)
        assert (old.leader, old.members) == ("", ())


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"protocol_type": "connect"}, "inconsistent_group_protocol"),
        ({"names": ("sticky",)}, "inconsistent_group_protocol"),
        ({"names": ()}, "inconsistent_group_protocol"),
        ({"names": ("sticky", "range")}, "none"),
        ({"metadata": b"meta"}, "unknown_server_error"),
        ({"owned": (1,)}, "unknown_member_id"),  # a fenced member; Kafka lets it join at once
        ({"group_instance_id": "i"}, "unknown_member_id"),
    ],
)
async def test_a_join_that_does_not_suit_the_group_is_refused(fields, code):
    async with world() as w:
        await mixed(w)
        before = await w.described()
        reply = await join(w, "x", **fields)
        assert reply.error_code.name == code
        assert (await w.described() == before) == (code != "none")


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"member": "a", "generation": 4}, "unknown_member_id"),
        ({"member": "x"}, "unknown_member_id"),
        ({"generation": 1}, "illegal_generation"),
        ({"generation": 9}, "illegal_generation"),
        ({"group_instance_id": "i"}, "unknown_member_id"),
        ({"protocol_type": "connect"}, "inconsistent_group_protocol"),
        ({"protocol_name": "sticky"}, "inconsistent_group_protocol"),
        ({}, "none"),
    ],
)
async def test_a_sync_that_does_not_suit_the_member_is_refused(change, code):
    async with world() as w:
        member = await mixed(w)
        asked = {"member": member.member_id, "generation": member.generation} | change
        reply = await sync(w, asked.pop("member"), asked.pop("generation"), **asked)
        assert reply.error_code.name == code
        assert assigned(reply) == (member.partitions if code == "none" else ())


async def test_a_heartbeat_has_the_codes_of_kafka():
    async with world() as w:
        member = await mixed(w)
        name, generation = member.member_id, member.generation
        assert await heartbeat(w, name, generation) == "none"
        assert await heartbeat(w, name, generation - 1) == "illegal_generation"
        assert await heartbeat(w, "a", 3) == "unknown_member_id"
        assert await heartbeat(w, "x", 3) == "unknown_member_id"
        await w.beat("b")
        assert await heartbeat(w, name, generation) == "rebalance_in_progress"
        assert (await sync(w, name, generation)).error_code.name == "rebalance_in_progress"


async def test_the_generation_of_a_commit_is_the_epoch_of_the_member():
    async with world() as w:
        member = await mixed(w)
        mine = member.partitions[0]
        name, generation = member.member_id, member.generation
        assert await w.commit_at(name, generation, 5, mine, version=8) == "none"
        assert await w.commit_at(name, generation + 1, 6, mine) == "illegal_generation"
        assert await w.commit_at(name, generation - 1, 6, mine) == "illegal_generation"
        assert await w.commit_at("x", generation, 6, mine) == "unknown_member_id"
        assert await w.fetched_by(name, generation) == "none"
        assert await w.fetched_by(name, generation - 1) == "illegal_generation"
        assert await w.committed("g", mine) == 5


async def test_a_fenced_member_that_still_reads_does_not_come_back_with_its_partitions():
    async with world() as w:
        member = await mixed(w)
        await asyncio.sleep(4)
        await w.beat("a", 3)
        await asyncio.sleep(7)  # the session of the classic member alone has ended
        assert list(w.loaded["g"].consumer.members) == ["a"]
        assert await heartbeat(w, member.member_id, member.generation) == "unknown_member_id"
        zombie = await join(w, member.member_id, member.partitions, member.generation)
        assert zombie.error_code.name == "unknown_member_id"
        committed = await w.commit_at(member.member_id, member.generation, 5, member.partitions[0])
        assert committed == "unknown_member_id"
        assert partitions(await w.beat("a", 3)) == list(ALL)
        again = await join(w, member.member_id, member.partitions)  # some keep what they had
        assert again.error_code.name == "none"
        assert assigned(await sync(w, member.member_id, again.generation_id)) == ()


def test_a_member_that_another_broker_fenced_joins_again_only_after_it_learned_of_that():
    topics = FakeTopics()
    topics.make("t", 4)
    group = fresh_group(downgrades=False)
    beat(group, Client("a"), topics)
    taken, codes = copy_of(group), []
    for member_id, owned in (("new", ()), ("z", [0]), ("z", [0])):
        joining = Joining(
            member_id=member_id,
            protocol_type="consumer",
            protocols=(("range", subscription(["t"], owned, 2)),),
            session_timeout_ms=10_000,
            rebalance_timeout_ms=20_000,
            fresh_id="fresh",
        )
        try:
            codes.append(taken.join(joining, Now(0, topics, TIMING)).joined.error.name)
        except ConsumerRefused as refused:
            codes.append(refused.code.name)
    assert codes == ["none", "unknown_member_id", "none"]


@pytest.mark.parametrize("joins", [False, True])
async def test_a_member_that_does_not_join_or_sync_in_time_is_fenced(joins):
    async with world() as w:
        member = await mixed(w)
        await w.beat("b")
        for _ in range(9):
            await heartbeat(w, member.member_id, member.generation)
            await asyncio.sleep(3)
            for name in "ab":
                await w.beat(name, w.loaded["g"].consumer.members[name].epoch)
            if joins:
                member = member._replace(generation=(await join(w, member.member_id)).generation_id)
                joins = False
        assert sorted(w.loaded["g"].consumer.members) == ["a", "b"]


async def test_the_group_is_upgraded_with_its_members_assignments_and_offsets():
    async with world(initial_rebalance_delay_ms=100) as w:
        ids, generation = await classic_group(w)
        assert await w.commit_at(ids[0], generation, 7, 0) == "none"
        reply = await w.beat("a")
        assert (reply.error_code.name, reply.member_epoch) == ("none", generation + 1)
        assert partitions(reply) == []
        found = {each.member_id: each for each in (await w.described()).members}
        assert {found[each].member_epoch for each in ids} == {generation}
        held = [
            sorted(p for row in found[each].assignment.topic_partitions for p in row.partitions)
            for each in ids
        ]
        assert held == [[0, 2], [1, 3]]
        assert (await w.store.read("g")).note == b""
        assert await heartbeat(w, ids[0], generation) == "rebalance_in_progress"
        assert await w.commit_at(ids[0], generation, 8, 0, version=8) == "none"
        assert await w.committed("g") == 8


@pytest.mark.parametrize(
    ("policy", "why"),
    [
        ("downgrade", "online upgrade is disabled."),
        ("disabled", "online upgrade is disabled."),
    ],
)
async def test_a_policy_without_upgrades_keeps_the_classic_group(policy, why):
    async with world(initial_rebalance_delay_ms=100, migration_policy=policy) as w:
        ids, generation = await classic_group(w)
        reply = await w.beat("a")
        assert reply.error_code.name == "group_id_not_found"
        assert reply.error_message == (
            f"Cannot upgrade classic group g to consumer group because {why}"
        )
        assert await heartbeat(w, ids[0], generation) == "none"


@pytest.mark.parametrize(
    ("rows", "why"),
    [
        (b"\x00\x00\x00", "the embedded consumer protocol is malformed."),
        (encode_assignment([("t", ALL)], 3), "a partition is assigned to two members."),
        (encode_assignment([], 3)[:-4] + b"\x00\x00\x00\x01u", "an unsupported custom assignor"),
    ],
)
async def test_assignments_that_kafka_cannot_take_over_keep_the_classic_group(rows, why):
    async with world(initial_rebalance_delay_ms=100) as w:
        ids = [(await join(w)).member_id for _ in range(2)]
        joined = [await each for each in [asyncio.ensure_future(join(w, name)) for name in ids]]
        generation, leader = joined[0].generation_id, joined[0].leader
        follower = next(each for each in ids if each != leader)
        waits = asyncio.ensure_future(sync(w, follower, generation))
        await sync(w, leader, generation, assignments=[(each, rows) for each in ids])
        assert (await waits).error_code.name == "none"
        reply = await w.beat("a")
        assert reply.error_code.name == "group_id_not_found"
        assert f"Cannot upgrade classic group g to consumer group because {why}" in (
            reply.error_message
        )
        assert await heartbeat(w, leader, generation) == "none"


async def test_groups_of_other_protocols_and_too_large_ones_are_not_upgraded():
    async with world(initial_rebalance_delay_ms=100, consumer_members_max=1) as w:
        await classic_group(w)
        assert "exceeds the consumer group maximum size" in (await w.beat("a")).error_message
    async with world(initial_rebalance_delay_ms=100) as w:
        member = (await join(w, protocol_type="connect")).member_id
        await join(w, member, protocol_type="connect")
        assert "does not use the consumer embedded protocol" in (await w.beat("a")).error_message


async def test_members_that_wait_in_a_rebalance_join_again_after_an_upgrade():
    async with world(initial_rebalance_delay_ms=100) as w:
        ids, generation = await classic_group(w)
        third = (await join(w)).member_id
        waits = asyncio.ensure_future(join(w, third))
        kept = asyncio.ensure_future(join(w, ids[0], (0, 2), generation))
        await asyncio.sleep(0.1)
        reply = await w.beat("a")
        assert reply.error_code.name == "none"
        assert (await waits).error_code.name == "rebalance_in_progress"
        assert (await kept).error_code.name == "rebalance_in_progress"
        assert partitions(reply) == []  # both members of the last generation may read
        again = await join(w, third)
        assert (again.error_code.name, again.generation_id) == ("none", generation + 1)


async def test_what_members_report_to_own_counts_while_a_rebalance_is_not_over():
    async with world(initial_rebalance_delay_ms=100) as w:
        ids, generation = await classic_group(w)
        owned = {ids[0]: (0, 2), ids[1]: (1, 3)}
        joins = [asyncio.ensure_future(join(w, each, owned[each], generation)) for each in ids]
        joins.append(asyncio.ensure_future(join(w, (await join(w)).member_id)))
        next_generation = (await joins[0]).generation_id
        again = asyncio.ensure_future(join(w, ids[0], (0, 2), generation, names=("range", "x")))
        await asyncio.sleep(0.1)
        assert w.loaded["g"].group.state.value == "PreparingRebalance"
        assert not any(each.assignment for each in w.loaded["g"].group.members.values())
        reply = await w.beat("a")
        assert (reply.member_epoch, partitions(reply)) == (next_generation + 1, [])
        assert (await again).error_code.name == "rebalance_in_progress"


async def test_the_last_member_of_the_consumer_protocol_leaves_a_classic_group():
    async with world() as w:
        member = await mixed(w)
        assert await w.commit_at(member.member_id, member.generation, 7, member.partitions[0]) == (
            "none"
        )
        epoch = w.loaded["g"].consumer.epoch
        await w.beat("a", -1)
        loaded = w.loaded["g"]
        assert (loaded.consumer, loaded.group.generation) == (None, epoch)
        found = await w.store.read("g")
        assert found.keyed == {} and found.note
        assert await heartbeat(w, member.member_id, member.generation) == "rebalance_in_progress"
        again = await join(w, member.member_id, member.partitions, member.generation)
        assert (again.generation_id, again.leader) == (epoch + 1, member.member_id)
        assert await w.committed("g", member.partitions[0]) == 7


@pytest.mark.parametrize("policy", ["upgrade", "disabled"])
async def test_a_policy_without_downgrades_keeps_the_classic_members_where_they_are(policy):
    async with world(migration_policy=policy) as w:
        member = await mixed(w)
        await w.beat("a", -1)
        assert await heartbeat(w, member.member_id, member.generation) == "rebalance_in_progress"
        assert (await rejoin(w, member)).partitions == ALL


async def test_the_session_of_the_last_member_of_the_consumer_protocol_ends():
    async with world() as w:
        member = await mixed(w)
        for _ in range(10):
            await asyncio.sleep(5)
            await heartbeat(w, member.member_id, member.generation)
        assert w.loaded["g"].consumer is None
        reply = await w.beat("a", 4)
        assert reply.error_message == "Group g is not a consumer group."


async def test_a_classic_group_that_was_stored_in_its_rebalance_waits_for_all_members_again():
    first = await world().__aenter__()
    member = await mixed(first)
    await first.beat("a", -1)
    epoch = first.loaded["g"].group.generation
    async with first.next() as w:
        assert await heartbeat(w, member.member_id, epoch) == "rebalance_in_progress"
        again = await join(w, member.member_id, member.partitions, member.generation)
        assert again.generation_id == epoch + 1


async def test_static_members_change_their_protocol_and_keep_their_place():
    async with world() as w:
        await w.beat("a", instance_id="i")
        await w.beat("b", instance_id="j")
        kept = partitions(await w.beat("a", 2, instance_id="i", topic_partitions=w.owned(*ALL)))
        await w.beat("a", 2, instance_id="i", topic_partitions=w.owned(*kept))
        await w.beat("a", -2, instance_id="i")
        joined = await join(w, group_instance_id="i")
        assert (joined.error_code.name, joined.generation_id) == ("none", 3)
        synced = await sync(w, joined.member_id, 3, group_instance_id="i")
        assert assigned(synced) == tuple(kept)
        fenced = await w.beat("a", 3, instance_id="i")
        assert fenced.error_code.name == "fenced_instance_id"
        back = await w.beat("c", instance_id="i")
        assert (back.error_code.name, partitions(back)) == ("none", kept)
        assert await heartbeat(w, joined.member_id, 3, "i") == "fenced_instance_id"


async def test_a_static_member_takes_the_place_of_the_last_one_of_the_consumer_protocol():
    async with world(initial_rebalance_delay_ms=100) as w:
        await w.beat("a", instance_id="i")
        waits = asyncio.ensure_future(join(w, group_instance_id="i"))
        joined = await waits
        assert w.loaded["g"].consumer is None
        assert (joined.error_code.name, joined.leader) == ("none", joined.member_id)
        assert joined.generation_id > 2


async def test_members_beyond_the_limit_are_refused():
    async with world(consumer_members_max=1) as w:
        await w.beat("a")
        assert (await join(w)).error_code.name == "group_max_size_reached"


async def test_a_broker_without_the_protocol_refuses_its_members():
    async with world(rebalance_protocols=("classic",)) as w:
        assert (await w.beat("a")).error_code.name == "unsupported_version"
        assert (await w.described()).error_code.name == "unsupported_version"


async def test_the_memory_of_members_follows_the_group_into_the_other_protocol():
    async with world(initial_rebalance_delay_ms=100) as w:
        memory = w.groups._loaded_groups.memory
        ids, _ = await classic_group(w)
        classic = memory.size_bytes
        await w.beat("a")
        assert memory.size_bytes > classic
        await w.beat("a", -1)
        assert memory.size_bytes == w.loaded["g"].counted.total() == classic
        for each in ids:
            assert await leave(w, each) == "none"
        assert memory.size_bytes == 0


async def test_an_oversized_member_is_refused():
    async with world() as w:
        await w.beat("a")
        large = subscription(["t" * 200 + str(n) for n in range(1_400)])
        reply = await join(w, "x", metadata=large)
        assert reply.error_code.name == "group_max_size_reached"
