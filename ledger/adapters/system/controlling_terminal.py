"""Whether the terminal from which a process was started is still there."""

from __future__ import annotations

import os
from typing import Final

_TERMINAL: Final = "/dev/tty"


class Terminal:
    """The controlling terminal of this process, if it has one now."""

    def __init__(self) -> None:
        self._was_there = _is_there()

    def is_gone(self) -> bool:
        """Return whether there was a terminal, and it was closed since."""
        return self._was_there and not _is_there()


def _is_there() -> bool:
    try:
        os.close(os.open(_TERMINAL, os.O_RDWR | os.O_NOCTTY))
    except OSError:
        return False
    return True
