"""The queues of io_uring, which this process and the kernel share, by three system calls.

The layout is that of `linux/io_uring.h`. Needs Linux 5.9. No package is needed, and nothing is
compiled: a library whose build needed a newer processor than that of the machine ended the process
(docs/decisions/0028-io-uring-for-the-journal.md).

One thread uses a ring. The kernel reads the submission queue only within a call of that thread. It
may add completions at any time, also on another processor: `results` gives a lock back and takes it
again between its read of the queue's tail, those of completions, and the change of the head. No
read passes both.
"""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import struct
import sys
from threading import Lock
from typing import Any, Final

_SETUP, _ENTER, _REGISTER = 425, 426, 427  # on each architecture but Alpha and MIPS
_REGISTER_EVENTFD: Final = 4
_GET_EVENTS: Final = 1
_SQES_AT: Final = 0x10000000
_OVERFLOWED: Final = 1 << 1  # of the submission queue's flags
_COOP_TASKRUN: Final = 1 << 8
"""Completions run at the next system call in place of interrupting the thread; from 5.19 on."""

_NEEDED: Final = 1 << 0 | 1 << 1 | 1 << 6
"""Features: both queues in one mapping, no lost completions, and one of Linux 5.9: from 5.8 on
a flag of the queue says that the kernel keeps completions.
"""

_FSYNC, _WRITE = 3, 23
_LINKED: Final = 1 << 2
_DATASYNC: Final = 1
# Code, flags, priority, handle, position, address, length, flags of the operation, its number.
_OPERATION: Final = struct.Struct("=BBHiQQIIQ24x")
_COMPLETION: Final = struct.Struct("=QiI")

_Word = ctypes.c_long


def _function(library: Any) -> Any:
    call = library.syscall
    call.argtypes = (_Word,) * 7
    call.restype = _Word
    return call


# Keeps the interpreter: a submission is over sooner than another thread would give it back.
_call: Final = _function(ctypes.PyDLL(None, use_errno=True))
# Lets other threads run.
_wait_call: Final = _function(ctypes.CDLL(None, use_errno=True))


class _Offsets(ctypes.Structure):
    """The offsets of a queue's fields, with the names of the submission queue."""

    _fields_ = (
        *((name, ctypes.c_uint32) for name in ("head", "tail", "mask", "entries")),
        *((name, ctypes.c_uint32) for name in ("fifth", "sixth", "seventh", "reserved")),
        ("address", ctypes.c_uint64),
    )


class _Parameters(ctypes.Structure):
    _fields_ = (
        *((name, ctypes.c_uint32) for name in ("sq_entries", "cq_entries", "flags")),
        *((name, ctypes.c_uint32) for name in ("cpu", "idle", "features", "shared_with")),
        ("reserved", ctypes.c_uint32 * 3),
        ("sq", _Offsets),  # fifth: flags, seventh: array
        ("cq", _Offsets),  # sixth: completions
    )


class KernelRing:
    """The submission and the completion queue of one io_uring.

    Each call raises OSError if the kernel refuses it, and the preparation of an operation if the
    queue is full.
    """

    def __init__(self, entries: int) -> None:
        self._handle, found = _set_up(entries)
        try:
            self._map(found)
        except OSError:
            os.close(self._handle)
            raise
        sq, cq = found.sq, found.cq
        self._entries: int = found.sq_entries
        # Places of words.
        self._sq_head: int = sq.head // 4
        self._sq_tail: int = sq.tail // 4
        self._sq_flags: int = sq.fifth // 4
        self._cq_head: int = cq.head // 4
        self._cq_tail: int = cq.tail // 4
        self._completions: int = cq.sixth
        self._sq_mask: int = self._words[sq.mask // 4]
        self._cq_mask: int = self._words[cq.mask // 4]
        # Each place of the queue has its own operation, for good.
        for place in range(self._entries):
            self._words[sq.seventh // 4 + place] = place
        # The number of the next operation, modulo 2 ** 32. `submit` shows it to the kernel.
        self._tail: int = self._words[self._sq_tail]
        self._prepared = 0
        # Held, but between two reads that may not change their order.
        self._barrier = Lock()
        self._barrier.acquire()

    def _map(self, found: Any) -> None:
        size = max(
            found.sq.seventh + found.sq_entries * 4,
            found.cq.sixth + found.cq_entries * _COMPLETION.size,
        )
        self._queues = mmap.mmap(self._handle, size, offset=0)
        try:
            operations = found.sq_entries * 64
            self._operations = mmap.mmap(self._handle, operations, offset=_SQES_AT)
        except OSError:
            self._queues.close()
            raise
        # A word is read and written at once, as the kernel does.
        self._words: memoryview[int] = memoryview(self._queues)[: size // 4 * 4].cast("I")

    def announce_by(self, event: int) -> None:
        """Let the kernel write to this eventfd with each completion."""
        number = ctypes.c_int(event)
        _checked(_REGISTER, self._handle, _REGISTER_EVENTFD, ctypes.addressof(number), 1)

    def prepare_write(
        self, number: int, handle: int, memory: tuple[int, int], position: int, *, linked: bool
    ) -> None:
        """Prepare a write of memory, an address and a length.

        The memory may not change until its completion. If `linked`, the operation that is prepared
        next begins after this one has written all of it, and is cancelled otherwise.
        """
        flags = _LINKED if linked else 0
        self._prepare(_WRITE, flags, 0, handle, position, *memory, 0, number)

    def prepare_datasync(self, number: int, handle: int) -> None:
        """Prepare an fdatasync."""
        self._prepare(_FSYNC, 0, 0, handle, 0, 0, 0, _DATASYNC, number)

    def _prepare(self, *fields: int) -> None:
        used = (self._tail - self._words[self._sq_head]) & 0xFFFFFFFF
        if used >= self._entries:
            raise OSError(errno.EBUSY, "the queue of io_uring is full")
        at = (self._tail & self._sq_mask) * 64
        _OPERATION.pack_into(self._operations, at, *fields)
        self._tail = (self._tail + 1) & 0xFFFFFFFF
        self._prepared += 1

    def submit(self) -> int:
        """Give what is prepared to the kernel. Returns how many operations it took."""
        prepared, self._prepared = self._prepared, 0
        self._words[self._sq_tail] = self._tail
        # Otherwise the kernel may refuse more operations while it keeps completions.
        flags = _GET_EVENTS if self.overflowed() else 0
        return _checked(_ENTER, self._handle, prepared, 0, flags)

    def results(self) -> list[tuple[int, int]]:
        """Take the number and the result of each completion, a negative errno for a failure."""
        found: list[tuple[int, int]] = []
        head, tail = self._words[self._cq_head], self._words[self._cq_tail]
        self._order()
        while head != tail:
            at = self._completions + (head & self._cq_mask) * _COMPLETION.size
            number, result, _ = _COMPLETION.unpack_from(self._queues, at)
            head = (head + 1) & 0xFFFFFFFF
            found.append((number, result))
        self._order()  # the kernel may use the places again
        self._words[self._cq_head] = head
        return found

    def _order(self) -> None:
        """Let no read or write pass this call in either direction."""
        self._barrier.release()
        self._barrier.acquire()

    def overflowed(self) -> bool:
        """Return whether the kernel keeps completions for which the queue had no room."""
        return bool(self._words[self._sq_flags] & _OVERFLOWED)

    def get_events(self) -> None:
        """Let the kernel add completions that it keeps. Raises InterruptedError too."""
        _checked(_ENTER, self._handle, 0, 0, _GET_EVENTS)

    def wait(self) -> None:
        """Wait until there is a completion. Raises InterruptedError too."""
        if self._words[self._cq_head] != self._words[self._cq_tail]:
            return
        _checked(_ENTER, self._handle, 0, 1, _GET_EVENTS, call=_wait_call)

    def close(self) -> None:
        """Free the queues. The kernel has completed all that was submitted."""
        self._words.release()
        self._queues.close()
        self._operations.close()
        os.close(self._handle)


def address_of(memory: mmap.mmap) -> int:
    """Return where memory begins. It stays there until it is closed."""
    return ctypes.addressof(ctypes.c_char.from_buffer(memory))


def _set_up(entries: int) -> tuple[int, Any]:
    """Create a ring, and return its handle and layout."""
    if sys.platform != "linux":
        raise OSError(errno.ENOSYS, "it is part of Linux")
    found: Any = _Parameters(flags=_COOP_TASKRUN)
    try:
        handle = _checked(_SETUP, entries, ctypes.addressof(found))
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
        found = _Parameters()  # a kernel before 5.19
        handle = _checked(_SETUP, entries, ctypes.addressof(found))
    if found.features & _NEEDED != _NEEDED:
        os.close(handle)
        raise OSError(errno.ENOSYS, "Linux 5.9 is needed")
    return handle, found


def error_of(number: int) -> OSError:
    """Return the error with this errno, and with the system's text."""
    return OSError(number, os.strerror(number))


def _checked(*words: int, call: Any = _call) -> int:
    """Make a system call. Raises OSError if it fails."""
    result: int = call(*words, *(0,) * (7 - len(words)))
    if result < 0:
        raise error_of(ctypes.get_errno())
    return result
