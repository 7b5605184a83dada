"""Goal: each line of the log is written whole, also while other threads log or the disk is full.
It shows characters that a terminal would act on as escapes.

Method: the logger on a stderr that the test keeps.
"""

import sys

import pytest

from ledger.log import logger


class Stderr:
    """Keeps each piece that it is given, and raises an error, as on a full disk."""

    def __init__(self, error=None):
        self.pieces = []
        self.error = error

    def write(self, text):
        self.pieces.append(text)
        if self.error is not None:
            raise self.error

    def flush(self):
        if self.error is not None:
            raise self.error


def test_a_line_is_written_in_one_piece(monkeypatch):
    """Otherwise lines of two threads mix, and a process that ends between two pieces keeps half."""
    stderr = Stderr()
    monkeypatch.setattr(sys, "stderr", stderr)
    logger().warning("a test", number=1)
    (line,) = stderr.pieces
    assert line.endswith('level=warning event="a test" number=1\n')


def test_a_full_stderr_drops_the_line(monkeypatch):
    stderr = Stderr(OSError(28, "No space left on device"))
    monkeypatch.setattr(sys, "stderr", stderr)
    logger().warning("a test")  # and no error reaches the caller
    assert len(stderr.pieces) == 1


@pytest.mark.parametrize(
    "character", ["\n", "\r", "\x07", "\x1b", "\x7f", "\x85", "\u2028", "\u202e"]
)
def test_no_character_of_a_value_begins_a_line_or_reaches_the_terminal(monkeypatch, character):
    stderr = Stderr()
    monkeypatch.setattr(sys, "stderr", stderr)
    logger().warning("a test", client=f"a{character}level=critical", shown="zażółć 東京")
    (line,) = stderr.pieces
    assert line[:-1].isprintable()
    assert "level=critical" in line
    assert line.endswith('shown="zażółć 東京"\n')
