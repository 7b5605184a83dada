"""Logs on stderr in logfmt, one line per event. The first line imports structlog, not start-up."""

from __future__ import annotations

import sys
from contextlib import suppress
from functools import cache
from typing import Any, TextIO, cast


class _Stderr:
    """`sys.stderr` at the time of each line. If it is full or closed, the line is dropped."""

    def write(self, text: str) -> int:
        with suppress(OSError):
            sys.stderr.write(text)
        return len(text)

    def flush(self) -> None:
        with suppress(OSError):
            sys.stderr.flush()


@cache
def logger() -> Any:
    """Return the logger of the process: `logger().warning("what happened", key=value)`.

    The first call imports structlog, which takes about 100 ms.
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
