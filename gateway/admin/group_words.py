"""What users write of partitions, times and offsets, as values. Every function raises ValueError
with a message that names the word and shows how it is written."""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import Any, cast

_DURATION = re.compile(
    r"P(?=.)(?:(?P<D>\d+)D)?(?:T(?=.)(?:(?P<H>\d+)H)?(?:(?P<M>\d+)M)?"
    r"(?:(?P<S>\d+(?:\.\d{1,9})?)S)?)?"
)
_SHORT = re.compile(r"(\d+)(ms|s|m|h|d)")
_UNIT_MS = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}


def read_topics(words: Iterable[str]) -> dict[str, list[int]]:
    """`orders` or `orders:0,3`, as kafka-consumer-groups.sh has it."""
    found: dict[str, list[int]] = {}
    for word in words:
        name, colon, indexes = word.partition(":")
        numbers = indexes.split(",") if colon else []
        if not name or not all(number.strip().isdecimal() for number in numbers):
            raise ValueError(f"{word!r} is not a topic, or a topic:partition,partition")
        found.setdefault(name, []).extend(int(number) for number in numbers)
    return found


def read_time(word: str) -> int:
    """Wall time in milliseconds of `2026-05-01T12:00:00.000+02:00`; UTC if no zone is given."""
    try:
        at = datetime.fromisoformat(word)
    except ValueError:
        raise ValueError(
            f"{word!r} is not a time, for example 2026-05-01T12:00:00 (UTC) or "
            "2026-05-01T12:00:00+02:00"
        ) from None
    if at.tzinfo is None:
        at = at.replace(tzinfo=UTC)
    return round(at.timestamp() * 1000)


def read_duration(word: str) -> int:
    """Milliseconds of `P1DT2H3M4S`, or of `90s`, `15m`, `2h`, `7d`."""
    short = _SHORT.fullmatch(word)
    if short is not None:
        return int(short[1]) * _UNIT_MS[short[2]]
    found = _DURATION.fullmatch(word)
    if found is None:
        raise ValueError(f"{word!r} is not a duration, for example PT1H30M, 90s, 15m, 2h or 7d")
    parts = {unit.lower(): float(value) for unit, value in found.groupdict().items() if value}
    return round(sum(value * _UNIT_MS[unit] for unit, value in parts.items()))


def read_moment(word: str, now_ms: int) -> int:
    """Wall time in milliseconds: a time, or how long ago."""
    try:
        return now_ms - read_duration(word)
    except ValueError:
        pass
    try:
        return read_time(word)
    except ValueError as error:
        raise ValueError(f"{error}, or how long ago, for example 2h") from None


def read_offsets(text: str, group: str) -> dict[tuple[str, int], int]:
    """Lines of `topic,partition,offset`, with the group before them if it is named there; or what
    `seek` and `describe` print with `-o json`."""
    rows = _from_json(text) if text.lstrip()[:1] in ("[", "{") else _from_csv(text, group)
    found: dict[tuple[str, int], int] = {}
    for number, (topic, partition, offset) in enumerate(rows, 1):
        numbers = str(partition), str(offset)
        if not topic or not all(each.isdecimal() for each in numbers):
            raise ValueError(f"row {number} is not topic,partition,offset")
        found[topic, int(numbers[0])] = int(numbers[1])
    if not found:
        raise ValueError("it names no offsets; a line is topic,partition,offset")
    return found


def _from_csv(text: str, group: str) -> Iterable[Sequence[str]]:
    for number, row in enumerate(csv.reader(io.StringIO(text)), 1):
        words = [word.strip() for word in row]
        if not any(words):
            continue
        if len(words) == 4 and words[0] == group:
            words = words[1:]
        if len(words) != 3:
            raise ValueError(f"line {number} is not topic,partition,offset of group {group}")
        yield words


def _from_json(text: str) -> Iterable[tuple[str, Any, Any]]:
    try:
        document: Any = json.loads(text)
        if isinstance(document, dict):
            document = cast("dict[str, Any]", document)["offsets"]
        for row in cast("list[dict[str, Any]]", document):
            offset = row.get("new_offset", row.get("current_offset", row.get("offset")))
            if offset is not None:
                yield row["topic"], row["partition"], offset
    except (ValueError, KeyError, TypeError, AttributeError):
        raise ValueError("it is not the JSON that `gateway group seek -o json` prints") from None


def write_time(at_ms: int) -> str:
    """`2026-05-01T12:00:00.000Z`, as `read_time` takes it."""
    return (
        datetime.fromtimestamp(at_ms / 1000, UTC)
        .isoformat(timespec="milliseconds")
        .replace("+00:00", "Z")
    )
