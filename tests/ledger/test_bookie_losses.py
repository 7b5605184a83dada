"""Goal: a loss that a start detects is never forgotten, wherever that start ends.

Method: a bookie over the simulated disk and table on virtual time. A start is killed at one moment
after another, until one ends by itself; the next start must still know of the loss.
"""

from __future__ import annotations

import asyncio
import errno
from dataclasses import replace
from itertools import count
from random import Random

import pytest

from ledger.bookie import directory, replay
from ledger.bookie.gc.collector import collect
from ledger.bookie.sync_file import sync_file
from ledger.ports.bookies import Status
from tests.ledger.bookie_rig import SMALL, Rig
from tests.sim.disk import FULL_AT_A_CREATION
from tests.sim.table import SimTable

STEP_S = 0.0003
UNSYNCED = replace(SMALL, journal_sync="never")


async def without_index(*, logs: bool) -> Rig:
    """A bookie that served, without its index and the log file with ledger 1; or without any."""
    rig = Rig()
    await rig.start()
    await rig.add(1, 0)
    await rig.restart()
    for entry in range(9):  # several batches of the index
        await rig.add(2, entry)
    rig.disk, rig.table = rig.disk.restart(), SimTable(Random(3))
    for name in rig.disk.names():
        if name == "log-0000000000000001" or (name.startswith("log-") and not logs):
            rig.disk.lose(name)
    return rig


async def index_lost() -> Rig:
    return await without_index(logs=True)


async def log_and_index_lost() -> Rig:
    return await without_index(logs=False)


async def power_cut() -> Rig:
    """A bookie that did not sync, before its second boot. The first loss of ledger 1 is repaired.

    The log itself is whole: what a power cut takes from it is found in another way.
    """
    rig = Rig(UNSYNCED)
    await rig.start("boot 0")
    await rig.add(1, 0)
    rig.disk, rig.table = rig.disk.restart(), rig.table.crash()
    await rig.start("boot 1")
    assert await rig.bookie.end_limbo(1) is Status.OK
    rig.disk, rig.table = rig.disk.restart(), rig.table.crash()
    return rig


async def start(rig: Rig) -> None:
    await rig.start("boot 2", served_before=True)


async def killed_at(rig: Rig, at_s: float, *, flushed: bool) -> bool:
    """Kill a start after `at_s`. Returns False if it ended before.

    With `flushed` the table keeps everything: it may flush by itself at any time.
    """
    starting = asyncio.ensure_future(start(rig))
    await asyncio.wait([starting], timeout=at_s)
    ended = starting.done()
    starting.cancel()
    await asyncio.gather(starting, return_exceptions=not ended)
    table = rig.table.copy() if flushed else rig.table.crash()
    rig.disk, rig.table = rig.disk.restart(), table
    return not ended


async def expect_limbo(rig: Rig) -> None:
    bookie = rig.bookie
    assert (await bookie.read(1, 7)).status is Status.UNKNOWN_LEDGER_STATE
    assert (await bookie.read_lac(1)).status is Status.UNKNOWN_LEDGER_STATE
    assert await rig.add(1, 7) is Status.FENCED
    assert await rig.add(rig.next_ledger, 0) is Status.OK


@pytest.mark.parametrize("flushed", [False, True])
@pytest.mark.parametrize("lose", [index_lost, log_and_index_lost, power_cut])
async def test_a_loss_is_known_to_the_start_after_one_that_was_killed(lose, flushed):
    for step in count():
        rig = await lose()
        killed = await killed_at(rig, step * STEP_S, flushed=flushed)
        await start(rig)
        await expect_limbo(rig)
        if not killed:
            break
    assert step > 10


async def test_a_loss_outlives_the_index_that_a_killed_start_had_told_first():
    """Only a record of this loss in the log tells later that a limbo that ended began again."""
    for step in count():
        rig = await power_cut()
        killed = await killed_at(rig, step * STEP_S, flushed=True)
        await start(rig)
        rig.disk, rig.table = rig.disk.restart(), SimTable(Random(3))
        await start(rig)
        await expect_limbo(rig)
        if not killed:
            break


async def test_a_full_disk_does_not_hide_the_power_cut_from_the_next_start():
    rig = await power_cut()
    rig.disk.accidents = [FULL_AT_A_CREATION]
    with pytest.raises(OSError, match="ENOSPC"):
        await start(rig)
    rig.disk, rig.table = rig.disk.restart(), rig.table.crash()
    await start(rig)
    await expect_limbo(rig)


async def test_a_directory_that_never_served_is_not_in_limbo():
    """A first start that was killed at any moment leaves a directory that lost nothing."""
    for step in count():
        rig = Rig()
        starting = asyncio.ensure_future(rig.start("boot 2"))
        await asyncio.wait([starting], timeout=step * STEP_S)
        ended = starting.done()
        starting.cancel()
        await asyncio.gather(starting, return_exceptions=True)
        rig.disk, rig.table = rig.disk.restart(), rig.table.crash()
        await rig.start("boot 2")
        assert await rig.add(1, 0) is Status.OK
        if ended:
            break


# -- without syncs ---------------------------------------------------------------------------------


async def fill_files(rig: Rig, ledger: int, entries: int = 40) -> None:
    for entry in range(entries):
        assert await rig.add(ledger, entry, bytes(4000)) is Status.OK


async def cut_power(rig: Rig) -> None:
    """The machine boots again. What the index had flushed and the log had synced is left."""
    rig.disk, rig.table = rig.disk.crash(), rig.table.crash()
    await rig.start("boot 2")


async def expect_entries(rig: Rig, ledger: int, entries: int = 40) -> None:
    found = [(await rig.bookie.read(ledger, entry)).status for entry in range(entries)]
    assert found == [Status.OK] * entries


@pytest.mark.parametrize("killed", [False, True])
async def test_after_a_clean_stop_a_power_cut_takes_nothing(killed):
    """Also of the files that a process completed and was killed before they were on disk."""
    rig = Rig(UNSYNCED)
    await rig.start("boot 1")
    await fill_files(rig, 1)
    if killed:
        rig.disk, rig.table = rig.disk.restart(), rig.table.copy()
        await rig.start("boot 1")
    await rig.bookie.stop()
    await cut_power(rig)
    assert rig.bookie.limbo_below == 0
    await expect_entries(rig, 1)


async def test_a_power_cut_takes_nothing_from_files_that_were_complete_for_a_while():
    rig = Rig(UNSYNCED)
    await rig.start("boot 1")
    await fill_files(rig, 1)
    await fill_files(rig, 2, 17)  # a file
    await asyncio.sleep(1)
    await cut_power(rig)
    assert rig.bookie.limbo_below == rig.next_ledger
    await expect_entries(rig, 1)


@pytest.mark.parametrize("seed", range(4))
async def test_a_power_cut_takes_nothing_that_was_on_disk_before_it_was_compacted(seed):
    rig = Rig(UNSYNCED)
    rig.disk.random.seed(seed)
    await rig.start("boot 1")
    await rig.add(1, 0)
    await fill_files(rig, 2, 15)
    await rig.restart()

    async def list_ledgers():
        return [1]

    done = await collect(rig.bookie, list_ledgers, compaction_threshold=0.9)
    assert done.files_rewritten
    await cut_power(rig)
    assert (await rig.bookie.read(1, 0)).status is Status.OK


async def test_a_complete_file_that_cannot_be_synced_ends_the_bookie():
    rig = Rig(UNSYNCED)
    await rig.start("boot 1")
    await fill_files(rig, 1, 15)
    await rig.bookie.storage.journal.roll()
    rig.disk.fail_next_sync = True  # that of the file which is complete now
    await rig.bookie.failed()
    assert await rig.add(1, 99) is Status.IO_ERROR
    await rig.bookie.stop()
    assert "UNSYNCED" in rig.disk.names()


async def sync_of_a_complete_file(rig: Rig) -> None:
    await rig.bookie.storage.journal.roll()
    rig.disk.fail_next_sync = True  # that of the file which is complete now
    await rig.bookie.failed()


async def sync_before_a_compaction(rig: Rig) -> None:
    rig.disk.fail_next_sync = True
    with pytest.raises(OSError, match="sync"):
        await rig.bookie.storage.journal.sync()


async def sync_of_a_stop(rig: Rig) -> None:
    rig.disk.fail_next_sync = True
    await rig.bookie.stop()


@pytest.mark.parametrize(
    "fail", [sync_of_a_complete_file, sync_before_a_compaction, sync_of_a_stop]
)
async def test_a_failed_sync_is_a_loss_to_the_next_start_in_the_same_boot(fail):
    """The kernel dropped entries that were acknowledged, and reports that once."""
    rig = Rig(UNSYNCED)
    await rig.start("boot 2")
    await fill_files(rig, 1, 5)
    await fail(rig)
    rig.disk, rig.table = rig.disk.restart(), rig.table.copy()
    await start(rig)
    await expect_limbo(rig)


async def test_a_failed_sync_of_older_files_is_a_loss_to_the_next_start_in_the_same_boot():
    """Those of a run that was killed: a start with syncs and a clean stop sync them."""
    rig = Rig(UNSYNCED)
    await rig.start("boot 2")
    await fill_files(rig, 1, 5)
    rig.disk, rig.table = rig.disk.restart(), rig.table.copy()
    rig.disk.fail_next_sync = True
    with pytest.raises(OSError, match="sync"):
        await directory.clear_unsynced(rig.disk)
    await start(rig)
    await expect_limbo(rig)


async def test_a_failed_sync_of_a_start_is_a_loss_to_the_next_one_in_the_same_boot(monkeypatch):
    """A start syncs what a killed run left, and the kernel reports once what it dropped."""
    rig = Rig(UNSYNCED)
    await rig.start("boot 2")
    await fill_files(rig, 1, 5)
    rig.disk, rig.table = rig.disk.restart(), rig.table.copy()

    async def fail(file):
        rig.disk.fail_next_sync = True
        await sync_file(file)

    with monkeypatch.context() as patch:
        patch.setattr(replay, "sync_file", fail)
        with pytest.raises(OSError, match="sync"):
            await start(rig)
    rig.disk, rig.table = rig.disk.restart(), rig.table.copy()
    await start(rig)
    await expect_limbo(rig)


async def test_a_journal_whose_sync_failed_stops_also_if_the_directory_cannot_be_read(monkeypatch):
    rig = Rig(UNSYNCED)
    await rig.start("boot 2")
    await rig.add(1, 0)

    def unreadable():
        raise OSError(errno.EMFILE, "too many open files")

    with monkeypatch.context() as patch:
        patch.setattr(rig.disk, "names", unreadable)
        rig.disk.fail_next_sync = True
        with pytest.raises(OSError, match="sync"):
            await rig.bookie.storage.journal.sync()
    assert await rig.add(1, 1) is Status.IO_ERROR
