"""The ledger of a stream's next segment, made while something else is still waited for.

    make ─▶ (being made) ─▶ at hand ─▶ taken: from then on a segment may name it

A ledger that no segment names yet would be collected as nobody's after a while, so none is kept
long: it is made when a segment is about to be needed. Source: DistributedLog, allocating a ledger
before it is needed (seed 000).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

from ledger.client.writer import LedgerWriter
from ledger.errors import LedgerError
from ledger.ids import LedgerId
from ledger.ports.clock import Clock

KEPT_S_MAX = 600.0
"""Much shorter than the age from which ledgers that nobody names are deleted."""


class NextLedger:
    """At most one ledger. `create` makes one, as the stream's settings are at that moment."""

    def __init__(
        self, create: Callable[[], Coroutine[Any, Any, LedgerWriter]], clock: Clock
    ) -> None:
        self._create = create
        self._clock = clock
        self._making: asyncio.Task[LedgerWriter] | None = None
        self._asked_s = 0.0

    def make(self) -> None:
        """One is being made, or at hand."""
        now_s = self._clock.monotonic_s()
        making = self._making
        fresh = now_s - self._asked_s <= KEPT_S_MAX
        if making is not None and fresh and (not making.done() or _made(making)):
            return
        self._asked_s = now_s
        self._making = asyncio.get_running_loop().create_task(self._create())
        self._making.add_done_callback(_made)

    async def ready(self) -> None:
        """One is at hand. Raises what making it raised."""
        self.make()
        making = self._making
        assert making is not None
        await asyncio.wait([making])  # not cancelled with us: the next try can use it
        making.result()

    def take(self) -> LedgerWriter:
        """It is the caller's. Only after `ready`, with nothing awaited in between."""
        assert self._making is not None
        making, self._making = self._making, None
        return making.result()

    async def discard(self, delete: Callable[[LedgerId], Awaitable[None]]) -> None:
        """None is being made or at hand. One that could not be deleted is collected as nobody's."""
        making, self._making = self._making, None
        if making is None:
            return
        await asyncio.wait([making])  # to its end: half made, it would be nobody's
        if _made(making):
            try:
                await delete(making.result().ledger)
            except LedgerError:
                pass


def _made(making: asyncio.Task[LedgerWriter]) -> bool:
    """A failure is told to whoever waits; when nobody does, the next one tries again."""
    return not making.cancelled() and making.exception() is None
