"""The number of files that this process may open, which every connection counts as one of."""

from __future__ import annotations

import resource
from dataclasses import replace
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from gateway.config import ConnectionLimits

FILES_OF_STORAGE: Final = 1_000
"""Log files, index files and connections to bookies and ZooKeeper that a gateway may open."""


def fit_connections(limits: ConnectionLimits) -> tuple[ConnectionLimits, str]:
    """Raise the soft limit of open files as far as needed.

    Returns the limits that the hard limit allows, and a sentence for the operator if these are
    lower. Files of the storage come first: without them, connections are useless.
    """
    needed = limits.connections_max + FILES_OF_STORAGE
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    allowed = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
    if soft != resource.RLIM_INFINITY and soft < allowed:
        resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, hard))
    if allowed >= needed:
        return limits, ""
    connections_max = max(1, allowed // 2, allowed - FILES_OF_STORAGE)
    told = (
        f"this process may open {allowed} files, so it accepts {connections_max} connections "
        f"instead of {limits.connections_max}; raise the limit to {needed} (ulimit -n)"
    )
    return replace(limits, connections_max=connections_max), told
