"""Opens the partitions that a request names, within a time: replies are sent in order."""

from __future__ import annotations

import asyncio

from kio.schema.errors import ErrorCode

from gateway.errors import partition_code
from gateway.topics.partition import Partition
from ledger.errors import LedgerError
from ledger.tasks import start_once

OPENING_S_MAX = 10.0
"""The limit for all partitions of a request together, because the next requests wait."""


async def open_all(closed: set[Partition]) -> dict[Partition, ErrorCode]:
    """Open these partitions at the same time. Returns an error code for each that failed."""
    if not closed:
        return {}
    opening = {
        start_once(f"a wait for {each.name}", each.ensure_readable(), expected=Exception): each
        for each in closed
    }
    try:
        done, late = await asyncio.wait(opening, timeout=OPENING_S_MAX)
    finally:
        for task in opening:
            task.cancel()
    errors = {opening[task]: ErrorCode.not_leader_or_follower for task in late}
    for task in done:
        error = task.exception()
        if isinstance(error, LedgerError):
            errors[opening[task]] = partition_code(error)
        elif error is not None:
            raise error
    return errors
