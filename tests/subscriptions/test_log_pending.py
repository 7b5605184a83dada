"""Goal: pending offsets are durable in the log segment, invisible until their transaction ends, and
refused by releases that would read them as committed.

Method: a simulated cluster on virtual time; takeovers and crashes at every step of the metadata.
"""

import asyncio
from uuid import UUID

import pytest

from ledger.errors import CorruptFormat, EntryUnknown, LedgerError, NotOwner
from subscriptions.committed_offset import CommittedOffset, TopicIdPartition, encode_advance
from subscriptions.records_pb2 import AdvanceLastCommitDLSN
from subscriptions.segments import log_node
from subscriptions.segments.log_node import FORMAT, FORMAT_PENDING, encode_node
from subscriptions.segments.segment_records import (
    encode_end,
    encode_note,
    encode_pending,
    encode_removal,
)
from tests.sim.loop import simulate
from tests.subscriptions.log_world import GROUPS, Died, LogWorld

KEYS = [TopicIdPartition(UUID(int=5), n) for n in range(3)]
PRODUCER, EPOCH = 4_000, 2


def at(offset):
    return CommittedOffset(offset=offset, commit_time_ms=1_700_000_000_000 + offset)


async def loaded(world, **config):
    process = world.process()
    store = process.store(**config)
    return process, store, await store.load("g")


async def begun(store):
    """Commit one offset, and put two into a transaction."""
    await store.advance("g", {KEYS[0]: at(1)}, b"members")
    await store.advance_pending("g", PRODUCER, EPOCH, {KEYS[0]: at(5), KEYS[1]: at(6)})


@pytest.mark.parametrize("commits", [True, False])
async def test_a_transaction_is_seen_when_it_has_ended_and_not_before(commits):
    world = LogWorld()
    _, store, found = await loaded(world)
    await begun(store)
    assert dict(found.offsets) == {KEYS[0]: at(1)}
    assert KEYS[1] in store.pending("g")
    await store.end_pending("g", PRODUCER, EPOCH, commits=commits)
    ended = {KEYS[0]: at(5), KEYS[1]: at(6)} if commits else {KEYS[0]: at(1)}
    assert dict(found.offsets) == ended
    assert not store.pending("g")
    _, _, found = await loaded(world)
    assert (dict(found.offsets), found.note) == (ended, b"members")


@pytest.mark.parametrize("unloads", [True, False])
async def test_a_takeover_finds_the_open_transaction(unloads):
    world = LogWorld()
    process, store, _ = await loaded(world)
    await begun(store)
    if unloads:
        await store.unload("g")
    else:
        process.kill()
    _, store, found = await loaded(world)
    assert dict(found.offsets) == {KEYS[0]: at(1)}
    assert store.pending("g").epoch(PRODUCER) == EPOCH
    await store.end_pending("g", PRODUCER, EPOCH, commits=True)
    assert dict(found.offsets) == {KEYS[0]: at(5), KEYS[1]: at(6)}


async def test_an_older_release_refuses_the_group_from_the_first_pending_offset_on(monkeypatch):
    world = LogWorld()
    _, store, _ = await loaded(world)
    await store.advance("g", {KEYS[0]: at(1)})
    assert world.node("g").format == FORMAT
    await store.advance_pending("g", PRODUCER, EPOCH, {KEYS[0]: at(5)})
    assert world.node("g").format == FORMAT_PENDING
    await store.unload("g")
    monkeypatch.setattr(log_node, "FORMAT_KEYED", FORMAT)  # as in that release
    with pytest.raises(CorruptFormat, match="format 2"):
        await loaded(world)


async def test_the_node_refuses_older_releases_before_the_record_is_written():
    world = LogWorld()
    _, store, _ = await loaded(world)
    await store.advance("g", {KEYS[0]: at(1)})
    pending = store.advance_pending("g", PRODUCER, EPOCH, {KEYS[0]: at(5)})
    formats = []
    while not pending.done():
        formats.append(world.node("g").format)
        await asyncio.sleep(0.0005)
    assert formats[-1] == FORMAT_PENDING
    assert formats == sorted(formats)


async def test_pending_offsets_outlive_rolled_and_copied_segments():
    world = LogWorld()
    _, store, found = await loaded(world, segment_bytes=300, node_state_bytes=64)
    await begun(store)
    for offset in range(10, 60):
        await store.advance("g", {KEYS[2]: at(offset)})
    await store.unload("g")
    assert len(world.node("g").past_segments) > 1
    _, store, found = await loaded(world)
    assert store.pending("g").epoch(PRODUCER) == EPOCH
    await store.end_pending("g", PRODUCER, EPOCH, commits=True)
    assert dict(found.offsets) == {KEYS[0]: at(5), KEYS[1]: at(6), KEYS[2]: at(59)}


@pytest.mark.parametrize("commits", [True, False])
@pytest.mark.parametrize("ends_first", [True, False], ids=["the end", "another change"])
async def test_a_copied_segment_ends_no_later_transaction(commits, ends_first):
    """The copy holds the end of a transaction of the same producer, which is over."""
    world = LogWorld()
    _, store, _ = await loaded(world)
    await begun(store)
    await store.end_pending("g", PRODUCER, EPOCH, commits=True)
    await store.advance_pending("g", PRODUCER, EPOCH, {KEYS[2]: at(7)})
    await store.unload("g")  # the segment ends while the second transaction is open
    process, store, found = await loaded(world)
    committed = {KEYS[0]: at(5), KEYS[1]: at(6)}
    if not ends_first:
        await store.advance("g", {}, b"other members")  # begins the next segment with a copy
        process.kill()
        process, store, found = await loaded(world)
        assert (dict(found.offsets), found.note) == (committed, b"other members")
        assert store.pending("g").epoch(PRODUCER) == EPOCH
    await store.end_pending("g", PRODUCER, EPOCH, commits=commits)
    ended = {**committed, KEYS[2]: at(7)} if commits else committed
    assert dict(found.offsets) == ended
    process.kill()  # while the segment with the copy is open
    _, store, found = await loaded(world)
    assert dict(found.offsets) == ended
    assert not store.pending("g")


@pytest.mark.parametrize("silent", [2, 3])
async def test_a_plain_read_of_a_copy_is_refused_while_too_few_bookies_answer(silent):
    """The node of the group holds the state at the copy's beginning, which is that of long ago."""
    world = LogWorld()
    _, store, _ = await loaded(world)
    await begun(store)
    await store.end_pending("g", PRODUCER, EPOCH, commits=True)
    await store.unload("g")
    _, store, found = await loaded(world)
    await store.advance("g", {KEYS[2]: at(7)}, b"other members")
    node = world.node("g")
    assert node.HasField("segment_id")
    assert (list(node.past_segments), list(node.last_commits)) == ([], [])
    process = world.process()
    reader = process.store()
    for bookie in range(silent):
        world.network.cut(process.port.host, f"b{bookie}")
    with pytest.raises(EntryUnknown):
        await reader.read("g")
    world.network.heal()
    assert dict((await reader.read("g")).offsets) == dict(found.offsets)


async def test_a_copied_segment_keeps_the_order_of_plain_commits_and_transactions():
    world = LogWorld()
    _, store, _ = await loaded(world)
    await store.advance_pending("g", PRODUCER, EPOCH, {KEYS[0]: at(5), KEYS[1]: at(6)})
    await store.advance("g", {KEYS[0]: at(8)})  # overtakes the pending offset of this partition
    await store.advance("g", {KEYS[1]: at(2)})
    await store.advance_pending("g", PRODUCER, EPOCH, {KEYS[1]: at(9)})
    await store.unload("g")
    for _ in range(2):
        process, store, found = await loaded(world)
        await store.advance("g", {}, b"members")
        process.kill()
    _, store, found = await loaded(world)
    await store.end_pending("g", PRODUCER, EPOCH, commits=True)
    assert dict(found.offsets) == {KEYS[0]: at(8), KEYS[1]: at(9)}


async def test_the_history_shows_a_commit_when_the_transaction_commits():
    world = LogWorld()
    _, store, _ = await loaded(world)
    await begun(store)
    history = await store.history("g")
    shown = [(change.key, change.committed) for change in history.changes]
    assert shown == [(KEYS[0], at(1)), (None, None)]
    await store.end_pending("g", PRODUCER, EPOCH, commits=True)
    await store.unload("g")
    history = await store.history("g")
    shown = [(change.key, change.committed) for change in history.changes]
    assert shown[2:] == [(KEYS[0], at(5)), (KEYS[1], at(6))]


async def test_a_store_without_log_segments_keeps_the_group_of_an_open_transaction():
    world = LogWorld()
    _, store, _ = await loaded(world)
    await begun(store)
    await store.unload("g")
    off = world.process().store(enabled=False)
    with pytest.raises(CorruptFormat, match="a transaction has pending offsets"):
        await off.load("g")
    _, store, _ = await loaded(world)
    await store.end_pending("g", PRODUCER, EPOCH, commits=False)
    await store.unload("g")
    assert dict((await off.load("g")).offsets) == {KEYS[0]: at(1)}


async def test_a_plain_read_shows_committed_offsets_only():
    world = LogWorld()
    _, store, _ = await loaded(world)
    await begun(store)
    await store.unload("g")
    reader = world.process().store()
    assert dict((await reader.read("g")).offsets) == {KEYS[0]: at(1)}


async def test_a_lost_claim_accepts_no_pending_offsets():
    world = LogWorld()
    _, store, _ = await loaded(world)
    await begun(store)
    await loaded(world)
    with pytest.raises(NotOwner):
        await store.advance_pending("g", PRODUCER, EPOCH, {KEYS[0]: at(9)})
    with pytest.raises(LedgerError):
        await store.end_pending("g", PRODUCER, EPOCH, commits=True)


def test_a_crash_at_any_step_leaves_a_transaction_open_or_ended_but_never_torn():
    before, after_end = {KEYS[0]: at(1)}, {KEYS[0]: at(5), KEYS[1]: at(6)}

    async def scenario(last, after):
        world = LogWorld()
        process = world.process()
        process.steps.last, process.steps.after = last, after
        acknowledged = []

        async def story():
            store = process.store(segment_bytes=400)
            await store.load("g")
            await begun(store)
            acknowledged.append("pending")
            await store.end_pending("g", PRODUCER, EPOCH, commits=True)
            acknowledged.append("ended")
            await store.unload("g")

        try:
            await process.lives(story())
        except Died:
            pass
        _, store, found = await loaded(world)
        offsets, pending = dict(found.offsets), store.pending("g")
        where = f"step {last}, {'after' if after else 'before'} it"
        assert offsets in ({}, before, after_end), where
        assert (len(pending) == 2) <= (offsets == before), where
        if "pending" in acknowledged:
            assert len(pending) == 2 or offsets == after_end, where
        if "ended" in acknowledged:
            assert (offsets, len(pending)) == (after_end, 0), where
        await store.end_pending("g", PRODUCER, EPOCH, commits=False)
        assert not store.pending("g")
        return process.steps.taken

    count = simulate(scenario(None, False))
    assert count > 10
    for last in range(1, count + 1):
        for after in (False, True):
            simulate(scenario(last, after))


OFFSET = encode_advance(KEYS[0], at(5))
DAMAGED = {
    "a producer below 0": encode_pending(OFFSET, -PRODUCER, EPOCH),
    "an epoch below 0": encode_pending(OFFSET, PRODUCER, -1),
    "no epoch": OFFSET + AdvanceLastCommitDLSN(producer_id=PRODUCER).SerializeToString(),
    "no producer": OFFSET + AdvanceLastCommitDLSN(producer_epoch=EPOCH).SerializeToString(),
    "no partition": encode_pending(b"", PRODUCER, EPOCH),
    "a removal": encode_pending(encode_removal(KEYS[0]), PRODUCER, EPOCH),
    "a note": encode_pending(encode_note(b"members"), PRODUCER, EPOCH),
    "an end without a producer": AdvanceLastCommitDLSN(commits=True).SerializeToString(),
    "an end of a producer below 0": encode_end(-PRODUCER, EPOCH, commits=True),
    "an end with an offset": OFFSET + encode_end(PRODUCER, EPOCH, commits=True),
    "a position of another size": encode_pending(OFFSET + b"\x0a\x01A", PRODUCER, EPOCH),
}


@pytest.mark.parametrize("name", DAMAGED)
async def test_a_damaged_record_of_a_transaction_is_refused_and_never_committed(name):
    world = LogWorld()
    _, store, _ = await loaded(world)
    await begun(store)
    await store.unload("g")
    node = world.node("g")
    node.last_commits.append(DAMAGED[name])
    world.tree.set(f"{GROUPS}/g", encode_node(node, 1), -1)
    with pytest.raises(CorruptFormat, match="/gateway/groups/g"):
        await loaded(world)
    with pytest.raises(CorruptFormat, match="/gateway/groups/g"):
        await world.store().read("g")
