"""Pages, streams and changes that behave well or badly, for the tests of what carries them."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from gateway.access import Operation
from gateway.http.pages import Action, Asked, Page, Refused, Rows, Stream, on_cluster, on_topic
from gateway.http.site import Site

TEMPLATES = Path(__file__).parent / "page_templates"


class Seen:
    """What the views of a test did."""

    def __init__(self) -> None:
        self.asked: list[Asked] = []
        self.began = threading.Event()  # a slow view, or a stream
        self.ended = threading.Event()


def rows(seen: Seen) -> Rows:
    """Return rows whose views note what they get."""
    return Rows((*_pages(seen), _slow_page(seen)), (_tail(seen),), (_change(seen),), (TEMPLATES,))


def _page(path: str, view: Any, needs: Any = on_cluster, **more: Any) -> Page:
    return Page(path, "plain", "Plain", needs, view, lambda asked: "gateway topic list", **more)


def _pages(seen: Seen) -> tuple[Page, ...]:
    async def plain(asked: Asked, site: Site) -> dict[str, Any]:
        seen.asked.append(asked)
        return {"path": dict(asked.path), "principal": asked.principal, "limit": asked.limit}

    async def large(asked: Asked, site: Site) -> dict[str, Any]:
        return {"path": {}, "rows": ["x" * 100] * 20_000}

    async def small(asked: Asked, site: Site) -> dict[str, Any]:
        return {"path": {}, "rows": ["<é>" * 100] * int(asked.query.get("count", "10"))}

    async def broken(asked: Asked, site: Site) -> dict[str, Any]:
        raise KeyError("a bug of ours")

    return (
        _page("/plain", plain),
        _page("/plain/{topic}", plain, on_topic(Operation.DESCRIBE)),
        _page("/large", large),
        _page("/small", small, is_small=lambda found: True),
        _page("/broken", broken),
    )


def _slow_page(seen: Seen) -> Page:
    async def slow(asked: Asked, site: Site) -> dict[str, Any]:
        seen.began.set()
        try:
            await asyncio.Event().wait()
        finally:
            seen.ended.set()
        return {}

    return _page("/slow", slow)


def _tail(seen: Seen) -> Stream:
    async def tail(asked: Asked, site: Site) -> AsyncIterator[tuple[str, dict[str, Any]]]:
        seen.began.set()
        size = int(asked.query.get("size", "10"))
        try:
            for number in range(int(asked.query.get("count", "1000000"))):
                yield "record", {"number": number, "value": "x" * size}
                await asyncio.sleep(0)
            if "refused" in asked.query:
                raise Refused(409, "OFFSET_OUT_OF_RANGE", "the record was deleted")
            if "wait" in asked.query:
                await asyncio.Event().wait()
        finally:
            seen.ended.set()

    return Stream("/tail", on_cluster, tail)


def _change(seen: Seen) -> Action:
    async def change(asked: Asked, site: Site) -> dict[str, Any]:
        seen.asked.append(asked)
        if asked.form.get("name") == "bad":
            raise Refused(409, "INVALID_TOPIC_EXCEPTION", "no such <name>")
        return {"changed": asked.path["topic"]}

    return Action(
        "/plain/{topic}/change",
        "ALTER",
        on_topic(Operation.ALTER),
        change,
        lambda asked: f"TOPIC:{asked.path['topic']}",
    )
