"""The data files of a Parquet archive, and the list of them that belongs to a checkpoint.

A list is stored as compressed lines of JSON, one per file. It is written and read in pieces, so it
never takes more memory than the files themselves. Layout: docs/formats/archive.md.
"""

from __future__ import annotations

import json
import sys
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import NamedTuple

from gateway.pipelines.archives.sums import RecordSum
from gateway.pipelines.shared.partitions import TopicPartition

_BYTES_AT_ONCE = 64 * 1024
_GZIP = 16 + zlib.MAX_WBITS


class DataFile(NamedTuple):
    """One Parquet file. `path` is relative to the archive. Times are milliseconds since 1970.

    `content_sum` is the sum over the hashes of the records, or None in an archive of format 1.
    """

    path: str
    topic: str
    partition: int
    rows: int
    bytes: int
    min_offset: int
    max_offset: int
    min_timestamp_ms: int
    max_timestamp_ms: int
    content_sum: int | None = None

    @property
    def topic_partition(self) -> TopicPartition:
        return TopicPartition(self.topic, self.partition)

    @property
    def sum(self) -> RecordSum | None:
        """The sum over the file's records, or None if it was not recorded."""
        return None if self.content_sum is None else RecordSum(self.rows, self.content_sum)

    @property
    def directory(self) -> str:
        """The directory for the file's topic, partition and day."""
        return self.path.rpartition("/")[0]


class FileList:
    """The current data files by path. A list of a checkpoint is loaded when it is needed."""

    def __init__(
        self,
        files: Mapping[str, DataFile] | None = None,
        load: Callable[[], dict[str, DataFile]] | None = None,
    ) -> None:
        self._files: dict[str, DataFile] = dict(files or {})
        # The source of the checkpoint's files, or None once they are in `_files`.
        self._load = load
        # The changes since the checkpoint in order, until its files are loaded.
        self._changes: list[tuple[tuple[str, ...], tuple[DataFile, ...]]] = []

    @property
    def loaded(self) -> bool:
        return self._load is None

    def change(self, removed: tuple[str, ...], added: tuple[DataFile, ...]) -> None:
        """Apply a commit. Raises ValueError if a removed file does not exist."""
        if self._load is not None:
            self._changes.append((removed, added))
            return
        for path in removed:
            if self._files.pop(path, None) is None:
                raise ValueError(f"{path} is removed but does not exist")
        self._files.update((each.path, each) for each in added)

    def all(self) -> Mapping[str, DataFile]:
        """Return the files. Raises ValueError as `change` does, and whatever `load` raises."""
        if self._load is not None:
            self._files = self._load()
            self._load = None
            for removed, added in self._changes:
                self.change(removed, added)
            self._changes.clear()
        return self._files


def encode_files(files: Iterable[DataFile]) -> bytes:
    """Encode the files as compressed lines."""
    encode = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode
    packer = zlib.compressobj(1, zlib.DEFLATED, _GZIP)
    packed = bytearray()
    for each in files:
        packed += packer.compress(f"{encode(each)}\n".encode())
    return bytes(packed + packer.flush())


def decode_files(data: bytes) -> dict[str, DataFile]:
    """Decode what `encode_files` returns. Raises ValueError, TypeError or zlib.error."""
    files: dict[str, DataFile] = {}
    for line in _lines(data):
        path, topic, *others = json.loads(line)
        files[path] = DataFile(path, sys.intern(topic), *others)
    return files


def _lines(data: bytes) -> Iterator[bytes]:
    unpacker = zlib.decompressobj(_GZIP)
    rest = b""
    for at in range(0, len(data), _BYTES_AT_ONCE):
        *lines, rest = (rest + unpacker.decompress(data[at : at + _BYTES_AT_ONCE])).split(b"\n")
        yield from lines
    if not unpacker.eof or rest:
        raise ValueError("the list of files is cut off")
