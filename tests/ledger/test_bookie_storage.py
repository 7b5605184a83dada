"""Goal: what becomes of a bookie's promises when the disk fails, rots, fills up or is given back.
Method: a bookie over the simulated disk and table on virtual time; one on a real directory for what
only a file system can show.
"""

from __future__ import annotations

import asyncio
import errno
import sys
from dataclasses import replace
from random import Random

import pytest

from ledger.bookie.bookie import Bookie
from ledger.bookie.config import BookieConfig
from ledger.bookie.gc.collector import GcResult, collect
from ledger.bookie.gc.log_cleaner import LogCleaner, LogFileInUse
from ledger.bookie.in_process import LocalBookies, open_local_bookie
from ledger.errors import DirectoryInUse, ForeignDirectory
from ledger.ids import BookieId
from ledger.ports.bookies import Status
from tests.ledger.bookie_child import CONFIG, payload_of
from tests.ledger.bookie_rig import KEY, OTHER_KEY, SMALL, Rig, add, started_bookie
from tests.peers.processes import Process
from tests.sim.bookie_world import entry_buffers, entry_bytes
from tests.sim.disk import EIO_ON_AN_UNLINK, FULL_IN_A_SYNC, DiskFaults
from tests.sim.table import SimTable

CHILD_S_MAX = 60.0

# -- failures --------------------------------------------------------------------------------------


async def test_a_failed_sync_ends_the_bookie_for_good_and_reads_go_on():
    async with started_bookie() as (rig, bookie):
        await rig.add(1, 0, b"safe")
        rig.disk.fail_next_sync = True
        pending = [add(bookie, 1, 1), add(bookie, 1, 2)]
        fencing = bookie.fence(1, KEY)
        assert set(await asyncio.gather(*pending)) == {Status.IO_ERROR}
        assert await fencing is Status.IO_ERROR
        assert not bookie.writable
        assert await rig.add(1, 3) is Status.IO_ERROR
        assert await bookie.write_lac(1, KEY, 0) is Status.IO_ERROR
        assert (await bookie.read(1, 0)).body == entry_bytes(1, 0, b"safe")
        assert (await bookie.read(1, 7)).status is Status.IO_ERROR
        with pytest.raises(OSError, match="sync failed"):
            await bookie.delete_ledgers([1])
        await bookie.stop()


async def test_a_refused_roll_whose_file_stays_ends_the_bookie_and_answers_every_add():
    """The unlink ran in a callback, where its error left the journal busy for ever."""
    async with started_bookie() as (rig, bookie):
        await rig.add(1, 0, b"safe")
        entry = 0
        while bookie.storage.journal.end.position + 8000 < rig.config.file_bytes:
            await rig.add(2, entry, bytes(7000))
            entry += 1
        rig.disk.accidents = [FULL_IN_A_SYNC, EIO_ON_AN_UNLINK]
        pending = [add(bookie, 3, entry, bytes(7000)) for entry in range(5)]
        assert set(await asyncio.gather(*pending)) == {Status.IO_ERROR}
        assert bookie.failure is not None
        assert (await bookie.read(1, 0)).body == entry_bytes(1, 0, b"safe")


async def test_a_version_file_whose_sync_failed_is_synced_before_the_log_begins():
    """The page cache showed the file to the next start; a power cut then left a log without it."""
    rig = Rig()
    rig.disk.fail_next_sync = True
    with pytest.raises(OSError, match="sync failed"):
        await rig.start()
    await rig.kill()
    await rig.add(1, 0, b"safe")
    for _ in range(5):
        rig.disk, rig.table = rig.disk.crash(), rig.table.crash()
        await rig.start()
        assert (await rig.bookie.read(1, 0)).body == entry_bytes(1, 0, b"safe")


async def test_a_full_disk_makes_it_read_only_and_room_makes_it_writable_again():
    async with started_bookie() as (rig, bookie):
        await rig.add(1, 0, b"safe")
        rig.disk.full = True
        assert await rig.add(1, 1, bytes(70_000)) is Status.READ_ONLY
        assert not bookie.writable
        assert await rig.add(1, 2) is Status.READ_ONLY
        assert (await bookie.read(1, -1)).body == entry_bytes(1, 0, b"safe")
        assert (await bookie.read(1, 1)).status is Status.NO_ENTRY
        rig.disk.full = False
        await asyncio.sleep(2)
        assert await rig.add(1, 1, b"later") is Status.OK
        assert bookie.writable
        bookie = await rig.kill()
        assert (await bookie.read(1, -1)).body == entry_bytes(1, 1, b"later")


async def test_short_of_headroom_it_takes_fences_and_recovery_but_no_adds():
    config = BookieConfig(
        file_bytes=64 * 1024,
        preallocate_bytes=4096,
        headroom_bytes=999_000,
        fence_reserve_bytes=0,
    )
    async with started_bookie(config, DiskFaults(capacity_bytes=1_000_000)) as (rig, bookie):
        assert not bookie.writable
        assert await rig.add(1, 1) is Status.READ_ONLY
        assert await rig.add(1, 1, recovery=True) is Status.OK
        assert await bookie.fence(1, KEY) is Status.OK


async def test_after_a_stop_nothing_is_taken():
    async with started_bookie() as (rig, bookie):
        await rig.add(1, 0)
        await bookie.stop()
        assert await rig.add(1, 1) is Status.IO_ERROR


async def test_a_stop_after_a_failed_replay_leaves_index_and_marks_as_they_were():
    """The log was not read to its end, so the next start must find the loss of the last run."""
    config = replace(SMALL, journal_sync="never")
    async with started_bookie(config) as (rig, _):
        await rig.add(1, 0)
        rig.disk, rig.table = rig.disk.restart(), rig.table.crash()
        index = rig.table.scan(b"", b"\xff" * 64, 10**6)
        open_file = rig.disk.open

        def fail(name):
            if name.startswith("log-"):
                raise OSError(errno.EIO, name)
            return open_file(name)

        rig.disk.open = fail
        with pytest.raises(OSError, match="log-"):
            await rig.start("another boot")
        await rig.bookie.stop()
        assert "UNSYNCED" in rig.disk.names()
        assert rig.table.scan(b"", b"\xff" * 64, 10**6) == index
        del rig.disk.open
        bookie = await rig.start("another boot")
        assert bookie.limbo_below == rig.next_ledger
        assert await rig.add(1, 1) is Status.FENCED


# -- limbo -----------------------------------------------------------------------------------------


async def rotten(rig: Rig) -> Bookie:
    """Two durable groups, then a bit of the first flips while the bookie is down."""
    await rig.add(1, 0, b"a" * 100)
    await rig.add(2, 0, b"b" * 100)
    rig.disk, rig.table = rig.disk.restart(), SimTable(Random(4))  # the index is lost as well
    rig.disk.flip_bit("log-0000000000000001", 4096 + 80)
    return await rig.start()


async def test_after_rot_every_older_ledger_is_fenced_and_nothing_is_denied():
    async with started_bookie() as (rig, bookie):
        bookie = await rotten(rig)
        assert len(bookie.replayed.corrupt) == 1
        assert (await bookie.read(1, 0)).status is Status.UNKNOWN_LEDGER_STATE
        assert (await bookie.read(2, 1)).status is Status.UNKNOWN_LEDGER_STATE
        assert (await bookie.read_lac(2)).status is Status.UNKNOWN_LEDGER_STATE
        assert (await bookie.read_many(3, 0, 9, 99)).status is Status.UNKNOWN_LEDGER_STATE
        assert (await bookie.read(2, 0)).body == entry_bytes(2, 0, b"b" * 100)
        assert await rig.add(2, 1) is Status.FENCED
        assert await rig.add(3, 0) is Status.FENCED


async def test_rot_at_the_end_of_an_older_file_is_reported_and_the_file_stays_as_long():
    async with started_bookie() as (rig, bookie):
        for entry in range(3):
            await rig.add(1, entry, b"a" * 100)
        last = bookie._journal.end.position
        await rig.add(1, 3, b"b" * 100)
        await rig.restart()
        await rig.add(2, 0)  # into the next file, which says how far the one before was durable
        size = rig.disk.open("log-0000000000000001").size()
        rig.disk, rig.table = rig.disk.restart(), SimTable(Random(4))
        rig.disk.flip_bit("log-0000000000000001", last + 4)
        bookie = await rig.start()
        assert len(bookie.replayed.corrupt) == 1
        assert (await bookie.read(1, 3)).status is Status.UNKNOWN_LEDGER_STATE
        assert rig.disk.open("log-0000000000000001").size() == size


async def test_ledgers_made_after_the_rot_are_not_in_limbo():
    async with started_bookie() as (rig, _bookie):
        await rotten(rig)
        assert await rig.add(rig.next_ledger, 0) is Status.OK
        assert (await rig.bookie.read(rig.next_ledger, 1)).status is Status.NO_ENTRY
        assert (await rig.bookie.read(rig.next_ledger + 1, 1)).status is Status.NO_LEDGER


async def test_limbo_lasts_over_restarts_until_it_is_ended_ledger_by_ledger():
    async with started_bookie() as (rig, bookie):
        await rotten(rig)
        assert await rig.bookie.end_limbo(2) is Status.OK
        for _ in range(2):
            bookie = await rig.kill()
            assert (await bookie.read(2, 1)).status is Status.NO_ENTRY
            assert (await bookie.read(1, 0)).status is Status.UNKNOWN_LEDGER_STATE
            assert await rig.add(2, 1) is Status.FENCED


async def test_an_index_lost_afterwards_finds_the_rot_again():
    async with started_bookie() as (rig, bookie):
        await rotten(rig)
        await rig.bookie.end_limbo(2)
        rig.table = SimTable(Random(5))
        bookie = await rig.kill()
        assert len(bookie.replayed.corrupt) == 1
        assert (await bookie.read(2, 1)).status is Status.UNKNOWN_LEDGER_STATE


# -- deletion and collection -----------------------------------------------------------------------


def listing(*ledgers):
    async def list_ledgers():
        return ledgers

    return list_ledgers


async def test_a_deleted_ledger_is_gone_takes_nothing_and_gives_the_disk_back():
    async with started_bookie() as (rig, bookie):
        for entry in range(60):
            await rig.add(1, entry, bytes(4000))
        assert rig.log_bytes() > 200_000
        collected = await collect(bookie, listing())
        assert collected.ledgers == 1
        assert rig.log_bytes() <= rig.config.file_bytes
        for again in (rig.kill, rig.restart, rig.kill):
            assert (await rig.bookie.read(1, 0)).status is Status.NO_LEDGER
            assert await rig.add(1, 60) is Status.NO_LEDGER
            assert await rig.add(1, 60, recovery=True) is Status.NO_LEDGER
            assert rig.bookie.ledgers() == []
            await again()


async def test_a_file_with_one_living_entry_stays_until_it_is_rewritten():
    async with started_bookie() as (rig, bookie):
        await rig.add(1, 0, b"living")
        await bookie.write_lac(1, KEY, 0)
        await bookie.fence(1, KEY)
        for entry in range(60):
            await rig.add(2, entry, bytes(4000))
        assert (await collect(bookie, listing(1))).files_dropped > 2
        assert "log-0000000000000001" in rig.disk.names()
        assert await collect(bookie, listing(1), compaction_threshold=0.5) == GcResult(0, 1, 1)
        assert "log-0000000000000001" not in rig.disk.names()
        for _ in range(2):
            assert (await rig.bookie.read(1, 0)).body == entry_bytes(1, 0, b"living")
            assert (await rig.bookie.read_lac(1)).lac == 0
            assert await rig.add(1, 1) is Status.FENCED
            assert await rig.add(1, 1, key=OTHER_KEY, recovery=True) is Status.UNAUTHORIZED
            rig.table = SimTable(Random(6))  # the log alone tells it all again
            await rig.kill()


async def test_small_entries_that_are_moved_share_the_blocks_of_the_log():
    """Each group begins at a block: entries that move one by one would take one each."""
    async with started_bookie() as (rig, bookie):
        living = 300
        await asyncio.gather(*[add(bookie, 1, entry, b"living") for entry in range(living)])
        for entry in range(12):
            await rig.add(2, entry, bytes(4000))
        await bookie.storage.checkpoint()
        groups = bookie.groups
        assert (await collect(bookie, listing(1), compaction_threshold=0.9)).files_rewritten == 1
        assert bookie.groups - groups < 20
        found = await bookie.read_many(1, 0, living, 1 << 20)
        assert len(found.bodies) == living
        assert await collect(bookie, listing(1), compaction_threshold=0.2) == GcResult(0, 0, 0)


class SlowTable(SimTable):
    """A table whose flush is slow, as RocksDB's is beside a busy disk."""

    async def flush(self):
        await asyncio.sleep(0.5)
        await super().flush()


@pytest.mark.parametrize("threshold", [0.0, 1.0])
async def test_a_file_that_fills_while_the_index_is_flushed_is_never_taken_for_unused(threshold):
    rig = Rig(replace(SMALL, index_batch_entries=512, index_flush_bytes=1 << 40))
    rig.table = SlowTable(Random(2))
    bookie = await rig.start()
    await rig.add(1, 0, bytes(500))
    for entry in range(12):
        await rig.add(2, entry, bytes(6000))

    async def load():
        for entry in range(40):
            assert await rig.add(3, entry, bytes(6000)) is Status.OK
            await asyncio.sleep(0.02)

    loading = asyncio.ensure_future(load())
    for _ in range(5):
        await collect(bookie, listing(1, 3), compaction_threshold=threshold)
    await loading
    for booted in (bookie, await rig.kill()):
        assert [(await booted.read(3, entry)).status for entry in range(40)] == [Status.OK] * 40
        assert (await booted.read(1, 0)).status is Status.OK


async def test_a_file_that_is_in_use_or_not_indexed_is_kept_with_an_error():
    async with started_bookie(replace(SMALL, index_batch_entries=512)) as (rig, bookie):
        await rig.add(1, 0, bytes(500))
        cleaner = LogCleaner(bookie.storage)
        await bookie.storage.journal.roll()
        before = rig.disk.names()
        for _ in range(2):  # in memory only; then in the index
            with pytest.raises(LogFileInUse, match="it was kept"):
                await cleaner.delete_files([2])
            with pytest.raises(LogFileInUse, match="not compacted"):
                await cleaner.compact_file(2)
            await bookie.storage.checkpoint()
        assert rig.disk.names() == before
        assert (await collect(bookie, listing(1))).files_dropped == 0


@pytest.mark.parametrize("seed", range(4))
async def test_the_log_alone_tells_everything_again_after_a_crash_and_a_compaction(seed):
    rig = Rig(replace(SMALL, index_flush_bytes=8192))
    rig.table = SimTable(Random(seed))
    bookie = await rig.start()
    await rig.add(1, 0, b"idle and open")
    assert await bookie.fence(1, KEY) is Status.OK
    for entry in range(20):
        await rig.add(2, entry, bytes(2000))
    await rig.kill()
    for entry in range(60):
        await rig.add(3, entry, bytes(2000))
    assert (await collect(rig.bookie, listing(1, 3), compaction_threshold=1.0)).files_rewritten
    rig.table = SimTable(Random(seed))  # the directory `index` is gone
    bookie = await rig.kill()
    assert await rig.add(1, 1) is Status.FENCED
    assert (await bookie.read(1, 0)).body == entry_bytes(1, 0, b"idle and open")
    assert [(await bookie.read(3, entry)).status for entry in range(60)] == [Status.OK] * 60


async def test_a_file_that_holds_nothing_but_a_fence_is_kept_after_its_replay():
    """A replay counted only the bodies of such records, and a fence has none."""
    async with started_bookie() as (rig, _):
        await rig.add(1, 0)
        bookie = await rig.restart()
        before = rig.table.copy()
        assert await bookie.fence(1, KEY) is Status.OK
        rig.disk, rig.table = rig.disk.restart(), before
        bookie = await rig.start()
        assert bookie.replayed.groups == 1
        await collect(bookie, listing(1))
        rig.table = SimTable(Random(6))  # the log alone tells it again
        await rig.kill()
        assert await rig.add(1, 1) is Status.FENCED


async def test_a_ledger_missing_in_one_listing_only_is_kept():
    async with started_bookie() as (rig, bookie):
        await rig.add(1, 0)
        answers = [[], [1]]

        async def list_ledgers():
            return answers.pop(0)

        assert (await collect(bookie, list_ledgers)).ledgers == 0
        assert (await bookie.read(1, 0)).status is Status.OK


async def test_a_ledger_born_while_metadata_is_listed_is_kept():
    async with started_bookie() as (rig, bookie):
        await rig.add(1, 0)

        async def list_ledgers():
            await rig.add(5, 0)
            return [1]

        assert (await collect(bookie, list_ledgers)).ledgers == 0
        assert (await bookie.read(5, 0)).status is Status.OK


async def test_nothing_is_deleted_when_metadata_does_not_answer():
    async with started_bookie() as (rig, bookie):
        await rig.add(1, 0)

        async def list_ledgers():
            raise TimeoutError

        with pytest.raises(TimeoutError):
            await collect(bookie, list_ledgers)
        assert (await bookie.read(1, 0)).status is Status.OK


# -- the log over time -----------------------------------------------------------------------------


async def test_an_idle_log_gets_one_mark_and_then_rests():
    async with started_bookie() as (rig, bookie):
        await rig.add(1, 0)
        groups = bookie.groups
        await asyncio.sleep(10)
        assert bookie.groups == groups + 1
        await asyncio.sleep(1000)
        assert bookie.groups == groups + 1


async def test_a_clean_stop_leaves_nothing_to_replay_and_no_spare_room():
    async with started_bookie() as (rig, bookie):
        for entry in range(10):
            await rig.add(1, entry)
        await bookie.stop()
        assert rig.log_bytes() <= 12 * 4096
        bookie = await rig.start()
        assert bookie.replayed.groups == 0
        assert (await bookie.read(1, 9)).status is Status.OK


async def test_the_index_can_be_lost_and_is_rebuilt_from_the_log():
    async with started_bookie() as (rig, bookie):
        for entry in range(100):
            await rig.add(entry % 3, entry, bytes(2000), lac=entry - 1)
        await bookie.fence(0, KEY)
        rig.disk, rig.table = rig.disk.restart(), SimTable(Random(9))
        bookie = await rig.start()
        for entry in range(100):
            assert (await bookie.read(entry % 3, entry)).status is Status.OK
        assert await rig.add(0, 200) is Status.FENCED
        assert (await bookie.read_lac(0)).lac == 98


# -- the directory ---------------------------------------------------------------------------------


def in_directory(body) -> None:
    asyncio.run(body())


@pytest.mark.real_loop
async def test_a_bookie_keeps_its_id_and_a_wiped_directory_is_another_bookie(tmp_path):
    ids = []
    for path in (tmp_path / "a", tmp_path / "a", tmp_path / "b"):
        opened = await open_local_bookie(path, name="bookie-0")
        ids.append(opened.bookie.bookie_id)
        await opened.close()
    assert ids[0] == ids[1] != ids[2]
    prefix, digits = ids[0].rsplit("-", 1)
    assert prefix == "bookie-0"
    assert len(bytes.fromhex(digits)) == 4


@pytest.mark.real_loop
@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("photo.jpg", b"\xff\xd8"),
        ("log-0000000000000001", b""),
        ("VERSION", b"5\nbookieHost: something else\n"),
        ("VERSION", None),
    ],
)
async def test_a_foreign_or_newer_directory_is_refused_and_nothing_is_written(
    tmp_path, name, content
):
    path = tmp_path / "a"
    if content is None:
        await (await open_local_bookie(path)).close()
        lines = (path / name).read_bytes().rpartition(b"crc ")[0].replace(b"format 2", b"format 3")
        from crc32c import crc32c

        (path / name).write_bytes(lines + b"crc %08x\n" % crc32c(lines))
    else:
        path.mkdir()
        (path / name).write_bytes(content)
    before = {it: it.stat().st_mtime_ns for it in path.rglob("*")}
    with pytest.raises(ForeignDirectory):
        await open_local_bookie(path)
    assert {it: it.stat().st_mtime_ns for it in path.rglob("*")} == before


@pytest.mark.real_loop
async def test_a_directory_is_held_by_one_bookie(tmp_path):
    opened = await open_local_bookie(tmp_path)
    with pytest.raises(DirectoryInUse):
        await open_local_bookie(tmp_path)
    await opened.close()
    await (await open_local_bookie(tmp_path)).close()


@pytest.mark.real_loop
@pytest.mark.parametrize("sync_mode", ["inline", "thread", "auto"])
async def test_on_a_real_disk_entries_fences_and_deletions_outlive_restarts(tmp_path, sync_mode):
    config = BookieConfig(file_bytes=1 << 20, preallocate_bytes=1 << 18, headroom_bytes=0)

    async def reopen():
        return await open_local_bookie(tmp_path, config=config, sync_mode=sync_mode, next_ledger=9)

    opened = await reopen()
    bookie = opened.bookie
    adds = [add(bookie, 1 + n % 2, n // 2, bytes(8000)) for n in range(400)]
    assert set(await asyncio.gather(*adds)) == {Status.OK}
    assert await bookie.fence(2, KEY) is Status.OK
    await opened.close()
    opened = await reopen()
    assert opened.bookie.replayed.groups == 0
    reply = await opened.bookie.read_many(1, 0, 199, 1 << 30)
    assert all(bytes(it) == entry_bytes(1, n, bytes(8000)) for n, it in enumerate(reply.bodies))
    assert len(reply.bodies) == 200
    assert await add(opened.bookie, 2, 999) is Status.FENCED
    assert (await collect(opened.bookie, listing())).ledgers == 2
    await opened.close()
    opened = await reopen()
    assert (await opened.bookie.read(1, 0)).status is Status.NO_LEDGER
    assert sum(it.stat().st_blocks * 512 for it in tmp_path.glob("log-*")) < 1 << 20
    await opened.close()


@pytest.mark.real_loop
async def test_a_killed_process_has_kept_every_entry_it_acknowledged(tmp_path):
    data = tmp_path / "bookie"
    data.mkdir()
    command = [sys.executable, "-m", "tests.ledger.bookie_child", str(data)]
    with Process(command, tmp_path / "child.log") as child:
        child.wait_for(lambda: child.output().count("\n") >= 1000, "1000 entries", CHILD_S_MAX)
        child.kill()
        acked = [int(line) for line in child.output().splitlines()]

    opened = await open_local_bookie(data, config=CONFIG, next_ledger=2)
    assert opened.bookie.replayed.corrupt == ()
    assert opened.bookie.replayed.groups > 0
    for entry in acked:
        reply = await opened.bookie.read(1, entry)
        assert reply.body == entry_bytes(1, entry, payload_of(entry))
    await opened.close()


# -- the port --------------------------------------------------------------------------------------


async def test_local_bookies_answer_by_id_and_unknown_ones_are_unreachable():
    async with started_bookie() as (rig, bookie):
        bookies = LocalBookies([bookie])
        (name,) = bookies.available()
        done = asyncio.get_running_loop().create_future()
        bookies.add(name, 1, 0, KEY, entry_buffers(1, 0, b"x"), done.set_result)
        assert await done is Status.OK
        assert (await bookies.read(name, 1, -1, fence_key=KEY)).body == entry_bytes(1, 0, b"x")
        assert (await bookies.read(name, 1, 0, fence_key=OTHER_KEY)).status is Status.UNAUTHORIZED
        assert len((await bookies.read_many(name, 1, 0, 9, 99)).bodies) == 1
        assert await bookies.write_lac(name, 1, KEY, 0) is Status.OK
        assert (await bookies.read_lac(name, 1)).lac == 0
        nobody, statuses = BookieId("nobody"), []
        bookies.add(nobody, 1, 0, KEY, entry_buffers(1, 0, b"x"), statuses.append)
        assert statuses == []
        await asyncio.sleep(0)
        assert statuses == [Status.UNREACHABLE]
        assert (await bookies.read(nobody, 1, 0)).status is Status.UNREACHABLE
        assert (await bookies.read_many(nobody, 1, 0, 1, 1)).status is Status.UNREACHABLE
        assert (await bookies.read_lac(nobody, 1)).status is Status.UNREACHABLE
        assert await bookies.write_lac(nobody, 1, KEY, 0) is Status.UNREACHABLE
        rig.disk.fail_next_sync = True
        await rig.add(2, 0)
        assert bookies.available() == ()
