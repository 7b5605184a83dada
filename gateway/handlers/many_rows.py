"""Requests that name many groups or topics: other tasks run meanwhile.

The time of a request and the bytes of its reply have limits.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from itertools import islice
from typing import Any, Final, TypeVar

from gateway.handlers.api import Context, Reply, Request
from gateway.wire.messages import EncodedRows, encode_rows

# Seconds after which the remaining keys of a request get a retriable error. Replies are sent in
# order, and clients wait 30 s.
ANSWER_S_MAX = 10.0
REPLY_BYTES_MAX: Final = 32 * 1024 * 1024
"""Bytes of one reply, after which the rest of the request gets rows with an error and no more.

Replies with one short row for each element of their request do not reach it. So it bounds what a
small request can ask for: the same offsets again and again, or the configs of many resources.
"""
TEXT_BYTES_MAX: Final = 4 * 1024 * 1024
"""Bytes of one reply after which its errors have no texts."""
_ROWS_PER_TURN = 500
_CHANGING: Final = frozenset((19, 20, 21, 33, 37, 42, 44, 47, 49, 51))
"""Keys whose rows report changes, as `changes` knows them; UpdateFeatures has no rows."""

_Key = TypeVar("_Key")


class Rows:
    """The rows of one array of a reply, which are encoded at once.

    Other tasks run after every `_ROWS_PER_TURN` rows and elements of the request, whichever arrays
    they belong to. A reply of 250,000 rows would hold the event loop while it is encoded, and its
    dictionaries take much more memory than its bytes.
    """

    def __init__(self, request: Request, *path: str) -> None:
        """Create an empty array. `path` names it: the fields from the body of the reply to it."""
        self._request = request
        self._path = path
        self._encoded: EncodedRows | None = None  # None until the first row

    @property
    def full(self) -> bool:
        """True if the whole reply has reached `REPLY_BYTES_MAX`."""
        return self._request.reply_bytes >= REPLY_BYTES_MAX

    def text(self, text: str | None) -> str | None:
        """Return the text of an error, or None if the reply is long already.

        Clients show the error of the code then. Otherwise a text for each partition, of four bytes
        in the request, would be most of the reply.
        """
        return text if self._request.reply_bytes < TEXT_BYTES_MAX else None

    async def add(self, row: Reply, weight: int = 1) -> slice:
        """Append a row that has `weight` rows in itself, apart from the rows of other `Rows`.

        Returns the place of its bytes, for `repeat`.
        """
        if self._encoded is None:
            self._encoded = encode_rows(self._request.key, self._request.version, *self._path)
        data = self._encoded.data
        begin = len(data)
        self._encoded.add((row,))
        size = len(data) - begin
        for value in row.values():
            if isinstance(value, EncodedRows):
                size -= len(value.data)  # these rows were counted when they were added there
        self._request.reply_bytes += size
        if not self._request.error and row.get("error_code"):
            self._request.error = int(row["error_code"])
        if self._request.key in _CHANGING:
            from gateway.handlers.changes import note_row  # many gateways are never changed

            note_row(self._request, self._path, row)
        await _pass(self._request, weight)
        return slice(begin, len(data))

    async def repeat(self, place: slice) -> None:
        """Append a copy of the row whose bytes are at `place`."""
        assert self._encoded is not None
        row = self._encoded.data[place]
        self._encoded.data += row
        self._encoded.count += 1
        self._request.reply_bytes += len(row)
        await _pass(self._request, 1)

    def result(self) -> Any:
        """Return all rows, as a value of the reply's field."""
        return () if self._encoded is None else self._encoded


async def _pass(request: Request, weight: int) -> None:
    """Count rows or elements of a request, and let other tasks run after `_ROWS_PER_TURN`."""
    request.unpaused += weight
    if request.unpaused >= _ROWS_PER_TURN:
        request.unpaused = 0
        await asyncio.sleep(0)


async def with_pauses(elements: Iterable[_Key], request: Request) -> AsyncIterator[_Key]:
    """Yield elements of a request, or of what it asks for. Other tasks run meanwhile.

    They run after every `_ROWS_PER_TURN` elements and rows of the request, so loops may be nested.
    """
    for each in elements:
        yield each
        await _pass(request, 1)


async def answer_each(
    keys: Iterable[_Key],
    answer: Callable[[_Key], Awaitable[Reply]],
    refuse: Callable[[_Key], Reply],
    rows: Rows,
    ctx: Context,
    *,
    at_once: int = 16,
    weight: int = 32,
    end_s: float | None = None,
) -> None:
    """Add a row for each key, `at_once` at a time.

    Keys that are not reached until `end_s` are refused, by default after `ANSWER_S_MAX`. So are
    those for which the reply has no room.
    """
    if end_s is None:
        end_s = ctx.clock.monotonic_s() + ANSWER_S_MAX
    waiting = iter(keys)
    while some := list(islice(waiting, at_once)):
        if rows.full or ctx.clock.monotonic_s() >= end_s:
            answers = list(map(refuse, some))
        elif len(some) == 1:
            answers = [await answer(some[0])]
        else:
            answers = await asyncio.gather(*map(answer, some))
        for each in answers:
            await rows.add(each, weight)
