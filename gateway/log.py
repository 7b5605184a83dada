"""Provides the logger of `ledger.log`, and a limit on how often one kind of line is logged."""

from __future__ import annotations

from ledger.log import logger

__all__ = ["Throttle", "logger"]


class Throttle:
    """A limit of one line per kind, subject and minute, so that no client can fill the disk."""

    __slots__ = ("_logged_s",)

    MINUTE_S = 60.0
    KEYS_MAX = 1024

    def __init__(self) -> None:
        # The time of the last line of each kind and subject. Emptied at KEYS_MAX entries.
        self._logged_s: dict[tuple[str, str], float] = {}

    def allows(self, kind: str, subject: str, now_s: float) -> bool:
        """Return True if a line may be logged now, and count it as logged.

        `subject` is a partition, or the host of a client.
        """
        logged_s = self._logged_s.get((kind, subject))
        if logged_s is not None and now_s - logged_s < self.MINUTE_S:
            return False
        if len(self._logged_s) >= self.KEYS_MAX:
            self._logged_s.clear()
        self._logged_s[kind, subject] = now_s
        return True
