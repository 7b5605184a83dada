"""Goal: a file that was closed gives its room back, whatever its readers did meanwhile; a write
that the system cuts short is completed, and one that it cannot complete is an error.

Method: the real disk, reads through its threads, all of them busy; system calls that write a part,
which POSIX allows for every one of them.
"""

from __future__ import annotations

import asyncio
import errno
import itertools
import os
import resource
import threading
from pathlib import Path
from random import Random

import pytest

from ledger.adapters.posix import posix_disk
from ledger.adapters.posix.posix_disk import PosixDisk
from ledger.bookie.sync_file import sync_file


def handles_on(path: Path) -> int:
    """How many handles of this process are on that file."""
    found = 0
    for handle in Path("/proc/self/fd").iterdir():
        try:
            found += os.readlink(handle).startswith(str(path))
        except FileNotFoundError:
            continue  # the one that lists
    return found


@pytest.mark.real_loop
@pytest.mark.parametrize("gives_up", [True, False])
async def test_a_reader_that_gives_up_before_a_thread_is_free_holds_no_file(
    tmp_path, monkeypatch, gives_up
):
    monkeypatch.setattr(posix_disk, "_NOWAIT", 0)  # as where the cache does not hold the file

    disk = PosixDisk(tmp_path / "disk")
    file = disk.create("log")
    file.write([b"content"], 0)
    threads_go_on = threading.Event()
    for _ in range(posix_disk._READ_THREADS):
        disk._readers.submit(threads_go_on.wait, 10)
    reading = asyncio.ensure_future(file.read(0, 7))
    await asyncio.sleep(0)
    assert handles_on(tmp_path / "disk" / "log") == 1
    if gives_up:
        reading.cancel()
        await asyncio.gather(reading, return_exceptions=True)
    file.close()
    threads_go_on.set()
    if not gives_up:
        assert await reading == b"content"
    disk.close()
    assert handles_on(tmp_path / "disk" / "log") == 0


# -- short writes ---------------------------------------------------------------------------------

BLOCK_BYTES = 4096
FILE_BYTES = 64 * BLOCK_BYTES


@pytest.fixture
def short_writes(monkeypatch):
    """Most calls write a part: whole blocks where the handle is a direct one."""
    draw = Random(1)
    pwrite, pwritev = os.pwrite, os.pwritev

    def short(size, least):
        return size if draw.random() < 0.2 else max(least, draw.randint(1, size) // least * least)

    def write_one(handle, buffer, position):
        return pwrite(handle, buffer[: short(len(buffer), BLOCK_BYTES)], position)

    def write_many(handle, buffers, position):
        whole = b"".join(buffers)
        return pwritev(handle, [whole[: short(len(whole), 1)]], position)

    monkeypatch.setattr(os, "pwrite", write_one)
    monkeypatch.setattr(os, "pwritev", write_many)


def pieces_of(draw, blocks):
    """The same bytes in several buffers, as a group of the journal has them."""
    whole = draw.randbytes(blocks * BLOCK_BYTES)
    cuts = sorted({0, len(whole), *(draw.randrange(len(whole)) for _ in range(5))})
    return whole, [whole[first:end] for first, end in itertools.pairwise(cuts)]


@pytest.mark.real_loop
@pytest.mark.parametrize("mode", ["inline", "thread"])
@pytest.mark.parametrize("expected_bytes", [0, FILE_BYTES])
async def test_a_write_that_was_cut_short_is_completed(
    tmp_path, short_writes, mode, expected_bytes
):
    disk = PosixDisk(tmp_path, mode)
    file = disk.create("log", expected_bytes)
    file.preallocate(0, FILE_BYTES)
    draw, position, whole = Random(2), 0, b""
    while position + 8 * BLOCK_BYTES <= FILE_BYTES:
        content, pieces = pieces_of(draw, draw.randint(1, 8))
        file.write(pieces, position)
        await sync_file(file)
        whole += content
        position += len(content)
        assert (tmp_path / "log").read_bytes()[:position] == whole
    file.close()
    disk.close()


@pytest.mark.real_loop
@pytest.mark.parametrize("mode", ["inline", "thread"])
async def test_a_write_over_a_limit_of_the_system_is_an_error_and_never_a_part(tmp_path, mode):
    disk = PosixDisk(tmp_path, mode)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    file = disk.create("log", FILE_BYTES)
    resource.setrlimit(resource.RLIMIT_FSIZE, (3 * BLOCK_BYTES // 2, before[1]))
    try:
        file.write([bytes(BLOCK_BYTES)], 0)
        with pytest.raises(OSError) as failure:
            file.write([b"a" * BLOCK_BYTES, b"b" * BLOCK_BYTES], BLOCK_BYTES)
            await sync_file(file)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert failure.value.errno == errno.EFBIG
    file.close()
    disk.close()


@pytest.mark.real_loop
@pytest.mark.parametrize(("size", "waits"), [(4096, True), (8 << 20, False)])
async def test_the_loop_waits_for_a_small_sync_and_not_for_that_of_a_whole_file(
    tmp_path, size, waits
):
    """Without syncs of groups a file is synced at its end only, and no earlier sync tells how
    long that takes.
    """
    disk = PosixDisk(tmp_path / "disk")
    file = disk.create("log")
    file.write([bytes(size)], 0)
    synced = asyncio.get_running_loop().create_future()
    file.sync(synced.set_result)
    assert synced.done() == waits
    assert await synced is None
    file.close()
    disk.close()
