"""Is the committed offset of a group and partition a linearizable register? Pure, n log n.

Where every commit writes a value of its own, that question is easy: each value was the register's
from its last possible first moment to its first possible last one, its zone, and zones tell.
Values that were written twice say nothing for certain and are left out.
Source: Gibbons and Korach, "Testing shared memories" (1997), theorem 4.3.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

NOTHING = -1  # what a fetch says where nothing was committed


class Access(NamedTuple):
    """A commit (`writes`) or a fetch of one group and key. `failed`: it did not happen.

    `again`: a commit that its client may send again, without a word, when an answer is lost. It may
    take effect several times until it ends, also after a commit of somebody else.
    """

    writes: bool
    value: Any
    start_s: float
    end_s: float
    sure: bool = True
    failed: bool = False
    again: bool = False


class _Zone(NamedTuple):
    """`low` is the earliest end of what concerns a value, `high` the latest start."""

    low: float
    high: float
    value: Any

    @property
    def forward(self) -> bool:
        """The value was there from `low` to `high`, whatever the order of the others."""
        return self.low < self.high


def stale_accesses(history: Sequence[Access]) -> Iterator[tuple[str, str]]:
    """(anomaly, what): nothing when some order of all accesses, within their times, explains it.

    committed-phantom: fetched, never committed, or before it was. committed-aborted: its commit
    failed. committed-fell: an older value, or none, after a newer one.
    """
    writes: dict[Any, Access] = {}
    times = Counter(access.value for access in history if access.writes)
    for access in history:
        if access.writes:
            writes[access.value] = access
    reads: dict[Any, list[Access]] = defaultdict(list)
    for access in history:
        if not access.writes:
            reads[access.value].append(access)
    yield from _unwritten(writes, times, reads)
    zones = list(_zones(writes, times, reads))
    forward = sorted(zone for zone in zones if zone.forward)
    yield from _overlapping(forward)
    yield from _inside(forward, [zone for zone in zones if not zone.forward])


def _unwritten(
    writes: dict[Any, Access], times: Counter[Any], reads: dict[Any, list[Access]]
) -> Iterator[tuple[str, str]]:
    for value, readers in reads.items():
        if value == NOTHING:
            continue
        writer = writes.get(value)
        if writer is None:
            yield "committed-phantom", f"{value} was fetched, and nobody committed it"
        elif times[value] > 1:
            continue
        elif writer.failed:
            yield "committed-aborted", f"{value} was fetched, and its commit failed"
        elif min(reader.end_s for reader in readers) < writer.start_s:
            yield "committed-phantom", f"{value} was fetched before it was committed"


def _zones(
    writes: dict[Any, Access], times: Counter[Any], reads: dict[Any, list[Access]]
) -> Iterator[_Zone]:
    if reads[NOTHING] and NOTHING not in writes:
        latest_s = max(reader.start_s for reader in reads[NOTHING])
        yield _Zone(float("-inf"), latest_s, NOTHING)
    for value, writer in writes.items():
        readers = reads.get(value, [])
        if times[value] > 1 or writer.failed or not (writer.sure or readers):
            continue  # a commit without an answer that nobody saw may not have happened
        if writer.again and writer.sure:
            # Who read it while it was under way may have seen an effect of its own.
            early = [reader for reader in readers if reader.end_s < writer.end_s]
            readers = [reader for reader in readers if reader.end_s >= writer.end_s]
            for reader in early:
                yield _Zone(reader.end_s, max(reader.start_s, writer.start_s), value)
        ends = [writer.end_s, *(reader.end_s for reader in readers)]
        starts = [writer.start_s, *(reader.start_s for reader in readers)]
        yield _Zone(min(ends), max(starts), value)


def _overlapping(forward: Sequence[_Zone]) -> Iterator[tuple[str, str]]:
    """A value that was there before another one and after it; said once of each."""
    longest: _Zone | None = None
    told: list[_Zone] = []
    for zone in forward:
        if longest is not None and zone.low < longest.high and longest not in told:
            told.append(longest)
            yield "committed-fell", f"{longest.value} was fetched after {zone.value} was there"
        if longest is None or zone.high > longest.high:
            longest = zone


def _inside(forward: Sequence[_Zone], backward: Sequence[_Zone]) -> Iterator[tuple[str, str]]:
    """A value that came and went while another one was there: nobody had overwritten that."""
    told: list[_Zone] = []
    waiting = sorted(backward, key=lambda zone: zone.high)
    around: _Zone | None = None
    at = 0
    for zone in waiting:
        while at < len(forward) and forward[at].low < zone.high:
            if around is None or forward[at].high > around.high:
                around = forward[at]
            at += 1
        if around is not None and zone.low < around.high and around not in told:
            told.append(around)
            yield "committed-fell", f"{around.value} was fetched after {zone.value} was committed"
