"""The ends of both sides at one moment, although the logs are written meanwhile.

The sides are looked at one after the other. A live log that ends earlier is looked at again, until
it has what the other side had at its look. What a side lacks then, it lacks in truth, with two
exceptions. An archive of the same log ends where its last commit ended. And if the longer side
grows during the audit, the other side may follow it. In both cases the longer side is compared up
to the end of the other one, and the offsets after it are reported.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import NamedTuple

from gateway.pipelines.audits.model import SIDES, Align, Ranges, Side
from gateway.pipelines.shared.partitions import TopicPartition
from gateway.pipelines.shared.topics import OffsetBounds
from ledger.adapters.system.clock import SystemClock
from ledger.ports.clock import Clock

_PAUSE_S = 0.2
_QUIET_S_MAX = 3.0
"""The time after which a log that does not grow is not looked at again."""
_WAIT_S_MAX = 60.0


class SettledSides(NamedTuple):
    """Both sides with the ends to compare. `later` counts the offsets of each side after them."""

    left: Side
    right: Side
    later: Mapping[str, int]


class _Pair(NamedTuple):
    """A partition that is longer on one side. `end` is the longer one's end, as a position."""

    partition: TopicPartition
    short: str
    long: str
    end: int


class EndSettler:
    """One comparison of ends. `same_log` names the topics of which both sides show one log."""

    def __init__(
        self,
        left: Side,
        right: Side,
        align: Align,
        same_log: frozenset[str],
        clock: Clock | None = None,
        pause: Callable[[float], None] = time.sleep,
    ) -> None:
        self._sides = {"left": left, "right": right}
        self._ranked = align is Align.rank
        self._same_log = same_log
        self._clock = clock or SystemClock()
        self._pause = pause
        # The ends to compare, by side. At first those of the sides, then those that were settled.
        self._bounds: dict[str, dict[TopicPartition, OffsetBounds]] = {
            name: dict(side.bounds) for name, side in self._sides.items()
        }
        # The bounds of live logs at the last look, by side. Empty for a side that is not live.
        self._now: dict[str, Ranges] = {name: {} for name in SIDES}

    def settle(self) -> SettledSides:
        """Return the sides with ends of one moment."""
        left = self._wait(self._unequal())
        later: dict[str, int] = dict.fromkeys(SIDES, 0)
        for pair in left:
            if self._may_follow(pair):
                later[pair.long] += self._shorten(pair)
        return SettledSides(self._settled("left"), self._settled("right"), later)

    def _base(self, name: str, partition: TopicPartition) -> int:
        return self._sides[name].bounds[partition].earliest if self._ranked else 0

    def _unequal(self) -> list[_Pair]:
        found: list[_Pair] = []
        for partition in sorted({*self._bounds["left"]} & {*self._bounds["right"]}):
            left, right = (
                self._bounds[name][partition].latest - self._base(name, partition) for name in SIDES
            )
            if left < right:
                found.append(_Pair(partition, "left", "right", right))
            elif right < left:
                found.append(_Pair(partition, "right", "left", left))
        return found

    def _wait(self, pairs: list[_Pair]) -> list[_Pair]:
        """Wait for the shorter logs. Returns the partitions in which one stays shorter."""
        start_s = quiet_since_s = self._clock.monotonic_s()
        ends: list[int] = []
        while pairs:
            self._now = {name: side.now() for name, side in self._sides.items()}
            pairs = [pair for pair in pairs if not self._caught_up(pair)]
            before, ends = ends, [self._end_now(pair) for pair in pairs]
            now_s = self._clock.monotonic_s()
            if ends != before:
                quiet_since_s = now_s
            waits = any(pair.partition in self._now[pair.short] for pair in pairs)
            if not waits or now_s - quiet_since_s > _QUIET_S_MAX or now_s - start_s > _WAIT_S_MAX:
                return pairs
            self._pause(_PAUSE_S)
        return []

    def _end_now(self, pair: _Pair) -> int:
        now = self._now[pair.short].get(pair.partition)
        return -1 if now is None else now.latest - self._base(pair.short, pair.partition)

    def _caught_up(self, pair: _Pair) -> bool:
        """Return whether the shorter log has the end of the longer one now, and take that end."""
        if self._end_now(pair) < pair.end:
            return False
        end = self._base(pair.short, pair.partition) + pair.end
        bounds = self._bounds[pair.short]
        bounds[pair.partition] = bounds[pair.partition]._replace(latest=end)
        return True

    def _may_follow(self, pair: _Pair) -> bool:
        """Return whether the shorter side may receive the records that it lacks later."""
        now = self._now[pair.long].get(pair.partition)
        if now is None:
            return False
        archived = pair.partition not in self._now[pair.short]
        if archived and pair.partition.topic in self._same_log:
            return True
        return now.latest > self._sides[pair.long].bounds[pair.partition].latest

    def _shorten(self, pair: _Pair) -> int:
        """End the longer side where the shorter one ends. Returns the number of offsets after."""
        known = self._bounds[pair.long][pair.partition]
        short = self._bounds[pair.short][pair.partition].latest
        end = short - self._base(pair.short, pair.partition) + self._base(pair.long, pair.partition)
        end = max(known.earliest, end)
        self._bounds[pair.long][pair.partition] = OffsetBounds(known.earliest, end)
        return known.latest - end

    def _settled(self, name: str) -> Side:
        side, bounds = self._sides[name], self._bounds[name]
        cut = {p: each for p, each in side.bounds.items() if bounds[p].latest < each.latest}
        return replace(side, bounds=bounds, logs={**cut, **side.logs})


def same_log_topics(left: Side, right: Side) -> frozenset[str]:
    """Return the topics of both sides whose ids are equal, or unknown on a side."""
    return frozenset(
        topic
        for topic in {*left.topics} & {*right.topics}
        if left.topic_ids.get(topic) == right.topic_ids.get(topic)
        or topic not in left.topic_ids
        or topic not in right.topic_ids
    )
