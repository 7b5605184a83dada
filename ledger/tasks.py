"""Tasks whose failures are handled: by a restart, by their owner, or by the end of the process.

    start_restarting  a loop that lives long: reported, then run again after a pause
    start_vital       work without which going on is unsafe: the process ends with exit code 70
    start_once        one piece of work: reported, and passed to its owner
    in_thread         a function that would hold the event loop: its exception reaches the caller
    in_daemon         the same, but neither the loop nor the process waits for its end
    LowThreads        the same, in a few threads of the lowest priority

A report goes to the exception handler of the loop, with the exception. A process installs
`log_failure` there. A task that its owner cancels ends without a report. A CancelledError without
such a cancellation counts as a failure.
"""

from __future__ import annotations

import asyncio
import os
import sys
import threading
from collections.abc import Callable, Coroutine, Generator, Iterable
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from functools import partial
from types import TracebackType
from typing import Any, Final, TypeVar, cast

from ledger.command_line.exit_codes import EXIT_SOFTWARE
from ledger.log import Throttle, logger

T = TypeVar("T")

_PAUSE_S_FIRST: Final = 0.1
_LOWEST: Final = 19
PAUSE_S_MAX: Final = 10.0
"""Longest pause before a restart. A task that ran this long is restarted soon again."""

EndProcess = Callable[[str, BaseException], None]
"""Ends the process because the named work failed. Does not return, except in tests."""

_throttle: Final = Throttle()

# The tasks of `start_once`: the loop has only weak references, and what a task waits for may have
# no other either.
_under_way: Final = set[asyncio.Task[Any]]()


def start_restarting(
    name: str,
    work: Callable[[], Coroutine[Any, Any, None]],
    on_failed: Callable[[], None] | None = None,
    *,
    expected: type[Exception] | tuple[type[Exception], ...] = (),
) -> asyncio.Task[None]:
    """Run `work` until it returns or is cancelled; after a failure run it again.

    `on_failed` runs after each failure, before the pause. Exceptions of the kinds `expected` are
    no defects: a warning says them in a line, without a traceback, once a minute.
    """
    running = _restarting(name, work, on_failed, expected)
    return asyncio.get_running_loop().create_task(running, name=name)


def start_vital(name: str, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
    """Run `work`. A failure ends the process, because what follows would be unsafe."""
    task = asyncio.get_running_loop().create_task(work, name=name)
    task.add_done_callback(partial(_on_vital_over, Guard(name)))
    return task


def start_once(
    name: str,
    work: Coroutine[Any, Any, T],
    on_failed: Callable[[BaseException], object] | None = None,
    *,
    expected: type[Exception] | tuple[type[Exception], ...] = (),
) -> asyncio.Task[T]:
    """Run `work`. A failure is reported and passed to `on_failed`, even if no caller awaits it.

    Exceptions of the kinds `expected` are not reported: the caller that awaits the task gets them.
    """
    task = asyncio.get_running_loop().create_task(work, name=name)
    _under_way.add(task)
    task.add_done_callback(_under_way.discard)
    task.add_done_callback(partial(_on_over, name, expected, on_failed))
    return task


async def to_the_end(
    name: str,
    work: Coroutine[Any, Any, T],
    *,
    expected: type[Exception] | tuple[type[Exception], ...],
) -> T:
    """Run `work` as `start_once` does, and return its result.

    If the caller is cancelled, the work goes on to its end.
    """
    task = start_once(name, work, expected=expected)
    await asyncio.wait([task])  # unlike `await`, does not cancel it with us
    return await task


async def in_thread(function: Callable[..., T], *arguments: Any) -> T:
    """Call `function` in a thread, as `asyncio.to_thread` does, and return its result.

    Raises RuntimeError if it raises StopIteration: no future takes that, so the caller would wait
    without end.
    """
    return await asyncio.to_thread(_without_stop, function, arguments)


def _without_stop(function: Callable[..., T], arguments: tuple[Any, ...]) -> T:
    try:
        return function(*arguments)
    except StopIteration as error:
        raise RuntimeError("a function in a thread raised StopIteration") from error


class LowThreads:
    """Threads of the lowest priority: the event loop and all other processes come before them.

    For functions that use a core for long without the interpreter's lock. They end with this
    object.
    """

    def __init__(self, count: int, name: str) -> None:
        """Create it. Up to `count` threads start when they are needed."""
        from concurrent.futures import ThreadPoolExecutor  # few processes need it

        self._pool = ThreadPoolExecutor(count, name, initializer=_give_way)

    async def call(self, function: Callable[..., T], *arguments: Any) -> T:
        """Call `function` in one of the threads, as `in_thread` does, and return its result."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._pool, _without_stop, function, arguments)


def _give_way() -> None:
    """Give this thread the lowest priority. Needs no right; without it, nothing else changes."""
    if sys.platform == "linux":  # elsewhere, it would be the priority of the process
        with suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _LOWEST)


async def in_daemon(name: str, function: Callable[[], T]) -> T:
    """Call `function` in a thread of its own, of this name, and return its result.

    A cancellation ends the wait at once, and the thread goes on. Neither the end of the loop nor
    that of the process waits for it, as they would for a thread of `in_thread`.
    """
    loop = asyncio.get_running_loop()
    answer: asyncio.Future[T] = loop.create_future()

    def settle(result: T | None, error: Exception | None) -> None:
        if answer.done():  # the caller was cancelled
            return
        if error is None:
            answer.set_result(cast("T", result))
        else:
            answer.set_exception(error)

    def call() -> None:
        result: T | None = None
        error: Exception | None = RuntimeError(f"the thread {name} ended without a result")
        try:
            result, error = function(), None
        except StopIteration:  # no future takes it
            pass
        except Exception as raised:  # noqa: BLE001  the caller gets it
            error = raised
        finally:
            with suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(settle, result, error)

    threading.Thread(target=call, name=name, daemon=True).start()
    return await answer


def report(name: str, error: BaseException) -> None:
    """Pass an exception that no caller handles to the exception handler of the loop."""
    asyncio.get_running_loop().call_exception_handler(
        {"message": f"{name} failed unexpectedly", "exception": error}
    )


@contextmanager
def reported(name: str) -> Generator[None]:
    """Report an exception of the block and go on after it: one item must not stop the others."""
    try:
        yield
    except Exception as error:  # noqa: BLE001  the rest of the work must go on
        report(name, error)


def do_each(name: str, step: Callable[[T], object], items: Iterable[T]) -> None:
    """Call `step` with each item. An exception is reported, and the next items have their turn.

    Costs nothing for each item, unlike `reported`.
    """
    left = iter(items)
    while True:
        try:
            for item in left:
                step(item)
            return
        except Exception as error:  # noqa: BLE001  the rest of the items must have their turn
            report(name, error)


def log_failure(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """Log an unhandled exception, with its traceback in one line. The loop of a process calls it.

    The same message with the same kind of exception is logged once per minute.
    """
    error = context.get("exception")
    what = str(context.get("message") or "unhandled exception")
    if _throttle.allows(what, type(error).__name__, loop.time()):
        logger().error(what, exc_info=error)


def end_process(name: str, error: BaseException) -> None:
    """Log one line and end this process with exit code 70, without any further step.

    What is durable stays so: the next start finds what a crash would have left.
    """
    try:
        with suppress(Exception):  # without memory for the line, the process ends all the same
            logger().critical(
                "this process ends, because it cannot go on safely", failed=name, exc_info=error
            )
    finally:
        os._exit(EXIT_SOFTWARE)


_end_process: ContextVar[EndProcess] = ContextVar("end_process", default=end_process)


@contextmanager
def ends_by(end: EndProcess) -> Generator[None]:
    """End by `end` what is made inside this block: a process that is simulated ends differently."""
    token = _end_process.set(end)
    try:
        yield
    finally:
        _end_process.reset(token)


class Guard:
    """A context manager for callbacks of vital work: an exception in it ends the process."""

    __slots__ = ("_end", "_name")

    def __init__(self, name: str) -> None:
        self._name = name
        # Looked up here, because callbacks of threads run in another context.
        self._end = _end_process.get()

    def __enter__(self) -> None:
        return None

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> bool:
        if not isinstance(error, Exception):
            return False
        self.end(error)
        return True

    def end(self, error: BaseException) -> None:
        """End the process because of `error`."""
        self._end(self._name, error)


async def _restarting(
    name: str,
    work: Callable[[], Coroutine[Any, Any, None]],
    on_failed: Callable[[], None] | None,
    expected: type[Exception] | tuple[type[Exception], ...],
) -> None:
    loop = asyncio.get_running_loop()
    pause_s = _PAUSE_S_FIRST
    while True:
        began_s = loop.time()
        error = await _failure_of(work())
        if error is None:
            return
        if not isinstance(error, expected):
            report(name, error)
        elif _throttle.allows(name, type(error).__name__, loop.time()):
            logger().warning(f"{name} ended, and is started again", reason=str(error))
        if on_failed is not None:
            with reported(name):
                on_failed()
        if loop.time() - began_s >= PAUSE_S_MAX:
            pause_s = _PAUSE_S_FIRST
        await asyncio.sleep(pause_s)
        pause_s = min(2 * pause_s, PAUSE_S_MAX)


def _on_vital_over(guard: Guard, task: asyncio.Task[None]) -> None:
    error = _error_of(task)
    if error is not None:
        guard.end(error)


def _error_of(task: asyncio.Task[Any]) -> BaseException | None:
    """Return the failure of a task that is over. A cancellation by its owner is none."""
    if not task.cancelled():
        return task.exception()
    if task.cancelling():
        return None
    return asyncio.CancelledError(f"{task.get_name()}: cancelled by what it awaits")


async def _failure_of(work: Coroutine[Any, Any, None]) -> BaseException | None:
    """Return the exception that ended `work`, or None. A cancellation of this task passes."""
    try:
        await work
    except asyncio.CancelledError as error:
        if _is_cancelled():
            raise
        return error
    except Exception as error:  # noqa: BLE001  the supervisor handles every failure
        return error
    return None


def _is_cancelled() -> bool:
    task = asyncio.current_task()
    return task is None or task.cancelling() > 0


def _on_over(
    name: str,
    expected: type[Exception] | tuple[type[Exception], ...],
    on_failed: Callable[[BaseException], object] | None,
    task: asyncio.Task[Any],
) -> None:
    error = _error_of(task)
    if error is None or isinstance(error, expected):
        return
    report(name, error)
    if on_failed is not None:
        on_failed(error)
