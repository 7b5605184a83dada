"""Goal: mistakes in a group of the consumer protocol that no history of kills shows are found.

Method: one sequence of requests for each of them, on virtual time or to the pure core.
"""

import asyncio

from kio.schema.errors import ErrorCode

from gateway.core.consumer_group import ConsumerGroup
from gateway.core.consumer_members import ConsumerSettings, ConsumerTiming, MemberState, Now
from gateway.groups.transactional_offsets import TransactionalCommit
from subscriptions.committed_offset import CommittedOffset
from tests.gateway.consumer_rig import TIMING, Client, FakeTopics, beat, fresh_group, settle
from tests.gateway.consumer_world import partitions
from tests.gateway.test_consumer_group_handlers import world


async def revoked(w):
    """Let `a` give up two partitions for `b`, and move on to epoch 3. Returns what it kept."""
    await w.beat("a")
    await w.beat("b")
    kept = partitions(await w.beat("a", 2, topic_partitions=w.owned(0, 1, 2, 3)))
    assert (await w.beat("a", 2, topic_partitions=w.owned(*kept))).member_epoch == 3
    return kept


async def test_a_coordinator_that_loses_its_lease_before_a_change_is_durable_shows_nothing():
    async with world() as w:
        await w.beat("a")
        held = [True]
        w.groups._claims.lease_held = lambda: held[0]
        asked = asyncio.ensure_future(w.beat("b"))
        while "b" not in w.loaded["g"].consumer.members:
            await asyncio.sleep(0)
        held[0] = False
        assert (await asked).error_code.name == "not_coordinator"
        held[0] = True


async def test_sessions_begin_anew_once_the_lease_is_back():
    async with world() as w:
        await w.beat("a")
        held = [False]
        w.groups._claims.lease_held = lambda: held[0]
        await asyncio.sleep(120)
        held[0] = True
        await asyncio.sleep(40)
        assert (await w.beat("a", 2)).error_code.name == "none"
        await asyncio.sleep(46)
        assert (await w.beat("a", 2)).error_code.name == "unknown_member_id"


async def test_the_epoch_decides_who_commits_in_a_transaction():
    async def verified():
        return ErrorCode.none

    async with world() as w:
        await w.beat("a")
        codes = []
        offsets = {w.key(0, "t"): CommittedOffset(offset=4, commit_time_ms=1)}
        for member, epoch in (("a", 2), ("a", 1), ("a", 3), ("x", 2), ("", -1)):
            asked = TransactionalCommit("g", 7, 0, member, epoch, None, offsets)
            codes.append((await w.groups.commit_in_transaction(asked, verified)).name)
        stale = ["illegal_generation"] * 2
        assert codes == ["none", *stale, "unknown_member_id", "none"]


async def test_the_epoch_before_is_taken_only_from_a_member_that_owns_what_it_has():
    async with world() as w:
        await revoked(w)
        for owned in (None, w.owned(0, 1, 2, 3)):
            reply = await w.beat("a", 2, topic_partitions=owned)
            assert reply.error_code.name == "fenced_member_epoch"


async def test_an_epoch_commits_no_partition_that_the_member_got_later():
    async with world() as w:
        kept = await revoked(w)
        mine = partitions(await w.beat("b", 3))
        await w.beat("a", -1)
        assert (await w.beat("b", 3)).member_epoch == 4
        assert await w.commit_at("b", 3, 7, mine[0]) == "none"
        assert await w.commit_at("b", 3, 7, kept[0]) == "stale_member_epoch"
        assert await w.commit_at("b", 4, 7, kept[0]) == "none"


async def test_a_topic_that_is_deleted_and_made_again_is_another_one():
    async with world() as w:
        await w.beat("a")
        await w.catalog.delete("t")
        await w.catalog.create("t", 4, 1, {})
        reply = await w.beat("a", 2, topic_partitions=[])
        assert (reply.member_epoch, partitions(reply)) == (3, [0, 1, 2, 3])
        assert [row.topic_id for row in reply.assignment.topic_partitions] == [w.topic_id()]


async def test_offsets_of_subscribed_topics_stay_and_others_expire_and_the_empty_group_goes():
    timing = ConsumerTiming(session_timeout_ms=36_000_000, assignment_interval_ms=0)
    async with world(timing, offsets_retention_minutes=20) as w:
        assert await w.commit("g", 1, topic="u") == "none"
        await w.beat("a")
        assert await w.commit_at("a", 2, 5) == "none"
        await asyncio.sleep(45 * 60)
        assert (await w.committed("g"), await w.committed("g", topic="u")) == (5, None)
        await w.beat("a", -1)
        await asyncio.sleep(11 * 60)  # as in Kafka, from the commit on
        assert not await w.store.exists("g")


async def test_offsets_of_subscribed_topics_are_not_deleted():
    async with world() as w:
        await w.commit("g", 1, topic="u")
        await w.beat("a")
        await w.commit_at("a", 2, 5)
        names = {w.key(0, "t"): "t", w.key(0, "u"): "u"}
        codes = await w.groups.delete_offsets("g", names)
        assert [code.name for code in codes.values()] == ["group_subscribed_to_topic", "none"]
        assert (await w.committed("g"), await w.committed("g", topic="u")) == (5, None)


async def test_nothing_of_a_group_is_left_once_it_is_one_of_the_classic_protocol():
    async with world(initial_rebalance_delay_ms=0) as w:
        await w.beat("a")
        await w.beat("a", -1)
        member = w.consumer("g").start()
        while not member.assignment:
            await asyncio.sleep(0.1)
        assert (await w.store.read("g")).keyed == {}
        member._task.cancel()


def test_a_member_that_does_not_revoke_is_fenced_after_a_takeover_too():
    topics = FakeTopics()
    topics.make("t", 4)
    group = fresh_group()
    (owner,) = settle(group, [Client("a")], topics)
    beat(group, Client("b"), topics)
    beat(group, owner, topics)
    taken = ConsumerGroup.restore("g", ConsumerSettings(), group.roster.records(), 0, 600_000)
    assert taken.members["a"].state is MemberState.UNREVOKED_PARTITIONS
    taken.tick(Now(61_000, topics, TIMING))
    assert list(taken.members) == ["b"]
