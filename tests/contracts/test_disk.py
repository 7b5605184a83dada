"""Goal: the simulated disk keeps the same promises as the real one, so that proofs over it count.
Method: one suite, run on a directory of this machine in each sync mode and on the simulator.
"""

from __future__ import annotations

import asyncio
import os
from contextlib import asynccontextmanager
from random import Random

import pytest

from ledger.adapters.posix import posix_disk
from ledger.adapters.posix.posix_disk import PosixDisk
from ledger.errors import DirectoryInUse
from tests.sim.disk import DiskFaults, SimDisk

pytestmark = pytest.mark.real_loop


@pytest.fixture(
    params=["inline", "thread", "auto", "never", "uring", "simulated", "simulated uring"]
)
def make_disk(request, tmp_path):
    if request.param.startswith("simulated"):
        faults = DiskFaults(uring=request.param == "simulated uring")
        return lambda: SimDisk(Random(1), faults)
    if request.param == "uring":
        return lambda: PosixDisk(tmp_path / "disk", io="uring")
    return lambda: PosixDisk(tmp_path / "disk", request.param)


async def synced(file) -> OSError | None:
    done = asyncio.get_running_loop().create_future()
    file.sync(done.set_result)
    return await done


@asynccontextmanager
async def closing(make_disk):
    disk = make_disk()
    try:
        yield disk
    finally:
        disk.close()


async def test_what_was_written_can_be_read_at_once_and_synced(make_disk):
    async with closing(make_disk) as disk:
        file = disk.create("a")
        file.write([b"head", bytearray(b"er"), memoryview(b"body")], 0)
        assert bytes(await file.read(0, 100)) == b"headerbody"
        assert await synced(file) is None
        assert bytes(await file.read(4, 3)) == b"erb"
        file.close()


async def test_a_write_of_more_buffers_than_the_system_takes_is_whole(make_disk):
    async with closing(make_disk) as disk:
        file = disk.create("a")
        buffers = [bytes([i % 251]) * (i % 7) for i in range(5000)]
        file.write(buffers, 4096)
        assert bytes(await file.read(4096, 1 << 20)) == b"".join(buffers)
        assert file.size() == 4096 + sum(map(len, buffers))
        file.close()


async def test_a_later_write_overwrites_and_gaps_read_as_zeros(make_disk):
    async with closing(make_disk) as disk:
        file = disk.create("a")
        file.write([b"x" * 10], 100)
        file.write([b"yy"], 104)
        assert bytes(await file.read(98, 14)) == b"\0\0xxxxyyxxxx"
        file.close()


async def test_a_read_past_the_end_is_short(make_disk):
    async with closing(make_disk) as disk:
        file = disk.create("a")
        file.write([b"abc"], 0)
        assert bytes(await file.read(2, 100)) == b"c"
        assert bytes(await file.read(3, 100)) == b""
        assert bytes(await file.read(500, 100)) == b""
        file.close()


async def test_a_read_that_does_not_wait_gives_the_same_bytes_or_nothing(make_disk):
    async with closing(make_disk) as disk:
        file = disk.create("a")
        file.write([b"z" * 70_000], 0)
        now = file.read_now(10, 65_000)
        assert now is None or bytes(now) == b"z" * 65_000
        file.close()


async def test_preallocated_room_reads_as_zeros_and_keeps_what_is_there(make_disk):
    async with closing(make_disk) as disk:
        file = disk.create("a")
        file.write([b"abc"], 0)
        file.preallocate(0, 64 * 1024)
        assert bytes(await file.read(0, 8)).rstrip(b"\0") == b"abc"
        file.truncate(2)
        assert file.size() == 2
        assert bytes(await file.read(0, 8)) == b"ab"
        file.close()


async def test_two_handles_see_one_file(make_disk):
    async with closing(make_disk) as disk:
        writer, reader = disk.create("a"), disk.open("a")
        writer.write([b"seen"], 0)
        assert bytes(await reader.read(0, 9)) == b"seen"
        writer.close()
        reader.close()


async def test_an_unlinked_file_is_still_read_through_its_handle(make_disk):
    async with closing(make_disk) as disk:
        file = disk.create("a")
        file.write([b"abc"], 0)
        disk.unlink("a")
        disk.sync_directory()
        assert disk.names() == []
        assert bytes(await file.read(0, 3)) == b"abc"
        file.close()


async def test_names_are_sorted_and_wrong_ones_are_refused(make_disk):
    async with closing(make_disk) as disk:
        for name in ("b", "a", "c"):
            disk.create(name).close()
        assert disk.names() == ["a", "b", "c"]
        with pytest.raises(FileExistsError):
            disk.create("a")
        with pytest.raises(FileNotFoundError):
            disk.open("z")
        with pytest.raises(FileNotFoundError):
            disk.unlink("z")
        assert disk.free_bytes() > 0


async def test_syncs_of_one_file_end_in_order(make_disk):
    async with closing(make_disk) as disk:
        file = disk.create("a")
        ended: list[int] = []
        for number in range(5):
            file.write([b"x"], number)
            assert await synced(file) is None
            ended.append(number)
        assert ended == list(range(5))
        file.close()


async def test_a_directory_is_held_by_one_and_opening_it_writes_nothing(tmp_path):
    disk = PosixDisk(tmp_path)
    with pytest.raises(DirectoryInUse):
        PosixDisk(tmp_path)
    assert list(tmp_path.iterdir()) == []
    disk.close()
    PosixDisk(tmp_path).close()


async def test_a_file_closed_while_a_thread_reads_it_is_given_back_afterwards(tmp_path):
    disk = PosixDisk(tmp_path)
    file = disk.create("a")
    file.write([b"x" * 1000], 0)
    file.hold()
    file.close()
    assert file._read(0, 1000) == b"x" * 1000
    file.release()
    with pytest.raises(OSError):
        file.size()
    disk.close()


async def test_slow_syncs_move_to_a_thread_and_fast_ones_come_back(tmp_path, monkeypatch):
    monkeypatch.setattr(posix_disk, "_INLINE_S_MAX", 1.0)  # a sync of any disk is faster
    disk = PosixDisk(tmp_path, "auto")
    file = disk.create("a")
    disk._syncs._average_s = 10.0
    ended: list[OSError | None] = []
    file.sync(ended.append)
    assert ended == []  # a thread does it
    while not disk._syncs.inline:
        file.write([b"x"], 0)
        assert await synced(file) is None
    file.write([b"x"], 0)
    file.sync(ended.append)
    assert ended == [None, None]
    file.close()
    disk.close()


async def test_a_file_created_with_an_expected_size_reads_as_zeros_until_written(make_disk):
    async with closing(make_disk) as disk:
        file = disk.create("a", 64 * 1024)
        assert bytes(await file.read(0, 1 << 20)).strip(b"\0") == b""
        file.write([b"abc"], 4096)
        assert bytes(await file.read(4096, 3)) == b"abc"
        file.close()


async def test_writes_in_blocks_and_others_mix_in_one_file_for_every_reader(make_disk):
    async with closing(make_disk) as disk:
        random = Random(5)
        writer = disk.create("a", 1 << 20)
        reader = disk.open("a")
        expected = bytearray(1 << 20)
        position = 0
        while position < 1 << 20:
            size = random.choice([10, 4096, 8192, 65536, 100_000])
            data = random.randbytes(min(size, (1 << 20) - position))
            cut = random.randrange(len(data) + 1)
            writer.write([data[:cut], data[cut:]], position)
            assert await synced(writer) is None
            expected[position : position + len(data)] = data
            assert bytes(await reader.read(position, len(data))) == data
            position += (len(data) + 4095) & -4096
        assert bytes(await reader.read(0, 1 << 20)) == expected
        assert bytes(await writer.read(0, 1 << 20)) == expected
        writer.close()
        reader.close()


async def test_blocks_written_directly_need_no_sync_of_their_own(tmp_path):
    disk = PosixDisk(tmp_path, "inline")
    file = disk.create("a", 1 << 20)
    assert await synced(file) is None
    file.write([bytes(100), bytes(3996)], 4096)
    assert not file._dirty
    file.write([b"x"], 0)
    assert file._dirty
    assert await synced(file) is None
    assert not file._dirty
    file.close()
    disk.close()


async def test_a_growing_file_makes_its_successor_a_spare_of_zeros_that_nobody_sees(tmp_path):
    disk = PosixDisk(tmp_path)
    first = disk.create("log-1", 2 * 1024 * 1024)
    first.preallocate(0, 1024 * 1024)
    first.write([bytes(1024 * 1024)], 0)
    first.preallocate(1024 * 1024, 4096)
    assert disk._spare._thread is None  # large writes gain nothing by it
    for position in range(8):
        first.write([b"x"], position)
    first.preallocate(1024 * 1024, 4096)
    disk._spare._thread.join()
    assert disk.names() == ["log-1"]
    second = disk.create("log-2", 2 * 1024 * 1024)
    assert second.size() == 2 * 1024 * 1024
    assert bytes(await second.read(0, 1 << 22)) == bytes(2 * 1024 * 1024)
    assert disk.names() == ["log-1", "log-2"]
    with pytest.raises(FileExistsError):
        disk.create("log-2", 2 * 1024 * 1024)
    second.preallocate(1024 * 1024, 4096)
    first.close()
    second.close()
    disk.close()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["log-1", "log-2"]


async def test_a_thread_writes_blocks_directly_too_and_the_loop_goes_on(tmp_path):
    disk = PosixDisk(tmp_path, "thread")
    file, other = disk.create("a", 1 << 20), disk.create("b", 1 << 20)
    for each in (file, other):
        each.preallocate(0, 1 << 20)
        assert await synced(each) is None
    told: list[OSError | None] = []
    file.write([b"a" * 100, b"b" * 3996], 4096)
    assert not file._dirty
    file.sync(told.append)
    assert told == []  # a thread does it
    other.write([b"c" * 4096], 0)  # the one aligned memory may be taken: then as any write
    assert await synced(other) is None
    assert await synced(file) is None
    assert bytes(await file.read(4096, 4096)) == b"a" * 100 + b"b" * 3996
    assert bytes(await other.read(0, 4096)) == b"c" * 4096
    file.write([b"d" * 4096], 0)
    file.close()  # never synced: forgotten
    other.write([b"e" * 4096], 8192)
    assert not other._dirty
    assert await synced(other) is None
    assert bytes(await other.read(8192, 4096)) == b"e" * 4096
    other.close()
    disk.close()
    assert (tmp_path / "a").read_bytes()[:4096].strip(b"\0") == b""


async def test_a_thread_that_cannot_write_says_so_to_whoever_waits(tmp_path):
    disk = PosixDisk(tmp_path, "thread")
    file = disk.create("a", 1 << 20)
    file.preallocate(0, 1 << 20)
    assert await synced(file) is None
    handle = file._direct._handle
    file._direct._handle = os.open(tmp_path / "a", os.O_RDONLY)
    file.write([b"a" * 4096], 0)
    assert isinstance(await synced(file), OSError)
    os.close(handle)
    file.close()
    disk.close()
