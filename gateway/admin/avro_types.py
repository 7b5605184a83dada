"""The types of an Avro schema: from JSON to a datum of fastavro, and from a datum to JSON. Pure.

In JSON, bytes and fixed are text with one character for each byte, as in Avro's JSON encoding, and
numbers that JSON lacks are "NaN", "Infinity" and "-Infinity". A value of a union is either
{"branch": value}, as in Avro's JSON encoding, or the plain value. Then its branch is the first one
that takes it, and a value is shown plain wherever that is its own branch.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple, cast

ITEM_VALUES_MAX: Final = 8
"""Values for each byte of an item of an array or a map, and of a record that contains itself."""
_FLOAT_MAX: Final = 3.4028234663852886e38
_NO_NUMBERS: Final[Mapping[str, float]] = {
    "NaN": math.nan,
    "Infinity": math.inf,
    "-Infinity": -math.inf,
}


class Mismatch(ValueError):
    """JSON that is not of a type. `path` names the field, from the innermost on."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason
        self.path: list[str] = []

    def __str__(self) -> str:
        where = "".join(reversed(self.path)).removeprefix(".")
        return f"`{where}` {self.reason}" if where else f"the value {self.reason}"


class AvroType(ABC):
    """A type. `name` is that of a branch in Avro's JSON encoding."""

    __slots__ = ("bytes_min", "depth", "excess", "name", "surplus")

    def __init__(self, name: str, bytes_min: int = 1, excess: int = 0, depth: int = 1) -> None:
        self.name = name
        # The most values that a datum has beyond ITEM_VALUES_MAX for each of its bytes, also with
        # those in its arrays and maps. Items of those must have none.
        self.surplus = 1 - ITEM_VALUES_MAX * bytes_min
        # The least bytes of a datum.
        self.bytes_min = bytes_min
        # The most values that a datum has beyond its number of bytes, without those in its arrays
        # and maps. Without a bound, few bytes could fill the memory.
        self.excess = excess
        # How deep types are nested in it.
        self.depth = depth

    @abstractmethod
    def takes(self, value: Any) -> bool:
        """Return whether this JSON looks like the type. Fields and items may still not fit."""

    def from_json(self, value: Any) -> Any:
        """Return the datum. Raises Mismatch."""
        if not self.takes(value):
            raise Mismatch(f"must be {self.name}, not {_kind(value)}")
        return value

    def to_json(self, datum: Any) -> Any:
        """Return the datum as JSON."""
        return datum


class _Plain(AvroType):
    """null, boolean, int, long or string: the datum is the value of JSON."""

    __slots__ = ("_takes",)

    def __init__(self, name: str, takes: Callable[[Any], bool], bytes_min: int = 1) -> None:
        super().__init__(name, bytes_min, 1 - bytes_min)
        self._takes = takes

    def takes(self, value: Any) -> bool:
        return self._takes(value)


class _Number(AvroType):
    """float or double."""

    __slots__ = ("_most",)

    def __init__(self, name: str, most: float, size: int) -> None:
        super().__init__(name, size)
        self._most = most

    def takes(self, value: Any) -> bool:
        if isinstance(value, str):
            return value in _NO_NUMBERS
        if isinstance(value, bool) or not isinstance(value, int | float):
            return False
        return -self._most <= value <= self._most

    def from_json(self, value: Any) -> Any:
        found = super().from_json(value)
        return _NO_NUMBERS[found] if isinstance(found, str) else float(found)

    def to_json(self, datum: Any) -> Any:
        if math.isfinite(datum):
            return datum
        return "NaN" if math.isnan(datum) else "Infinity" if datum > 0 else "-Infinity"


class _Bytes(AvroType):
    """bytes, or fixed if there is a size."""

    __slots__ = ("_size",)

    def __init__(self, name: str, size: int | None = None) -> None:
        super().__init__(name, 1 if size is None else size, 0 if size is None or size else 1)
        self._size = size

    def takes(self, value: Any) -> bool:
        if not isinstance(value, str) or (value and max(value) > "\xff"):
            return False
        return self._size is None or len(value) == self._size

    def from_json(self, value: Any) -> Any:
        if not self.takes(value):
            size = "text" if self._size is None else f"{self._size} characters"
            raise Mismatch(f"must be {self.name}: {size} up to \\u00ff, one for each byte")
        return value.encode("latin-1")

    def to_json(self, datum: Any) -> Any:
        return datum.decode("latin-1")


class Enum(AvroType):
    """One of some symbols."""

    __slots__ = ("_symbols",)

    def __init__(self, name: str, symbols: Sequence[str]) -> None:
        super().__init__(name)
        self._symbols = symbols

    def takes(self, value: Any) -> bool:
        return isinstance(value, str) and value in self._symbols

    def from_json(self, value: Any) -> Any:
        if not self.takes(value):
            raise Mismatch(f"must be one of {', '.join(self._symbols[:10])}, not {_kind(value)}")
        return value


class Array(AvroType):
    """A list."""

    __slots__ = ("_items",)

    def __init__(self, items: AvroType) -> None:
        super().__init__("array", depth=items.depth + 1)
        self._items = items

    def takes(self, value: Any) -> bool:
        return isinstance(value, list)

    def from_json(self, value: Any) -> Any:
        found, convert = super().from_json(value), self._items.from_json
        return [_at(f"[{at}]", convert, each) for at, each in enumerate(found)]

    def to_json(self, datum: Any) -> Any:
        return list(map(self._items.to_json, datum))


class Map(AvroType):
    """Values by text."""

    __slots__ = ("_values",)

    def __init__(self, values: AvroType) -> None:
        super().__init__("map", depth=values.depth + 1)
        self._values = values

    def takes(self, value: Any) -> bool:
        return isinstance(value, dict)

    def from_json(self, value: Any) -> Any:
        found, convert = super().from_json(value), self._values.from_json
        for key in found:
            if not _is_text(key):
                raise Mismatch("has a key with half of a surrogate pair")
        return {key: _at(f"[{key}]", convert, each) for key, each in found.items()}

    def to_json(self, datum: Any) -> Any:
        convert = self._values.to_json
        return {key: convert(each) for key, each in datum.items()}


class Field(NamedTuple):
    """A field of a record. `default` is JSON; it is there if `has_default`."""

    name: str
    type: AvroType
    has_default: bool
    default: Any


class Record(AvroType):
    """Fields with names. A field with a default may be absent in JSON."""

    __slots__ = ("_fields", "_needed")

    def __init__(self, name: str) -> None:
        super().__init__(name, 0)
        self.surplus = 0  # until it is complete; one that contains itself must have no more
        self._fields: Mapping[str, Field] = {}
        self._needed: frozenset[str] = frozenset()

    def complete(self, fields: Sequence[Field]) -> None:
        """Set the fields, of which one may contain this record."""
        self._fields = {each.name: each for each in fields}
        self._needed = frozenset(each.name for each in fields if not each.has_default)
        self.bytes_min = sum(each.type.bytes_min for each in fields)
        self.excess = 1 + sum(each.type.excess for each in fields)
        self.surplus = 1 + sum(each.type.surplus for each in fields)
        self.depth = 1 + max((each.type.depth for each in fields), default=0)

    def takes(self, value: Any) -> bool:
        if not isinstance(value, dict):
            return False
        keys = cast("dict[str, Any]", value).keys()
        return self._needed <= keys <= self._fields.keys()

    def from_json(self, value: Any) -> Any:
        if not isinstance(value, dict):
            raise Mismatch(f"must be {self.name}, not {_kind(value)}")
        found = cast("dict[str, Any]", value)
        for name in found:
            if name not in self._fields:
                known = ", ".join(list(self._fields)[:10])
                raise Mismatch(f"has no field {name!r:.60}; {self.name} has {known}")
        for name in self._needed:
            if name not in found:
                raise Mismatch(f"must have the field {name} of {self.name}")
        return {
            name: _at(f".{name}", each.type.from_json, found.get(name, each.default))
            for name, each in self._fields.items()
        }

    def to_json(self, datum: Any) -> Any:
        return {name: each.type.to_json(datum[name]) for name, each in self._fields.items()}


class Union(AvroType):
    """One of several types. A datum is a pair of the branch's name and its datum."""

    __slots__ = ("_branches", "_by_name")

    def __init__(self, branches: Sequence[AvroType]) -> None:
        excess = max(each.excess for each in branches) - 1
        depth = 1 + max(each.depth for each in branches)
        super().__init__(" or ".join(each.name for each in branches), 1, max(excess, 0), depth)
        self.surplus = max(each.surplus for each in branches) - ITEM_VALUES_MAX
        self._by_name = {each.name: each for each in branches}
        # In the order in which they may take a plain value. A number is a double if it can be one,
        # which keeps its digits, and not a float.
        self._branches = sorted(branches, key=lambda each: each.name == "float")

    def takes(self, value: Any) -> bool:
        return self._branch(value) is not None

    def _branch(self, value: Any) -> tuple[AvroType, Any] | None:
        """Return the branch of this JSON, and the JSON of its own."""
        if isinstance(value, dict):
            fields = cast("dict[str, Any]", value)
            if len(fields) == 1:
                ((name, inner),) = fields.items()
                if name in self._by_name:
                    return self._by_name[name], inner
        found = next((each for each in self._branches if each.takes(value)), None)
        return None if found is None else (found, cast("Any", value))

    def from_json(self, value: Any) -> Any:
        found = self._branch(value)
        if found is None:
            return self._refused(value)
        branch, inner = found
        return branch.name, branch.from_json(inner)

    def _refused(self, value: Any) -> Any:
        """Raise Mismatch, with the reason of the only branch that is not null, if it is one."""
        others = [each for each in self._branches if each.name != "null"]
        if len(others) == 1:
            return others[0].from_json(value)
        raise Mismatch(f"must be {self.name}, not {_kind(value)}")

    def to_json(self, datum: Any) -> Any:
        branch, inner = self._of(datum)
        shown = branch.to_json(inner)
        found = self._branch(shown)
        plain = found is not None and found[0] is branch and found[1] is shown
        return shown if plain else {branch.name: shown}

    def _of(self, datum: Any) -> tuple[AvroType, Any]:
        """Return the branch of a datum as fastavro reads it: named types come as pairs."""
        if isinstance(datum, tuple):
            name, inner = cast("tuple[str, Any]", datum)
            return self._by_name[name], inner
        names = _NAMES_OF[type(datum)]
        found = [each for each in self._branches if each.name in names]
        # fastavro leaves open whether an int or a long was written: the first that takes it.
        return next((each for each in found if each.takes(datum)), found[0]), datum


_NAMES_OF: Final[Mapping[type, Sequence[str]]] = {
    type(None): ("null",),
    bool: ("boolean",),
    int: ("int", "long"),
    float: ("double", "float"),
    str: ("string",),
    bytes: ("bytes",),
    list: ("array",),
    dict: ("map",),
}


def _is_int(bits: int) -> Callable[[Any], bool]:
    most = 2 ** (bits - 1)
    return lambda value: (
        isinstance(value, int) and not isinstance(value, bool) and -most <= value < most
    )


def _is_text(value: Any) -> bool:
    if not isinstance(value, str):
        return False
    try:
        value.encode()
    except UnicodeEncodeError:  # half of a surrogate pair
        return False
    return True


def _at(step: str, convert: Callable[[Any], Any], value: Any) -> Any:
    try:
        return convert(value)
    except Mismatch as mismatch:
        mismatch.path.append(step)
        raise


def _kind(value: Any) -> str:
    if isinstance(value, dict):
        return "an object"
    if isinstance(value, list):
        return "a list"
    return "null" if value is None else f"{value!r:.40}"


PRIMITIVES: Final[Mapping[str, AvroType]] = {
    "null": _Plain("null", lambda value: value is None, 0),
    "boolean": _Plain("boolean", lambda value: isinstance(value, bool)),
    "int": _Plain("int", _is_int(32)),
    "long": _Plain("long", _is_int(64)),
    "float": _Number("float", _FLOAT_MAX, 4),
    "double": _Number("double", 1.7976931348623157e308, 8),
    "bytes": _Bytes("bytes"),
    "string": _Plain("string", _is_text),
}


def fixed(name: str, size: int) -> AvroType:
    """Return the type of `size` bytes."""
    return _Bytes(name, size)
