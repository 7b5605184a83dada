"""The port to one directory of files: append, read, sync. `posix_disk` is the real one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from ledger.ids import Buffer

OnSynced = Callable[[OSError | None], None]


class LogFile(Protocol):
    """One open file. Writes come from one owner; reads may run beside them."""

    def write(self, buffers: Sequence[Buffer], position: int) -> None:
        """All bytes are at `position` for any reader of this process; not durable yet.

        Of a file that is expected to grow (`Disk.create`) readers may see them after the next
        sync only. Raises OSError (ENOSPC and others); then what lies past `position` is
        undefined.
        """
        ...

    def sync(self, on_synced: OnSynced) -> None:
        """All that was written before is durable when `on_synced(None)` runs.

        It runs once, perhaps before this returns, always on the event loop's thread. An
        OSError means that the file's unsynced bytes are lost for good (never sync again).
        """
        ...

    def read_now(self, position: int, size: int) -> Buffer | None:
        """Up to `size` bytes (fewer at the end) if no wait is needed, else None."""
        ...

    async def read(self, position: int, size: int) -> Buffer:
        """Up to `size` bytes from `position`; fewer only at the end of the file."""
        ...

    def size(self) -> int:
        """Length in bytes, preallocated room not counted where the system can tell them apart."""
        ...

    def preallocate(self, position: int, size: int) -> None:
        """Room is reserved from `position` (best effort); reads of it give zeros."""
        ...

    def truncate(self, size: int) -> None: ...

    def close(self) -> None: ...


class Disk(Protocol):
    """One directory, held by this process alone until `close`."""

    def names(self) -> list[str]: ...

    def create(self, name: str, expected_bytes: int = 0) -> LogFile:
        """A new file; its name is durable only after `sync_directory`.

        Empty, or (a hint: it and its successors will grow to `expected_bytes`) full of zeros.
        """
        ...

    def open(self, name: str) -> LogFile: ...

    def unlink(self, name: str) -> None: ...

    def sync_directory(self) -> None:
        """Names created and unlinked before are durable. Raises OSError."""
        ...

    def free_bytes(self) -> int: ...

    def close(self) -> None: ...
