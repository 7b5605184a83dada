"""Goal: whoever waits for a command sees on stderr that it works, and programs see little of it.

Method: a pseudo-terminal or a pipe in place of stderr, a clock of the test, and virtual time.
"""

from __future__ import annotations

import asyncio
import errno
import io
from contextlib import contextmanager

import click
import pytest

from ledger.command_line.progress import ProgressLine, be_quiet, counting, waiting
from tests.ledger.printing import Terminal


class Clock:
    """Seconds that pass when the test says so."""

    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture(autouse=True)
def environment(monkeypatch):
    monkeypatch.delenv("COLUMNS", raising=False)


@pytest.fixture
def pipe_of(monkeypatch):
    """Put a pipe in the place of stderr. In the test: pytest sets its own stream before that."""

    def put() -> io.StringIO:
        stream = io.StringIO()
        monkeypatch.setattr("sys.stderr", stream)
        return stream

    return put


@pytest.fixture
def terminal_of(monkeypatch):
    """Put a terminal in the place of stderr."""

    def put() -> Terminal:
        found = Terminal(40)
        monkeypatch.setattr("sys.stderr", found.stream)
        return found

    return put


class Full(io.StringIO):
    """A stream that takes nothing."""

    def write(self, text: str) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")


@contextmanager
def command(*, quiet=False):
    """The context of a command that runs."""
    with click.Context(click.Command("show")):
        be_quiet(quiet)
        yield


# -- lines ----------------------------------------------------------------------------------------


def test_a_terminal_has_one_line_that_is_written_over(terminal_of):
    terminal = terminal_of()
    line = ProgressLine()
    line.text("ten done")
    line.text("11")
    line.end()
    line.text("next")
    line.clear()
    assert terminal.shown() == "\rten done" + "\r11      " + "\n" + "\rnext" + "\r    \r"


def test_a_bar_shows_how_much_is_done(terminal_of, monkeypatch):
    terminal = terminal_of()
    monkeypatch.setenv("COLUMNS", "200")
    line = ProgressLine()
    for done, whole in ((0, 4), (1, 4), (9, 4), (0, 0)):
        line.bar(done, whole, "rows")
    assert [each.rstrip() for each in terminal.shown().split("\r")[1:]] == [
        f"[{'.' * 30}]   0%  0 of 4 rows",
        f"[{'#' * 7}{'.' * 23}]  25%  1 of 4 rows",
        f"[{'#' * 30}] 100%  9 of 4 rows",
        f"[{'#' * 30}] 100%  0 of 0 rows",
    ]


def test_a_bar_is_short_on_a_narrow_terminal(terminal_of):
    terminal = terminal_of()
    line = ProgressLine()
    line.bar(1, 2, "rows")
    line.bar(1, 2, "records of a topic copied")
    first, second = terminal.shown().split("\r")[1:]
    assert first == f"[{'#' * 9}{'.' * 10}]  50%  1 of 2 rows"
    assert second.rstrip() == "  50%  1 of 2 records of a topic copied"[:39]
    assert len(first) == len(second) == 39


def test_a_line_stays_within_its_terminal(terminal_of):
    terminal = terminal_of()
    ProgressLine().text("x" * 100)
    assert terminal.shown() == "\r" + "x" * 38 + "…"


def test_a_name_in_a_line_reaches_no_terminal(terminal_of):
    terminal = terminal_of()
    ProgressLine().text("topic \x1b[2J\n東")
    assert terminal.shown() == "\rtopic \\x1b[2J\\n東"


def test_a_pipe_gets_a_line_every_five_seconds(pipe_of):
    pipe = pipe_of()
    clock = Clock()
    line = ProgressLine(clock=clock)
    for second in range(13):
        clock.now_s = 100.0 + second
        line.text(f"at {second}\x1b")
    line.end()
    line.clear()
    assert pipe.getvalue() == "at 5\\x1b\nat 10\\x1b\n"


@pytest.mark.parametrize("by_option", [True, False])
def test_a_quiet_command_shows_nothing(terminal_of, by_option):
    terminal = terminal_of()
    with command(quiet=by_option):
        line = ProgressLine(quiet=not by_option)
        line.text("working")
        line.bar(1, 2, "rows")
        line.end()
        line.clear()
    assert terminal.shown() == ""


def test_without_a_stderr_nothing_is_shown(monkeypatch, capsys):
    monkeypatch.setattr("sys.stderr", None)
    clock = Clock()
    line = ProgressLine(clock=clock)
    clock.now_s += 60
    line.text("working")
    assert capsys.readouterr().out == ""


def test_a_full_stderr_ends_no_command(monkeypatch):
    clock = Clock()
    full = Full()
    monkeypatch.setattr("sys.stderr", full)
    line = ProgressLine(clock=clock)
    clock.now_s += 60
    line.text("working")
    assert full.getvalue() == ""


# -- waiting --------------------------------------------------------------------------------------


async def test_a_short_wait_is_not_shown(terminal_of):
    terminal = terminal_of()
    with command(), waiting("waiting for a:1"):
        await asyncio.sleep(0.999)
    await asyncio.sleep(60)
    assert terminal.shown() == ""


async def test_a_longer_wait_is_shown_with_its_seconds_and_taken_away(terminal_of):
    terminal = terminal_of()
    with command(), waiting("waiting for a:1"):
        await asyncio.sleep(2.5)
    assert terminal.shown() == (
        "\rwaiting for a:1, 1 s\rwaiting for a:1, 2 s\r" + " " * len("waiting for a:1, 2 s") + "\r"
    )


async def test_a_wait_that_fails_is_taken_away_too(terminal_of):
    terminal = terminal_of()
    with pytest.raises(ValueError, match="refused"), command(), waiting("w"):
        await asyncio.sleep(1.5)
        raise ValueError("refused")
    await asyncio.sleep(60)
    assert terminal.shown() == "\rw, 1 s\r      \r"


async def test_a_pipe_gets_a_line_of_a_wait_every_five_seconds(pipe_of):
    pipe = pipe_of()
    with command(), waiting("waiting for a:1"):
        await asyncio.sleep(12)
    assert pipe.getvalue() == "waiting for a:1, 5 s\nwaiting for a:1, 10 s\n"


async def test_a_pipe_gets_no_line_of_a_wait_of_less_than_five_seconds(pipe_of):
    pipe = pipe_of()
    with command(), waiting("waiting for a:1"):
        await asyncio.sleep(4.9)
    assert pipe.getvalue() == ""


@pytest.mark.parametrize("on_terminal", [True, False])
async def test_a_quiet_command_shows_no_wait(pipe_of, terminal_of, on_terminal):
    stderr = terminal_of() if on_terminal else pipe_of()
    with command(quiet=True), waiting("waiting for a:1"):
        await asyncio.sleep(60)
    assert (stderr.shown() if on_terminal else stderr.getvalue()) == ""


async def test_a_line_of_the_block_takes_the_place_of_the_wait(terminal_of):
    terminal = terminal_of()
    with command(), waiting("w"):
        await asyncio.sleep(1.5)
        line = ProgressLine()
        line.text("1 of 2")
        await asyncio.sleep(5)
        line.end()
    assert terminal.shown() == "\rw, 1 s\r      \r\r1 of 2\n"


async def test_a_count_takes_the_place_of_the_wait_and_stays(terminal_of):
    terminal = terminal_of()
    with command(), waiting("w"):
        await asyncio.sleep(1.5)
        with counting("ledgers") as show:
            show(1, 2)
            await asyncio.sleep(60)
    shown = terminal.shown()
    assert shown.startswith("\rw, 1 s\r      \r\r[")
    assert shown.endswith("  50%  1 of 2 ledgers\n")


async def test_a_wait_within_a_wait_takes_its_place(terminal_of):
    terminal = terminal_of()
    with command(), waiting("outer"):
        await asyncio.sleep(1.5)
        with waiting("w"):
            await asyncio.sleep(1.5)
        await asyncio.sleep(60)
    assert terminal.shown() == "\router, 1 s\r          \r\rw, 1 s\r      \r"


async def test_a_wait_needs_no_command(terminal_of):
    terminal = terminal_of()
    with waiting("w"):
        await asyncio.sleep(1.5)
    assert terminal.shown() == "\rw, 1 s\r      \r"
