"""Turns rows of pages, streams and actions into routes: HTML and JSON from the same views."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar, cast

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import BaseRoute, Route

from gateway.access import auditing
from gateway.admin.client import AdminError, Unreachable
from gateway.figures.slices import PAGE_REST_S
from gateway.http.asking import address_of, asked_of, path_of, principal_of, require
from gateway.http.compressed import (
    LOOP_BYTES_MAX,
    encoded,
    response_in_slices,
    response_of,
)
from gateway.http.event_stream import EventStream
from gateway.http.file_stream import FileStream, first_piece
from gateway.http.forms import form_of, place_after, require_own_page
from gateway.http.hrefs import url_part
from gateway.http.pages import (
    LIMIT,
    Action,
    Asked,
    Download,
    Json,
    Page,
    Refused,
    Rows,
    Stream,
    api_path,
)
from gateway.http.plotted import Plots, Rendered
from gateway.http.shown import FUNCTIONS
from gateway.http.static_files import static_routes
from ledger.errors import LedgerError
from ledger.events import EventKind, note_event
from ledger.tasks import in_thread

if TYPE_CHECKING:
    from starlette.types import Scope

    from gateway.http.site import Site

_TEMPLATES: Final = Path(__file__).parent / "templates"
_HTML: Final = "text/html; charset=utf-8"
_JSON: Final = "application/json"

_RESOURCE_MAX: Final = 300
"""Characters of a resource in an event. A form may have 1 MiB, and 10,000 events are kept."""

T = TypeVar("T")
_Endpoint = Callable[[Request], Awaitable[Response]]


class PageRoutes:
    """Answers requests for pages, as HTML and as JSON, for streams, and for changes."""

    def __init__(self, site: Site, rows: Rows) -> None:
        self._site = site
        self._rows = rows
        self._templates = Environment(
            loader=FileSystemLoader([*rows.templates, _TEMPLATES]),
            autoescape=True,
            undefined=StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
            auto_reload=False,
        )
        # A name as a part of a path: unlike `urlencode`, it also encodes slashes.
        filters = cast("dict[str, Any]", self._templates.filters)
        filters["url_part"] = url_part
        shared = cast("dict[str, Any]", self._templates.globals)
        shared["menu"] = [page for page in rows.pages if page.in_menu]
        shared["site"] = site
        shared.update(FUNCTIONS)
        self._plots = Plots(self._templates, self._history)
        shared["ui_plot"] = self._plots.place
        shared["ui_rows"] = self._plots.rows

    def routes(self) -> list[BaseRoute]:
        """Return a route for each row, and for each static file."""
        routes: list[BaseRoute] = []
        for page in self._rows.pages:
            routes.append(Route(page.path, self._html(page), name=page.name))
            routes.append(Route(api_path(page), self._json(page)))
        for stream in self._rows.streams:
            routes.append(Route(stream.path, self._stream(stream)))
        for download in self._rows.downloads:
            routes.append(Route(download.path, self._download(download)))
        for action in self._rows.actions:
            routes.append(Route(action.path, self._action(action), methods=["POST"]))
        return routes + static_routes()

    async def error(self, scope: Scope, error: Refused) -> Response:
        """Return the answer to a request that is refused, as a page or as JSON."""
        request = Request(scope)
        if _wants_json(request):
            found = {"error": {"code": error.code, "message": error.message}}
            return await encoded(request, partial(_dumped, found), _JSON, error.status)
        draw = partial(self._drawn, "error.html", error=error)
        return await encoded(request, draw, _HTML, error.status)

    def _html(self, page: Page) -> _Endpoint:
        async def answer(request: Request) -> Response:
            await asyncio.sleep(PAGE_REST_S)  # finding the route was a slice
            asked = asked_of(self._site, request, page.needs)
            found = await _of(page.view(asked, self._site))
            await asyncio.sleep(PAGE_REST_S)
            drawn = await self._drawn_page(page, asked, found, request)
            if isinstance(drawn, Response):
                return drawn
            histories = await self._plots.histories(drawn, asked)
            write = partial(self._plots.drawn, drawn, histories)
            return await encoded(request, lambda: write().encode(), _HTML)

        return answer

    async def _drawn_page(
        self, page: Page, asked: Asked, found: Json, request: Request
    ) -> Response | Rendered:
        """Return the answer with a page, or what is rendered of it if it has plots."""
        template = f"{page.name}.html"
        values = {"page": page, "asked": asked, "found": found}

        def whole(drawn: Rendered) -> Response | Rendered:
            return drawn if drawn.places else response_of(request, drawn.text.encode(), _HTML)

        is_small = asked.limit <= LIMIT and page.is_small(found)
        if is_small and self._plots.knows(template):
            drawn = await self._plots.rendered_in_slices(template, **values)
            await asyncio.sleep(PAGE_REST_S)
            if len(drawn.text) <= LOOP_BYTES_MAX and not drawn.places:
                return await response_in_slices(request, drawn.text.encode(), _HTML)
            return await in_thread(whole, drawn)
        return await in_thread(lambda: whole(self._plots.rendered(template, **values)))

    async def _history(self, path: str, asked: Asked) -> Json:
        """Return the JSON that a page without names in its path shows. Raises Refused."""
        page = next((each for each in self._rows.pages if api_path(each) == path), None)
        if page is None:
            raise Refused(404, "NOT_FOUND", "this gateway keeps no such history")
        require(self._site, asked.principal, asked.address, *page.needs(asked.path))
        return await _of(page.view(asked, self._site))

    def _json(self, page: Page) -> _Endpoint:
        async def answer(request: Request) -> Response:
            asked = asked_of(self._site, request, page.needs)
            found = await _of(page.view(asked, self._site))
            return await encoded(request, partial(_dumped, found), _JSON)

        return answer

    def _stream(self, stream: Stream) -> _Endpoint:
        async def answer(request: Request) -> Response:
            asked = asked_of(self._site, request, stream.needs)
            return EventStream(stream.events(asked, self._site))

        return answer

    def _download(self, download: Download) -> _Endpoint:
        async def answer(request: Request) -> Response:
            asked = asked_of(self._site, request, download.needs)
            pieces = download.pieces(asked, self._site)
            first = await _of(first_piece(pieces))
            return FileStream(first, pieces, download.media_type)

        return answer

    def _action(self, action: Action) -> _Endpoint:
        async def answer(request: Request) -> Response:
            asked = Asked(path_of(request), {}, principal_of(request), address_of(request))
            outcome = "UNKNOWN_SERVER_ERROR"
            try:
                asked = await self._change_of(action, request)
                found = await _of(action.act(asked, self._site))
                outcome = "NONE"
            except Refused as error:
                outcome = error.code
                raise
            finally:
                _note(action, asked, outcome)
            if _wants_json(request):
                return await encoded(request, partial(_dumped, found), _JSON)
            return RedirectResponse(place_after(asked.form), 303)

        return answer

    async def _change_of(self, action: Action, request: Request) -> Asked:
        require_own_page(request)
        form = await in_thread(form_of, request)  # a body of 1 MiB takes 50 ms
        if not self._site.is_token(form.get("token", "")):
            message = "the form is not of this process, which may have started again; reload it"
            raise Refused(403, "INVALID_TOKEN", message)
        return asked_of(self._site, request, action.needs, form)

    def _drawn(self, template: str, **values: Any) -> bytes:
        return self._templates.get_template(template).render(**values).encode()


async def _of(view: Awaitable[T]) -> T:
    """Return what a view returns. Raises Refused in place of its errors."""
    try:
        return await view
    except AdminError as error:
        is_missing = "UNKNOWN" in error.code or error.code == "GROUP_ID_NOT_FOUND"
        raise Refused(404 if is_missing else 409, error.code, str(error)) from error
    except (Unreachable, LedgerError) as error:
        raise Refused(503, "UNREACHABLE", str(error)) from error


def _note(action: Action, asked: Asked, outcome: str) -> None:
    """Note a change, or the attempt: the one place that every change by a page passes."""
    resource = _resource(action, asked)[:_RESOURCE_MAX]
    auditing.page_changed(asked.principal, asked.address, action.name, resource, outcome)
    note_event(
        EventKind.CHANGE,
        principal=asked.principal,
        address=asked.address,
        operation=action.name,
        resource=resource,
        outcome=outcome,
    )


def _resource(action: Action, asked: Asked) -> str:
    try:
        return action.resource(asked)
    except KeyError:  # it is named by a field that a refused form does not have
        return ""


def _dumped(found: Json) -> bytes:
    return json.dumps(found, allow_nan=False).encode()


def _wants_json(request: Request) -> bool:
    if request.scope["path"].startswith("/api/"):
        return True
    return request.method == "POST" and "text/html" not in request.headers.get("accept", "")
