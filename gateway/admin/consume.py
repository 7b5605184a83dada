"""Prints the records of topics: reads, filters, counts, and writes to stdout."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Sequence
from contextlib import aclosing, asynccontextmanager, suppress
from typing import TYPE_CHECKING, Final, NamedTuple

from gateway.admin.client import AdminClient, AdminError, Place, raise_for
from gateway.admin.consume_batches import (
    AbortedTransactions,
    DamagedBatch,
    Record,
    check,
    read_records,
)
from gateway.admin.consume_bounds import Bound, show_partitions
from gateway.admin.consume_fetch import Chunk, PartitionReader, damaged, ranges
from gateway.admin.consume_filters import Filter, is_pattern, matching, topics_by_pattern
from gateway.admin.consume_output import Printed
from gateway.admin.consume_stdout import Stdout
from ledger.command_line.progress import ProgressLine
from ledger.tasks import start_once

if TYPE_CHECKING:
    from gateway.admin.bad_input import BadInput
    from gateway.admin.consume_where import Where

    Decode = Callable[
        [str, int, Sequence[Record]], Awaitable[tuple[Sequence[Record], BadInput | None]]
    ]
    """Returns records with other values, up to the first that cannot be decoded, and its error."""

_NAMES_SHOWN: Final = 10
_PROGRESS_S: Final = 1.0
_END_S: Final = 0.5
_TURN_S: Final = 0.05
_UNKNOWN: Final = "UNKNOWN_TOPIC_OR_PARTITION"


class Wanted(NamedTuple):
    """The records that a command asks for."""

    topics: Sequence[str]  # names, or regular expressions such as /orders.*/
    partitions: Sequence[int] = ()  # empty for all
    start: Bound = Bound("start")
    stop: Bound = Bound("end")
    follow: bool = False
    committed: bool = True
    retry_s: float = 20.0


class Turns:
    """Lets other tasks run, such as those of Ctrl-C and of the progress, once it is their turn."""

    def __init__(self) -> None:
        self._last_s = time.monotonic()

    async def give(self) -> None:
        """Let them run, unless they did in the last 50 ms."""
        if time.monotonic() - self._last_s >= _TURN_S:
            await asyncio.sleep(0)
            self._last_s = time.monotonic()


class Printer:
    """Prints records that the filters match, up to a count."""

    def __init__(
        self,
        out: Stdout,
        printed: Printed,
        filters: Sequence[Filter],
        count: int | None,
        where: Where | None = None,
        decode: Decode | None = None,
    ) -> None:
        self.out = out
        self._printed = printed
        self._filters = filters
        self._left = count
        self._where = where
        self._decode = decode
        # How many records were read, and how many of them were printed.
        self.read = 0
        self.shown = 0
        # True once `begin` was called: the output has a beginning, and needs an end.
        self._begun = False

    @property
    def full(self) -> bool:
        """True once as many records as asked for are printed."""
        return self._left == 0

    def begin(self) -> None:
        """Begin the output, once it is certain that there is something to read."""
        self._begun = True
        self.out.put(self._printed.head)

    async def end(self) -> None:
        """Write what is pending, and what closes the output."""
        if self._begun:
            self.out.put(self._printed.foot)
        await self.out.flush()

    async def end_soon(self) -> None:
        """End as `end` does after Ctrl-C, unless that takes long: a pipe may be full."""
        with suppress(TimeoutError):
            async with asyncio.timeout(_END_S):
                await self.end()

    async def take(self, topic: str, index: int, records: Sequence[Record]) -> int:
        """Keep records for the next flush. Returns how many of them were looked at.

        Raises BadInput if a value cannot be decoded, once the records before it are kept.
        """
        error = None
        if self._decode is not None:
            records, error = await self._decode(topic, index, records)
        seen = await self._taken(topic, index, records)
        if error is not None and not self.full:
            raise error
        return seen

    async def _taken(self, topic: str, index: int, records: Sequence[Record]) -> int:
        if self._filters or self._where is not None:
            return await self._filtered(topic, index, records)
        if self._left is not None:
            records = records[: self._left]
            self._left -= len(records)
        self._print(topic, index, records)
        self.read += len(records)
        return len(records)

    async def _filtered(self, topic: str, index: int, records: Sequence[Record]) -> int:
        found = matching(self._filters, records)
        if self._where is not None:
            found = await self._where.matching(topic, index, found)
        seen = len(records)
        if self._left is not None:
            if len(found) >= self._left > 0:
                last = found[self._left - 1].offset
                seen = sum(record.offset <= last for record in records)
            found = found[: self._left]
            self._left -= len(found)
        self._print(topic, index, found)
        self.read += seen
        return seen

    def _print(self, topic: str, index: int, records: Sequence[Record]) -> None:
        if records:
            self.out.put(self._printed.render(topic, index, records))
            self.shown += len(records)


async def consume(client: AdminClient, wanted: Wanted, printer: Printer) -> None:
    """Print the records. Raises Unreachable and AdminError."""
    places = await find_places(client, wanted)
    found = await ranges(client, places, wanted.start, wanted.stop, committed=wanted.committed)
    printer.begin()
    turns = Turns()
    reader = PartitionReader(
        client,
        found,
        committed=wanted.committed,
        follow=wanted.follow,
        retry_s=wanted.retry_s,
    )
    async with aclosing(reader.chunks()) as chunks:
        async for chunk in chunks:
            await _print_chunk(chunk, printer, turns, committed=wanted.committed)
            if printer.full:
                return
            if reader.idle or printer.out.due:
                await printer.out.flush()


async def _print_chunk(chunk: Chunk, printer: Printer, turns: Turns, *, committed: bool) -> None:
    topic, index = chunk.place
    try:
        for records in visible(chunk, committed=committed):
            await printer.take(topic, index, records)
            if printer.full:
                return
            if printer.out.due:
                await printer.out.flush()
                await asyncio.sleep(0)  # the next response arrives meanwhile
            await turns.give()
    except DamagedBatch as error:
        raise damaged(chunk.place, error) from None


def visible(chunk: Chunk, *, committed: bool) -> Iterator[Sequence[Record]]:
    """Yield the records that a consumer sees. Raises DamagedBatch."""
    aborted = AbortedTransactions(chunk.aborted if committed else ())
    for batch in chunk.batches:
        if chunk.end is not None and batch.header.base_offset >= chunk.end:
            return
        check(batch)
        if not aborted.hides(batch) and batch.last_offset >= chunk.first:
            yield from read_records(batch, chunk.first, chunk.end)


# topics and partitions


async def find_places(client: AdminClient, wanted: Wanted) -> list[Place]:
    """Return the partitions to read. Raises AdminError, which names those that exist."""
    found = await find_topics(client, wanted.topics)
    if not wanted.partitions:
        return [(name, index) for name, indexes in found.items() for index in indexes]
    for name, indexes in found.items():
        missing = [index for index in wanted.partitions if index not in indexes]
        if missing:
            exist = f"{'are' if len(indexes) > 1 else 'is only'} {show_partitions(indexes)}"
            message = f"{name} has no partition {show_partitions(missing)}; there {exist}"
            raise AdminError(message, _UNKNOWN)
    return [(name, index) for name in found for index in wanted.partitions]


async def find_topics(client: AdminClient, words: Sequence[str]) -> dict[str, list[int]]:
    """Return the partitions of each topic that the words name. Raises AdminError."""
    named = [word for word in words if not is_pattern(word)]
    found: dict[str, list[int]] = {}
    if named:
        answer = await client.metadata(list(dict.fromkeys(named)))
        for topic in answer.topics:
            if topic.error_code.name == "unknown_topic_or_partition":
                raise AdminError(await _unknown(client, topic.name), _UNKNOWN)
            if topic.error_code.name != "leader_not_available":
                raise_for(topic.error_code, None, topic.name)
            found[topic.name] = _indexes(topic)
    for word in words:
        if is_pattern(word):
            found |= await _matching(client, word)
    return found


async def _matching(client: AdminClient, word: str) -> dict[str, list[int]]:
    topics = [each for each in (await client.metadata(None)).topics if not each.is_internal]
    by_name = {topic.name: topic for topic in sorted(topics, key=lambda each: each.name)}
    names = topics_by_pattern(word[1:-1], list(by_name))
    if not names:
        raise AdminError(f"no topic matches {word}; {_existing(list(by_name))}", _UNKNOWN)
    return {name: _indexes(by_name[name]) for name in names}


def _indexes(topic: object) -> list[int]:
    partitions: Sequence[object] = getattr(topic, "partitions", ())
    return sorted(int(getattr(each, "partition_index", 0)) for each in partitions)


async def _unknown(client: AdminClient, name: str) -> str:
    topics = (await client.metadata(None)).topics
    names = sorted(topic.name for topic in topics if not topic.is_internal)
    return f"topic '{name}' does not exist; {_existing(names)}"


def _existing(names: Sequence[str]) -> str:
    if not names:
        return "there is no topic"
    more = len(names) - _NAMES_SHOWN
    shown = ", ".join(names[:_NAMES_SHOWN]) + (f" and {more} more" if more > 0 else "")
    return f"there {'is' if len(names) == 1 else 'are'} {shown}"


# progress


@asynccontextmanager
async def progress_shown(printer: Printer, *, quiet: bool) -> AsyncGenerator[None]:
    """Show how much was read on stderr, if that is a terminal, while nothing is printed to it."""
    if quiet:
        yield
        return
    line = ProgressLine()
    printer.out.on_write = line.clear
    task = start_once("progress", _show_progress(printer, line))
    try:
        yield
    finally:
        task.cancel()
        line.clear()


async def _show_progress(printer: Printer, line: ProgressLine) -> None:
    out = printer.out
    while True:
        await asyncio.sleep(_PROGRESS_S)
        if not out.is_terminal or out.quiet_s >= _PROGRESS_S:
            line.text(f"read {printer.read} records, printed {printer.shown}")
