"""io_uring: writes and syncs that the kernel carries out while the event loop goes on.

A write of aligned memory with O_DIRECT and O_DSYNC, a `fdatasync`, or both in this order are one
system call. The kernel announces the completion by an eventfd, which the event loop watches. No
thread of this process takes part. Needs a kernel that permits io_uring, from Linux 5.9 on
(docs/decisions/0028-io-uring-for-the-journal.md).
"""

from __future__ import annotations

import asyncio
import errno
import os
from contextlib import suppress
from time import perf_counter
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from ledger.adapters.posix.kernel_ring import KernelRing, address_of, error_of
from ledger.adapters.posix.loop_timer import LoopTimer
from ledger.errors import UringUnavailable
from ledger.ports.disk import OnSynced
from ledger.tasks import do_each

if TYPE_CHECKING:
    import mmap

_ENTRIES: Final = 64  # far more than a disk has under way; each submission is at most two


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

    def complete(self, expected: int, result: int) -> bool:
        """Take the result of one operation: bytes, or a negative errno. True for the last one."""
        self.left -= 1
        if result != expected and self.error is None:
            cut = f"{result} of {expected} bytes were written"
            self.error = error_of(-result) if result < 0 else OSError(errno.EIO, cut)
        return self.left == 0


class Uring:
    """One ring of an event loop. Raises UringUnavailable if io_uring cannot be used here."""

    def __init__(self, blocked: LoopTimer) -> None:
        self._blocked = blocked
        # The eventfd becomes readable with each completion. Watched from the first submission on.
        self._event = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        try:
            self._ring = KernelRing(_ENTRIES)
        except OSError as error:
            os.close(self._event)
            raise UringUnavailable(f"the kernel refuses io_uring: {error.strerror}") from error
        try:
            self._ring.announce_by(self._event)
        except OSError as error:
            self._free()
            raise UringUnavailable(f"the kernel refuses eventfds: {error.strerror}") from error
        self._loop: asyncio.AbstractEventLoop | None = None
        # Operations under way by rising numbers, each with its submission and expected result.
        self._pending: dict[int, tuple[Submission, int]] = {}
        self._next = 0
        # Staging memories and where they begin, by identity. A disk has one.
        self._memories: dict[int, tuple[mmap.mmap, int]] = {}
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
        taken = 0
        try:
            if write is not None:
                self._prepare_write(submission, write, linked=synced is not None)
            if synced is not None:
                self._ring.prepare_datasync(self._number(submission, 0), synced)
            taken = self._ring.submit()
            if taken != submission.left:
                raise OSError(errno.EIO, f"the kernel took {taken} of {submission.left} operations")
        except OSError as error:
            self._on_refused(submission, error, taken)
        self._blocked.add(perf_counter() - began_s)

    def _on_refused(self, submission: Submission, error: OSError, taken: int) -> None:
        """Submit nothing any more. What the kernel took of a submission still uses its memory."""
        self._broken = error
        for number in range(self._next, self._next - submission.left + taken, -1):
            del self._pending[number]
        submission.left, submission.error = taken, error
        if not taken:
            submission.on_done(error)

    def close(self) -> None:
        """Wait until everything that the kernel took has ended, and free the ring."""
        while self._pending:
            with suppress(InterruptedError):
                self._ring.wait()
                self._reap()
        if self._loop is not None:
            self._loop.remove_reader(self._event)
        self._free()

    def _free(self) -> None:
        self._ring.close()
        os.close(self._event)

    def _watch(self) -> None:
        if self._loop is None:
            self._loop = asyncio.get_running_loop()
            self._loop.add_reader(self._event, self._on_event)

    def _prepare_write(self, submission: Submission, write: StagedWrite, *, linked: bool) -> None:
        size = len(write.memory)
        number = self._number(submission, size)
        memory = self._address_of(write.memory.obj), size
        self._ring.prepare_write(number, write.handle, memory, write.position, linked=linked)

    def _address_of(self, memory: Any) -> int:
        """Return where a staging memory begins."""
        found = self._memories.get(id(memory))
        if found is None:
            found = self._memories[id(memory)] = memory, address_of(memory)
        return found[1]

    def _number(self, submission: Submission, expected: int) -> int:
        """Return the number of an operation that is about to be prepared."""
        self._next += 1
        self._pending[self._next] = submission, expected
        submission.left += 1
        return self._next

    def _on_event(self) -> None:
        with suppress(BlockingIOError):
            os.eventfd_read(self._event)
        self._reap()

    def _reap(self) -> None:
        """Take all results, then call back: a callback may submit again."""
        ended = self._take_results()
        while self._ring.overflowed():  # the queue had no room for some
            try:
                self._ring.get_events()
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
        ended: list[Submission] = []
        for number, result in self._ring.results():
            found = self._pending.pop(number, None)
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
