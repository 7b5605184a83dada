"""Provides the logger of `ledger.log`, and limits on what is logged and how often."""

from __future__ import annotations

import re
from collections.abc import Sequence
from traceback import format_exception
from typing import Final

from ledger.log import Throttle, logger

__all__ = ["REASONS_MAX", "ReasonThrottle", "Throttle", "logger", "named", "traceback_of"]

REASONS_MAX: Final = 8
"""An address has lines with at most this many reasons in a minute, for each kind of line."""

_NAMES_MAX: Final = 100
_TRACEBACK_MAX: Final = 16_384  # characters; the text of an error may quote a client

_NUMBER: Final = re.compile(r"\d+")


def named(names: Sequence[str]) -> str:
    """Return the names for one line of the log: all of them, or the first 100 and "..."."""
    more = ", ..." if len(names) > _NAMES_MAX else ""
    return ", ".join(names[:_NAMES_MAX]) + more


def traceback_of(error: BaseException) -> str:
    """Return the traceback for one line of the log: whole, or its beginning and its end."""
    text = "".join(format_exception(error))
    half = _TRACEBACK_MAX // 2
    return text if len(text) <= _TRACEBACK_MAX else f"{text[:half]} ... {text[-half:]}"


class ReasonThrottle:
    """A limit of one line per kind, address, reason and minute, and of `REASONS_MAX` reasons.

    Reasons that differ only in numbers count as one, because clients choose the numbers.
    """

    __slots__ = ("_minutes",)

    def __init__(self) -> None:
        # The start of the minute of each kind and address, and the reasons that were logged in it.
        # Emptied at Throttle.KEYS_MAX entries.
        self._minutes: dict[tuple[str, str], tuple[float, set[str]]] = {}

    def allows(self, kind: str, host: str, reason: str, now_s: float) -> bool:
        """Return True if a line may be logged now, and count it as logged."""
        minute = self._minutes.get((kind, host))
        if minute is None or not 0.0 <= now_s - minute[0] < Throttle.MINUTE_S:
            if len(self._minutes) >= Throttle.KEYS_MAX:
                self._minutes.clear()
            minute = self._minutes[kind, host] = (now_s, set())
        reasons = minute[1]
        shape = _NUMBER.sub("0", reason)
        if shape in reasons or len(reasons) >= REASONS_MAX:
            return False
        reasons.add(shape)
        return True
