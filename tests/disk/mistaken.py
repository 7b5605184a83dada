"""The gateway with one mistake planted: `python -m tests.disk.mistaken MISTAKE dev ...`.

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
from ledger.ports.disk import OnSynced

_LATE_S: Final = 5.0  # longer than the large record of the load takes

_sync = PosixLogFile.sync
_sync_directory = PosixDisk.sync_directory


def _ignore(_: OSError | None) -> None:
    return


def without_fdatasync() -> None:
    """Files are never synced."""
    os.fdatasync = lambda _handle: None


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


MISTAKES: Final[tuple[Callable[[], None], ...]] = (
    without_fdatasync,
    without_dsync,
    without_directory_sync,
    without_directory_sync_at_a_roll,
    early_acknowledgement,
)

if __name__ == "__main__":
    from gateway.__main__ import main

    {mistake.__name__: mistake for mistake in MISTAKES}[sys.argv.pop(1)]()
    sys.exit(main())
