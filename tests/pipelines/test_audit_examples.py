"""Goal: the example of an audit shows any record on one line, in the notation of all other output.

Method: starts of keys and values as Spark returns them.
"""

import pytest

from gateway.pipelines.audits.examples import preview


@pytest.mark.parametrize(
    ("start", "shown"),
    [
        ("Zürich 東京 😀", "Zürich 東京 😀"),
        ("a\x1b[2K\r\n", r"a\x1b[2K\r\n"),
        ("two\u2028lines", r"two\u2028lines"),
        ("\U000e0041", r"\U000e0041"),
    ],
)
def test_what_a_terminal_acts_on_is_escaped_and_other_text_is_not(start, shown):
    data = bytearray(start.encode())
    assert preview(data, len(data)) == shown


def test_bytes_that_are_no_text_and_the_length_of_a_long_value_are_shown():
    assert preview(bytearray(b"ab\xff"), 3) == r"ab\xff"
    assert preview(bytearray(b"ab"), 700) == "ab... (700 bytes)"
    assert preview(None, None) is None
