"""Notices that the machine, or this process, stood still: then a short session may have ended."""

from __future__ import annotations

import threading
import time
from types import TracebackType
from typing import Self

_LOOK_S = 0.01


class Stalls:
    """Measures the longest time by which a thread of this process woke up too late."""

    def __init__(self) -> None:
        self.longest_s = 0.0
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._ended.set()
        self._thread.join()

    def _look(self) -> None:
        before = time.monotonic()
        while not self._ended.wait(_LOOK_S):
            now = time.monotonic()
            self.longest_s = max(self.longest_s, now - before - _LOOK_S)
            before = now
        self.longest_s = max(self.longest_s, time.monotonic() - before - _LOOK_S)
