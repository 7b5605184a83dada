"""A connection to storage that synchronous code uses: Spark's Python workers have no loop.

A worker process keeps one for its next tasks, as long as it lives; what failed over one that was
kept is asked over a new one.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import AsyncGenerator, Coroutine, Iterator
from typing import Any, TypeVar

from gateway.pipelines.direct.options import TlsPaths
from gateway.pipelines.direct.storage import ReadStorage, open_storage

T = TypeVar("T")


class StorageConnection:
    """`close` it in the end; only one call at a time."""

    def __init__(self, metadata: str, tls: TlsPaths | None) -> None:
        """Connected. Raises JobError."""
        self._loop = _loop_of_process()
        self._context = open_storage(metadata, *(tls or ()))
        self.storage: ReadStorage = self._loop.run_until_complete(self._context.__aenter__())

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        return self._loop.run_until_complete(work)

    def each(self, items: AsyncGenerator[T]) -> Iterator[T]:
        """One after the other, as they come; what is under way ends with the iterator."""
        try:
            while True:
                try:
                    item = self._loop.run_until_complete(anext(items))
                except StopAsyncIteration:
                    return
                yield item
        finally:
            self._loop.run_until_complete(items.aclose())

    def close(self) -> None:
        self._loop.run_until_complete(self._context.__aexit__(None, None, None))


@functools.cache
def _loop_of_process() -> asyncio.AbstractEventLoop:
    """One, never closed: gRPC hands the events of all loops of a process to one of them, and
    stumbles over those of a loop that is closed. A worker process plans one query, closes that
    link, and runs tasks of the next."""
    return asyncio.new_event_loop()


_kept: dict[tuple[str, TlsPaths | None], StorageConnection] = {}


def cached_connection(metadata: str, tls: TlsPaths | None) -> StorageConnection:
    """This process's, made at the first call. Whoever meets an error over it calls `drop_link`."""
    link = _kept.get((metadata, tls))
    if link is None:
        link = _kept[metadata, tls] = StorageConnection(metadata, tls)
    return link


def is_cached(metadata: str, tls: TlsPaths | None) -> bool:
    """A link of an earlier task is there, and nobody knows whether it still leads anywhere."""
    return (metadata, tls) in _kept


def drop_cached(metadata: str, tls: TlsPaths | None) -> None:
    """The next task makes a new one."""
    link = _kept.pop((metadata, tls), None)
    if link is not None:
        link.close()
