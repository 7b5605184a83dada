"""Waits for pipes, sockets and terminals without blocking the event loop."""

from __future__ import annotations

import asyncio


async def until_ready(descriptor: int, *, writes: bool) -> None:
    """Wait until the file has bytes or has ended; if it `writes`, until it takes bytes or fails.

    Raises PermissionError for a file of a disk, which is always ready.
    """
    loop = asyncio.get_running_loop()
    ready: asyncio.Future[None] = loop.create_future()
    add = loop.add_writer if writes else loop.add_reader
    remove = loop.remove_writer if writes else loop.remove_reader
    add(descriptor, _set, ready)
    try:
        await ready
    finally:
        remove(descriptor)


def _set(ready: asyncio.Future[None]) -> None:
    if not ready.done():
        ready.set_result(None)
