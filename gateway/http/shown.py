"""How templates show figures, times, words and links. `FUNCTIONS` are their globals.

An unknown figure is None. It is shown as a dash, which screen readers read as `unknown`, and never
as a zero. The dash of a text that is None is read as `none`.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any, Final, cast
from urllib.parse import urlencode

from markupsafe import Markup, escape

from gateway.http import plots
from gateway.http.hrefs import url_part
from gateway.http.pages import Asked, Json, Page, api_path

OK: Final = frozenset(
    {"ok", "open", "running", "alive", "up", "healthy", "online", "stable", "serving", "writable"}
    | {"committed", "done", "ready", "in-sync", "yes"}
)
WARN: Final = frozenset(
    {"warn", "under-replicated", "read-only", "silent", "stale", "unknown", "rebalancing", "slow"}
    | {"starting", "draining", "paused", "away", "behind"}
    | {"preparing-rebalance", "completing-rebalance", "preparingrebalance", "completingrebalance"}
    | {"assigning", "reconciling"}
)
FAIL: Final = frozenset(
    {"fail", "failed", "lost", "offline", "down", "dead", "killed", "hopeless", "missing", "denied"}
    | {"refused", "error", "aborted", "unreachable", "no"}
)
_SYMBOLS: Final = {"ok": "✓", "warn": "▲", "fail": "✕", "plain": "·"}
_DASH: Final = (
    '<span class="unknown"><span aria-hidden="true">–</span><span class="unseen">{}</span></span>'
)
_NONE: Final = Markup(_DASH.format("none"))
_UNKNOWN: Final = Markup(_DASH.format("unknown"))
_BYTES: Final = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")
_SECOND_MS: Final = 1_000
_MINUTE_S: Final = 60
_HOUR_S: Final = 3_600
_DAY_S: Final = 86_400
_WORD_MAX: Final = 64  # characters of a state whose drawing is kept
_NAME: Final = re.compile(r"{(\w+)(?::\w+)?}")
_CONTROLS: Final = {
    code: f"\\x{code:02x}" for code in (*range(9), 11, 12, *range(14, 32), *range(127, 160))
} | {
    code: f"\\u{code:04x}"
    for code in (
        *(0x00AD, 0x061C, 0x200B, 0x2060, 0xFEFF),
        *range(0x200E, 0x2010),
        *range(0x202A, 0x202F),
        *range(0x2066, 0x206A),
        *range(0xE0000, 0xE0080),
    )
}


def text(value: object) -> Markup:
    """Return a value as text. Characters that cannot be seen are written as escapes."""
    if value is None:
        return _NONE
    return _escaped(str(value))


def _escaped(words: str) -> Markup:
    if words.isprintable():
        return escape(words)
    # Half of a character has no UTF-8.
    return escape(words.translate(_CONTROLS).encode("utf-8", "backslashreplace").decode())


def number(value: float | None) -> Markup:
    """Return a number with a comma at each thousand, and at most two digits after the point."""
    return _UNKNOWN if value is None else Markup(_number(value))


def _number(value: float) -> str:
    if isinstance(value, int):
        return f"{value:,}"
    return f"{value:,.0f}" if value.is_integer() else f"{value:,.2f}"


def size(value: float | None) -> Markup:
    """Return a number of bytes in the largest unit that leaves one digit before the point."""
    return _UNKNOWN if value is None else Markup(_size(value))


def _size(value: float) -> str:
    unit = 0
    left = float(value)
    while abs(left) >= 1024 and unit < len(_BYTES) - 1:
        left /= 1024
        unit += 1
    return f"{left:,.0f} B" if unit == 0 else f"{left:,.1f} {_BYTES[unit]}"


def rate(value: float | None) -> Markup:
    """Return a number per second."""
    return _UNKNOWN if value is None else Markup(_rate(value))


def _rate(value: float) -> str:
    return f"{value:,.0f} /s" if value >= 100 or value == 0 else f"{value:,.1f} /s"


def duration(value: float | None) -> Markup:
    """Return milliseconds in a unit that people read at once."""
    if value is None:
        return _UNKNOWN
    if value < _SECOND_MS:
        return Markup(f"{value:,.{0 if float(value).is_integer() else 1}f} ms")
    return Markup(_long(value / _SECOND_MS))


def _long(value_s: float) -> str:
    if value_s < _MINUTE_S:
        return f"{value_s:.1f} s"
    if value_s < _HOUR_S:
        return f"{value_s // _MINUTE_S:.0f} min {value_s % _MINUTE_S:.0f} s"
    if value_s < _DAY_S:
        return f"{value_s // _HOUR_S:.0f} h {value_s % _HOUR_S // _MINUTE_S:.0f} min"
    return f"{value_s // _DAY_S:.0f} d {value_s % _DAY_S // _HOUR_S:.0f} h"


def moment(at_ms: float | None) -> Markup:
    """Return a time, in milliseconds since 1970, as UTC."""
    iso = _iso(at_ms)
    if iso is None:
        return _UNKNOWN if at_ms is None else text(at_ms)
    return Markup(f'<time datetime="{iso}">{iso[:10]} {iso[11:19]} UTC</time>')


def ago(at_ms: float | None) -> Markup:
    """Return how long ago a time was, in milliseconds since 1970."""
    iso = _iso(at_ms)
    if iso is None or at_ms is None:
        return moment(at_ms)
    passed_ms = time.time() * _SECOND_MS - at_ms
    words = f"{_short(passed_ms)} ago" if passed_ms >= 0 else f"in {_short(-passed_ms)}"
    return Markup(f'<time datetime="{iso}" title="{iso}">{words}</time>')


def _short(value_ms: float) -> str:
    value_s = value_ms / _SECOND_MS
    return f"{value_s:.0f} s" if value_s < _MINUTE_S else _long(value_s)


def _iso(at_ms: float | None) -> str | None:
    """Return a time as ISO 8601 with milliseconds, or None if there is none or no such year."""
    try:
        found = None if at_ms is None else datetime.fromtimestamp(at_ms / _SECOND_MS, UTC)
    except (OverflowError, ValueError, OSError):
        return None
    return None if found is None else found.isoformat(timespec="milliseconds")


def kind_of_state(word: object) -> str:
    """Return the class of a word about a state: `ok`, `warn`, `fail`, or `plain`."""
    lower = str(word).lower().replace(" ", "-").replace("_", "-")
    kinds = (("ok", OK), ("warn", WARN), ("fail", FAIL))
    return next((kind for kind, words in kinds if lower in words), "plain")


KINDS_OF_STATES: Final = json.dumps(
    {word: kind_of_state(word) for word in sorted(OK | WARN | FAIL)}, separators=(",", ":")
)
"""What scripts need to show states as this module does."""


def state(word: object) -> Markup:
    """Return a word about a state, with a symbol: its colour carries nothing of its own."""
    return _UNKNOWN if word is None else Markup(_state(word))


def _state(word: object) -> str:
    words = ("yes" if word else "no") if isinstance(word, bool) else str(word)
    return _kept_state(words) if len(words) <= _WORD_MAX else _drawn_state(words)


def _drawn_state(words: str) -> str:
    kind = kind_of_state(words)
    sign = f'<span aria-hidden="true">{_SYMBOLS[kind]} </span>'
    return f'<span class="state state-{kind}">{sign}{_escaped(words)}</span>'


# The rows of a page have the same few words.
_kept_state = lru_cache(maxsize=256)(_drawn_state)


# What a cell shows of a figure that is known.
_SHOW: Final[Mapping[str, Callable[[Any], str]]] = {
    "text": text,
    "link": text,
    "number": _number,
    "bytes": _size,
    "ms": duration,
    "rate": _rate,
    "time": moment,
}
NUMERIC: Final = frozenset({"number", "bytes", "ms", "rate"})


def cell(row: Mapping[str, Any], key: str, kind: str) -> Markup:
    """Return one cell of a table: `row[key]` as its kind, with a link if there is `key_href`."""
    return Markup(_cell(row.get(key), row.get(f"{key}_href"), kind))


def _cell(value: Any, href: Any, kind: str) -> str:
    if isinstance(value, list | tuple):
        value = ", ".join(str(each) for each in cast("Sequence[object]", value))
    if value is None:
        shown = _NONE if kind in ("text", "link") else _UNKNOWN
    elif kind == "state":
        shown = _state(value)
    elif isinstance(value, int | float):
        shown = _SHOW[kind](value)
    else:
        shown = _escaped(str(value))
    return shown if href is None else f'<a href="{escape(local(href))}">{shown}</a>'


Columns = Sequence[tuple[str, str, str]]
"""Key, label and kind of each column of a table."""

FoundRows = Sequence[Mapping[str, Any]]


def rows(columns: Columns, found: FoundRows) -> Markup:
    """Return the rows of a table. The first cell of each heads it."""
    if not found:
        return Markup(f'<tr class="empty"><td colspan="{len(columns)}">none</td></tr>\n')
    cells: list[tuple[str, str, str, str, str]] = []
    for at, (key, _, kind) in enumerate(columns):
        name = ' class="number"' if kind in NUMERIC else ""
        begin, end = (f"<td{name}>", "</td>") if at else (f'<th scope="row"{name}>', "</th>")
        cells.append((key, f"{key}_href", kind, begin, end))
    lines: list[str] = []
    for row in found:
        get = row.get
        drawn = [f"{a}{_cell(get(key), get(to), kind)}{b}" for key, to, kind, a, b in cells]
        lines.append(f"<tr>{''.join(drawn)}</tr>\n")
    return Markup("".join(lines))


def local(href: object) -> str:
    """Return the address of a page of ours. Anything that leads elsewhere becomes `#`."""
    address = str(href)
    elsewhere = address.startswith(("//", "/\\")) or not address.startswith(("/", "?", "#"))
    return "#" if elsewhere else address


def query(asked: Asked, **others: object) -> str:
    """Return the query of this page with other values. None takes a value out."""
    kept = {**asked.query, **{name: value for name, value in others.items() if value is not None}}
    for name in [name for name, value in others.items() if value is None]:
        kept.pop(name, None)
    return "?" + urlencode(kept)


def next_href(found: Json, asked: Asked) -> str | None:
    """Return the address of the next rows, or None if these are the last."""
    cursor = found.get("next")
    return None if cursor is None else query(asked, cursor=cursor)


def json_href(page: Page, asked: Asked) -> str:
    """Return the address of what this page shows, as JSON."""
    path = _NAME.sub(lambda each: url_part(asked.path[each[1]]), api_path(page))
    return path + ("?" + urlencode(asked.query) if asked.query else "")


FUNCTIONS: Final[Mapping[str, Any]] = {
    "ui_states": KINDS_OF_STATES,
    "ui_text": text,
    "ui_number": number,
    "ui_size": size,
    "ui_rate": rate,
    "ui_duration": duration,
    "ui_moment": moment,
    "ui_ago": ago,
    "ui_state": state,
    "ui_cell": cell,
    "ui_rows": rows,
    "ui_local": local,
    "ui_query": query,
    "ui_next": next_href,
    "ui_plot_value": plots.value_text,
    "json_href": json_href,
    "ui_is_number": NUMERIC.__contains__,
}
