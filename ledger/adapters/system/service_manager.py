"""The link to systemd, for units of Type=notify with a watchdog.

    started ─▶ READY=1, then WATCHDOG=1 again and again ─▶ (signal) STOPPING=1

The event loop sends each WATCHDOG=1, so a blocked loop sends none, and systemd restarts the
process. Loaded only if systemd has set NOTIFY_SOCKET. Source: sd_notify(3), sd_watchdog_enabled(3).
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from collections.abc import Mapping
from typing import Final

_PINGS: Final = 3  # in one interval of the watchdog: a ping may be late


class ServiceManager:
    """The link to systemd. A message that cannot be sent is dropped, as sd_notify does."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._address = environment.get("NOTIFY_SOCKET", "")
        self.ping_s = _ping_s(environment)  # None without a watchdog
        # The next ping. None before `start_pings` and after `stop`.
        self._timer: asyncio.TimerHandle | None = None

    def ready(self) -> None:
        """Report that the process serves."""
        self._send("READY=1")

    def stopping(self) -> None:
        """Report that the process ends."""
        self._send("STOPPING=1")

    def ping(self) -> None:
        """Report that the process still works."""
        self._send("WATCHDOG=1")

    def start_pings(self, loop: asyncio.AbstractEventLoop) -> None:
        """Ping now, and again from this loop until `stop`. Without a watchdog this does nothing."""
        if self.ping_s is None:
            return
        self.ping()
        self._timer = loop.call_later(self.ping_s, self.start_pings, loop)

    def stop(self) -> None:
        """Ping no more."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _send(self, state: str) -> None:
        # An abstract socket is written with `@`. Other families (vsock) are for virtual machines.
        if self._address[:1] not in ("/", "@"):
            return
        address = f"\0{self._address[1:]}" if self._address[0] == "@" else self._address
        with (
            contextlib.suppress(OSError),
            socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as out,
        ):
            out.setblocking(False)  # the loop does not wait for systemd
            out.sendto(state.encode(), address)


def _ping_s(environment: Mapping[str, str]) -> float | None:
    """Return the seconds between two pings, or None if no watchdog waits for this process."""
    written, pid = environment.get("WATCHDOG_USEC", ""), environment.get("WATCHDOG_PID", "")
    if not (written.isascii() and written.isdecimal()) or int(written) == 0:
        return None
    if pid and pid != str(os.getpid()):  # a parent of this process is watched
        return None
    return int(written) / 1e6 / _PINGS
