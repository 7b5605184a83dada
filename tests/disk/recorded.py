r"""The library of io_uring, with its submissions and completions shown to strace.

strace sees that a ring is entered, and not what is in it. So what the product gives to the library
is written to /dev/null before the kernel gets it, and each result is, when the product takes it:

    submit NUMBER HANDLE OFFSET SIZE\n and the bytes     a write that is about to be submitted
    submit NUMBER HANDLE sync\n                          an fdatasync, likewise
    complete NUMBER RESULT\n                             the kernel's result of that operation

Runs in the environment of the product, so it imports nothing else of the tests.
"""

from __future__ import annotations

import importlib
import os
from typing import Any

from ledger.adapters.posix import uring


class _Entry:
    """One completion. Its result is shown before the product sees it."""

    def __init__(self, entry: Any, shown: int) -> None:
        self._entry = entry
        self._shown = shown

    @property
    def user_data(self) -> int:
        return self._entry.user_data

    @property
    def res(self) -> int:
        number = self._entry.user_data
        try:
            result = self._entry.res
        except OSError as error:
            os.write(self._shown, b"complete %d %d\n" % (number, -(error.errno or 1)))
            raise
        os.write(self._shown, b"complete %d %d\n" % (number, result))
        return result


class _Entries:
    def __init__(self, real: Any, shown: int) -> None:
        self.real = real
        self._shown = shown

    def __getitem__(self, index: int) -> _Entry:
        return _Entry(self.real[index], self._shown)


class Recorded:
    """The library, as the product uses it."""

    def __init__(self, real: Any) -> None:
        self._real = real
        self._shown = os.open("/dev/null", os.O_WRONLY)
        # What was prepared since the last submission: its entry, and its line.
        self._prepared: list[tuple[Any, bytes, bytes]] = []
        # The buffers of each vector, which the library keeps to itself.
        self._buffers: dict[int, list[Any]] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)

    def Cqe(self) -> _Entries:
        return _Entries(self._real.Cqe(), self._shown)

    def Iovec(self, buffers: list[Any]) -> Any:
        vector = self._real.Iovec(buffers)
        self._buffers[id(vector)] = buffers
        return vector

    def io_uring_peek_cqe(self, ring: Any, entries: _Entries) -> Any:
        return self._real.io_uring_peek_cqe(ring, entries.real)

    def io_uring_wait_cqe(self, ring: Any, entries: _Entries) -> Any:
        return self._real.io_uring_wait_cqe(ring, entries.real)

    def io_uring_prep_writev(self, sqe: Any, handle: int, vector: Any, offset: int) -> None:
        self._real.io_uring_prep_writev(sqe, handle, vector, offset)
        (buffer,) = self._buffers[id(vector)]
        head = b"%d %d %d\n" % (handle, offset, len(buffer))
        self._prepared.append((sqe, head, bytes(buffer)))

    def io_uring_prep_fsync(self, sqe: Any, handle: int, flags: int) -> None:
        self._real.io_uring_prep_fsync(sqe, handle, flags)
        self._prepared.append((sqe, b"%d sync\n" % handle, b""))

    def io_uring_submit(self, ring: Any) -> int:
        for sqe, head, content in self._prepared:
            os.write(self._shown, b"submit %d %b%b" % (sqe.user_data, head, content))
        self._prepared.clear()
        return self._real.io_uring_submit(ring)


def record() -> None:
    """Show what rings of this process do from now on."""
    library = Recorded(importlib.import_module("liburing"))
    uring._library = lambda: library
