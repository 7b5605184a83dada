"""What a command prints: the keys, types and meanings of its result, declared once.

A declaration feeds the tables for people, the checks of `--columns`, the JSON schemas in the
documents and the tests that validate each output. The keys of JSON are a contract.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, TypeVar

F = TypeVar("F", bound=Callable[..., Any])


class Kind(StrEnum):
    """The JSON type of a value."""

    text = "string"
    whole = "integer"
    number = "number"
    truth = "boolean"
    scalar = "string, number or boolean"
    texts = "array of strings"
    wholes = "array of integers"
    pairs = "object of strings"  # names chosen by users, such as the settings of a topic
    lists = "array of arrays"
    rows = "array of objects"
    by_name = "object of objects"  # names that users or Kafka chose, such as numbers of partitions
    one = "object"


class Tone(StrEnum):
    """The colour of a value on a terminal."""

    good = "32"
    warning = "33"
    bad = "31"


@dataclass(frozen=True, slots=True)
class Column:
    """A key of a result, and how people see its value.

    `meaning` is a sentence for the documents. `show` returns the text for tables, `show_row` makes
    it of the whole row; else the value itself is shown. `columns` are the keys of the objects in an
    array of objects, in an object of objects or in an object.
    """

    key: str
    kind: Kind
    meaning: str
    nullable: bool = False  # the value may be null: unknown, or it does not apply
    optional: bool = False  # the key may be absent, where it does not apply
    wide: bool = False  # in tables only with `-o wide`
    json_only: bool = False  # in no table, and not in CSV
    if_any: bool = False  # in a table only if a row has a value
    heading: str = ""  # in tables; default: Kafka's form of the key
    show: Callable[[Any], Any] | None = None
    show_row: Callable[[Mapping[str, Any]], Any] | None = None
    tones: Mapping[str, Tone] = field(default_factory=dict[str, Tone])  # by text in the table
    columns: Sequence[Column] = ()

    @property
    def title(self) -> str:
        """The heading in tables: `log_end_offset` is LOG-END-OFFSET, as in Kafka's tools."""
        return self.heading or self.key.upper().replace("_", "-")

    def text(self, row: Mapping[str, Any]) -> Any:
        """Return the value for a table."""
        if self.show_row is not None:
            return self.show_row(row)
        value = row.get(self.key)
        return value if value is None or self.show is None else self.show(value)


@dataclass(frozen=True, slots=True)
class Shape:
    """The form of a command's result.

    With `columns` alone it is an array of rows. With `fields` alone it is an object. With `rows` it
    is an object with the fields, if any, whose key of that name has the rows.
    """

    columns: Sequence[Column] = ()
    fields: Sequence[Column] = ()
    rows: str = ""
    lines: bool = False  # such an object on each line, also with `-o json`
    tables_only: bool = False  # a view for tables and CSV; JSON has another shape
    when: str = ""  # when a command of several shapes prints this one, for the documents

    def __post_init__(self) -> None:
        assert self.columns or (self.fields and not self.rows)
        assert self.rows or not (self.columns and self.fields)

    @property
    def keyed(self) -> Sequence[Column]:
        """The columns of the rows; of an object alone, its fields."""
        return self.columns or self.fields

    @property
    def cells(self) -> Sequence[Column]:
        """Those of `keyed` that a table or CSV can have."""
        return [each for each in self.keyed if not each.json_only]

    def schema(self) -> dict[str, Any]:
        """Return the JSON schema (draft 2020-12) of what `-o json` prints."""
        if not self.fields and not self.rows:
            return {"type": "array", "items": _object(self.columns)}
        inner = [Column(self.rows, Kind.rows, "The rows.", columns=self.columns)]
        return _object([*self.fields, *(inner if self.rows else [])])


def text(key: str, meaning: str, **attributes: Any) -> Column:
    return Column(key, Kind.text, meaning, **attributes)


def whole(key: str, meaning: str, **attributes: Any) -> Column:
    return Column(key, Kind.whole, meaning, **attributes)


def truth(key: str, meaning: str, **attributes: Any) -> Column:
    return Column(key, Kind.truth, meaning, **attributes)


def pairs(key: str, meaning: str, **attributes: Any) -> Column:
    return Column(key, Kind.pairs, meaning, **attributes)


def rows(key: str, meaning: str, *columns: Column, **attributes: Any) -> Column:
    return Column(key, Kind.rows, meaning, columns=columns, **attributes)


def one(key: str, meaning: str, *columns: Column, **attributes: Any) -> Column:
    return Column(key, Kind.one, meaning, columns=columns, **attributes)


def nested(columns: Sequence[Column], prefix: str = "") -> Iterator[tuple[str, Column]]:
    """Yield each column with its place, such as `copies[].bookie`."""
    for column in columns:
        place = prefix + column.key
        yield place, column
        yield from nested(column.columns, place + _INSIDE.get(column.kind, "."))


_INSIDE: Mapping[Kind, str] = {Kind.rows: "[].", Kind.by_name: ".*."}
_ITEMS: Mapping[Kind, str] = {Kind.texts: "string", Kind.wholes: "integer", Kind.lists: "array"}


def _object(columns: Sequence[Column]) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": {each.key: _value(each) for each in columns},
        "required": [each.key for each in columns if not each.optional],
        "additionalProperties": False,
    }


def _value(column: Column) -> dict[str, Any]:
    found: dict[str, Any]
    if column.kind is Kind.rows:
        found = {"type": "array", "items": _object(column.columns)}
    elif column.kind is Kind.one:
        found = _object(column.columns)
    elif column.kind is Kind.pairs:
        found = {"type": "object", "additionalProperties": {"type": ["string", "null"]}}
    elif column.kind is Kind.by_name:
        found = {"type": "object", "additionalProperties": _object(column.columns)}
    elif column.kind in _ITEMS:
        found = {"type": "array", "items": {"type": _ITEMS[column.kind]}}
    elif column.kind is Kind.scalar:
        found = {"type": ["string", "number", "boolean"]}
    else:
        found = {"type": column.kind.value}
    if column.nullable:
        kinds = found["type"]
        found["type"] = [*(kinds if isinstance(kinds, list) else [kinds]), "null"]
    return {**found, "description": column.meaning}


def prints(*shapes: Shape) -> Callable[[F], F]:
    """Note what a command that has an `--output` of its own prints as JSON."""

    def decorate(function: F) -> F:
        noted: Any = function
        noted.shapes = shapes
        return noted

    return decorate
