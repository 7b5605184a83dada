"""Shows on stderr that a command works: a line that is written over, or one line every 5 s."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

import click

from ledger.command_line.terminal import (
    columns,
    cut,
    is_terminal,
    stderr,
    text_width,
    write_stderr,
)
from ledger.escapes import escape_line

if TYPE_CHECKING:
    import asyncio

_BAR_WIDTH = 30  # characters
_LINE_S: Final = 5.0  # between two lines, if stderr is no terminal
_WAIT_S: Final = 1.0  # a shorter wait is not shown
_QUIET = f"{__name__}.quiet"  # keys in the context of a command
_WAITING = f"{__name__}.waiting"


def be_quiet(quiet: bool) -> None:
    """Note for the command that runs now whether it shows progress."""
    click.get_current_context().meta[_QUIET] = quiet


class ProgressLine:
    """A line on stderr that is written over on a terminal; elsewhere a line every 5 s.

    Nothing is shown if the command has `--quiet`, or if `quiet` is true. `clock` returns seconds.
    """

    def __init__(self, *, quiet: bool = False, clock: Callable[[], float] = time.monotonic) -> None:
        context = click.get_current_context(silent=True)
        meta = {} if context is None else context.meta
        self._quiet = quiet or bool(meta.get(_QUIET))
        self._terminal = is_terminal(stderr())
        self._clock = clock
        self._shown_s = clock()  # of the last line, or of the beginning
        self._width = 0  # columns of the line as it is now; 0 if there is none
        waiting = meta.get(_WAITING)
        if waiting is not None:
            waiting.stop()

    def bar(self, done: int, whole: int, unit: str) -> None:
        """Show that `done` of `whole` units are done."""
        share = min(1.0, done / whole) if whole else 1.0
        label = f" {share:4.0%}  {done} of {whole} {unit}"
        room = columns(stderr())
        width = _BAR_WIDTH if room is None else min(_BAR_WIDTH, room - len(label) - len("[] "))
        filled = int(width * share)
        bar = f"[{'#' * filled}{'.' * (width - filled)}]" if width > 0 else ""
        self.text(bar + label)

    def text(self, text: str) -> None:
        """Show this text."""
        if self._quiet:
            return
        text = escape_line(text)
        if self._terminal:
            self._write_over(text)
        elif self._clock() - self._shown_s >= _LINE_S:
            self._shown_s = self._clock()
            write_stderr(f"{text}\n")

    def _write_over(self, text: str) -> None:
        """Replace the line; it never fills the terminal's, behind which nothing is written over."""
        room = columns(stderr())
        if room is not None:
            text = cut(text, max(1, room - 1))
        width = text_width(text)
        write_stderr(f"\r{text}{' ' * (self._width - width)}")
        self._width = width

    def end(self) -> None:
        """Leave the line as it is; what is printed next begins below it."""
        if self._width:
            write_stderr("\n")
            self._width = 0

    def clear(self) -> None:
        """Take the line away."""
        if self._width:
            write_stderr(f"\r{' ' * self._width}\r")
            self._width = 0


@contextmanager
def counting(unit: str) -> Generator[Callable[[int, int], None]]:
    """Yield a function that shows how many of all units are done; its line stays at the end.

    The block is inside that of `waiting`, whose place its line takes.
    """
    line = ProgressLine()
    try:
        yield lambda done, whole: line.bar(done, whole, unit)
    finally:
        line.end()


class _Waiting:
    """Shows how long the running loop has waited, until it is stopped."""

    def __init__(self, text: str, loop: asyncio.AbstractEventLoop) -> None:
        self._text = text
        self._line = ProgressLine(clock=loop.time)
        self._loop = loop
        self._begun_s = loop.time()
        self._timer: asyncio.TimerHandle | None = loop.call_later(_WAIT_S, self._show)

    def _show(self) -> None:
        waited_s = round(self._loop.time() - self._begun_s)
        self._line.text(f"{self._text}, {waited_s} s")
        self._timer = self._loop.call_later(_WAIT_S, self._show)

    def stop(self) -> None:
        """Show nothing more, and take the line away."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
            self._line.clear()


def stop_waiting() -> None:
    """Show no more that the command waits: it goes on until it is ended."""
    context = click.get_current_context(silent=True)
    shown = None if context is None else context.meta.get(_WAITING)
    if shown is not None:
        shown.stop()


@contextmanager
def waiting(text: str) -> Generator[None]:
    """Show this text and the seconds once the block takes more than 1 s.

    A ProgressLine that the block makes takes its place. Call it in a running loop.
    """
    import asyncio  # which no help needs

    context = click.get_current_context(silent=True)
    shown = _Waiting(text, asyncio.get_running_loop())
    if context is not None:
        context.meta[_WAITING] = shown
    try:
        yield
    finally:
        shown.stop()
        if context is not None:
            context.meta.pop(_WAITING, None)
