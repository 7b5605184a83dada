"""Requests that name many groups or topics: other tasks run meanwhile, and the time has a limit."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from itertools import islice
from typing import Any, TypeVar

from gateway.handlers.api import Context, Reply, Request
from gateway.wire.messages import EncodedRows, encode_rows

# Seconds after which the remaining keys of a request get a retriable error. Replies are sent in
# order, and clients wait 30 s.
ANSWER_S_MAX = 10.0
_ROWS_PER_TURN = 500

_Key = TypeVar("_Key")


class Rows:
    """The rows of one array of a reply. Other tasks run after every `_ROWS_PER_TURN` rows.

    The rows of a long array are encoded meanwhile, because a reply of 250,000 rows would hold the
    event loop while it is encoded, and its dictionaries take much more memory than its bytes.
    """

    def __init__(self, request: Request, *path: str) -> None:
        """Create an empty array. `path` names it: the fields from the body of the reply to it."""
        self.count = 0  # all rows so far
        self._request = request
        self._path = path
        self._rows: list[Reply] = []  # not encoded yet
        self._weight = 0  # of `_rows`
        self._encoded: EncodedRows | None = None  # the rows before `_rows`

    async def add(self, row: Reply, weight: int = 1) -> None:
        """Append a row that has `weight` rows in itself."""
        self.count += 1
        self._rows.append(row)
        self._weight += weight
        if self._weight >= _ROWS_PER_TURN:
            self._encode()
            await asyncio.sleep(0)

    def _encode(self) -> EncodedRows:
        if self._encoded is None:
            self._encoded = encode_rows(self._request.key, self._request.version, *self._path)
        self._encoded.add(self._rows)
        self._rows, self._weight = [], 0
        return self._encoded

    def result(self) -> Any:
        """Return all rows, as a value of the reply's field."""
        return self._rows if self._encoded is None else self._encode()


async def with_pauses(elements: Iterable[_Key]) -> AsyncIterator[_Key]:
    """Yield the elements of a request. Other tasks run after every `_ROWS_PER_TURN` of them."""
    for number, each in enumerate(elements, 1):
        yield each
        if number % _ROWS_PER_TURN == 0:
            await asyncio.sleep(0)


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

    Keys that are not reached until `end_s` are refused, by default after `ANSWER_S_MAX`.
    """
    if end_s is None:
        end_s = ctx.clock.monotonic_s() + ANSWER_S_MAX
    waiting = iter(keys)
    while some := list(islice(waiting, at_once)):
        if ctx.clock.monotonic_s() >= end_s:
            answers = list(map(refuse, some))
        elif len(some) == 1:
            answers = [await answer(some[0])]
        else:
            answers = await asyncio.gather(*map(answer, some))
        for each in answers:
            await rows.add(each, weight)
