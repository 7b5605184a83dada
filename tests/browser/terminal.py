"""Pictures of commands as SVG, from what they write to a terminal."""

from __future__ import annotations

import fcntl
import io
import os
import pty
import re
import select
import signal
import struct
import subprocess
import termios
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import NamedTuple

from confluent_kafka import Producer
from rich._export_format import CONSOLE_SVG_FORMAT
from rich.console import Console
from rich.text import Text

from tests.gateway.admin_commands import heeding
from tests.peers import install


class Command(NamedTuple):
    """A command, and the size of its terminal."""

    words: tuple[str, ...]
    columns: int
    lines: int = 40
    screens: int = 0  # screens that it draws before Ctrl-C ends it; 0: it ends by itself


COMMANDS: Mapping[str, Command] = {
    "top": Command(("top", "--interval", "1s"), 88, 18, screens=8),
    "doctor": Command(("doctor",), 132),
    "explain": Command(("explain", "orders", "0", "1"), 116, 60),
}
COMMAND_S_MAX = 60.0
_WRITTEN_S_MAX = 60.0
_HOME = b"\x1b[H"  # a screen is drawn from the upper left
_FONTS = re.compile(r"\s*@font-face \{\{.*?\}\}", re.DOTALL)
_COMMENT = re.compile(r"\s*<!--.*?-->", re.DOTALL)
# rich's picture without its fonts, which a browser would load from elsewhere.
_FORMAT = _COMMENT.sub("", _FONTS.sub("", CONSOLE_SVG_FORMAT)).replace("Fira Code, ", "")


def drawn(name: str, bootstrap: str) -> str:
    """Run one of the commands, and return the picture of what it wrote."""
    command = COMMANDS[name]
    traffic = _Traffic(bootstrap) if command.screens else None
    text = written(command, bootstrap, traffic)
    if traffic is not None:
        traffic.end()
    return as_svg(text, f"gateway {' '.join(command.words)}", command.columns, f"terminal-{name}")


def as_svg(text: str, title: str, columns: int, name: str) -> str:
    """Return a picture of text with the colours of a terminal. It loads nothing."""
    console = Console(
        record=True,
        width=columns,
        file=io.StringIO(),
        force_terminal=True,
        color_system="truecolor",
        highlight=False,
    )
    console.print(Text.from_ansi(text.rstrip(), no_wrap=True, overflow="crop"))
    picture = console.export_svg(title=title, code_format=_FORMAT, unique_id=name)
    return "\n".join(line.rstrip() for line in picture.splitlines()) + "\n"


class _Traffic:
    """Records that arrive while a command looks, so that there are rates."""

    def __init__(self, bootstrap: str) -> None:
        self._producer = Producer({"bootstrap.servers": bootstrap})
        self._count = 0

    def __call__(self) -> None:
        for topic, records in (("orders", 12), ("invoices", 5)):
            for _ in range(records):
                self._count += 1
                self._producer.produce(topic, f'{{"number": {self._count}}}'.encode())
        self._producer.poll(0)

    def end(self) -> None:
        """Wait until all records are written."""
        assert self._producer.flush(_WRITTEN_S_MAX) == 0


def written(command: Command, bootstrap: str, meanwhile: Callable[[], None] | None) -> str:
    """Return what a command writes to a terminal, or the last screen that it draws whole."""
    ours, theirs = pty.openpty()
    size = struct.pack("HHHH", command.lines, command.columns, 0, 0)
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, size)
    words = heeding([install.gateway_python(), "-m", "gateway", *command.words])
    environment = {**os.environ, "GATEWAY_BOOTSTRAP": bootstrap, "TERM": "xterm-256color"}
    environment.pop("NO_COLOR", None)
    with subprocess.Popen(
        words, stdin=theirs, stdout=theirs, stderr=theirs, env=environment
    ) as run:
        os.close(theirs)
        shown = _read(ours, run, command.screens, meanwhile)
    os.close(ours)
    if command.screens:
        shown = shown.split(_HOME)[-2]
    return shown.decode().replace("\r\n", "\n")


def _read(
    ours: int,
    run: subprocess.Popen[bytes],
    screens: int,
    meanwhile: Callable[[], None] | None,
) -> bytes:
    shown = b""
    due_s = time.monotonic() + COMMAND_S_MAX
    with suppress(OSError):  # EIO at the end: nothing holds the other side
        while piece := _piece(ours, due_s, meanwhile):
            shown += piece
            if screens and shown.count(_HOME) > screens and run.poll() is None:
                run.send_signal(signal.SIGINT)
                screens = 0
    assert time.monotonic() < due_s, f"the command did not end:\n{shown.decode()}"
    return shown


def _piece(ours: int, due_s: float, meanwhile: Callable[[], None] | None) -> bytes:
    """Return what was written next. Returns nothing once it takes too long."""
    while time.monotonic() < due_s:
        if meanwhile is not None:
            meanwhile()
        if select.select([ours], [], [], 0.1)[0]:
            return os.read(ours, 65_536)
    return b""
