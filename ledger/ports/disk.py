"""The port to one directory of files: append, read, sync. `PosixDisk` implements it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, Literal, Protocol

from ledger.ids import Buffer

OnSynced = Callable[[OSError | None], None]

IoMode = Literal["auto", "uring", "off"]
"""How the journal is written: `uring` by io_uring, `off` by calls that wait for the disk, `auto`
by io_uring where it works.
"""

BLOCKED_S: Final = (
    *(5e-6, 1e-5, 2e-5, 5e-5, 1e-4, 2e-4, 5e-4, 1e-3, 2e-3, 5e-3, 1e-2, 2e-2, 5e-2, 1e-1, 1.0),
)
"""Upper bounds of the classes of calls that blocked the event loop, in seconds."""


class LogFile(Protocol):
    """One open file with one writer. Reads may run during writes."""

    def write(self, buffers: Sequence[Buffer], position: int) -> None:
        """Write all buffers at `position`. Readers of this process see the bytes, which are not
        durable yet.

        In a file that is expected to grow (`Disk.create`), readers may see the bytes only after the
        next sync. Raises OSError (ENOSPC and others); the content after `position` is then
        undefined.
        """
        ...

    def sync(self, on_synced: OnSynced) -> None:
        """Make everything written before this call durable, then run `on_synced(None)`.

        `on_synced` runs once, possibly before this call returns, and always on the event loop's
        thread. It receives an OSError if the unsynced bytes of the file are lost for good. The file
        must then never be synced again.
        """
        ...

    def read_now(self, position: int, size: int) -> Buffer | None:
        """Return up to `size` bytes (fewer at the end), or None if the read would have to wait."""
        ...

    async def read(self, position: int, size: int) -> Buffer:
        """Return up to `size` bytes from `position`; fewer only at the end of the file."""
        ...

    def expect_reads(self, position: int, size: int) -> None:
        """Announce that these bytes will be read soon. Never waits, and may have no effect."""
        ...

    def size(self) -> int:
        """Return the length in bytes, without preallocated space where the system can tell."""
        ...

    def preallocate(self, position: int, size: int) -> None:
        """Reserve space from `position`, as far as possible. Reads of reserved space
        return zeros.
        """
        ...

    def truncate(self, size: int) -> None: ...

    def close(self) -> None: ...


class Disk(Protocol):
    """One directory, locked by this process until `close`."""

    def names(self) -> list[str]: ...

    def create(self, name: str, expected_bytes: int = 0) -> LogFile:
        """Create a file. Its name is durable only after `sync_directory`.

        `expected_bytes` is a hint that this file and its successors will grow to that size. With
        the hint the new file may be full of zeros; otherwise the file is empty.
        """
        ...

    def open(self, name: str) -> LogFile: ...

    def unlink(self, name: str) -> None: ...

    def sync_directory(self) -> None:
        """Make the names that were created and unlinked durable. Raises OSError."""
        ...

    def free_bytes(self) -> int: ...

    def close(self) -> None: ...
