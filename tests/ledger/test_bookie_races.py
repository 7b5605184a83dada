"""Goal: what a bookie answered holds, whichever of its tasks meet: requests, batches of the index,
a full disk, compaction. Method: a bookie over the simulated disk, each meeting made on purpose; then
the table is dropped, so that the log alone tells what was durable.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from random import Random

from ledger.ports.bookies import Status
from tests.ledger.bookie_rig import KEY, OTHER_KEY, SMALL, add, started_bookie
from tests.sim.table import SimTable

# Each group ends with a batch of the index, and idle ledgers leave memory at once
HASTY = replace(SMALL, index_batch_entries=1, ledgers_in_memory_max=1, preallocate_bytes=4096)


async def refused_while_a_batch_is_written(rig, request):
    """The status of `request()`, which waits behind an add; the disk fills up in between."""
    first = add(rig.bookie, 1, 1, bytes(2000))
    for _ in range(2):
        await asyncio.sleep(0)  # the add is on its way to the disk
    second = asyncio.ensure_future(request())
    await asyncio.sleep(0)
    rig.disk.full = True
    assert await first is Status.OK
    status = await second
    rig.disk.full = False
    rig.bookie.check_disk_space()
    return status


async def forget_idle_ledgers(rig):
    for entry in range(1, 4):
        assert await rig.add(2, entry, bytes(2000)) is Status.OK
    assert 1 not in rig.bookie.storage.index._states


async def test_a_fence_that_was_refused_is_logged_before_it_is_answered():
    async with started_bookie(HASTY) as (rig, bookie):
        await rig.add(1, 0, bytes(2000))
        await rig.add(2, 0, bytes(2000))
        status = await refused_while_a_batch_is_written(rig, lambda: bookie.fence(1, KEY))
        assert status is Status.READ_ONLY
        await forget_idle_ledgers(rig)
        assert await bookie.fence(1, KEY) is Status.OK
        rig.table = SimTable(Random(6))
        await rig.kill()
        assert await rig.add(1, 2) is Status.FENCED


async def test_a_key_that_was_refused_is_logged_before_its_ledger_is_used():
    async with started_bookie(HASTY) as (rig, bookie):
        await rig.add(2, 0, bytes(2000))
        other = add(bookie, 2, 1, bytes(2000))
        for _ in range(2):
            await asyncio.sleep(0)
        refused = [add(bookie, 1, 0, bytes(2000)), add(bookie, 1, 1, bytes(2000))]
        rig.disk.full = True
        assert await other is Status.OK
        assert await asyncio.gather(*refused) == [Status.READ_ONLY] * 2
        rig.disk.full = False
        bookie.check_disk_space()
        bookie.storage.index._changed.add(bookie.storage.index.state(1))  # as a limbo would
        await rig.add(2, 2, bytes(2000))
        await rig.add(2, 3, bytes(2000))
        assert 1 not in bookie.storage.index._states
        assert await rig.add(1, 0) is Status.OK
        rig.table = SimTable(Random(6))
        await rig.kill()
        assert await rig.add(1, 1, key=OTHER_KEY) is Status.UNAUTHORIZED


async def test_ledgers_that_an_older_version_left_in_the_index_are_read():
    async with started_bookie() as (rig, bookie):
        await rig.add(1, 0)
        await bookie.fence(1, KEY)
        await bookie.stop()
        for key, value in rig.table.scan(b"l", b"m", 10):  # the flags that it did not know
            rig.table.write([(key, bytes([value[0] & 15]) + value[1:])])
        bookie = await rig.start()
        assert await rig.add(1, 1) is Status.FENCED
        assert await rig.add(1, 1, key=OTHER_KEY, recovery=True) is Status.UNAUTHORIZED
        assert await bookie.fence(1, KEY) is Status.OK
        assert await rig.add(1, 1, recovery=True) is Status.OK
