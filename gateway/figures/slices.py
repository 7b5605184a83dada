"""Long work on the event loop in short slices, and values that are computed anew while needed."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from heapq import merge
from typing import Any, Final, Generic, TypeVar

from ledger.ports.clock import measured_s
from ledger.tasks import start_once

T = TypeVar("T")

SLICE_S: Final = 0.00025
"""The longest stretch of work between two turns of other tasks, but for its last step."""

PAGE_REST_S: Final = 0.001
"""Between two slices of a page. A producer is answered in some turns of the loop: with none
between two slices, each of its turns would wait for a slice.
"""

_REST_S: Final = 0.002  # between two slices in the background
_LONG_RESTS: Final = 50  # long work then rests half as long, and uses a fifth of a core at most
_PAUSE_SHARE: Final = 0.1  # of the period, between two computations that take longer than it
_STEPS: Final = 16  # between two looks at the time
SORTED_AT_ONCE: Final = 250
"""Items that are sorted in one step. With more they are sorted in slices."""


class Slices:
    """Counts the time of one piece of work. Call `pause` after each step of some microseconds.

    `hurried` work rests for no time between its slices: a caller waits for it. `long_steps` take
    more than some microseconds each: the time is looked at after every one. `rest_s` is another
    time between two slices.
    """

    __slots__ = ("_began_s", "_every", "_left", "_rest_s", "_rests")

    def __init__(
        self, *, hurried: bool = False, long_steps: bool = False, rest_s: float = _REST_S
    ) -> None:
        self._rest_s = 0.0 if hurried else rest_s
        self._every = 1 if long_steps else _STEPS
        self._left = self._every  # steps before the next look at the time
        self._rests = 0
        self._began_s = measured_s()

    @property
    def used_up(self) -> bool:
        """True if the slice is over: await `rest` then. Cheap enough for each step."""
        return self.spent(1)

    def spent(self, steps: int) -> bool:
        """Count steps, which were one piece of work. Returns True if the slice is over."""
        self._left -= steps
        if self._left > 0:
            return False
        self._left = self._every
        return measured_s() - self._began_s >= SLICE_S

    async def rest(self) -> None:
        """Let other tasks run, and begin the next slice."""
        self._rests += 1
        if self._rests == _LONG_RESTS:
            self._rest_s /= 2
        await asyncio.sleep(self._rest_s)
        self._left = self._every
        self._began_s = measured_s()

    async def pause(self) -> None:
        """Rest if the slice is over."""
        if self.used_up:
            await self.rest()


def page_slices() -> Slices:
    """Return slices for a request that waits. Each step takes more than some microseconds."""
    return Slices(long_steps=True, rest_s=PAGE_REST_S)


async def sorted_in_slices(
    items: Sequence[T], key: Callable[[T], Any], slices: Slices
) -> list[tuple[Any, T]]:
    """Return the items with their keys, sorted by key. Keys must differ."""
    parts: list[list[tuple[Any, T]]] = []
    for at in range(0, len(items), SORTED_AT_ONCE):
        part = [(key(each), each) for each in items[at : at + SORTED_AT_ONCE]]
        part.sort(key=lambda pair: pair[0])
        parts.append(part)
        await slices.rest()
    if len(parts) == 1:
        return parts[0]
    found: list[tuple[Any, T]] = []
    for pair in merge(*parts, key=lambda pair: pair[0]):
        found.append(pair)
        if slices.used_up:
            await slices.rest()
    return found


class Refreshed(Generic[T]):
    """A value that is computed anew every `every_s` while it was asked for `asked_s` ago or less.

    A value that is older than `old_s` is not returned: its caller waits for the next one. Callers
    that wait share one computation. An exception of it reaches them, and the next call tries again.
    """

    def __init__(
        self,
        name: str,
        compute: Callable[[], Awaitable[T]],
        *,
        every_s: float = 1.0,
        old_s: float = 3.0,
        asked_s: float = 10.0,
    ) -> None:
        self._name = name
        self._compute = compute
        self._every_s = every_s
        self._old_s = old_s
        self._asked_s = asked_s
        # The last value and when it was complete, on the clock of the loop. None before the first.
        self._found: tuple[T, float] | None = None
        # When it was asked for last, on the clock of the loop.
        self._last_asked_s = 0.0
        # One computation, which callers without a value await. None while none runs.
        self._computing: asyncio.Task[T] | None = None
        # Computes again and again. Ends by itself when nobody asks.
        self._repeating: asyncio.Task[None] | None = None
        self._closed = False

    async def get(self) -> T:
        """Return the value. Raises what its computation raises, if there is no younger one."""
        loop = asyncio.get_running_loop()
        self._last_asked_s = loop.time()
        found = self._found
        if found is None or self._last_asked_s - found[1] > self._old_s:
            value = await asyncio.shield(self._compute_once())
        else:
            value = found[0]
        if not self._closed and (self._repeating is None or self._repeating.done()):
            self._repeating = start_once(f"{self._name}, again", self._repeat())
        return value

    def _compute_once(self) -> asyncio.Task[T]:
        if self._computing is None or self._computing.done():
            self._computing = start_once(self._name, self._compute_now(), expected=(Exception,))
        return self._computing

    async def _compute_now(self) -> T:
        value = await self._compute()
        self._found = (value, asyncio.get_running_loop().time())
        return value

    async def _repeat(self) -> None:
        loop = asyncio.get_running_loop()
        took_s = 0.0
        while loop.time() - self._last_asked_s <= self._asked_s:
            await asyncio.sleep(max(self._every_s - took_s, _PAUSE_SHARE * self._every_s))
            began_s = loop.time()
            await asyncio.wait([self._compute_once()])
            took_s = loop.time() - began_s

    async def close(self) -> None:
        """End all computations."""
        self._closed = True
        running: list[asyncio.Task[Any] | None] = [self._computing, self._repeating]
        tasks = [each for each in running if each is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
