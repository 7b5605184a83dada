"""Goal: entries of a group with notes that have keys are compressed, and all that reads them finds
what was written. The entries of other groups stay plain, because earlier releases read them.

Method: a simulated cluster on virtual time; kills, small segments, and the stored entries.
"""

import asyncio
from random import Random
from uuid import UUID

import pytest

from ledger.core.records import parse_entry
from ledger.errors import CorruptFormat
from ledger.ids import EntryId
from ledger.streams.compressed_entries import decompressed
from subscriptions.committed_offset import CommittedOffset, TopicIdPartition
from subscriptions.segments.log_node import (
    FORMAT,
    FORMAT_KEYED,
    FORMAT_PENDING,
    ledgers_named,
)
from subscriptions.segments.segment_records import decode_record
from subscriptions.store import offsets_at
from tests.subscriptions.log_world import LogWorld

KEYS = [TopicIdPartition(UUID(int=5), number) for number in range(30)]
SMALL = {"segment_bytes": 3_000, "node_state_bytes": 1_000, "carry_bytes": 1_000}


def at(offset):
    return CommittedOffset(offset=offset, commit_time_ms=1_700_000_000_000 + offset)


def alike(count, text):
    """Return notes of many keys that are alike."""
    return {f"current/{number}": b"the same in all of them, " + text for number in range(count)}


async def loaded(world, **config):
    process = world.process()
    store = process.store(**config)
    return process, store, await store.load("g")


async def payloads(world, ledger):
    """Return the entries of a ledger that readers see, as they are stored."""
    reader = await world.process().client.open(ledger, read_lac=True)
    last, found = reader.last_add_confirmed, []
    while len(found) <= last:
        entries = await reader.read(EntryId(len(found)), last, 1 << 20)
        found += [bytes(payload) for _, payload in entries]
    return found


def codec(payload):
    return payload[4] & 3


def is_control(payload):
    return not codec(payload) and all(each.control for each in parse_entry(payload))


async def test_a_takeover_reads_what_a_killed_coordinator_compressed():
    world = LogWorld()
    process, store, _ = await loaded(world)
    await store.advance_keyed("g", alike(50, b"first"))
    await store.advance("g", {key: at(1) for key in KEYS})
    await store.advance_keyed("g", alike(20, b"second") | {"current/40": None})
    stored = await payloads(world, world.node("g").segment_id)
    assert [codec(each) for each in stored if not is_control(each)] == [1, 1, 1]
    assert sum(map(len, stored)) < sum(map(len, alike(50, b"first").values()))
    process.kill()
    _, store, found = await loaded(world)
    due = alike(50, b"first") | alike(20, b"second")
    del due["current/40"]
    assert dict(found.keyed) == due
    assert dict(found.offsets) == {key: at(1) for key in KEYS}
    changes = (await store.history("g")).changes
    assert [(each.key, each.committed) for each in changes] == [(key, at(1)) for key in KEYS]


async def test_a_group_that_earlier_releases_read_stays_plain():
    world = LogWorld()
    _, store, _ = await loaded(world)
    for offset in range(3):
        await store.advance("g", {key: at(offset) for key in KEYS}, b"x" * 2_000)
    assert world.node("g").format == FORMAT
    assert {codec(each) for each in await payloads(world, world.node("g").segment_id)} == {0}
    await store.advance_keyed("g", alike(1, b"one"))
    await store.advance("g", {key: at(9) for key in KEYS})
    await store.advance_keyed("g", alike(1, b"two"))  # readers see the entry before it now
    assert world.node("g").format == FORMAT_KEYED
    stored = await payloads(world, world.node("g").segment_id)
    assert [codec(each) for each in stored if not is_control(each)][-2] == 1


async def first_entries(world, form):
    """Return the first entries of a segment that copies one, of one with a base, and of a snapshot.

    The group has notes with keys or pending offsets if `form` needs them.
    """

    async def commits(count, keys):
        """Load the group, commit, and unload it. Returns the first entry of the segment."""
        _, store, _ = await loaded(world, **SMALL)
        for number in range(count):
            await store.advance("g", {key: at(number) for key in keys})
        ledger = world.node("g").segment_id
        await store.unload("g")
        return (await payloads(world, ledger))[0]

    _, store, _ = await loaded(world, **SMALL)
    if form == FORMAT_PENDING:
        await store.advance_pending("g", 7, 0, {KEYS[0]: at(1)})
        await store.end_pending("g", 7, 0, commits=False)
    if form == FORMAT_KEYED:
        await store.advance_keyed("g", {"current/1": b"a note"})
    await store.unload("g")
    await commits(1, KEYS[:3])
    copy = await commits(3, KEYS[:10])
    base = await commits(1, KEYS[:10])  # the one before was too large for a copy
    await commits(1, KEYS)
    [snapshot] = await payloads(world, world.node("g").snapshot_id)
    assert world.node("g").format == form
    assert [are_base(each) for each in (copy, base, snapshot)] == [False, True, False]
    return [copy, base, snapshot]


def are_base(payload):
    """True if the records of this entry repeat the state of the node."""
    records = parse_entry(decompressed(payload))
    return {decode_record(each.data, "g").base for each in records} == {True}


@pytest.mark.parametrize("form", [FORMAT, FORMAT_PENDING, FORMAT_KEYED])
async def test_entries_of_all_kinds_are_compressed_only_if_earlier_releases_refuse_the_node(form):
    entries = await first_entries(LogWorld(), form)
    assert [codec(each) for each in entries] == [int(form == FORMAT_KEYED)] * len(entries)


@pytest.mark.parametrize("seed", range(8))
async def test_segments_snapshots_and_copies_keep_the_state_and_the_history(seed):
    draw, world, keyed, offsets = Random(seed), LogWorld(), {}, {}
    process, store, _ = await loaded(world, **SMALL)
    seen = []
    for number in range(60):
        if draw.random() < 0.6:
            change = alike(draw.randint(1, 30), b"%d" % number)
            await store.advance_keyed("g", change)
            keyed |= change
        else:
            some = {key: at(number) for key in draw.sample(KEYS, draw.randint(1, 20))}
            await store.advance("g", some)
            offsets |= some
            seen.append((process.clock.now_ms(), dict(offsets)))
        await asyncio.sleep(1)
        ending = draw.random()
        if ending < 0.1:
            await store.unload("g")
        elif ending < 0.2:
            process.kill()
        if ending < 0.2:
            process, store, found = await loaded(world, **SMALL)
            assert (dict(found.keyed), dict(found.offsets)) == (keyed, offsets)
    await store.unload("g")
    assert ledgers_named(world.node("g"))
    found = await world.process().store().read("g")
    assert (dict(found.keyed), dict(found.offsets)) == (keyed, offsets)
    history = await store.history("g")
    for now_ms, due in seen:
        if now_ms > history.since_ms:
            assert dict(offsets_at(history, now_ms)) == due


async def test_only_the_last_of_entries_that_follow_each_other_is_announced():
    world = LogWorld()
    _, store, _ = await loaded(world)
    await store.advance_keyed("g", alike(1, b"begin"))
    await asyncio.sleep(1)
    ledger = world.node("g").segment_id
    before = len(await payloads(world, ledger))
    changes = [store.advance_keyed("g", alike(2, b"%d" % number)) for number in range(3)]
    await asyncio.gather(*changes)
    await asyncio.sleep(1)
    kinds = [is_control(each) for each in await payloads(world, ledger)][before:]
    # Readers do not see the announcement itself, and the first change had the one before it.
    assert kinds == [True, False, False]
    found = await world.process().store().read("g")
    assert dict(found.keyed) == alike(2, b"2")
    await store.unload("g")  # of a closed segment they see all
    kinds = [is_control(each) for each in await payloads(world, ledger)][before:]
    assert kinds == [True, False, False, True]


async def test_notes_that_offsets_follow_are_seen_by_readers_without_a_claim():
    world = LogWorld()
    _, store, _ = await loaded(world)
    await store.advance_keyed("g", alike(2, b"begin"))
    changes = [
        store.advance_keyed("g", alike(2, b"later")),
        store.advance_keyed("g", alike(1, b"last")),
        store.advance("g", {KEYS[0]: at(1)}),
    ]
    await asyncio.gather(*changes)
    await asyncio.sleep(1)
    found = await world.process().store().read("g")
    assert dict(found.keyed) == alike(2, b"later") | alike(1, b"last")


async def test_a_damaged_block_is_no_shorter_log(monkeypatch):
    world = LogWorld()
    process, store, _ = await loaded(world)
    await store.advance_keyed("g", alike(50, b"first"))
    process.kill()
    monkeypatch.setattr("ledger.streams.compressed_entries.RAW_BYTES_MAX", 1_000)
    with pytest.raises(CorruptFormat, match="compressed entry"):
        await loaded(world)


async def test_a_segment_ends_by_the_bytes_that_a_takeover_decodes():
    world = LogWorld()
    _, store, _ = await loaded(world, segment_bytes=10_000, carry_bytes=1)
    first = None
    for number in range(6):
        await store.advance_keyed("g", alike(50, b"%d" % number))
        first = first or world.node("g").segment_id
    stored = sum(map(len, await payloads(world, first)))
    assert stored < 5_000
    assert [each.segment_id for each in world.node("g").past_segments] == [first]
