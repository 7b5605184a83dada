"""Goal: what a bookie answered holds, whichever of its tasks meet: requests, batches of the index,
a full disk, compaction. Method: a bookie over the simulated disk, each meeting made on purpose;
then the table is dropped, so that the log alone tells what was durable.
"""

from __future__ import annotations

import asyncio
import errno
import struct
from dataclasses import replace
from random import Random

import pytest

from ledger.bookie.gc.log_cleaner import LogCleaner
from ledger.bookie.sync_file import sync_file
from ledger.core.entry_format import DigestType, EntryFormat
from ledger.core.fencing import has_valid_digest
from ledger.core.group_commit import GroupCommitLimits
from ledger.core.journal_format import file_name
from ledger.ports.bookies import Status
from tests.ledger.bookie_rig import KEY, OTHER_KEY, SMALL, Rig, add, started_bookie
from tests.sim.bookie_world import entry_bytes
from tests.sim.disk import DiskFaults, SimDisk
from tests.sim.table import SimTable

# Each group ends with a batch of the index, and idle ledgers leave memory at once
PAYLOAD = b"p" * 900
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


# -- damaged adds ----------------------------------------------------------------------------------


def send(bookie, ledger, entry, body):
    done = asyncio.get_running_loop().create_future()
    bookie.add(ledger, entry, KEY, [body], done.set_result)
    return done


def with_lac(body, lac):
    """The entry after damage to its LAC on the way."""
    return body[:16] + struct.pack(">q", lac) + body[24:]


async def test_an_add_that_was_damaged_on_the_way_is_refused():
    async with started_bookie() as (rig, bookie):
        for entry in range(5):
            await rig.add(1, entry, lac=-1)
        sound = entry_bytes(1, 5, b"x", -1)
        assert await send(bookie, 1, 5, with_lac(sound, 4)) is Status.BAD_REQUEST
        assert await send(bookie, 1, 5, sound[:-1] + b"y") is Status.BAD_REQUEST
        assert bookie.damaged_adds == 2
        assert (await bookie.read(1, 5)).status is Status.NO_ENTRY
        assert await send(bookie, 1, 5, sound) is Status.OK
        assert (await bookie.read_lac(1)).lac == -1


@pytest.mark.parametrize("before", [0, 1])
async def test_the_lac_of_a_damaged_add_is_never_passed_on(before):
    """Also while the bookie does not know yet which digest the ledger has."""
    async with started_bookie() as (rig, bookie):
        for entry in range(before):
            await rig.add(1, 7 + entry, lac=-1)
        await send(bookie, 1, 9, with_lac(entry_bytes(1, 9, b"x", -1), 8))
        assert (await bookie.read_lac(1)).lac == -1
        await rig.add(1, 10, lac=2)
        assert (await bookie.read_lac(1)).lac == 2
        rig.table = SimTable(Random(6))
        bookie = await rig.kill()
        assert (await bookie.read_lac(1)).lac == 2


@pytest.mark.parametrize("digest", [DigestType.CRC32, DigestType.HMAC, DigestType.DUMMY])
async def test_entries_that_a_bookie_cannot_verify_are_stored_and_their_lac_is_a_hint(digest):
    pack = EntryFormat(digest, b"secret").pack
    async with started_bookie() as (rig, bookie):
        for entry in range(4):
            body = pack(1, entry, entry - 1, 1, [b"x"]) + b"x"
            assert await send(bookie, 1, entry, body) is Status.OK
        assert (await bookie.read_lac(1)).lac == 2
        assert bookie.damaged_adds == 0
        bookie = await rig.kill()
        assert (await bookie.read_lac(1)).lac == 2


# -- compaction ------------------------------------------------------------------------------------


class Compaction:
    """A compaction of the file that holds entry 0 of ledger 1, held up after it has read."""

    def __init__(self, rig, *, rotten):
        self.rig = rig
        self.rotten = rotten
        self.file_id = -1
        self.has_read, self.go_on = asyncio.Event(), asyncio.Event()

    async def begin(self):
        storage = self.rig.bookie.storage
        for entry in range(20):
            assert await self.rig.add(1, entry, PAYLOAD) is Status.OK
        await storage.checkpoint()
        place = storage.index.find(storage.index.state(1), 0)
        self.file_id = place.file_id
        await storage.journal.roll()
        if self.rotten:
            self.rig.disk.flip_bit(file_name(place.file_id), place.position + 500)
        read_entries = storage.files.read_entries

        async def read_and_wait(*arguments):
            found = await read_entries(*arguments)
            self.has_read.set()
            await self.go_on.wait()
            return found

        storage.files.read_entries = read_and_wait
        cleaner = LogCleaner(storage)
        self.done = asyncio.ensure_future(cleaner.compact_file(place.file_id))
        await self.has_read.wait()
        storage.files.read_entries = read_entries
        return self.rig.bookie


async def assert_sound(rig):
    """By the index, and by the log alone."""
    for _ in range(2):
        for entry in range(20):
            assert (await rig.bookie.read(1, entry)).body == entry_bytes(1, entry, PAYLOAD)
        found = await rig.bookie.read_many(1, 0, 19, 1 << 20)
        assert [bytes(body) for body in found.bodies] == [
            entry_bytes(1, entry, PAYLOAD) for entry in range(20)
        ]
        rig.table = SimTable(Random(6))
        await rig.kill()


async def test_a_repair_that_ends_while_its_file_is_compacted_is_not_undone():
    async with started_bookie(replace(SMALL, index_batch_entries=1000)) as (rig, bookie):
        compaction = Compaction(rig, rotten=True)
        await compaction.begin()
        assert await rig.add(1, 0, PAYLOAD, recovery=True) is Status.OK
        found = await bookie.read_many(1, 0, 0, 1 << 20)  # before any batch of the index
        assert bytes(found.bodies[0]) == entry_bytes(1, 0, PAYLOAD)
        compaction.go_on.set()
        await compaction.done
        await assert_sound(rig)


async def test_a_repair_that_is_queued_while_its_file_is_compacted_is_not_undone():
    async with started_bookie() as (rig, bookie):
        compaction = Compaction(rig, rotten=True)
        await compaction.begin()
        repair = add(bookie, 1, 0, PAYLOAD, recovery=True)
        while not bookie.storage.repairs:
            await asyncio.sleep(0.0001)
        compaction.go_on.set()
        assert await repair is Status.OK
        await compaction.done
        assert not bookie.storage.repairs
        await assert_sound(rig)


def refuse_the_group_with(bookie, content):
    """As a disk does that is full for a moment."""
    file = bookie.storage.journal._file
    write = file.write

    def refuse(buffers, position):
        if content in b"".join(buffers):
            file.write = write
            raise OSError(errno.ENOSPC, "disk full")
        write(buffers, position)

    file.write = refuse


ONE_BY_ONE = replace(SMALL, group=GroupCommitLimits(group_entries_max=1))


async def test_an_entry_whose_repair_was_refused_is_still_copied():
    """A damaged copy is evidence that the entry exists: it must not be dropped with its file."""
    async with started_bookie(ONE_BY_ONE) as (rig, bookie):
        compaction = Compaction(rig, rotten=True)
        await compaction.begin()
        other = add(bookie, 2, 0)
        repair = add(bookie, 1, 0, PAYLOAD, recovery=True)
        while not bookie.storage.repairs:
            await asyncio.sleep(0.0001)
        refuse_the_group_with(bookie, entry_bytes(1, 0, PAYLOAD))
        assert not other.done()
        compaction.go_on.set()
        assert await repair is Status.READ_ONLY
        await compaction.done
        index = bookie.storage.index
        assert index.find(index.state(1), 0).file_id != compaction.file_id
        found = (await bookie.read(1, 0)).body
        assert len(found) == len(entry_bytes(1, 0, PAYLOAD)) and not has_valid_digest(found)


async def test_a_file_stays_while_the_state_of_its_ledgers_is_not_logged_elsewhere():
    async with started_bookie(ONE_BY_ONE) as (rig, bookie):
        compaction = Compaction(rig, rotten=False)
        await compaction.begin()
        refuse_the_group_with(bookie, KEY)
        compaction.go_on.set()
        with pytest.raises(OSError, match="no room"):
            await compaction.done


# -- the first start -------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(20))
async def test_a_kill_during_the_first_start_does_not_make_the_directory_foreign(seed):
    """The second process finds VERSION in the page cache, the power cut finds only the disk."""
    rig = Rig()
    rig.disk = SimDisk(Random(seed), DiskFaults(sync_s_max=1.0))
    first = asyncio.ensure_future(rig.start())
    while "VERSION" not in rig.disk.names():
        await asyncio.sleep(0)
    first.cancel()
    await asyncio.wait([first])
    rig.disk, rig.table = rig.disk.restart(), SimTable(Random(seed))
    await rig.start()
    assert await rig.add(1, 0) is Status.OK
    rig.disk, rig.table = rig.disk.crash(), rig.table.crash()
    bookie = await rig.start()
    assert (await bookie.read(1, 0)).status is Status.OK


# -- rolls -----------------------------------------------------------------------------------------


async def test_the_roll_after_a_cancelled_one_waits_for_its_end():
    async with started_bookie(faults=DiskFaults(sync_s_max=1.0)) as (rig, bookie):
        assert await rig.add(1, 0) is Status.OK
        journal = bookie.storage.journal
        before = journal.file_id
        cancelled = asyncio.ensure_future(journal.roll())
        await asyncio.sleep(0)
        cancelled.cancel()
        await asyncio.gather(cancelled, return_exceptions=True)
        waiting = add(bookie, 1, 1)
        await journal.roll()
        assert journal.file_id == before + 2
        assert await waiting is Status.OK


async def test_a_log_that_is_being_closed_is_not_rolled():
    async with started_bookie(faults=DiskFaults(sync_s_max=1.0)) as (_, bookie):
        stopping = asyncio.ensure_future(bookie.stop())
        await asyncio.sleep(0)
        with pytest.raises(OSError, match="not open"):
            await bookie.storage.journal.roll()
        await stopping


async def test_a_roll_that_is_under_way_ends_before_the_log_is_closed():
    async with started_bookie(faults=DiskFaults(sync_s_max=1.0)) as (rig, bookie):
        create, files = rig.disk.create, []
        rig.disk.create = lambda *how: files.append(create(*how)) or files[-1]
        rolling = asyncio.ensure_future(bookie.storage.journal.roll())
        await asyncio.sleep(0)
        await bookie.stop()
        await rolling
        assert [file._closed for file in files] == [True]


@pytest.mark.parametrize("cancelled", [False, True])
async def test_an_add_that_is_acknowledged_while_the_bookie_stops_is_durable(cancelled):
    """A roll of the log is under way; it may have been cancelled."""
    for seed in range(20):
        async with started_bookie(faults=DiskFaults(sync_s_max=1.0)) as (rig, bookie):
            rig.disk.random = Random(seed)
            assert await rig.add(1, 0) is Status.OK
            rolling = asyncio.ensure_future(bookie.storage.journal.roll())
            await asyncio.sleep(0)
            if cancelled:
                rolling.cancel()
            stopping = asyncio.ensure_future(bookie.stop())
            await asyncio.sleep(0)
            late = add(bookie, 1, 1, b"late")
            await asyncio.gather(rolling, stopping, return_exceptions=True)
            await asyncio.sleep(10)
            acknowledged = late.done() and late.result() is Status.OK
            rig.table = SimTable(Random(seed))  # the index is lost, the log is all there is
            await rig.start()
            found = await rig.bookie.read(1, 1)
            assert not acknowledged or found.status is Status.OK, f"seed {seed}"


async def test_a_sync_that_ends_after_its_caller_gave_up_is_no_error():
    reported: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: reported.append(context))
    disk = SimDisk(Random(1), DiskFaults(sync_s_max=1.0))
    file = disk.create("file")
    file.write([b"x"], 0)
    waiting = asyncio.ensure_future(sync_file(file))
    await asyncio.sleep(0)
    waiting.cancel()
    await asyncio.sleep(2)
    assert waiting.cancelled()
    assert reported == []
