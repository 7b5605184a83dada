"""Sizes, durations, percentages, names and addresses, read from flags and configuration files.

Each function takes a value as it was written: text from a flag; text, a number or a boolean from
TOML. It returns the parsed value, or raises ValueError with the accepted form.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum
from typing import TYPE_CHECKING, Final, TypeVar

if TYPE_CHECKING:
    from pathlib import Path

T = TypeVar("T")
E = TypeVar("E", bound=StrEnum)
Parse = Callable[[object], T]

INT32_MAX: Final = 2**31 - 1
INT64_MAX: Final = 2**63 - 1

_SIZES: Final = {"B": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40}
_TIMES: Final = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3_600.0, "d": 86_400.0}
_TIME_S_MAX: Final = 10_000 * 365 * 86_400.0
_NUMBER = re.compile(r"(\d+(?:\.\d+)?)\s*([A-Za-z%]*)", re.ASCII)
_WHOLE = re.compile(r"[+-]?[0-9]{1,40}")
_BARE_NUMBER = re.compile(r"-?\d+(\.\d+)?", re.ASCII)
_ISO_DURATION = re.compile(
    r"P(?=.)(?:(?P<d>\d+)D)?(?:T(?=.)(?:(?P<h>\d+)H)?(?:(?P<m>\d+)M)?"
    r"(?:(?P<s>\d+(?:\.\d{1,9})?)S)?)?",
    re.ASCII,
)
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")
_RACK = re.compile(r"(/[A-Za-z0-9_.-]+)+")
_HOST = r"(?:[A-Za-z0-9_.-]+|\[[0-9A-Fa-f:.]+\])"
_SERVERS = re.compile(
    rf"{_HOST}:\d{{1,5}}(,{_HOST}:\d{{1,5}})*(/(?!\.\.?(?:/|$))[^/,\s\0]+)*", re.ASCII
)


def text(value: object) -> str:
    """Parse text of at least one character."""
    if not isinstance(value, str):
        raise ValueError("must be text")
    if not value:
        raise ValueError("must not be empty")
    return value


def matching(pattern: re.Pattern[str], form: str) -> Parse[str]:
    """Parse text that matches `pattern`; `form` describes it in errors."""

    def parse(value: object) -> str:
        if not pattern.fullmatch(text(value)):
            raise ValueError(f"must be {form}")
        return text(value)

    return parse


name: Parse[str] = matching(_NAME, "letters, digits, '-', '_' and '.'")
rack: Parse[str] = matching(_RACK, "a path such as /row-1/rack-2")
servers: Parse[str] = matching(
    _SERVERS, "host:port, or several separated by commas, with an optional /chroot at the end"
)


def path(value: object) -> Path:
    """Parse a path."""
    from pathlib import Path  # loads urllib, which no help needs

    found = text(value)
    if any(character in found for character in "\t\n\r\0"):
        raise ValueError("must be a path without tabs and line ends")
    return Path(found)


def boolean(value: object) -> bool:
    """Parse a boolean of TOML, or the presence of a switch."""
    if not isinstance(value, bool):
        raise ValueError("must be true or false")
    return value


def with_choices(parse: Parse[T], choices: Sequence[str]) -> Parse[T]:
    """Let the completion of shells know the words that `parse` accepts."""
    vars(parse)["choices"] = tuple(choices)
    return parse


def one_of(*choices: str) -> Parse[str]:
    """Parse one of these words."""

    def parse(value: object) -> str:
        if value not in choices:
            raise ValueError(f"must be {listed(choices)}")
        return str(value)

    return with_choices(parse, choices)


def one_of_any_case(*choices: str) -> Parse[str]:
    """Parse one of these words, in capitals or not; the result is spelt as in `choices`."""
    by_lower = {choice.lower(): choice for choice in choices}

    def parse(value: object) -> str:
        found = by_lower.get(text(value).lower())
        if found is None:
            raise ValueError(f"must be {listed(choices)}")
        return found

    return parse


def member(kind: type[E]) -> Parse[E]:
    """Parse one of the values of an enumeration."""
    parse_word = one_of(*(each.value for each in kind))

    def parse(value: object) -> E:
        return kind(parse_word(value))

    return with_choices(parse, [each.value for each in kind])


def listed(words: tuple[str, ...] | list[str]) -> str:
    """Return the words as a sentence lists them: `a, b or c`."""
    return " or ".join(filter(None, (", ".join(words[:-1]), words[-1])))


def whole(first: int, last: int) -> Parse[int]:
    """Parse a whole number between `first` and `last`."""

    def parse(value: object) -> int:
        if isinstance(value, str) and _WHOLE.fullmatch(value):
            value = int(value)
        if not isinstance(value, int) or isinstance(value, bool) or not first <= value <= last:
            raise ValueError(f"must be a whole number between {first} and {last}")
        return value

    return parse


def integer(value: object) -> int:
    """Parse a whole number; the caller checks its range."""
    if isinstance(value, str) and _WHOLE.fullmatch(value):
        return int(value)
    raise ValueError("must be a whole number")


def percent(first: int, last: int) -> Parse[int]:
    """Parse a percentage, written as `95%` or 95."""

    def parse(value: object) -> int:
        bare = value.removesuffix("%").strip() if isinstance(value, str) else value
        try:
            return whole(first, last)(bare)
        except ValueError:
            raise ValueError(f"must be between {first} % and {last} %") from None

    return parse


def size(first: int, last: int) -> Parse[int]:
    """Parse a number of bytes such as `512MiB`; a number without a unit is bytes."""

    def parse(value: object) -> int:
        found = _scaled(value, _SIZES, "B")
        if found is None:
            raise ValueError(f"must be a size in {', '.join(_SIZES)}, such as 256MiB")
        if not first <= found <= last:
            raise ValueError(f"must be between {show_size(first)} and {show_size(last)}")
        return int(found)

    return parse


def rate(first: int, last: int) -> Parse[int]:
    """Parse a number of bytes per second: a size such as `64MiB`, with or without `/s`."""

    def parse(value: object) -> int:
        return size(first, last)(value.removesuffix("/s") if isinstance(value, str) else value)

    return parse


def duration(first_s: float, last_s: float, *, bare: str = "") -> Parse[float]:
    """Parse a number of seconds such as `500ms`, `10s`, `5m`, `1h`, `7d` or `PT1H30M`.

    A number without a unit is refused, except 0, unless `bare` names the unit that it has.
    """

    def parse(value: object) -> float:
        # A negative duration is one: it is out of range.
        word = value[1:] if isinstance(value, str) and value.startswith("-") else value
        found = _seconds(word, bare)
        if found is None:
            raise ValueError(_no_duration(value))
        signed = found if word is value else -found
        if not first_s <= signed <= last_s:
            raise ValueError(f"must be between {show_time(first_s)} and {show_time(last_s)}")
        return signed

    return parse


def _no_duration(value: object) -> str:
    if isinstance(value, (str, int, float)) and _BARE_NUMBER.fullmatch(str(value)):
        seconds_given = f"{str(value).lstrip('-')}s"
        return f"{value} has no unit; write {seconds_given}, 500ms, 5m, 1h, 7d or PT1H30M"
    return f"must be a duration in {', '.join(_TIMES)}, such as 10s or PT1H30M"


def seconds(value: object, *, bare: str = "") -> float | None:
    """Return the seconds of a duration as `duration` parses it, or None if it is none.

    Raises ValueError if it is longer than any clock can count.
    """
    found = _seconds(value, bare)
    if found is not None and found > _TIME_S_MAX:
        raise ValueError(f"is longer than {show_time(_TIME_S_MAX)}")
    return found


def _seconds(value: object, bare: str) -> float | None:
    """Return the seconds of a duration; infinity if the number is too large for a float."""
    found = _scaled(value, _TIMES, bare)
    if found is not None or not isinstance(value, str):
        return found
    if bare and value.isascii():  # a number in another form, such as 1e3
        with contextlib.suppress(ValueError):
            return float(value) * _TIMES[bare]
    iso = _ISO_DURATION.fullmatch(value)
    if iso is None:
        return None
    return sum(float(count) * _TIMES[unit] for unit, count in iso.groupdict().items() if count)


def _scaled(value: object, units: Mapping[str, float], bare: str) -> float | None:
    match = _NUMBER.fullmatch(str(value)) if isinstance(value, (str, int)) else None
    if match is None or isinstance(value, bool):
        return None
    if not match[2] and float(match[1]) == 0:  # needs no unit
        return 0.0
    scale = units.get(match[2] or bare)
    return None if scale is None else float(match[1]) * scale


def show_size(value: int) -> str:
    """Format a size in the largest unit that leaves a whole number."""
    return next(
        f"{value // scale}{unit}"
        for unit, scale in reversed(_SIZES.items())
        if value % scale == 0 and (value >= scale or unit == "B")
    )


def show_time(value_s: float) -> str:
    """Format a duration in the largest unit that leaves a whole number."""
    return next(
        f"{round(value_s / scale)}{unit}"
        for unit, scale in reversed(_TIMES.items())
        if unit == "ms" or (value_s >= scale and value_s % scale == 0)
    )


def is_loopback(host: str) -> bool:
    """Return whether only this machine reaches the address."""
    from ipaddress import ip_address  # few commands need it

    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
