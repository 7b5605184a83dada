"""A process of the ledger tier: its loop, its signals, its exit codes."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import Callable, Iterable
from typing import Final

EXIT_OK: Final = 0
EXIT_UNREACHABLE: Final = 69  # sysexits.h: EX_UNAVAILABLE
EXIT_DISK: Final = 74  # sysexits.h: EX_IOERR
EXIT_CONFIG: Final = 78  # sysexits.h: EX_CONFIG
EXIT_INTERRUPTED: Final = 130


def loop_factory() -> Callable[[], asyncio.AbstractEventLoop]:
    """uvloop where it is installed."""
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop
    return uvloop.new_event_loop


def say_faults(faults: Iterable[str]) -> None:
    """One line each, on stderr."""
    for fault in faults:
        with contextlib.suppress(OSError):  # the exit code says it too
            print(f"bookie: {' '.join(fault.split())}", file=sys.stderr, flush=True)


class ExitAsked:
    """Waits for a signal. The second one ends the process at once."""

    def __init__(self) -> None:
        loop = asyncio.get_running_loop()
        self._code: asyncio.Future[int] = loop.create_future()
        for number in (signal.SIGINT, signal.SIGTERM):
            # Not in a thread other than the main one (tests): there nobody sends signals.
            with contextlib.suppress(ValueError, RuntimeError):
                loop.add_signal_handler(number, self._on_signal, number)

    def _on_signal(self, number: signal.Signals) -> None:
        if self._code.done():
            os._exit(128 + number)
        self._code.set_result(EXIT_INTERRUPTED if number == signal.SIGINT else EXIT_OK)

    async def wait(self) -> int:
        """The exit code, once a signal came."""
        return await self._code
