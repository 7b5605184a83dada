"""How long the journal delays its next group so that it grows; off by default. Pure.

The journal has one group in flight at a time, so adds that arrive meanwhile form the next one
(natural batching). Beyond that a small wait can pay off. Pipelining producers send again right
after an acknowledgement, and a sync costs the same for one entry as for ten. The first entries
after a sync therefore wait until the queue has as many entries as the last group, for at most
`wait_us_max`. A wait that brings no further entry suspends waiting for some groups. The number of
these groups doubles each time.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

_GIVE_UP_GROUPS_MAX: Final = 256
# The shortest turn of an event loop. Bounds the calls of one wait if the clock stands still.
_TURN_US_MIN: Final = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupCommitLimits:
    """Bounds on the size of a group and on the wait for more entries."""

    group_bytes_max: int = 1024 * 1024  # a larger entry forms a group alone
    group_entries_max: int = 320  # an entry has three buffers, and a vectored write takes 1,024
    wait_us_max: int = 0  # 0 means natural batching only

    def __post_init__(self) -> None:
        assert self.group_bytes_max >= 4096
        assert self.group_entries_max >= 1
        assert 0 <= self.wait_us_max <= 100_000


class GroupCommit:
    """The decision how long a group waits, based on earlier waits. Time is an argument."""

    __slots__ = (
        "_entries_at_wait",
        "_expected_entries",
        "_futile_waits",
        "_groups_without_wait",
        "_limits",
        "_turns",
        "_waiting_since_s",
    )

    def __init__(self, limits: GroupCommitLimits) -> None:
        self._limits = limits
        # Entries in the last group, whose senders may send again. Replaced with each group.
        self._expected_entries = 0
        # Consecutive waits that brought no entry. A wait that brings an entry resets the count.
        self._futile_waits = 0
        # Groups still to be written without a wait, because waits were futile. Counts down to 0.
        self._groups_without_wait = 0
        # Start of the current wait, or None. Set by `wait_us`, cleared when a group is taken.
        self._waiting_since_s: float | None = None
        # Entries in the queue when the current wait began. Meaningless without a wait.
        self._entries_at_wait = 0
        # Calls left in the current wait, so that it ends even if the clock stands still.
        self._turns = 0

    def wait_us(self, now_s: float, entries: int, bytes_waiting: int) -> int:
        """Return 0 to write now, or the longest time in microseconds until the next call.

        Call only while the queue is not empty and no group is in flight. Call early if more entries
        arrive.
        """
        assert entries > 0
        limits = self._limits
        if limits.wait_us_max == 0:
            return 0
        if entries >= limits.group_entries_max or bytes_waiting >= limits.group_bytes_max:
            return 0
        if entries >= self._expected_entries or self._groups_without_wait > 0:
            return 0
        if self._waiting_since_s is None:
            self._waiting_since_s = now_s
            self._entries_at_wait = entries
            self._turns = limits.wait_us_max // _TURN_US_MIN
        self._turns -= 1
        if self._turns < 0:
            return 0
        waited_us = (now_s - self._waiting_since_s) * 1e6
        return max(0, int(limits.wait_us_max - waited_us))

    def on_written(self, entries: int) -> None:
        """Record that a group of `entries` entries was taken from the queue."""
        if self._waiting_since_s is not None:
            self._record_wait(entries)
        elif self._groups_without_wait > 0:
            self._groups_without_wait -= 1
        self._waiting_since_s = None
        self._expected_entries = entries

    def _record_wait(self, entries: int) -> None:
        if entries > self._entries_at_wait:
            self._futile_waits = 0
            return
        self._futile_waits += 1
        self._groups_without_wait = min(_GIVE_UP_GROUPS_MAX, 2**self._futile_waits)
