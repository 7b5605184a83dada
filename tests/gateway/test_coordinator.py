"""Goal: groups survive what happens to gateways and stores: restarts, slow and failing writes, a
rival, deleted topics, time. Method: a whole coordinator on virtual time over simulated metadata.
"""

import asyncio
from contextlib import asynccontextmanager

import pytest

from gateway.core.group_members import Leaving
from gateway.groups.group_scanner import EXPIRE_S
from gateway.groups.views import Refused
from ledger.errors import MetadataUnavailable
from ledger.ports.metadata import Node
from subscriptions.committed_offset import CommittedOffset
from tests.gateway.group_world import World

DAY_S = 86_400.0
# A short retention: each second of a long one costs a little.
SHORT = {"offsets_retention_minutes": 120}
SHORT_S = 7_200.0


@asynccontextmanager
async def new_world(**settings):
    """A started world."""
    async with World(**settings) as world:
        yield world


async def gathered(consumers, generation=None):
    """All consumers are in one generation and know their part of it."""
    while True:
        await asyncio.sleep(0.1)
        found = {consumer.generation for consumer in consumers}
        synced = all(consumer.assignment for consumer in consumers)
        if synced and len(found) == 1 and generation in (None, *found):
            return


async def test_consumers_come_into_one_generation_with_parts_of_their_own():
    async with new_world() as world:
        consumers = [world.consumer(name=f"c{n}").start() for n in range(3)]
        await gathered(consumers)
        assert {c.assignment for c in consumers} == {b"part %d of 3" % n for n in (1, 2, 3)}


async def test_a_dead_consumer_is_noticed_and_the_others_go_on():
    async with new_world() as world:
        consumers = [world.consumer(name=f"c{n}").start() for n in range(3)]
        await gathered(consumers)
        await consumers[0].die()
        started_s = asyncio.get_running_loop().time()
        await gathered(consumers[1:], generation=2)
        assert {c.assignment for c in consumers[1:]} == {b"part 1 of 2", b"part 2 of 2"}
        assert (asyncio.get_running_loop().time() - started_s) <= 10.0 + 3.0 + 0.5


async def test_heartbeats_keep_a_group_for_a_day():
    async with new_world() as world:
        consumers = [world.consumer(name=f"c{n}").start() for n in range(2)]
        await gathered(consumers)
        await asyncio.sleep(DAY_S / 24)
        assert [c.joins for c in consumers] == [2, 2]  # one for the id, one for the group
        assert not any(c.errors for c in consumers)


async def test_after_a_crash_members_go_on_without_a_rebalance():
    async with new_world() as world:
        consumers = [world.consumer(name=f"c{n}").start() for n in range(3)]
        await gathered(consumers)
        assert await world.commit("g", 41, 0, consumers[0].member_id, 1) == "none"
        async with world.crashed() as again:
            for consumer in consumers:
                consumer.world = again
            await asyncio.sleep(3_600)
            assert [c.generation for c in consumers] == [1, 1, 1]
            assert not any(c.errors for c in consumers)
            assert await again.committed("g") == 41
            assert await again.commit("g", 42, 0, consumers[0].member_id, 1) == "none"


async def test_after_a_crash_the_dead_are_still_noticed():
    async with new_world() as world:
        consumers = [world.consumer(name=f"c{n}").start() for n in range(2)]
        await gathered(consumers)
        await consumers[0].die()
        async with world.crashed() as again:
            consumers[1].world = again
            await gathered(consumers[1:], generation=2)
            assert consumers[1].assignment == b"part 1 of 1"


async def test_a_group_whose_members_all_died_with_the_gateway_ends_unasked():
    async with new_world() as world:
        consumer = world.consumer().start()
        await gathered([consumer])
        assert await world.commit("g", 1, 0, consumer.member_id, 1) == "none"
        await consumer.die()
        async with world.crashed() as again:
            await asyncio.sleep(9)
            (listed,) = await again.groups.list()
            assert listed.state.value == "Stable"
            await asyncio.sleep(60)
            (listed,) = await again.groups.list()
            assert listed[:2] == ("g", "consumer")
            assert listed.state.value == "Empty"


async def test_after_a_clean_stop_members_go_on_without_a_rebalance():
    async with new_world() as world:
        consumer = world.consumer().start()
        await gathered([consumer])
        await world.groups.stop()
        async with world.crashed() as again:
            consumer.world = again
            assert await consumer.heartbeat() == "none"


async def test_a_restarted_static_member_rebalances_nobody_even_across_a_crash():
    async with new_world() as world:
        others = [world.consumer(name="c1", instance="one").start()]
        static = world.consumer(name="c2", instance="two")
        joining = asyncio.ensure_future(static.join())
        await gathered([*others, static])
        await joining
        async with world.crashed() as again:
            others[0].world = again
            restarted = again.consumer(name="c2", instance="two")
            await restarted.join()
            assert restarted.generation == 1
            assert restarted.assignment == static.assignment
            assert restarted.member_id != static.member_id
            static.world = again
            assert await static.heartbeat() == "fenced_instance_id"
            await asyncio.sleep(5)
            assert others[0].errors == []


async def test_a_commit_is_answered_only_when_it_is_durable():
    async with new_world(delay_s=1.0) as world:
        loop = asyncio.get_running_loop()
        started_s = loop.time()
        committing = asyncio.ensure_future(world.commit("g", 7))
        await asyncio.sleep(0.5)
        assert not committing.done()
        assert await world.committed("g") is None
        assert await committing == "none"
        assert await world.committed("g") == 7
        assert (loop.time() - started_s) == pytest.approx(1.0)


async def test_a_commit_whose_asker_went_away_is_seen_all_the_same():
    async with new_world(delay_s=0.1) as world:
        await world.commit("g", 1)
        committing = asyncio.ensure_future(world.commit("g", 2))
        await asyncio.sleep(0.01)
        committing.cancel()
        await asyncio.sleep(1.0)
        assert await world.committed("g") == 2


async def test_commits_that_come_together_share_a_write():
    async with new_world(delay_s=0.01) as world:
        await asyncio.gather(*(world.commit(f"g{n}", 1) for n in range(100)))
        before = len(world.metadata.multis)
        await asyncio.gather(*(world.commit(f"g{n}", 2) for n in range(100)))
        assert (len(world.metadata.multis) - before) <= 2


async def test_a_client_may_commit_a_lower_offset():
    async with new_world() as world:
        await world.commit("g", 9)
        assert await world.commit("g", 3) == "none"
        assert await world.committed("g") == 3


async def test_an_assignment_that_cannot_be_stored_is_not_given_out():
    async with new_world() as world:
        consumer = world.consumer()
        joining = asyncio.ensure_future(consumer.join())
        while world.loaded.get("g") is None:
            await asyncio.sleep(0.1)
        world.metadata.failures.append(MetadataUnavailable("gone"))
        await joining
        assert "coordinator_not_available" in consumer.errors
        assert consumer.assignment == b"part 1 of 1"
        assert await consumer.heartbeat() == "none"


async def test_an_unknown_outcome_is_an_error_and_the_truth_is_loaded_again():
    async with new_world() as world:
        await world.commit("g", 1)
        world.metadata.failures.append(MetadataUnavailable("gone"))
        assert await world.commit("g", 2) == "coordinator_not_available"
        assert await world.committed("g") == 1
        assert await world.commit("g", 3) == "none"
        assert await world.committed("g") == 3


async def test_a_rival_coordinator_shuts_this_one_out():
    async with new_world() as world:
        await world.commit("g", 1)
        async with world.rival() as rival:
            assert await rival.committed("g") == 1
            assert await rival.commit("g", 2) == "none"
            assert await world.commit("g", 9) == "not_coordinator"
            assert await world.committed("g") == 2


async def test_members_that_wait_at_a_lost_coordinator_are_sent_away():
    async with new_world() as world:
        consumer = world.consumer().start()
        await gathered([consumer])
        async with world.rival() as rival:
            await rival.committed("g")
            waiting = asyncio.ensure_future(world.consumer(name="late").join())
            await asyncio.sleep(0.1)
            assert await world.commit("g", 9, 0, consumer.member_id, 1) == "not_coordinator"
            await asyncio.sleep(0.1)
            assert world.loaded.get("g") is None
            waiting.cancel()


async def test_while_a_group_is_loading_nobody_is_told_minus_one():
    async with new_world() as world:
        await world.commit("g", 5)
        async with world.crashed() as again:
            hold = asyncio.Event()
            load = again.groups._store.load

            async def slow_load(group):
                await hold.wait()
                return await load(group)

            again.groups._store.load = slow_load
            with pytest.raises(Refused, match="coordinator_load_in_progress"):
                await again.committed("g")
            assert await again.commit("g", 6) == "coordinator_load_in_progress"
            assert (await again.groups.heartbeat("g", "m", 1, None)).name == "none"
            hold.set()
            assert await again.committed("g") == 5


async def test_a_group_that_cannot_be_read_is_offline_alone():
    async with new_world() as world:
        await world.commit("bad", 5)
        await world.commit("good", 6)
        key = world.key()
        path = f"/gateway/groups/bad/{key.topic_id.hex}-0"
        world.metadata.put(path, Node(b"garbage", 1))
        async with world.crashed() as again:
            with pytest.raises(Refused, match="coordinator_not_available"):
                await again.committed("bad")
            assert await again.commit("bad", 7) == "coordinator_not_available"
            assert await again.committed("good") == 6
            assert [each.group_id for each in await again.groups.list()] == ["good"]


async def test_offsets_of_a_deleted_topic_never_attach_to_a_new_one():
    async with new_world() as world:
        await world.commit("loaded", 5)
        await world.commit("resting", 6)
        async with world.crashed() as again:
            assert await again.committed("loaded") == 5
            await again.catalog.delete("t")
            await again.catalog.create("t", 4, 1, {})
            assert await again.committed("loaded") is None
            assert await again.committed("resting") is None
            assert await again.groups.offsets("loaded") == {}


@pytest.mark.slow
async def test_offsets_of_an_empty_group_expire_a_week_after_its_last_member_left():
    async with new_world() as world:
        consumer = world.consumer(session_ms=1_800_000)
        await consumer.join()
        assert await world.commit("g", 5, 0, consumer.member_id, 1) == "none"
        for _ in range(3 * 24 * 4):
            await asyncio.sleep(900)
            await consumer.heartbeat()
        await world.groups.leave("g", (Leaving(consumer.member_id),))
        await asyncio.sleep(7 * DAY_S - 60)
        assert await world.committed("g") == 5
        await asyncio.sleep(EXPIRE_S + 60)
        assert await world.committed("g") is None
        assert await world.groups.list() == []
        assert await world.groups._store.list() == []


@pytest.mark.slow
async def test_offsets_of_a_group_with_members_do_not_expire():
    async with new_world() as world:
        subscription = b"\0\0" + b"\0\0\0\1" + b"\0\1t" + b"\xff\xff\xff\xff"
        consumer = world.consumer(session_ms=1_800_000, protocols=(("range", subscription),))
        await consumer.join()
        await world.commit("g", 5, 0, consumer.member_id, 1)
        await world.commit("g", 6, 0, consumer.member_id, 1, topic="u")
        for _ in range(8 * 24 * 4):
            await asyncio.sleep(900)
            assert await consumer.heartbeat() == "none"
        assert await world.committed("g") == 5
        assert await world.committed("g", topic="u") is None  # nobody subscribes to it


@pytest.mark.slow
async def test_offsets_of_simple_consumers_expire_each_by_its_commit():
    async with new_world() as world:
        await world.commit("g", 5, 0)
        await asyncio.sleep(4 * DAY_S)
        await world.commit("g", 6, 1)
        await asyncio.sleep(3 * DAY_S + EXPIRE_S)
        assert [await world.committed("g", n) for n in (0, 1)] == [None, 6]


@pytest.mark.slow
async def test_a_commit_to_an_empty_group_renews_its_own_offset_and_no_other():
    async with new_world() as world:
        consumer = world.consumer()
        await consumer.join()
        assert await world.commit("g", 5, 0, consumer.member_id, 1) == "none"
        await world.groups.leave("g", (Leaving(consumer.member_id),))
        await asyncio.sleep(4 * DAY_S)
        assert await world.commit("g", 6, 1) == "none"
        await asyncio.sleep(3 * DAY_S + EXPIRE_S)
        assert [await world.committed("g", n) for n in (0, 1)] == [None, 6]


@pytest.mark.slow
async def test_offsets_of_a_resting_group_expire_after_a_restart():
    async with new_world(**SHORT) as world:
        await world.commit("g", 5)
        async with world.crashed() as again:
            await asyncio.sleep(SHORT_S - 60)
            assert again.loaded == {}
            assert len(await again.groups.list()) == 1
            await asyncio.sleep(EXPIRE_S + 60)
            assert await again.groups.list() == []


async def test_an_offset_with_a_retention_of_its_own_goes_when_it_ends():
    async with new_world() as world:
        now_ms = world.clock.now_ms()
        position = CommittedOffset(
            offset=5, commit_time_ms=now_ms, expire_time_ms=now_ms + 3_600_000
        )
        await world.groups.commit("g", "", -1, None, {world.key(): position})
        await asyncio.sleep(3_000)
        assert await world.committed("g") == 5
        await asyncio.sleep(600 + EXPIRE_S)
        assert await world.committed("g") is None


@pytest.mark.slow
async def test_a_sweep_does_not_remove_a_commit_that_is_under_way():
    async with new_world(**SHORT) as world:
        await world.commit("g", 5)
        await asyncio.sleep(SHORT_S - 1)
        assert await world.committed("g") == 5
        world.metadata.delay_s = 2 * EXPIRE_S  # the old offset expires with the new one on its way
        committing = asyncio.ensure_future(world.commit("g", 6))
        await asyncio.sleep(1)
        world.metadata.delay_s = 0.001
        assert await committing == "none"
        await asyncio.sleep(4 * EXPIRE_S)
        assert await world.committed("g") == 6


async def test_a_sweep_does_not_delete_a_group_whose_first_commit_is_under_way():
    async with new_world() as world:
        world.metadata.delay_s = 2 * EXPIRE_S
        committing = asyncio.ensure_future(world.commit("g", 6))
        await asyncio.sleep(1)
        world.metadata.delay_s = 0.001
        assert await committing == "none"
        await asyncio.sleep(4 * EXPIRE_S)
        assert await world.committed("g") == 6


@pytest.mark.slow
async def test_a_sweep_that_empties_a_group_spares_a_commit_that_came_meanwhile():
    async with new_world(**SHORT) as world:
        await world.commit("g", 5, 0)
        await asyncio.sleep(SHORT_S - 1)
        world.metadata.delay_s = 1.0
        while "g" not in world.loaded or not world.loaded["g"].writes:
            await asyncio.sleep(0.1)
        assert await world.commit("g", 6, 1) == "none"
        await asyncio.sleep(EXPIRE_S)
        assert [await world.committed("g", n) for n in (0, 1)] == [None, 6]


async def test_a_deleted_group_is_gone_for_good():
    async with new_world() as world:
        await world.commit("g", 5)
        assert (await world.groups.delete("g")).name == "none"
        assert (await world.groups.delete("g")).name == "group_id_not_found"
        async with world.crashed() as again:
            assert await again.committed("g") is None
            assert await again.commit("g", 1) == "none"


async def test_a_group_with_members_is_not_deleted():
    async with new_world() as world:
        await world.consumer().join()
        assert (await world.groups.delete("g")).name == "non_empty_group"


async def test_while_a_group_is_being_deleted_nobody_gets_in():
    async with new_world(delay_s=0.1) as world:
        await world.commit("g", 5)
        deleting = asyncio.ensure_future(world.groups.delete("g"))
        await asyncio.sleep(0.01)
        assert await world.commit("g", 6) == "coordinator_not_available"
        with pytest.raises(Refused):
            await world.committed("g")
        await deleting
        assert await world.committed("g") is None


async def test_asking_for_unknown_groups_leaves_nothing_behind():
    async with new_world() as world:
        for n in range(100):
            assert await world.committed(f"g{n}") is None
            assert (await world.groups.heartbeat(f"g{n}", "m", 1, None)).name == "unknown_member_id"
            assert await world.commit(f"g{n}", 1, 0, "m", 1) == "group_id_not_found"
        assert world.loaded == {}
        assert world.groups._store._claims == {}
        assert await world.groups.list() == []


async def test_questions_about_unknown_groups_write_nothing():
    async with new_world() as world:
        before, multis = world.metadata.nodes(), len(world.metadata.multis)
        for n in range(10):
            assert await world.committed(f"g{n}") is None
            assert await world.groups.describe(f"g{n}") is None
            assert (await world.groups.delete(f"g{n}")).name == "group_id_not_found"
            assert await world.commit(f"g{n}", 1, 0, "m", 1) == "group_id_not_found"
        assert world.metadata.nodes() == before
        assert len(world.metadata.multis) == multis


async def test_a_question_meets_a_first_commit_that_is_under_way():
    async with new_world() as world:
        asking = asyncio.ensure_future(world.committed("g"))
        assert await world.commit("g", 5) == "none"
        assert await asking in (None, 5)
        assert await world.committed("g") == 5


async def test_groups_that_nobody_ever_joined_in_full_are_forgotten():
    async with new_world() as world:
        consumer = world.consumer()
        joined = await world.groups.join("g", consumer._joining())
        assert joined.error.name == "member_id_required"
        await asyncio.sleep(2 * EXPIRE_S)
        assert world.loaded == {}
        assert world.groups._store._claims == {}


async def test_many_groups_cost_one_timer():
    async with new_world() as world:
        consumers = [world.consumer(group=f"g{n}", name="c").start() for n in range(50)]
        await asyncio.sleep(30)
        assert {c.generation for c in consumers} == {1}
        for consumer in consumers[::2]:
            await consumer.die()
        await asyncio.sleep(15)
        states = [listed.state.value for listed in await world.groups.list()]
        assert (states.count("Empty"), states.count("Stable")) == (25, 25)


async def test_stopping_answers_members_that_wait():
    async with new_world() as world:
        consumer = world.consumer()
        joining = asyncio.ensure_future(world.groups.join("g", consumer._joining()))
        consumer.member_id = (await joining).member_id
        joining = asyncio.ensure_future(world.groups.join("g", consumer._joining()))
        await asyncio.sleep(0.1)
        world.groups.release_waiters()
        assert (await joining).error.name == "coordinator_not_available"
