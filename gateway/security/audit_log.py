"""The audit log: who was refused, who failed to log in, and who changed what, as lines of JSON.

A line is made on the loop and written by a thread, so nothing waits for the disk. The queue has a
bound. Lines that find no room, or that cannot be written, are counted, and one line of the log of
the process reports it. No line has a record or a secret: the fields of a line are named here.
"""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections import Counter, deque
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Final, NamedTuple

from gateway.access import Audited, AuditEvent, NotedLine
from gateway.log import Throttle, logger
from gateway.security.newest_lines import NewestLines
from ledger.tasks import in_thread, start_once

STDERR: Final = "stderr"
LINES_MAX: Final = 10_000
BYTES_MAX: Final = 16 * 1024 * 1024
"""Lines that wait to be written, and their bytes: clients may choose texts of 20 KiB a line."""

WINDOW_S: Final = 10.0
LINES_PER_WINDOW: Final = 10
"""Lines of one `_Kind` in a window. The next line of the kind counts those left out."""

_KINDS_MAX: Final = 10_000
_OTHERS: Final = "*"  # all principals and resources beyond `_KINDS_MAX` together
_TEXT_MAX: Final = 300
_BATCH: Final = 500
_CLOSE_S: Final = 5.0
_MODE: Final = 0o600


class _Kind(NamedTuple):
    """Lines that have one limit: denials never leave out a change of the same resource."""

    principal: str
    resource: str
    operation: str
    decision: str


class _Window:
    """The lines of one kind since `begun_s`."""

    __slots__ = ("begun_s", "count", "left_out")

    def __init__(self, begun_s: float) -> None:
        self.begun_s = begun_s
        self.count = self.left_out = 0


class AuditLog:
    """Appends lines to a file, or to stderr. Create it on a running loop, and `close` it."""

    def __init__(
        self,
        target: str,
        node_id: int,
        now_ms: Callable[[], int],
        in_thread: Callable[..., Awaitable[None]] = in_thread,
    ) -> None:
        """Open the file once to see that it can be written. Raises OSError.

        `in_thread` calls a function in a thread, and waits for it.
        """
        self._in_thread = in_thread
        self._loop = asyncio.get_running_loop()
        self._path = None if target == STDERR else Path(target)
        self._node_id = node_id
        self._now_ms = now_ms
        self._queue: deque[bytes] = deque()
        self._queued_bytes = 0  # in `_queue`
        # The newest lines that were queued, for the web page. Some may not be written yet.
        self._newest = NewestLines()
        self._windows: dict[_Kind, _Window] = {}
        # The task that writes. None while the queue is empty.
        self._writing: asyncio.Task[None] | None = None
        # True after a write that may have ended in the middle of a line.
        self._torn = False
        # The next look for windows that are over. None while there is none.
        self._timer: asyncio.TimerHandle | None = None
        self._throttle = Throttle()
        self.written = 0  # lines; only grows
        # Lines that are lost: `queue-full` or `not-written`. Only grow.
        self.lost: Counter[str] = Counter()
        self._append(b"")

    def note(self, event: AuditEvent, by: Audited, resource: str, **fields: str | int) -> None:
        """Add a line, unless there were many of its kind just now."""
        about = (str(fields.get("operation", "")), str(fields.get("decision", "")))
        key = _Kind(by.principal[:_TEXT_MAX], resource[:_TEXT_MAX], *about)
        if key not in self._windows and len(self._windows) >= _KINDS_MAX:
            key = _Kind(_OTHERS, _OTHERS, *about)
        window = self._windows.get(key)
        now_s = self._loop.time()
        if window is None:
            window = self._windows[key] = _Window(now_s)
            self._set_timer()
        elif now_s - window.begun_s >= WINDOW_S:
            window.begun_s, window.count = now_s, 0
        window.count += 1
        if window.count > LINES_PER_WINDOW:
            window.left_out += 1
            return
        line: dict[str, Any] = {"event": event.value, **_fields_of(by), "resource": resource}
        line |= fields
        if window.left_out:
            line["left_out"], window.left_out = window.left_out, 0
        self._add(line)

    def counts(self) -> dict[str, int]:
        """Return how many lines were written, and how many were lost, by reason."""
        return {"written": self.written, **self.lost}

    def newest(self, before: int | None) -> list[NotedLine]:
        """Return the newest lines below a number, or of all, newest first."""
        return self._newest.before(before)

    async def close(self) -> None:
        """Write what waits, for up to five seconds."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._end_windows(now_s=float("inf"))
        if self._writing is not None:
            await asyncio.wait([self._writing], timeout=_CLOSE_S)

    # -- windows ------------------------------------------------------------------------------

    def _set_timer(self) -> None:
        if self._timer is None and self._windows:
            self._timer = self._loop.call_later(WINDOW_S, self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        self._end_windows(self._loop.time())
        self._set_timer()

    def _end_windows(self, now_s: float) -> None:
        """Forget the windows that are over. Those that left lines out get one with the count."""
        over = [
            (key, each) for key, each in self._windows.items() if now_s - each.begun_s >= WINDOW_S
        ]
        for key, window in over:
            del self._windows[key]
            if window.left_out:
                about = {"event": AuditEvent.LEFT_OUT.value, **key._asdict()}
                self._add({**about, "left_out": window.left_out})

    # -- lines --------------------------------------------------------------------------------

    def _add(self, line: dict[str, Any]) -> None:
        if len(self._queue) >= LINES_MAX or self._queued_bytes >= BYTES_MAX:
            self._lose("queue-full", 1, "lines come faster than they are written")
            return
        now_ms = self._now_ms()
        at = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(now_ms // 1000))
        stamped = {"time": f"{at}.{now_ms % 1000:03}Z", "node_id": self._node_id}
        bounded = {
            name: value[:_TEXT_MAX] if isinstance(value, str) else value
            for name, value in line.items()
        }
        encoded = json.dumps({**stamped, **bounded}).encode() + b"\n"
        self._queue.append(encoded)
        self._queued_bytes += len(encoded)
        self._newest.add(encoded)
        if self._writing is None:
            self._writing = start_once("the audit log", self._write_all())

    async def _write_all(self) -> None:
        try:
            while self._queue:
                lines = [self._queue.popleft() for _ in range(min(_BATCH, len(self._queue)))]
                data = b"".join(lines)
                self._queued_bytes -= len(data)
                try:
                    await self._in_thread(self._append, data)
                except OSError as error:
                    self._lose("not-written", len(lines), str(error))
                else:
                    self.written += len(lines)
        finally:
            self._writing = None

    def _append(self, data: bytes) -> None:
        """Append to the file, which may have been moved since. Runs in a thread. Raises OSError."""
        if self._torn:
            data = b"\n" + data
        if self._path is None:
            self._write(2, data)
            return
        # Not blocking, because the open of a pipe that nobody reads would never return.
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NONBLOCK
        opened = os.open(self._path, flags, _MODE)
        try:
            self._write(opened, data)
        finally:
            os.close(opened)

    def _write(self, opened: int, data: bytes) -> None:
        view = memoryview(data)
        while view:
            self._torn = True
            view = view[os.write(opened, view) :]
        self._torn = False

    def _lose(self, why: str, count: int, reason: str) -> None:
        self.lost[why] += count
        if self._throttle.allows("audit log", why, self._loop.time()):
            logger().error("lines of the audit log are lost", why=why, reason=reason)


def _fields_of(by: Audited) -> dict[str, str | int]:
    return {
        "principal": by.principal,
        "mechanism": by.mechanism,
        "address": by.host,
        "port": by.port,
        "listener": by.listener,
    }
