"""Goal: offsets are stored in log segments as proposed, and commits write no metadata.
Method: a simulated cluster on virtual time; metadata changes counted; nodes and ledgers read.
"""

import asyncio
from contextlib import asynccontextmanager
from uuid import UUID

import pytest

from ledger.errors import CorruptFormat, NotOwner
from ledger.ids import INVALID_DLSN, Dlsn
from ledger.streams import plain_log
from subscriptions.committed_offset import (
    WHOLE_STREAM,
    CommittedOffset,
    TopicIdPartition,
    encode_dlsn,
)
from subscriptions.records_pb2 import AdvanceLastCommitDLSN, Subscription
from subscriptions.segments import in_steps, log_node
from subscriptions.segments.in_steps import RECORDS_PER_STEP
from subscriptions.segments.log_claim import SUBSCRIPTION_KEY
from subscriptions.segments.log_node import encode_node, ledgers_named
from tests.subscriptions.log_world import GROUPS, LogWorld

TOPIC = UUID(int=5)
KEY = TopicIdPartition(TOPIC, 0)


def keys(count):
    return [TopicIdPartition(TOPIC, n) for n in range(count)]


def at(n, metadata=""):
    return CommittedOffset(INVALID_DLSN, n, 3, metadata, 1_700_000_000_000 + n)


@asynccontextmanager
async def log_world():
    yield LogWorld()


async def loaded(world, name="g", **config):
    process = world.process()
    store = process.store(**config)
    await store.load(name)
    return process, store


async def test_each_commit_is_one_record_of_the_subscribers_segment():
    async with log_world() as world:
        _, store = await loaded(world)
        for n in range(1, 21):
            await store.advance("g", {KEY: at(n)})
        await store.unload("g")
        [past] = world.node("g").past_segments
        records = await world.records(past.segment_id)
        assert [AdvanceLastCommitDLSN.FromString(each).offset for each in records] == list(
            range(1, 21)
        )


class LongestStep:
    """The most calls of a function between two turns of the event loop."""

    def __init__(self, monkeypatch, owner, name):
        self._call = getattr(owner, name)
        self._now = self.most = self.total = 0
        monkeypatch.setattr(owner, name, lambda *args: self(*args))

    def __call__(self, *args):
        if not self._now:
            asyncio.get_running_loop().call_soon(self._end)
        self._now += 1
        self.total += 1
        self.most = max(self.most, self._now)
        return self._call(*args)

    def _end(self):
        self._now = 0


@pytest.mark.parametrize("place", ["open segment", "snapshot", "node"])
async def test_a_takeover_decodes_a_large_segment_in_steps(place, monkeypatch):
    count = 5 * RECORDS_PER_STEP
    async with log_world() as world:
        _, store = await loaded(world, node_state_bytes=1 if place == "snapshot" else 512 * 1024)
        await store.advance("g", {key: at(1) for key in keys(count)})
        if place != "open segment":
            await store.unload("g")
        other = world.process().store()
        functions = [
            (in_steps, "decode_record"),
            (in_steps, "decode_committed"),
            (log_node, "decode_record"),
            (plain_log, "PlainRecord"),
        ]
        steps = [LongestStep(monkeypatch, *each) for each in functions]
        found = await other.load("g")
        assert sum(each.total for each in steps) >= 2 * count
        assert max(each.most for each in steps) <= max(RECORDS_PER_STEP, plain_log.RECORDS_PER_STEP)
        monkeypatch.undo()
        assert found.offsets == {key: at(1) for key in keys(count)}
        steps = [LongestStep(monkeypatch, in_steps, "decode_committed")]
        for reader in (other, world.process().store()):
            assert len((await reader.read("g")).offsets) == count
        assert steps[0].most <= RECORDS_PER_STEP


async def test_commits_change_no_metadata():
    async with log_world() as world:
        process, store = await loaded(world)
        await store.advance("g", {KEY: at(0)})
        before = list(process.steps.writes)
        for n in range(1, 101):
            await store.advance("g", {KEY: at(n)})
        assert process.steps.writes == before


async def test_commits_read_no_metadata():
    async with log_world() as world:
        process, store = await loaded(world)
        await store.advance("g", {KEY: at(0)})
        before = process.metadata.reads
        for n in range(1, 101):
            await store.advance("g", {KEY: at(n)})
        assert process.metadata.reads == before


async def test_commits_that_wait_share_an_entry():
    async with log_world() as world:
        process, store = await loaded(world)
        await store.advance("g", {KEY: at(0)})
        before = process.steps.adds
        await asyncio.gather(*[store.advance("g", {KEY: at(n)}) for n in range(1, 101)])
        assert (
            (process.steps.adds - before) / 3
        ) == 2  # the first alone, then all that arrived while it was in flight


async def test_the_changes_of_an_ended_claim_make_room():
    async with log_world() as world:
        _, store = await loaded(world, offsets_waiting_max=3)
        await store.advance("g", {KEY: at(0)})
        changes = [store.advance("g", {key: at(1)}) for key in keys(5)]
        room = asyncio.ensure_future(store.room())
        await asyncio.sleep(0)
        assert not room.done()
        store.release("g")
        async with asyncio.timeout(1):
            await room
        outcomes = await asyncio.gather(*changes, return_exceptions=True)
        assert {type(each) for each in outcomes} == {NotOwner}


async def test_a_claim_that_is_loaded_again_in_the_midst_of_a_step_is_not_disturbed():
    async with log_world() as world:
        store = world.store()
        for turn in range(20):
            name = f"g{turn}"
            await store.load(name)
            old = store.advance(name, {KEY: at(1)})
            await asyncio.sleep(turn * 0.0005)  # its segment is created meanwhile
            await store.load(name)
            await store.advance(name, {KEY: at(2)})
            assert (await store.read(name)).offsets == {KEY: at(2)}
            await asyncio.gather(old, return_exceptions=True)


async def test_the_segment_that_is_closed_for_another_one_is_the_longest_idle():
    async with log_world() as world:
        _, store = await loaded(world, "a", open_segments_max=2)
        for name in "bc":
            await store.load(name)
        for n, name in enumerate("abac"):
            await store.advance(name, {KEY: at(n)})
        await asyncio.sleep(1)
        assert [world.node(name).HasField("segment_id") for name in "abc"] == [True, False, True]


async def test_a_claim_that_was_lost_leaves_no_ledger_behind():
    async with log_world() as world:
        _, store = await loaded(world)
        await store.advance("g", {KEY: at(1)})
        await store.unload("g")
        await store.load("g")
        await world.store().load("g")
        before = await world.ledgers()
        with pytest.raises(NotOwner):
            await store.advance("g", {KEY: at(2)})
        assert await world.ledgers() == before


async def test_the_node_holds_the_segment_and_no_offsets_of_it():
    async with log_world() as world:
        _, store = await loaded(world)
        await store.advance("g", {KEY: at(1)})
        before = world.data("g")
        await store.advance("g", {KEY: at(2)})
        assert world.data("g") == before
        record = world.node("g")
    assert record.HasField("segment_id")
    assert not record.last_commits


async def test_stock_protobuf_that_knows_fields_1_to_3_reads_the_node_and_keeps_the_rest():
    proposal = proposals_messages()

    async with log_world() as world:
        _, store = await loaded(world, "app", native=True)
        for n in (1, 2):
            await store.advance("app", {WHOLE_STREAM: CommittedOffset(Dlsn(1, n, 0))})
        data = world.data("app", native=True)
    known = proposal["Subscription"].FromString(data)
    assert (known.name, known.segment_id > 0) == ("app", True)
    assert Subscription.FromString(known.SerializeToString()) == Subscription.FromString(data)


async def test_a_native_record_is_the_proposals_and_nothing_else():
    proposal = proposals_messages()

    async with log_world() as world:
        _, store = await loaded(world, "app", native=True)
        await store.advance("app", {WHOLE_STREAM: CommittedOffset(Dlsn(7, 42, 3))})
        await store.unload("app")
        [past] = world.node("app", native=True).past_segments
        [record] = await world.records(past.segment_id)
    wanted = proposal["AdvanceLastCommitDLSN"](commit_dlsn=encode_dlsn(Dlsn(7, 42, 3)))
    assert record == wanted.SerializeToString()


async def test_a_reader_of_the_proposal_decodes_a_kafka_commit_too():
    proposal = proposals_messages()

    async with log_world() as world:
        _, store = await loaded(world)
        await store.advance("g", {KEY: at(1)})
        await store.unload("g")
        [past] = world.node("g").past_segments
        [record] = await world.records(past.segment_id)
    known = proposal["AdvanceLastCommitDLSN"].FromString(record)
    assert known.commit_dlsn == encode_dlsn(INVALID_DLSN)
    assert AdvanceLastCommitDLSN.FromString(known.SerializeToString()).offset == 1


async def test_unknown_fields_of_a_newer_program_survive_a_roll():
    async with log_world() as world:
        _, store = await loaded(world)
        await store.advance("g", {KEY: at(1)})
        await store.unload("g")
        newer = world.node("g")
        newer.last_commits[0] += b"\xf8\x07\x01"  # field 127, varint 1
        newer.MergeFromString(b"\xfa\x07\x01x")  # field 127, bytes
        world.tree.set(f"{GROUPS}/g", encode_node(newer, 1), -1)
        await store.load("g")
        await store.advance("g", {TopicIdPartition(TOPIC, 1): at(2)})
        await store.unload("g")
        data = world.data("g")
    assert b"\xfa\x07\x01x" in data
    assert b"\xf8\x07\x01" in data


async def test_rolling_and_letting_go_write_back_and_empty_the_segment_id():
    async with log_world() as world:
        _, store = await loaded(world, "app", native=True)
        await store.advance("app", {WHOLE_STREAM: CommittedOffset(Dlsn(2, 9, 1))})
        await store.close()
        record = world.node("app", native=True)
    assert not record.HasField("segment_id")
    assert record.last_commit_dlsn == encode_dlsn(Dlsn(2, 9, 1))


async def test_after_an_orderly_end_no_segment_is_read():
    async with log_world() as world:
        _, store = await loaded(world)
        await store.advance("g", {KEY: at(1)})
        await store.close()
        process = world.process()
        process.logs = None  # it has no ledgers
        again = process.store()
        assert (await again.load("g")).offsets == {KEY: at(1)}


async def test_a_segment_that_has_grown_rolls_and_nothing_is_lost():
    async with log_world() as world:
        _, store = await loaded(world, segment_bytes=2000)
        for n in range(1, 101):
            await store.advance("g", {KEY: at(n)})
        assert len(world.node("g").past_segments) > 2
        assert (await world.store().load("g")).offsets == {KEY: at(100)}


async def test_commits_during_a_roll_wait_and_keep_their_order():
    async with log_world() as world:
        _, store = await loaded(world, segment_bytes=1000)
        told = []
        for n in range(1, 301):
            durable = store.advance("g", {KEY: at(n)})
            durable.add_done_callback(lambda _, n=n: told.append(n))
            if n % 10 == 0:
                await durable
        await asyncio.sleep(0)
        assert told == list(range(1, 301))
        assert (await world.store().load("g")).offsets == {KEY: at(300)}


async def test_an_idle_segment_is_closed_and_the_next_commit_begins_another():
    async with log_world() as world:
        _, store = await loaded(world, idle_s=60.0)
        await store.advance("g", {KEY: at(1)})
        assert store.open_segments == 1
        await asyncio.sleep(100)
        assert store.open_segments == 0
        assert not world.node("g").HasField("segment_id")
        await store.advance("g", {KEY: at(2)})
        assert (await world.store().load("g")).offsets == {KEY: at(2)}


async def test_a_busy_segment_stays_open():
    async with log_world() as world:
        _, store = await loaded(world, idle_s=60.0)
        for n in range(1, 11):
            await store.advance("g", {KEY: at(n)})
            await asyncio.sleep(30)
        assert not world.node("g").past_segments


async def test_open_segments_are_bounded():
    async with log_world() as world:
        process = world.process()
        store = process.store(open_segments_max=5)
        for n in range(20):
            await store.load(f"g{n}")
            await store.advance(f"g{n}", {KEY: at(n)})
        await asyncio.sleep(1)
        assert store.open_segments <= 5
        for n in range(20):
            assert (await store.read(f"g{n}")).offsets == {KEY: at(n)}


async def test_many_positions_lie_in_a_closed_segment_that_the_node_names():
    async with log_world() as world:
        _, store = await loaded(world, node_state_bytes=1000)
        positions = {key: at(n) for n, key in enumerate(keys(100))}
        await store.advance("g", positions, b"note")
        await store.unload("g")
        record = world.node("g")
        assert record.HasField("snapshot_id")
        assert len(world.data("g")) < 200
        found = await world.store().load("g")
        assert (found.offsets, found.note) == (positions, b"note")


async def test_a_change_larger_than_an_entry_is_one_change():
    async with log_world() as world:
        process, store = await loaded(world, entry_bytes=500)
        positions = {key: at(n) for n, key in enumerate(keys(100))}
        await store.advance("g", positions)
        assert process.steps.adds > 30
        assert (await world.store().load("g")).offsets == positions


async def test_a_change_that_was_cut_short_by_a_crash_never_happened():
    async with log_world() as world:
        process, store = await loaded(world, entry_bytes=500)
        await store.advance("g", {KEY: at(1)})
        process.steps.last, process.steps.after = process.steps.taken + 5, True
        store.advance("g", {key: at(9) for key in keys(100)})
        await process.steps.died.wait()
        assert (await world.store().load("g")).offsets == {KEY: at(1)}


async def test_a_note_of_a_mebibyte_is_kept_beside_the_positions():
    async with log_world() as world:
        _, store = await loaded(world)
        note = bytes(1_046_528)
        await store.advance("g", {KEY: at(1)}, note)
        await store.unload("g")
        assert (await world.store().load("g")) == ({KEY: at(1)}, note, True, {})


async def test_a_note_is_seen_soon_by_others_who_claim_nothing():
    async with log_world() as world:
        _, store = await loaded(world)
        await store.advance("g", {KEY: at(1)}, b"members")
        await asyncio.sleep(0.1)
        assert (await world.store().read("g")) == ({KEY: at(1)}, b"members", True, {})
        await store.advance("g", {KEY: at(2)})  # no owner was fenced


async def test_a_removed_position_stays_removed_through_a_roll():
    async with log_world() as world:
        _, store = await loaded(world)
        one, two = keys(2)
        await store.advance("g", {one: at(1), two: at(2)})
        await store.advance("g", {one: None})
        await store.unload("g")
        assert (await world.store().load("g")).offsets == {two: at(2)}


async def test_a_native_position_only_moves_forward():
    async with log_world() as world:
        _, store = await loaded(world, "app", native=True)
        ahead, behind = CommittedOffset(Dlsn(2, 9, 1)), CommittedOffset(Dlsn(2, 3, 0))
        await store.advance("app", {WHOLE_STREAM: ahead})
        await store.advance("app", {WHOLE_STREAM: behind})
        assert (await world.store(native=True).load("app")).offsets == {WHOLE_STREAM: ahead}


async def test_of_two_stores_only_the_one_that_claimed_last_can_commit_and_nothing_is_overwritten():
    async with log_world() as world:
        _, old = await loaded(world)
        await old.advance("g", {KEY: at(1)})
        new = world.store()
        assert (await new.load("g")).offsets == {KEY: at(1)}
        for n in (2, 3):
            with pytest.raises(NotOwner):
                await old.advance("g", {KEY: at(n)})
        await new.advance("g", {KEY: at(4)})
        assert (await world.store().load("g")).offsets == {KEY: at(4)}


async def test_who_has_no_segment_yet_is_shut_out_as_well():
    async with log_world() as world:
        _, old = await loaded(world)
        await old.advance("g", {KEY: at(1)})
        await old.unload("g")
        await old.load("g")
        new = world.store()
        await new.load("g")
        with pytest.raises(NotOwner):
            await old.advance("g", {KEY: at(2)})
        await new.advance("g", {KEY: at(3)})
        assert (await world.store().load("g")).offsets == {KEY: at(3)}


async def test_of_two_that_find_a_new_subscriber_one_gets_it():
    async with log_world() as world:
        _, one = await loaded(world)
        _, two = await loaded(world)
        outcomes = await asyncio.gather(
            one.advance("g", {KEY: at(1)}), two.advance("g", {KEY: at(2)}), return_exceptions=True
        )
        assert {type(each) for each in outcomes} == {type(None), NotOwner}
        won = 1 if outcomes[0] is None else 2
        assert (await world.store().load("g")).offsets == {KEY: at(won)}


async def test_a_deleted_subscriber_leaves_no_ledger():
    async with log_world() as world:
        _, store = await loaded(world, segment_bytes=1000, node_state_bytes=300)
        for n in range(50):
            await store.advance("g", {key: at(n) for key in keys(5)})
        assert len(await world.ledgers()) > 3
        await store.delete("g")
        assert await world.ledgers() == []
        assert await store.list() == []


async def test_every_ledger_tells_whose_it_is():
    async with log_world() as world:
        process, store = await loaded(world, segment_bytes=1000, node_state_bytes=300)
        for n in range(50):
            await store.advance("g", {key: at(n) for key in keys(5)})
        for ledger in await world.ledgers():
            metadata = await process.client.read_metadata(ledger)
            assert metadata.custom[SUBSCRIPTION_KEY] == f"{GROUPS}/g".encode()


async def test_the_node_names_every_ledger_that_there_is():
    async with log_world() as world:
        _, store = await loaded(world, segment_bytes=1000, node_state_bytes=300)
        for n in range(50):
            await store.advance("g", {key: at(n) for key in keys(5)})
        assert set(await world.ledgers()) == ledgers_named(world.node("g"))


async def test_a_node_that_names_a_ledger_that_is_gone_is_refused_by_name():
    async with log_world() as world:
        process, store = await loaded(world)
        await store.advance("g", {KEY: at(1)})
        await process.logs.delete(world.node("g").segment_id)
        with pytest.raises(CorruptFormat, match=f"{GROUPS}/g"):
            await world.store().load("g")


async def test_one_flipped_bit_of_the_node_is_noticed():
    async with log_world() as world:
        _, store = await loaded(world)
        await store.advance("g", {KEY: at(1)})
        await store.unload("g")
        data = world.data("g")
        for bit in range(len(data) * 8):
            flipped = bytearray(data)
            flipped[bit // 8] ^= 1 << bit % 8
            world.tree.set(f"{GROUPS}/g", bytes(flipped), -1)
            with pytest.raises(CorruptFormat, match=f"{GROUPS}/g"):
                await store.read("g")


def proposals_messages():
    """Messages of a program that was built from the proposal's text alone."""
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

    kinds = {"string": 9, "int64": 3, "bytes": 12}
    file = descriptor_pb2.FileDescriptorProto(name="proposal.proto", package="proposal")
    file.syntax = "proto3"
    shapes = {
        "Subscription": [
            ("string", "name"),
            ("int64", "segment_id"),
            ("bytes", "last_commit_dlsn"),
        ],
        "AdvanceLastCommitDLSN": [("bytes", "commit_dlsn")],
    }
    for name, fields in shapes.items():
        message = file.message_type.add(name=name)
        for number, (kind, field) in enumerate(fields, 1):
            message.field.add(name=field, number=number, type=kinds[kind], label=1)
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return {
        name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"proposal.{name}"))
        for name in shapes
    }


async def test_a_load_does_not_wait_for_the_deletion_of_an_old_segment():
    async with log_world() as world:
        first, store = await loaded(world, carry_bytes=0)
        await store.advance("g", {KEY: at(1)})
        await store.unload("g")
        await store.load("g")
        await store._owned["g"].claim.begin_segment()  # it holds only a copy of the state
        await asyncio.sleep(1)
        first.kill()
        second = world.process()
        going, delete, deleted = asyncio.Event(), second.logs.delete, []

        async def late_delete(ledger):
            await going.wait()
            deleted.append(ledger)
            await delete(ledger)

        second.logs.delete = late_delete
        other = second.store()
        async with asyncio.timeout(10):
            found = await other.load("g")
        assert found.offsets[KEY].offset == 1
        assert not deleted
        going.set()
        await other.close()
        assert len(deleted) == 1


async def test_a_copy_of_the_offsets_of_a_group_stays_as_it_is():
    async with log_world() as world:
        store = world.process().store()
        live = (await store.load("g")).offsets
        await store.advance("g", {KEY: at(1)})
        taken = live.copy()
        await store.advance("g", {KEY: at(2)})
        assert (taken[KEY].offset, live[KEY].offset) == (1, 2)
