"""A site without a server: pages of our templates and files, answered by the test itself.

Every answer has the policy of the real page.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import urlsplit

from playwright.sync_api import Route

from gateway.http.guard import HEADERS
from gateway.http.pages import Asked, Page, on_cluster
from tests.browser.browser import Tab
from tests.gateway.drawn_page import Templates
from tests.peers.install import ROOT

ORIGIN = "http://paper.localhost"
Answer = tuple[int, str, str]
"""Status, type and text of an answer."""

_STATIC = ROOT / "gateway" / "http" / "static"
_KINDS = {".css": "text/css", ".js": "text/javascript"}
_PAGE = Page("/", "paper", "Paper", on_cluster, None, lambda asked: "gateway", True)


def events(*pairs: tuple[str, Any]) -> Answer:
    """Return the answer of a stream that sends these events and ends."""
    lines = [f"event: {name}\ndata: {json.dumps(found)}\n\n" for name, found in pairs]
    return 200, "text/event-stream", "".join(lines)


def page(
    body: str, history: Any = None, query: Mapping[str, str] | None = None, **values: Any
) -> str:
    """Return a page whose main part is this template; its plots show `history`."""

    async def shown(path: str, asked: Asked) -> Any:
        return history

    templates = Templates(
        '{% extends "base.html" %}{% import "_macros.html" as ui %}'
        "{% block main %}<h1>Paper</h1>" + body + "{% endblock %}",
        shown,
        menu=[_PAGE],
    )
    return templates.drawn(Asked({}, dict(query or {}), "User:ANONYMOUS"), page=_PAGE, **values)


def serve(tab: Tab, answers: Mapping[str, Callable[[str], Answer]]) -> list[str]:
    """Answer the requests of a tab: paths in `answers` get the query. Returns all addresses."""
    seen: list[str] = []

    def answer(route: Route) -> None:
        seen.append(route.request.url)
        parts = urlsplit(route.request.url)
        status, kind, text = _found(parts.path, parts.query, answers)
        headers = {**HEADERS, "Content-Type": kind}
        route.fulfill(status=status, headers=headers, body=text)

    tab.page.context.route("**/*", answer)
    return seen


def _found(path: str, query: str, answers: Mapping[str, Callable[[str], Answer]]) -> Answer:
    if path in answers:
        return answers[path](query)
    file = _STATIC / path.removeprefix("/static/")
    if path.startswith("/static/") and file.exists():
        return 200, _KINDS[file.suffix], file.read_text()
    return 404, "text/plain", "not there"
