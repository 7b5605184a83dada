"""The ledger of a stream's next segment, created before the segment begins.

    create ─▶ (creating) ─▶ ready ─▶ taken: from then on a segment may name it

A ledger that no segment names counts as an orphan after some time and is deleted. It is therefore
created shortly before a segment needs it. Source: DistributedLog, ledger allocation (seed 000).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

from ledger.client.writer import LedgerWriter
from ledger.errors import LedgerError, NotEnoughBookies
from ledger.ids import LedgerId
from ledger.ports.clock import Clock
from ledger.tasks import start_once

KEPT_S_MAX = 600.0
"""Much shorter than the age from which orphaned ledgers are deleted."""


class NextLedger:
    """At most one ledger, created by `create` with the stream's settings at that moment."""

    def __init__(
        self, create: Callable[[], Coroutine[Any, Any, LedgerWriter]], clock: Clock
    ) -> None:
        self._create = create
        self._clock = clock
        # The creation that runs, has succeeded or has failed. None before the first creation, and
        # after `take` or `discard`.
        self._creating: asyncio.Task[LedgerWriter] | None = None
        # Monotonic time when the last creation began.
        self._began_s = 0.0

    def begin_creating(self) -> None:
        """Begin to create a ledger, unless a fresh one exists or is being created."""
        now_s = self._clock.monotonic_s()
        creating = self._creating
        fresh = now_s - self._began_s <= KEPT_S_MAX
        if creating is not None and fresh and (not creating.done() or _succeeded(creating)):
            return
        self._began_s = now_s
        self._creating = start_once(
            "the creation of a ledger", self._create(), expected=LedgerError
        )

    async def wait_until_ready(self) -> None:
        """Wait until a ledger is ready. Raises the error of its creation."""
        self.begin_creating()
        creating = self._creating
        assert creating is not None
        # If this wait is cancelled, the creation continues for the next attempt.
        await asyncio.wait([creating])
        creating.result()

    async def is_ready(self) -> bool:
        """Wait as `wait_until_ready`. Returns False if too few bookies can take a ledger now."""
        try:
            await self.wait_until_ready()
        except NotEnoughBookies:
            return False
        return True

    def take(self) -> LedgerWriter:
        """Hand the ledger over. Call it after `wait_until_ready`, with no await in between."""
        assert self._creating is not None
        creating, self._creating = self._creating, None
        return creating.result()

    async def discard(self, delete: Callable[[LedgerId], Awaitable[None]]) -> None:
        """Delete the ledger, if there is one. If that fails, it is deleted later as an orphan."""
        creating, self._creating = self._creating, None
        if creating is None:
            return
        await asyncio.wait([creating])  # a cancelled creation would leave an orphan
        if _succeeded(creating):
            try:
                await delete(creating.result().ledger)
            except LedgerError:
                pass


def _succeeded(creating: asyncio.Task[LedgerWriter]) -> bool:
    """True if the creation succeeded. Marks its error as seen: the next attempt may succeed."""
    return not creating.cancelled() and creating.exception() is None
