"""The records that a page asks for: where they begin, and which of them match. Read from a query.

The query of an address holds the whole filter, so that it can be sent to somebody else. There are
no regular expressions. A value that cannot be read is refused, as is a parameter that does not
exist: no filter is left out in silence.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, Final, NamedTuple

from gateway.admin.bad_input import BadInput
from gateway.admin.consume_batches import Record
from gateway.admin.consume_bounds import read_partitions
from gateway.admin.consume_filters import Filter, by_header, by_key, by_text
from gateway.admin.consume_where import CelMissing, InvalidExpression, Where
from gateway.admin.notation import read_moment
from gateway.http.pages import Refused
from ledger.command_line import units
from ledger.command_line.extras import EXTRAS
from ledger.tasks import in_thread, start_once

STARTS: Final = ("newest", "oldest", "offset", "time")
SHOWN: Final = ("text", "json", "hex")
ISOLATIONS: Final = ("read_committed", "read_uncommitted")
CONTENT: Final = ("key", "text", "header", "where")
"""The parameters that look into records."""
PARAMETERS: Final = (
    *("from", "offset", "time", "partition", *CONTENT, "isolation", "show", "limit", "cursor"),
)

_CEL_MISSING: Final = f"where needs a package that this gateway lacks: {EXTRAS['cel'][0]}"
_TEXT_MAX: Final = 1_000  # characters of a filter but for an expression
DIGITS_13: Final = 13
"""Digits of a time in milliseconds since 1970."""


class RecordQuery(NamedTuple):
    """The records that a page, a stream or a change asks for."""

    partitions: Sequence[int] = ()  # empty for all
    start: str = STARTS[0]  # one of STARTS
    number: int = 0  # the offset, or the time in milliseconds since 1970
    filters: Sequence[Filter] = ()
    where: str | None = None
    committed: bool = True
    show: str = SHOWN[0]

    @property
    def filtered(self) -> bool:
        """True if not every record matches."""
        return bool(self.filters) or self.where is not None

    @property
    def backward(self) -> bool:
        """True if the newest records come first."""
        return self.start == STARTS[0]


def read_query(query: Mapping[str, str], *, hidden: bool, known: Sequence[str] = ()) -> RecordQuery:
    """Return what a query asks for; `known` are parameters of the caller. Raises Refused.

    With `hidden`, the content of records is not shown, so it cannot be searched for either.
    """
    words = {name: value for name, value in query.items() if value}
    for name in words:
        if name not in PARAMETERS and name not in known:
            raise _refused(f"no parameter {name[:40]!r}; there are {', '.join(PARAMETERS)}")
        if name != "where" and name != "cursor" and len(words[name]) > _TEXT_MAX:
            raise _refused(f"{name} has more than {_TEXT_MAX} characters")
    looked_into = [name for name in CONTENT if name in words]
    if hidden and looked_into:
        message = f"{looked_into[0]}: keys, values and headers are hidden (--http-hide-values)"
        raise Refused(403, "VALUES_HIDDEN", message)
    start = _start(words)
    return RecordQuery(
        partitions=_read(words, "partition", read_partitions, ()),
        start=start,
        number=_number(words, start),
        filters=_filters(words),
        where=words.get("where"),
        committed=_one_of(words, "isolation", ISOLATIONS) == ISOLATIONS[0],
        show=_one_of(words, "show", SHOWN),
    )


def _start(words: Mapping[str, str]) -> str:
    """Return where records begin. An offset or a time without effect is refused."""
    numbers = [name for name in ("offset", "time") if name in words]
    start = _one_of({"from": numbers[0], **words} if numbers else words, "from", STARTS)
    for name in numbers:
        if name != start:
            raise _refused(f"{name} has an effect only with from={name}")
    return start


def _refused(message: str) -> Refused:
    return Refused(400, "INVALID_REQUEST", message)


def _one_of(words: Mapping[str, str], name: str, known: Sequence[str]) -> str:
    word = words.get(name, known[0])
    if word not in known:
        raise _refused(f"{name} must be one of {', '.join(known)}")
    return word


def _read(words: Mapping[str, str], name: str, parse: Callable[[str], Any], default: Any) -> Any:
    try:
        return parse(words[name]) if name in words else default
    except (ValueError, OverflowError) as error:
        raise _refused(f"{name}: {error}") from None


def _number(words: Mapping[str, str], start: str) -> int:
    if start not in words and start in ("offset", "time"):
        raise _refused(f"from={start} needs {start}")
    if start == "offset":
        return _read(words, "offset", units.whole(0, units.INT64_MAX), 0)
    if start == "time":
        return _read(words, "time", _moment, 0)
    return 0


def _moment(word: str) -> int:
    if word.isascii() and word.isdecimal() and len(word) <= DIGITS_13:
        return int(word)
    return max(read_moment(word, round(time.time() * 1000)), 0)


def _filters(words: Mapping[str, str]) -> list[Filter]:
    makers: Mapping[str, Callable[[str], Filter]] = {
        "key": by_key,
        "text": by_text,
        "header": by_header,
    }
    return [_read(words, name, make, None) for name, make in makers.items() if name in words]


class Conditions:
    """The filters of a query, with the process that evaluates its expression."""

    __slots__ = ("_where", "filters")

    def __init__(self, filters: Sequence[Filter], where: Where | None) -> None:
        self.filters = filters
        self._where = where

    async def matching(self, topic: str, index: int, records: Sequence[Record]) -> Sequence[Record]:
        """Return those records that the expression matches. The filters were applied before.

        Raises Refused if the expression is neither true nor false for one of them.
        """
        if self._where is None or not records:
            return records
        try:
            return await self._where.matching(topic, index, records)
        except BadInput as error:
            raise _refused(str(error).removeprefix("--")) from None

    @property
    def remark(self) -> str:
        """Return a line about the records that the expression failed for; empty without one."""
        if self._where is None:
            return ""
        return self._where.summary().removeprefix("--").replace(", not printed", ", not shown")


@asynccontextmanager
async def open_conditions(query: RecordQuery) -> AsyncGenerator[Conditions]:
    """Yield the filters, and end the process of the expression afterwards. Raises Refused."""
    if query.where is None:
        yield Conditions(query.filters, None)
        return
    starting = start_once(
        "the process of a filter",
        in_thread(Where, query.where),
        expected=(InvalidExpression, CelMissing),
    )
    try:
        where = await asyncio.shield(starting)
    except InvalidExpression as error:
        raise _refused(f"where: {error}") from None
    except CelMissing:
        raise Refused(400, "CEL_MISSING", _CEL_MISSING) from None
    except asyncio.CancelledError:
        starting.add_done_callback(_close_late)
        raise
    try:
        yield Conditions(query.filters, where)
    finally:
        await in_thread(where.close)


def _close_late(starting: asyncio.Future[Where]) -> None:
    """End a process whose start ended after the browser had left."""
    if not starting.cancelled() and starting.exception() is None:
        starting.result().close()
