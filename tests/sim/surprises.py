"""A port whose next call of a given method raises an exception that nobody planned.

A swarm draws such exceptions by seed; `is_surprise` knows them again in what they lead to.
"""

from __future__ import annotations

from random import Random
from typing import Any

SURPRISE = "a surprise"
DISK_CALLS = (
    "write",
    "sync",
    "create",
    "open",
    "read",
    "read_now",
    "unlink",
    "sync_directory",
    "preallocate",
    "truncate",
    "names",
    "free_bytes",
)
TABLE_CALLS = ("get", "scan", "last", "write", "flush")


def surprise(draw: Random) -> Exception:
    """Return an exception that no caller expects of a port."""
    return draw.choice([MemoryError, RuntimeError, TypeError])(SURPRISE)


def is_surprise(error: BaseException | None) -> bool:
    """True if a surprise is this error or led to it."""
    while error is not None:
        if error.args == (SURPRISE,):
            return True
        error = error.__cause__ or error.__context__
    return False


class Surprising:
    """An adapter behind this port works as before, but `planted[method]` is raised once.

    What `create` and `open` of a disk return shares the plants.
    """

    def __init__(self, adapter: Any, planted: dict[str, Exception] | None = None) -> None:
        self.adapter = adapter
        self.planted: dict[str, Exception] = {} if planted is None else planted

    def __getattr__(self, name: str) -> Any:
        error = self.planted.pop(name, None)
        if error is not None:
            return _raising(error)
        return getattr(self.adapter, name)


class SurprisingDisk(Surprising):
    """A disk with its files: methods of both can be planted."""

    def create(self, name: str, expected_bytes: int = 0) -> Surprising:
        if (error := self.planted.pop("create", None)) is not None:
            raise error
        return Surprising(self.adapter.create(name, expected_bytes), self.planted)

    def open(self, name: str) -> Surprising:
        return Surprising(self.adapter.open(name), self.planted)


def _raising(error: Exception) -> Any:
    def call(*_: object, **__: object) -> None:
        raise error

    return call
