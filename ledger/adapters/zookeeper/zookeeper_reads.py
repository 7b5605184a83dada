# kazoo has no types.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false
"""Reads of one turn of the event loop as one request, in the order of the calls.

A takeover reads tens of thousands of small nodes. A request costs the server, kazoo's thread and
the loop more than the node in it. Servers know the request from ZooKeeper 3.6 on.
"""

from __future__ import annotations

import asyncio
from typing import Any, Final, NamedTuple

from ledger.adapters.zookeeper.zookeeper_bridge import ZooKeeperBridge
from ledger.adapters.zookeeper.zookeeper_requests import MultiRead

READS_MAX: Final = 64
"""Reads of one request; each node has up to a megabyte."""


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

    def ask(self, request: Any) -> asyncio.Future[Any]:
        """Send a read after all earlier requests, at the latest in the next turn of the loop."""
        future: asyncio.Future[Any] = self._loop.create_future()
        self._reads.append(_Read(request, future))
        if len(self._reads) == 1:
            self._loop.call_soon(self.flush)
        elif len(self._reads) >= READS_MAX:
            self.flush()
        return future

    def flush(self) -> None:
        """Send the reads that wait."""
        reads, self._reads = self._reads, []
        if not reads:
            return
        try:
            if len(reads) == 1:
                self._pass_on(reads[0])
            else:
                asked = self._bridge.ask(MultiRead([read.request for read in reads]))
                asked.add_done_callback(lambda answered: self._on_answer(reads, answered))
        except Exception as error:  # noqa: BLE001  the store is closed: each caller learns it
            for read in reads:
                if not read.future.done():
                    read.future.set_exception(error)

    def _pass_on(self, read: _Read) -> None:
        """Send one read as a request of its own."""

        def on_answer(answered: asyncio.Future[Any]) -> None:
            error = answered.exception()
            if read.future.done():
                return
            if error is not None:
                read.future.set_exception(error)
            else:
                read.future.set_result(answered.result())

        self._bridge.ask(read.request).add_done_callback(on_answer)

    def _on_answer(self, reads: list[_Read], answered: asyncio.Future[Any]) -> None:
        error = answered.exception()
        answers: list[Any] = [error] * len(reads) if error is not None else answered.result()
        for read, answer in zip(reads, answers, strict=True):
            if read.future.done():
                continue
            if isinstance(answer, BaseException):
                read.future.set_exception(answer)
            else:
                read.future.set_result(answer)
