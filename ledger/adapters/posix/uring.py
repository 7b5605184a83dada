"""io_uring: writes and syncs that the kernel carries out while the event loop goes on.

A write of aligned memory with O_DIRECT and O_DSYNC, a `fdatasync`, or both in this order are one
system call. The kernel announces the completion by an eventfd, which the event loop watches. No
thread of this process takes part. Needs the optional package `liburing` and a kernel that permits
io_uring (docs/decisions/0028-io-uring-for-the-journal.md).
"""

from __future__ import annotations

import asyncio
import errno
import os
from contextlib import suppress
from importlib import import_module
from time import perf_counter
from typing import Any, Final, NamedTuple

from ledger.adapters.posix.loop_timer import LoopTimer
from ledger.errors import UringUnavailable
from ledger.ports.disk import OnSynced
from ledger.tasks import do_each

_ENTRIES: Final = 64  # far more than a disk has under way; each submission is at most two
# The kernel runs completions at the next system call instead of interrupting this thread
_COOP_TASKRUN: Final = 1 << 8


class StagedWrite(NamedTuple):
    """A write from the start of a disk's staging memory, which lives as long as the disk.

    Nobody changes the memory before the write has ended.
    """

    handle: int
    memory: memoryview
    position: int


class Submission:
    """Operations that were submitted together. `on_done` receives their first error."""

    __slots__ = ("error", "keep", "left", "on_done")

    def __init__(self, on_done: OnSynced, keep: object) -> None:
        self.on_done = on_done
        # The memory of the write, which lives until the kernel has finished with it.
        self.keep = keep
        # Operations that have not completed.
        self.left = 0
        self.error: OSError | None = None

    def complete(self, expected: int, result: int | OSError) -> bool:
        """Take the result of one operation. Returns True if it was the last one."""
        self.left -= 1
        if not isinstance(result, OSError) and result != expected:
            result = OSError(errno.EIO, f"{result} of {expected} bytes were written")
        if isinstance(result, OSError) and self.error is None:
            self.error = result
        return self.left == 0


class Uring:
    """One ring of an event loop. Raises UringUnavailable if io_uring cannot be used here."""

    def __init__(self, blocked: LoopTimer) -> None:
        self._lib = lib = _library()
        self._blocked = blocked
        self._ring = lib.Ring()
        self._entry = lib.Cqe()
        try:
            _init(lib, self._ring)
        except OSError as error:
            raise UringUnavailable(f"the kernel refuses io_uring: {error.strerror}") from error
        # The eventfd becomes readable with each completion. Watched from the first submission on.
        self._event = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        lib.io_uring_register_eventfd(self._ring, self._event)
        self._loop: asyncio.AbstractEventLoop | None = None
        # Operations under way by rising numbers, each with its submission and expected result.
        self._pending: dict[int, tuple[Submission, int]] = {}
        self._next = 0
        # Vectors by staging memory and length: at most one for each block of the memory.
        self._vectors: dict[tuple[int, int], Any] = {}
        # The error of a submission that the kernel refused. Its operations are still in the queue,
        # so nothing is submitted afterwards.
        self._broken: OSError | None = None

    def submit(self, write: StagedWrite | None, synced: int | None, on_done: OnSynced) -> None:
        """Write, then sync the file with the handle `synced`; then call `on_done`, with any error.

        `on_done` runs on the event loop, and before this call returns only if the kernel refuses
        the submission. A write that was cut short is an error, and no sync follows it.
        """
        if self._broken is not None:
            on_done(self._broken)
            return
        self._watch()
        submission = Submission(on_done, write)
        began_s = perf_counter()
        try:
            if write is not None:
                self._prepare_write(submission, write, linked=synced is not None)
            if synced is not None:
                sqe = self._operation(submission, 0)
                self._lib.io_uring_prep_fsync(sqe, synced, self._lib.IORING_FSYNC_DATASYNC)
                sqe.user_data = self._next
            taken = self._lib.io_uring_submit(self._ring)
            if taken != submission.left:
                raise OSError(errno.EIO, f"the kernel took {taken} of {submission.left} operations")
        except OSError as error:
            self._broken = error
            on_done(error)
        self._blocked.add(perf_counter() - began_s)

    def close(self) -> None:
        """Wait until everything submitted has ended, and free the ring."""
        while self._pending and self._broken is None:
            with suppress(InterruptedError):
                self._lib.io_uring_wait_cqe(self._ring, self._entry)
                self._reap()
        if self._loop is not None:
            self._loop.remove_reader(self._event)
        self._lib.io_uring_queue_exit(self._ring)
        os.close(self._event)

    def _watch(self) -> None:
        if self._loop is None:
            self._loop = asyncio.get_running_loop()
            self._loop.add_reader(self._event, self._on_event)

    def _prepare_write(self, submission: Submission, write: StagedWrite, *, linked: bool) -> None:
        lib, size = self._lib, len(write.memory)
        sqe = self._operation(submission, size)
        lib.io_uring_prep_writev(sqe, write.handle, self._vector_of(write.memory), write.position)
        sqe.user_data = self._next
        if linked:
            sqe.flags = lib.IOSQE_IO_LINK

    def _vector_of(self, memory: memoryview) -> Any:
        """Return the vector of a stretch of staging memory.

        The library never gives the memory of a vector back. So there is one for each length.
        """
        key = id(memory.obj), len(memory)
        vector = self._vectors.get(key)
        if vector is None:
            vector = self._vectors[key] = self._lib.Iovec([memory])
        return vector

    def _operation(self, submission: Submission, expected: int) -> Any:
        """Return a free entry of the queue for an operation with the number `_next`."""
        sqe = self._lib.io_uring_get_sqe(self._ring)
        if sqe is None:
            raise OSError(errno.EBUSY, "the queue of io_uring is full")
        self._next += 1
        self._pending[self._next] = submission, expected
        submission.left += 1
        return sqe

    def _on_event(self) -> None:
        with suppress(BlockingIOError):
            os.eventfd_read(self._event)
        self._reap()

    def _reap(self) -> None:
        """Take all results, then call back: a callback may submit again."""
        ended = self._take_results()
        while self._lib.io_uring_cq_has_overflow(self._ring):  # the ring had no room for some
            try:
                self._lib.io_uring_get_events(self._ring)
            except InterruptedError:
                continue
            except OSError as error:  # results may be lost: end their waits
                ended += self._fail_pending(error)
                break
            ended += self._take_results()
        do_each("the end of a write", lambda each: each.on_done(each.error), ended)

    def _fail_pending(self, error: OSError) -> list[Submission]:
        """Submit nothing any more. Returns what was submitted, all of which has failed."""
        self._broken = error
        failed = list(dict.fromkeys(submission for submission, _ in self._pending.values()))
        self._pending.clear()
        for submission in failed:
            submission.error = submission.error or error
        return failed

    def _take_results(self) -> list[Submission]:
        """Take the results that are in the ring. Returns what ended with them."""
        lib, ring = self._lib, self._ring
        ended: list[Submission] = []
        for _ in range(lib.io_uring_cq_ready(ring)):
            lib.io_uring_peek_cqe(ring, self._entry)
            entry = self._entry[0]
            found = self._pending.pop(entry.user_data, None)
            result = _result_of(entry)
            lib.io_uring_cq_advance(ring, 1)
            if found is not None and found[0].complete(found[1], result):
                ended.append(found[0])
        return ended


def why_unavailable() -> str | None:
    """Return why io_uring cannot be used here, or None if it can."""
    try:
        Uring(LoopTimer()).close()
    except UringUnavailable as reason:
        return str(reason)
    return None


def _library() -> Any:
    try:
        return import_module("liburing")
    except (ImportError, OSError) as error:
        raise UringUnavailable("the package liburing is not installed") from error


def _init(lib: Any, ring: Any) -> None:
    try:
        lib.io_uring_queue_init(_ENTRIES, ring, _COOP_TASKRUN)
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
        lib.io_uring_queue_init(_ENTRIES, ring, 0)  # a kernel before 5.19


def _result_of(entry: Any) -> int | OSError:
    """Return the result of an operation. The library raises what the kernel reports as an error."""
    try:
        return entry.res
    except OSError as error:
        return error
