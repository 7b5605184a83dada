"""Rows with the version of their last change, so that a reader asks only for what changed. Pure.

A version counts the changes of one table. Deletions are changes too: the newest of them are kept,
and a reader that missed older ones starts over.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Hashable
from typing import Final, Generic, NamedTuple, TypeVar

Key = TypeVar("Key", bound=Hashable)
Row = TypeVar("Row")

GONE_MAX: Final = 20_000
"""Deletions that are kept."""
_SPARE: Final = 1_000


class Changes(NamedTuple, Generic[Key, Row]):
    """What changed behind a version, oldest first."""

    rows: list[Row]
    gone: list[Key]
    version: int  # to ask with next
    more: bool  # True: ask again at once
    whole: bool  # True: forget all rows that were read before


class VersionedRows(Generic[Key, Row]):
    """A table of rows by key. A row that is put again unchanged keeps its version."""

    def __init__(self) -> None:
        self.version = 0
        # The rows, and the version of the last change of each key, deleted ones included.
        self.rows: dict[Key, Row] = {}
        self._changed: dict[Key, int] = {}
        # Every change in order, as versions and keys. Those that were overtaken by a later change
        # of the same key are removed from time to time.
        self._versions: list[int] = []
        self._keys: list[Key] = []
        # Readers at an older version than this missed a deletion.
        self._complete_from = 0

    def __len__(self) -> int:
        return len(self.rows)

    def put(self, key: Key, row: Row) -> None:
        """Add or replace a row."""
        if self.rows.get(key) != row:
            self.rows[key] = row
            self._note(key)

    def drop(self, key: Key) -> None:
        """Delete a row, if there is one."""
        if self.rows.pop(key, None) is not None:
            self._note(key)

    def _note(self, key: Key) -> None:
        self.version += 1
        self._changed[key] = self.version
        self._versions.append(self.version)
        self._keys.append(key)
        if len(self._keys) > 2 * len(self._changed) + _SPARE:
            self._compact()
        if len(self._changed) > len(self.rows) + GONE_MAX:
            self._forget_deletions()

    def _compact(self) -> None:
        changed = self._changed
        kept = [
            (version, key)
            for version, key in zip(self._versions, self._keys, strict=True)
            if changed.get(key) == version
        ]
        self._versions = [version for version, _ in kept]
        self._keys = [key for _, key in kept]

    def _forget_deletions(self) -> None:
        gone = [key for key in self._changed if key not in self.rows]
        self._complete_from = max(self._changed[key] for key in gone)
        for key in gone:
            del self._changed[key]
        self._compact()

    def changes(
        self, after: int, size_of: Callable[[Row], int], bytes_max: int
    ) -> Changes[Key, Row]:
        """Return what changed behind `after`, up to `bytes_max` bytes and at least one change.

        `after` 0 returns all rows. A reader that missed deletions, or has a version that was not
        reached yet, gets all rows and `whole`.
        """
        whole = after <= 0 or after < self._complete_from or after > self.version
        at = 0 if whole else bisect_right(self._versions, after)
        rows: list[Row] = []
        gone: list[Key] = []
        room = bytes_max
        while at < len(self._keys) and room > 0:
            key, version = self._keys[at], self._versions[at]
            at += 1
            if self._changed.get(key) != version:
                continue
            row = self.rows.get(key)
            if row is not None:
                size = size_of(row)
                if rows and size > room:
                    at -= 1
                    break
                rows.append(row)
                room -= size
            elif not whole:
                gone.append(key)
                room -= 1 + len(repr(key))
        more = at < len(self._keys)
        version = self._versions[at - 1] if more else self.version
        return Changes(rows, gone, version, more, whole)
