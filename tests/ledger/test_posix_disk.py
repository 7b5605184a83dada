"""Goal: a file that was closed gives its room back, whatever its readers did meanwhile.

Method: the real disk, reads through its threads, all of them busy.
"""

from __future__ import annotations

import asyncio
import os
import threading
from pathlib import Path

import pytest

from ledger.adapters.posix import posix_disk
from ledger.adapters.posix.posix_disk import PosixDisk


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
