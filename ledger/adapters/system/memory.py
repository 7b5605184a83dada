"""How the C library treats freed memory, and how often Python looks for cycles."""

from __future__ import annotations

import asyncio
import ctypes
import gc
from typing import Final

from ledger.tasks import in_thread, start_restarting

_M_TRIM_THRESHOLD: Final = -1  # the number of this option in malloc.h
_M_MMAP_THRESHOLD: Final = -3
_KEPT_BYTES: Final = 16 * 1024 * 1024
_BLOCK_BYTES: Final = 8 * 1024 * 1024
RETURN_EVERY_S: Final = 10.0
_COLLECT_AFTER: Final = (5_000, 5, 100)
"""Thresholds of the collector. Reference counts free nearly everything, so it may run rarely. But
the loop stands still while it looks at all that is new: with 20,000 and 20, and 10,000 topics and
groups, for 80 ms at a time; with these for 7 ms in nine of ten cases, in the same time in total.
"""


def collect_rarely() -> None:
    """Let the collector of cycles skip all that lives now, and look at the rest in short pauses.

    Call it when everything that lives as long as the process is there.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(*_COLLECT_AFTER)


def keep_freed_memory() -> None:
    """Reuse blocks of up to 8 MiB instead of returning them to the system.

    At most 16 MiB stay idle at the top of the heap. By default glibc maps or trims memory for each
    message of 1 MiB, so the system fills 256 fresh pages every time. Those pages take three times
    the CPU of the message itself (docs/decisions, 0004). Other C libraries are left as they are.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_MMAP_THRESHOLD, _BLOCK_BYTES)
        mallopt(_M_TRIM_THRESHOLD, _KEPT_BYTES)


def start_returning_memory(every_s: float = RETURN_EVERY_S) -> asyncio.Task[None]:
    """Return the free blocks of the heap to the system every `every_s` seconds, in a thread.

    `keep_freed_memory` keeps them for the next messages. After a burst they may be more than all
    that is in use, and lie between blocks that are. Where the C library cannot do it, the task ends
    at once.
    """

    async def work() -> None:
        malloc_trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
        while malloc_trim is not None:
            await asyncio.sleep(every_s)
            await in_thread(malloc_trim, 0)

    return start_restarting("the return of memory", work)


_new_bytearray = ctypes.pythonapi.PyByteArray_FromStringAndSize
_new_bytearray.argtypes = (ctypes.c_char_p, ctypes.c_ssize_t)
_new_bytearray.restype = ctypes.py_object


def uninitialized(size: int) -> bytearray:
    """Return a buffer of `size` bytes whose content is arbitrary, to be overwritten completely.

    `bytearray(size)` writes zeros first, which takes as long as copying the message that follows,
    and uses memory for a message that may never arrive.
    """
    return _new_bytearray(None, size)
