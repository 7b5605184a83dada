"""Run a coroutine as `asyncio.run` does, so that Ctrl-C ends it at any moment."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


def run_interruptibly(work: Coroutine[Any, Any, T]) -> T:
    """Run `work` to its end. Raises KeyboardInterrupt after SIGINT, once `work` was cancelled.

    `asyncio.run` alone misses a signal that arrives just before the loop begins to wait: its
    handler in Python runs only when something else ends the wait. The handlers of a loop write to
    a file that the loop waits for. A second SIGINT does not wait for `work`, only for its threads.
    """
    if signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        return asyncio.run(work)  # the caller handles the signal, or it is ignored, as after nohup
    return asyncio.run(_run(work))


async def _run(work: Coroutine[Any, Any, T]) -> T:
    task = asyncio.current_task()
    assert task is not None
    interrupts = 0

    def on_interrupt() -> None:
        nonlocal interrupts
        interrupts += 1
        if interrupts > 1:
            raise KeyboardInterrupt
        task.cancel()

    loop = asyncio.get_running_loop()
    try:
        loop.add_signal_handler(signal.SIGINT, on_interrupt)
    except RuntimeError:  # not in the main thread, which alone gets signals
        return await work
    try:
        return await work
    except asyncio.CancelledError:
        if interrupts:
            raise KeyboardInterrupt from None
        raise
    finally:
        loop.remove_signal_handler(signal.SIGINT)
