"""The entries of the newest groups of a bookie, in memory within a bound. BookKeeper's write cache.

    put (durable) ─▶ found ─▶ evicted with its group │ dropped with its ledger

An entry is put once its group is durable, so nothing else is ever found. A body is a view of the
message that brought it and keeps all of that message in memory, so whole messages are counted. What
an entry takes beside its message is counted too: of small entries it is most.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Sequence
from typing import Final

from ledger.bookie.config import READ_ENTRIES_MAX
from ledger.ids import Buffer, pinned_bytes

_SPARSE: Final = 2
"""Bodies that are a smaller part of their messages than 1 / this are copied when they are read.

Otherwise the answers of a slow client would keep messages in memory that the cache has evicted. An
answer counts its bodies only, so it keeps at most twice the bytes that it counts.
"""
ENTRY_BYTES: Final = 512
"""The approximate memory of an entry beside its message: its view, tuples and place."""

Body = tuple[Buffer, ...]


class WriteCache:
    """The newest durable entries of all ledgers. Evicts the oldest group first."""

    __slots__ = ("_group", "_groups", "_ledgers", "bytes_held", "bytes_max", "hits", "misses")

    def __init__(self, bytes_max: int) -> None:
        self.bytes_max = bytes_max
        # Bytes of all messages with a cached entry, and `ENTRY_BYTES` for each entry; a message in
        # two groups counts twice. At most `bytes_max` after each `end_group`.
        self.bytes_held = 0
        # Bodies by ledger and entry. No ledger is without entries.
        self._ledgers: dict[int, dict[int, Body]] = {}
        # The entries of each group and its bytes, oldest first. An entry that was dropped or
        # replaced has another body in `_ledgers`, or none.
        self._groups: deque[tuple[list[tuple[int, int, Body]], int]] = deque()
        # The entries of the group that is being put. Empty after `end_group`.
        self._group: list[tuple[int, int, Body]] = []
        # Reads that found their first entry here, and those that did not. Only rise.
        self.hits = 0
        self.misses = 0

    def put(self, ledger: int, entry: int, body: Sequence[Buffer]) -> None:
        """Add an entry that is durable, in the order of the log. Replaces what it had before."""
        kept = tuple(body)
        entries = self._ledgers.get(ledger)
        if entries is None:
            entries = self._ledgers[ledger] = {}
        entries[entry] = kept
        self._group.append((ledger, entry, kept))

    def end_group(self) -> None:
        """End the group of the entries that were put, and evict the oldest groups."""
        if self._group:
            size = _size_of_group(self._group)
            self._groups.append((self._group, size))
            self.bytes_held += size
            self._group = []
        while self.bytes_held > self.bytes_max:
            self._evict(*self._groups.popleft())

    def _evict(self, group: list[tuple[int, int, Body]], size: int) -> None:
        self.bytes_held -= size
        for ledger, entry, body in group:
            entries = self._ledgers.get(ledger)
            if entries is not None and entries.get(entry) is body:
                del entries[entry]
                if not entries:
                    del self._ledgers[ledger]

    def drop(self, ledgers: Collection[int]) -> None:
        """Forget ledgers that were deleted."""
        gone = {ledger for ledger in ledgers if self._ledgers.pop(ledger, None) is not None}
        if not gone:
            return
        for at, (group, size) in enumerate(self._groups):
            kept = [each for each in group if each[0] not in gone]
            if len(kept) != len(group):
                left = _size_of_group(kept)
                self._groups[at] = kept, left
                self.bytes_held += left - size

    def forget(self, ledger: int, entry: int) -> None:
        """Forget one entry. Its bytes count until its group is evicted."""
        entries = self._ledgers.get(ledger)
        if entries is not None and entries.pop(entry, None) is not None and not entries:
            del self._ledgers[ledger]

    def measure(self, ledger: int, first: int, last: int, bytes_max: int) -> int:
        """Return the bytes of what `find` would return, 0 if nothing. Counts a hit or a miss."""
        entries = self._ledgers.get(ledger)
        if entries is None or first not in entries:
            self.misses += 1
            return 0
        self.hits += 1
        size = 0
        for entry in range(first, _last_of(first, last) + 1):
            if (body := entries.get(entry)) is None:
                break
            length = len(body[0]) if len(body) == 1 else sum(map(len, body))
            if size and size + length > bytes_max:
                break
            size += length
        return size

    def find(self, ledger: int, first: int, last: int, bytes_max: int) -> list[Buffer]:
        """Return consecutive entries from `first` on: at least one, if it is here, in `bytes_max`.

        Ends before an entry that is not here, and after `READ_ENTRIES_MAX` entries.
        """
        entries = self._ledgers.get(ledger)
        if entries is None or first not in entries:
            return []
        found: list[Buffer] = []
        left = bytes_max
        for entry in range(first, _last_of(first, last) + 1):
            if (body := entries.get(entry)) is None:
                break
            whole = body[0] if len(body) == 1 else b"".join(body)
            left -= len(whole)
            if left < 0 and found:
                break
            found.append(whole)
        return _copied_if_sparse(found)


def _last_of(first: int, last: int) -> int:
    """Return the last entry that an answer from `first` on may have."""
    return min(last, first + READ_ENTRIES_MAX - 1)


def _size_of_group(group: list[tuple[int, int, Body]]) -> int:
    """Return the bytes that the entries of a group keep in memory, with their messages."""
    return pinned_bytes(part for _, _, body in group for part in body) + ENTRY_BYTES * len(group)


def _copied_if_sparse(bodies: list[Buffer]) -> list[Buffer]:
    if sum(map(len, bodies)) * _SPARSE >= pinned_bytes(bodies):
        return bodies
    return [bytes(body) for body in bodies]
