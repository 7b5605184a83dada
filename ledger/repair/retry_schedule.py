"""The choice of under-replicated ledgers to try now, with exponential backoff. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from ledger.ids import LedgerId


class RetrySchedule:
    """The backoff times of ledgers. Times are in seconds on a monotonic clock."""

    def __init__(self, wait_s_min: float, wait_s_max: float) -> None:
        assert 0 < wait_s_min <= wait_s_max
        self._wait_s_min = wait_s_min
        self._wait_s_max = wait_s_max
        # Per ledger: the earliest time of the next attempt, and the last backoff. Set by a failure;
        # removed by a repair, by `reset`, or when the ledger is no longer on the list.
        self._waits: dict[LedgerId, tuple[float, float]] = {}

    def ready(self, marked: Iterable[LedgerId], now_s: float) -> list[LedgerId]:
        """Return the ledgers of `marked` that are due, and forget the backoff of
        unmarked ledgers.
        """
        known = list(marked)
        self._waits = {one: self._waits[one] for one in known if one in self._waits}
        return [one for one in known if one not in self._waits or self._waits[one][0] <= now_s]

    def on_failed(self, ledger: LedgerId, now_s: float, retry_s: float | None = None) -> None:
        """Record a failure: retry after the backoff, or after `retry_s` if it is given."""
        _, before_s = self._waits.get(ledger, (0.0, self._wait_s_min / 2))
        wait_s = min(before_s * 2, self._wait_s_max)
        if retry_s is not None:
            self._waits[ledger] = (now_s + retry_s, before_s)
        else:
            self._waits[ledger] = (now_s + wait_s, wait_s)

    def on_repaired(self, ledger: LedgerId) -> None:
        """Record a repair. If the ledger is marked again, it is due at once."""
        self._waits.pop(ledger, None)

    def reset(self) -> None:
        """Make every ledger due, because the bookies have changed."""
        self._waits.clear()
