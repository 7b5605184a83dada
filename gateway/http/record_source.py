"""What every page about records needs of a topic: a client, its partitions, and a search of it."""

from __future__ import annotations

import asyncio
import re
import shlex
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Final, NamedTuple

from gateway.admin.client import AdminClient, AdminError, Place, raise_for
from gateway.admin.consume_batches import Record
from gateway.admin.consume_bounds import END, START, Bound, LogRange
from gateway.admin.consume_fetch import Chunk, PartitionReader, ranges
from gateway.admin.storage import Storage
from gateway.http.pages import Asked, Refused
from gateway.http.record_cursor import PARTITIONS_MAX, Cursor, decode_cursor, encode_cursor
from gateway.http.record_filter import DIGITS_13, Conditions, RecordQuery
from gateway.http.record_search import Bounds, Search, Span
from gateway.http.site import SEARCHES_MAX
from ledger.command_line import units

if TYPE_CHECKING:
    from gateway.http.site import Site

_WAIT_S_MAX: Final = 0.5
_RETRY_S: Final = 1.0
_UNKNOWN: Final = "UNKNOWN_TOPIC_OR_PARTITION"


@asynccontextmanager
async def own_client(site: Site, changing: Asked | None = None) -> AsyncGenerator[AdminClient]:
    """Yield a client of its own, whose connections end with it. Raises Unreachable.

    A connection carries one request at a time, and a search holds it for long. `changing` is the
    request for which the client changes something.
    """
    client = AdminClient(
        site.settings_for(changing),
        answer_s_max=site.settings.request_s_max,
        retry_s_max=_RETRY_S,
    )
    async with client:
        yield client


async def storage_of(site: Site) -> Storage:
    """Return the connection to ledgers and bookies. Raises Refused if it is not known where."""
    try:
        return await site.storage()
    except AdminError as error:
        raise Refused(503, "NO_METADATA", str(error)) from error


@asynccontextmanager
async def searching(site: Site) -> AsyncGenerator[None]:
    """Hold one of the few places of searches. Raises Refused if all are taken."""
    try:
        async with asyncio.timeout(_WAIT_S_MAX):
            await site.searches.acquire()
    except TimeoutError:
        message = f"{SEARCHES_MAX} searches are under way: try again"
        raise Refused(503, "TOO_MANY_SEARCHES", message) from None
    try:
        yield
    finally:
        site.searches.release()


async def partitions_of(client: AdminClient, topic: str, wanted: Sequence[int]) -> list[int]:
    """Return the partitions of the topic, or those that are wanted. Raises AdminError."""
    (found,) = (await client.metadata([topic])).topics
    if found.error_code.name == "unknown_topic_or_partition":
        raise AdminError(f"Topic '{topic}' does not exist.", _UNKNOWN)
    raise_for(found.error_code, None, topic)
    indexes = sorted(each.partition_index for each in found.partitions)
    known = set(indexes)
    for index in wanted:
        if index not in known:
            raise AdminError(
                f"Topic '{topic}' has no partition {index}: it has {len(indexes)}.", _UNKNOWN
            )
    return list(wanted) or indexes


class Plan(NamedTuple):
    """The spans of a search, of how many offsets it was at its begin, and what to say of it."""

    spans: list[Span]
    total: int
    backward: bool
    notes: list[str]
    partial: bool = False  # True if the topic has further partitions


async def plan_search(client: AdminClient, asked: Asked, query: RecordQuery) -> Plan:
    """Return where a search begins, or goes on. Raises AdminError and Refused."""
    topic = asked.path["topic"]
    if asked.cursor is not None:
        return await _go_on(client, topic, decode_cursor(asked.cursor), query)
    indexes = await partitions_of(client, topic, query.partitions)
    notes: list[str] = []
    partial = len(indexes) > PARTITIONS_MAX
    if partial:
        notes.append(
            f"searches {PARTITIONS_MAX} of {len(indexes)} partitions, from {indexes[0]} to "
            f"{indexes[PARTITIONS_MAX - 1]}: choose others by partition="
        )
        indexes = indexes[:PARTITIONS_MAX]
    places = [(topic, index) for index in indexes]
    logs = await ranges(client, places, START, END, committed=query.committed)
    if query.start == "time":
        logs = await ranges(
            client, places, Bound("time", query.number), END, committed=query.committed
        )
    spans = [_span(index, logs[topic, index], query, notes) for index in indexes]
    total = sum(span.length for span in spans)
    return Plan(spans, total, query.backward, notes, partial)


def _span(index: int, log: LogRange, query: RecordQuery, notes: list[str]) -> Span:
    first = log.first
    if query.start == "offset":
        first = min(max(query.number, log.first), log.end)
        if query.number < log.first:
            notes.append(f"partition {index} begins at offset {log.first}")
        elif query.number >= log.end:
            notes.append(f"partition {index} ends at offset {log.end}")
    return Span(index, first, log.end)


async def _go_on(client: AdminClient, topic: str, cursor: Cursor, query: RecordQuery) -> Plan:
    """Return what is left, without records that retention removed meanwhile."""
    indexes = await partitions_of(client, topic, [span.index for span in cursor.spans])
    places: list[Place] = [(topic, index) for index in indexes]
    logs = await ranges(client, places, START, END, committed=query.committed)
    spans: list[Span] = []
    for span in cursor.spans:
        log = logs[topic, span.index]
        first = min(max(span.first, log.first), log.end)
        spans.append(Span(span.index, first, min(span.end, log.end)))
    return Plan(spans, cursor.total, cursor.backward, [])


def open_search(
    client: AdminClient,
    asked: Asked,
    query: RecordQuery,
    plan: Plan,
    conditions: Conditions,
    keep: Callable[[Record], Record],
    bounds: Bounds,
    limit: int | None = None,
) -> Search:
    """Return a search of the plan; `limit` is how many records are to be found."""

    def read(wanted: Mapping[Place, LogRange]) -> AsyncGenerator[Chunk]:
        reader = PartitionReader(
            client, wanted, committed=query.committed, follow=False, retry_s=_RETRY_S
        )
        return reader.chunks()

    narrow = {} if limit is None or query.filtered else {"window_max": limit}
    return Search(
        read,
        asked.path["topic"],
        plan.spans,
        conditions,
        keep,
        backward=plan.backward,
        committed=query.committed,
        bounds=bounds,
        **narrow,
    )


class Progress(NamedTuple):
    """How far a search came."""

    searched: int
    total: int
    cursor: str | None  # None at the end

    @property
    def sentence(self) -> str:
        if self.cursor is None:
            return f"searched all {self.total:,}"
        return f"searched {self.searched:,} of {self.total:,}: go on"


def progress_of(plan: Plan) -> Progress:
    """Return how far a search came, with the cursor that goes on."""
    rest = [span.rest(backward=plan.backward) for span in plan.spans]
    left = [span for span in rest if span.length]
    searched = max(0, plan.total - sum(span.length for span in left))
    cursor = encode_cursor(Cursor(plan.backward, plan.total, left)) if left else None
    return Progress(searched, plan.total, cursor)


def describe(query: Mapping[str, str], topic: str) -> str:
    """Return the command that shows the same records."""
    words = ["gateway topic consume", _word(topic)]
    start = query.get("from") or "newest"
    number = query.get(start, "")
    if start == "newest":
        words.append(f"--from -{query.get('limit') or 50}")
    elif start == "offset":
        words.append(f"--from {_word(number)}")
    elif start == "time":
        words.append(f"--from {_word(_time(number))}")
    for name, option in (("partition", "-p"), ("key", "--key"), ("header", "--header")):
        if query.get(name):
            words.append(f"{option} {_word(query[name])}")
    if query.get("text"):
        words.append(f"--grep {_word(_literal(query['text']))}")
    if query.get("where"):
        words.append(f"--where {_word(query['where'])}")
    if query.get("isolation") == "read_uncommitted":
        words.append("--isolation read_uncommitted")
    return " ".join([*words, "-o jsonl"])


def _time(word: str) -> str:
    """Return a time of a query as the command takes it: two hours ago is `@-2h` there."""
    if word.isdecimal():
        return f"@{word.zfill(DIGITS_13)}"
    return f"@-{word}" if units.seconds(word) is not None else f"@{word}"


def _literal(text: str) -> str:
    """Return a regular expression that matches this text."""
    return re.escape(text)


def _word(text: str) -> str:
    """Return a word as a shell reads it."""
    return shlex.quote(text)
