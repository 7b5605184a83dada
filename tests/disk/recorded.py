r"""Rings of io_uring, with their submissions and completions shown to strace.

strace sees that a ring is entered, and not what is in it. So what the product gives to a ring
is written to /dev/null before the kernel gets it, and each result is, when the product takes it:

    submit NUMBER HANDLE OFFSET SIZE\n and the bytes     a write that is about to be submitted
    submit NUMBER HANDLE sync\n                          an fdatasync, likewise
    complete NUMBER RESULT\n                             the kernel's result of that operation

Runs in the environment of the product, so it imports nothing else of the tests.
"""

from __future__ import annotations

import ctypes
import os

from ledger.adapters.posix import uring
from ledger.adapters.posix.kernel_ring import KernelRing


class RecordedRing(KernelRing):
    """A ring, as the product uses it."""

    def __init__(self, entries: int) -> None:
        super().__init__(entries)
        self._shown = os.open("/dev/null", os.O_WRONLY)
        # A line for each operation that was prepared since the last submission.
        self._lines: list[bytes] = []

    def prepare_write(
        self, number: int, handle: int, memory: tuple[int, int], position: int, *, linked: bool
    ) -> None:
        content = ctypes.string_at(*memory)
        head = b"submit %d %d %d %d\n" % (number, handle, position, len(content))
        self._lines.append(head + content)
        super().prepare_write(number, handle, memory, position, linked=linked)

    def prepare_datasync(self, number: int, handle: int) -> None:
        self._lines.append(b"submit %d %d sync\n" % (number, handle))
        super().prepare_datasync(number, handle)

    def submit(self) -> int:
        for line in self._lines:
            os.write(self._shown, line)
        self._lines.clear()
        return super().submit()

    def results(self) -> list[tuple[int, int]]:
        found = super().results()
        for number, result in found:
            os.write(self._shown, b"complete %d %d\n" % (number, result))
        return found

    def close(self) -> None:
        super().close()
        os.close(self._shown)


def record() -> None:
    """Show what rings of this process do from now on."""
    uring.KernelRing = RecordedRing
