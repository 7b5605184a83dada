"""The report of a gateway about its own process, for `gateway doctor`."""

from __future__ import annotations

import resource
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from ledger.command_line.version import __version__, describe

if TYPE_CHECKING:
    from gateway.process.assemble import Running

_OPEN_FILES: Final = Path("/proc/self/fd")


def process_report(running: Running, session_ms: int) -> dict[str, Any]:
    """Return the clock, the release and the limits of this process.

    `session_ms` is the session timeout that ZooKeeper granted; 0 without ZooKeeper. The number of
    open files is null where the system does not list them.
    """
    ctx = running.ctx
    return {
        "time_ms": ctx.clock.now_ms(),
        "release": __version__,
        "build": describe(),
        "session_ms": session_ms or None,
        "session_wanted_ms": ctx.config.session_ms if session_ms else None,
        "files_max": _files_max(),
        "files_open": _files_open(),
        "metrics_port": running.metrics_port,
    }


def _files_max() -> int | None:
    """Return the hard limit, to which a gateway raises its soft limit; None if there is none."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    return None if hard == resource.RLIM_INFINITY else hard


def _files_open() -> int | None:
    try:
        # Since Linux 6.2 the size is the number: a list of thousands would take milliseconds.
        return _OPEN_FILES.stat().st_size or sum(1 for _ in _OPEN_FILES.iterdir())
    except OSError:
        return None
