"""How much was given to each bookie of late. Pure: time is an argument, in seconds."""

from __future__ import annotations

from ledger.ids import BookieId


class DecayingLoad:
    """Amounts by bookie, in any unit; each counts half as much after every `half_life_s`."""

    __slots__ = ("_amounts", "_as_of_s", "_half_life_s")

    def __init__(self, half_life_s: float) -> None:
        assert half_life_s > 0
        self._half_life_s = half_life_s
        self._amounts: dict[BookieId, float] = {}
        self._as_of_s = 0.0

    def add(self, bookie: BookieId, amount: float, now_s: float) -> None:
        """`amount` more was given to the bookie. Time never goes back."""
        self._decay(now_s)
        self._amounts[bookie] = self._amounts.get(bookie, 0.0) + amount

    def at(self, now_s: float) -> dict[BookieId, float]:
        """What counts now; bookies that were given nothing are not in it."""
        self._decay(now_s)
        return dict(self._amounts)

    def _decay(self, now_s: float) -> None:
        passed_s = now_s - self._as_of_s
        if passed_s <= 0:
            return
        self._as_of_s = now_s
        left: float = 0.5 ** (passed_s / self._half_life_s)
        # What is next to nothing goes, and so do bookies that exist no more.
        self._amounts = {
            bookie: amount * left
            for bookie, amount in self._amounts.items()
            if amount * left > 1e-6
        }
