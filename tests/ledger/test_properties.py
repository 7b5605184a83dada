"""Goal: a properties file is read as Java reads it, and each fault has its line.

Method: random bytes of the characters on which the format acts, read by java.util.Properties in one
process and by our parser; texts written with Java's escapes by Hypothesis; a table of examples.
"""

from __future__ import annotations

import io
import random
import struct
import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ledger.command_line.properties import MalformedEscape, Property, parse_properties
from tests.peers import install

SOURCE = Path(install.__file__).with_name("LoadProperties.java")
FILES = 8_000
PIECES = [
    *(" ", "\t", "\f", "\n", "\r", "\r\n", "\\", "\\\n", "\\\r\n", "\\\\", "#", "!", "=", ":"),
    *("a", "b", "u", "t", "\\u0041", "\\u00e9", "\\ud83d\\ude00", "\\ud83d", "\\u00g1", "\\u1"),
    *("\xe9", "\xff", "\x00", "\x0b", "\x85", "\xa0", "\x1c"),
]


def of_java(files: list[bytes]) -> list[list[str] | None]:
    """The keys and values in turn that Java reads from each file; None if it refuses it."""
    content = b"".join(struct.pack(">i", len(each)) + each for each in files)
    argv = [install.java(), "-cp", install.compiled(SOURCE, []), "LoadProperties"]
    done = subprocess.run(
        argv, input=struct.pack(">i", len(files)) + content, capture_output=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    answer = io.BytesIO(done.stdout)

    def number() -> int:
        (found,) = struct.unpack(">i", answer.read(4))
        return found

    def text() -> str:
        return answer.read(2 * number()).decode("utf-16-be", "surrogatepass")

    counts = (number() for _ in files)
    return [None if count < 0 else [text() for _ in range(count)] for count in counts]


def of_ours(content: bytes) -> list[str] | None:
    try:
        return [word for each in parse_properties(content) for word in (each.key, each.value)]
    except MalformedEscape:
        return None


def without_nameless(texts: list[str] | None) -> list[tuple[str, str]] | None:
    """Drop properties without name and value: we have none for a backslash at the end."""
    if texts is None:
        return None
    pairs = zip(texts[::2], texts[1::2], strict=True)
    return [pair for pair in pairs if pair != ("", "")]


def test_random_files_are_read_as_java_reads_them():
    draw = random.Random(17)
    files = [
        "".join(draw.choices(PIECES, k=draw.randrange(1, 16))).encode("iso-8859-1")
        for _ in range(FILES)
    ]
    answers = of_java(files)
    assert sum(each is None for each in answers) > FILES // 100
    for content, answer in zip(files, answers, strict=True):
        assert without_nameless(of_ours(content)) == without_nameless(answer), content


def escaped(text: str) -> str:
    """The text with every character as Java writes it when it must be escaped."""
    data = text.encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{data[at : at + 2].hex()}" for at in range(0, len(data), 2))


@given(st.lists(st.tuples(st.text(min_size=1), st.text())), st.sampled_from(["\n", "\r", "\r\n"]))
def test_every_text_can_be_written_in_escapes(pairs, end):
    lines = [f"{escaped(key)}={escaped(value)}{end}" for key, value in pairs]
    found = list(parse_properties("".join(lines).encode()))
    assert found == [Property(*pair, line) for line, pair in enumerate(pairs, 1)]


@pytest.mark.parametrize(
    ("content", "found"),
    [
        ("", []),
        ("\n# a=b\n  ! c\n\n", []),
        ("a=b", [("a", "b", 1)]),
        ("a = b c ", [("a", "b c ", 1)]),
        ("a:b=c", [("a", "b=c", 1)]),
        ("a b", [("a", "b", 1)]),
        ("a\t=\t= b", [("a", "= b", 1)]),
        ("a", [("a", "", 1)]),
        ("=b", [("", "b", 1)]),
        ("\n\n  a\\=b\\:\\ c=d", [("a=b: c", "d", 3)]),
        ("a=1,\\\n   2,\\\n   # 3\nb=4", [("a", "1,2,# 3", 1), ("b", "4", 4)]),
        ("a=b\\\\\nc=d", [("a", "b\\", 1), ("c", "d", 2)]),
        ("# a\\\nb=c", [("b", "c", 2)]),
        ("a=\\t\\n\\x\\u0041", [("a", "\t\nxA", 1)]),
        ("a=\\ud83d\\ude00", [("a", "\U0001f600", 1)]),
        ("\\\n\\\na=b", [("a", "b", 3)]),
        ("a=b\\", [("a", "b", 1)]),
        ("a=\xe9", [("a", "\xe9", 1)]),
    ],
)
def test_examples(content, found):
    assert list(parse_properties(content.encode("iso-8859-1"))) == [Property(*row) for row in found]


def test_an_escape_without_four_digits_is_refused_with_its_line():
    with pytest.raises(MalformedEscape, match="four hex digits") as caught:
        list(parse_properties(b"a=b\\\n c\nd=\\u12"))
    assert caught.value.line == 3


def test_a_file_of_one_mebibyte_of_backslashes_is_read():
    (found,) = parse_properties(b"a=" + b"\\" * (1024 * 1024))
    assert len(found.value) == 512 * 1024
