"""Waits for the sync of a file."""

from __future__ import annotations

import asyncio

from ledger.ports.disk import LogFile


async def sync_file(file: LogFile) -> None:
    """Sync a file. Raises OSError."""
    done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def on_synced(error: OSError | None) -> None:
        if done.done():
            return  # the caller was cancelled
        if error is None:
            done.set_result(None)
        else:
            done.set_exception(error)

    file.sync(on_synced)
    await done
