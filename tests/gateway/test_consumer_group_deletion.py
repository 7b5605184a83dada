"""Goal: what comes while a group of the consumer protocol is deleted does not create it again, and
every member counts in the memory of its address.

Method: real requests to a coordinator over simulated bookies, on virtual time.
"""

import asyncio

import pytest
from kio.schema.errors import ErrorCode

from gateway.core.consumer_members import ConsumerMember
from gateway.groups.transactional_offsets import TransactionalCommit
from subscriptions.committed_offset import CommittedOffset
from tests.gateway.test_consumer_group_handlers import world


async def deleting(w):
    """Begin to delete the empty group `g`. Returns the deletion, which waits for the store."""
    await w.beat("a")
    assert await w.commit_at("a", 2, 5) == "none"
    await w.beat("a", -1)
    deletion = asyncio.ensure_future(w.groups.delete("g"))
    while w.loaded["g"].group.state.value != "Dead":
        await asyncio.sleep(0)
    return deletion


async def test_a_join_of_the_classic_protocol_does_not_create_a_group_that_is_being_deleted():
    async with world() as w:
        deletion = await deleting(w)
        joined = await w.groups.join("g", w.consumer("g")._joining())
        assert joined.error.name == "coordinator_not_available"
        assert (await deletion).name == "none"
        assert not await w.store.exists("g")


@pytest.mark.parametrize("member", ["", "a"])
async def test_a_commit_is_refused_while_the_group_is_being_deleted(member):
    async with world() as w:
        deletion = await deleting(w)
        assert await w.commit_at(member, -1, 9) == "coordinator_not_available"
        assert (await deletion).name == "none"
        assert not await w.store.exists("g")


async def test_a_commit_of_a_transaction_is_refused_while_the_group_is_being_deleted():
    async def verified():
        return ErrorCode.none

    async with world() as w:
        deletion = await deleting(w)
        offsets = {w.key(0, "t"): CommittedOffset(offset=4, commit_time_ms=1)}
        asked = TransactionalCommit("g", 7, 0, "", -1, None, offsets)
        code = await w.groups.commit_in_transaction(asked, verified)
        assert code.name == "coordinator_not_available"
        assert (await deletion).name == "none"
        assert not await w.store.exists("g")


async def test_members_that_subscribe_by_expressions_alone_count_in_the_memory_of_their_address():
    async with world(bytes_total_max=4_000) as w:
        fields = {"subscribed_topic_names": None, "subscribed_topic_regex": "t.*"}
        codes = [(await w.beat(f"m{n}", **fields)).error_code.name for n in range(20)]
        assert codes[0] == "none" and codes[-1] == "coordinator_not_available"
        assert w.groups._loaded_groups.memory.size_bytes <= 4_000


def test_every_text_of_a_member_counts():
    plain = ConsumerMember(member_id="m").size_bytes
    rack = ConsumerMember(member_id="m", rack_id="r" * 30_000)
    assert rack.size_bytes == plain + 30_000
