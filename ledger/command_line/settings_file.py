"""The file of `--config`: TOML, or `KEY=VALUE` lines as in Kafka's server.properties.

The keys are the long names of flags, with `-` or `_`, or Kafka's keys; in TOML these may be quoted
or dotted. Loaded only if a command has `--config`.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple, cast

from ledger.command_line.secret_files import others_read
from ledger.command_line.settings import (
    HIDDEN,
    NOTICES_MAX,
    KafkaKey,
    Origin,
    Setting,
    Settings,
    cut,
    with_unit,
)

if TYPE_CHECKING:
    from ledger.command_line.settings import Table

FILE_BYTES_MAX: Final = 1024 * 1024
_KEYS_MAX: Final = 10_000  # of one file; a server has a few dozen settings
_DEPTH_MAX: Final = 20  # parts of a dotted key; the longest key of Kafka has twelve
_AT = re.compile(r" \(at (?:line (\d+), column \d+|end of document)\)")
_TWICE: Final = ("Cannot overwrite", "Cannot declare", "Cannot mutate", "Cannot redefine")
_BARE = re.compile(r"[ \t]*([A-Za-z0-9_-]+(?:\.[A-Za-z0-9_-]+)*)[ \t]*=", re.ASCII)
# A text of three quotes, another text, a comment, an end of a line, a bracket, or anything else.
_TOKEN = re.compile(
    r'"""(?:\\.|[^\\])*?"""(?:"{1,2})?'
    r"|'''.*?'''(?:'{1,2})?"
    r'|"(?:\\.|[^"\\\n])*"'
    r"|'[^'\n]*'"
    r"|#[^\n]*|\n|[\[\]{}=]|[^\"'#\n\[\]{}=]+|.",
    re.DOTALL,
)


class Entry(NamedTuple):
    """A key of the file, its value as TOML has it, and its line, from 1."""

    key: str
    value: object
    line: int


def take_file(settings: Settings, written: str) -> None:
    """Take the values of the file that `--config` names, and note all its faults."""
    file = Path(written)
    try:
        content, is_read = _read(file)
        is_text = file.suffix == ".properties"
        entries = list(_of_properties(content) if is_text else _of_toml(content))
    except _LineFault as fault:
        settings.fault(f"{file}:{fault.line}: {fault}")
        return
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        settings.fault(f"--config {file}: {reason}")
        return
    _Taker(settings, file, is_text=is_text, others_read=is_read).take_all(entries)


def _read(file: Path) -> tuple[bytes, bool]:
    """Return the content, and whether users beside the owner can read it."""
    with file.open("rb") as opened:
        mode = os.fstat(opened.fileno()).st_mode
        content = opened.read(FILE_BYTES_MAX + 1)
    if len(content) > FILE_BYTES_MAX:
        raise ValueError("is longer than 1 MiB")
    return content, others_read(mode)


class _LineFault(ValueError):
    """The file cannot be parsed."""

    def __init__(self, message: str, line: int) -> None:
        super().__init__(message)
        self.line = line


class _Taker:
    """Takes the entries of one file."""

    def __init__(self, settings: Settings, file: Path, *, is_text: bool, others_read: bool) -> None:
        self._settings = settings
        self._table: Table = settings.table
        self._file = file
        self._is_text = is_text  # values are text, also numbers and booleans
        self._others_read = others_read
        self._taken: dict[str, Entry] = {}  # the entry of each setting that has one
        self._seen: dict[str, int] = {}  # the line of each key
        self._unknown = 0
        self._texts: Mapping[str, str] = {}  # all keys with their values; the last one counts

    def take_all(self, entries: list[Entry]) -> None:
        self._texts = {entry.key: str(entry.value) for entry in entries}
        for entry in entries:
            place = f"{self._file}:{entry.line}: {entry.key}"
            if entry.key in self._seen:  # only in properties: TOML refuses it
                self._settings.warn(
                    f"{place}: line {self._seen[entry.key]} sets it too; the last one counts"
                )
            self._seen[entry.key] = entry.line
            found = self._table.find(entry.key)
            if found is None:
                self._take_unknown(place, entry)
            else:
                self._take_known(place, entry, *found)

    def _take_known(self, place: str, entry: Entry, row: Setting, kafka: KafkaKey | None) -> None:
        before = self._taken.setdefault(row.name, entry)
        if before.key != entry.key:
            fault = f"sets {row.name} again, after {before.key} in line {before.line}; keep one"
            self._settings.fault(f"{place}: {fault}", row.name)
            return
        if row.secret and self._others_read:
            fault = f"other users can read this secret; run chmod 600 {self._file}"
            self._settings.fault(f"{place}: {fault}", row.name)
            return
        value = entry.value
        if isinstance(value, str) and self._is_text and not row.secret:
            value = value.strip()  # as Kafka does
        separator = "=" if self._is_text else " = "
        shown = HIDDEN
        if not row.hides(value):
            shown = cut(str(value) if self._is_text else _as_written(value))
        origin = Origin(f"file {self._file}:{entry.line}", f"{place}{separator}{shown}")
        if kafka is not None:
            if kafka.is_list and isinstance(value, str) and "," in value:
                self._settings.fault(f"{origin.place}: only one value is possible here", row.name)
                return
            value = with_unit(value, kafka.unit)
        self._settings.take(row, value, origin, is_text=self._is_text)

    def _take_unknown(self, place: str, entry: Entry) -> None:
        settings, table = self._settings, self._table
        if entry.key.replace("_", "-") in table.one_start:
            flag = entry.key.replace("_", "-")
            settings.fault(f"{place}: concerns one start only; pass the flag --{flag}")
            return
        text = str(entry.value)
        settings.foreign[entry.key] = text.strip()
        foreign = table.foreign(entry.key, text, self._texts) if table.foreign else None
        if foreign is None:
            settings.fault(f"{place}: unknown key{self._nearest(entry.key)}")
        elif foreign.is_fault:
            settings.fault(f"{place}: {foreign.text}")
        else:
            settings.warn(f"{place}: {foreign.text}")

    def _nearest(self, key: str) -> str:
        self._unknown += 1
        if self._unknown > NOTICES_MAX:  # is not shown
            return ""
        from difflib import get_close_matches

        word = key[:100].replace("_", "-").lower()
        near = get_close_matches(word, self._table.keys(), 1, 0.6)
        return f"; did you mean {near[0]}?" if near else ""


def _as_written(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return f'"{value}"' if isinstance(value, str) else str(value)


def _limit(keys: int) -> None:
    if keys > _KEYS_MAX:
        raise ValueError(f"has more than {_KEYS_MAX} keys")


# properties


def _of_properties(content: bytes) -> Iterator[Entry]:
    from ledger.command_line.properties import MalformedEscape, parse_properties

    try:
        for count, each in enumerate(parse_properties(content), 1):
            _limit(count)
            yield Entry(each.key, each.value, each.line)
    except MalformedEscape as fault:
        raise _LineFault(str(fault), fault.line) from None


# TOML


def _of_toml(content: bytes) -> Iterator[Entry]:
    import tomllib

    try:
        written = content.decode().replace("\r\n", "\n")  # as tomllib does
    except UnicodeDecodeError as error:
        line = content[: error.start].count(b"\n") + 1
        raise _LineFault("is not valid UTF-8", line) from None
    try:
        document = tomllib.loads(written)
    except RecursionError:
        raise ValueError("nests too deeply") from None
    except tomllib.TOMLDecodeError as error:
        raise _toml_fault(str(error), written) from None
    except ValueError:
        raise ValueError("has a number of more than 4,300 digits") from None
    leaves = list(_leaves(document))
    _limit(len(leaves))
    lines: dict[_Path, int] = {}
    for path, line in _lines_of_keys(written):
        lines.setdefault(path, line)
    for path, value in leaves:
        place = next(
            (lines[path[:length]] for length in range(len(path), 0, -1) if path[:length] in lines),
            1,
        )
        yield Entry(".".join(path), value, place)


def _toml_fault(message: str, written: str) -> _LineFault:
    at = _AT.search(message)
    line = int(at[1]) if at is not None and at[1] else written.count("\n") + 1
    text = message.replace(at[0], "") if at is not None else message
    return _LineFault(text + _unquoted(text, written.split("\n"), line), line)


def _unquoted(message: str, lines: list[str], line: int) -> str:
    """Return the remedy if a key is a table too, because dots were not quoted.

    TOML reads `max.connections.per.ip` as a key in a table `max.connections`, so that no other line
    can set `max.connections`.
    """
    if not message.startswith(_TWICE) or line > len(lines):
        return ""
    keys = {number: each[1] for number, text in enumerate(lines, 1) if (each := _BARE.match(text))}
    key = keys.get(line, "")
    for other, found in keys.items():
        if other < line and _overlap(found, key):
            longer = max(found, key, key=len)
            return f': {key} is part of a key in line {other}; quote both, as "{longer}" = ...'
    return ""


def _overlap(one: str, other: str) -> bool:
    """Return whether one of two different keys is a table of the other."""
    return one != other and (one.startswith(f"{other}.") or other.startswith(f"{one}."))


_Path = tuple[str, ...]


def _leaves(table: Mapping[str, Any], above: _Path = ()) -> Iterator[tuple[_Path, object]]:
    """Yield the values that are no tables, and empty tables, in the order of the file."""
    if len(above) > _DEPTH_MAX:
        raise ValueError(f"{'.'.join(above)[:80]}...: has too many parts")
    for name, value in table.items():
        path = (*above, name)
        if isinstance(value, dict) and value:
            yield from _leaves(cast("Mapping[str, Any]", value), path)
        else:
            yield path, cast("object", value)


def _lines_of_keys(written: str) -> Iterator[tuple[_Path, int]]:
    """Yield the keys and tables of a document that is valid TOML, each with its line."""
    table: _Path = ()
    for line, text, is_header in _statements(written):
        path = _path_of(text)
        if is_header:
            table = path
        yield (path if is_header else (*table, *path)), line


def _statements(written: str) -> Iterator[tuple[int, str, bool]]:
    """Yield the line, the key, and whether it names a table, of each statement."""
    line, depth = 1, 0
    key: list[str] = []  # the tokens of a statement up to its `=`
    in_value = False
    for match in _TOKEN.finditer(written):
        token = match[0]
        if token == "\n" and depth == 0:
            text = "".join(key).strip()
            if text.startswith("["):
                yield line, text.strip("[] \t"), True
            key, in_value = [], False
        elif token == "=" and not in_value:
            yield line, "".join(key).strip(), False
            in_value = True
        elif in_value:
            depth += (token in ("[", "{")) - (token in ("]", "}"))
        elif token[0] != "#":
            key.append(token)
        line += token.count("\n")
    text = "".join(key).strip()
    if not in_value and text.startswith("["):
        yield line, text.strip("[] \t"), True


def _path_of(key: str) -> _Path:
    """Return the parts of a key, which may be dotted and quoted."""
    import tomllib

    found: list[str] = []
    value: Any = tomllib.loads(f"{key} = 0")
    while isinstance(value, dict):
        ((name, value),) = cast("dict[str, Any]", value).items()
        found.append(name)
    return tuple(found)
