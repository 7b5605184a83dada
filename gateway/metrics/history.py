"""The recent past of this gateway in rings of memory, and of all gateways by asking them.

A point is taken every 10 s, from 10 s after the start on. At most 1,000 groups and 50 bookies are
kept, in 16 MB. Rates and counts of gateways are added; a group and a bookie are the same for all.
A read-only group has no coordinator: each gateway sees the part that reads there, and the lags in
records of the parts are added.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from heapq import nlargest
from typing import Any, Final, NamedTuple

from gateway.core.history_rings import (
    COARSE,
    FINE,
    Point,
    Series,
    Step,
    added,
    any_of,
    named,
    quantile,
    slot_of,
)
from gateway.figures.parts import share_of
from gateway.figures.rows import GroupRow
from gateway.handlers.api import Context
from gateway.metrics.peer_questions import ask_peers
from gateway.metrics.samples import Samples
from ledger.errors import LedgerError
from ledger.ports.bookies import Status
from ledger.ports.clock import SECONDS
from ledger.tasks import start_restarting

GROUPS_MAX: Final = 1_000
BOOKIES_MAX: Final = 50
LINES_MAX: Final = 10  # of one answer: groups or bookies, those with the largest last point
APIS: Final = ("Produce", "Fetch", "other")
SPANS: Final[Mapping[str, Step]] = {"1h": FINE, "24h": COARSE}
_NAME: Final = "history"  # in `Context.lazy`

Lines = Mapping[str, list[list[Point]]]
"""The points of one gateway by name: rows of numbers, oldest first."""

Lags = Mapping[str, tuple[Point, Point]]
"""Lag of groups in records and in seconds, by group. Unknown is None."""


class Kind(NamedTuple):
    """One series of plots: its unit, and which numbers of which ring it shows."""

    unit: str
    of: str  # what `of` names: "", "api", "group" or "bookie"
    at: int = 0  # the number in a point of the ring


KINDS: Final[Mapping[str, Kind]] = {
    "bytes_in": Kind("bytes/s", "", 0),
    "bytes_out": Kind("bytes/s", "", 1),
    "records_in": Kind("records/s", "", 2),
    "records_out": Kind("records/s", "", 3),
    "request_ms": Kind("ms", "api"),
    "lag_records": Kind("records", "group", 0),
    "lag_seconds": Kind("s", "group", 1),
    "sync_ms": Kind("ms", "bookie", 0),
    "disk_bytes": Kind("bytes", "bookie", 1),
}
_RATES: Final = 4
_ADDED_IN_PARTS: Final = "lag_records"
_NUMBERS_PER_TURN: Final = 1_000  # of points, between two turns of other tasks
_KEPT_PER_TURN: Final = 50  # groups
_SAMPLE_S_MAX: Final = 5.0  # for which a point waits for a sample; then it takes the last one


async def group_lags(ctx: Context) -> Lags:
    """Return the lag of the groups of this gateway, from a new sample of its share.

    The ends of partitions are those of now. With positions of an earlier sample, each group that
    keeps up would lag by what was written since.
    """
    share = share_of(ctx)
    await share.renewed(_SAMPLE_S_MAX)
    rows = list(share.groups.rows.values())
    claimed = [row for row in rows if row.claimed]
    idle = [row for row in rows if not row.claimed]
    most = max(0, ctx.config.metrics.groups_max - len(claimed))
    return await Samples(ctx).group_lags(claimed + await _own(ctx, idle[:most]))


async def _own(ctx: Context, idle: list[GroupRow]) -> list[GroupRow]:
    """Return the idle groups that no other gateway has claimed: those commit only there.

    Returns none if that is unknown: their offsets here may be minutes old.
    """
    if not idle:
        return []
    try:
        async with asyncio.timeout(ctx.config.metrics.read_s_max):
            elsewhere = await ctx.groups.claimed_elsewhere([row.group for row in idle])
    except (LedgerError, TimeoutError):
        return []
    return [row for row in idle if row.group not in elsewhere]


class History:
    """The rings of one gateway. `start` once, `close` once."""

    def __init__(
        self, ctx: Context, lags: Callable[[Context], Awaitable[Lags]] = group_lags
    ) -> None:
        self._ctx = ctx
        self._lags = lags
        self._rates = Series(_RATES)
        # Requests of `SECONDS`' classes since the point before, by API.
        self._requests = {api: Series(len(SECONDS) + 1, sums=True) for api in APIS}
        self._groups: dict[str, Series] = {}
        # Those of them that were read-only at their last point.
        self._readers: set[str] = set()
        self._bookies: dict[str, Series] = {}
        # The counts of the last point, and when it was taken. None before the first.
        self._before: tuple[float, list[int], dict[str, list[int]]] | None = None
        self._syncs: dict[str, tuple[int, int]] = {}  # of the last point, by bookie
        # Takes points again and again. None before `start`.
        self._taking: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Take a point at the end of each slot from now on."""
        self._taking = start_restarting("the history", self._take_points)

    async def close(self) -> None:
        """Take no more points."""
        if self._taking is not None:
            self._taking.cancel()
            await asyncio.gather(self._taking, return_exceptions=True)

    @property
    def size_bytes(self) -> int:
        """Return the bytes of all rings."""
        parts = [self._rates, *self._requests.values(), *self._groups.values()]
        return sum(each.size_bytes for each in [*parts, *self._bookies.values()])

    async def _take_points(self) -> None:
        while True:
            begun = slot_of(self._ctx.clock.now_ms(), FINE)
            # A timer may be early by a millisecond: a second point would replace the first one.
            while slot_of(self._ctx.clock.now_ms(), FINE) == begun:
                step_ms = 1_000 * FINE.seconds
                await asyncio.sleep((step_ms - self._ctx.clock.now_ms() % step_ms) / 1_000)
            await self.take()

    async def take(self) -> None:
        """Take one point, which belongs to the slot that ends now."""
        at_ms = self._ctx.clock.now_ms() - 1_000 * FINE.seconds // 2
        self._take_counts(at_ms)
        lags = await self._lags(self._ctx)
        await _keep(self._groups, lags, at_ms, GROUPS_MAX)
        self._note_readers(lags)
        await _keep(self._bookies, await self._bookie_points(), at_ms, BOOKIES_MAX)

    # -- taking -------------------------------------------------------------------------------

    def _take_counts(self, at_ms: int) -> None:
        now_s = self._ctx.clock.monotonic_s()
        totals, requests = self._totals(), self._request_counts()
        before, self._before = self._before, (now_s, totals, requests)
        if before is None or now_s <= before[0]:
            return
        over_s = now_s - before[0]
        self._rates.put(
            at_ms, [(now - old) / over_s for now, old in zip(totals, before[1], strict=True)]
        )
        for api, counts in requests.items():
            grown = [now - old for now, old in zip(counts, before[2][api], strict=True)]
            self._requests[api].put(at_ms, grown)

    def _note_readers(self, lags: Lags) -> None:
        names = [name for name in self._ctx.read_only_groups.names() if name in lags]
        self._readers -= lags.keys()
        self._readers.update(name for name in names if not self._ctx.groups.stored(name))
        self._readers &= self._groups.keys()

    def parts(self, names: Collection[str]) -> list[str]:
        """Return those of these groups of which this gateway sees only a part."""
        return [name for name in names if name in self._readers]

    def _totals(self) -> list[int]:
        total = self._ctx.partitions.traffic.total()
        return [total.bytes_in, total.bytes_out, total.records_in, total.records_out]

    def _request_counts(self) -> dict[str, list[int]]:
        found = {api: [0] * (len(SECONDS) + 1) for api in APIS}
        for api in self._ctx.requests.apis.values():
            into = found[api.name if api.name in found else "other"]
            for index, count in enumerate(api.counts):
                into[index] += count
        return found

    async def _bookie_points(self) -> dict[str, tuple[Point, Point]]:
        """Return sync times and used bytes of bookies. One gateway asks for all of them."""
        ctx = self._ctx
        first = min((each.node_id for each in ctx.cluster.members()), default=None)
        if ctx.streams is None or first != ctx.cluster.node_id:
            return {}
        found: dict[str, tuple[Point, Point]] = {}
        for name, stats in (await ctx.streams.client.stats(BOOKIES_MAX)).items():
            if stats.status is not Status.OK:
                continue
            syncs, sync_us = self._syncs.get(name, (0, 0))
            self._syncs[name] = (stats.syncs, stats.sync_us)
            grown = stats.syncs - syncs
            mean_ms = (stats.sync_us - sync_us) / 1_000 / grown if syncs and grown > 0 else None
            found[name] = (mean_ms, float(stats.disk_bytes - stats.free_bytes))
        return found

    # -- reading ------------------------------------------------------------------------------

    async def lines(
        self, series: str, of: str, step: Step, last: int
    ) -> dict[str, list[list[Point]]]:
        """Return the points of this gateway by name, up to the slot `last`.

        Without `of`, they are the groups or bookies with the largest last points.
        """
        kind = KINDS[series]
        if kind.of == "api":
            ring = self._requests.get(of)
            return {} if ring is None else {of: await _all_points(ring, step, last)}
        if not kind.of:
            return {"": _only(await _all_points(self._rates, step, last), kind.at)}
        rings = self._groups if kind.of == "group" else self._bookies
        names = [of] if of else await _largest(rings, kind.at, step, last)
        return {
            name: _only(await _all_points(rings[name], step, last), kind.at)
            for name in names
            if name in rings
        }


async def _keep(
    rings: dict[str, Series], points: Mapping[str, tuple[Point, Point]], at_ms: int, most: int
) -> None:
    """Add a point to the ring of each name. Those without points for longest make room."""
    new = [name for name in points if name not in rings]
    room = most - len(rings)
    gone = [name for name in rings if name not in points] if len(new) > room else []
    gone.sort(key=lambda name: rings[name].newest_ms or 0)
    for name in gone[: len(new) - room]:
        del rings[name]
    for number, (name, point) in enumerate(points.items(), 1):
        if name not in rings:
            if len(rings) >= most:
                continue
            rings[name] = Series(2)
        rings[name].put(at_ms, point)
        if number % _KEPT_PER_TURN == 0:
            await asyncio.sleep(0)


async def _all_points(ring: Series, step: Step, last: int) -> list[list[Point]]:
    """Return all points of a ring, oldest first, with pauses for other tasks."""
    found: list[list[Point]] = []
    first = last - step.points + 1
    while first <= last:
        width = len(found[0]) if found else len(SECONDS) + 1
        count = min(last - first + 1, max(1, _NUMBERS_PER_TURN // width))
        found += ring.points(first + count - 1, step, count)
        first += count
        await asyncio.sleep(0)
    return found


def _only(rows: list[list[Point]], at: int) -> list[list[Point]]:
    return [[row[at]] for row in rows]


async def _largest(rings: Mapping[str, Series], at: int, step: Step, last: int) -> list[str]:
    """Return the names with the largest points of the last two slots, the largest first."""
    sizes: list[tuple[float, str]] = []
    for number, (name, ring) in enumerate(list(rings.items()), 1):
        known = [row[at] for row in ring.points(last, step, 2) if row[at] is not None]
        sizes.append((known[-1] or 0.0 if known else -1.0, name))
        if number % _KEPT_PER_TURN == 0:
            await asyncio.sleep(0)
    return [name for _, name in nlargest(LINES_MAX, sizes)]


def begin(ctx: Context) -> None:
    """Begin the history of this gateway, which ends with it."""
    if _NAME not in ctx.lazy:
        history = History(ctx)
        ctx.lazy[_NAME] = history
        history.start()


def history_of(ctx: Context) -> History | None:
    """Return the history of this gateway, None before it has begun."""
    found = ctx.lazy.get(_NAME)
    return found if isinstance(found, History) else None


async def answer(asked: Mapping[str, Any], ctx: Context) -> dict[str, Any]:
    """Answer the private question `history`: the points of this gateway alone."""
    series, span, last = asked.get("series"), asked.get("span"), asked.get("last")
    of = asked.get("of", "")
    if series not in KINDS or span not in SPANS or not isinstance(of, str):
        text = f"series is one of {', '.join(KINDS)}, span one of {', '.join(SPANS)}"
        return {"error": "INVALID_REQUEST", "message": text}
    if not isinstance(last, int) or isinstance(last, bool) or not 0 <= last < 2**40:
        return {"error": "INVALID_REQUEST", "message": "last is the number of a slot"}
    found = history_of(ctx)
    lines = {} if found is None else await found.lines(str(series), of, SPANS[span], last)
    parts = found.parts(lines) if found is not None and series == _ADDED_IN_PARTS else []
    return {"node_id": ctx.cluster.node_id, "lines": lines, "parts": parts}


async def history(ctx: Context, series: str, of: str, span: str) -> dict[str, Any]:
    """Return a history of the whole cluster, as the API does.

    Other gateways that do not answer within two seconds are left out. `of` is an API, a group or a
    bookie; without it those with the largest last points, or the API Produce.
    """
    kind, step = KINDS[series], SPANS[span]
    if kind.of == "api":
        of = of or APIS[0]
    last = slot_of(ctx.clock.now_ms(), step) - 1  # the present slot is not complete
    body = {"ask": "history", "series": series, "of": of, "span": span, "last": last}
    own = await answer(body, ctx)
    peers = await ask_peers(ctx, lambda member: body)
    answers = [own, *peers.values()]
    lines: list[Lines] = [each["lines"] for each in answers if each and "lines" in each]
    parts = {name for each in answers if each for name in each.get("parts", ())}
    return {
        "series": series,
        "of": of or None,
        "unit": kind.unit,
        "step_s": step.seconds,
        "from_ms": (last - step.points + 1) * step.seconds * 1_000,
        "silent": sorted(node_id for node_id, each in peers.items() if each is None),
        "lines": named(await _merged_in_pieces(series, lines, step.points, parts)),
    }


async def _merged_in_pieces(
    series: str, answers: Sequence[Lines], count: int, parts: Collection[str]
) -> dict[str, list[Point]]:
    """Merge as `merged` does, with pauses for other tasks."""
    found: dict[str, list[Point]] = {}
    size = max(1, _NUMBERS_PER_TURN // (len(SECONDS) + 1))
    for at in range(0, count, size):
        some = [{name: rows[at : at + size] for name, rows in each.items()} for each in answers]
        for name, points in merged(series, some, parts).items():
            found.setdefault(name, []).extend(points)
        await asyncio.sleep(0)
    return found


def merged(
    series: str, answers: Sequence[Lines], parts: Collection[str] = ()
) -> dict[str, list[Point]]:
    """Merge what gateways answered: rates are added, groups and bookies are the same for all.

    `parts` are groups of which each gateway sees a part: their lines are added too.
    """
    kind = KINDS[series]
    found: dict[str, list[list[list[Point]]]] = {}
    for answered in answers:
        for name, rows in answered.items():
            found.setdefault(name, []).append(rows)
    if kind.of == "api":
        rows = [_added_rows(each) for each in found.values()]
        shares = {"p50": 0.5, "p99": 0.99}
        return {name: _quantiles(rows[0], share) for name, share in shares.items()} if rows else {}
    lines_of: dict[str, list[Point]] = {}
    for name, each in found.items():
        merge = any_of if kind.of and name not in parts else added
        lines_of[name or series] = merge([[row[0] for row in rows] for rows in each])
    return dict(list(lines_of.items())[:LINES_MAX])


def _added_rows(answers: Sequence[Sequence[Sequence[Point]]]) -> list[list[Point]]:
    """Add the classes of histograms, place by place."""
    return [added(rows) for rows in zip(*answers, strict=True)]


def _quantiles(rows: Sequence[Sequence[Point]], share: float) -> list[Point]:
    found = [quantile(row, SECONDS, share) for row in rows]
    return [None if each is None else round(each * 1_000, 3) for each in found]
