"""The events of all gateways by time, newest first, and a stream of those that follow."""

from __future__ import annotations

import asyncio
import shlex
from collections.abc import AsyncIterator, Mapping
from typing import TYPE_CHECKING, Any, Final

from gateway.figures.parts import timeline_of
from gateway.http.hrefs import topic_href
from gateway.http.pages import Refused
from ledger.events import EventKind

if TYPE_CHECKING:
    from gateway.figures.timeline import Place, TimedEvent
    from gateway.http.pages import Asked, Json
    from gateway.http.site import Site

PERIOD_S: Final = 1.0  # between two looks of a stream
_STREAMED_MAX: Final = 200  # events that one look sends; those that do not fit are counted
_OWN_KEYS: Final = ("number", "at_ms", "kind", "topic", "partition", "ledger")


async def events(asked: Asked, site: Site) -> Json:
    """Return events of all gateways, newest first."""
    kind = _kind(asked.query)
    timeline = await timeline_of(site.ctx).fresh()
    before = None if asked.cursor is None else _place(asked.cursor)
    rows: list[Json] = []
    more = True
    while more and len(rows) < asked.limit:
        found, more = timeline.before(before, asked.limit)
        for each in found:
            before = each.place
            if not kind or each.facts.get("kind") == kind:
                rows.append(event_row(each))
            if len(rows) == asked.limit:
                break
        await asyncio.sleep(0)
    left = before is not None and bool(timeline.before(before, 1)[0])
    return {
        "kind": kind,
        "kinds": [each.value for each in EventKind],
        "rows": rows,
        "next": _cursor(before) if left and before is not None and rows else None,
        "total": None,
        "silent_gateways": [
            {"node_id": node_id, "reason": why, "last_figures_age_s": None}
            for node_id, why in sorted(timeline.silent.items())
        ],
    }


def stream(asked: Asked, site: Site) -> AsyncIterator[tuple[str, Json]]:
    """Return each event that arrives from now on as `event`, and `skipped` with a count."""
    return _arriving(_kind(asked.query), site)


async def _arriving(kind: str, site: Site) -> AsyncIterator[tuple[str, Json]]:
    timeline = await timeline_of(site.ctx).fresh()
    arrival = timeline.arrivals
    yield "begun", {"period_ms": int(PERIOD_S * 1000)}
    while True:
        await asyncio.sleep(PERIOD_S)
        await timeline.fresh()
        found, dropped = timeline.since(arrival)
        arrival = timeline.arrivals
        wanted = [each for each in found if not kind or each.facts.get("kind") == kind]
        skipped = dropped + max(0, len(wanted) - _STREAMED_MAX)
        if skipped:
            yield "skipped", {"count": skipped}
        for each in wanted[-_STREAMED_MAX:]:
            yield "event", event_row(each)


def event_row(event: TimedEvent) -> Json:
    """Return an event as JSON, with the keys of `gateway events`."""
    at_ms, node_id, number = event.place
    facts = event.facts
    topic = facts.get("topic")
    row: Json = {
        "at_ms": at_ms,
        "node_id": node_id,
        "number": number,
        "kind": facts.get("kind"),
        "topic": topic,
        "partition": facts.get("partition"),
        "ledger": facts.get("ledger"),
        "facts": {key: str(value) for key, value in facts.items() if key not in _OWN_KEYS},
    }
    row["text"] = ", ".join(f"{key} {value}" for key, value in row["facts"].items())
    if isinstance(topic, str):
        row["topic_href"] = topic_href(topic)
    return row


def _kind(query: Mapping[str, str]) -> str:
    kind = query.get("kind", "")
    if kind and kind not in set(EventKind):
        known = ", ".join(each.value for each in EventKind)
        raise Refused(400, "INVALID_REQUEST", f"kind must be one of {known}")
    return kind


def _cursor(place: Place) -> str:
    return "-".join(map(str, place))


def _place(cursor: str) -> Place:
    parts = cursor.split("-")
    if len(parts) != 3 or not all(p.isascii() and p.isdecimal() and len(p) < 19 for p in parts):
        raise Refused(400, "INVALID_REQUEST", "cursor is not one of this page")
    at_ms, node_id, number = map(int, parts)
    return at_ms, node_id, number


def command(asked: Asked) -> str:
    """Return the command that prints the same events."""
    kind: Any = asked.query.get("kind")
    return shlex.join(["gateway", "events", *(["--kind", kind] if kind else [])])
