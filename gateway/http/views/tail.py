"""New records of a topic as they are written, for a browser: a bounded rate, and what it misses.

A tail never falls behind for long. Once a browser takes less than arrives, or the topic has more
bytes than are worth decoding for it, the tail goes on at the end, and counts what it left out.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import AsyncExitStack, aclosing
from typing import TYPE_CHECKING, Final

from gateway.admin.client import AdminClient, Place
from gateway.admin.consume import visible
from gateway.admin.consume_batches import DamagedBatch, Record
from gateway.admin.consume_bounds import END, LogRange
from gateway.admin.consume_fetch import Chunk, PartitionReader, damaged, ranges
from gateway.http.pages import Asked, Json, Refused
from gateway.http.record_cursor import PARTITIONS_MAX
from gateway.http.record_filter import Conditions, RecordQuery, open_conditions, read_query
from gateway.http.record_rows import cut, row_of
from gateway.http.record_search import decode_step
from gateway.http.record_source import own_client, partitions_of
from ledger.tasks import in_thread

if TYPE_CHECKING:
    from gateway.http.site import Site

TAILS_MAX: Final = 8
"""Tails of this process at a time."""
ROWS_PER_S: Final = 200
BYTES_PER_S: Final = 2 * 1024 * 1024
"""What a tail decodes of a topic. Records beyond that are skipped."""

_RESPONSE_BYTES: Final = 256 * 1024
_RETRY_S: Final = 20.0
_LATE_S: Final = 2.0  # a browser that took nothing for so long goes on at the end

Event = tuple[str, Json]


def tail(asked: Asked, site: Site) -> AsyncIterator[Event]:
    """Return the events `begun`, `record` (a row) and `skipped` (a count of records).

    Raises Refused, also if there are too many tails.
    """
    query = read_query(asked.query, hidden=site.settings.hide_values)
    if asked.query.get("cursor") or query.start != "newest":
        raise Refused(400, "INVALID_REQUEST", "a tail begins at the end: leave out from and cursor")
    if len(site.tails) >= TAILS_MAX:
        message = f"{TAILS_MAX} tails are open at this gateway: close one"
        raise Refused(503, "TOO_MANY_TAILS", message)
    found = Tail(asked, site, query)
    site.tails.add(found)
    return found


class Tail:
    """The events of one browser. It takes its place from its making until `aclose`."""

    def __init__(self, asked: Asked, site: Site, query: RecordQuery) -> None:
        self._site = site
        self._events = _Tailing(asked, site, query).events()

    def __aiter__(self) -> AsyncIterator[Event]:
        return self

    async def __anext__(self) -> Event:
        return await anext(self._events)

    async def aclose(self) -> None:
        """End the tail, with its tasks and connections."""
        self._site.tails.discard(self)
        await self._events.aclose()


class _Tailing:
    """Reads a topic from its end on, for one tail."""

    def __init__(self, asked: Asked, site: Site, query: RecordQuery) -> None:
        self._topic = asked.path["topic"]
        self._site = site
        self._query = query
        self._loop = asyncio.get_running_loop()
        # By partition: the offset behind the last record that was looked at.
        self._next: dict[int, int] = {}
        # When the present second began, and what was sent and read in it.
        self._second_s = 0.0
        self._sent = 0
        self._bytes = 0
        # Records that are not shown, since the last event about them.
        self._skipped = 0

    async def events(self) -> AsyncGenerator[Event]:
        """Yield until the caller stops. Raises Refused, AdminError and Unreachable."""
        async with AsyncExitStack() as stack:
            conditions = await stack.enter_async_context(open_conditions(self._query))
            client = await stack.enter_async_context(own_client(self._site))
            places = await self._places(client)
            yield "begun", {"partitions": len(places)}
            async with aclosing(self._from_the_end(client, places, conditions)) as live:
                async for event in live:
                    yield event

    async def _from_the_end(
        self, client: AdminClient, places: list[Place], conditions: Conditions
    ) -> AsyncGenerator[Event]:
        """Yield what arrives. Whenever that is too much, go on at the end."""
        while True:
            ends = await ranges(client, places, END, END, committed=self._query.committed)
            self._jump(ends)
            if self._skipped:
                yield self._take_skipped()
            async with aclosing(self._live(client, ends, conditions)) as live:
                async for event in live:
                    yield event
            await self._second_over()

    async def _places(self, client: AdminClient) -> list[Place]:
        indexes = await partitions_of(client, self._topic, self._query.partitions)
        if len(indexes) > PARTITIONS_MAX:
            message = f"a tail reads at most {PARTITIONS_MAX} partitions: choose them by partition="
            raise Refused(400, "INVALID_REQUEST", message)
        return [(self._topic, index) for index in indexes]

    def _jump(self, ends: Mapping[Place, LogRange]) -> None:
        """Go on at these offsets, and count those in between as skipped."""
        for (_, index), log in ends.items():
            self._skipped += max(0, log.end - self._next.get(index, log.end))
            self._next[index] = log.end

    async def _live(
        self, client: AdminClient, ends: Mapping[Place, LogRange], conditions: Conditions
    ) -> AsyncGenerator[Event]:
        """Yield what arrives from these offsets on. Returns when it is time to jump to the end."""
        reader = PartitionReader(
            client,
            ends,
            committed=self._query.committed,
            follow=True,
            retry_s=_RETRY_S,
            response_bytes=_RESPONSE_BYTES,
        )
        async with aclosing(reader.chunks()) as chunks:
            async for chunk in chunks:
                self._begin_second()
                if self._bytes > BYTES_PER_S:
                    return
                self._bytes += sum(len(batch.data) for batch in chunk.batches)
                began_s = self._loop.time()
                async for event in self._rows(chunk, conditions):
                    yield event
                if self._loop.time() - began_s > _LATE_S:
                    return

    def _begin_second(self) -> None:
        now_s = self._loop.time()
        if now_s - self._second_s >= 1:
            self._second_s, self._sent, self._bytes = now_s, 0, 0

    async def _second_over(self) -> None:
        """Wait for the next second if this one has no more room."""
        if self._bytes > BYTES_PER_S:
            await asyncio.sleep(max(0.0, self._second_s + 1 - self._loop.time()))

    async def _rows(self, chunk: Chunk, conditions: Conditions) -> AsyncGenerator[Event]:
        """Yield the records of a response that match, as far as this second has room."""
        index = chunk.place[1]
        pieces = visible(chunk, committed=self._query.committed)
        done = False
        while not done:
            try:
                step = await in_thread(decode_step, pieces, conditions.filters)
            except DamagedBatch as error:
                raise damaged(chunk.place, error) from None
            found = await conditions.matching(*chunk.place, step.found)
            for record in found:
                self._begin_second()
                if self._sent >= ROWS_PER_S:
                    self._skipped += 1
                    continue
                self._sent += 1
                yield "record", await in_thread(self._row, index, record)
            done = step.done
        self._next[index] = max(self._next[index], chunk.batches[-1].last_offset + 1)
        if self._skipped:
            yield self._take_skipped()

    def _take_skipped(self) -> Event:
        count, self._skipped = self._skipped, 0
        return "skipped", {"count": count}

    def _row(self, index: int, record: Record) -> Json:
        hidden = self._site.settings.hide_values
        return row_of(self._topic, index, cut(record), self._query.show, hidden=hidden)
