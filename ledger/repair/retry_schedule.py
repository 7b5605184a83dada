"""Which marked ledgers to try now: those that failed wait, each time twice as long. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from ledger.ids import LedgerId


class RetrySchedule:
    """Times in seconds on one clock that never falls, given by the caller."""

    def __init__(self, wait_s_min: float, wait_s_max: float) -> None:
        assert 0 < wait_s_min <= wait_s_max
        self._wait_s_min = wait_s_min
        self._wait_s_max = wait_s_max
        self._waits: dict[LedgerId, tuple[float, float]] = {}  # not before; the wait that was

    def ready(self, marked: Iterable[LedgerId], now_s: float) -> list[LedgerId]:
        """Those of `marked` that need not wait. What is no longer marked is forgotten."""
        known = list(marked)
        self._waits = {one: self._waits[one] for one in known if one in self._waits}
        return [one for one in known if one not in self._waits or self._waits[one][0] <= now_s]

    def on_failed(self, ledger: LedgerId, now_s: float, retry_s: float | None = None) -> None:
        """Not before its wait is over; after `retry_s` already, when that is known to help."""
        _, before_s = self._waits.get(ledger, (0.0, self._wait_s_min / 2))
        wait_s = min(before_s * 2, self._wait_s_max)
        if retry_s is not None:
            self._waits[ledger] = (now_s + retry_s, before_s)
        else:
            self._waits[ledger] = (now_s + wait_s, wait_s)

    def on_repaired(self, ledger: LedgerId) -> None:
        """A later mark of it is tried at once."""
        self._waits.pop(ledger, None)

    def reset(self) -> None:
        """Something changed that may help all: try everything again."""
        self._waits.clear()
