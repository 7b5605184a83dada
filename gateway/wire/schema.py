"""Reads the layout of messages from kio's generated classes, once per class.

kio's dataclasses are the schema: one class per struct and version, with Kafka's type in each
field's metadata. kio is imported only when the first class is needed, for a quick start.
"""

from __future__ import annotations

import types
import typing
from dataclasses import MISSING, Field, dataclass, fields, is_dataclass
from functools import cache
from typing import Any, Final

SASL_HANDSHAKE: Final = 17
API_VERSIONS: Final = 18
SASL_AUTHENTICATE: Final = 36
"""The keys of the requests with which a connection begins: the login, and what a server speaks."""

FIXED = {
    "bool": "?",
    "int8": "b",
    "int16": "h",
    "int32": "i",
    "int64": "q",
    "uint8": "B",
    "uint16": "H",
    "uint32": "I",
    "uint64": "Q",
    "float64": "d",
    "error_code": "h",
    "timedelta_i32": "i",
    "timedelta_i64": "q",
    "datetime_i64": "q",
}
"""The `struct` codes of Kafka's fixed-width types, by kio's names."""

_DESCRIBE_TRANSACTIONS = 65


class NoSuchSchema(LookupError):
    """The error that kio does not have this message in this version."""


@dataclass(frozen=True, slots=True)
class FieldShape:
    """One field of a struct. `kind` is kio's type name, or "struct" with the class in `struct`."""

    name: str
    kind: str
    struct: type[Any] | None
    array: bool
    nullable: bool
    tag: int | None
    default: Any  # the value if a reply does not have this field


@dataclass(frozen=True, slots=True)
class StructShape:
    """One struct with its fields in wire order, and its tagged fields by tag."""

    flexible: bool
    fields: tuple[FieldShape, ...]
    tagged: tuple[FieldShape, ...]


@cache
def shape_of(entity: type[Any]) -> StructShape:
    """Return the layout of one kio class."""
    shapes = [_field_shape(field) for field in fields(entity)]
    return StructShape(
        flexible=entity.__flexible__,
        fields=tuple(shape for shape in shapes if shape.tag is None),
        tagged=tuple(
            sorted((s for s in shapes if s.tag is not None), key=lambda shape: shape.tag or 0)
        ),
    )


def _field_shape(field: Field[Any]) -> FieldShape:
    inner, nullable = _without_none(field.type)
    array = typing.get_origin(inner) is tuple
    if array:
        inner, _ = _without_none(typing.get_args(inner)[0])
    struct = inner if is_dataclass(inner) else None
    kind = "struct" if struct is not None else field.metadata["kafka_type"]
    tag = field.metadata.get("tag")
    return FieldShape(
        name=field.name,
        kind=kind,
        struct=typing.cast("type[Any] | None", struct),
        array=array,
        nullable=nullable,
        tag=tag,
        default=_default(field, kind, array=array, nullable=nullable),
    )


def _without_none(annotation: Any) -> tuple[Any, bool]:
    if typing.get_origin(annotation) not in (types.UnionType, typing.Union):
        return annotation, False
    kept = [part for part in typing.get_args(annotation) if part is not types.NoneType]
    assert len(kept) == 1
    return kept[0], True


def _default(field: Field[Any], kind: str, *, array: bool, nullable: bool) -> Any:
    """Return the schema's default. Otherwise return None if nullable, or the type's zero."""
    if kind == "struct" and not array:
        return None if nullable and field.default in (MISSING, None) else {}
    if field.default is not MISSING:
        return field.default
    if nullable:
        return None
    if array:
        return ()
    return {"string": "", "bytes": b"", "records": b"", "bool": False}.get(kind, 0)


@cache
def request_class(key: int, version: int) -> type[Any]:
    """Return kio's class of a request. Raises NoSuchSchema. Takes 3-15 ms at first use."""
    return _load(key, version, "request")


@cache
def response_class(key: int, version: int) -> type[Any]:
    """Return kio's class of a response. Raises NoSuchSchema. Takes 3-15 ms at first use."""
    return _load(key, version, "response")


def _load(key: int, version: int, kind: typing.Literal["request", "response"]) -> type[Any]:
    from kio.index import KioIndexError, load_request_schema, load_response_schema

    load = load_request_schema if kind == "request" else load_response_schema
    try:
        loaded = load(key, version)
    except KioIndexError as error:
        raise NoSuchSchema(f"{kind} key {key} version {version}") from error
    if key == _DESCRIBE_TRANSACTIONS and kind == "response":
        _read_start_as_number(loaded)
    return loaded


def _read_start_as_number(response: type[Any]) -> None:
    """Let kio read the start of a transaction as a number: it is -1 without a transaction."""
    states = typing.get_type_hints(response)["transaction_states"]
    for each in fields(typing.get_args(states)[0]):
        if each.name == "transaction_start_time":
            each.type = int
            each.metadata = types.MappingProxyType({"kafka_type": "int64"})
