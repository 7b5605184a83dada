"""Goal: a write through io_uring counts as durable only if the kernel completed it as a whole.

Method: the real ring on a real file. A limit of the system cuts a write short, or refuses it; a
library between the adapter and the kernel changes results, or refuses a submission.
"""

from __future__ import annotations

import asyncio
import errno
import resource
from contextlib import asynccontextmanager, contextmanager

import pytest

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


class Library:
    """The real library, with one method of it replaced."""

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
    def refuse(_):
        raise OSError(errno.EAGAIN, "no memory for requests")

    async with log_in(tmp_path) as log:
        ring = ring_of(log)
        real = ring._lib
        ring._lib = Library(real, "io_uring_submit", refuse)
        for position in (1, 2):
            log.write([b"a" * BLOCK_BYTES], position * BLOCK_BYTES)
            with pytest.raises(OSError, match="no memory for requests"):
                await sync_file(log)
            ring._lib = real
        assert (tmp_path / "disk" / "log").read_bytes().strip(b"\0") == b""


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


async def test_without_the_package_auto_goes_on_and_uring_is_refused(tmp_path, monkeypatch):
    def missing(_):
        raise ImportError("No module named 'liburing'")

    monkeypatch.setattr("ledger.adapters.posix.uring.import_module", missing)
    disk = PosixDisk(tmp_path / "disk", io="auto")
    assert disk._syncs.ring is None
    disk.close()
    with pytest.raises(UringUnavailable, match="liburing is not installed"):
        PosixDisk(tmp_path / "disk", io="uring")
    PosixDisk(tmp_path / "disk", io="off").close()
    assert why_unavailable() == "the package liburing is not installed"


async def test_the_library_which_keeps_all_that_it_is_given_gets_little(tmp_path):
    made: list[int] = []

    async with log_in(tmp_path) as log:
        ring = ring_of(log)
        real = ring._lib

        def vector(buffers):
            made.append(len(buffers[0]))
            return real.Iovec(buffers)

        ring._lib = Library(real, "Iovec", vector)
        for number in range(300):
            log.write([bytes((1 + number % 3) * BLOCK_BYTES)], number % 50 * BLOCK_BYTES)
            await sync_file(log)
        assert sorted(made) == [BLOCK_BYTES, 2 * BLOCK_BYTES, 3 * BLOCK_BYTES]


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

    def overflow(_):
        return bool(overflows) and overflows.pop()

    async with log_in(tmp_path) as log:
        ring = ring_of(log)
        real = ring._lib

        def get_events(found):
            if interruptions:
                raise InterruptedError(interruptions.pop())
            return real.io_uring_get_events(found)

        library = Library(real, "io_uring_cq_has_overflow", overflow)
        library.io_uring_get_events = get_events
        ring._lib = library
        log.write([b"a" * BLOCK_BYTES], BLOCK_BYTES)
        async with asyncio.timeout(60):
            await sync_file(log)
        assert not interruptions


async def test_a_look_for_more_results_that_fails_ends_everything_with_an_error(tmp_path):
    def fail(_):
        raise OSError(errno.EBADR, "results are lost")

    async with log_in(tmp_path) as log:
        ring = ring_of(log)
        library = Library(ring._lib, "io_uring_cq_has_overflow", lambda _: True)
        library.io_uring_cq_ready = lambda _: 0  # of the write
        library.io_uring_get_events = fail
        ring._lib = library
        for position in (1, 2):
            log.write([b"a" * BLOCK_BYTES], position * BLOCK_BYTES)
            with pytest.raises(OSError, match="results are lost"):
                await asyncio.wait_for(sync_file(log), 60)
