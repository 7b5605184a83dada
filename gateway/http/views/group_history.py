"""The commits of a group over time, and what `group restore --at` would do at one of them."""

from __future__ import annotations

import shlex
import time
from typing import TYPE_CHECKING, Final

from gateway.access import Operation
from gateway.admin.client import AdminClient, AdminError
from gateway.admin.group_history import Past, positions_then, read_past
from gateway.admin.group_history import rows as history_rows
from gateway.admin.group_seek import Scope, Step, require_idle
from gateway.admin.groups import committed
from gateway.admin.notation import write_time
from gateway.http.asking import may
from gateway.http.pages import Asked, Json, Refused
from gateway.http.record_source import own_client, storage_of
from ledger.tasks import in_thread

if TYPE_CHECKING:
    from gateway.http.site import Site

_DIGITS_MAX: Final = 15


async def group_history(asked: Asked, site: Site) -> Json:
    """Return the commits, newest first, and the offsets now and at the time `at`."""
    group = asked.path["group"]
    now_ms = time.time_ns() // 1_000_000
    past = await past_of(site, asked)
    since_ms = past.history.since_ms
    at_ms = min(max(read_at(asked.query.get("at"), now_ms), since_ms), now_ms)
    async with own_client(site) as client:
        idle, reason = await _idle(client, group)
        found = await committed(client, group)
    current = {key: each for key, each in found.items() if _is_visible(site, asked, key[0])}
    then = await in_thread(positions_then, past, at_ms)
    steps = [
        Step(place, current.get(place), then.get(place)) for place in sorted({*current, *then})
    ]
    total = len(past.history.changes)
    end = _end(asked.cursor, total)
    first = max(0, end - asked.limit)
    rows = await in_thread(_rows, past, first, end)
    return {
        "group": group,
        "since_ms": since_ms,
        "until_ms": now_ms,
        "at_ms": at_ms,
        "idle": idle,
        "reason": reason,
        "offsets": [_moved(step) for step in steps],
        "changed": sum(step.changes for step in steps),
        "rows": rows,
        "next": str(first) if first else None,
        "total": total,
    }


async def past_of(site: Site, asked: Asked) -> Past:
    """Return the history of the group of a request. Raises Refused with 404 if there is none.

    It lacks topics that the principal may not describe.
    """
    try:
        past = await read_past(await storage_of(site), asked.path["group"])
    except AdminError as error:
        if error.code == "GROUP_ID_NOT_FOUND":
            raise Refused(404, error.code, str(error)) from error
        raise
    history = past.history
    keys = {each.key for each in history.changes if each.key is not None} | {*history.offsets}
    hidden = {key for key in keys if not _is_visible(site, asked, past.topic(key.topic_id))}
    if not hidden:
        return past
    left = history._replace(
        offsets={key: each for key, each in history.offsets.items() if key not in hidden},
        changes=[each for each in history.changes if each.key not in hidden],
    )
    return past._replace(history=left)


def _is_visible(site: Site, asked: Asked, topic: str | None) -> bool:
    """Return whether the page may show a topic, which is None once it is deleted."""
    return topic is None or may(site, asked, Operation.DESCRIBE, topic)


def read_at(word: str | None, now_ms: int) -> int:
    """Return a time in milliseconds since 1970; now without one. Raises Refused."""
    if not word:
        return now_ms
    if not (word.isascii() and word.isdecimal() and len(word) <= _DIGITS_MAX):
        raise Refused(400, "INVALID_REQUEST", "at must be milliseconds since 1970")
    return int(word)


async def _idle(client: AdminClient, group: str) -> tuple[bool, str | None]:
    """Return whether the group can be moved, and why not."""
    try:
        await require_idle(client, group)
    except AdminError as error:
        if error.code != "NON_EMPTY_GROUP":
            raise
        return False, str(error)
    return True, None


def _end(cursor: str | None, total: int) -> int:
    if cursor is None:
        return total
    if not (cursor.isascii() and cursor.isdecimal() and len(cursor) <= _DIGITS_MAX):
        raise Refused(400, "INVALID_REQUEST", "cursor is not one of this page")
    return min(int(cursor), total)


def _rows(past: Past, first: int, end: int) -> list[Json]:
    """Return the changes from `first` up to `end`, newest first."""
    changes = past.history.changes
    if first >= end:
        return []
    # All rows from the time of the first on: there may be others of the same millisecond before.
    shown = history_rows(past, Scope(), changes[first].time_ms, 0)
    behind = len(changes) - end
    rows = shown[len(shown) - behind - (end - first) : len(shown) - behind]
    return [
        {**row, "at_ms": change.time_ms}
        for row, change in zip(reversed(rows), reversed(changes[first:end]), strict=True)
    ]


def _moved(step: Step) -> Json:
    now = None if step.current is None else step.current.offset
    then = None if step.target is None else step.target.offset
    moved = None if now is None or then is None else then - now
    return {
        "topic": step.place[0],
        "partition": step.place[1],
        "current_offset": now,
        "offset_then": then,
        "change": moved,
        "does": _sentence(now, then),
    }


def _sentence(now: int | None, then: int | None) -> str:
    if now == then:
        return "stays"
    if then is None:
        return "is removed: nothing was committed then"
    if now is None:
        return f"is set to {then}"
    return f"goes back by {now - then:,}" if then < now else f"goes on by {then - now:,}"


def history_command(asked: Asked) -> str:
    """Return the command that would restore the group, or show its history."""
    group = shlex.quote(asked.path["group"])
    at = asked.query.get("at") or ""
    if not (at.isascii() and at.isdecimal() and len(at) <= _DIGITS_MAX):
        return f"gateway group history {group}"
    try:
        return f"gateway group restore {group} --at {write_time(int(at))}"
    except (ValueError, OverflowError, OSError):
        return f"gateway group history {group}"
