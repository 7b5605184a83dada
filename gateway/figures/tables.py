"""Rows by name with sorted indexes, from which a page of rows costs the same in any cluster."""

from __future__ import annotations

import asyncio
import base64
import binascii
import json
import re
from bisect import bisect_left, bisect_right, insort
from collections.abc import Callable, Collection, Mapping
from typing import Any, Final, Generic, NamedTuple, TypeVar, cast

from gateway.figures.slices import Slices, page_slices, sorted_in_slices

Row = TypeVar("Row")

SortKey = tuple[float, str]

UNUSED_S: Final = 60.0
"""How long an order is kept up to date after the last page in it."""

_MOVED_MAX: Final = 100  # rows that are put in their new places one by one; with more it is sorted
_STEP: Final = 250  # names that a search looks at before it looks at the time
_SEARCHED_MAX: Final = (
    1_000  # characters of a name that a search sees: the name of a group may be long
)


class BadCursor(ValueError):
    """A cursor that is not one of this table."""


class Search(NamedTuple):
    """What finds names: a text in lower case that they contain in any case, or a pattern."""

    text: str = ""
    pattern: re.Pattern[str] | None = None

    def matches(self, name: str) -> bool:
        """Return whether it finds this name."""
        if self.pattern is not None:
            return self.pattern.match(name) is not None
        return self.text in name.lower()


class Rows(NamedTuple, Generic[Row]):
    """Some rows in order, the cursor of the next ones (None at the end), and how many there are."""

    rows: list[Row]
    next: str | None
    total: int


class _Index:
    """The rows of a table in one order. Changes replace `entries`, so readers keep theirs."""

    __slots__ = ("asked_s", "entries", "keys", "stale")

    def __init__(self, entries: list[tuple[SortKey, str]]) -> None:
        self.entries = entries
        self.keys: dict[str, SortKey] = {name: key for key, name in entries}
        # Names that changed since their keys were computed.
        self.stale: set[str] = set()
        self.asked_s = 0.0  # when a page asked for it last, on the clock of the loop


class Table(Generic[Row]):
    """Rows by name. Its owner changes `rows`, then calls `index_again`.

    A page uses the index that was complete last, and the rows of now.
    """

    def __init__(self, orders: Mapping[str, Callable[[Row], SortKey]]) -> None:
        self._orders = orders
        self.rows: dict[str, Row] = {}
        # The keys and names by order. Only those that a page asked for.
        self._indexes: dict[str, _Index] = {}
        # The names of an index in lower case, and the index: made by the first search in it.
        self._lowered: dict[str, tuple[list[tuple[SortKey, str]], list[str]]] = {}
        # Indexes that a page waits for, with the event that is set when it is there, and the names
        # that changed since it began.
        self._building: dict[str, tuple[asyncio.Event, set[str]]] = {}

    @property
    def orders(self) -> list[str]:
        return list(self._orders)

    async def index_again(self, slices: Slices, changed: Collection[str] | None = None) -> None:
        """Bring each index in use up to date. `changed` are names of rows; None is all of them."""
        now_s = asyncio.get_running_loop().time()
        for _, stale in self._building.values():
            stale.update(self.rows if changed is None else changed)
        for order, index in list(self._indexes.items()):
            if now_s - index.asked_s > UNUSED_S:
                del self._indexes[order]
                self._lowered.pop(order, None)
                continue
            index.stale.update({*index.keys, *self.rows} if changed is None else changed)
            if index.stale:
                await self._renew(order, index, slices)

    async def _renew(self, order: str, index: _Index, slices: Slices) -> None:
        """Put the rows whose keys changed in their places. After an error they stay stale."""
        names, index.stale = index.stale, set()
        try:
            await self._put_in_order(order, index, names, slices)
        except BaseException:
            index.stale |= names
            raise

    async def _put_in_order(
        self, order: str, index: _Index, names: set[str], slices: Slices
    ) -> None:
        key, rows = self._orders[order], self.rows
        moved: list[tuple[str, SortKey | None]] = []
        for name in names:
            row = rows.get(name)
            now = None if row is None else key(row)
            if now != index.keys.get(name):
                moved.append((name, now))
            await slices.pause()
        if not moved:
            return
        if len(moved) > _MOVED_MAX:
            entries = await self._sorted(order, slices)
            index.keys = {name: key for key, name in entries}
        else:
            entries = index.entries.copy()
            for name, now in moved:
                _move(entries, name, index.keys.get(name), now)
                await slices.pause()
            for name, now in moved:  # the keys are those of `entries` after an error too
                index.keys.pop(name, None)
                if now is not None:
                    index.keys[name] = now
        index.entries = entries
        self._lowered.pop(order, None)

    async def _sorted(self, order: str, slices: Slices) -> list[tuple[SortKey, str]]:
        key, rows = self._orders[order], self.rows

        def key_of(name: str) -> SortKey:
            row = rows.get(name)
            return (float("inf"), name) if row is None else key(row)

        return await sorted_in_slices(list(rows), key_of, slices)

    async def _index(self, order: str) -> list[tuple[SortKey, str]]:
        """Return the index of an order. The first caller builds it, and the others wait."""
        while order not in self._indexes:
            waiting = self._building.get(order)
            if waiting is not None:
                await waiting[0].wait()
                continue
            stale: set[str] = set()
            self._building[order] = asyncio.Event(), stale
            try:
                index = _Index(await self._sorted(order, Slices(hurried=True)))
                index.stale = stale
                self._indexes[order] = index
            finally:
                self._building.pop(order)[0].set()
        index = self._indexes[order]
        index.asked_s = asyncio.get_running_loop().time()
        return index.entries

    async def page(
        self, order: str, cursor: str | None, limit: int, search: Search | None = None
    ) -> Rows[Row]:
        """Return up to `limit` rows behind `cursor`. Raises BadCursor."""
        index = await self._index(order)
        at = 0 if cursor is None else bisect_right(index, _decoded(cursor), key=_key)
        if search is None:
            chosen, total = index[at : at + limit + 1], len(index)
        else:
            names = await self._names(order, index, search)
            chosen, total = await _matching(index, names, at, limit + 1, search)
        found = [self.rows[name] for _, name in chosen[:limit] if name in self.rows]
        following = _encoded(chosen[limit - 1][0]) if len(chosen) > limit else None
        return Rows(found, following, total)

    async def _names(
        self, order: str, index: list[tuple[SortKey, str]], search: Search
    ) -> list[str]:
        """Return the names of an index as a search compares them: a pattern sees their case."""
        if search.pattern is not None:
            return [name for _, name in index]
        kept = self._lowered.get(order)
        if kept is not None and kept[0] is index:
            return kept[1]
        slices = page_slices()
        names: list[str] = []
        for first in range(0, len(index), _STEP):
            names += [name[:_SEARCHED_MAX].lower() for _, name in index[first : first + _STEP]]
            await slices.pause()
        self._lowered[order] = index, names
        return names


async def _matching(
    index: list[tuple[SortKey, str]], names: list[str], at: int, limit: int, search: Search
) -> tuple[list[tuple[SortKey, str]], int]:
    """Return matching entries from `at` on, and how many match in the whole index."""
    slices = page_slices()
    text, pattern = search
    found: list[tuple[SortKey, str]] = []
    total = 0
    count = _STEP if pattern is None else 1  # a pattern may take a tenth of a millisecond
    for first in range(0, len(names), count):
        step = enumerate(names[first : first + count], first)
        if pattern is None:
            places = [place for place, name in step if text in name]
        else:
            places = [place for place, name in step if search.matches(name[:_SEARCHED_MAX])]
        total += len(places)
        if len(found) < limit:
            behind = [index[place] for place in places if place >= at]
            found += behind[: limit - len(found)]
        await slices.pause()
    return found, total


def _move(
    entries: list[tuple[SortKey, str]], name: str, before: SortKey | None, now: SortKey | None
) -> None:
    """Move one entry from its place before to the one of now. None is none."""
    if before is not None:
        del entries[bisect_left(entries, before, key=_key)]
    if now is not None:
        insort(entries, (now, name), key=_key)


def _key(entry: tuple[SortKey, str]) -> SortKey:
    return entry[0]


def _encoded(key: SortKey) -> str:
    return base64.urlsafe_b64encode(json.dumps(key).encode()).decode().rstrip("=")


def _decoded(cursor: str) -> SortKey:
    try:
        data = base64.b64decode(cursor + "=" * (-len(cursor) % 4), altchars=b"-_", validate=True)
        found: Any = json.loads(data)
    except (binascii.Error, ValueError, RecursionError):
        raise BadCursor("cursor is not one of this page") from None
    if not isinstance(found, list) or len(cast("list[Any]", found)) != 2:
        raise BadCursor("cursor is not one of this page")
    rank, name = cast("list[Any]", found)
    if isinstance(rank, bool) or not isinstance(rank, int | float) or not isinstance(name, str):
        raise BadCursor("cursor is not one of this page")
    return float(rank), name
