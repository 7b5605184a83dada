"""Goal: members of the consumer protocol get Kafka's answers, from durable state only.

Method: real requests to a coordinator over simulated bookies, on virtual time.
"""

import asyncio

import pytest

from gateway.core.consumer_members import ConsumerTiming
from tests.gateway.consumer_world import ConsumerWorld, partitions
from tests.sim.loop import simulate

AT_ONCE = ConsumerTiming(assignment_interval_ms=0)


class world:
    """A started `ConsumerWorld` that makes targets at once."""

    def __init__(self, timing=AT_ONCE, **limits):
        self.world = ConsumerWorld(**limits)
        self.timing = timing

    async def __aenter__(self):
        found = await self.world.__aenter__()
        found.groups.consumers.timing_of = lambda _: self.timing
        return found

    async def __aexit__(self, *error):
        await self.world.__aexit__(*error)


async def test_the_first_member_gets_all_partitions():
    async with world() as w:
        reply = await w.beat("a")
        assert (reply.error_code.name, reply.member_epoch) == ("none", 2)
        assert partitions(reply) == [0, 1, 2, 3]
        assert reply.heartbeat_interval.total_seconds() == 5


async def test_partitions_move_once_their_owner_has_revoked_them():
    async with world() as w:
        await w.beat("a")
        joined = await w.beat("b")
        assert (joined.member_epoch, partitions(joined)) == (3, [])
        told = await w.beat("a", 2, topic_partitions=w.owned(0, 1, 2, 3))
        kept = partitions(told)
        assert (told.member_epoch, len(kept)) == (2, 2)
        assert partitions(await w.beat("b", 3)) is None
        revoked = await w.beat("a", 2, topic_partitions=w.owned(*kept))
        assert revoked.member_epoch == 3
        given = await w.beat("b", 3)
        assert sorted(partitions(given) + kept) == [0, 1, 2, 3]
        assert (await w.described()).group_state == "Stable"


async def test_a_heartbeat_that_changes_nothing_writes_nothing():
    async with world() as w:
        await w.beat("a")
        adds = w.process.steps.adds
        for _ in range(5):
            assert partitions(await w.beat("a", 2)) is None
        assert w.process.steps.adds == adds


async def test_a_member_repeats_a_heartbeat_whose_answer_was_lost():
    async with world() as w:
        await w.beat("a")
        await w.beat("b")
        kept = partitions(await w.beat("a", 2, topic_partitions=w.owned(0, 1, 2, 3)))
        lost = await w.beat("a", 2, topic_partitions=w.owned(*kept))
        again = await w.beat("a", 2, topic_partitions=w.owned(*kept))
        assert (lost.member_epoch, again.member_epoch) == (3, 3)


@pytest.mark.parametrize(
    ("member", "epoch", "fields", "code", "text"),
    [
        ("a", 9, {}, "fenced_member_epoch", "greater member epoch (9)"),
        ("a", 1, {}, "fenced_member_epoch", "smaller member epoch (1)"),
        ("x", 2, {}, "unknown_member_id", "Member x is not a member of group g."),
        ("x", -1, {}, "unknown_member_id", "Member x is not a member of group g."),
        ("a", 2, {"group": "h"}, "group_id_not_found", "Consumer group h not found."),
        ("a", -1, {"group": "h"}, "group_id_not_found", "Group h not found."),
        ("a", -3, {}, "invalid_request", "MemberEpoch is invalid."),
        ("a", -2, {}, "invalid_request", "InstanceId can't be null."),
        (" ", 0, {}, "invalid_request", "MemberId can't be empty."),
        ("a", 0, {"group": ""}, "invalid_request", "GroupId can't be empty."),
        ("a", 0, {"rack_id": ""}, "invalid_request", "RackId can't be empty."),
        ("a", 0, {"topic_partitions": None}, "invalid_request", "TopicPartitions must be empty"),
        ("a", 0, {"subscribed_topic_names": None}, "invalid_request", "must be non-null when"),
        (
            "a",
            0,
            {"server_assignor": "x"},
            "unsupported_assignor",
            "ServerAssignor x is not supported. Supported assignors: uniform, range.",
        ),
        (
            "b",
            0,
            {"subscribed_topic_regex": "["},
            "invalid_regular_expression",
            "SubscribedTopicRegex `[` is not a valid regular expression: missing closing ].",
        ),
        (
            "b",
            0,
            {"subscribed_topic_regex": "a" * 1_025},
            "invalid_regular_expression",
            "SubscribedTopicRegex `aaaa",
        ),
    ],
)
async def test_a_bad_request_gets_kafkas_code_and_text(member, epoch, fields, code, text):
    async with world() as w:
        await w.beat("a")
        before = await w.described()
        reply = await w.beat(member, epoch, **fields)
        assert reply.error_code.name == code
        assert text in reply.error_message
        assert await w.described() == before


async def test_a_static_member_comes_back_to_its_partitions():
    async with world() as w:
        await w.beat("a", instance_id="i")
        await w.beat("b")
        left = await w.beat("a", -2, instance_id="i")
        assert left.member_epoch == -2
        stays = await w.beat("b", 3)
        assert partitions(stays) is None
        back = await w.beat("c", instance_id="i")
        assert back.error_code.name == "none"
        assert len(partitions(back)) == 2
        fenced = await w.beat("a", 2, instance_id="i")
        assert fenced.error_code.name == "fenced_instance_id"
        taken = await w.beat("d", instance_id="i")
        assert taken.error_code.name == "unreleased_instance_id"


async def test_a_silent_member_is_fenced_and_its_partitions_move():
    async with world() as w:
        await w.beat("a")
        await w.beat("b")
        epoch = 3
        for _ in range(12):
            await asyncio.sleep(5)
            epoch = (await w.beat("b", epoch)).member_epoch
        assert [each.member_id for each in (await w.described()).members] == ["b"]
        assert partitions(await w.beat("b")) == [0, 1, 2, 3]
        assert (await w.beat("a", 2)).error_code.name == "unknown_member_id"


async def test_a_member_that_does_not_revoke_is_fenced_after_its_rebalance_timeout():
    async with world(ConsumerTiming(session_timeout_ms=600_000, assignment_interval_ms=0)) as w:
        await w.beat("a")
        await w.beat("b")
        await w.beat("a", 2)
        await asyncio.sleep(61)
        assert (await w.beat("a", 2)).error_code.name == "unknown_member_id"


async def test_targets_are_made_at_most_once_in_the_interval():
    async with world(ConsumerTiming()) as w:
        assert (await w.beat("a")).member_epoch == 2
        assert (await w.beat("b")).member_epoch == 2
        await asyncio.sleep(1)
        assert (await w.beat("b", 2)).member_epoch == 3


async def test_a_topic_that_grows_raises_the_epoch():
    async with world() as w:
        await w.beat("a")
        await w.catalog.add_partitions("t", 6)
        reply = await w.beat("a", 2)
        assert (reply.member_epoch, partitions(reply)) == (3, [0, 1, 2, 3, 4, 5])
        await w.catalog.delete("t")
        assert partitions(await w.beat("a", 3, topic_partitions=[])) == []


async def test_an_expression_takes_topics_that_appear_later():
    async with world() as w:
        reply = await w.beat("a", subscribed_topic_names=None, subscribed_topic_regex="v.*")
        assert (reply.error_code.name, partitions(reply)) == ("none", [])
        await w.catalog.create("v1", 2, 1, {})
        await asyncio.sleep(11)
        await w.beat("a", reply.member_epoch)
        await asyncio.sleep(0.1)
        assert partitions(await w.beat("a", reply.member_epoch)) == [0, 1]


async def test_epochs_decide_who_may_commit_and_read_offsets():
    async with world() as w:
        await w.beat("a")
        await w.beat("b")
        assert await w.commit_at("a", 2, 5) == "none"
        assert await w.commit_at("a", 2, 5, version=8) == "unsupported_version"
        assert await w.commit_at("a", 3, 6) == "stale_member_epoch"
        assert await w.commit_at("b", 2, 6) == "stale_member_epoch"
        assert await w.commit_at("x", 2, 6) == "unknown_member_id"
        assert await w.commit_at("", -1, 6) == "unknown_member_id"
        assert await w.fetched_by("a", 2) == "none"
        assert await w.fetched_by("a", 1) == "stale_member_epoch"
        assert await w.fetched_by("x", 1) == "unknown_member_id"
        assert await w.fetched_by(None, -1) == "none"
        kept = partitions(await w.beat("a", 2, topic_partitions=w.owned(0, 1, 2, 3)))
        await w.beat("a", 2, topic_partitions=w.owned(*kept))
        (gone,) = {0, 1, 2, 3} - set(kept) - {max({0, 1, 2, 3} - set(kept))}
        assert await w.commit_at("a", 2, 7, kept[0]) == "none"  # it has had it since epoch 2
        assert await w.commit_at("a", 2, 7, gone) == "stale_member_epoch"
        assert await w.committed("g") == (7 if kept[0] == 0 else 5)


async def test_both_kinds_of_groups_keep_apart():
    async with world(initial_rebalance_delay_ms=0) as w:
        member = w.consumer("classic").start()
        while not member.assignment:
            await asyncio.sleep(0.1)
        refused = await w.beat("a", group="classic")
        assert refused.error_code.name == "group_id_not_found"
        assert "the embedded consumer protocol is malformed" in refused.error_message
        await w.beat("a")
        listed = {each.group_id: (each.kind, each.state.value) for each in await w.groups.list()}
        assert listed == {"classic": ("classic", "Stable"), "g": ("consumer", "Stable")}
        assert (await w.described("classic")).error_message == (
            "Group classic is not a consumer group."
        )
        assert await w.groups.describe("g") is None
        joining = w.consumer("g")._joining()
        assert (await w.groups.join("g", joining)).error.name == "member_id_required"
        assert (await w.groups.delete("g")).name == "non_empty_group"
        assert (await w.beat("a", -1)).error_code.name == "none"
        assert (await w.described()).group_state == "Empty"
        assert (await w.groups.delete("g")).name == "none"
        assert (await w.described()).error_code.name == "group_id_not_found"
        member._task.cancel()


async def test_an_empty_group_changes_its_protocol_and_keeps_its_offsets():
    async with world(initial_rebalance_delay_ms=0) as w:
        assert await w.commit("g", 5) == "none"
        await w.beat("a")
        assert await w.committed("g") == 5
        await w.beat("a", -1)
        member = w.consumer("g").start()
        while not member.assignment:
            await asyncio.sleep(0.1)
        assert (await w.described()).error_code.name == "group_id_not_found"
        assert await w.committed("g") == 5
        member._task.cancel()


async def test_without_log_segments_the_protocol_is_refused():
    async with world() as w:
        w.groups.keeps_records = False
        assert (await w.beat("a")).error_code.name == "unsupported_version"
        assert (await w.described()).error_code.name == "unsupported_version"


async def taken_over(steps):
    """Return what a gateway finds that takes over after each of these requests."""
    first = await world().__aenter__()
    for member, epoch, owned in steps:
        fields = {} if owned is None else {"topic_partitions": first.owned(*owned)}
        await first.beat(member, epoch, **fields)
    before = await first.described()
    async with first.next() as second:
        second.groups.consumers.timing_of = lambda _: AT_ONCE
        return before, await second.described()


STEPS = [
    ("a", 0, None),
    ("b", 0, None),
    ("a", 2, (0, 1, 2, 3)),
    ("b", 3, None),
    ("a", 2, (0, 1)),
    ("b", 3, None),
]


@pytest.mark.parametrize("count", range(1, len(STEPS) + 1))
def test_a_takeover_restores_every_state_of_a_member(count):
    before, after = simulate(taken_over(STEPS[:count]))
    assert before == after
    assert before.error_code.name == "none"
