"""The watch on free disk space: no adds below the headroom, no recovery adds below the reserve.

While free space is above the headroom, every add is accepted. Below the headroom the bookie is
read-only except for recovery adds. Below the reserve, recovery adds are refused too. The reserve is
kept for the index and for records that a full bookie must still log: fences, explicit LACs, limbo
and deletions.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Final

from ledger.bookie.config import BookieConfig
from ledger.core.journal_format import parse_file_name
from ledger.ports.clock import Clock
from ledger.ports.disk import Disk

_REFRESH_BYTES: Final = 8 * 1024 * 1024  # bytes logged between two checks of the free space


class DiskSpaceMonitor:
    """A monitor of the free disk space. Checks while adds arrive, and on request.

    Source: BookKeeper LedgerDirsMonitor.
    """

    __slots__ = (
        "_below_reserve",
        "_clock",
        "_config",
        "_disk",
        "_logged_bytes",
        "_refreshed_s",
        "free_bytes",
        "full",
    )

    def __init__(self, disk: Disk, clock: Clock, config: BookieConfig) -> None:
        self._disk = disk
        self._clock = clock
        self._config = config
        # Bytes written to the log since the last check.
        self._logged_bytes = 0
        # Time of the last check, on the monotonic clock.
        self._refreshed_s = 0.0
        # True if free space was below the reserve at the last check; implies `full`.
        self._below_reserve = False
        # True if adds other than recovery adds are refused. Set when free space falls below the
        # headroom or a write finds no space. Reset by a check that finds at least `resume_bytes`.
        self.full = False
        # Free bytes at the last check.
        self.free_bytes = 0

    @property
    def needed_bytes(self) -> int:
        """The free space required: the headroom while writable, `resume_bytes` while full."""
        return self._config.resume_bytes if self.full else self._config.headroom_bytes

    def refresh(self) -> None:
        """Check the free space, and update `full` and the reserve's state. Raises OSError."""
        self._logged_bytes = 0
        self._refreshed_s = self._clock.monotonic_s()
        self.free_bytes = free = self._disk.free_bytes()
        self.full = free < self.needed_bytes
        self._below_reserve = free < self._config.reserve_bytes

    def try_refresh(self) -> None:
        """Check the free space. If statvfs fails, keep the last value.

        A failing disk is detected by the next write, which stops the bookie.
        """
        with suppress(OSError):
            self.refresh()

    def refuses(self, *, recovery: bool) -> bool:
        """True if adds, or recovery adds, are refused for lack of disk space."""
        if not self.full:
            return False
        elapsed_s = self._clock.monotonic_s() - self._refreshed_s
        if elapsed_s * 1000 >= self._config.headroom_check_ms:
            self.try_refresh()
        return self._below_reserve if recovery else self.full

    def on_logged(self, size: int) -> None:
        """Record that `size` bytes went into the log."""
        self._logged_bytes += size
        if self._logged_bytes >= _REFRESH_BYTES:
            self.try_refresh()

    def on_write_refused(self) -> None:
        """Record that a write found no space. The disk counts as full, whatever statvfs returns."""
        self.full = True


class LogFileCount:
    """The number of log files on the disk, listed again only after files came or went."""

    __slots__ = ("_count", "_disk", "_mark")

    def __init__(self, disk: Disk) -> None:
        self._disk = disk
        self._count = 0
        # The arguments of the last listing. None before the first one.
        self._mark: tuple[int, int] | None = None

    def at(self, newest: int, gone: int) -> int:
        """Return the number of log files. Raises OSError.

        `newest` is the number of the newest file, and `gone` counts the deleted ones. Among these
        are files that a full disk refused: a listing may have counted them.
        """
        if self._mark != (newest, gone):
            names = self._disk.names()
            self._count = sum(1 for name in names if parse_file_name(name) is not None)
            self._mark = newest, gone
        return self._count
