r"""Bytes of a file or of stdin as records: lines, JSON lines, CSV, or all of it as one record.

`feed` takes the bytes in pieces of any size, and yields each record with the number of its line.
A line ends with \n. A \r before it belongs to the value, as in kcat; in JSON and CSV it is part of
the line end. A last line without \n is a record as well. Pure.
"""

from __future__ import annotations

import csv
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from enum import StrEnum
from typing import Final, NamedTuple

from gateway.admin.notation import read_time
from gateway.admin.record_json import INT32_MAX, INT64_MAX, BadRecord, Record, decode_record
from ledger.command_line import units

COUNT_MAX: Final = 256 * 2**20
"""The bytes of a line that is too long are counted up to this number."""
BATCH_OVERHEAD: Final = 61
"""Bytes of the header of a record batch."""
_RECORD_OVERHEAD_MAX: Final = 40  # the lengths and deltas of a record without headers
_LINE_MARGIN: Final = 64 * 1024
_BOM: Final = b"\xef\xbb\xbf"
_QUOTE: Final = ord('"')
_NUMBER: Final = re.compile(r"\d+", re.ASCII)
_FIELD_END: Final = re.compile(rb"[,\n]")
_HEADER: Final = "header."
_COMMA: Final = "the separator of fields is a comma; "
_COLUMNS: Final = ("key", "value", "partition", "timestamp")

Item = tuple[int, Record | BadRecord]
"""The number of a line, from 1, and the record on it."""
_Piece = tuple[int, bytes | None, int]
"""The number of a line, its bytes or None if they are too many, and their number."""
_Decode = Callable[[bytes], Record | None]


class InputFormat(StrEnum):
    """The form of the input."""

    lines = "lines"
    jsonl = "jsonl"
    csv = "csv"
    avro = "avro"
    raw = "raw"


class TooLong(BadRecord):
    """A line with more bytes than any record may have. `exact` is False if counting ended."""

    def __init__(self, size: int) -> None:
        super().__init__("too long")
        self.size = size
        self.exact = size <= COUNT_MAX


class BrokenInput(BadRecord):
    """An input of which nothing can be read from here on, also if bad lines are skipped."""


class BadHeader(BrokenInput):
    """A header row of CSV without which no row can be read."""


class UnclosedQuote(BrokenInput):
    """A row of CSV whose quote is open at the end of the input. All behind it is part of it."""

    def __init__(self, last_line: int) -> None:
        super().__init__("a quote is never closed")
        self.last_line = last_line


class Defaults(NamedTuple):
    """What records have that do not have their own; `headers` are added to those of the record."""

    key: bytes | None = None
    partition: int | None = None
    timestamp: int | None = None
    headers: Sequence[tuple[str, bytes | None]] = ()
    separator: bytes = b""  # between key and value of a line; empty if a line has no key
    tombstone: bool = False  # a line is a key, and every value is null


class RecordInput:
    """One file, or stdin, of this format. `bytes_max` is the size of the largest record.

    `decode`, if it is given, turns a line into a record.
    """

    def __init__(
        self,
        form: InputFormat,
        defaults: Defaults,
        bytes_max: int,
        decode: _Decode | None = None,
    ) -> None:
        self._pieces: _Pieces
        self._decode: _Decode
        if decode is not None:
            self._pieces, self._decode = _Lines(bytes_max + _LINE_MARGIN), decode
        elif form is InputFormat.jsonl:
            # A control character has six characters in JSON.
            self._pieces = _Lines(6 * bytes_max + _LINE_MARGIN)
            self._decode = _JsonLines(defaults).decode
        elif form is InputFormat.csv:
            self._pieces = _Rows(2 * bytes_max + _LINE_MARGIN)  # quotes are doubled
            self._decode = _Csv(defaults, 2 * bytes_max + _LINE_MARGIN).decode
        elif form is InputFormat.raw:
            self._pieces, self._decode = _Whole(bytes_max), _plain(defaults)
        else:
            self._pieces = _Lines(bytes_max)
            self._decode = _keyed(defaults) if defaults.separator else _plain(defaults)

    def feed(self, data: bytes) -> Iterator[Item]:
        """Yield the records that end within these bytes, and bad lines in their place."""
        return self._items(self._pieces.feed(data))

    def end(self) -> Iterator[Item]:
        """Yield what follows the last line end."""
        unclosed = self._pieces.unclosed()
        return self._items(self._pieces.end()) if unclosed is None else iter((unclosed,))

    def _items(self, pieces: Iterable[_Piece]) -> Iterator[Item]:
        decode = self._decode
        for line, piece, size in pieces:
            if piece is None:
                yield line, TooLong(size)
                continue
            try:
                record = decode(piece)
            except BadRecord as bad:
                yield line, bad
                continue
            if record is not None:
                yield line, record


def batch_bytes(record: Record) -> int:
    """Return the size of a batch that has only this record, which max.message.bytes limits."""
    key, value, headers = record.key, record.value, record.headers
    size = 3 + _length(key) + _length(value) + _varint(len(headers))
    for name, data in headers:
        size += _length(name.encode()) + _length(data)
    return BATCH_OVERHEAD + _varint(size) + size


def data_bytes(record: Record) -> int:
    """Return the bytes of key, value and headers."""
    size = len(record.value or b"") + len(record.key or b"")
    for name, data in record.headers:
        size += len(name.encode()) + len(data or b"")
    return size


def fits(record: Record, bytes_max: int) -> bool:
    """Return whether a batch of this record has at most `bytes_max` bytes."""
    overhead = BATCH_OVERHEAD + _RECORD_OVERHEAD_MAX + 10 * len(record.headers)
    return data_bytes(record) + overhead <= bytes_max or batch_bytes(record) <= bytes_max


def read_timestamp(word: str) -> int:
    """Return the milliseconds since 1970 of such a number, or of a time. Raises ValueError."""
    at_ms = int(word.lstrip("0")[:20] or 0) if _NUMBER.fullmatch(word) else read_time(word)
    if not 0 <= at_ms <= INT64_MAX:
        raise ValueError(f"{word[:40]!r} is before 1970 or beyond 64 bits")
    return at_ms


def _length(data: bytes | None) -> int:
    return 1 if data is None else _varint(len(data)) + len(data)


def _varint(value: int) -> int:
    """Return the size of a number in zigzag form."""
    return max(1, -(-(2 * value).bit_length() // 7))


# from bytes to lines


class _Pieces(ABC):
    """Cuts bytes into lines. At most `bytes_max` bytes of a line are kept; longer ones are None."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._line = 1  # the number of the line that `_held` begins
        self._held = bytearray()  # the begin of the next line; empty if it is too long
        self._size = 0  # of the begin of the next line, kept or not
        self._line_ends = 0  # in it
        self._after_line_end = False  # whether its last byte is one
        self._reported = False  # whether it was yielded already, as too long to count

    @abstractmethod
    def feed(self, data: bytes) -> Iterator[_Piece]:
        """Yield the lines that end within these bytes."""

    def end(self) -> Iterator[_Piece]:
        if self._size:
            yield from self._finish(b"")

    def unclosed(self) -> tuple[int, UnclosedQuote] | None:
        """Return the error if the input ends where it must not."""
        return None

    def _hold(self, part: bytes) -> Iterator[_Piece]:
        self._size += len(part)
        self._line_ends += part.count(b"\n")
        self._after_line_end = part.endswith(b"\n") if part else self._after_line_end
        if self._size <= self._bytes_max:
            self._held += part
        elif self._held:
            self._held = bytearray()
        if self._size > COUNT_MAX and not self._reported:
            self._reported = True
            yield self._line, None, self._size

    def _finish(self, part: bytes) -> Iterator[_Piece]:
        """Yield the line of which this is the last part."""
        if not self._size and len(part) <= self._bytes_max:
            yield self._line, part, len(part)
            self._line += part.count(b"\n")
            return
        yield from self._hold(part)
        if not self._reported:
            kept = bytes(self._held) if self._size <= self._bytes_max else None
            yield self._line, kept, self._size
        self._line += self._line_ends
        self._held, self._size, self._line_ends = bytearray(), 0, 0
        self._reported = False


class _Lines(_Pieces):
    r"""Cuts at each \n, which belongs to no line."""

    def feed(self, data: bytes) -> Iterator[_Piece]:
        first, *others = data.split(b"\n")
        if not others:
            yield from self._hold(first)
            return
        yield from self._finish(first)
        self._line += 1
        *whole, rest = others
        bytes_max = self._bytes_max
        for part in whole:
            size = len(part)
            yield self._line, part if size <= bytes_max else None, size
            self._line += 1
        yield from self._hold(rest)


class _Whole(_Pieces):
    """Cuts nowhere: all is one piece."""

    def feed(self, data: bytes) -> Iterator[_Piece]:
        return self._hold(data)

    def end(self) -> Iterator[_Piece]:
        return self._finish(b"")


class _Rows(_Pieces):
    r"""Cuts after each \n that is not within quotes, as CSV has them."""

    def __init__(self, bytes_max: int) -> None:
        super().__init__(bytes_max)
        # Where the next byte stands: at the start of a field, in a field without quotes, within
        # quotes, or behind a quote that ends them or is the first of two.
        self._state = "start"

    def unclosed(self) -> tuple[int, UnclosedQuote] | None:
        if self._state != "quoted":
            return None
        last_line = self._line + self._line_ends - self._after_line_end
        return self._line, UnclosedQuote(last_line)

    def feed(self, data: bytes) -> Iterator[_Piece]:
        start = 0
        for end in self._ends(data):
            yield from self._finish(data[start:end])
            start = end
        yield from self._hold(data[start:])

    def _ends(self, data: bytes) -> Iterator[int]:
        """Yield the places after the line ends."""
        at, quote, size = 0, -1, len(data)
        while at < size:
            if self._state in ("quoted", "behind"):
                at = self._in_quotes(data, at)
                continue
            if quote < at:
                quote = data.find(b'"', at)
                quote = size if quote < 0 else quote
            newline = data.find(b"\n", at, quote)
            if newline >= 0:
                at, self._state = newline + 1, "start"
                yield at
            elif self._state == "start" and data[at] == _QUOTE:
                at, self._state = at + 1, "quoted"
            else:
                at = self._past_field(data, at)
                if at and data[at - 1 : at] == b"\n":
                    yield at

    def _in_quotes(self, data: bytes, at: int) -> int:
        if self._state == "behind":
            doubled = data[at] == _QUOTE
            self._state = "quoted" if doubled else "plain"
            return at + doubled
        quote = data.find(b'"', at)
        if quote < 0:
            return len(data)
        self._state = "behind"
        return quote + 1

    def _past_field(self, data: bytes, at: int) -> int:
        found = _FIELD_END.search(data, at)
        self._state = "start" if found else "plain"
        return found.end() if found else len(data)


# from lines to records


def _plain(defaults: Defaults) -> _Decode:
    """Return the decoder of lines without a key."""
    key, headers = defaults.key, defaults.headers
    partition, timestamp = defaults.partition, defaults.timestamp

    def decode(line: bytes) -> Record:
        return Record(line, key, headers, None, partition, None, timestamp)

    def tombstone(line: bytes) -> Record:
        return Record(None, line, headers, None, partition, None, timestamp)

    return tombstone if defaults.tombstone else decode


def _keyed(defaults: Defaults) -> _Decode:
    """Return the decoder of lines with a key before the separator."""
    separator, headers = defaults.separator, defaults.headers
    partition, timestamp = defaults.partition, defaults.timestamp
    shown = separator.decode(errors="backslashreplace")

    def decode(line: bytes) -> Record:
        key, found, value = line.partition(separator)
        if not found:
            raise BadRecord(f"no {shown!r} between a key and a value")
        return Record(value, key, headers, None, partition, None, timestamp)

    return decode


def _completed(record: Record, defaults: Defaults) -> Record:
    key = defaults.key if record.key is None else record.key
    if defaults.tombstone and key is None:
        raise BadRecord("a tombstone needs a key")
    return Record(
        value=None if defaults.tombstone else record.value,
        key=key,
        headers=[*record.headers, *defaults.headers],
        partition=defaults.partition if record.partition is None else record.partition,
        timestamp=defaults.timestamp if record.timestamp is None else record.timestamp,
    )


class _JsonLines:
    """Decodes records as `encode_record` writes them."""

    def __init__(self, defaults: Defaults) -> None:
        self._defaults = defaults
        self._first = True

    def decode(self, line: bytes) -> Record | None:
        if self._first:
            line, self._first = line.removeprefix(_BOM), False
        if not line or line.isspace():
            return None
        try:
            text = line.decode()
        except UnicodeDecodeError as error:
            column = len(line[: error.start].decode()) + 1
            raise BadRecord("not UTF-8", column) from None
        return _completed(decode_record(text), self._defaults)


class _Csv:
    """Decodes rows of CSV below a header row. Bytes that are not UTF-8 are kept."""

    def __init__(self, defaults: Defaults, bytes_max: int) -> None:
        self._defaults = defaults
        self._names: list[str] | None = None  # the columns; None before the header row
        self._unreadable = False  # whether the header row was refused
        csv.field_size_limit(bytes_max + 1)

    def decode(self, row: bytes) -> Record | None:
        if self._unreadable:
            return None
        if self._names is None:
            try:
                self._names = self._columns(_fields(row.removeprefix(_BOM)))
            except BadRecord as bad:
                self._unreadable = True
                raise BadHeader(str(bad)) from None
            return None
        fields = _fields(row)
        if not fields:
            return None
        if len(fields) != len(self._names):
            raise BadRecord(f"{len(fields)} fields, and the header row has {len(self._names)}")
        return self._record(list(zip(self._names, fields, strict=True)))

    def _columns(self, names: list[str]) -> list[str]:
        shown = f"known are {', '.join(_COLUMNS)} and header.NAME"
        if not names:
            raise BadRecord(f"the header row is empty; {shown}")
        for name in names:
            if not (name in _COLUMNS or (name.startswith(_HEADER) and len(name) > len(_HEADER))):
                comma = _COMMA if ";" in name or "\t" in name else ""
                raise BadRecord(f"no column {name!r} in a record; {comma}{shown}")
            if name in _COLUMNS and names.count(name) > 1:
                raise BadRecord(f"the column {name} is there twice")
            _require_utf8(name)
        tombstone, key = self._defaults.tombstone, self._defaults.key
        needed = "key" if tombstone else "value"
        if needed not in names and not (tombstone and key is not None):
            raise BadRecord(f"the header row has no column {needed}")
        return names

    def _record(self, fields: list[tuple[str, str]]) -> Record:
        """Return the record of a row. A field that is empty is not given, except the value."""
        named = dict(fields)
        key = named.get("key", "")
        record = Record(
            value=_bytes(named.get("value", "")),
            key=_bytes(key) if key else None,
            headers=[
                (name.removeprefix(_HEADER), _bytes(text))
                for name, text in fields
                if name.startswith(_HEADER) and text
            ],
            partition=_number(named.get("partition", ""), "partition", units.whole(0, INT32_MAX)),
            timestamp=_number(named.get("timestamp", ""), "timestamp", read_timestamp),
        )
        return _completed(record, self._defaults)


def _fields(row: bytes) -> list[str]:
    try:
        rows = list(csv.reader([row.decode(errors="surrogateescape")], strict=True))
    except csv.Error as error:
        reason = str(error).partition(" - ")[0]
        if "new-line" in reason:
            reason = "a carriage return within a field that has no quotes"
        raise BadRecord(f"not CSV: {reason}") from None
    return rows[0] if rows else []


def _number(text: str, name: str, parse: Callable[[str], int]) -> int | None:
    if not text:
        return None
    try:
        return parse(text)
    except ValueError as error:
        raise BadRecord(f"`{name}` {error}") from None


def _bytes(text: str) -> bytes:
    return text.encode(errors="surrogateescape")


def _require_utf8(name: str) -> None:
    try:
        name.encode()
    except UnicodeEncodeError:
        raise BadRecord(f"the column {name!r} is not UTF-8") from None
