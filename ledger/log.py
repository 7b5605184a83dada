"""One line per event on stderr, logfmt. structlog is loaded at the first line, not at start."""

from __future__ import annotations

import sys
from contextlib import suppress
from functools import cache
from typing import Any, TextIO, cast


class _Stderr:
    """Whatever stderr is when a line is written. That it is full or closed is no reason to end."""

    def write(self, text: str) -> int:
        with suppress(OSError):
            sys.stderr.write(text)
        return len(text)

    def flush(self) -> None:
        with suppress(OSError):
            sys.stderr.flush()


@cache
def logger() -> Any:
    """The process's logger: `logger().warning("what happened", key=value)`.

    Its first call imports structlog, about 100 ms.
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
