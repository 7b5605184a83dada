"""Reads a file or stdin in pieces, without blocking the event loop."""

from __future__ import annotations

import asyncio
import os
import select
from types import TracebackType
from typing import Final, Self

from gateway.admin.ready_files import until_ready

STDIN: Final = "-"
_CHUNK_BYTES: Final = 128 * 1024


class InputFile:
    """An open file, or stdin if `path` is "-". Opening and reading raise OSError.

    Pipes, sockets and terminals are waited for. All others always have bytes, and are read in a
    thread. A named pipe without a writer is waited for as well.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        self._is_stdin = path == STDIN
        flags = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC
        self._descriptor = 0 if self._is_stdin else os.open(path, flags)
        # None until the first read; then whether the system can wait for it.
        self._may_wait: bool | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if not self._is_stdin:
            os.close(self._descriptor)

    def ready(self) -> bool:
        """Return whether the next read returns at once."""
        if self._may_wait is False:
            return True
        poll = select.poll()
        poll.register(self._descriptor, select.POLLIN)
        return bool(poll.poll(0))

    async def read(self) -> bytes:
        """Return the next bytes; none at the end."""
        while True:
            if self._may_wait is not False:
                await self._readable()
            try:
                if self._may_wait:
                    return os.read(self._descriptor, _CHUNK_BYTES)
                return await asyncio.to_thread(os.read, self._descriptor, _CHUNK_BYTES)
            except BlockingIOError:  # another process has read it
                continue

    async def _readable(self) -> None:
        if self._may_wait and self.ready():
            await asyncio.sleep(0)
            return
        try:
            await until_ready(self._descriptor, writes=False)
        except PermissionError:
            self._may_wait = False
            return
        self._may_wait = True
