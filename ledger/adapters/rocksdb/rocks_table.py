"""The table port on RocksDB: without its write-ahead log, in little memory, flushed in a thread."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final, ParamSpec, TypeVar

from rocksdict import (
    BlockBasedOptions,
    Cache,
    DBCompressionType,
    Options,
    Rdict,
    RdictIter,
    ReadOptions,
    WriteBatch,
    WriteOptions,
)

_MEMTABLE_BYTES: Final = 8 * 1024 * 1024  # size of one memtable; at most two exist
_CACHE_BYTES: Final = 16 * 1024 * 1024

P = ParamSpec("P")
T = TypeVar("T")


class RocksTable:
    """One RocksDB table. Writes go to memory; after a crash a prefix of the `write` calls remains.

    RocksDB keeps the order: it flushes memtables oldest first, and a batch never spans two
    memtables. Its failures (a checksum, the disk) are raised as OSError.
    """

    def __init__(self, path: Path) -> None:
        self._db = _as_os_error(Rdict, str(path), _options())
        self._write_options = WriteOptions()
        # The type stub declares a method; the library has a property.
        setattr(self._write_options, "disable_wal", True)  # noqa: B010
        self._flusher = ThreadPoolExecutor(1, thread_name_prefix="table-flush")

    def get(self, key: bytes) -> bytes | None:
        return _as_os_error(self._db.get, key)

    def scan(self, first: bytes, end: bytes, limit: int) -> list[tuple[bytes, bytes]]:
        return _as_os_error(self._scan, first, end, limit)

    def scan_from(
        self, low: bytes, first: bytes, end: bytes, limit: int
    ) -> list[tuple[bytes, bytes]]:
        return _as_os_error(self._scan_from, low, first, end, limit)

    def last(self, first: bytes, end: bytes) -> tuple[bytes, bytes] | None:
        return _as_os_error(self._last, first, end)

    def write(
        self,
        puts: Iterable[tuple[bytes, bytes]],
        deletes: Sequence[bytes] = (),
        delete_ranges: Sequence[tuple[bytes, bytes]] = (),
    ) -> None:
        batch = WriteBatch(raw_mode=True)
        for first, end in delete_ranges:
            batch.delete_range(first, end)
        for key in deletes:
            batch.delete(key)
        for key, value in puts:
            batch.put(key, value)
        _as_os_error(self._db.write, batch, self._write_options)

    async def flush(self) -> None:
        loop = asyncio.get_running_loop()
        await loop.run_in_executor(self._flusher, _as_os_error, self._db.flush)

    def close(self) -> None:
        """Flush everything and release the directory."""
        self._flusher.shutdown(wait=True)
        _as_os_error(self._db.close)

    def _scan(self, first: bytes, end: bytes, limit: int) -> list[tuple[bytes, bytes]]:
        if limit <= 0 or first >= end:
            return []
        bound = ReadOptions()
        bound.set_iterate_upper_bound(end)
        rows = self._db.iter(bound)
        rows.seek(first)
        return _rows_of(rows, limit)

    def _scan_from(
        self, low: bytes, first: bytes, end: bytes, limit: int
    ) -> list[tuple[bytes, bytes]]:
        if limit <= 0 or low >= end:
            return []
        bound = ReadOptions()
        bound.set_iterate_upper_bound(end)
        rows = self._db.iter(bound)
        rows.seek_for_prev(min(first, end))
        if not rows.valid() or rows.key() < low:
            rows.status()
            rows.seek(low)
        return _rows_of(rows, limit)

    def _last(self, first: bytes, end: bytes) -> tuple[bytes, bytes] | None:
        if first >= end:
            return None
        bound = ReadOptions()
        bound.set_iterate_upper_bound(end)
        rows = self._db.iter(bound)
        rows.seek_to_last()
        if not rows.valid():
            rows.status()
            return None
        key = rows.key()  # RocksDB does not apply a lower bound in this direction
        return (key, rows.value()) if key >= first else None


def _rows_of(rows: RdictIter, limit: int) -> list[tuple[bytes, bytes]]:
    """Return up to `limit` rows from the place of the iterator on."""
    found: list[tuple[bytes, bytes]] = []
    while rows.valid():
        found.append((rows.key(), rows.value()))
        if len(found) == limit:
            return found
        rows.next()
    rows.status()
    return found


def _options() -> Options:
    """Return options for a small index: some hundred bytes for each MiB of log."""
    options = Options(raw_mode=True)
    options.create_if_missing(True)
    options.set_write_buffer_size(_MEMTABLE_BYTES)
    options.set_max_write_buffer_number(2)
    options.set_max_background_jobs(2)
    options.set_compression_type(DBCompressionType.lz4())
    options.set_keep_log_file_num(2)
    options.set_max_open_files(64)
    blocks = BlockBasedOptions()
    blocks.set_block_cache(Cache(_CACHE_BYTES))
    blocks.set_cache_index_and_filter_blocks(True)
    blocks.set_bloom_filter(10, False)
    options.set_block_based_table_factory(blocks)
    return options


def _as_os_error(call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    try:
        return call(*args, **kwargs)
    except Exception as error:  # the library raises bare Exceptions
        raise OSError(errno.EIO, f"index: {error}") from error
