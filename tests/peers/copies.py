"""Copies of directories in which a process is at work."""

from __future__ import annotations

import shutil
from pathlib import Path

_TRIES = 20


def copy_at_work(data: Path, copy: Path) -> None:
    """Copy a directory. A file may be removed between the listing and its copy: copy all again."""
    for left in reversed(range(_TRIES)):
        try:
            shutil.copytree(data, copy)
            return
        except (shutil.Error, FileNotFoundError):
            if not left:
                raise
            shutil.rmtree(copy, ignore_errors=True)
