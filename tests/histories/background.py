"""An event loop in a thread of its own, so that whoever harms a cluster may wait as he likes.

Processes end with the thread that started them; so they are started by the main thread, and
clients live here.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Self, TypeVar

from tests.peers.processes import Lifecycle

T = TypeVar("T")
THREADS_MAX = 32
CALL_S_MAX = 360.0


class Background(Lifecycle):
    """`run` waits for a coroutine there; clients that block have threads of this loop's pool."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._pool = ThreadPoolExecutor(THREADS_MAX, "client")
        self._loop.set_default_executor(self._pool)
        self._thread = threading.Thread(target=self._loop.run_forever, name="clients", daemon=True)

    def run(self, work: Coroutine[Any, Any, T], timeout_s: float = CALL_S_MAX) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(timeout_s)

    def start(self) -> Self:
        self._thread.start()
        return self

    def stop(self) -> None:
        self.run(self._cancel_all())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(60.0)
        self._pool.shutdown(wait=False, cancel_futures=True)
        self._loop.close()

    async def _cancel_all(self) -> None:
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)
