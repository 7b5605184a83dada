"""Goal: a write through io_uring counts as durable only if the kernel completed it as a whole.

Method: the real ring on a real file. A limit of the system cuts a write short, or refuses it; a
ring between the adapter and the kernel's changes results, or refuses a submission.
"""

from __future__ import annotations

import asyncio
import errno
import mmap
import os
import resource
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import pytest

from ledger.adapters.posix import kernel_ring
from ledger.adapters.posix.kernel_ring import KernelRing, address_of
from ledger.adapters.posix.posix_disk import PosixDisk
from ledger.adapters.posix.uring import why_unavailable
from ledger.bookie.sync_file import sync_file
from ledger.errors import UringUnavailable

BLOCK_BYTES = 4096
FILE_BYTES = 64 * BLOCK_BYTES

pytestmark = pytest.mark.real_loop


@asynccontextmanager
async def log_in(path):
    """A growing file with room, whose name and size are on disk."""
    disk = PosixDisk(path / "disk", io="uring")
    file = disk.create("log", FILE_BYTES)
    file.preallocate(0, FILE_BYTES)
    await sync_file(file)
    yield file
    file.close()
    disk.close()


@contextmanager
def files_up_to(size):
    """The system limits files to this size."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


class OtherRing:
    """The kernel's ring, with one method of it replaced."""

    def __init__(self, real, name, replacement):
        self._real = real
        setattr(self, name, replacement)

    def __getattr__(self, name):
        return getattr(self._real, name)


def ring_of(file):
    ring = file._syncs.ring
    assert ring is not None
    return ring


async def test_a_write_does_not_hold_the_loop_and_is_whole_once_it_is_reported(tmp_path):
    async with log_in(tmp_path) as log:
        told: list[OSError | None] = []
        log.write([b"a" * 100, b"b" * (2 * BLOCK_BYTES - 100)], BLOCK_BYTES)
        log.sync(told.append)
        assert told == []
        while not told:
            await asyncio.sleep(0)
        assert told == [None]
        content = (tmp_path / "disk" / "log").read_bytes()
        written = content[BLOCK_BYTES : 3 * BLOCK_BYTES]
        assert written == b"a" * 100 + b"b" * (2 * BLOCK_BYTES - 100)


@pytest.mark.parametrize("dirty", [False, True])
async def test_a_write_that_the_kernel_cuts_short_has_failed(tmp_path, dirty):
    async with log_in(tmp_path) as log:
        with files_up_to(2 * BLOCK_BYTES):
            if dirty:
                log.write([b"x"], 1)
            log.write([b"a" * BLOCK_BYTES, b"b" * BLOCK_BYTES], BLOCK_BYTES)
            with pytest.raises(OSError, match="4096 of 8192 bytes") as failure:
                await sync_file(log)
        assert failure.value.errno == errno.EIO


async def test_a_write_that_the_kernel_refuses_has_failed_with_its_error(tmp_path):
    async with log_in(tmp_path) as log:
        with files_up_to(BLOCK_BYTES):
            log.write([b"a" * BLOCK_BYTES], BLOCK_BYTES)
            with pytest.raises(OSError) as failure:
                await sync_file(log)
        assert failure.value.errno == errno.EFBIG


async def test_after_a_submission_that_the_kernel_did_not_take_nothing_is_submitted(tmp_path):
    def refuse():
        raise OSError(errno.EAGAIN, "no memory for requests")

    async with log_in(tmp_path) as log:
        ring = ring_of(log)
        real = ring._ring
        ring._ring = OtherRing(real, "submit", refuse)
        for position in (1, 2):
            log.write([b"a" * BLOCK_BYTES], position * BLOCK_BYTES)
            with pytest.raises(OSError, match="no memory for requests"):
                await sync_file(log)
            ring._ring = real
        assert (tmp_path / "disk" / "log").read_bytes().strip(b"\0") == b""


async def test_memory_is_kept_until_what_the_kernel_took_of_a_refused_submission_ended(tmp_path):
    async with log_in(tmp_path) as log:
        ring = ring_of(log)
        real = ring._ring
        ring._ring = OtherRing(real, "submit", lambda: real.submit() - 1)
        told: list[OSError | None] = []
        log.write([b"x"], 1)
        log.write([b"a" * BLOCK_BYTES], BLOCK_BYTES)  # and an fdatasync, which counts as not taken
        log.sync(told.append)
        assert told == []
        while not told:
            await asyncio.sleep(0)
        assert "took 1 of 2" in str(told)
        assert (tmp_path / "disk" / "log").read_bytes()[BLOCK_BYTES : BLOCK_BYTES + 1] == b"a"
        log.write([b"b" * BLOCK_BYTES], 2 * BLOCK_BYTES)
        with pytest.raises(OSError, match="took 1 of 2"):
            await sync_file(log)


async def test_a_disk_that_is_closed_waits_for_what_it_submitted(tmp_path):
    disk = PosixDisk(tmp_path / "disk", io="uring")
    file = disk.create("log", FILE_BYTES)
    file.preallocate(0, FILE_BYTES)
    await sync_file(file)
    told: list[OSError | None] = []
    file.write([b"a" * BLOCK_BYTES], 0)
    file.sync(told.append)
    file.close()
    assert told == []
    disk.close()
    assert told == [None]
    assert (tmp_path / "disk" / "log").read_bytes()[:BLOCK_BYTES] == b"a" * BLOCK_BYTES


@pytest.mark.parametrize(
    ("name", "other", "reason"),
    [
        ("_SETUP", 9_999, "Function not implemented"),  # no kernel has such a call
        ("_NEEDED", 1 << 31, "Linux 5.9 is needed"),
        ("_REGISTER_EVENTFD", 9_999, "Invalid argument"),
    ],
)
async def test_with_an_older_kernel_auto_goes_on_and_uring_is_refused(
    tmp_path, monkeypatch, name, other, reason
):
    handles = len(os.listdir("/proc/self/fd"))
    monkeypatch.setattr(kernel_ring, name, other)
    disk = PosixDisk(tmp_path / "disk", io="auto")
    assert disk._syncs.ring is None
    disk.close()
    with pytest.raises(UringUnavailable, match=reason):
        PosixDisk(tmp_path / "disk", io="uring")
    PosixDisk(tmp_path / "disk", io="off").close()
    assert reason in (why_unavailable() or "")
    assert len(os.listdir("/proc/self/fd")) == handles


def test_a_ring_frees_all_that_it_took():
    def resources():
        maps = Path("/proc/self/maps").read_text().count("io_uring")
        return maps, len(os.listdir("/proc/self/fd"))

    before = resources()
    ring = KernelRing(8)
    assert resources() > before
    ring.close()
    assert resources() == before


def test_a_queue_takes_as_many_operations_as_it_has_places_and_uses_them_again(tmp_path):
    handle = os.open(tmp_path / "file", os.O_RDWR | os.O_CREAT)
    ring = KernelRing(4)
    for turn in range(10):
        first = 4 * turn
        for number in range(4):
            ring.prepare_datasync(first + number, handle)
        with pytest.raises(OSError, match="is full"):
            ring.prepare_datasync(99, handle)
        assert ring.submit() == 4
        ended: list[tuple[int, int]] = []
        while len(ended) < 4:
            ring.wait()
            ended += ring.results()
        assert sorted(ended) == [(first + number, 0) for number in range(4)]
    ring.close()
    os.close(handle)


def test_what_memory_holds_is_written_and_a_failure_is_a_negative_errno(tmp_path):
    memory = mmap.mmap(-1, 8192)
    memory[:6] = b"abcdef"
    handle = os.open(tmp_path / "file", os.O_RDWR | os.O_CREAT)
    ring = KernelRing(4)
    place = address_of(memory)
    ring.prepare_write(7, handle, (place + 2, 3), 5, linked=True)
    ring.prepare_datasync(8, handle)
    ring.prepare_write(9, -1, (place, 1), 0, linked=True)
    ring.prepare_datasync(10, handle)
    assert ring.submit() == 4
    ended: dict[int, int] = {}
    while len(ended) < 4:
        ring.wait()
        ended |= dict(ring.results())
    assert ended == {7: 3, 8: 0, 9: -errno.EBADF, 10: -errno.ECANCELED}
    assert (tmp_path / "file").read_bytes() == b"\0" * 5 + b"cde"
    ring.close()
    os.close(handle)


async def test_more_syncs_than_the_ring_has_room_for_end_each_with_its_own_result(tmp_path):
    async with log_in(tmp_path) as log:
        ring = ring_of(log)
        ended: list[tuple[int, OSError | None]] = []
        for number in range(500):
            ring.submit(
                None, log._handle, lambda error, number=number: ended.append((number, error))
            )
        while len(ended) < 500:
            await asyncio.sleep(0.001)
        assert sorted(ended) == [(number, None) for number in range(500)]


async def test_an_interrupted_look_for_more_results_loses_none(tmp_path):
    overflows, interruptions = [True, True], [True]

    def overflow():
        return bool(overflows) and overflows.pop()

    async with log_in(tmp_path) as log:
        ring = ring_of(log)
        real = ring._ring

        def get_events():
            if interruptions:
                raise InterruptedError(interruptions.pop())
            real.get_events()

        other = OtherRing(real, "overflowed", overflow)
        other.get_events = get_events
        ring._ring = other
        log.write([b"a" * BLOCK_BYTES], BLOCK_BYTES)
        async with asyncio.timeout(60):
            await sync_file(log)
        assert not interruptions


async def test_a_look_for_more_results_that_fails_ends_everything_with_an_error(tmp_path):
    def fail():
        raise OSError(errno.EBADR, "results are lost")

    async with log_in(tmp_path) as log:
        ring = ring_of(log)
        other = OtherRing(ring._ring, "overflowed", lambda: True)
        other.results = list  # without that of the write
        other.get_events = fail
        ring._ring = other
        for position in (1, 2):
            log.write([b"a" * BLOCK_BYTES], position * BLOCK_BYTES)
            with pytest.raises(OSError, match="results are lost"):
                await asyncio.wait_for(sync_file(log), 60)
