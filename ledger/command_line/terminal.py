"""What a command may do on the terminal that it writes to, if it writes to one."""

from __future__ import annotations

import contextlib
import os
import sys
from enum import StrEnum
from typing import TextIO

_CUT = "…"


class Color(StrEnum):
    """When a command prints in colour."""

    auto = "auto"
    always = "always"
    never = "never"


def is_terminal(stream: TextIO | None) -> bool:
    """Return whether this stream is a terminal. Python has None for a closed one."""
    try:
        return stream is not None and stream.isatty()
    except ValueError:  # closed since
        return False


def wants_color(choice: Color) -> bool:
    """Return whether stdout gets colour: by default on a terminal, unless NO_COLOR or TERM forbid.

    Source: no-color.org (set and not empty).
    """
    if choice is not Color.auto:
        return choice is Color.always
    if os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb":
        return False
    return is_terminal(sys.stdout)


def columns(stream: TextIO | None) -> int | None:
    """Return the width of this terminal, or None if it is none or has no known width.

    COLUMNS comes before the size that the terminal reports, which is 0 in some pseudo-terminals.
    """
    if stream is None or not is_terminal(stream):
        return None
    with contextlib.suppress(ValueError):
        given = int(os.environ.get("COLUMNS", ""))
        if given > 0:
            return given
    try:
        return os.get_terminal_size(stream.fileno()).columns or None
    except (OSError, ValueError):
        return None


def text_width(text: str) -> int:
    """Return the columns of a terminal that this printable text takes.

    A wide character, such as one of Chinese, takes two; one that combines with another takes none.
    """
    if text.isascii():
        return len(text)
    from unicodedata import category, east_asian_width

    return sum(
        0 if category(each) in ("Mn", "Me") else 2 if east_asian_width(each) in "WF" else 1
        for each in text
    )


def cut(text: str, width: int) -> str:
    """Return the text in at most `width` columns, at least 1; what is cut ends with an ellipsis."""
    if text_width(text) <= width:
        return text
    if text.isascii():
        return text[: width - 1] + _CUT
    room = width - 1
    for number, each in enumerate(text):
        room -= text_width(each)
        if room < 0:
            return text[:number] + _CUT
    return text


def write_stderr(text: str) -> None:
    """Write to stderr at once. If it is closed or full, the text is dropped."""
    stream = stderr()
    if stream is None:  # print() would use stdout
        return
    with contextlib.suppress(OSError, ValueError):
        stream.write(text)
        stream.flush()


def stderr() -> TextIO | None:
    """Return stderr; Python has none if the file was closed when the process began."""
    return sys.stderr
