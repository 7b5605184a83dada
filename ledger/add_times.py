"""When bookies acknowledged the newest entries that this process wrote, in a ring in memory.

As with the events, there is one ring in each process. A writer puts a list into it for an entry,
and adds to that list with each acknowledgement. This costs about 2 µs for an entry, nearly half of
what an add costs. So a writer remembers an entry at most each 2 ms, which are all entries of a
ledger that is written to rarely; and the first 8 of a ledger and each 64th in any case.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection
from typing import Any, Final, NamedTuple

ENTRIES_MAX: Final = 1_024
SAME_S: Final = 0.005
"""An entry that was sent up to this time after another one, and confirmed with it, stands for it.
"""

Times = list[Any]
"""Ledger, entry, when it was sent, and how many acknowledgements confirm it; then bookie and time
of each acknowledgement. In monotonic seconds."""

_HEAD: Final = 4


class Acknowledgement(NamedTuple):
    """A bookie that stored an entry, and how long after the writer had sent it."""

    bookie: str
    after_ms: float


class AddTimes:
    """The times of the newest entries. Adding one drops the oldest if there are `size` already."""

    __slots__ = ("_newest", "add")

    def __init__(self, size: int = ENTRIES_MAX) -> None:
        self._newest: deque[Times] = deque(maxlen=size)
        self.add: Callable[[Times], None] = self._newest.append

    def find(self, ledger: int, entry: int) -> list[Acknowledgement] | None:
        """Return the acknowledgements of an entry by now, in their order.

        Returns None if the entry is not among those that are remembered.
        """
        times = self.times_of(ledger, entry)
        if times is None:
            return None
        began_s = times[2]
        pairs = zip(times[_HEAD::2], times[_HEAD + 1 :: 2], strict=True)
        return [
            Acknowledgement(bookie, round((at_s - began_s) * 1000, 3)) for bookie, at_s in pairs
        ]

    def first_s(
        self, ledgers: Collection[int], sent_s: tuple[float, float], confirmed_s: float
    ) -> float | None:
        """Return when the first bookie acknowledged what was confirmed then, None if unknown.

        It was sent to one of these ledgers within `sent_s`, from and to, and rather at the end.
        Takes the entry sent next to that which was confirmed with it; if none was sent until then,
        as while a stream opens, the first one. A later one would be wrong: another bookie may
        acknowledge entries at once, however long the first one has had each.
        """
        begun_s, accepted_s = sent_s
        found: Times | None = None
        first: Times | None = None  # from the begin on
        whole = len(self._newest) < (self._newest.maxlen or 0)
        for times in reversed(self._newest):  # in the order in which they were sent
            if times[2] < begun_s:
                whole = True
                break
            if times[0] not in ledgers:
                continue
            first = times
            near = times[2] <= accepted_s + SAME_S
            if near and _was_confirmed(times, confirmed_s) and _is_next(times, found, accepted_s):
                found = times
        late = first is not None and whole and first[2] > accepted_s + SAME_S
        if first is not None and late and _was_confirmed(first, confirmed_s):
            found = first
        return None if found is None else found[_HEAD + 1]

    def times_of(self, ledger: int, entry: int) -> Times | None:
        """Return what is remembered of an entry, None if nothing is."""
        for times in reversed(self._newest):
            if times[1] == entry and times[0] == ledger:
                return times
        return None


def _was_confirmed(times: Times, confirmed_s: float) -> bool:
    """Return whether the acknowledgement that confirmed an entry came shortly before this time."""
    at_s: list[float] = times[_HEAD + 1 :: 2]
    acks: int = times[3]
    return len(at_s) >= acks and 0 <= confirmed_s - at_s[acks - 1] <= SAME_S


def _is_next(times: Times, found: Times | None, accepted_s: float) -> bool:
    """Return whether an entry was sent nearer to this time than the one found so far."""
    return found is None or abs(times[2] - accepted_s) <= abs(found[2] - accepted_s)


add_times: Final = AddTimes()
