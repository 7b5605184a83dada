"""The disk port on a POSIX directory.

Writes bypass the page cache where that is possible; elsewhere they are vectored writes with
fdatasync. With io_uring the kernel writes and syncs while the loop goes on. A read does not wait if
the page cache holds its bytes.
"""

from __future__ import annotations

import asyncio
import errno
import fcntl
import os
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import SimpleQueue
from typing import Final, Literal

from ledger.adapters.posix.direct_write import AlignedBuffer, DirectWriter
from ledger.adapters.posix.loop_timer import LoopTimer
from ledger.adapters.posix.spare_file import SPARE_NAME, SpareFile
from ledger.adapters.posix.uring import Uring
from ledger.errors import DirectoryInUse, UringUnavailable
from ledger.ids import Buffer
from ledger.ports.disk import IoMode, OnSynced
from ledger.tasks import Guard

SyncMode = Literal["inline", "thread", "auto", "never"]
"""The place where fdatasync runs: on the event loop, in a thread, in the cheaper of the two, or
never. Only `auto` permits io_uring instead of both.
"""

_BUFFERS_MAX: Final = os.sysconf("SC_IOV_MAX")
# Bound of mode "auto": a longer stop of the loop costs more than a thread
_INLINE_S_MAX: Final = 0.002
# A sync of more bytes takes longer than the recent ones: that of a file synced at its end
_INLINE_BYTES_MAX: Final = 4 * 1024 * 1024
_AVERAGE_SHARE: Final = 0.125  # weight of the newest sync in the moving average
# Average write above which zeros cost more than they save
_SPARE_PAYS_BYTES: Final = 192 * 1024
_READ_THREADS: Final = 4
_NOWAIT: Final[int] = getattr(os, "RWF_NOWAIT", 0)


class PosixDisk:
    """One locked directory. Opening it writes nothing.

    Raises DirectoryInUse while another process or object holds the lock, and UringUnavailable if
    `io` demands what does not work here.
    """

    def __init__(self, path: Path, sync_mode: SyncMode = "auto", io: IoMode = "off") -> None:
        path.mkdir(parents=True, exist_ok=True)
        self._path = path
        self._directory = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            fcntl.flock(self._directory, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(self._directory)
            raise DirectoryInUse(f"{path} is held by another process") from error
        self.blocked: Final = LoopTimer()
        try:
            ring = _open_ring(io, self.blocked) if sync_mode == "auto" else None
        except UringUnavailable:
            os.close(self._directory)
            raise
        self._syncs = _Syncs(sync_mode, ring, self.blocked)
        self._readers = ThreadPoolExecutor(_READ_THREADS, thread_name_prefix="disk-read")
        self._spare = SpareFile(self._directory)
        self._staging = AlignedBuffer()

    def names(self) -> list[str]:
        return sorted(path.name for path in self._path.iterdir() if path.name != SPARE_NAME)

    def create(self, name: str, expected_bytes: int = 0) -> PosixLogFile:
        if expected_bytes and name not in self.names() and self._spare.take(name, expected_bytes):
            return self._open(name, os.O_RDWR, expected_bytes)
        return self._open(name, os.O_RDWR | os.O_CREAT | os.O_EXCL, expected_bytes)

    def open(self, name: str) -> PosixLogFile:
        file = self._open(name, os.O_RDWR)
        file.expect_random_reads()
        return file

    def unlink(self, name: str) -> None:
        os.unlink(name, dir_fd=self._directory)

    def sync_directory(self) -> None:
        if self._syncs.mode != "never":
            with self.blocked:
                os.fsync(self._directory)

    def free_bytes(self) -> int:
        state = os.fstatvfs(self._directory)
        return state.f_bavail * state.f_frsize

    def close(self) -> None:
        """Release the directory. The caller has closed every file before."""
        self._syncs.close()
        self._spare.close()
        self._readers.shutdown(wait=True)
        os.close(self._directory)

    def _open(self, name: str, flags: int, expected_bytes: int = 0) -> PosixLogFile:
        handle = os.open(name, flags | os.O_CLOEXEC, 0o644, dir_fd=self._directory)
        file = PosixLogFile(handle, self._syncs, self._readers)
        if expected_bytes:
            direct = DirectWriter.open(name, self._directory, self._staging)
            file.expect_growth(self._spare, expected_bytes, direct)
        return file


class PosixLogFile:
    """One open file of a `PosixDisk`."""

    __slots__ = (
        "_closed",
        "_direct",
        "_dirty",
        "_expected_bytes",
        "_handle",
        "_readers",
        "_spare",
        "_syncs",
        "_unsynced_bytes",
        "_users",
        "_writes",
    )

    def __init__(self, handle: int, syncs: _Syncs, readers: ThreadPoolExecutor) -> None:
        self._handle = handle
        self._syncs = syncs
        self._readers = readers
        # The handle for aligned writes. None where the file system does not support them.
        self._direct: DirectWriter | None = None
        # The place where the next log file is prepared. Set only for a log file.
        self._spare: SpareFile | None = None
        # The size that this file will grow to; 0 if unknown. Set only for a log file.
        self._expected_bytes = 0
        # True if the page cache may hold bytes that are not on disk: a sync needs fdatasync then.
        self._dirty = True
        # Bytes written into the page cache since the last sync.
        self._unsynced_bytes = 0
        # One user for this object and one for each call in a thread; the handle is closed at 0.
        self._users = 1
        # Set once, by `close`; the handle may stay open until `_users` is 0.
        self._closed = False
        # Number of direct writes so far. The file size divided by it is the average write.
        self._writes = 0

    def expect_growth(
        self, spare: SpareFile, expected_bytes: int, direct: DirectWriter | None
    ) -> None:
        """Mark this file as a log file: written in blocks, followed by another file of its size."""
        self._spare, self._expected_bytes, self._direct = spare, expected_bytes, direct

    def expect_random_reads(self) -> None:
        """Disable read-ahead, which would cache space that another handle is about to write."""
        if hasattr(os, "posix_fadvise"):
            os.posix_fadvise(self._handle, 0, 0, os.POSIX_FADV_RANDOM)

    def write(self, buffers: Sequence[Buffer], position: int) -> None:
        size = sum(map(len, buffers))
        self._writes += 1
        if self._write_direct(buffers, position, size):
            return
        self._dirty = True
        self._unsynced_bytes += size
        with self._syncs.blocked:
            if len(buffers) <= _BUFFERS_MAX and os.pwritev(self._handle, buffers, position) == size:
                return
            _write_in_parts(self._handle, buffers, position)

    def _write_direct(self, buffers: Sequence[Buffer], position: int, size: int) -> bool:
        """Write the bytes durably, or stage them for the next sync.

        Returns False if neither was possible.
        """
        direct, syncs = self._direct, self._syncs
        if direct is None or not direct.takes(position, size):
            return False
        if syncs.inline:
            began_s = time.perf_counter()
            written = direct.write(buffers, position, size)
            took_s = time.perf_counter() - began_s
            syncs.note(took_s)
            syncs.blocked.add(took_s)
            return written
        if syncs.mode == "never" or position + size > self.size():
            return False  # space that is not reserved may be missing, which only `write` reports
        direct.stage(buffers, position, size)
        return True

    def sync(self, on_synced: OnSynced) -> None:
        staged = self._direct if self._direct is not None and self._direct.staged else None
        dirty, self._dirty = self._dirty, False
        large, self._unsynced_bytes = self._unsynced_bytes > _INLINE_BYTES_MAX, 0
        if staged is None and not dirty:
            on_synced(None)
            return
        if self._syncs.ring is not None:
            self._submit(self._syncs.ring, staged, dirty, on_synced)
            return

        def work() -> None:
            if staged is not None:
                staged.flush()
            if dirty:
                os.fdatasync(self._handle)

        self._syncs.sync(self, work, on_synced, large=large)

    def _submit(
        self, ring: Uring, staged: DirectWriter | None, dirty: bool, on_synced: OnSynced
    ) -> None:
        """Let io_uring write what is staged, then sync what else was written."""

        def on_done(error: OSError | None) -> None:
            if staged is not None:
                staged.forget()
            self.release()
            on_synced(error)

        self.hold()
        write = staged.staged_write() if staged is not None else None
        ring.submit(write, self._handle if dirty else None, on_done)

    def read_now(self, position: int, size: int) -> Buffer | None:
        if not _NOWAIT:
            return None
        found = bytearray(size)
        try:
            got = os.preadv(self._handle, [found], position, _NOWAIT)
        except OSError as error:
            if error.errno in (errno.EAGAIN, errno.EOPNOTSUPP):
                return None
            raise
        if got < size:
            if position + got < self.size():
                return None
            del found[got:]
        return found

    async def read(self, position: int, size: int) -> Buffer:
        now = self.read_now(position, size)
        if now is not None:
            return now
        try:
            reading = self._readers.submit(self._read, position, size)
        except RuntimeError as error:  # the thread pool was shut down
            raise OSError(errno.EBADF, "the disk was closed") from error
        self.hold()
        # Also if the caller gave up before a thread was free: then no thread runs at all.
        reading.add_done_callback(lambda _: self.release())
        return await asyncio.wrap_future(reading)

    def expect_reads(self, position: int, size: int) -> None:
        if hasattr(os, "posix_fadvise"):
            os.posix_fadvise(self._handle, position, size, os.POSIX_FADV_WILLNEED)

    def size(self) -> int:
        return os.fstat(self._handle).st_size

    def preallocate(self, position: int, size: int) -> None:
        if self._spare is not None and 0 < position < self._writes * _SPARE_PAYS_BYTES:
            self._spare.prepare(self._expected_bytes)  # the file grows, so another file will follow
        if position + size <= self.size():
            return
        try:
            with self._syncs.blocked:
                os.posix_fallocate(self._handle, position, size)
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EOPNOTSUPP, errno.EINVAL, errno.EFBIG):
                raise

    def truncate(self, size: int) -> None:
        self._dirty = True
        with self._syncs.blocked:
            os.ftruncate(self._handle, size)

    def close(self) -> None:
        """Close the handle once the current reads and syncs have finished."""
        assert not self._closed
        self._closed = True
        self.release()

    def hold(self) -> None:
        """Keep the handle open for a thread that is about to use it."""
        with _USERS_LOCK:
            self._users += 1

    def release(self) -> None:
        """End a `hold`: the thread has finished."""
        with _USERS_LOCK:
            self._users -= 1
            last = self._users == 0
        if last:
            os.close(self._handle)
            if self._direct is not None:
                self._direct.forget()
                self._direct.close()

    def _read(self, position: int, size: int) -> bytes:
        parts: list[bytes] = []
        while size > 0 and (part := os.pread(self._handle, size, position)):
            parts.append(part)
            position += len(part)
            size -= len(part)
        return parts[0] if len(parts) == 1 else b"".join(parts)


def _open_ring(io: IoMode, blocked: LoopTimer) -> Uring | None:
    """Return a ring, or None if `io` does not want or demand one. Raises UringUnavailable."""
    if io == "off":
        return None
    try:
        return Uring(blocked)
    except UringUnavailable:
        if io == "uring":
            raise
        return None


# Guards the user counts of all files; held only for an addition
_USERS_LOCK: Final = threading.Lock()


def _write_in_parts(handle: int, buffers: Sequence[Buffer], position: int) -> None:
    """Write all of `buffers`, in several calls if necessary."""
    waiting = [memoryview(buffer) for buffer in buffers if len(buffer)]
    at = 0
    while at < len(waiting):
        written = os.pwritev(handle, waiting[at : at + _BUFFERS_MAX], position)
        if written == 0:
            raise OSError(errno.ENOSPC, "the disk took no bytes")
        position += written
        while written and written >= len(waiting[at]):
            written -= len(waiting[at])
            at += 1
        if written:
            waiting[at] = waiting[at][written:]


class _Syncs:
    """The syncs of a disk: runs each where the mode requires, and measures recent ones."""

    def __init__(self, mode: SyncMode, ring: Uring | None, blocked: LoopTimer) -> None:
        self.mode: Final[SyncMode] = mode
        # Writes and syncs instead of the loop and of the thread. None without io_uring.
        self.ring: Final = ring
        self.blocked: Final = blocked
        # Ends the process if a sync in the thread fails in a way that no journal knows.
        self._guard = Guard("a disk sync")
        # Moving average of the duration of a sync; decides between loop and thread.
        self._average_s = 0.0
        # The thread that runs syncs one after another, from the first sync that needs it until
        # `close`.
        self._thread: threading.Thread | None = None
        # Syncs for the thread; None ends the thread.
        self._waiting: SimpleQueue[Callable[[], None] | None] = SimpleQueue()

    @property
    def inline(self) -> bool:
        """True if the event loop itself should wait for the next sync."""
        if self.ring is not None:
            return False
        return self.mode == "inline" or (self.mode == "auto" and self._average_s < _INLINE_S_MAX)

    def note(self, took_s: float) -> None:
        """Record how long the last sync took, wherever it ran."""
        self._average_s += (took_s - self._average_s) * _AVERAGE_SHARE

    def sync(
        self, file: PosixLogFile, work: Callable[[], None], on_synced: OnSynced, *, large: bool
    ) -> None:
        """Run `work`, which waits for the disk, uses `file` and may raise OSError.

        In mode `auto` the loop does not wait for a `large` one.
        """
        if self.mode == "never":
            on_synced(None)
        elif self.inline and (not large or self.mode == "inline"):
            with self.blocked:
                error = self._timed(work)
            on_synced(error)
        else:
            self._in_thread(file, work, on_synced)

    def close(self) -> None:
        if self.ring is not None:
            self.ring.close()
        if self._thread is not None:
            self._waiting.put(None)
            self._thread.join()

    def _timed(self, work: Callable[[], None]) -> OSError | None:
        began_s = time.perf_counter()
        try:
            work()
        except OSError as error:
            return error
        self.note(time.perf_counter() - began_s)
        return None

    def _in_thread(self, file: PosixLogFile, work: Callable[[], None], on_synced: OnSynced) -> None:
        loop = asyncio.get_running_loop()

        def run() -> None:
            call: Callable[..., None] = on_synced
            error: Exception | None
            try:
                error = self._timed(work)
            except Exception as surprise:  # noqa: BLE001  the thread serves the other files
                call, error = self._guard.end, surprise
            finally:
                file.release()
            try:
                loop.call_soon_threadsafe(call, error)
            except RuntimeError:  # the loop has ended, so no caller waits any more
                return

        file.hold()
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name="disk-sync", daemon=True)
            self._thread.start()
        self._waiting.put(run)

    def _work(self) -> None:
        while (job := self._waiting.get()) is not None:
            job()
