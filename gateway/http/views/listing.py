"""What the pages of figures share: paths of names, orders, searches, cursors, silent gateways."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from fnmatch import translate
from typing import TYPE_CHECKING, Any, Final, TypeVar

from gateway.figures.slices import PAGE_REST_S, Slices
from gateway.figures.tables import BadCursor, Rows, Search, Table
from gateway.http.pages import Refused

if TYPE_CHECKING:
    from gateway.figures.mirror import Mirror
    from gateway.http.pages import Asked, Json

Matches = Callable[[str], bool]
Row = TypeVar("Row")

SEARCH_MAX: Final = 255
"""Characters of a search; a longer one is refused."""

WILD: Final = frozenset("*?[")
"""Characters that make a search a glob."""


def order_of(asked: Asked, orders: Sequence[str]) -> str:
    """Return the order that a request names as `sort`, the first one by default."""
    order = asked.query.get("sort") or orders[0]
    if order not in orders:
        raise Refused(400, "INVALID_REQUEST", f"sort must be one of {', '.join(orders)}")
    return order


def search_of(text: str) -> Search | None:
    """Return what finds names: those like a glob, or those that contain a text in any case.

    None finds all.
    """
    if not text:
        return None
    if len(text) > SEARCH_MAX:
        raise Refused(400, "INVALID_REQUEST", f"search has more than {SEARCH_MAX} characters")
    if WILD.intersection(text):
        return Search(pattern=re.compile(translate(text)))
    return Search(text.lower())


def matcher(text: str) -> Matches | None:
    """Return `search_of` as a test of one name."""
    search = search_of(text)
    return None if search is None else search.matches


async def page_of(table: Table[Row], asked: Asked, order: str) -> Rows[Row]:
    """Return the rows of a table that a request asks for. Raises Refused."""
    try:
        search = search_of(asked.query.get("search", ""))
        return await table.page(order, asked.cursor, asked.limit, search)
    except BadCursor as error:
        raise Refused(400, "INVALID_REQUEST", str(error)) from None


async def listed(
    asked: Asked, mirror: Mirror, table: Table[Row], order: str, row_of: Callable[[Row], Json]
) -> Json:
    """Return the rows of a table that a request asks for, with what every list has."""
    found = await page_of(table, asked, order)
    slices = Slices(rest_s=PAGE_REST_S)
    rows: list[Json] = []
    for each in found.rows:
        rows.append(row_of(each))
        if slices.used_up:
            await slices.rest()
    return {
        "sort": order,
        "search": asked.query.get("search", ""),
        "rows": rows,
        "next": found.next,
        "total": found.total,
        "silent_gateways": silent_rows(mirror),
    }


def place_of(asked: Asked, size: int) -> int:
    """Return the number of rows before the cursor of a list that is short or computed at once."""
    if asked.cursor is None:
        return 0
    if not (asked.cursor.isascii() and asked.cursor.isdecimal() and len(asked.cursor) <= 9):
        raise Refused(400, "INVALID_REQUEST", "cursor is not one of this page")
    return min(int(asked.cursor), size)


def following(at: int, size: int) -> str | None:
    """Return the cursor of the rows from `at` on, None if there are none."""
    return str(at) if at < size else None


def argument(name: str) -> list[str]:
    """Return the words of a command for an argument, which may begin as an option does."""
    return ["--", name] if name.startswith("-") else [name]


def silent_rows(mirror: Mirror) -> list[dict[str, Any]]:
    """Return the gateways whose figures are missing or old."""
    return [
        {"node_id": node_id, "reason": each.reason, "last_figures_age_s": each.age_s}
        for node_id, each in sorted(mirror.silent().items())
    ]
