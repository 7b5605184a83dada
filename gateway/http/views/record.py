"""One record: its place, its copies, when it goes, as `gateway explain` finds them; its content."""

from __future__ import annotations

import re
from contextlib import aclosing
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any, Final

from gateway.admin.client import AdminClient, AdminError
from gateway.admin.consume import visible
from gateway.admin.consume_batches import DamagedBatch, Record
from gateway.admin.consume_bounds import LogRange
from gateway.admin.consume_fetch import Chunk, PartitionReader, damaged
from gateway.admin.explain import explain
from gateway.admin.explain_kafka import view_partition, with_times
from gateway.admin.explain_text import explanation_text
from gateway.http.life_drawing import draw_life
from gateway.http.pages import Asked, Json, Refused
from gateway.http.record_filter import SHOWN
from gateway.http.record_rows import WHOLE_BYTES, cut, row_of
from gateway.http.record_source import own_client, storage_of
from ledger.command_line.units import INT32_MAX, INT64_MAX
from ledger.tasks import in_thread

if TYPE_CHECKING:
    from gateway.http.site import Site

GONE: Final = frozenset({"OFFSET_DELETED", "NOT_WRITTEN_YET", "OFFSET_COMPACTED", "OFFSET_LOST"})
"""Codes of `explain` for an offset that has no record, or none any more."""
AWAY: Final = frozenset({"OFFSET_AWAITED", "LEADER_NOT_AVAILABLE", "SEGMENT_NOT_LISTED"})
"""Codes for a record that cannot be explained now."""
_NUMBER: Final = re.compile(r"\d{1,19}", re.ASCII)
_RETRY_S: Final = 1.0


async def record(asked: Asked, site: Site) -> Json:
    """Return the explanation of a record, its drawing and its content.

    Raises Refused with the sentence of `explain` if there is no record: 404, or 503 if it cannot be
    read now.
    """
    topic = asked.path["topic"]
    partition, offset = _place(asked)
    show = asked.query.get("show") or SHOWN[0]
    if show not in SHOWN:
        raise Refused(400, "INVALID_REQUEST", f"show must be one of {', '.join(SHOWN)}")
    async with own_client(site) as client:
        try:
            view = await view_partition(client, topic, partition, offset, None)
            found = await explain(await storage_of(site), view)
        except AdminError as error:
            raise _refusal(error) from error
        found = await with_times(client, found)
        content, remark = None, None
        if found["record"]["timestamp"] is not None:
            content, remark = await _content(client, asked, site, show)
    return {
        **found,
        "drawing": draw_life(found),
        "text": explanation_text(found),
        "content": content,
        "content_remark": remark,
        "show": show,
        "hidden": site.settings.hide_values,
        # None where nothing is: below the start, and at the end while the leader reports it.
        "previous_offset": offset - 1 if offset > (view.start or 0) else None,
        "next_offset": offset + 1 if view.end is None or offset + 1 < view.end else None,
    }


def _place(asked: Asked) -> tuple[int, int]:
    words = asked.path["partition"], asked.path["offset"]
    if not all(map(_NUMBER.fullmatch, words)):
        raise Refused(404, "NOT_FOUND", "a record is at /topics/TOPIC/PARTITION/OFFSET")
    partition, offset = map(int, words)
    if partition > INT32_MAX or offset > INT64_MAX:
        raise Refused(400, "INVALID_REQUEST", "a partition or an offset is never as large")
    return partition, offset


def _refusal(error: AdminError) -> Refused | AdminError:
    if error.code in GONE:
        return Refused(404, error.code, str(error))
    return Refused(503, error.code, str(error)) if error.code in AWAY else error


async def _content(
    client: AdminClient, asked: Asked, site: Site, show: str
) -> tuple[Json | None, str | None]:
    """Return the record as a row, or the reason why it cannot be shown."""
    topic = asked.path["topic"]
    partition, offset = _place(asked)
    try:
        found = await _read(client, topic, partition, offset)
    except AdminError as error:
        return None, str(error)
    if found is None:
        return None, "consumers do not see it: it is a marker of a transaction"
    hidden = site.settings.hide_values
    shown = cut(found, WHOLE_BYTES)
    row = await in_thread(partial(row_of, topic, partition, shown, show, hidden=hidden))
    return row, None


async def _read(client: AdminClient, topic: str, partition: int, offset: int) -> Record | None:
    wanted: dict[Any, LogRange] = {(topic, partition): LogRange(offset, offset + 1)}
    reader = PartitionReader(client, wanted, committed=False, follow=False, retry_s=_RETRY_S)
    async with aclosing(reader.chunks()) as chunks:
        async for chunk in chunks:
            found = await in_thread(_first_of, chunk)
            if found is not None:
                return found
    return None


def _first_of(chunk: Chunk) -> Record | None:
    """Return the first record of a response. Raises AdminError."""
    try:
        return next(chain.from_iterable(visible(chunk, committed=False)), None)
    except DamagedBatch as error:
        raise damaged(chunk.place, error) from None


def record_command(asked: Asked) -> str:
    """Return the command that explains the same record."""
    return "gateway explain {topic}/{partition}@{offset}".format(**asked.path)
