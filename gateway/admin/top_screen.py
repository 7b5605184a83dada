"""Draws `gateway top` on a terminal until it is interrupted."""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Final

from rich.console import Console
from rich.live import Live
from rich.text import Text

from gateway.admin.client import AdminError, Unreachable
from gateway.admin.top_figures import LiveFigures
from gateway.admin.top_view import Part, ScreenLine, picture
from gateway.admin.topics import Row
from ledger.tasks import start_once

_DRAWN_S: Final = 1.0  # between two drawings at most: the terminal may have another size
_STYLES: Final = {
    Part.head: "bold",
    Part.note: "yellow",
    Part.heading: "bold",
    Part.row: "",
    Part.warning: "yellow",
}


class Screen:
    """The terminal while `gateway top` draws on it, with what it shows."""

    def __init__(self, live: Live, console: Console) -> None:
        self._live = live
        self._console = console
        self._look: Row | None = None
        # When the request began that has not been answered, by the clock; None if none is open.
        self._asked_s: float | None = None
        # Why the last look failed, and since when looks fail; empty if it did not.
        self._fault = ""
        self._failing_since = ""

    async def run(self, figures: LiveFigures, interval_s: float) -> None:
        """Look and draw, for ever. Returns only by an exception."""
        self._draw()
        while True:
            await self._look_once(figures)
            next_s = time.monotonic() + interval_s
            while (left_s := next_s - time.monotonic()) > 0:
                self._draw()
                await asyncio.sleep(min(left_s, _DRAWN_S))

    async def _look_once(self, figures: LiveFigures) -> None:
        """Look, and draw while no answer comes."""
        expected = (AdminError, Unreachable)
        task = start_once("a look of gateway top", figures.look(), expected=expected)
        self._asked_s = time.monotonic()
        try:
            while not (await asyncio.wait([task], timeout=_DRAWN_S))[0]:
                self._draw()
            self._look = task.result()
            self._fault = ""
        except (AdminError, Unreachable) as error:
            self._failing_since = self._failing_since if self._fault else _clock()
            self._fault = str(error)
        finally:
            self._asked_s = None
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    def _notes(self) -> list[str]:
        if self._fault:
            return [f"no figures since {self._failing_since} UTC: {self._fault}"]
        waited_s = 0.0 if self._asked_s is None else time.monotonic() - self._asked_s
        return [f"no answer for {waited_s:.0f} s"] if waited_s >= _DRAWN_S else []

    def _draw(self) -> None:
        size = self._console.size
        lines = picture(self._look, self._notes(), size.width, size.height)
        self._live.update(drawn(lines), refresh=True)


def drawn(lines: list[ScreenLine]) -> Text:
    """Return the lines with their colours. No text is read as markup."""
    text = Text(no_wrap=True, overflow="crop", end="")
    for number, line in enumerate(lines):
        text.append("\n" if number else "")
        text.append(line.text, style=_STYLES[line.part])
    return text


def _clock() -> str:
    return time.strftime("%H:%M:%S", time.gmtime())


async def show(
    figures: LiveFigures, interval_s: float, color: bool, on_end: Callable[[], None]
) -> None:
    """Draw on the whole terminal until the task is cancelled; then the terminal is as before.

    SIGTERM cancels the task as Ctrl-C does, after a call of `on_end`.
    """
    console = Console(
        force_terminal=True,
        force_jupyter=False,
        no_color=not color,
        highlight=False,
        markup=False,
        emoji=False,
    )
    with _ended_by_sigterm(on_end), Live(console=console, screen=True, auto_refresh=False) as live:
        await Screen(live, console).run(figures, interval_s)


@contextmanager
def _ended_by_sigterm(on_end: Callable[[], None]) -> Generator[None]:
    task = asyncio.current_task()
    assert task is not None

    def end() -> None:
        on_end()
        task.cancel()

    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGTERM, end)
    try:
        yield
    finally:
        loop.remove_signal_handler(signal.SIGTERM)
