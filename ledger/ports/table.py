"""The port to an ordered table of byte keys. `rocks_table` is the real one."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol


class Table(Protocol):
    """Ordered by key bytes. Written by one owner. Not durable until `flush`."""

    def get(self, key: bytes) -> bytes | None: ...

    def scan(self, first: bytes, end: bytes, limit: int) -> list[tuple[bytes, bytes]]:
        """At most `limit` pairs with first <= key < end, ascending."""
        ...

    def last(self, first: bytes, end: bytes) -> tuple[bytes, bytes] | None:
        """The pair with the greatest key in first <= key < end."""
        ...

    def write(
        self,
        puts: Iterable[tuple[bytes, bytes]],
        deletes: Sequence[bytes] = (),
        delete_ranges: Sequence[tuple[bytes, bytes]] = (),
    ) -> None:
        """All of it or nothing is visible, and after a crash all of it or nothing is there.

        Order inside one call: ranges (first <= key < end), deletes, puts.
        """
        ...

    async def flush(self) -> None:
        """Everything written before the call is durable."""
        ...

    def close(self) -> None: ...
