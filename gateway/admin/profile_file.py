"""Writes the file of profiles: one writer at a time, whole or not at all, comments kept."""

from __future__ import annotations

import fcntl
import os
import tempfile
import tomllib
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import tomlkit
from tomlkit.exceptions import TOMLKitError

from gateway.admin.profiles import BYTES_MAX, ProfileFault, ProfileFile, load, parse, read
from ledger.command_line import units

Edit = Callable[[Any], None]
"""Changes the tables of the file, as they are in a plain dict or in a document of tomlkit."""


def change(path: Path, edit: Edit) -> ProfileFile:
    """Apply the edit to the file, which may not exist yet. Returns the profiles afterwards.

    Raises ProfileFault if the file is not valid, before or after, and OSError if it cannot be
    written. An exception of the edit leaves the file as it is.
    """
    with locked(path) as target:
        load(target)
        text = text_of(target)
        tables = tomllib.loads(text)
        edit(tables)
        edited = _edited(target, text, edit)
        if tomllib.loads(edited) != tables:
            raise ProfileFault(_by_hand(target))
        found = parse(target, edited)
        install(target, edited)
        return found


def _edited(path: Path, text: str, edit: Edit) -> str:
    try:
        document = tomlkit.parse(text)
        edit(document)
        return tomlkit.dumps(document).rstrip("\n") + "\n"
    except TOMLKitError:
        raise ProfileFault(_by_hand(path)) from None


def _by_hand(path: Path) -> str:
    return f"{path}: this form of TOML cannot be changed by a command; use `gateway profile edit`"


def text_of(path: Path) -> str:
    """Return the text of the file, or nothing if it does not exist. Raises ProfileFault."""
    return read(path)[0] if path.exists() else ""


@contextmanager
def locked(path: Path) -> Generator[Path]:
    """Wait until no other process changes the file. Yields its path without symbolic links."""
    target = path.resolve()
    _make_directory(target.parent)
    number = os.open(f"{target}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(number, fcntl.LOCK_EX)
        yield target
    finally:
        os.close(number)


def _make_directory(path: Path) -> None:
    """Make a directory and those above it, for this user only."""
    if not path.is_dir():
        _make_directory(path.parent)
        with suppress(FileExistsError):
            path.mkdir(0o700)


def install(path: Path, text: str) -> None:
    """Replace the file by one with this text and mode 0600. After a crash it is old or new.

    Raises ProfileFault if the text is too long, and OSError.
    """
    data = text.encode()
    if len(data) > BYTES_MAX:
        raise ProfileFault(f"{path}: would have more than {units.show_size(BYTES_MAX)}")
    number, name = tempfile.mkstemp(dir=path.parent, prefix=".config-", suffix=".toml")
    temporary = Path(name)
    try:
        with open(number, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(number)
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    number = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(number)
    finally:
        os.close(number)
