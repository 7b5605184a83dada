"""Goal: an exception that nobody planned neither wedges a bookie nor ends its work in silence.

Method: real bookies, registration, discovery, recovery and garbage collection over simulated
adapters that raise RuntimeError or MemoryError once, at a chosen call.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
from pathlib import Path
from random import Random

import pytest

from ledger.adapters.posix.posix_disk import PosixDisk
from ledger.bookie.bookie import Bookie
from ledger.bookie.gc.scheduler import GcScheduler
from ledger.bookie.in_process import ADD_TIMEOUT_S, LocalBookies
from ledger.errors import EntryUnknown
from ledger.ids import BookieId
from ledger.log import logger
from ledger.ports.bookies import BookieInfo, Status
from ledger.registry.discovery import Discovery
from ledger.registry.layout import init_layout
from ledger.registry.registration import Registration
from ledger.tasks import ends_by
from tests.ledger.bookie_rig import KEY, SMALL, add
from tests.ledger.calm_cluster import cluster, written
from tests.sim.bookie_world import entry_buffers
from tests.sim.disk import SimDisk
from tests.sim.loop import SimClock
from tests.sim.metadata import MetadataTree, SimMetadata
from tests.sim.surprises import Surprising, SurprisingDisk
from tests.sim.table import SimTable


def reports() -> list[str]:
    """What reaches the exception handler of the loop from now on."""
    heard: list[str] = []
    asyncio.get_running_loop().set_exception_handler(
        lambda _, context: heard.append(f"{context['message']}: {context['exception']!r}")
    )
    return heard


def open_below(directory: Path) -> int:
    """How many descriptors of this process belong to files below the directory, or to it."""
    count = 0
    for entry in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):  # of the listing itself
            target = Path(os.readlink(f"/proc/self/fd/{entry}"))
            count += target.is_relative_to(directory)
    return count


async def started_over(disk, table) -> Bookie:
    bookie = Bookie(disk, table, SimClock(), lambda: b"instance" * 2, config=SMALL)
    await bookie.start(next_ledger=0)
    return bookie


@pytest.mark.parametrize("call", ["write", "sync", "create", "sync_directory", "truncate"])
async def test_a_surprise_in_the_journal_ends_the_process(call):
    ended = []
    with ends_by(lambda name, error: ended.append((name, type(error)))):
        disk = SurprisingDisk(SimDisk(Random(1)))
        bookie = await started_over(disk, SimTable(Random(2)))
        await add(bookie, 1, 0)
        disk.planted[call] = MemoryError("no room")
        for entry in range(1, 60):  # enough for a roll
            add(bookie, 1, entry, bytes(2000))
            await asyncio.sleep(0.01)
            if ended:
                break
    assert ended == [("the journal of a bookie", MemoryError)]


@pytest.mark.parametrize(
    ("call", "place"),
    [("write", "the journal of a bookie"), ("flush", "the index flush of a bookie")],
)
async def test_a_surprise_in_the_index_ends_the_process(call, place):
    ended = []
    with ends_by(lambda name, error: ended.append((name, type(error)))):
        table = Surprising(SimTable(Random(2)))
        bookie = await started_over(SimDisk(Random(1)), table)
        table.planted[call] = RuntimeError("from the index")
        bookie._logged_since_flush = SMALL.index_flush_bytes
        for entry in range(8):
            add(bookie, 1, entry)
        await asyncio.sleep(1)
    assert ended == [(place, RuntimeError)]


async def test_a_repeated_add_is_answered_whatever_the_comparison_raises():
    heard = reports()
    disk = SurprisingDisk(SimDisk(Random(1)))
    bookie = await started_over(disk, SimTable(Random(2)))
    assert await add(bookie, 1, 0) is Status.OK
    disk.planted["read"] = disk.planted["read_now"] = MemoryError("no room")
    assert await add(bookie, 1, 0) is Status.IO_ERROR
    assert heard == ["a repeated add failed unexpectedly: MemoryError('no room')"]
    disk.planted.clear()
    assert await add(bookie, 1, 0) is Status.OK


@pytest.mark.real_loop
async def test_a_surprise_in_the_thread_of_syncs_ends_the_process(tmp_path):
    ended = asyncio.get_running_loop().create_future()
    with ends_by(lambda name, error: ended.set_result((name, str(error)))):
        disk = PosixDisk(tmp_path, "thread")
    file = disk.create("log")

    def sync(work) -> None:
        answered = asyncio.get_running_loop().create_future()
        file.hold()
        file._syncs._in_thread(file, work, answered.set_result)
        file.release()
        return answered

    def raises() -> None:
        raise MemoryError("in a thread")

    lost = sync(raises)
    assert await asyncio.wait_for(ended, 60) == ("a disk sync", "in a thread")
    assert await asyncio.wait_for(sync(lambda: None), 60) is None  # the thread serves the others
    assert not lost.done()
    file.close()
    disk.close()


@pytest.mark.real_loop
@pytest.mark.parametrize("call", ["write", "preallocate", "sync", "sync_directory", "truncate"])
async def test_a_roll_that_a_full_disk_refuses_keeps_no_descriptor_and_no_file(tmp_path, call):
    disk = SurprisingDisk(PosixDisk(tmp_path, "inline"))
    bookie = await started_over(disk, SimTable(Random(2)))
    assert await add(bookie, 1, 0) is Status.OK

    def held():
        return open_below(tmp_path), disk.names()

    before = held()
    for _ in range(5):
        disk.planted[call] = OSError(errno.ENOSPC, "no space")
        with pytest.raises(OSError, match="no space"):
            await bookie.storage.journal.roll()
        assert held() == before
    await bookie.storage.journal.roll()
    bookie.check_disk_space()
    assert await add(bookie, 1, 1) is Status.OK
    await bookie.stop()
    disk.close()


async def test_a_file_that_a_refused_roll_cannot_remove_stops_the_bookie():
    disk = SurprisingDisk(SimDisk(Random(1)))
    bookie = await started_over(disk, SimTable(Random(2)))
    disk.planted["preallocate"] = OSError(errno.ENOSPC, "no space")
    disk.planted["unlink"] = OSError(errno.EIO, "broken")
    with pytest.raises(OSError, match="no space"):
        await bookie.storage.journal.roll()
    assert bookie.failure.errno == errno.EIO
    assert await add(bookie, 1, 0) is Status.IO_ERROR


class _HangingDisk(SimDisk):
    """A disk whose syncs hang once `hangs` is set."""

    hangs = False

    def __init__(self):
        super().__init__(Random(1))
        self.hanging = []

    def create(self, name, expected_bytes=0):
        file = super().create(name, expected_bytes)
        sync = file.sync
        file.sync = lambda told: self.hanging.append(told) if self.hangs else sync(told)
        return file


async def test_an_add_to_a_disk_that_hangs_is_answered_once_and_in_time():
    disk = _HangingDisk()
    bookie = await started_over(disk, SimTable(Random(2)))
    port = LocalBookies([bookie])
    told: list[tuple[int, Status, float]] = []
    loop = asyncio.get_running_loop()

    def add_one(entry):
        def on_added(status):
            told.append((entry, status, loop.time()))

        body = entry_buffers(1, entry, b"x")
        port.add(bookie.bookie_id, 1, entry, KEY, body, on_added)

    add_one(0)
    await asyncio.sleep(100)
    assert told.pop()[:2] == (0, Status.OK)
    disk.hangs, began_s = True, loop.time()
    for entry in (1, 2):
        add_one(entry)
        await asyncio.sleep(ADD_TIMEOUT_S / 2)
    await asyncio.sleep(100)
    assert [each[:2] for each in told] == [(1, Status.UNREACHABLE), (2, Status.UNREACHABLE)]
    for entry, (_, _, at_s) in enumerate(told):
        asked_s = began_s + entry * ADD_TIMEOUT_S / 2
        assert ADD_TIMEOUT_S <= at_s - asked_s <= 1.25 * ADD_TIMEOUT_S
    disk.hangs = False
    for on_synced in disk.hanging:
        on_synced(None)
    add_one(3)
    await asyncio.sleep(100)
    assert told[2][:2] == (3, Status.OK)
    assert len(told) == 3


def session(tree=None):
    return Surprising(SimMetadata(tree or MetadataTree()))


HERE = BookieInfo("host", 3181)
BOOKIE = BookieId("bookie-1")


async def test_a_surprise_in_the_registration_ends_the_process():
    ended = []
    tree = MetadataTree()
    await init_layout(SimMetadata(tree), lambda: "cluster")
    store = session(tree)
    with ends_by(lambda name, error: ended.append((name, type(error)))):
        registration = Registration(store, BOOKIE, HERE, wait_s=1.0, on_problem=None)
        await registration.start()
        store.planted["exists"] = store.planted["multi"] = RuntimeError("from the store")
        moving = asyncio.ensure_future(registration.set_read_only(True))
        await asyncio.sleep(10)
    assert ended == [("the registration of this bookie", RuntimeError)]
    moving.cancel()
    await registration.stop()


async def test_discovery_goes_on_after_a_surprise_and_misses_no_bookie():
    heard = reports()
    tree = MetadataTree()
    await init_layout(SimMetadata(tree), lambda: "cluster")
    store = session(tree)
    discovery = Discovery(store)
    await discovery.start()
    seen = []
    discovery.on_changed(lambda: 1 / 0)
    discovery.on_changed(lambda: seen.append(set(discovery.registered())))
    store.planted["children"] = RuntimeError("from the store")
    await Registration(SimMetadata(tree), BOOKIE, HERE, wait_s=1.0, on_problem=None).start()
    await asyncio.sleep(5)
    assert seen == [{BOOKIE}]
    assert heard == [
        "the discovery of bookies failed unexpectedly: RuntimeError('from the store')",
        "a listener of bookies failed unexpectedly: ZeroDivisionError('division by zero')",
    ]
    await discovery.stop()


async def test_garbage_collection_goes_on_after_a_surprise():
    heard = reports()
    bookie = await started_over(SimDisk(Random(1)), SimTable(Random(2)))
    assert await add(bookie, 1, 0) is Status.OK
    rounds = []

    async def list_ledgers():
        rounds.append(1)
        if len(rounds) == 1:
            raise AssertionError("a file that counts as empty is not")
        return ()

    async def exists(_):
        return False

    collector = GcScheduler(
        *(bookie, list_ledgers, exists), interval_s=60, compaction_threshold=0.0, log=logger
    )
    collector.start()
    await asyncio.sleep(200)
    await collector.stop()
    assert len(rounds) >= 2
    assert len(heard) == 1
    assert bookie.ledgers() == []


async def test_a_recovery_whose_request_dies_ends_with_an_error():
    heard = reports()
    world = cluster()
    writer, _ = await written(world)
    client = world.client("taker")
    bookies = client.recoveries._bookies = Surprising(client._bookies)
    bookies.planted["read"] = RuntimeError("from the port")
    with pytest.raises(EntryUnknown, match="from the port"):
        async with asyncio.timeout(600):
            await client.recover(writer.ledger)
    assert len(heard) == 1
    assert (await client.recover(writer.ledger)).metadata.closed


async def test_ledgers_of_a_batch_whose_request_dies_are_recovered_one_by_one():
    heard = reports()
    world = cluster()
    writers = [(await written(world))[0] for _ in range(3)]
    client = world.client("taker")
    bookies = client.recoveries._bookies = Surprising(client._bookies)
    bookies.planted["fence_many"] = RuntimeError("from the port")
    async with asyncio.timeout(600):
        readers = await asyncio.gather(*(client.recover(one.ledger) for one in writers))
    assert [one.metadata.last_entry for one in readers] == [4, 4, 4]
    assert len(heard) >= 1  # the request, and the batch that it was for
