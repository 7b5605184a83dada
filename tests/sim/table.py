"""The table port in memory. A crash keeps a prefix of the write() calls, each whole or not at all,
and at least those before the last flush.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_left, insort
from collections.abc import Iterable, Sequence
from random import Random

_Write = tuple[list[tuple[bytes, bytes]], list[bytes], list[tuple[bytes, bytes]]]


class _Rows:
    """Ordered rows: a dict and its sorted keys."""

    def __init__(self, rows: dict[bytes, bytes] | None = None) -> None:
        self.values = dict(rows or {})
        self.keys = sorted(self.values)

    def apply(self, write: _Write) -> None:
        puts, deletes, ranges = write
        for first, end in ranges:
            low, high = bisect_left(self.keys, first), bisect_left(self.keys, end)
            for key in self.keys[low:high]:
                del self.values[key]
            del self.keys[low:high]
        for key in deletes:
            if self.values.pop(key, None) is not None:
                del self.keys[bisect_left(self.keys, key)]
        for key, value in puts:
            if key not in self.values:
                insort(self.keys, key)
            self.values[key] = value


class SimTable:
    """One table of one simulated machine. After `crash` only the returned table is alive."""

    def __init__(self, random: Random, *, flush_s_max: float = 0.01) -> None:
        self._random = random
        self.flush_s_max = flush_s_max
        self._rows = _Rows()
        self._durable = _Rows()
        self._unflushed: list[_Write] = []
        self.alive = True

    def get(self, key: bytes) -> bytes | None:
        return self._rows.values.get(key)

    def scan(self, first: bytes, end: bytes, limit: int) -> list[tuple[bytes, bytes]]:
        keys = self._rows.keys
        low, high = bisect_left(keys, first), bisect_left(keys, end)
        return [(key, self._rows.values[key]) for key in keys[low : min(high, low + max(0, limit))]]

    def scan_from(
        self, low: bytes, first: bytes, end: bytes, limit: int
    ) -> list[tuple[bytes, bytes]]:
        before = self.last(low, min(first + b"\0", end))
        return self.scan(before[0] if before is not None else low, end, limit)

    def last(self, first: bytes, end: bytes) -> tuple[bytes, bytes] | None:
        keys = self._rows.keys
        at = bisect_left(keys, end) - 1
        return (keys[at], self._rows.values[keys[at]]) if at >= 0 and keys[at] >= first else None

    def write(
        self,
        puts: Iterable[tuple[bytes, bytes]],
        deletes: Sequence[bytes] = (),
        delete_ranges: Sequence[tuple[bytes, bytes]] = (),
    ) -> None:
        if not self.alive:
            return
        write = (list(puts), list(deletes), list(delete_ranges))
        self._rows.apply(write)
        self._unflushed.append(write)

    async def flush(self) -> None:
        covered = len(self._unflushed)
        delay_s = self._random.random() * self.flush_s_max
        if delay_s > 0:
            await asyncio.sleep(delay_s)
        if not self.alive:
            await asyncio.get_running_loop().create_future()  # its caller died with the machine
        covered = min(covered, len(self._unflushed))
        for write in self._unflushed[:covered]:
            self._durable.apply(write)
        del self._unflushed[:covered]

    def close(self) -> None:
        pass

    def copy(self) -> SimTable:
        """What a copy holds, made now and kept safe."""
        after = SimTable(self._random, flush_s_max=self.flush_s_max)
        after._rows, after._durable = _Rows(self._rows.values), _Rows(self._rows.values)
        return after

    def crash(self) -> SimTable:
        """The power is cut: what survived, as the next boot finds it."""
        self.alive = False
        after = SimTable(self._random, flush_s_max=self.flush_s_max)
        after._durable = _Rows(self._durable.values)
        for write in self._unflushed[: self._random.randint(0, len(self._unflushed))]:
            after._durable.apply(write)
        after._rows = _Rows(after._durable.values)
        return after
