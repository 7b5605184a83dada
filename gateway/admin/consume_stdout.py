"""Writes records to stdout in large pieces, without holding the event loop while a pipe is full."""

from __future__ import annotations

import asyncio
import os
import select
import stat
import sys
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Final, TextIO

from gateway.admin.ready_files import until_ready

_FLUSH_BYTES: Final = 256 * 1024
_FLUSH_S: Final = 0.1
_PIPE_BYTES: Final = 4096  # PIPE_BUF: a write of so many bytes to a pipe with room does not wait
_FILE_BYTES: Final = 1024 * 1024


class Stdout:
    """Stdout, as bytes. `write` and `flush` may raise OSError: a closed pipe, a full disk."""

    def __init__(self) -> None:
        # None if stdout is no file of the system, as in tests, or was closed before the start.
        self._fd: int | None = _fileno()
        # Tells whether a pipe has room. None for a file, which always has.
        self._poll: select.poll | None = None
        self._pending: list[bytes] = []  # written with the next flush
        self._pending_bytes = 0
        self._flushed_s = time.monotonic()
        # True while a part of the pending bytes is written, and from then on if that is given up.
        self._torn = False
        # True once the reader of the pipe has ended, if `ending_with_reader` watches it.
        self.closed = False
        # Called before something is written, if stdout is a terminal; it takes a line away.
        self.on_write: Callable[[], None] = _nothing
        if self._fd is not None and _may_wait(self._fd):
            self._poll = select.poll()
            self._poll.register(self._fd, select.POLLOUT)

    @property
    def is_terminal(self) -> bool:
        return self._fd is not None and os.isatty(self._fd)

    def columns(self) -> int | None:
        """Return the width of the terminal, or None if stdout is none."""
        if self._fd is None or not self.is_terminal:
            return None
        return os.get_terminal_size(self._fd).columns or None

    @contextmanager
    def ending_with_reader(self) -> Generator[None]:
        """Cancel the running task once the reader of the pipe has ended; sets `closed`.

        Without this, a command that waits for records would notice it at the next one only.
        """
        fd, task = self._fd, asyncio.current_task()
        if fd is None or task is None or not stat.S_ISFIFO(os.fstat(fd).st_mode):
            yield
            return
        loop = asyncio.get_running_loop()

        def on_closed() -> None:  # the only event for a reader at this end of a pipe
            loop.remove_reader(fd)
            self.closed = True
            task.cancel()

        loop.add_reader(fd, on_closed)
        try:
            yield
        finally:
            loop.remove_reader(fd)

    def put(self, data: bytes) -> None:
        """Keep these bytes for the next flush."""
        if data:
            self._pending.append(data)
            self._pending_bytes += len(data)

    @property
    def quiet_s(self) -> float:
        """The seconds since the last write."""
        return time.monotonic() - self._flushed_s

    @property
    def due(self) -> bool:
        """True if what is pending should be written now."""
        if self._pending_bytes >= _FLUSH_BYTES:
            return True
        return bool(self._pending) and self.quiet_s >= _FLUSH_S

    async def flush(self) -> None:
        """Write all that is pending. Waits while the pipe is full.

        Writes no more once a call was cancelled or failed, which may have cut off a record.
        """
        if self._torn or not self._pending:
            return
        data = b"".join(self._pending)
        self._pending.clear()
        self._pending_bytes = 0
        self._torn = True
        if self.is_terminal:
            self.on_write()
        if self._fd is None:
            _write_buffer(data)
        else:
            await self._write(self._fd, memoryview(data))
        self._torn = False
        self._flushed_s = time.monotonic()

    async def _write(self, fd: int, data: memoryview) -> None:
        size = _FILE_BYTES if self._poll is None else _PIPE_BYTES
        while data:
            if self._poll is not None and not self._poll.poll(0):
                await until_ready(fd, writes=True)
            try:
                data = data[os.write(fd, data[:size]) :]
            except BlockingIOError:  # another process made it non-blocking
                await until_ready(fd, writes=True)


def _nothing() -> None:
    pass


def _stdout() -> TextIO | None:
    """Return stdout; Python has none if the file was closed when the process began."""
    return sys.stdout


def _fileno() -> int | None:
    stdout = _stdout()
    try:
        return None if stdout is None else stdout.fileno()
    except (OSError, ValueError):
        return None


def _write_buffer(data: bytes) -> None:
    stdout = _stdout()
    if stdout is not None:
        stdout.buffer.write(data)
        stdout.buffer.flush()


def _may_wait(fd: int) -> bool:
    mode = os.fstat(fd).st_mode
    return stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode) or os.isatty(fd)
