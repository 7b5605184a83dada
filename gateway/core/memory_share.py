"""A bound on the bytes that one kind of work may hold in this process. Pure.

    try_take ─▶ held ─▶ give
    line_up ─▶ (bytes were returned) ─▶ held │ leave

Bytes are taken before they are allocated, by an estimate that `correct` replaces by the real size.
Addresses with takers that wait have their turns one after another, and the takers of one address
are served in their order. The next taker is waited for, so a large taker does not starve.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable

OFFER_BYTES_MIN = 1024 * 1024
"""The smallest reservation that `offer` proposes. A smaller read costs as much as this one."""

OFFER_DIVISOR = 8
"""A single taker is offered at most one part in this many of the free bytes."""


class WaitingTaker:
    """One taker in the line, until its bytes are taken or it leaves."""

    __slots__ = ("address", "count", "on_taken", "since_s")

    def __init__(
        self, count: int, on_taken: Callable[[], bool], since_s: float, address: str
    ) -> None:
        self.count = count
        self.address = address
        self.since_s = since_s  # when it joined the line
        # Called once, when the bytes are taken. Returns False if the taker no longer wants them.
        self.on_taken = on_taken


class MemoryShare:
    """The bytes that one kind of work holds, at most `bytes_max`, and the takers that wait.

    One taker is always served while nothing is held, whatever its size. So no request of a client
    waits for memory forever, as long as holders return their bytes.
    """

    __slots__ = ("_lines", "bytes_max", "used_bytes")

    def __init__(self, bytes_max: int) -> None:
        assert bytes_max > 0
        self.bytes_max = bytes_max
        # Bytes taken and not returned. Exceeds `bytes_max` only by one large taker, and by bytes
        # of `add` and `correct`, which are held already when they are counted.
        self.used_bytes = 0
        # Takers that wait, by address, first come first. The address that was served longest ago
        # comes first. Not empty only while its first taker does not fit. No line is empty.
        self._lines: OrderedDict[str, deque[WaitingTaker]] = OrderedDict()

    @property
    def first(self) -> WaitingTaker | None:
        """The taker that has waited longest, or None if none waits."""
        heads = (line[0] for line in self._lines.values())
        return min(heads, key=lambda taker: taker.since_s, default=None)

    @property
    def full(self) -> bool:
        return self.used_bytes >= self.bytes_max

    def offer(self, wanted_bytes: int) -> int:
        """Return how much of `wanted_bytes` a read should take, at least `OFFER_BYTES_MIN`.

        The offer shrinks with the free bytes. So holders that return nothing cannot take all bytes
        with a few large reads.
        """
        free = (self.bytes_max - self.used_bytes) // OFFER_DIVISOR
        return min(wanted_bytes, max(OFFER_BYTES_MIN, free))

    def try_take(self, count: int) -> bool:
        """Take `count` bytes now, or return False. A taker never overtakes those in the line."""
        if self._lines or not self._fits(count):
            return False
        self.used_bytes += count
        return True

    def add(self, count: int) -> None:
        """Count bytes that are held already, such as those of a reply that is ready."""
        self.used_bytes += count

    def correct(self, taken: int, held: int) -> None:
        """Replace the estimate `taken` by the bytes that are really held."""
        if held >= taken:
            self.used_bytes += held - taken
        else:
            self.give(taken - held)

    def give(self, count: int) -> None:
        """Return `count` bytes, and serve the takers that fit now."""
        self.used_bytes -= count
        assert self.used_bytes >= 0
        self._serve()

    def line_up(
        self,
        count: int,
        on_taken: Callable[[], bool],
        now_s: float = 0.0,
        address: str = "",
    ) -> WaitingTaker:
        """Take `count` bytes as soon as they fit, behind the takers of this address in the line.

        `on_taken()` is called then, possibly before this method returns. It returns False if the
        taker no longer wants the bytes.
        """
        taker = WaitingTaker(count, on_taken, now_s, address)
        self._lines.setdefault(address, deque()).append(taker)
        self._serve()
        return taker

    def leave(self, taker: WaitingTaker) -> None:
        """Leave the line. Has no effect after the bytes were taken."""
        line = self._lines.get(taker.address)
        if line is None or taker not in line:
            return
        line.remove(taker)
        if not line:
            del self._lines[taker.address]
        self._serve()

    def _fits(self, count: int) -> bool:
        return not self.used_bytes or self.used_bytes + count <= self.bytes_max

    def _serve(self) -> None:
        lines = self._lines
        while lines:
            address, line = next(iter(lines.items()))
            if not self._fits(line[0].count):
                return
            taker = line.popleft()
            if line:
                lines.move_to_end(address)
            else:
                del lines[address]
            self.used_bytes += taker.count
            if not taker.on_taken():
                self.used_bytes -= taker.count
