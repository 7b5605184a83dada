"""Draws the plots of a page after its template was rendered, and the rows of tables in slices.

A template is rendered in a thread, in one go, or in slices on the loop if the page is small. The
history of a plot is asked for on the loop.
So `ui.plot` leaves a mark in the text, and the drawing is put there afterwards. In slices a table
does so too: a template renders it in one step, however many rows it has. The marks contain a secret
of this process: no value that the page shows can be taken for one.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Awaitable, Callable, Sequence
from contextvars import ContextVar
from typing import Any, Final, NamedTuple
from urllib.parse import parse_qsl, urlsplit

from jinja2 import Environment
from markupsafe import Markup

from gateway.figures.slices import page_slices
from gateway.http.pages import Asked, Json, Refused
from gateway.http.plots import BOTTOM, HEIGHT, LEFT, RIGHT, TOP, WIDTH, Plot, plot_of
from gateway.http.shown import Columns, FoundRows, rows

History = Callable[[str, Asked], Awaitable[Json]]
"""Returns the JSON that the page at a path shows for a request. Raises Refused."""

PLOTS_MAX: Final = 100  # of one page
ROWS_AT_ONCE: Final = 8
"""Rows of a table that are drawn in one step, in a tenth of a millisecond."""

_PLACE: Final = {
    "width": WIDTH,
    "height": HEIGHT,
    "left": LEFT,
    "right": WIDTH - RIGHT,
    "top": TOP,
    "bottom": HEIGHT - BOTTOM,
}


class Place(NamedTuple):
    """Where a plot belongs, and what it shows."""

    title: str
    unit: str
    href: str


class Rendered(NamedTuple):
    """A page before its plots are drawn: its text with marks, and the places in their order."""

    text: str
    places: Sequence[Place]


_places: ContextVar[list[Place]] = ContextVar("_places")
"""The places of the page that is being rendered."""

_tables: ContextVar[list[tuple[Columns, FoundRows]] | None] = ContextVar("_tables", default=None)
"""The tables of the page that is being rendered in slices, None while one is rendered at once."""


class Plots:
    """Draws the plots of these templates. `history` returns what a path of the API answers."""

    def __init__(self, templates: Environment, history: History) -> None:
        self._templates = templates
        self._history = history
        # The templates that were rendered, so that all that they import is compiled.
        self._known: set[str] = set()
        secret = secrets.token_hex(16)
        self._mark = f"<!--{secret} {{}}-->"
        self._marks = re.compile(rf"<!--{secret} (\d+)-->")
        self._table_mark = f"<!--{secret} rows {{}}-->"
        self._table_marks = re.compile(rf"<!--{secret} rows (\d+)-->")

    def place(self, title: str, unit: str, href: str) -> Markup:
        """Return the mark of a plot, for templates. Beyond PLOTS_MAX it is empty."""
        places = _places.get()
        if len(places) >= PLOTS_MAX:
            return Markup()
        places.append(Place(str(title), str(unit), str(href)))
        return Markup(self._mark.format(len(places) - 1))

    def rows(self, columns: Columns, found: FoundRows) -> Markup:
        """Return the rows of a table, for templates; in slices the mark of many rows."""
        later = _tables.get()
        if later is None or len(found) <= ROWS_AT_ONCE:
            return rows(columns, found)
        later.append((columns, found))
        return Markup(self._table_mark.format(len(later) - 1))

    def rendered(self, template: str, **values: Any) -> Rendered:
        """Render a template. May run in a thread."""
        places: list[Place] = []
        token = _places.set(places)
        try:
            text = self._templates.get_template(template).render(**values)
        finally:
            _places.reset(token)
        self._known.add(template)
        return Rendered(text, places)

    def knows(self, template: str) -> bool:
        """Return whether a template was rendered before: the first time it is also compiled."""
        return template in self._known

    async def rendered_in_slices(self, template: str, **values: Any) -> Rendered:
        """Render a known template on the loop. `ROWS_AT_ONCE` rows of a table are one step."""
        slices = page_slices()
        pieces: list[str] = []
        places: list[Place] = []
        tables: list[tuple[Columns, FoundRows]] = []
        token, other = _places.set(places), _tables.set(tables)
        try:
            for piece in self._templates.get_template(template).generate(**values):
                pieces.append(piece)
                if slices.used_up:
                    await slices.rest()
        finally:
            _places.reset(token)
            _tables.reset(other)
        # Text and numbers of tables in turn: the marks are in the text once each.
        drawn: list[str] = []
        for at, part in enumerate(self._table_marks.split("".join(pieces))):
            if at % 2 == 0:
                drawn.append(part)
                continue
            columns, found = tables[int(part)]
            for first in range(0, len(found), ROWS_AT_ONCE):
                drawn.append(rows(columns, found[first : first + ROWS_AT_ONCE]))
                if slices.used_up:
                    await slices.rest()
        return Rendered("".join(drawn), places)

    async def histories(self, page: Rendered, asked: Asked) -> list[Json | Refused]:
        """Ask for the history of each plot."""
        found: list[Json | Refused] = []
        for place in page.places:
            try:
                found.append(await self._history(*_inner(place.href, asked)))
            except Refused as error:
                found.append(error)
        return found

    def drawn(self, page: Rendered, histories: Sequence[Json | Refused]) -> str:
        """Return the page with its plots. May run in a thread."""

        def draw(mark: re.Match[str]) -> str:
            number = int(mark[1])
            return self._drawn_plot(number, page.places[number], histories[number])

        return self._marks.sub(draw, page.text) if page.places else page.text

    def _drawn_plot(self, number: int, place: Place, history: Json | Refused) -> str:
        plot: Plot | None = None
        reason = ""
        if isinstance(history, Refused):
            reason = history.message
        else:
            try:
                plot = plot_of(history)
            except (KeyError, TypeError, ValueError):
                reason = "this gateway keeps no such history"
        return self._templates.get_template("_plot.html").render(
            place=_PLACE, plot=plot, reason=reason, number=number, **place._asdict()
        )


def _inner(href: str, asked: Asked) -> tuple[str, Asked]:
    """Return the path of an address, and the request for it by the same principal."""
    parts = urlsplit(href)
    query = dict(parse_qsl(parts.query, keep_blank_values=True))
    return parts.path, asked._replace(path={}, query=query, form={}, cursor=None)
