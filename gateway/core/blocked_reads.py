"""Where the readers of one partition wait for a record that no bookie returns. Pure.

    failed ─▶ blocked (30 s: stalled, 121 s: stuck) ─▶ read │ not asked for again: expired

Readers at the same offset count as one, because fetches of most clients do not tell them apart.
Source: LogDevice, `reader-stalled-grace-period` and `reader-stuck-threshold`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

STALLED_S = 30.0
STUCK_S = 121.0

EXPIRY_S = 60.0
"""A reader that has not asked again for this time is gone. Clients retry within seconds."""

AT_END = -1
"""Stands for the offset of all readers while the end of the log cannot be determined."""

PLACES_MAX = 16
"""Places of one partition. All readers of a loss wait at its first offset."""


class BlockedRead(NamedTuple):
    """One offset at which readers wait, and why."""

    offset: int  # or AT_END
    # True if the entry is lost. Otherwise a bookie may still return it.
    lost: bool
    # The bookies that may have the entry; none if it is lost, or if it is not known which.
    waits_for: tuple[str, ...]
    since_s: float
    seen_s: float
    # The first readable offset behind a loss, None while it is not known.
    following: int | None = None
    # True if the loss was accepted, but the topic stops its readers there.
    stopped: bool = False

    @property
    def text(self) -> str:
        """The reason as `group describe` and the metrics page show it."""
        where = "its end" if self.offset == AT_END else f"offset {self.offset}"
        if self.stopped:
            return f"blocked at {where}: lost (gateway.loss.delivery=stop)"
        if self.lost:
            return f"blocked at {where}: lost"
        waits_for = ", ".join(self.waits_for) or "its bookies"
        return f"blocked at {where}: waiting for {waits_for}"

    @property
    def lost_offsets(self) -> int:
        """Number of offsets in the loss, as far as readers met it."""
        return 1 if self.following is None else max(1, self.following - self.offset)


class BlockedReads:
    """The blocked offsets of one partition, at most `PLACES_MAX`."""

    __slots__ = ("_places",)

    def __init__(self) -> None:
        # By offset, the least recently failed one first.
        self._places: dict[int, BlockedRead] = {}

    def __bool__(self) -> bool:
        return bool(self._places)

    def __contains__(self, offset: int) -> bool:
        return offset in self._places

    def on_failed(
        self,
        offset: int,
        now_s: float,
        *,
        lost: bool,
        waits_for: Sequence[str] = (),
        stopped: bool = False,
    ) -> bool:
        """Record a failed read at `offset`. Returns True if no reader was blocked there before."""
        self._expire(now_s)
        known = self._places.pop(offset, None)
        since_s = now_s if known is None else known.since_s
        following = None if known is None else known.following
        self._places[offset] = BlockedRead(
            offset, lost, tuple(waits_for), since_s, now_s, following, stopped
        )
        if len(self._places) > PLACES_MAX:
            del self._places[next(iter(self._places))]
        return known is None

    def on_asked(self, offset: int, now_s: float) -> bool:
        """Record that a reader asked for `offset` again. Returns False if none is blocked there."""
        self._expire(now_s)
        known = self._places.pop(offset, None)
        if known is None:
            return False
        self._places[offset] = known._replace(seen_s=now_s)
        return True

    def on_read(self, first: int, end: int) -> bool:
        """Unblock the offsets from `first` to `end` - 1. Returns True if one of them was lost."""
        offsets = [at for at in self._places if first <= at < end]
        passed = [self._places.pop(at) for at in offsets]
        return any(place.lost for place in passed)

    def know_following(self, offset: int, following: int) -> None:
        """Set the first readable offset behind the loss at `offset`."""
        known = self._places.get(offset)
        if known is not None:
            self._places[offset] = known._replace(following=following)

    def places(self, start: int, now_s: float) -> list[BlockedRead]:
        """Return the blocked offsets from `start` on, in order, and `AT_END` before them.

        Of several offsets within one loss only the first one is returned.
        """
        self._expire(now_s)
        found: list[BlockedRead] = []
        for offset in sorted(self._places):
            place = self._places[offset]
            last = found[-1] if found else None
            within = last is not None and last.following is not None and offset < last.following
            if (offset >= start or offset == AT_END) and not (within and place.lost):
                found.append(place)
        return found

    def any_lost(self, now_s: float) -> bool:
        """Return whether readers wait at a loss."""
        self._expire(now_s)
        return any(place.lost for place in self._places.values())

    def readers_blocked(self, duration_s: float, now_s: float) -> int:
        """Return how many blocked readers have waited for at least `duration_s` seconds."""
        self._expire(now_s)
        return sum(now_s - place.since_s >= duration_s for place in self._places.values())

    def _expire(self, now_s: float) -> None:
        for offset in [at for at, each in self._places.items() if now_s - each.seen_s > EXPIRY_S]:
            del self._places[offset]
