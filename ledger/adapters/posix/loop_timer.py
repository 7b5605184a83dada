"""Measures how long calls to the disk block the event loop."""

from __future__ import annotations

from time import perf_counter

from ledger.ports.clock import Histogram
from ledger.ports.disk import BLOCKED_S


class LoopTimer(Histogram):
    """Counts the calls that are made inside `with`. The loop has one at a time."""

    __slots__ = ("_began_s",)

    def __init__(self) -> None:
        super().__init__(BLOCKED_S)
        self._began_s = 0.0

    def __enter__(self) -> None:
        self._began_s = perf_counter()

    def __exit__(self, *_: object) -> None:
        self.add(perf_counter() - self._began_s)
