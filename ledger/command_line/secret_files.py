"""Whether a file with a secret can be read by users who should not. All programs ask it here."""

from __future__ import annotations

import stat
from typing import Final

OTHERS_READ: Final = "other users can read it; run chmod 600"
"""The fault of such a file."""

_OTHERS: Final = stat.S_IRWXG | stat.S_IRWXO


def others_read(mode: int) -> bool:
    """Return whether users beside the owner have a right to a file of this mode."""
    return bool(mode & _OTHERS)
