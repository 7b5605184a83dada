"""Goal: notes with keys are written alone, durable, found by a takeover, and refused by releases
that would take them for something else.

Method: a simulated cluster on virtual time; takeovers, and crashes at every step.
"""

from uuid import UUID

import pytest

from ledger.errors import CorruptFormat
from subscriptions.committed_offset import CommittedOffset, TopicIdPartition
from subscriptions.segments import log_node
from subscriptions.segments.log_node import FORMAT_KEYED, FORMAT_PENDING
from subscriptions.segments.segment_records import decode_record, encode_keyed
from subscriptions.store import KeyedStore
from tests.sim.loop import simulate
from tests.subscriptions.log_world import Died, LogWorld

KEY = TopicIdPartition(UUID(int=5), 0)
AT = CommittedOffset(offset=1, commit_time_ms=1_700_000_000_000)


async def loaded(world, **config):
    process = world.process()
    store = process.store(**config)
    return process, store, await store.load("g")


@pytest.mark.parametrize("ends", ["unload", "kill"])
async def test_a_takeover_finds_the_last_note_of_each_key(ends):
    world = LogWorld()
    process, store, found = await loaded(world)
    assert isinstance(store, KeyedStore)
    await store.advance("g", {KEY: AT}, b"note")
    await store.advance_keyed("g", {"a": b"1", "b": b"1"})
    await store.advance_keyed("g", {"a": b"2", "b": None, "c": b""}, b"")
    assert dict(found.keyed) == {"a": b"2", "c": b""}
    if ends == "unload":
        await store.unload("g")
    else:
        process.kill()
    _, store, found = await loaded(world)
    assert (dict(found.keyed), found.note) == ({"a": b"2", "c": b""}, b"")
    assert dict(found.offsets) == {KEY: AT}
    assert dict((await store.read("g")).keyed) == {"a": b"2", "c": b""}


async def test_many_segments_keep_the_notes():
    world = LogWorld()
    _, store, _ = await loaded(world, segment_bytes=200, carry_bytes=64)
    for number in range(40):
        await store.advance_keyed("g", {f"k{number % 3}": b"%d" % number})
    _, _, found = await loaded(world)
    assert dict(found.keyed) == {"k0": b"39", "k1": b"37", "k2": b"38"}


async def test_an_older_release_refuses_the_group_from_the_first_note_with_a_key_on(monkeypatch):
    world = LogWorld()
    _, store, _ = await loaded(world)
    await store.advance("g", {KEY: AT})
    await store.advance_keyed("g", {"a": b"1"})
    assert world.node("g").format == FORMAT_KEYED
    await store.unload("g")
    monkeypatch.setattr(log_node, "FORMAT_KEYED", FORMAT_PENDING)  # as in that release
    with pytest.raises(CorruptFormat, match="format 3"):
        await loaded(world)


async def test_a_store_without_log_segments_refuses_the_group():
    world = LogWorld()
    _, store, _ = await loaded(world)
    await store.advance_keyed("g", {"a": b"1"})
    await store.unload("g")
    with pytest.raises(CorruptFormat, match="needs log segments"):
        await world.process().store(enabled=False).load("g")


async def test_the_history_has_no_notes_with_keys():
    world = LogWorld()
    _, store, _ = await loaded(world)
    await store.advance("g", {KEY: AT})
    await store.advance_keyed("g", {"a": b"1"})
    await store.advance("g", {KEY: AT._replace(offset=2)})
    changes = (await store.history("g")).changes
    assert {each.key for each in changes} == {KEY}


async def test_a_deleted_group_has_no_notes():
    world = LogWorld()
    _, store, _ = await loaded(world)
    await store.advance_keyed("g", {"a": b"1"})
    assert await store.delete("g") is True
    assert await store.load("g") == ({}, b"", False, {})


@pytest.mark.parametrize(
    "data", [encode_keyed("a", b"1")[:-1], encode_keyed("a", None) + encode_keyed("a", b"1")]
)
def test_a_damaged_note_is_refused(data):
    with pytest.raises(CorruptFormat):
        decode_record(data, "here")


async def crash_at(step, *, after):
    """Return the notes that a takeover finds after a crash, and how many were acknowledged."""
    world = LogWorld()
    process = world.process()
    store = process.store()
    process.steps.last, process.steps.after = step, after
    acknowledged = []

    async def work():
        await store.load("g")
        for number in range(4):
            await store.advance_keyed("g", {"a": b"%d" % number, "b": b"%d" % number})
            acknowledged.append(number)

    try:
        await process.lives(work())
    except Died:
        pass
    _, _, found = await loaded(world)
    return dict(found.keyed), len(acknowledged)


@pytest.mark.parametrize("after", [False, True])
def test_a_crash_at_any_step_keeps_whole_changes(after):
    for step in range(1, 25):
        found, acknowledged = simulate(crash_at(step, after=after))
        assert found.get("a") == found.get("b")
        assert int(found.get("a", b"-1")) + 1 >= acknowledged
