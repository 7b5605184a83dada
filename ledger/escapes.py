"""Escapes characters on which a terminal or a reader of lines acts, such as ESC, CR and U+2028.

Clients choose names such as group ids freely. A raw name could forge a line of a log, a row of a
table, or hide text on a terminal. Letters and symbols of every script are left as they are.
"""

from __future__ import annotations


def escape_line(text: str) -> str:
    """Return the text with every character that is not printable in Python's notation."""
    return text if text.isprintable() else "".join(map(_in_python, text))


def escape_lines(text: str) -> str:
    """Return the text escaped as by `escape_line`, except for the ends of its lines."""
    return "\n".join(map(escape_line, text.split("\n")))


def escape_json(text: str) -> str:
    """Return JSON text of the same value without a character that is not printable, except LF."""
    lines = text.split("\n")
    return "\n".join(line if line.isprintable() else "".join(map(_in_json, line)) for line in lines)


def _in_python(character: str) -> str:
    if character.isprintable():
        return character
    return character.encode("unicode_escape").decode("ascii")


def _in_json(character: str) -> str:
    if character.isprintable():
        return character
    data = character.encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{data[at : at + 2].hex()}" for at in range(0, len(data), 2))
