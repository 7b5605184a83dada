"""Avro schemas: read with bounds, and applied to single values by fastavro.

fastavro decodes in C, without a bound on the depth or on the number of values that take no byte. So
a schema is refused if a few bytes of data could fill the memory or the stack. Logical types are
ignored: a date is its number of days, as in Avro's JSON encoding.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib import import_module
from importlib.util import find_spec
from io import BytesIO
from typing import Any, Final, cast

from gateway.admin.avro_types import (
    ITEM_VALUES_MAX,
    PRIMITIVES,
    Array,
    AvroType,
    Enum,
    Field,
    Map,
    Mismatch,
    Record,
    Union,
    fixed,
)
from ledger.command_line.extras import install_command

SCHEMA_BYTES_MAX: Final = 2**20
VALUE_BYTES_MAX: Final = 16 * 2**20
_DEPTH_MAX: Final = 100
_EXCESS_MAX: Final = 100
"""Values of a datum that take no byte, such as nulls in a record."""
_FIXED_BYTES_MAX: Final = 2**20
_NAME_MAX: Final = 1024  # characters, also of a symbol
_JSON_MAX: Final = 64 * 2**20
"""The most characters of the JSON of one datum, before any are escaped; a number counts as 4."""


class InvalidSchema(ValueError):
    """A text that is no schema, or one whose data cannot be read within bounds."""


class InvalidDatum(ValueError):
    """Bytes that are no datum of a schema."""


class AvroMissing(Exception):
    """The package that reads Avro is not installed."""

    def __init__(self) -> None:
        super().__init__(f"Avro needs the package fastavro: {install_command('avro')}")


class Schema:
    """A schema, and the conversions of its values."""

    def __init__(self, text: str) -> None:
        """Read the JSON of a schema. Raises InvalidSchema and AvroMissing."""
        if find_spec("fastavro") is None:
            raise AvroMissing
        # As it was written: a registry gets it.
        self.text = text
        plain = _plain(_parse_json(text))
        self._parsed = _named(plain)
        builder = _Builder()
        self._type = builder.build(self._parsed, frozenset())
        if self._type.depth > _DEPTH_MAX:
            raise InvalidSchema(f"types are nested deeper than {_DEPTH_MAX} levels")
        fastavro: Any = import_module("fastavro")
        self._write: Callable[..., None] = fastavro.schemaless_writer
        # A datum that is nested too deeply raises RecursionError in Python; in C, the process ends.
        reader: Any = import_module("fastavro._read_py") if builder.recursive else fastavro
        self._read: Callable[..., Any] = reader.schemaless_reader

    def same_as(self, other: Schema) -> bool:
        """Return whether data of the two are the same bytes, with the same names."""
        return self._parsed == other._parsed

    def encode(self, value: Any) -> bytes:
        """Return the datum of a value of JSON. Raises Mismatch."""
        try:
            datum = self._type.from_json(value)
            file = BytesIO()
            self._write(file, self._parsed, datum)
        except RecursionError:
            raise Mismatch("is nested too deeply") from None
        return file.getvalue()

    def decode(self, data: bytes, start: int = 0) -> Any:
        """Return the JSON of a datum that begins at `start`. Raises InvalidDatum."""
        if len(data) > VALUE_BYTES_MAX:
            limit = VALUE_BYTES_MAX // 2**20
            raise InvalidDatum(f"has {len(data)} bytes, and at most {limit} MiB are decoded")
        file = BytesIO(data)
        file.seek(start)
        datum = self._next(file)
        left = len(data) - file.tell()
        if left:
            raise InvalidDatum(f"is no datum of the schema: {left} bytes are left over")
        if _is_large(datum):
            raise InvalidDatum(f"is more than {_JSON_MAX // 2**20} MiB of JSON")
        try:
            return self._type.to_json(datum)
        except RecursionError:
            raise InvalidDatum("is nested too deeply") from None

    def split(self, block: bytes, count: int) -> Iterator[bytes]:
        """Yield the bytes of `count` datums that follow each other. Raises InvalidDatum."""
        if not self._type.bytes_min:
            raise InvalidDatum("takes no byte")
        file = BytesIO(block)
        for _ in range(count):
            start = file.tell()
            self._next(file)
            yield block[start : file.tell()]
        if file.tell() < len(block):
            raise InvalidDatum(f"is followed by {len(block) - file.tell()} bytes too many")

    def _next(self, file: BytesIO) -> Any:
        try:
            return self._read(file, self._parsed, None, return_named_type=True)
        except RecursionError:
            raise InvalidDatum("is nested too deeply") from None
        except Exception as error:  # noqa: BLE001 - fastavro documents none: EOF, index, UTF-8
            raise InvalidDatum(f"is no datum of the schema: {_reason(error)}") from None


def _is_large(datum: Any) -> bool:
    """Return whether its JSON has more than _JSON_MAX characters: few bytes may have long names."""
    size, left = 0, [datum]
    while left and size <= _JSON_MAX:
        value = left.pop()
        if isinstance(value, dict):
            fields = cast("dict[str, Any]", value)
            size += sum(map(len, fields)) + 6 * len(fields) + 2
            left.extend(fields.values())
        elif isinstance(value, list | tuple):  # a tuple is a branch of a union and its name
            items = cast("Sequence[Any]", value)
            size += 2 * len(items) + 2
            left.extend(items)
        else:
            size += len(value) + 2 if isinstance(value, str | bytes) else 4
    return size > _JSON_MAX


def _reason(error: Exception) -> str:
    if isinstance(error, UnicodeDecodeError):
        return "a string is not UTF-8"
    if isinstance(error, EOFError | IndexError):
        return "it ends too early, or has an index out of range"
    return f"{type(error).__name__} {error}".strip()[:200]


# from JSON to a schema with full names


def _parse_json(text: str) -> Any:
    if len(text.encode(errors="replace")) > SCHEMA_BYTES_MAX:
        raise InvalidSchema(f"has more than {SCHEMA_BYTES_MAX // 2**20} MiB")
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        place = f"line {error.lineno} column {error.colno}"
        raise InvalidSchema(f"{place}: not JSON: {error.msg}") from None
    except (ValueError, RecursionError) as error:
        raise InvalidSchema(f"not JSON: {error}") from None


def _plain(schema: Any, depth: int = 0) -> Any:
    """Return the schema without what does not concern its data, such as logical types."""
    if depth > _DEPTH_MAX:
        raise InvalidSchema(f"types are nested deeper than {_DEPTH_MAX} levels")
    if isinstance(schema, str):
        return schema
    if isinstance(schema, list):
        branches = [_plain(each, depth + 1) for each in cast("list[Any]", schema)]
        if not branches or any(isinstance(each, list) for each in branches):
            raise InvalidSchema("a union must have types, and no other union")
        return branches
    if not isinstance(schema, dict) or "type" not in schema:
        raise InvalidSchema(f'{schema!r:.60} is no type, such as "string" or {{"type": ...}}')
    fields = cast("dict[str, Any]", schema)
    kind = fields["type"]
    if not isinstance(kind, str):
        return _plain(kind, depth + 1)
    if kind == "array":
        return {"type": kind, "items": _plain(_part(fields, "items"), depth + 1)}
    if kind == "map":
        return {"type": kind, "values": _plain(_part(fields, "values"), depth + 1)}
    if kind in ("record", "error", "enum", "fixed"):
        return _plain_named(fields, kind, depth)
    return kind


def _plain_named(schema: Mapping[str, Any], kind: str, depth: int) -> Any:
    name, namespace = _part(schema, "name"), schema.get("namespace")
    if not isinstance(name, str) or not (namespace is None or isinstance(namespace, str)):
        raise InvalidSchema(f"the name of a type must be text, not {name!r:.60}")
    _limit([name, namespace or ""])
    found: dict[str, Any] = {"type": "record" if kind == "error" else kind, "name": name}
    if namespace is not None:
        found["namespace"] = namespace
    if kind == "enum":
        return {**found, "symbols": _texts(_part(schema, "symbols"), f"the symbols of {name}")}
    if kind == "fixed":
        size = _part(schema, "size")
        if not isinstance(size, int) or not 0 <= size <= _FIXED_BYTES_MAX:
            raise InvalidSchema(f"the size of {name} must be between 0 and {_FIXED_BYTES_MAX}")
        return {**found, "size": size}
    parts = _part(schema, "fields")
    if not isinstance(parts, list):
        raise InvalidSchema(f"the fields of {name} must be a list")
    fields = [_plain_field(each, name, depth) for each in cast("list[Any]", parts)]
    return {**found, "fields": fields}


def _texts(value: Any, what: str) -> list[str]:
    found = cast("list[Any]", value) if isinstance(value, list) else None
    if found is None or not all(isinstance(each, str) for each in found):
        raise InvalidSchema(f"{what} must be a list of texts")
    _limit(found)
    return found


def _limit(names: Sequence[str]) -> None:
    """Refuse a long name: a datum of a few bytes has it many times in JSON."""
    for name in names:
        if len(name) > _NAME_MAX:
            raise InvalidSchema(f"{name[:40]}... has more than {_NAME_MAX} characters")


def _plain_field(field: Any, record: str, depth: int) -> Any:
    found = cast("dict[str, Any]", field) if isinstance(field, dict) else {}
    if not isinstance(found.get("name"), str):
        raise InvalidSchema(f"a field of {record} has no name")
    _limit([found["name"]])
    plain = {"name": found["name"], "type": _plain(_part(found, "type"), depth + 1)}
    return {**plain, "default": found["default"]} if "default" in found else plain


def _part(schema: Mapping[str, Any], name: str) -> Any:
    if name not in schema:
        raise InvalidSchema(f"`{name}` is missing in {schema!r:.60}")
    return schema[name]


def _named(plain: Any) -> Any:
    """Return the schema with full names, as fastavro resolves them."""
    module: Any = import_module("fastavro.schema")
    try:
        return module.parse_schema(plain)
    except module.UnknownType as error:
        raise InvalidSchema(f"there is no type {error.name}") from None
    except RecursionError:
        raise InvalidSchema("types are nested too deeply") from None
    except Exception as error:  # noqa: BLE001 - fastavro documents none but these
        raise InvalidSchema(f"is no Avro schema: {error!s:.200}") from None


class _Builder:
    """Builds the types of a schema with full names."""

    def __init__(self) -> None:
        # Named types, also those of which the fields are not known yet.
        self._named: dict[str, AvroType] = {}
        self._open: set[str] = set()
        # Records that contain themselves. Inside them, their surplus counts as 0.
        self._within_itself: set[str] = set()

    @property
    def recursive(self) -> bool:
        """Whether a type contains itself."""
        return bool(self._within_itself)

    def build(self, schema: Any, within: frozenset[str]) -> AvroType:
        """Return the type. `within` are records that must not be in it, because it has no end."""
        if isinstance(schema, str):
            return PRIMITIVES[schema] if schema in PRIMITIVES else self._reference(schema, within)
        if isinstance(schema, list):
            return self._union(cast("list[Any]", schema))
        kind = schema["type"]
        if kind == "array":
            return self._array(schema["items"])
        if kind == "map":
            return self._map(schema["values"])
        if kind == "enum":
            return self._keep(Enum(schema["name"], schema["symbols"]))
        if kind == "fixed":
            return self._keep(fixed(schema["name"], schema["size"]))
        if kind == "record":
            return self._record(schema, within)
        return self.build(kind, within)

    def _keep(self, found: AvroType) -> AvroType:
        self._named[found.name] = found
        return found

    def _reference(self, name: str, within: frozenset[str]) -> AvroType:
        if name in within:
            raise InvalidSchema(f"a datum of {name} has no end, because it contains another one")
        if name in self._open:
            self._within_itself.add(name)
        return self._named[name]

    def _union(self, branches: Sequence[Any]) -> AvroType:
        types = [self.build(each, frozenset()) for each in branches]
        names = [each.name for each in types]
        if len(set(names)) < len(names):
            raise InvalidSchema(f"a union has a type twice: {', '.join(names[:10])}")
        return Union(types)

    def _array(self, items: Any) -> AvroType:
        found = self.build(items, frozenset())
        if not found.bytes_min and not (isinstance(found, Record) and found.name in self._open):
            raise InvalidSchema(f"an array of {found.name} has no bound, as its items take no byte")
        _refuse_surplus(found, found.surplus)
        return Array(found)

    def _map(self, values: Any) -> AvroType:
        found = self.build(values, frozenset())
        _refuse_surplus(found, found.surplus - ITEM_VALUES_MAX)  # a key has a byte too
        return Map(found)

    def _record(self, schema: Mapping[str, Any], within: frozenset[str]) -> AvroType:
        name = schema["name"]
        found = Record(name)
        self._keep(found)
        self._open.add(name)
        fields = [
            Field(
                each["name"],
                self.build(each["type"], within | {name}),
                "default" in each,
                each.get("default"),
            )
            for each in schema["fields"]
        ]
        self._open.discard(name)
        names = {each.name for each in fields}
        if len(names) < len(fields):
            raise InvalidSchema(f"{name} has a field twice")
        found.complete(fields)
        if found.excess > _EXCESS_MAX or found.depth > _DEPTH_MAX:
            raise InvalidSchema(f"{name} has too many values that take no byte, or is too deep")
        if name in self._within_itself:
            _refuse_surplus(found, found.surplus)
        return found


def _refuse_surplus(items: AvroType, surplus: int) -> None:
    if surplus > 0:
        raise InvalidSchema(
            f"{items.name:.100} repeats, and has more than {ITEM_VALUES_MAX} values for each byte"
        )
