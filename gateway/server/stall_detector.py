"""Notices that this process stood still: stopped, swapped out, or its machine paused.

While it stood, others may have taken over, and what it had decided to say before is old. A lease is
looked at before an answer is decided; this is for the time between that and the socket.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable


class StallDetector:
    """Beats on the loop from `start` to `stop`; `on_still` runs when it was interrupted."""

    __slots__ = ("_beat_s", "_loop", "_on_still", "_still_s_max", "_timer")

    def __init__(
        self, loop: asyncio.AbstractEventLoop, still_s_max: float, on_still: Callable[[], None]
    ) -> None:
        self._loop = loop
        self._still_s_max = still_s_max
        self._on_still = on_still
        self._beat_s = loop.time()
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        self._beat_s = self._loop.time()
        self._beat()

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def stood_still(self) -> bool:
        """The last beat is so old that another process may answer by now."""
        return self._loop.time() - self._beat_s > self._still_s_max

    def _beat(self) -> None:
        if self.stood_still():
            self._on_still()
        self._beat_s = self._loop.time()
        self._timer = self._loop.call_later(self._still_s_max / 2, self._beat)
