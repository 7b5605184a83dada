"""Goal: a disk that fails in the middle of a submitted write costs nothing that was acknowledged.

Method: a file system in a sparse file, on a small file system in memory. When the memory is full,
the block device under the bookie fails in the middle of its writes. The bookie stops and answers
every add; with more memory the next start has all that it acknowledged. `mount` needs root.
"""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from ledger.bookie.config import BookieConfig
from ledger.bookie.in_process import open_local_bookie
from ledger.ports.bookies import Status
from tests.sim.bookie_world import KEY, entry_buffers

MIB = 1 << 20
SMALL, LARGE, IMAGE = 24 * MIB, 256 * MIB, 160 * MIB
PAYLOAD = 40_000
IN_FLIGHT = 16
CONFIG = BookieConfig(headroom_bytes=0, file_bytes=16 * MIB, preallocate_bytes=4 * MIB)

pytestmark = [pytest.mark.real_loop, pytest.mark.proof]


def run(*words: object) -> None:
    subprocess.run(list(map(str, words)), check=True, timeout=60)


@contextmanager
def mounted(place: Path, *words: object) -> Iterator[None]:
    """Something is mounted on `place`."""
    place.mkdir(exist_ok=True)
    run("mount", *words, place)
    try:
        yield
    finally:
        run("umount", place)


def payload_of(entry: int) -> bytes:
    return entry.to_bytes(4, "big") * (PAYLOAD // 4)


async def write_until_it_fails(path: Path, io: str) -> tuple[int, int, set[int]]:
    """Return how many adds were sent and answered, and which entries were acknowledged."""
    opened = await open_local_bookie(path, config=CONFIG, next_ledger=2, io=io)
    bookie = opened.bookie
    acked: set[int] = set()
    sent = answered = 0

    def send() -> None:
        nonlocal sent
        entry, sent = sent, sent + 1
        body = entry_buffers(1, entry, payload_of(entry))
        bookie.add(1, entry, KEY, body, lambda status: on_added(status, entry))

    def on_added(status: Status, entry: int) -> None:
        nonlocal answered
        answered += 1
        if status is Status.OK:
            acked.add(entry)
            send()

    for _ in range(IN_FLIGHT):
        send()
    failure = await bookie.failed()
    assert failure is bookie.storage.journal.failed
    while answered < sent:
        await asyncio.sleep(0)
    try:
        await opened.close()
    except OSError:  # the index has no room either
        opened._disk.close()
    return sent, answered, acked


async def read_back(path: Path) -> set[int]:
    """Return the entries that are there after the next start."""
    opened = await open_local_bookie(path, config=CONFIG, next_ledger=2)
    assert opened.bookie.replayed.corrupt == ()
    found = set()
    entry = 0
    while (reply := await opened.bookie.read(1, entry)).status is Status.OK:
        assert reply.body[36:] == payload_of(entry)
        found.add(entry)
        entry += 1
    assert reply.status is Status.NO_ENTRY
    await opened.close()
    return found


@pytest.mark.parametrize("io", ["off", "uring"])
async def test_a_disk_that_fails_during_a_write_costs_nothing_acknowledged(tmp_path, io):
    memory, place, image = tmp_path / "memory", tmp_path / "disk", tmp_path / "memory" / "image"
    with mounted(memory, "-t", "tmpfs", "-o", f"size={SMALL}", "tmpfs"):
        with image.open("wb") as file:
            file.truncate(IMAGE)
        run("mkfs.ext4", "-q", image)
        with mounted(place, "-o", "loop", image):
            sent, answered, acked = await write_until_it_fails(place / "bookie", io)
        assert answered == sent
        assert len(acked) > 100
        run("mount", "-o", f"remount,size={LARGE}", memory)
        with mounted(place, "-o", "loop", image):
            assert acked <= await read_back(place / "bookie")
