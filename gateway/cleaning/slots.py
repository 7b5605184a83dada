"""Memory that a gateway shares with its cleaner process. Batches need a pipe only if they are long.

A request lies in a slot, and its reply replaces it there. Requests take the slots in turn: one for
the request that the process works on, one for a request that waits, and one for the reply before.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from mmap import mmap
from tempfile import TemporaryFile

from ledger.ids import Buffer

SLOT_BYTES = 2 * 1024 * 1024
"""Room for a piece of 1 MiB whose reply is larger. A longer payload goes through the pipes."""
SLOTS = 3
_PARTS_MAX = 256
"""The number of parts above which joining them first is faster than copying each in Python."""
NO_SLOT = 255
"""The slot number of a frame whose payload follows in the pipe."""


class Slots:
    """The slots as one process sees them."""

    def __init__(self, file: int) -> None:
        """Map the file. The descriptor may be closed afterwards."""
        self._memory = memoryview(mmap(file, SLOTS * SLOT_BYTES))

    def put(self, slot: int, parts: Sequence[Buffer]) -> int:
        """Copy `parts` into a slot, one behind the other. Return NO_SLOT if they are too long."""
        if sum(map(len, parts)) > SLOT_BYTES:
            return NO_SLOT
        if len(parts) > _PARTS_MAX:
            parts = [b"".join(parts)]
        at = slot * SLOT_BYTES
        for part in parts:
            end = at + len(part)
            self._memory[at:end] = part
            at = end
        return slot

    def get(self, slot: int, size: int) -> memoryview:
        """Return the payload of a frame, which the next payload in this slot replaces."""
        assert slot < SLOTS and size <= SLOT_BYTES
        return self._memory[slot * SLOT_BYTES :][:size]


def shared_file() -> int:
    """Return the descriptor of a new file for `Slots`. It has no name. Raises OSError."""
    size = SLOTS * SLOT_BYTES
    if sys.platform == "linux" and hasattr(os, "memfd_create"):  # not with an old C library
        file = os.memfd_create("cleaner")
    else:
        with TemporaryFile() as unnamed:
            file = os.dup(unnamed.fileno())
    try:
        os.ftruncate(file, size)
        if sys.platform == "linux":
            os.posix_fallocate(file, 0, size)  # a page that is missing later would end the process
    except OSError:
        os.close(file)
        raise
    return file
