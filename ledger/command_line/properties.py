r"""Files of `KEY=VALUE` lines, as `java.util.Properties` loads them from a stream of bytes.

A line ends with LF, CR or CR LF. Blank lines, and lines whose first character that is no blank is
`#` or `!`, are comments. An odd number of `\` at the end of a line continues it. The blanks in
front of the next line are dropped then, and that line is no comment. A key ends at the first `=`,
`:` or blank that no `\` precedes. Bytes are ISO 8859-1. `\t`, `\n`, `\f`, `\r` and `\uXXXX` are
escapes, and any other character behind a `\` stands for itself.
Unlike Java, a lone backslash at the end of the file is no property without a name.
Source: OpenJDK 17, java.util.Properties, LineReader, load0 and loadConvert.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final, NamedTuple

_BLANKS: Final = " \t\f"
_LINE_END: Final = re.compile(r"\r\n|\r|\n")
_KEY: Final = re.compile(r"(?:[^\\=: \t\f]|\\.)*", re.DOTALL)
_SEPARATOR: Final = re.compile(r"[ \t\f]*[=:]?[ \t\f]*")
_ESCAPE: Final = re.compile(r"\\(u.{0,4}|.)", re.DOTALL)
_UNICODE: Final = re.compile(r"u[0-9A-Fa-f]{4}", re.ASCII)
_CONTROLS: Final = {"t": "\t", "n": "\n", "f": "\f", "r": "\r"}


class Property(NamedTuple):
    """A key and its value. `line` is the number of its first line, from 1."""

    key: str
    value: str
    line: int


class MalformedEscape(ValueError):
    """A `\\u` without four hex digits."""

    def __init__(self, line: int) -> None:
        super().__init__("\\u needs four hex digits; write \\\\ for a backslash")
        self.line = line


def parse_properties(content: bytes) -> Iterator[Property]:
    """Yield the properties in the order of their lines; a key may come repeatedly.

    Raises MalformedEscape.
    """
    for line, text in _logical_lines(content.decode("iso-8859-1")):
        key = _KEY.match(text)
        assert key is not None
        separator = _SEPARATOR.match(text, key.end())
        assert separator is not None
        try:
            yield Property(_unescaped(key[0]), _unescaped(text[separator.end() :]), line)
        except ValueError:
            raise MalformedEscape(line) from None


def _logical_lines(text: str) -> Iterator[tuple[int, str]]:
    """Yield the lines, continued ones joined, each with the number of its first line."""
    parts: list[str] = []  # of a line that is continued
    first = 0  # the number of its first line
    for number, line in enumerate(_LINE_END.split(text), 1):
        rest = line.lstrip(_BLANKS)
        if not any(parts):  # also after a line of one backslash
            parts, first = [], number
            if rest[:1] in ("", "#", "!"):
                continue
        is_continued = _is_continued(rest)
        parts.append(rest[:-1] if is_continued else rest)
        if not is_continued:
            yield first, "".join(parts)
            parts = []
    if any(parts):  # the last line ends with a backslash
        yield first, "".join(parts)


def _is_continued(line: str) -> bool:
    return (len(line) - len(line.rstrip("\\"))) % 2 == 1


def _unescaped(text: str) -> str:
    if "\\" not in text:
        return text
    found = _ESCAPE.sub(_character, text)
    # Java's strings are UTF-16: a character beyond U+FFFF is written as two escapes.
    return found.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "surrogatepass")


def _character(escape: re.Match[str]) -> str:
    body = escape[1]
    if body[0] != "u":
        return _CONTROLS.get(body, body)
    if not _UNICODE.fullmatch(body):
        raise ValueError(body)
    return chr(int(body[1:], 16))
