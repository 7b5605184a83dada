"""Shared by the APIs of log directories: one directory for each bookie.

An embedded gateway shows the directories of its bookies, with the space of their disk. In a cluster
a directory has the name of its bookie, and each gateway shows the partitions that it leads.
"""

from __future__ import annotations

import shutil

from gateway.handlers.api import Context
from ledger.ids import BookieId

UNKNOWN_BYTES = -1


def directory(bookie: BookieId, ctx: Context) -> str:
    """Return the name of the directory in which a bookie stores its entries."""
    if ctx.config.zookeeper:
        return str(bookie)
    return str((ctx.config.data / bookie).absolute())


def disk_space(ctx: Context) -> tuple[int, int]:
    """Return the bytes of the disk of embedded bookies and the free ones, or -1 if unknown."""
    if ctx.config.zookeeper:
        return UNKNOWN_BYTES, UNKNOWN_BYTES
    try:
        usage = shutil.disk_usage(ctx.config.data)
    except OSError:
        return UNKNOWN_BYTES, UNKNOWN_BYTES
    return usage.total, usage.free
