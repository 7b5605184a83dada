"""The records of a topic: a search by newest, oldest, offset or time, and a file of the same."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import AsyncExitStack, aclosing
from typing import TYPE_CHECKING, Final

from gateway.admin.client import AdminError, Unreachable
from gateway.admin.consume_batches import Record
from gateway.admin.consume_output import as_json
from gateway.http.pages import Asked, Json, Refused
from gateway.http.record_filter import RecordQuery, open_conditions, read_query
from gateway.http.record_rows import CutRecord, cut, row_of
from gateway.http.record_search import Bounds, Found, Search, first_matches, found_in
from gateway.http.record_source import (
    Plan,
    describe,
    open_search,
    own_client,
    plan_search,
    progress_of,
    searching,
)
from ledger.tasks import in_thread

if TYPE_CHECKING:
    from gateway.http.site import Site

BOUNDS: Final = Bounds()
_LINES_AT_ONCE: Final = 200


async def messages(asked: Asked, site: Site) -> Json:
    """Return up to `limit` records that match, and how far the search came."""
    due_s = asyncio.get_running_loop().time() + BOUNDS.seconds
    query = read_query(asked.query, hidden=site.settings.hide_values)
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(searching(site))
        conditions = await stack.enter_async_context(open_conditions(query))
        client = await stack.enter_async_context(own_client(site))
        plan = await plan_search(client, asked, query)
        left_s = due_s - asyncio.get_running_loop().time()
        bounds = BOUNDS._replace(seconds=max(0.0, left_s))
        search = open_search(client, asked, query, plan, conditions, cut, bounds, asked.limit)
        found = await first_matches(search, plan.spans, asked.limit)
    rows = await in_thread(_rows, asked, found, query, site)
    return {
        **_progress(plan, search, conditions.remark),
        "topic": asked.path["topic"],
        "show": query.show,
        "from": query.start,
        "hidden": site.settings.hide_values,
        "rows": rows,
    }


def _rows(asked: Asked, found: Sequence[Found], query: RecordQuery, site: Site) -> list[Json]:
    """Return the rows. Values that are shown as JSON may take seconds, so this runs in a thread."""
    topic, hidden = asked.path["topic"], site.settings.hide_values
    rows: list[Json] = []
    for index, record in found:
        assert isinstance(record, CutRecord)
        rows.append(row_of(topic, index, record, query.show, hidden=hidden))
    return rows


def _progress(plan: Plan, search: Search, remark: str) -> Json:
    """Return how far a search came, and why it stopped there."""
    progress = progress_of(plan)
    return {
        "next": progress.cursor,
        "total": progress.total,
        "searched": progress.searched,
        "sentence": progress.sentence,
        "ended_by": search.ended_by,
        "read_records": search.records,
        "read_bytes": search.bytes,
        "notes": [*plan.notes, *([remark] if remark else [])],
    }


def messages_command(asked: Asked) -> str:
    """Return the command that prints the same records."""
    return describe(asked.query, asked.path["topic"])


def download(asked: Asked, site: Site) -> AsyncIterator[bytes]:
    """Return the records that match as lines of JSON, whole, within the bounds of a search.

    If more are left, the last line has the key `unfinished`, and `topic produce` refuses it: a file
    that is not complete never looks as if it were. Raises Refused.
    """
    query = read_query(asked.query, hidden=site.settings.hide_values)
    limit = asked.limit if asked.query.get("limit") else None
    return _lines(asked, site, query, limit)


async def _lines(
    asked: Asked, site: Site, query: RecordQuery, limit: int | None
) -> AsyncGenerator[bytes]:
    begun = False
    try:
        async with AsyncExitStack() as stack:
            await stack.enter_async_context(searching(site))
            conditions = await stack.enter_async_context(open_conditions(query))
            client = await stack.enter_async_context(own_client(site))
            plan = await plan_search(client, asked, query)
            search = open_search(client, asked, query, plan, conditions, _as_it_is, BOUNDS, limit)
            found = _found(search, plan, limit)
            pieces = await stack.enter_async_context(aclosing(found))
            count = 0
            async for index, records in pieces:
                begun = True
                count += len(records)
                yield await in_thread(_joined, asked.path["topic"], index, records, site)
        progress = progress_of(plan)
        if (progress.cursor is not None and (limit is None or count < limit)) or plan.partial:
            yield _unfinished("; ".join([progress.sentence, *plan.notes]), progress.cursor)
    except (AdminError, Unreachable, Refused) as error:
        if not begun:  # the status of the response is still open
            raise
        yield _unfinished(str(error), None)


async def _found(
    search: Search, plan: Plan, limit: int | None
) -> AsyncGenerator[tuple[int, Sequence[Record]]]:
    """Yield what a search finds, some records of a partition at a time."""
    if limit is not None:
        for index, record in await first_matches(search, plan.spans, limit):
            yield index, [record]
        return
    async with aclosing(found_in(search)) as found:
        async for index, records in found:
            for at in range(0, len(records), _LINES_AT_ONCE):
                yield index, records[at : at + _LINES_AT_ONCE]


def _as_it_is(record: Record) -> Record:
    return record


def _joined(topic: str, index: int, records: Sequence[Record], site: Site) -> bytes:
    return b"".join([_line(topic, index, record, site) for record in records])


def _line(topic: str, index: int, record: Record, site: Site) -> bytes:
    if site.settings.hide_values:
        record = cut(record)._replace(key=None, value=None, headers=())
        # `topic produce` refuses this key: the file must not write a tombstone for each record.
        return as_json(topic, index, record).removesuffix("}").encode() + b', "hidden": true}\n'
    return as_json(topic, index, record).encode() + b"\n"


def _unfinished(sentence: str, cursor: str | None) -> bytes:
    return json.dumps({"unfinished": sentence, "next": cursor}).encode() + b"\n"
