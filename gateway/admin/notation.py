"""Partitions, times, durations and offsets, as users write them.

Every function raises ValueError with a message that names the word and shows the accepted form.
"""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import Any, NamedTuple, cast

from ledger.command_line import units

_NUMBER = re.compile(r"[+-]?\d+", re.ASCII)
_WORDS = ("earliest", "latest", "current")


class SeekTarget(NamedTuple):
    """The position that a group is moved to.

    `kind` is earliest, latest, current, offset, shift or time. `number` is the offset, the number
    of offsets to shift by, or the time in milliseconds; for the other kinds it has no meaning.
    """

    kind: str
    number: int = 0


def read_target(word: str, now_ms: int) -> SeekTarget:
    """Parse `earliest`, `latest`, `current`, an offset, a shift, a time, or a duration ago."""
    if word in _WORDS:
        return SeekTarget(word)
    if _NUMBER.fullmatch(word):
        number = _whole(word, -units.INT64_MAX, units.INT64_MAX)
        return SeekTarget("shift" if word[0] in "+-" else "offset", number)
    ago_ms = _duration_ms(word.removeprefix("-"))
    if ago_ms is not None:
        return SeekTarget("time", max(now_ms - ago_ms, 0))
    try:
        return SeekTarget("time", max(read_time(word), 0))
    except ValueError:
        raise ValueError(
            f"{word!r} is not a position: pass earliest, latest, current, an offset such as 42, "
            "a shift such as +10 or -10, a time such as 2026-05-01T12:00:00, or a duration such "
            "as 1h"
        ) from None


def read_topics(words: Iterable[str]) -> dict[str, list[int]]:
    """Parse `orders` or `orders:0,3`, the notation of kafka-consumer-groups.sh.

    Returns the partitions of each topic; a topic without any means all of them.
    """
    found: dict[str, list[int]] = {}
    for word in words:
        name, colon, indexes = word.partition(":")
        numbers = indexes.split(",") if colon else []
        if not name or not all(number.strip().isdecimal() for number in numbers):
            raise ValueError(f"{word!r} is not a topic or topic:partition,partition")
        found.setdefault(name, []).extend(
            _whole(number.strip(), 0, units.INT32_MAX) for number in numbers
        )
    return found


def _whole(word: str, first: int, last: int) -> int:
    """Return a number that a request can hold. Raises ValueError."""
    try:
        return units.whole(first, last)(word)
    except ValueError as error:
        raise ValueError(f"{word[:40]}: {error}") from None


def read_time(word: str) -> int:
    """Return the milliseconds since 1970 of `2026-05-01T12:00:00.000+02:00`; UTC without a zone."""
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
    """Return the milliseconds of `90s`, `15m`, `2h`, `7d` or `P1DT2H3M4S`."""
    found_ms = _duration_ms(word)
    if found_ms is None:
        raise ValueError(f"{word!r} is not a duration, for example 90s, 15m, 2h, 7d or PT1H30M")
    return found_ms


def _duration_ms(word: str) -> int | None:
    """Return the milliseconds of a duration, or None if the word is none."""
    try:
        found_s = units.seconds(word)
    except ValueError as error:
        raise ValueError(f"{word!r} {error}") from None
    return None if found_s is None else round(found_s * 1000)


def read_moment(word: str, now_ms: int) -> int:
    """Return the milliseconds since 1970 of a time, or of a duration before now."""
    ago_ms = _duration_ms(word)
    if ago_ms is not None:
        return now_ms - ago_ms
    try:
        return read_time(word)
    except ValueError as error:
        raise ValueError(f"{error}, or how long ago, for example 2h") from None


def read_offsets(text: str, group: str) -> dict[tuple[str, int], int]:
    """Parse lines of `topic,partition,offset`, or what `seek` and `describe` print with `-o json`.

    A line may begin with the group, as kafka-consumer-groups.sh exports it.
    """
    rows = _from_json(text) if text.lstrip()[:1] in ("[", "{") else _from_csv(text, group)
    found: dict[tuple[str, int], int] = {}
    for number, (topic, partition, offset) in enumerate(rows, 1):
        numbers = str(partition), str(offset)
        if not topic or not all(each.isdecimal() for each in numbers):
            raise ValueError(f"row {number} is not topic,partition,offset")
        key = topic, _whole(numbers[0], 0, units.INT32_MAX)
        found[key] = _whole(numbers[1], 0, units.INT64_MAX)
    if not found:
        raise ValueError("the file has no offsets; a line is topic,partition,offset")
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
        raise ValueError("this is not JSON as `gateway group seek -o json` prints it") from None


def write_time(at_ms: int) -> str:
    """Return the time as `read_time` parses it: `2026-05-01T12:00:00.000Z`."""
    return (
        datetime.fromtimestamp(at_ms / 1000, UTC)
        .isoformat(timespec="milliseconds")
        .replace("+00:00", "Z")
    )
