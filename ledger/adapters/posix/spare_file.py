"""A prepared file of zeros, so that the next log file needs no block allocation while it grows.

A sync changes no metadata if the blocks were allocated and written before. Measured here, such a
sync takes 40 % less time and a third less CPU than a sync into merely reserved space
(docs/decisions/0002-journal.md). The zeros bypass the page cache (O_DIRECT); 64 MiB of zeros cost a
few milliseconds of CPU.
"""

from __future__ import annotations

import errno
import mmap
import os
import threading
import time
from typing import Final

SPARE_NAME: Final = "spare.zeros"
_CHUNK_BYTES: Final = 1024 * 1024
# A pause lasts this many times as long as the chunk before it: syncs have priority
_REST: Final = 3.0
_ALIGNMENT: Final = 4096
_DIRECT: Final[int] = getattr(os, "O_DIRECT", 0)


class SpareFile:
    """At most one spare file in a directory. `prepare` works in a thread of its own."""

    def __init__(self, directory: int) -> None:
        self._directory = directory
        self._ready_bytes = 0  # size of the finished spare file, 0 if there is none
        self._thread: threading.Thread | None = None
        self._stopping = threading.Event()

    def prepare(self, size: int) -> None:
        """Begin to write a spare file of `size` bytes. Does nothing where that is not possible."""
        busy = self._thread is not None and self._thread.is_alive()
        if busy or self._ready_bytes or size <= 0 or size % _ALIGNMENT or not _DIRECT:
            return
        self._thread = threading.Thread(
            target=self._work, args=(size,), name="disk-spare", daemon=True
        )
        self._thread.start()

    def take(self, name: str, size: int) -> bool:
        """Rename the spare file to `name`. Returns False unless one of this size is ready."""
        if self._ready_bytes != size or size == 0:
            return False
        os.rename(SPARE_NAME, name, src_dir_fd=self._directory, dst_dir_fd=self._directory)
        self._ready_bytes = 0
        return True

    def close(self) -> None:
        """Stop the thread and remove the spare file."""
        self._stopping.set()
        if self._thread is not None:
            self._thread.join()
            self._remove()

    def _work(self, size: int) -> None:
        try:
            if self._write(size):
                self._ready_bytes = size
        except OSError as error:
            self._remove()
            if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EINVAL, errno.EOPNOTSUPP):
                raise

    def _write(self, size: int) -> bool:
        flags = os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | _DIRECT
        handle = os.open(SPARE_NAME, flags, 0o644, dir_fd=self._directory)
        try:
            os.posix_fallocate(handle, 0, size)
            with mmap.mmap(-1, _CHUNK_BYTES) as zeros:  # direct writes need aligned memory
                return self._write_zeros(handle, memoryview(zeros), size)
        finally:
            os.close(handle)

    def _write_zeros(self, handle: int, zeros: memoryview, size: int) -> bool:
        with zeros:
            position = 0
            while position < size:
                began_s = time.monotonic()
                with zeros[: size - position] as chunk:
                    position += os.pwrite(handle, chunk, position)
                if self._stopping.wait((time.monotonic() - began_s) * _REST):
                    return False
        os.fdatasync(handle)
        return True

    def _remove(self) -> None:
        try:
            os.unlink(SPARE_NAME, dir_fd=self._directory)
        except FileNotFoundError:
            return
