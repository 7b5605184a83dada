"""When the journal writes and syncs its next group. Pure: time arrives as an argument.

One group is under way at a time, so what arrives meanwhile becomes the next one by itself
(natural batching). Beyond that a small wait can pay: whoever was acknowledged a moment ago
(pipelining producers) is about to send again, and a sync costs the same for one entry as for ten.
So the first entries after a sync wait for as many as the last group held, never longer than
`wait_us_max`; when waiting brings nobody, it is given up for a while (twice as long each time).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

_GIVE_UP_GROUPS_MAX: Final = 256
_TURN_US_MIN: Final = 5  # no event loop turns faster; bounds the questions where time stands still


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupCommitLimits:
    """How large a group grows and how long it waits."""

    group_bytes_max: int = 1024 * 1024  # one larger entry is its own group
    group_entries_max: int = 320  # three buffers each: one vectored write takes 1,024
    wait_us_max: int = 0  # 0: natural batching only

    def __post_init__(self) -> None:
        assert self.group_bytes_max >= 4096
        assert self.group_entries_max >= 1
        assert 0 <= self.wait_us_max <= 100_000


class GroupCommit:
    """Decides, remembers how the last waits went, and touches nothing."""

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
        self._expected_entries = 0  # entries of the last group: its senders may send again
        self._futile_waits = 0  # waits in a row that brought nobody
        self._groups_without_wait = 0
        self._waiting_since_s: float | None = None
        self._entries_at_wait = 0
        self._turns = 0

    def wait_us(self, now_s: float, entries: int, bytes_waiting: int) -> int:
        """0: write now. Else ask again within that time (or when more has arrived).

        Asked only while something waits and no group is under way.
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
        """A group of so many entries was taken from the queue."""
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
