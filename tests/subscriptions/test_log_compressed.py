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
from subscriptions.committed_offset import CommittedOffset, TopicIdPartition
from subscriptions.segments.log_node import FORMAT, FORMAT_KEYED, ledgers_named
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
