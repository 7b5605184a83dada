# kazoo has no types.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false
"""Reads of one turn of the event loop as one request, in the order of the calls.

A takeover reads tens of thousands of small nodes. A request costs the server, kazoo's thread and
the loop more than the node in it. Servers know the request from ZooKeeper 3.6 on.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Final, NamedTuple

from ledger.adapters.zookeeper.zookeeper_bridge import ZooKeeperBridge
from ledger.adapters.zookeeper.zookeeper_requests import (
    HEADER_BYTES,
    MULTI_OP_BYTES,
    REQUEST_BYTES_MAX,
    MultiRead,
    read_bytes,
)
from ledger.errors import MetadataUnavailable

READS_MAX: Final = 64
"""Reads of one request; each node has up to a megabyte."""

READ_BYTES_MAX: Final = REQUEST_BYTES_MAX - HEADER_BYTES - MULTI_OP_BYTES
"""The size of all reads of one request. Their paths may be long, because clients name groups."""


class _Read(NamedTuple):
    request: Any
    future: asyncio.Future[Any]


class ReadBatches:
    """Sends the reads of one store. Every other request must be sent after `flush`."""

    def __init__(self, bridge: ZooKeeperBridge) -> None:
        self._bridge = bridge
        self._loop = asyncio.get_running_loop()
        # Reads that are not sent yet. `flush` is due while there are any.
        self._reads: list[_Read] = []
        # The size of these reads, at most READ_BYTES_MAX.
        self._bytes = 0
        # Callers of `sync` since the last `flush`, which sends one request for all of them.
        self._syncs: list[_Read] = []

    def sync(self, request: Any) -> asyncio.Future[Any]:
        """Send a sync after all earlier requests, and before the reads of this turn."""
        future: asyncio.Future[Any] = self._loop.create_future()
        if not self._reads and not self._syncs:
            self._loop.call_soon(self.flush)
        self._syncs.append(_Read(request, future))
        return future

    def ask(self, request: Any) -> asyncio.Future[Any]:
        """Send a read after all earlier requests, at the latest in the next turn of the loop.

        The caller has checked that the read alone fits into a request.
        """
        future: asyncio.Future[Any] = self._loop.create_future()
        size = read_bytes(request.path)
        if self._bytes + size > READ_BYTES_MAX:
            self.flush()
        self._bytes += size
        self._reads.append(_Read(request, future))
        if len(self._reads) == 1 and not self._syncs:
            self._loop.call_soon(self.flush)
        elif len(self._reads) >= READS_MAX:
            self.flush()
        return future

    def flush(self) -> None:
        """Send what waits."""
        syncs, self._syncs = self._syncs, []
        reads, self._reads = self._reads, []
        self._bytes = 0
        if syncs:
            self._send(syncs[0].request, syncs, self._on_synced)
        if len(reads) == 1:
            self._send(reads[0].request, reads, self._on_read)
        elif reads:
            self._send(MultiRead([read.request for read in reads]), reads, self._on_reads)

    def _send(
        self,
        request: Any,
        asked: list[_Read],
        on_answer: Callable[[list[_Read], Any], None],
    ) -> None:
        """Send one request for all that `asked`. An error is for each of them."""

        def on_done(answered: asyncio.Future[Any]) -> None:
            error = answered.exception()
            if error is None:
                on_answer(asked, answered.result())
            else:
                _fail(asked, error)

        try:
            self._bridge.ask(request).add_done_callback(on_done)
        except MetadataUnavailable as error:  # the store is closed
            _fail(asked, error)

    @staticmethod
    def _on_synced(asked: list[_Read], answer: Any) -> None:
        for each in asked:
            _answer(each, answer)

    @staticmethod
    def _on_read(asked: list[_Read], answer: Any) -> None:
        _answer(asked[0], answer)

    @staticmethod
    def _on_reads(asked: list[_Read], answers: list[Any]) -> None:
        for each, answer in zip(asked, answers, strict=True):
            _answer(each, answer)


def _answer(read: _Read, answer: Any) -> None:
    if read.future.done():
        return
    if isinstance(answer, BaseException):
        read.future.set_exception(answer)
    else:
        read.future.set_result(answer)


def _fail(asked: list[_Read], error: BaseException) -> None:
    for each in asked:
        if not each.future.done():
            each.future.set_exception(error)
