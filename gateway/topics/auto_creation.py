"""Creates topics that clients named in Metadata, in the background.

Metadata replies at once, as Kafka's AutoTopicCreationManager lets it: the topic is unknown now,
and the client asks again. The creation goes on if the client disconnects.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Final

from gateway.core.topic_names import collision_key
from gateway.log import Throttle, logger
from gateway.topics.errors import TopicError, TopicExists
from ledger.errors import LedgerError
from ledger.tasks import reported, start_once

WANTED_MAX: Final = 10_000
"""Topics that wait for their creation. Names beyond it are dropped: their clients ask again."""

_AT_ONCE: Final = 16
_WHAT: Final = "the creation of topics that clients named"


class AutoCreation:
    """The topics that are wanted, in the order of the requests, each once."""

    def __init__(
        self, create: Callable[[str], Awaitable[object]], is_changing: Callable[[str], bool]
    ) -> None:
        """Create topics by `create(name)`, which raises TopicError and LedgerError.

        `is_changing(key)` returns True while a topic with this collision key is changed or deleted,
        which may take long. Call `on_changed` with the key afterwards.
        """
        self._create = create
        self._is_changing = is_changing
        # Names from `begin` until their creation has ended; `_AT_ONCE` of them are being created.
        self._wanted: dict[str, None] = {}
        # Names that wait for the end of another change, by collision key, so that they hold no
        # worker. All of them are in `_wanted`. An entry lasts until `on_changed` or `close`.
        self._parked: dict[str, list[str]] = {}
        # Names whose creation can begin, in order. All of them are in `_wanted`.
        self._waiting: deque[str] = deque()
        # The tasks that create topics, at most `_AT_ONCE`, at least one while a name waits. They
        # end when no name waits.
        self._workers: set[asyncio.Task[None]] = set()
        self._throttle = Throttle()
        # Set once, by `close`; no creation begins afterwards.
        self._closed = False

    def is_wanted(self, name: str) -> bool:
        """Return whether the creation of the topic is queued or under way."""
        return name in self._wanted

    def begin(self, name: str) -> None:
        """Create the topic soon, unless it is queued already or the queue is full."""
        if self._closed or name in self._wanted or len(self._wanted) >= WANTED_MAX:
            return
        self._wanted[name] = None
        self._waiting.append(name)
        self._start_worker()

    def on_changed(self, key: str) -> None:
        """Create the topics soon that waited for the change of a topic with this collision key."""
        self._waiting.extend(self._parked.pop(key, ()))
        self._start_worker()

    async def close(self) -> None:
        """Forget the names that wait, and end the tasks that create topics."""
        self._closed = True
        self._waiting.clear()
        self._parked.clear()
        workers = list(self._workers)
        for worker in workers:
            worker.cancel()
        await asyncio.gather(*workers, return_exceptions=True)
        self._wanted.clear()

    def _start_worker(self) -> None:
        if self._waiting and len(self._workers) < _AT_ONCE:
            worker = start_once(_WHAT, self._work())
            self._workers.add(worker)
            worker.add_done_callback(self._on_worker_over)

    def _on_worker_over(self, worker: asyncio.Task[None]) -> None:
        self._workers.discard(worker)
        self._start_worker()  # if it was cancelled by what it awaited, names may wait

    async def _work(self) -> None:
        while self._waiting:
            name = self._waiting.popleft()
            key = collision_key(name)
            if self._is_changing(key):
                self._parked.setdefault(key, []).append(name)
                continue
            try:
                with reported(_WHAT):
                    await self._create_one(name)
            finally:
                del self._wanted[name]

    async def _create_one(self, name: str) -> None:
        try:
            await self._create(name)
        except TopicExists:
            pass  # another client or broker created it first
        except (TopicError, LedgerError) as error:
            now_s = asyncio.get_running_loop().time()
            if self._throttle.allows("cannot create", type(error).__name__, now_s):
                logger().warning("cannot create a topic", topic=name, reason=str(error))
