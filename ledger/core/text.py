"""Parts of messages for people. Pure."""

from __future__ import annotations

from collections.abc import Iterable


def names_of(names: Iterable[str]) -> str:
    """Return `a`, `a and b`, or `a, b and c`: sorted, and each name once."""
    *rest, last = sorted(set(names)) or [""]
    return f"{', '.join(rest)} and {last}" if rest else last


def printable(text: str) -> str:
    """Return the text without characters that a terminal would act on."""
    return "".join(each if each.isprintable() else "\ufffd" for each in text)
