"""Commands that print results of a few shapes, and a pseudo-terminal in place of a stream."""

from __future__ import annotations

import fcntl
import os
import struct
import termios
import tty
from collections.abc import Callable

from click.testing import CliRunner

from ledger.command_line.output import Output, output_option
from ledger.command_line.program import CommandGroup
from ledger.command_line.shape import (
    Column,
    Kind,
    Shape,
    Tone,
    one,
    pairs,
    rows,
    text,
    truth,
    whole,
)

COPY = (text("bookie", "Address."), whole("bytes", "Size.", nullable=True))
ROWS = Shape(
    (
        text("name", "Name."),
        whole("log_end_offset", "Next offset.", nullable=True),
        truth("internal", "Whether it is internal."),
        text(
            "state",
            "State.",
            tones={"Stable": Tone.good, "Empty": Tone.warning, "Dead": Tone.bad},
        ),
        text("error", "Error.", nullable=True, if_any=True),
        text("host", "Address.", wide=True),
        Column("tags", Kind.texts, "Tags.", wide=True),
        pairs("configs", "Settings.", wide=True),
        rows("copies", "Copies.", *COPY, json_only=True),
    )
)
OBJECT = Shape(
    fields=(
        text("name", "Name."),
        whole("size", "Size.", nullable=True, show=lambda value: f"{value}B"),
        one("first", "First copy.", *COPY, nullable=True, json_only=True),
    )
)
WITH_ROWS = Shape(fields=OBJECT.fields[:2], rows="copies", columns=COPY)
ONLY_ROWS = Shape(COPY, rows="copies")

FIRST = {
    "name": "orders",
    "log_end_offset": 12,
    "internal": False,
    "state": "Stable",
    "error": None,
    "host": "127.0.0.1",
    "tags": ["a", "b"],
    "configs": {"retention.ms": "5"},
    "copies": [{"bookie": "b:1", "bytes": None}],
}
SECOND = {
    **FIRST,
    "name": "x",
    "log_end_offset": None,
    "internal": True,
    "state": "Dead",
    "tags": [],
    "configs": {},
    "copies": [],
}
SOME_ROWS = [FIRST, SECOND]
AN_OBJECT = {"name": "orders", "size": 7, "first": {"bookie": "b:1", "bytes": 3}}
COPIES = [{"bookie": "b:1", "bytes": 3}, {"bookie": "b:2", "bytes": None}]
AN_OBJECT_WITH_ROWS = {"name": "orders", "size": None, "copies": COPIES}


def printed(show: Callable[[Output], None], *words: str, shapes: tuple[Shape, ...] = (ROWS,)):
    """The exit code, stdout and stderr of a command with these shapes, run with these words."""
    root = CommandGroup("tool", "Print things.")

    @root.command("show")
    @output_option(*shapes)
    def command(output: Output) -> None:  # pyright: ignore[reportUnusedFunction]
        """Show them."""
        show(output)

    done = CliRunner().invoke(root, ["show", *words], prog_name="tool")
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
    return done.exit_code, done.stdout_bytes.decode(), done.stderr_bytes.decode()


class Terminal:
    """A pseudo-terminal of this width, and a stream that writes to it. 0: its size is not known."""

    def __init__(self, columns: int) -> None:
        self._ours, theirs = os.openpty()
        tty.setraw(theirs)  # else the system adds a CR to each LF
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
        self.stream = os.fdopen(theirs, "w", encoding="utf-8")

    def shown(self) -> str:
        """Return what was written until now, and close the terminal."""
        self.stream.write("\0")
        self.stream.flush()
        data = b""
        while not data.endswith(b"\0"):
            data += os.read(self._ours, 65_536)
        self.stream.close()
        os.close(self._ours)
        return data[:-1].decode()
