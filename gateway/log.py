"""The process's logger, as in `ledger.log`, and how often one kind of line may be said."""

from __future__ import annotations

from ledger.log import logger

__all__ = ["Throttle", "logger"]


class Throttle:
    """At most one line per kind, peer and minute, so that a hostile peer cannot fill a disk."""

    __slots__ = ("_said",)

    MINUTE_S = 60.0
    KEYS_MAX = 1024

    def __init__(self) -> None:
        self._said: dict[tuple[str, str], float] = {}

    def allows(self, kind: str, host: str, now_s: float) -> bool:
        """Whether this may be said now; remembers that it was."""
        said_s = self._said.get((kind, host))
        if said_s is not None and now_s - said_s < self.MINUTE_S:
            return False
        if len(self._said) >= self.KEYS_MAX:
            self._said.clear()
        self._said[kind, host] = now_s
        return True
