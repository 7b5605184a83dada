"""The partitions of one Fetch that are read before their turn in the response.

    start, put ─▶ take, in the order of the response │ cancelled at the end of the pass

The response has room for all of them, so that what is read is also sent.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from types import TracebackType
from typing import Any, Final, Self

from ledger.errors import LedgerError
from ledger.streams.tail_cache import StoredRecord
from ledger.tasks import start_once

READS_MAX: Final = 16
"""Most partitions of one fetch that are read at the same time, beside the one whose turn it is."""

PartitionRecords = tuple[list[StoredRecord], int]
"""Records of a partition, and the offset at which its reader ends."""


class ReadsAhead:
    """The reads of one pass. Those that nobody took are cancelled at its end."""

    __slots__ = ("_reads", "bytes_max")

    def __init__(self) -> None:
        # The reads that nobody has taken, each with its bytes at most. What memory had is no task.
        self._reads: dict[object, tuple[asyncio.Task[PartitionRecords] | PartitionRecords, int]]
        self._reads = {}
        # The sum of these bytes.
        self.bytes_max = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        for read, _ in self._reads.values():
            if isinstance(read, asyncio.Task):
                read.cancel()
        self._reads.clear()

    @property
    def full(self) -> bool:
        return len(self._reads) >= READS_MAX

    def start(
        self, key: object, work: Coroutine[Any, Any, PartitionRecords], bytes_max: int
    ) -> None:
        """Begin a read of about `bytes_max` bytes."""
        read = start_once("a read of one partition of a fetch", work, expected=LedgerError)
        self._reads[key] = read, bytes_max
        self.bytes_max += bytes_max

    def put(self, key: object, records: PartitionRecords, bytes_max: int) -> None:
        """Keep records that memory had."""
        self._reads[key] = records, bytes_max
        self.bytes_max += bytes_max

    async def take(self, key: object) -> PartitionRecords | None:
        """Return the records of a read, once it has ended, or None if it was not begun.

        Raises the LedgerError of the read.
        """
        read, bytes_max = self._reads.pop(key, (None, 0))
        self.bytes_max -= bytes_max
        if not isinstance(read, asyncio.Task):
            return read
        try:
            return await read
        finally:
            read.cancel()


def within(records: list[StoredRecord], bytes_max: int) -> list[StoredRecord]:
    """Return the first record, and those behind it that fit into `bytes_max` bytes with it."""
    size = 0
    for at, record in enumerate(records):
        size += record.size_bytes
        if at and size > bytes_max:
            return records[:at]
    return records
