"""Whether a file with a secret can be read by users who should not. All programs ask it here."""

from __future__ import annotations

import stat
from typing import Final

OTHERS_READ: Final = "other users can read it; run chmod 600"
"""The fault of such a file."""

_OTHERS: Final = stat.S_IRWXG | stat.S_IRWXO
_BESIDE_GROUP: Final = stat.S_IROTH | stat.S_IWOTH


def others_read(mode: int, *, group_may: bool = False) -> bool:
    """Return whether users beside the owner have a right to a file of this mode.

    With `group_may` its group may read and write it: keys of bookies belong to a group of services.
    """
    return bool(mode & (_BESIDE_GROUP if group_may else _OTHERS))
