"""The recent load of each bookie. Pure: time is an argument, in seconds."""

from __future__ import annotations

from ledger.ids import BookieId


class DecayingLoad:
    """Amounts by bookie, in any unit. Every `half_life_s` seconds an amount is halved."""

    __slots__ = ("_amounts", "_as_of_s", "_half_life_s")

    def __init__(self, half_life_s: float) -> None:
        assert half_life_s > 0
        self._half_life_s = half_life_s
        # The amounts, decayed up to `_as_of_s`. Amounts close to zero are dropped.
        self._amounts: dict[BookieId, float] = {}
        # The latest time seen. It never goes back.
        self._as_of_s = 0.0

    def add(self, bookie: BookieId, amount: float, now_s: float) -> None:
        """Add `amount` to the load of `bookie`. `now_s` must not be below an earlier one."""
        self._decay(now_s)
        self._amounts[bookie] = self._amounts.get(bookie, 0.0) + amount

    def at(self, now_s: float) -> dict[BookieId, float]:
        """Return the decayed amounts. A bookie without load is missing."""
        self._decay(now_s)
        return dict(self._amounts)

    def _decay(self, now_s: float) -> None:
        passed_s = now_s - self._as_of_s
        if passed_s <= 0:
            return
        self._as_of_s = now_s
        left: float = 0.5 ** (passed_s / self._half_life_s)
        # Dropping tiny amounts also drops bookies that no longer exist.
        self._amounts = {
            bookie: amount * left
            for bookie, amount in self._amounts.items()
            if amount * left > 1e-6
        }
