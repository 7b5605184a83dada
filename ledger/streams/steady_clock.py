"""Wall time for what deletes data: a jump forward is believed only after an hour.

One look at a clock that jumped would otherwise remove every old segment. The monotonic clock is the
second witness. A clock that was set by mistake is usually set back within minutes.
"""

from __future__ import annotations

from typing import Final

from ledger.log import logger
from ledger.ports.clock import Clock

BELIEVED_AFTER_S: Final = 3600.0
"""Seconds on the monotonic clock for which a jump forward must last."""
_DRIFT_MS: Final = 10_000  # greatest step between two looks that is no jump


class SteadyClock:
    """A `Clock` whose wall time runs ahead of the monotonic clock only after `BELIEVED_AFTER_S`.

    Look at it regularly: only a jump between two looks is noticed. A step back is believed at once.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        # Wall time minus monotonic time, as believed. The first look is now, so that a jump before
        # the first use is noticed.
        self._offset_ms = clock.now_ms() - int(clock.monotonic_s() * 1000)
        # The same difference after a jump that is not believed yet, and the monotonic time at which
        # it was first seen. None without such a jump.
        self._jumped_ms: int | None = None
        self._jumped_s = 0.0

    def now_ms(self) -> int:
        """Return the believed wall time in milliseconds since 1970."""
        now_s = self._clock.monotonic_s()
        elapsed_ms = int(now_s * 1000)
        self._offset_ms = self._believed(self._clock.now_ms() - elapsed_ms, now_s)
        return elapsed_ms + self._offset_ms

    def monotonic_s(self) -> float:
        return self._clock.monotonic_s()

    def _believed(self, offset_ms: int, now_s: float) -> int:
        believed_ms, jumped_ms = self._offset_ms, self._jumped_ms
        if offset_ms <= believed_ms + _DRIFT_MS:
            self._jumped_ms = None
            return offset_ms
        if jumped_ms is None or abs(offset_ms - jumped_ms) > _DRIFT_MS:
            self._jumped_s = now_s
            logger().warning(
                "the wall clock jumped forward; what is kept for a time is kept until the jump has "
                "lasted for an hour",
                seconds=(offset_ms - believed_ms) // 1000,
            )
        elif now_s - self._jumped_s >= BELIEVED_AFTER_S:
            self._jumped_ms = None
            return offset_ms
        self._jumped_ms = offset_ms
        return believed_ms
