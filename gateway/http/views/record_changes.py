"""Writes one record, or copies the records of a filter to another topic, byte for byte."""

from __future__ import annotations

import asyncio
from base64 import b64decode
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, aclosing
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

from gateway.access import Operation, Resource, ResourceType
from gateway.admin.bad_input import BadInput
from gateway.admin.client import AdminClient, AdminError, Unreachable
from gateway.admin.consume_batches import BadName
from gateway.admin.consume_batches import Record as ReadRecord
from gateway.admin.record_json import Record, decode_record
from gateway.http.change_form import confirmed, field, pairs_of, require, ticked
from gateway.http.hrefs import record_href
from gateway.http.pages import Asked, Json, Refused
from gateway.http.record_filter import Conditions, open_conditions, read_query
from gateway.http.record_search import Bounds, Search, found_in
from gateway.http.record_source import (
    Plan,
    open_search,
    own_client,
    partitions_of,
    plan_search,
    progress_of,
    searching,
)
from ledger.command_line import units
from ledger.tasks import in_thread

if TYPE_CHECKING:
    from gateway.http.site import Site

COPY_BOUNDS: Final = Bounds(seconds=2.5)
"""Half of the time of a request: the other half is for acknowledgements."""
_ACKNOWLEDGED_S_MAX: Final = 2.0
_ANY_PARTITION: Final = -1
_FIELDS: Final = ("to", "confirm", "token")

_DECODERS: Final[Mapping[str, Callable[[str], bytes]]] = {
    "text": str.encode,
    "base64": lambda word: b64decode(word, validate=True),
    "hex": bytes.fromhex,
}


async def produce_record(asked: Asked, site: Site) -> Json:
    """Write a record: `record`, a line of JSON as `topic consume` prints it, or its parts.

    The parts are `key`, `value` and `headers` (name=value, one on a line), in the encoding `form`:
    text, base64 or hex. An empty key is null, and `tombstone` makes the value null.
    """
    topic = asked.path["topic"]
    confirmed(asked, topic)
    record = _record(asked)

    async def one() -> AsyncGenerator[Record]:
        yield record

    async with own_client(site, asked) as client:
        (place, spread), *_ = (await _write(client, topic, one())).items()
    return {
        "topic": topic,
        "partition": place,
        "offset": spread.first_offset,
        "sentence": f"Wrote offset {spread.first_offset} of partition {place}.",
        "href": record_href(topic, place, spread.first_offset),
    }


def _record(asked: Asked) -> Record:
    whole = field(asked, "record", decode_record, Record(None))
    if asked.form.get("record"):
        # The producer takes headers as a list only.
        return whole._replace(topic=None, offset=None, headers=list(whole.headers))
    name = asked.form.get("form") or "text"
    if name not in _DECODERS:
        raise Refused(400, "INVALID_REQUEST", f"form must be one of {', '.join(_DECODERS)}")
    decode = _DECODERS[name]
    partition = field(asked, "partition", units.whole(0, units.INT32_MAX), _ANY_PARTITION)
    headers = [
        (key, None if value is None else _decoded("headers", value, decode))
        for key, value in field(asked, "headers", pairs_of, [])
    ]
    key = asked.form.get("key", "")
    value = _decoded("value", asked.form.get("value", ""), decode)
    return Record(
        value=None if ticked(asked, "tombstone") else value,
        key=_decoded("key", key, decode) if key else None,
        headers=headers,
        partition=None if partition < 0 else partition,
    )


def _decoded(name: str, word: str, decode: Callable[[str], bytes]) -> bytes:
    try:
        return decode(word)
    except ValueError as error:
        raise Refused(400, "INVALID_REQUEST", f"{name}: {error}") from None


async def _write(client: AdminClient, topic: str, records: Any) -> Mapping[int, Any]:
    """Write records, and return what was written by partition. Raises Refused."""
    # The producer is imported when it is first needed, beside the loop.
    module = await in_thread(import_module, "gateway.admin.produce")
    outcome, totals = await module.write_records(client, topic, records, _ACKNOWLEDGED_S_MAX)
    error = outcome.error
    if error is None:
        return totals.partitions
    unknown = ""
    if totals.records or totals.unacknowledged:
        unknown = f"; {totals.records} records are written, {totals.unacknowledged} may be"
    if isinstance(error, BadInput):
        raise Refused(400, error.code, f"{error}{unknown}") from error
    if isinstance(error, AdminError):
        raise Refused(409, error.code, f"{error}{unknown}") from error
    if isinstance(error, Unreachable):
        raise Refused(503, "UNREACHABLE", f"{error}{unknown}") from error
    raise error


async def copy_records(asked: Asked, site: Site) -> Json:
    """Copy the records of a filter `to` another topic, from the oldest on, within the bounds.

    Keys, values, headers and times stay as they are; a record keeps its partition if the other
    topic has it. The fields of the filter are those of the page of messages.
    """
    target = field(asked, "to", str)
    confirmed(asked, target)
    require(asked, site, Operation.WRITE, Resource(ResourceType.TOPIC, target))
    if target == asked.path["topic"]:
        raise Refused(400, "INVALID_REQUEST", "to: a topic is not copied to itself")
    words = {name: word for name, word in asked.form.items() if name not in _FIELDS}
    query = read_query({"from": "oldest", **words}, hidden=site.settings.hide_values)
    if query.backward:
        raise Refused(400, "INVALID_REQUEST", "from: a copy begins at oldest, offset or time")
    due_s = asyncio.get_running_loop().time() + COPY_BOUNDS.seconds
    place = asked._replace(cursor=words.get("cursor") or None)
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(searching(site))
        conditions = await stack.enter_async_context(open_conditions(query))
        client = await stack.enter_async_context(own_client(site, asked))
        plan = await plan_search(client, place, query)
        if plan.backward:
            raise Refused(400, "INVALID_REQUEST", "cursor is not one of a copy")
        known = frozenset(await partitions_of(client, target, ()))
        left_s = due_s - asyncio.get_running_loop().time()
        bounds = COPY_BOUNDS._replace(seconds=max(0.0, left_s))
        search = open_search(client, place, query, plan, conditions, _exact, bounds)
        records = await stack.enter_async_context(
            aclosing(_without_refusal(_copies(search, known)))
        )
        written = await _write(client, target, records)
    return _copied(plan, written, target, conditions)


def _copied(plan: Plan, written: Mapping[int, Any], target: str, conditions: Conditions) -> Json:
    count = sum(spread.records for spread in written.values())
    progress = progress_of(plan)
    return {
        "topic": target,
        "copied": count,
        "partitions": {str(index): spread.records for index, spread in sorted(written.items())},
        "next": progress.cursor,
        "searched": progress.searched,
        "total": progress.total,
        "notes": [*plan.notes, *filter(None, [conditions.remark])],
        "sentence": f"Copied {count:,} records to {target}: {progress.sentence}.",
    }


def _exact(record: ReadRecord) -> ReadRecord:
    """Return the record. Raises AdminError if it would not be the same in another topic."""
    if any(isinstance(name, BadName) for name, _ in record.headers):
        message = f"the record at offset {record.offset} has a header whose name is not UTF-8"
        raise AdminError(f"{message}: it cannot be copied as it is", "INVALID_RECORD")
    return record


async def _copies(search: Search, known: frozenset[int]) -> AsyncGenerator[Record]:
    async with aclosing(found_in(search)) as found:
        async for index, records in found:
            for each in records:
                yield _copy(each, index if index in known else None)


async def _without_refusal(records: AsyncGenerator[Record]) -> AsyncGenerator[Record]:
    """Yield the records. Raises AdminError for Refused: what was written is then counted."""
    try:
        async with aclosing(records):
            async for each in records:
                yield each
    except Refused as error:
        raise AdminError(error.message, error.code) from error


def _copy(record: ReadRecord, partition: int | None) -> Record:
    headers: Sequence[tuple[str, bytes | None]] = list(record.headers)
    return Record(
        value=record.value,
        key=record.key,
        headers=headers,
        partition=partition,
        timestamp=record.timestamp,
    )
