"""The filters of `topic consume`: by key, value and headers. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from fnmatch import translate

from gateway.admin.consume_batches import Record
from gateway.settings.re2_patterns import InvalidPattern, compile_pattern

Filter = Callable[[Record], bool]
"""Returns True for a record that is shown."""

_PATTERN_MEMORY_MAX = 8 * 1024 * 1024


def by_key(glob: str) -> Filter:
    """Match the text of a key with a pattern of `fnmatch`, as shells do; case matters."""
    matches = re.compile(translate(glob)).match

    def check(record: Record) -> bool:
        key = record.key
        return key is not None and matches(key.decode(errors="replace")) is not None

    return check


def by_value(pattern: str) -> Filter:
    """Match a part of the value's text with a regular expression. Raises ValueError."""
    try:
        search = compile_pattern(pattern, _PATTERN_MEMORY_MAX).search
    except InvalidPattern as error:
        raise ValueError(f"is no regular expression of RE2: {error}") from None

    def check(record: Record) -> bool:
        value = record.value
        return value is not None and search(value) is not None

    return check


def by_text(text: str) -> Filter:
    """Match values that contain this text, as it is."""
    wanted = text.encode(errors="surrogatepass")

    def check(record: Record) -> bool:
        value = record.value
        return value is not None and wanted in value

    return check


def by_header(word: str) -> Filter:
    """Match a header by `name=value`, or by its name alone. Raises ValueError."""
    name, equals, text = word.partition("=")
    if not name:
        raise ValueError("must be name=value or a name")
    wanted = text.encode()

    def check(record: Record) -> bool:
        return any(key == name and (not equals or value == wanted) for key, value in record.headers)

    return check


def matching(filters: Sequence[Filter], records: Sequence[Record]) -> Sequence[Record]:
    """Return the records that all filters match."""
    for each in filters:
        records = list(filter(each, records))
    return records


def check_topic(word: str) -> None:
    """Raise ValueError if this is `/regex/` and no regular expression."""
    if is_pattern(word):
        topics_by_pattern(word[1:-1], ())


def is_pattern(word: str) -> bool:
    """Return whether this names topics by a regular expression between slashes."""
    return len(word) > 1 and word.startswith("/") and word.endswith("/")


def topics_by_pattern(pattern: str, names: Sequence[str]) -> list[str]:
    """Return the names that the regular expression matches as a whole. Raises ValueError."""
    try:
        compiled = compile_pattern(pattern, _PATTERN_MEMORY_MAX)
    except InvalidPattern as error:
        raise ValueError(f"is no regular expression of RE2: {error}") from None
    return [name for name in names if compiled.fullmatch(name) is not None]
