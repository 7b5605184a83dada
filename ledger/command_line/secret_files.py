"""Files with secrets: only their owner may read them. All programs read or check them here.

A symbolic link is followed, and its target is checked: the mode is that of the opened file.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import Final

OTHERS_READ: Final = "other users can read it; run chmod 600"
"""The fault of such a file."""

BYTES_MAX: Final = 1024 * 1024

_OTHERS: Final = stat.S_IRWXG | stat.S_IRWXO


class SecretFault(Exception):
    """A value that cannot be read: a line that names the fix, and never the value."""


def others_read(mode: int) -> bool:
    """Return whether users beside the owner have a right to a file of this mode."""
    return bool(mode & _OTHERS)


def read_private(file: Path) -> bytes:
    """Return the content of a file that only its owner may read. Raises SecretFault."""
    return _read(file, is_private=True)


def read_public(file: Path) -> bytes:
    """Return the content of a file without secrets. Raises SecretFault."""
    return _read(file, is_private=False)


def _read(file: Path, *, is_private: bool) -> bytes:
    try:
        # A named pipe without a writer would block; it is refused below.
        number = os.open(file, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        with os.fdopen(number, "rb") as opened:
            mode = os.fstat(number).st_mode
            if not stat.S_ISREG(mode):
                raise SecretFault(f"{file}: is no file")
            if is_private and others_read(mode):
                raise SecretFault(f"{file}: {OTHERS_READ} {file}")
            content = opened.read(BYTES_MAX + 1)
    except OSError as error:
        raise SecretFault(f"{file}: {error.strerror}") from None
    except ValueError:  # a NUL in the path
        raise SecretFault(f"{str(file)!r}: is no path") from None
    if len(content) > BYTES_MAX:
        raise SecretFault(f"{file}: is longer than 1 MiB")
    return content
