"""Whether the disk still has room: for everybody's adds, and for what must never be refused.

Above the headroom all is taken. Below it adds are refused and the bookie is read-only; recovery
goes on. Below the reserve recovery is refused too: what is left belongs to fences, explicit LACs,
limbo and deletions, which a full bookie must still make durable, and to the index.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Final

from ledger.bookie.config import BookieConfig
from ledger.ports.clock import Clock
from ledger.ports.disk import Disk

_REFRESH_BYTES: Final = 8 * 1024 * 1024  # logged between two looks at the free space


class DiskSpaceMonitor:
    """The free space as last seen. Looked at again while adds come, and when asked to."""

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
        self._logged_bytes = 0
        self._refreshed_s = 0.0
        self._below_reserve = False
        self.full = False  # no add but a recovery's
        self.free_bytes = 0  # at the last look

    @property
    def needed_bytes(self) -> int:
        """Free space with less of which adds are refused; once they are, what ends that."""
        return self._config.resume_bytes if self.full else self._config.headroom_bytes

    def refresh(self) -> None:
        """Read-only below the headroom, writable again only with clearly more than it.

        Raises OSError.
        """
        self._logged_bytes = 0
        self._refreshed_s = self._clock.monotonic_s()
        self.free_bytes = free = self._disk.free_bytes()
        self.full = free < self.needed_bytes
        self._below_reserve = free < self._config.reserve_bytes

    def try_refresh(self) -> None:
        """As `refresh`. A disk that does not say what is free is as it was: if it is ill, the next
        write finds out, and ends the bookie."""
        with suppress(OSError):
            self.refresh()

    def refuses(self, *, recovery: bool) -> bool:
        """No room for this add."""
        if not self.full:
            return False
        elapsed_s = self._clock.monotonic_s() - self._refreshed_s
        if elapsed_s * 1000 >= self._config.headroom_check_ms:
            self.try_refresh()
        return self._below_reserve if recovery else self.full

    def on_logged(self, size: int) -> None:
        """So many bytes went into the log."""
        self._logged_bytes += size
        if self._logged_bytes >= _REFRESH_BYTES:
            self.try_refresh()

    def on_write_refused(self) -> None:
        """The disk had no room for a group: whatever the free space says, it is full."""
        self.full = True
