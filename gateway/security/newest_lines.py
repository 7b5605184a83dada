"""The newest lines of the audit log, kept in memory for the web page."""

from __future__ import annotations

from collections import deque
from itertools import islice
from typing import Final

from gateway.access import NotedLine

LINES_MAX: Final = 500
BYTES_MAX: Final = 1024 * 1024
"""Lines that are kept, and their bytes: clients may choose texts of 20 KiB a line."""


class NewestLines:
    """A ring of lines, bounded by their number and by their bytes together."""

    def __init__(self) -> None:
        # The lines that are kept, oldest first. Never more than the bounds allow.
        self._lines: deque[bytes] = deque()
        self._bytes = 0  # in `_lines`
        # The number of the oldest line in `_lines`. The first line of a process has number 0.
        self._first = 0

    def __len__(self) -> int:
        return len(self._lines)

    def add(self, line: bytes) -> None:
        """Keep one more line, and drop the oldest ones that are too many."""
        self._lines.append(line)
        self._bytes += len(line)
        while len(self._lines) > LINES_MAX or self._bytes > BYTES_MAX:
            self._bytes -= len(self._lines.popleft())
            self._first += 1

    def before(self, number: int | None) -> list[NotedLine]:
        """Return the lines that are kept below this number, or all, newest first."""
        count = len(self._lines)
        if number is not None:
            count = min(count, max(0, number - self._first))
        found = [
            NotedLine(at, line) for at, line in enumerate(islice(self._lines, count), self._first)
        ]
        return found[::-1]
