"""Logs on stderr in logfmt, one line per event. The first line imports structlog, not start-up."""

from __future__ import annotations

import sys
from contextlib import suppress
from functools import cache
from typing import Any, TextIO, cast

from ledger.escapes import escape_line


class _Stderr:
    """`sys.stderr` at the time of each line. If it is full or closed, the line is dropped."""

    def write(self, text: str) -> int:
        with suppress(OSError):
            sys.stderr.write(text)
        return len(text)

    def flush(self) -> None:
        with suppress(OSError):
            sys.stderr.flush()


LEVELS = ("OFF", "FATAL", "ERROR", "WARN", "INFO", "DEBUG", "TRACE", "ALL")
_NUMBERS = {"critical": 1, "error": 2, "warning": 3, "info": 4, "debug": 5}
_level = "INFO"


def level() -> str:
    """Return the level of the process, one of `LEVELS`."""
    return _level


def set_level(name: str) -> None:
    """Log only lines of this level and above from now on, in the whole process."""
    global _level
    assert name in LEVELS
    _level = name


def _drop_below(_: Any, method: str, event: Any) -> Any:
    import structlog

    if _NUMBERS.get(method, 0) > LEVELS.index(_level):
        raise structlog.DropEvent
    return event


def _escape(_: Any, __: str, line: Any) -> str:
    """Escape what LogfmtRenderer leaves raw: every control character except LF."""
    return escape_line(line)


@cache
def logger() -> Any:
    """Return the logger of the process: `logger().warning("what happened", key=value)`.

    The first call imports structlog, which takes about 100 ms.
    """
    import structlog

    return structlog.wrap_logger(
        structlog.WriteLogger(file=cast("TextIO", _Stderr())),
        processors=[
            _drop_below,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            structlog.processors.LogfmtRenderer(key_order=("timestamp", "level", "event")),
            _escape,
        ],
    )


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

        `subject` is a partition, the host of a client, or a kind of exception.
        """
        logged_s = self._logged_s.get((kind, subject))
        if logged_s is not None and 0.0 <= now_s - logged_s < self.MINUTE_S:
            return False
        if len(self._logged_s) >= self.KEYS_MAX:
            self._logged_s.clear()
        self._logged_s[kind, subject] = now_s
        return True
