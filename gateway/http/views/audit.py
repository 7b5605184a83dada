"""The newest lines of the audit log of this gateway."""

from __future__ import annotations

import json
from datetime import datetime
from typing import TYPE_CHECKING, Final

from gateway.access import AuditEvent, NotedLine, auditing
from gateway.figures.slices import Slices
from gateway.http.pages import Refused

if TYPE_CHECKING:
    from gateway.http.pages import Asked, Json
    from gateway.http.site import Site

EVENTS: Final = tuple(each.value for each in AuditEvent)
_DIGITS_MAX: Final = 15
_OFF: Final = (
    "The audit log is off. Start every gateway with --audit-log FILE, or --audit-log stderr, and "
    "the newest lines of this gateway are shown here."
)


async def audit(asked: Asked, site: Site) -> Json:
    """Return the newest lines of the audit log of this gateway, newest first."""
    event = asked.query.get("event", "")
    if event and event not in EVENTS:
        raise Refused(400, "INVALID_REQUEST", f"event must be one of {', '.join(EVENTS)}")
    found = await audit_lines(site, event, _number(asked.cursor), asked.limit)
    return {"event": event, "events": list(EVENTS), **found}


async def audit_lines(site: Site, event: str, before: int | None, count: int) -> Json:
    """Return lines below a number, of one event or of all, as the file has them."""
    sink = auditing.sink
    slices = Slices(hurried=True)
    rows: list[Json] = []
    more = False
    for each in [] if sink is None else sink.newest(before):
        await slices.pause()
        row = _row(each)
        if event and row["event"] != event:
            continue
        more = len(rows) == count
        if more:
            break
        rows.append(row)
    return {
        "node_id": site.ctx.config.node_id,
        "off": _OFF if sink is None else None,
        "rows": rows,
        "next": str(rows[-1]["number"]) if more else None,
        "total": None,
    }


def _row(noted: NotedLine) -> Json:
    """Return a line with its number, its time in ms, and what a person asks next as `text`."""
    line: Json = json.loads(noted.line)
    at_ms = round(datetime.fromisoformat(line["time"]).timestamp() * 1_000)
    words = [line.get(key) for key in ("rule", "reason", "outcome")]
    known = [str(each) for each in words if each and each != "NONE"]
    if "left_out" in line:
        known.append(f"{line['left_out']} more were left out")
    return {**line, "number": noted.number, "at_ms": at_ms, "text": ", ".join(known)}


def _number(cursor: str | None) -> int | None:
    if cursor is None:
        return None
    if not (cursor.isascii() and cursor.isdecimal() and len(cursor) <= _DIGITS_MAX):
        raise Refused(400, "INVALID_REQUEST", "cursor is not one of this page")
    return int(cursor)


def command(asked: Asked) -> str:
    """Return the command that shows the same lines, of the file of --audit-log."""
    return f"tail -n {asked.limit} AUDIT_LOG"
