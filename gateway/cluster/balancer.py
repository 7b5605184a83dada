"""Streams go over to gateways that have joined: few at once, until each has its share.

Ownership is sticky, so nothing moves for any other reason: not when a topic is created, not when
a gateway has gone. The owner gives; nobody takes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection

from gateway.cluster.port import HandOver, StreamKey
from ledger.ports.clock import Clock

Surplus = Callable[[Collection[int]], list[StreamKey]]
"""Streams of ours that one of those nodes should have."""


class Balancer:
    """Gives away what `surplus` names by `move`, which returns when the stream is another's.

    `settle_s`: so long a gateway must have been there. `at_once` streams move together, and then
    nothing for as long as that took.
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
        self._hand_over: HandOver | None = None
        self._joined: set[int] = set()
        self._task: asyncio.Task[None] | None = None
        self._stopping = asyncio.Event()

    def set_hand_over(self, hand_over: HandOver) -> None:
        self._hand_over = hand_over
        self._start()

    def on_joined(self, nodes: Collection[int]) -> None:
        """These gateways were not there before."""
        self._joined.update(nodes)
        self._start()

    async def stop(self) -> None:
        """Nothing moves any more; what was moving has been moved."""
        self._stopping.set()
        if self._task is not None:
            await asyncio.gather(self._task, return_exceptions=True)

    def cancel(self) -> None:
        """As `stop`, at once."""
        self._stopping.set()
        if self._task is not None:
            self._task.cancel()

    def _start(self) -> None:
        idle = self._task is None or self._task.done()
        if idle and self._joined and self._hand_over is not None and not self._stopping.is_set():
            self._task = asyncio.get_running_loop().create_task(self._run(self._hand_over))

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
