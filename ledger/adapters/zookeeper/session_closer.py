"""Makes ZooKeeper learn at once that this process has died.

ZooKeeper ends the session of a dead process when its timeout is over, because from afar a dead
process looks like a slow one. On the same machine the kernel knows the difference. A small child
process (`close_session`) holds one end of a pipe and knows the session. When the pipe ends without
a farewell, this process is gone, and the child closes the session. If the whole machine dies, or
the child is killed as well, the session timeout decides, as without the child.

Only the end of the process ends the pipe. So a process that is stopped, or cut off from ZooKeeper,
keeps its session, and no lease outlives its session by this.
"""

from __future__ import annotations

import asyncio
import sys
from asyncio.subprocess import DEVNULL, PIPE, Process
from contextlib import suppress

from ledger.adapters.zookeeper import close_session
from ledger.adapters.zookeeper.close_session import DONE, Session
from ledger.tasks import start_restarting

_STOP_S_MAX = 1.0


class ChildEnded(Exception):
    """The child ended before this process. It is started again after a pause."""


class SessionCloser:
    """One child process. It closes the last session that `keep` was called with."""

    def __init__(self) -> None:
        self._session: Session | None = None
        # Not None while the child runs.
        self._child: Process | None = None
        # Set by `stop`. A task that is cancelled before it ends with the process.
        self._stopped = False
        self._task: asyncio.Task[None] | None = None

    @property
    def pid(self) -> int | None:
        """Return the process id of the child, or None if none runs."""
        return None if self._child is None else self._child.pid

    def start(self) -> None:
        """Start the child, and start it again whenever it ends."""
        assert self._task is None
        name = "the child that closes the session after a crash"
        self._task = start_restarting(name, self._run, expected=ChildEnded)

    def keep(self, session: Session) -> None:
        """Close this session, and no earlier one, when this process dies."""
        if session != self._session:
            self._session = session
            self._tell(session.line())

    async def stop(self) -> None:
        """End the child. The session is left to its owner."""
        self._stopped = True
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    async def _run(self) -> None:
        child = await asyncio.create_subprocess_exec(
            sys.executable,
            *("-I", "-S", close_session.__file__),
            stdin=PIPE,
            stdout=DEVNULL,
            stderr=DEVNULL,
            start_new_session=True,  # Ctrl-C in a terminal does not reach the child
        )
        self._child = child
        farewell = True
        try:
            if self._session is not None:
                self._tell(self._session.line())
            code = await child.wait()
        except asyncio.CancelledError:
            farewell = self._stopped or not _is_cancelled()
            raise
        finally:
            await self._dismiss(child, farewell)
        raise ChildEnded(f"exit code {code}")

    def _tell(self, line: bytes) -> None:
        """Write a line to the child, if one runs. A child that has just ended is told nothing."""
        if self._child is not None and self._child.stdin is not None:
            with suppress(RuntimeError):  # uvloop has closed the pipe of a child that has ended
                self._child.stdin.write(line)

    async def _dismiss(self, child: Process, farewell: bool) -> None:
        """End the input of the child and wait for its end, at most for a second.

        Without a farewell the child closes the session.
        """
        if farewell:
            self._tell(DONE + b"\n")
        self._child = None
        if child.stdin is not None:
            child.stdin.close()
        try:
            async with asyncio.timeout(_STOP_S_MAX):
                _ = await child.wait()
        except TimeoutError:
            with suppress(ProcessLookupError):
                child.kill()


def _is_cancelled() -> bool:
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
