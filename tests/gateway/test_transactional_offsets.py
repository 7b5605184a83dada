"""Goal: offsets of a transaction are committed or dropped by its marker, and by nothing else.

Method: a coordinator on virtual time, with a store of log segments on simulated bookies. The answer
of the transaction's coordinator is a future that the test completes.
"""

import asyncio
from contextlib import asynccontextmanager
from functools import partial
from uuid import UUID, uuid4

import pytest
from kio.schema.errors import ErrorCode

from gateway.core.group_members import Leaving
from gateway.core.partition_transactions import EndMarker
from gateway.groups import group_transactions, transactional_offsets
from gateway.groups.group_transactions import NUMBERS_MAX, GroupTransactions
from gateway.groups.loaded_groups import IDLE_MS
from gateway.groups.transactional_groups import ListedGroup, offsets_partition
from gateway.groups.transactional_offsets import TransactionalCommit
from gateway.handlers.transaction_errors import keeps_pending
from ledger.ids import LedgerId
from subscriptions.committed_offset import CommittedOffset, encode_advance
from subscriptions.segments.log_node import encode_node
from subscriptions.segments.segment_records import encode_pending
from tests.gateway.group_world import World
from tests.subscriptions.log_world import LogWorld
from tests.subscriptions.memory_metadata import MemoryMetadata

PRODUCER, EPOCH = 4_000, 3
NONE = ErrorCode.none


class SlowNodes(MemoryMetadata):
    """A metadata store in which the creation of a node takes time."""

    async def create(self, path, data=b"", **how):
        await asyncio.sleep(self.delay_s)
        return await super().create(path, data, **how)


@asynccontextmanager
async def world_of(logs, metadata=MemoryMetadata, **limits):
    world = World(**limits)
    world.metadata = metadata(world.tree, world.metadata.delay_s)
    world.store = logs.process().store()
    async with world:
        yield world


@asynccontextmanager
async def world_of_same(world, before):
    """Enter the world, unless it is the one before."""
    if world is before:
        yield world
        return
    async with world:
        yield world


async def verified(code=NONE):
    return code


def commit_of(world, value, *, group="g", epoch=EPOCH, producer=PRODUCER, partition=0, **more):
    member = {"member_id": "", "generation": -1, "instance_id": None, **more}
    offsets = {
        world.key(partition): CommittedOffset(offset=value, commit_time_ms=world.clock.now_ms())
    }
    return TransactionalCommit(group, producer, epoch, offsets=offsets, **member)


async def pend(world, value, verify=verified, **more):
    return await world.groups.commit_in_transaction(commit_of(world, value, **more), verify)


def marker_of(*, commit=True, epoch=EPOCH, version=0, number=1, coordinator=5):
    return EndMarker(PRODUCER, epoch, coordinator, commit, version, number)


async def listed(world, group="g"):
    """Return the groups of the partition of this one that a marker would be sent to."""
    return await world.groups.transactional.groups.of(offsets_partition(group))


async def end(world, group="g", **more):
    """Send a marker as often as the group answers that it is loaded under another ownership."""
    marker, code = marker_of(**more), ErrorCode.coordinator_not_available
    while code is ErrorCode.coordinator_not_available:
        named = await listed(world, group) or [ListedGroup(group, None)]
        codes = [await send(world, marker, each) for each in named]
        code = max(codes, key=lambda each: each is not NONE)
    return code


async def send(world, marker, to):
    return await world.groups.transactional.end(to.group, marker, to.ownership)


async def fetched(world, *, stable, group="g", partition=0):
    """Return the offset and the error of an OffsetFetch."""
    topics = [{"name": "t", "partition_indexes": [partition]}]
    body = {"group_id": group, "topics": topics, "require_stable": stable}
    answer = await world.ask(9, 7, body)
    (row,) = answer.topics[0].partitions
    return row.committed_offset, row.error_code


@pytest.mark.parametrize(("commit", "after"), [(True, 7), (False, 2)])
async def test_a_pending_offset_is_unstable_until_the_marker(commit, after):
    async with world_of(LogWorld()) as world:
        assert await world.commit("g", 2) == "none"
        assert await pend(world, 7) is NONE
        assert await fetched(world, stable=False) == (2, NONE)
        assert await fetched(world, stable=True) == (-1, ErrorCode.unstable_offset_commit)
        assert await fetched(world, stable=True, partition=1) == (-1, NONE)
        assert await end(world, commit=commit) is NONE
        assert await fetched(world, stable=True) == (after, NONE)


async def test_an_offset_that_is_not_durable_yet_is_unstable():
    async with world_of(LogWorld()) as world:
        await world.commit("g", 2)
        pending = asyncio.ensure_future(pend(world, 7))
        seen = set()
        while not pending.done():
            seen.add((await fetched(world, stable=True))[1])
            await asyncio.sleep(0.0005)
        assert ErrorCode.unstable_offset_commit in seen
        assert (await fetched(world, stable=True))[1] is ErrorCode.unstable_offset_commit


@pytest.mark.parametrize("known", [False, True], ids=["new-group", "group-with-offsets"])
async def test_a_producer_without_a_transaction_changes_nothing_that_the_group_shares(known):
    """Clients choose the ids. A new ownership is two writes, and delays the markers of others."""
    async with world_of(LogWorld()) as world:
        await world.commit("g", 2)
        if known:
            assert await pend(world, 7) is NONE
        before = world.metadata.nodes()
        refused = ErrorCode.invalid_producer_id_mapping
        for producer in range(10):
            verify = partial(verified, refused)
            assert await pend(world, 7, verify, producer=producer) is refused
        assert world.metadata.nodes() == before
        memory = world.groups._loaded_groups.groups["g"].transactions
        assert list(memory._numbers) == [PRODUCER] * known


async def test_a_marker_voids_a_verification_under_way():
    async with world_of(LogWorld()) as world:
        await world.commit("g", 2)
        answer = asyncio.get_running_loop().create_future()
        late = asyncio.ensure_future(pend(world, 7, lambda: answer))
        await asyncio.sleep(1)
        assert await end(world) is NONE
        answer.set_result(NONE)
        assert await late is ErrorCode.invalid_txn_state
        assert await fetched(world, stable=True) == (2, NONE)


async def test_a_marker_with_a_raised_epoch_does_not_void_the_next_transaction():
    async with world_of(LogWorld()) as world:
        answer = asyncio.get_running_loop().create_future()
        following = asyncio.ensure_future(pend(world, 7, lambda: answer, epoch=EPOCH + 1))
        await asyncio.sleep(1)
        assert await end(world, epoch=EPOCH + 1, version=2) is NONE
        answer.set_result(NONE)
        assert await following is NONE


@pytest.mark.parametrize("code", [ErrorCode.invalid_producer_epoch, ErrorCode.not_enough_replicas])
async def test_nothing_is_stored_without_a_verification(code):
    async with world_of(LogWorld()) as world:
        assert await pend(world, 7, lambda: verified(code)) is code
        assert await fetched(world, stable=True) == (-1, NONE)


async def test_an_older_epoch_commits_nothing_and_ends_nothing():
    async with world_of(LogWorld()) as world:
        assert await pend(world, 7) is NONE
        assert await pend(world, 8, epoch=EPOCH - 1) is ErrorCode.invalid_producer_epoch
        older = ErrorCode.invalid_producer_epoch
        assert await end(world, epoch=EPOCH - 1) is older
        assert await end(world, epoch=EPOCH, version=2) is older  # it ended the transaction before
        assert (await fetched(world, stable=True))[1] is ErrorCode.unstable_offset_commit
        assert await end(world, epoch=EPOCH + 1, version=2) is NONE
        assert await fetched(world, stable=True) == (7, NONE)


async def test_a_late_copy_of_a_marker_does_not_end_the_next_transaction():
    async with world_of(LogWorld()) as world:
        await pend(world, 7)
        assert await end(world, number=4) is NONE
        await pend(world, 9)
        assert await end(world, number=4) is NONE
        assert await end(world, number=5, coordinator=4) is (
            ErrorCode.transaction_coordinator_fenced
        )
        assert (await fetched(world, stable=True))[1] is ErrorCode.unstable_offset_commit
        assert await end(world, number=5, commit=False) is NONE
        assert await fetched(world, stable=True) == (7, NONE)


async def test_the_index_names_the_group_while_an_offset_may_be_pending():
    async with world_of(LogWorld()) as world:
        assert await listed(world) == []
        await pend(world, 7)
        assert [each.group for each in await listed(world)] == ["g"]
        await asyncio.sleep(5 * IDLE_MS / 1000)
        assert "g" in world.loaded  # it stays, so that its marker finds it
        assert await end(world) is NONE
        await asyncio.sleep(5 * IDLE_MS / 1000)
        assert "g" not in world.loaded
        assert await listed(world) == []
        assert await fetched(world, stable=True) == (7, NONE)


async def test_the_index_names_the_group_before_its_first_verification():
    async with world_of(LogWorld()) as world:
        seen = []

        async def verify():
            seen.extend(await listed(world))
            return NONE

        assert await pend(world, 7, verify) is NONE
        assert [each.group for each in seen] == ["g"]


async def test_a_marker_without_a_node_does_not_keep_the_group_out_of_the_index():
    """As after a node was removed while a marker was on its way to the group."""
    async with world_of(LogWorld()) as world:
        assert await send(world, marker_of(), ListedGroup("g", uuid4())) is NONE
        assert await pend(world, 7) is NONE
        assert [each.group for each in await listed(world)] == ["g"]


async def test_a_late_removal_does_not_hide_offsets_of_the_next_load():
    async with world_of(LogWorld()) as world:
        assert await pend(world, 7) is NONE
        (before,) = await listed(world)
        assert await end(world) is NONE
        await asyncio.sleep(5 * IDLE_MS / 1000)
        assert await pend(world, 9) is NONE
        await world.groups.transactional.groups.remove(*before)
        assert [each.group for each in await listed(world)] == ["g"]


async def test_a_rebalance_during_the_first_commit_fences_it():
    async with world_of(LogWorld(), metadata=SlowNodes) as world:
        member = world.consumer()
        await member.join()
        generation = world.loaded["g"].group.generation
        sent = {"member_id": member.member_id, "generation": generation}
        late = asyncio.ensure_future(pend(world, 7, **sent))
        await asyncio.sleep(0.0005)  # the index is being written
        assert await listed(world) == []
        await world.groups.leave("g", (Leaving(member.member_id),))
        assert await late is ErrorCode.unknown_member_id
        assert await fetched(world, stable=True) == (-1, NONE)


@pytest.mark.parametrize("unloads", [True, False])
async def test_a_late_copy_from_before_an_unload_does_not_end_the_next_transaction(unloads):
    logs = LogWorld()
    async with world_of(logs) as world:
        assert await pend(world, 7) is NONE
        late = await listed(world)
        assert await end(world, number=4) is NONE
        if unloads:
            await asyncio.sleep(5 * IDLE_MS / 1000)
            assert "g" not in world.loaded
        after = world if unloads else world.crashed()
        after.store = world.store if unloads else logs.process().store()
        async with world_of_same(after, world):
            assert await pend(after, 9) is NONE
            again = [await send(after, marker_of(number=4), each) for each in late]
            assert again == [ErrorCode.coordinator_not_available]
            assert await fetched(after, stable=False) == (7, NONE)
            assert (await fetched(after, stable=True))[1] is ErrorCode.unstable_offset_commit
            assert await end(after, number=5) is NONE
            assert await fetched(after, stable=True) == (9, NONE)


async def test_a_takeover_ends_the_transaction_of_a_group_without_a_coordinator():
    logs = LogWorld()
    async with world_of(logs) as world:
        await world.commit("g", 2)
        await pend(world, 7)
        heir = world.crashed()
        heir.store = logs.process().store()
    async with heir:
        (before,) = await listed(heir)
        assert (await fetched(heir, stable=True))[1] is ErrorCode.unstable_offset_commit
        assert await fetched(heir, stable=False) == (2, NONE)
        assert await send(heir, marker_of(), before) is ErrorCode.coordinator_not_available
        (now,) = await listed(heir)
        assert now.ownership != before.ownership
        assert await send(heir, marker_of(), now) is NONE
        assert await fetched(heir, stable=True) == (7, NONE)


async def test_a_marker_voids_a_verification_after_a_new_ownership():
    async with world_of(LogWorld()) as world:
        answer = asyncio.get_running_loop().create_future()
        late = asyncio.ensure_future(pend(world, 7, lambda: answer))
        await asyncio.sleep(1)
        assert await pend(world, 5, producer=PRODUCER + 1, partition=1) is NONE
        assert await end(world) is NONE
        answer.set_result(NONE)
        assert await late is ErrorCode.invalid_txn_state


async def test_a_late_copy_whose_number_was_forgotten_ends_nothing(monkeypatch):
    monkeypatch.setattr(group_transactions, "NUMBERS_MAX", 1)
    async with world_of(LogWorld()) as world:
        assert await pend(world, 7) is NONE
        (late,) = await listed(world)
        assert await end(world, number=4) is NONE
        assert await pend(world, 1, producer=PRODUCER + 1, partition=1) is NONE
        assert await pend(world, 9) is NONE
        again = await send(world, marker_of(number=4), late)
        assert again is ErrorCode.coordinator_not_available
        assert await end(world, number=6) is NONE
        assert await fetched(world, stable=True) == (9, NONE)


def test_5_000_producers_of_one_group_share_an_ownership():
    memory = GroupTransactions(UUID(int=0))
    owned = []
    for number in range(3 * 5_000):
        memory.learn(number % 5_000, UUID(int=number + 1))
        memory.listed = {memory.ownership}  # as after the write of the index
        owned.append(memory.ownership)
    assert len(set(owned[:5_000])) == 5_000
    assert set(owned[5_000:]) == {owned[4_999]}


def test_the_numbers_of_a_group_are_bounded():
    memory = GroupTransactions(UUID(int=0))
    for number in range(NUMBERS_MAX + 100):
        memory.learn(number, UUID(int=number + 1))
    assert len(memory._numbers) == NUMBERS_MAX


async def test_markers_of_producers_without_offsets_are_not_remembered():
    async with world_of(LogWorld()) as world:
        assert await pend(world, 7) is NONE
        (named,) = await listed(world)
        for other in range(1, 50):
            marker = marker_of(number=other)._replace(producer_id=PRODUCER + other)
            assert await send(world, marker, named) is NONE
        assert len(world.loaded["g"].transactions._numbers) == 1
        late = marker_of(number=1)._replace(producer_id=PRODUCER + 1)
        assert await pend(world, 9, producer=PRODUCER + 1, partition=1) is NONE
        assert await send(world, late, named) is ErrorCode.coordinator_not_available
        assert (await fetched(world, stable=True, partition=1))[0] == -1


async def test_a_marker_of_the_epoch_of_offsets_in_flight_does_not_end_them():
    """In protocol 2 such a marker ended the transaction before."""
    async with world_of(LogWorld()) as world:
        assert await pend(world, 5, producer=PRODUCER + 1) is NONE
        pending = asyncio.ensure_future(pend(world, 7))
        while not world.loaded["g"].transactions.in_flight:
            await asyncio.sleep(0)
        assert await end(world, version=2) is ErrorCode.invalid_producer_epoch
        assert await pending is NONE
        assert await end(world, epoch=EPOCH + 1, version=2) is NONE


async def test_a_marker_for_a_group_that_does_not_exist_stores_nothing():
    async with world_of(LogWorld()) as world:
        assert await end(world, "none") is NONE
        await asyncio.sleep(5 * IDLE_MS / 1000)
        assert not await world.store.exists("none")


async def test_a_group_with_a_pending_offset_does_not_expire():
    logs = LogWorld()
    async with world_of(logs, offsets_retention_minutes=60) as world:
        await pend(world, 7)
        await asyncio.sleep(24 * 3600)
        assert await end(world) is NONE
        assert await fetched(world, stable=True) == (7, NONE)


async def test_committed_offsets_expire_beside_a_pending_one_but_not_below_it():
    async with world_of(LogWorld(), offsets_retention_minutes=60) as world:
        for partition in (0, 1):
            assert await world.commit("g", 2, partition) == "none"
        await pend(world, 7)
        await asyncio.sleep(3 * 3600)
        assert await fetched(world, stable=False) == (2, NONE)
        assert await fetched(world, stable=False, partition=1) == (-1, NONE)
        assert await end(world, commit=False) is NONE
        await asyncio.sleep(3 * 3600)
        assert not await world.store.exists("g")


async def test_offset_delete_removes_pending_offsets_too():
    async with world_of(LogWorld()) as world:
        await pend(world, 7)
        await pend(world, 8, partition=1)
        partitions = [{"partition_index": 0}]
        body = {"group_id": "g", "topics": [{"name": "t", "partitions": partitions}]}
        answer = await world.ask(47, 0, body)
        assert answer.topics[0].partitions[0].error_code is NONE
        assert await fetched(world, stable=True) == (-1, NONE)
        assert await end(world) is NONE
        assert await fetched(world, stable=True) == (-1, NONE)
        assert await fetched(world, stable=True, partition=1) == (8, NONE)


async def test_pending_offsets_of_a_deleted_topic_are_dropped():
    async with world_of(LogWorld()) as world:
        await pend(world, 7)
        key = world.key()
        await world.catalog.delete("t")
        await asyncio.sleep(1)
        assert key not in world.groups.unstable("g")
        assert await end(world) is NONE
        assert key not in await world.groups.offsets("g")


async def test_a_group_with_damaged_pending_offsets_is_refused_and_named(capsys):
    logs = LogWorld()
    async with world_of(logs) as world:
        await world.commit("g", 2)
        await pend(world, 7)
        (before,) = await listed(world)
        await world.store.unload("g")
        damaged = logs.process()
        heir = world.crashed()
        heir.store = damaged.store()
    node = logs.node("g")
    body = encode_advance(world.key(), CommittedOffset(offset=7))
    node.last_commits[:] = [encode_pending(body, -PRODUCER, EPOCH)]
    logs.tree.set("/gateway/groups/g", encode_node(node, 1), -1)
    async with heir:
        for _ in range(3):
            refused = ErrorCode.coordinator_not_available
            assert await fetched(heir, stable=False) == (-1, refused)
            assert await send(heir, marker_of(), before) is refused
        lines = capsys.readouterr().err.splitlines()
        assert sum("a group cannot be loaded" in line and "g" in line for line in lines) == 1


async def test_a_group_whose_pending_offsets_are_lost_is_refused(capsys):
    logs = LogWorld()
    async with world_of(logs) as world:
        await world.commit("g", 2)
        await pend(world, 7)
        (before,) = await listed(world)
        heir = world.crashed()
        heir.store = logs.process().store()
        segment, node = logs.node("g").segment_id, logs.data("g")
    logs.tree.set("/gateway/groups/g", node, -1)  # as if the process had not closed its segment
    await logs.process().logs.delete(LedgerId(segment))
    async with heir:
        refused = ErrorCode.coordinator_not_available
        assert await fetched(heir, stable=False) == (-1, refused)
        assert await fetched(heir, stable=True) == (-1, refused)
        assert await send(heir, marker_of(), before) is refused
        assert await pend(heir, 8) is refused
        assert "a group cannot be loaded" in capsys.readouterr().err


async def test_pending_offsets_of_one_group_are_bounded(monkeypatch):
    monkeypatch.setattr(transactional_offsets, "PENDING_BYTES_MAX", 120)
    async with world_of(LogWorld()) as world:
        assert await pend(world, 1) is NONE
        refused = ErrorCode.invalid_commit_offset_size
        assert await pend(world, 2, partition=1) is refused
        assert await end(world) is NONE
        assert await pend(world, 2, partition=1) is NONE


async def test_members_commit_with_their_generation_and_others_for_the_whole_group():
    async with world_of(LogWorld()) as world:
        member = world.consumer()
        await member.join()
        generation = world.loaded["g"].group.generation
        for member_id, sent, code in (
            ("", -1, NONE),
            ("nobody", generation, ErrorCode.unknown_member_id),
            (member.member_id, generation + 1, ErrorCode.illegal_generation),
            (member.member_id, -1, ErrorCode.illegal_generation),
            (member.member_id, generation, NONE),
        ):
            assert await pend(world, 7, member_id=member_id, generation=sent) is code
        unknown = {"group": "other", "member_id": "nobody", "generation": 3}
        assert await pend(world, 7, **unknown) is ErrorCode.illegal_generation


async def test_a_deleted_group_leaves_nothing_pending():
    async with world_of(LogWorld()) as world:
        await pend(world, 7)
        assert await world.groups.delete("g") is NONE
        await asyncio.sleep(1)
        assert await listed(world) == []
        assert await end(world) is NONE
        assert await fetched(world, stable=True) == (-1, NONE)


async def test_a_store_of_nodes_takes_no_offsets_of_transactions():
    async with World() as world:
        assert await pend(world, 7) is ErrorCode.coordinator_not_available


async def test_without_log_segments_one_line_names_the_flag(capsys):
    async with World() as world:
        ctx = world.dispatcher._ctx
        for _ in range(3):
            assert not keeps_pending("g" * 600, ctx)
        lines = capsys.readouterr().err.splitlines()
        (line,) = [line for line in lines if "offsets in transactions" in line]
        assert " --log-segment-based-subscriptions-store-enabled" in line
        assert line.endswith(f" group={'g' * 512}...")
