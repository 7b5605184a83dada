"""The version of the product: `--version` prints it, and the package is built from it."""

from __future__ import annotations

import platform
from pathlib import Path
from typing import Final

__version__ = "0.1.0"

_BUILT: Final = Path(__file__).with_name("COMMIT")
"""The commit that a wheel was built from. The build writes it; a source tree has none."""

COMMIT_DIGITS: Final = 12


def describe() -> str:
    """Return the version with its commit and the interpreter, as `--version` prints it."""
    return f"{__version__} (commit {_commit()}, Python {platform.python_version()})"


def _commit() -> str:
    try:
        return _BUILT.read_text().strip()
    except OSError:
        return commit_of(Path(__file__).parents[2]) or "unknown"


def commit_of(tree: Path) -> str | None:
    """Return the commit that a working tree has checked out, or None if it has no `.git`.

    Git's files are read without git: a start of git would take longer than the command itself.
    Source: gitrepository-layout(5).
    """
    try:
        place = _git_directory(tree / ".git")
        head = (place / "HEAD").read_text().strip()
        commit = _resolve(place, head[5:]) if head.startswith("ref: ") else head
    except OSError:
        return None
    return commit[:COMMIT_DIGITS] or None


def _git_directory(place: Path) -> Path:
    """Return the directory of the repository; a linked working tree has a file that names it."""
    if place.is_dir():
        return place
    return place.parent / place.read_text().removeprefix("gitdir: ").strip()


def _resolve(place: Path, name: str) -> str:
    """Return the commit of a branch, from its file or from those that were packed."""
    shared = place / "commondir"
    common = place / shared.read_text().strip() if shared.exists() else place
    loose = common / name
    if loose.exists():
        return loose.read_text().strip()
    packed = (common / "packed-refs").read_text().splitlines()
    return next((line[:40] for line in packed if line[41:] == name), "")
