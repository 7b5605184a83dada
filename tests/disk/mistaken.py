"""The gateway with one mistake planted: `python -m tests.disk.mistaken MISTAKE dev ...`.

What it gives to io_uring is in its trace. Without a mistake its first word is `none`.

Runs in the environment of the gateway, so it imports nothing else of the tests.
"""

from __future__ import annotations

import asyncio
import inspect
import os
import sys
from collections.abc import Callable
from typing import Final

from ledger.adapters.posix import direct_write
from ledger.adapters.posix.posix_disk import PosixDisk, PosixLogFile
from ledger.adapters.posix.uring import Uring
from ledger.ports.disk import OnSynced
from tests.disk.recorded import record

_LATE_S: Final = 5.0  # longer than the large record of the load takes

_sync = PosixLogFile.sync
_submit = Uring.submit
_sync_directory = PosixDisk.sync_directory


def _ignore(_: OSError | None) -> None:
    return


def none() -> None:
    """The gateway as it is."""


def without_fdatasync() -> None:
    """Files are never synced."""
    os.fdatasync = lambda _handle: None

    def submit(self: Uring, write: object, synced: int | None, on_done: OnSynced) -> None:
        if write is None:
            on_done(None)
        else:
            _submit(self, write, None, on_done)

    Uring.submit = submit


def without_dsync() -> None:
    """Direct writes return before the disk has flushed its cache."""
    direct_write.DIRECT_FLAGS = os.O_DIRECT


def without_directory_sync() -> None:
    """The names of new files are never synced."""
    PosixDisk.sync_directory = lambda self: None


def without_directory_sync_at_a_roll() -> None:
    """The name of a new log file is not synced."""

    def sync_directory(self: PosixDisk) -> None:
        if not inspect.stack(0)[1].filename.endswith("journal.py"):
            _sync_directory(self)

    PosixDisk.sync_directory = sync_directory


def early_acknowledgement() -> None:
    """A group is acknowledged before its sync begins."""

    def sync(self: PosixLogFile, on_synced: OnSynced) -> None:
        on_synced(None)
        asyncio.get_running_loop().call_later(_LATE_S, _sync, self, _ignore)

    PosixLogFile.sync = sync


def acknowledged_at_submission() -> None:
    """A group is acknowledged once the kernel has taken it."""

    def submit(self: Uring, write: object, synced: int | None, on_done: OnSynced) -> None:
        _submit(self, write, synced, _ignore)
        asyncio.get_running_loop().call_soon(on_done, None)

    Uring.submit = submit


MISTAKES: Final[tuple[Callable[[], None], ...]] = (
    without_fdatasync,
    without_dsync,
    without_directory_sync,
    without_directory_sync_at_a_roll,
    early_acknowledgement,
)

URING_MISTAKES: Final = (*MISTAKES, acknowledged_at_submission)

if __name__ == "__main__":
    from gateway.__main__ import main

    record()
    {mistake.__name__: mistake for mistake in (none, *URING_MISTAKES)}[sys.argv.pop(1)]()
    sys.exit(main())
