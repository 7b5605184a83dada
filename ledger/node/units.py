"""What people write in flags and files, as values: sizes, times, shares, names.

Each function takes what a flag (text) or TOML (text, number, boolean) holds and raises ValueError
with what it should be instead.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final, TypeVar

T = TypeVar("T")
Parse = Callable[[object], T]

_SIZES: Final = {"B": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40}
_TIMES: Final = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}
_NUMBER = re.compile(r"(\d+(?:\.\d+)?)\s*([A-Za-z%]*)")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")
_RACK = re.compile(r"(/[A-Za-z0-9_.-]+)+")
_HOST = r"(?:[A-Za-z0-9_.-]+|\[[0-9A-Fa-f:.]+\])"
_SERVERS = re.compile(rf"{_HOST}:\d{{1,5}}(,{_HOST}:\d{{1,5}})*(/[^/,\s\0]+)*")


def text(value: object) -> str:
    if not isinstance(value, str) or not value:
        raise ValueError("must be text")
    return value


def matching(pattern: re.Pattern[str], said: str) -> Parse[str]:
    def parse(value: object) -> str:
        if not pattern.fullmatch(text(value)):
            raise ValueError(f"must be {said}")
        return text(value)

    return parse


name: Parse[str] = matching(_NAME, "letters, digits, '-', '_' and '.'")
rack: Parse[str] = matching(_RACK, "a path such as /row-1/rack-2")
servers: Parse[str] = matching(_SERVERS, "host:port, or several by commas, and perhaps a /chroot")


def path(value: object) -> Path:
    found = text(value)
    if any(character in found for character in "\t\n\r\0"):
        raise ValueError("must be a path without tabs and line ends")
    return Path(found)


def boolean(value: object) -> bool:
    if not isinstance(value, bool):
        raise ValueError("must be true or false")
    return value


def one_of(*choices: str) -> Parse[str]:
    def parse(value: object) -> str:
        if value not in choices:
            raise ValueError(f"must be {' or '.join(choices)}")
        return str(value)

    return parse


def whole(first: int, last: int) -> Parse[int]:
    def parse(value: object) -> int:
        if isinstance(value, str) and value.isascii() and value.isdigit():
            value = int(value)
        if not isinstance(value, int) or isinstance(value, bool) or not first <= value <= last:
            raise ValueError(f"must be a whole number between {first} and {last}")
        return value

    return parse


def percent(first: int, last: int) -> Parse[int]:
    def parse(value: object) -> int:
        bare = value.removesuffix("%").strip() if isinstance(value, str) else value
        try:
            return whole(first, last)(bare)
        except ValueError:
            raise ValueError(f"must be between {first} % and {last} %") from None

    return parse


def size(first: int, last: int) -> Parse[int]:
    """Bytes, from `512MiB` and its like; a bare number is bytes."""

    def parse(value: object) -> int:
        found = _scaled(value, _SIZES, "B")
        if found is None:
            raise ValueError(f"must be a size in {', '.join(_SIZES)}, such as 256MiB")
        if not first <= found <= last:
            raise ValueError(f"must be between {show_size(first)} and {show_size(last)}")
        return int(found)

    return parse


def duration(first_s: float, last_s: float) -> Parse[float]:
    """Seconds, from `500ms`, `10s`, `5m`, `1h`; a bare number has no unit and is refused."""

    def parse(value: object) -> float:
        found = _scaled(value, _TIMES, "")
        if found is None:
            raise ValueError(f"must be a time in {', '.join(_TIMES)}, such as 10s")
        if not first_s <= found <= last_s:
            raise ValueError(f"must be between {show_time(first_s)} and {show_time(last_s)}")
        return found

    return parse


def _scaled(value: object, units: Mapping[str, float], bare: str) -> float | None:
    match = _NUMBER.fullmatch(str(value)) if isinstance(value, (str, int)) else None
    if match is None or isinstance(value, bool):
        return None
    scale = units.get(match[2] or bare)
    return None if scale is None else float(match[1]) * scale


def show_size(value: int) -> str:
    """As people write it: the largest unit that leaves a whole number."""
    return next(
        f"{value // scale}{unit}"
        for unit, scale in reversed(_SIZES.items())
        if value % scale == 0 and (value >= scale or unit == "B")
    )


def show_time(value_s: float) -> str:
    """As people write it: the largest unit that leaves a whole number."""
    return next(
        f"{round(value_s / scale)}{unit}"
        for unit, scale in reversed(_TIMES.items())
        if unit == "ms" or (value_s >= scale and value_s % scale == 0)
    )
