"""Creates topics that clients named in Metadata, in the background.

Metadata replies at once, as Kafka's AutoTopicCreationManager lets it: the topic is unknown now,
and the client asks again. The creation goes on if the client disconnects.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Final

from gateway.log import Throttle, logger
from gateway.topics.errors import TopicError, TopicExists
from ledger.errors import LedgerError
from ledger.tasks import start_once

WANTED_MAX: Final = 10_000
"""Topics that wait for their creation. Names beyond it are dropped: their clients ask again."""

_AT_ONCE: Final = 16


class AutoCreation:
    """The topics that are wanted, in the order of the requests, each once."""

    def __init__(self, create: Callable[[str], Awaitable[object]]) -> None:
        """Create topics by `create(name)`, which raises TopicError and LedgerError."""
        self._create = create
        # Names from `begin` until their creation has ended; `_AT_ONCE` of them are being created.
        self._wanted: dict[str, None] = {}
        # Names whose creation has not begun, in order. All of them are in `_wanted`.
        self._waiting: deque[str] = deque()
        # The tasks that create topics, at most `_AT_ONCE`. They end when no name waits.
        self._workers: set[asyncio.Task[None]] = set()
        self._throttle = Throttle()

    def begin(self, name: str) -> None:
        """Create the topic soon, unless it is queued already or the queue is full."""
        if name in self._wanted or len(self._wanted) >= WANTED_MAX:
            return
        self._wanted[name] = None
        self._waiting.append(name)
        if len(self._workers) < _AT_ONCE:
            worker = start_once("the creation of topics that clients named", self._work())
            self._workers.add(worker)
            worker.add_done_callback(self._workers.discard)

    async def _work(self) -> None:
        while self._waiting:
            name = self._waiting.popleft()
            try:
                await self._create(name)
            except TopicExists:
                pass  # another client or broker created it first
            except (TopicError, LedgerError) as error:
                now_s = asyncio.get_running_loop().time()
                if self._throttle.allows("cannot create", type(error).__name__, now_s):
                    logger().warning("cannot create a topic", topic=name, reason=str(error))
            finally:
                del self._wanted[name]
