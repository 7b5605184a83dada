"""The event loop of a process, the signals that end it, and the link to its service manager."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import Callable
from typing import TYPE_CHECKING

from ledger.command_line.exit_codes import EXIT_INTERRUPTED, EXIT_OK
from ledger.tasks import log_failure

if TYPE_CHECKING:
    from ledger.adapters.system.service_manager import ServiceManager


def loop_factory() -> Callable[[], asyncio.AbstractEventLoop]:
    """Return a factory of loops that log unhandled exceptions, of uvloop if it is installed."""
    try:
        import uvloop
    except ImportError:
        new_loop = asyncio.new_event_loop
    else:
        new_loop = uvloop.new_event_loop

    def make() -> asyncio.AbstractEventLoop:
        loop = new_loop()
        loop.set_exception_handler(log_failure)
        return loop

    return make


class ExitAsked:
    """The wait for a signal that ends the process. The second signal ends it at once."""

    def __init__(self) -> None:
        loop = asyncio.get_running_loop()
        self._code: asyncio.Future[int] = loop.create_future()
        # The link to systemd, from `ready` on; None if systemd did not start this process.
        self._manager: ServiceManager | None = None
        for number in (signal.SIGINT, signal.SIGTERM):
            # Only the main thread can handle signals; tests run this class in other threads.
            with contextlib.suppress(ValueError, RuntimeError):
                loop.add_signal_handler(number, self._on_signal, number)

    def ready(self) -> None:
        """Report to systemd that the process serves, and from now on that its loop runs."""
        if "NOTIFY_SOCKET" not in os.environ:
            return
        from ledger.adapters.system.service_manager import ServiceManager

        self._manager = ServiceManager(os.environ)
        self._manager.ready()
        self._manager.start_pings(asyncio.get_running_loop())

    def watch_stdin(self) -> None:
        """Ask for the exit also when stdin ends. What comes from it is discarded."""
        asyncio.get_running_loop().add_reader(0, self._on_stdin)

    def _on_stdin(self) -> None:
        try:
            ended = not os.read(0, 4096)
        except BlockingIOError:  # another process has read it
            return
        except OSError:  # a socket that was reset
            ended = True
        if ended:
            asyncio.get_running_loop().remove_reader(0)
            if not self._code.done():
                self._code.set_result(EXIT_OK)

    def _on_signal(self, number: signal.Signals) -> None:
        if self._code.done():
            os._exit(128 + number)
        if self._manager is not None:
            self._manager.stopping()
        self._code.set_result(EXIT_INTERRUPTED if number == signal.SIGINT else EXIT_OK)

    async def wait(self) -> int:
        """Wait for a signal. Returns the exit code of the process."""
        return await self._code
