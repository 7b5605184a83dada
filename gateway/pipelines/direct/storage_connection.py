"""A connection to storage for synchronous code: Spark's Python workers run no event loop.

A worker process keeps its connection for later tasks. A read that fails over a kept connection is
retried over a new one.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import AsyncGenerator, Coroutine, Iterator
from typing import Any, TypeVar

from gateway.pipelines.direct.options import StorageAddress
from gateway.pipelines.shared.storage import ReadStorage, open_storage

T = TypeVar("T")


class BlockingStorageConnection:
    """A connection to storage with blocking calls, one at a time. The owner must call `close`."""

    def __init__(self, address: StorageAddress) -> None:
        """Connect to the storage. Raises JobError."""
        self._loop = _loop_of_process()
        self._context = open_storage(
            address.metadata,
            *(address.tls or ()),
            transport=address.transport,
            zookeeper=dict(address.zookeeper),
        )
        self.storage: ReadStorage = self._loop.run_until_complete(self._context.__aenter__())

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        return self._loop.run_until_complete(work)

    def iterate(self, items: AsyncGenerator[T]) -> Iterator[T]:
        """Yield the items as they arrive. Closes the generator when the iterator ends."""
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
    """Return the one event loop of this process, which is never closed.

    gRPC delivers the events of all loops of a process to one loop, and fails on events of a closed
    loop. A worker process may plan one query, close the connection, and run tasks of the next
    query.
    """
    return asyncio.new_event_loop()


_cached: dict[StorageAddress, BlockingStorageConnection] = {}


def cached_connection(address: StorageAddress) -> BlockingStorageConnection:
    """Return the cached connection of this process, or open one. On an error call `drop_cached`."""
    connection = _cached.get(address)
    if connection is None:
        connection = _cached[address] = BlockingStorageConnection(address)
    return connection


def is_cached(address: StorageAddress) -> bool:
    """Return whether this process has a cached connection, which may be broken by now."""
    return address in _cached


def drop_cached(address: StorageAddress) -> None:
    """Close the cached connection, so that the next task opens a new one."""
    connection = _cached.pop(address, None)
    if connection is not None:
        connection.close()
