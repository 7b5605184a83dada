"""Move streams to brokers that have joined, a few at a time, until each has its share.

Ownership is sticky: no stream moves when a topic is created or when a broker leaves. A live
owner's stream moves only when the owner gives it away.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection

from gateway.cluster.port import HandOver, StreamKey
from ledger.ports.clock import Clock
from ledger.tasks import start_restarting

Surplus = Callable[[Collection[int]], list[StreamKey]]
"""Returns the streams of this broker whose candidate is one of the given nodes."""


class Balancer:
    """Gives away the streams that `surplus` returns, by awaiting `move` for each.

    It begins `settle_s` seconds after a broker joined. It moves up to `at_once` streams at the same
    time, and pauses after each batch for as long as the batch took.
    """

    def __init__(
        self,
        clock: Clock,
        surplus: Surplus,
        move: Callable[[StreamKey, HandOver], Awaitable[None]],
        *,
        settle_s: float,
        at_once: int,
        pause_s_min: float = 0.05,
    ) -> None:
        self._clock = clock
        self._surplus = surplus
        self._move = move
        self._settle_s = settle_s
        self._at_once = at_once
        self._pause_s_min = pause_s_min
        # Drains a stream. None until `set_hand_over`; no stream moves before that call.
        self._hand_over: HandOver | None = None
        # Node ids of brokers that joined and may still lack streams. A run that finds no surplus
        # for them removes them.
        self._joined: set[int] = set()
        # The task of the present or last run. At most one run is active.
        self._task: asyncio.Task[None] | None = None
        # Set by `stop` or `cancel` and never cleared. No run starts once it is set.
        self._stopping = asyncio.Event()

    def set_hand_over(self, hand_over: HandOver) -> None:
        self._hand_over = hand_over
        self._start()

    def on_joined(self, nodes: Collection[int]) -> None:
        """Balance towards these brokers, which have just joined."""
        self._joined.update(nodes)
        self._start()

    async def stop(self) -> None:
        """Start no more moves, and wait for the moves in progress."""
        self._stopping.set()
        if self._task is not None:
            await asyncio.gather(self._task, return_exceptions=True)

    def cancel(self) -> None:
        """Stop without waiting for the moves in progress."""
        self._stopping.set()
        if self._task is not None:
            self._task.cancel()

    def _start(self) -> None:
        idle = self._task is None or self._task.done()
        if idle and self._joined and self._hand_over is not None and not self._stopping.is_set():
            hand_over = self._hand_over
            self._task = start_restarting("the balancer", lambda: self._run(hand_over))

    async def _run(self, hand_over: HandOver) -> None:
        while self._joined and not await self._stopped_within(self._settle_s):
            joined = frozenset(self._joined)
            while streams := self._surplus(joined)[: self._at_once]:
                began_s = self._clock.monotonic_s()
                await asyncio.gather(*(self._move(key, hand_over) for key in streams))
                took_s = self._clock.monotonic_s() - began_s
                if await self._stopped_within(max(took_s, self._pause_s_min)):
                    return
            self._joined -= joined

    async def _stopped_within(self, seconds: float) -> bool:
        try:
            async with asyncio.timeout(seconds):
                await self._stopping.wait()
        except TimeoutError:
            return False
        return True
