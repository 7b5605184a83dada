"""One line per event on stderr, logfmt. structlog is loaded at the first line, not at start."""

from __future__ import annotations

import sys
from functools import cache
from typing import Any, TextIO, cast


class _Stderr:
    """Whatever stderr is when a line is written."""

    def write(self, text: str) -> int:
        return sys.stderr.write(text)

    def flush(self) -> None:
        sys.stderr.flush()


@cache
def logger() -> Any:
    """The process's logger: `logger().warning("what happened", key=value)`.

    Its first call imports structlog (about 100 ms); `gateway dev` does that beside the loop.
    """
    import structlog

    return structlog.wrap_logger(
        structlog.PrintLogger(file=cast("TextIO", _Stderr())),
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            structlog.processors.LogfmtRenderer(key_order=("timestamp", "level", "event")),
        ],
    )


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
