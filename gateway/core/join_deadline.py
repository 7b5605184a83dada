"""The time when a join of a group ends, with the delayed first join (KIP-134). Pure.

The first join after the group was empty runs in rounds, so that many members can start together.
Each round in which a member was added is followed by another one, up to the rebalance timeout.
"""

from __future__ import annotations


class JoinDeadline:
    """The deadline of the join of one group. Times are in milliseconds."""

    __slots__ = ("_added", "_delay_ms", "_left_ms", "_round_ms", "at_ms", "initial")

    def __init__(self, delay_ms: int) -> None:
        self.at_ms: int | None = None  # set while PreparingRebalance
        self.initial = False  # True during the first rebalance after the group was Empty
        self._delay_ms = delay_ms  # length of a round of the first rebalance, at most
        self._round_ms = 0  # length of the current round
        self._left_ms = 0  # time by which later rounds may delay the first rebalance
        self._added = False  # True if a member was added in this round

    def begin(self, now_ms: int, rebalance_timeout_ms: int) -> None:
        """Begin a join of which all members are known."""
        self.at_ms = now_ms + rebalance_timeout_ms

    def begin_initial(self, now_ms: int, rebalance_timeout_ms: int) -> None:
        """Begin the first round of the first join."""
        self.initial = True
        self._round_ms = self._delay_ms
        self._left_ms = max(rebalance_timeout_ms - self._delay_ms, 0)
        self._added = False
        self.at_ms = now_ms + self._delay_ms

    def on_member_added(self) -> None:
        self._added = True

    def begin_next_round(self, now_ms: int) -> bool:
        """Begin another round of the first join if one is due. Returns False if the join ends."""
        if not (self.initial and self._added and self._left_ms):
            return False
        self._added = False
        delay_ms = min(self._delay_ms, self._left_ms)
        self._left_ms = max(self._left_ms - self._round_ms, 0)
        self._round_ms = delay_ms
        self.at_ms = now_ms + delay_ms
        return True

    def extend(self, at_ms: int) -> None:
        """Move the deadline of a join to `at_ms`, except that of a first join."""
        if self.at_ms is not None and not self.initial:
            self.at_ms = at_ms
