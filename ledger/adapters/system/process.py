"""The event loop of a process, and the signals that end it."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import Callable

from ledger.command_line.exit_codes import EXIT_INTERRUPTED, EXIT_OK


def loop_factory() -> Callable[[], asyncio.AbstractEventLoop]:
    """Return uvloop's factory if uvloop is installed, else asyncio's."""
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop
    return uvloop.new_event_loop


class ExitAsked:
    """The wait for a signal that ends the process. The second signal ends it at once."""

    def __init__(self) -> None:
        loop = asyncio.get_running_loop()
        self._code: asyncio.Future[int] = loop.create_future()
        for number in (signal.SIGINT, signal.SIGTERM):
            # Only the main thread can handle signals; tests run this class in other threads.
            with contextlib.suppress(ValueError, RuntimeError):
                loop.add_signal_handler(number, self._on_signal, number)

    def _on_signal(self, number: signal.Signals) -> None:
        if self._code.done():
            os._exit(128 + number)
        self._code.set_result(EXIT_INTERRUPTED if number == signal.SIGINT else EXIT_OK)

    async def wait(self) -> int:
        """Wait for a signal. Returns the exit code of the process."""
        return await self._code
