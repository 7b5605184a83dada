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
