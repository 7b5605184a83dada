"""The port to an ordered table of byte keys. `RocksTable` implements it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol


class Table(Protocol):
    """A table ordered by key bytes, with one writer. Writes are not durable until `flush`."""

    def get(self, key: bytes) -> bytes | None: ...

    def scan(self, first: bytes, end: bytes, limit: int) -> list[tuple[bytes, bytes]]:
        """Return up to `limit` pairs with first <= key < end, in ascending order."""
        ...

    def scan_from(
        self, low: bytes, first: bytes, end: bytes, limit: int
    ) -> list[tuple[bytes, bytes]]:
        """Scan as `scan`, but from the greatest key in low <= key <= first on, if it exists."""
        ...

    def last(self, first: bytes, end: bytes) -> tuple[bytes, bytes] | None:
        """Return the pair with the greatest key in first <= key < end, or None."""
        ...

    def write(
        self,
        puts: Iterable[tuple[bytes, bytes]],
        deletes: Sequence[bytes] = (),
        delete_ranges: Sequence[tuple[bytes, bytes]] = (),
    ) -> None:
        """Apply all changes atomically. Readers see all of them or none, also after a crash.

        The order inside one call is: ranges (first <= key < end), deletes, puts.
        """
        ...

    async def flush(self) -> None:
        """Make everything written before this call durable."""
        ...

    def close(self) -> None: ...
