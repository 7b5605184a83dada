"""The flags and the file of `bookie serve`, and all that is wrong with them at once.

A flag and a key of the file have one name. A flag goes before the file, the file before the
default. Faults are lines of text: of the file with its name and line.
"""

from __future__ import annotations

import argparse
import difflib
import re
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Final

from ledger.bookie.config import ENTRY_BYTES_MAX
from ledger.node import units
from ledger.node.config import NodeConfig

_TIB: Final = 2**40
_FILE_BYTES_MAX: Final = 64 * 1024


@dataclass(frozen=True, slots=True)
class Option:
    """One setting: how it is read and what it is for."""

    parse: units.Parse[Any]
    said: str

    @property
    def is_switch(self) -> bool:
        return self.parse is units.boolean


OPTIONS: Final[dict[str, Option]] = {
    "zookeeper": Option(
        units.servers, "ZooKeeper servers, host:port by commas; /chroot at the end"
    ),
    "data": Option(units.path, "directory of all data of this bookie; made if missing"),
    "host": Option(units.text, "address to listen on"),
    "port": Option(units.whole(0, 65_535), "gRPC port; 0 takes any free one"),
    "advertised-host": Option(units.text, "where clients reach it, if not at --host"),
    "rack": Option(units.rack, "where it stands; copies go to different racks"),
    "name": Option(units.name, "begins its id; the rest comes from the directory"),
    "journal-sync": Option(
        units.one_of("group", "never"),
        "group: synced before each acknowledgement; never: not at all",
    ),
    "disk-free-min": Option(units.size(0, 1024 * _TIB), "read-only with less free space than this"),
    "disk-used-max": Option(units.percent(1, 100), "read-only when more of the disk is used"),
    "disk-used-resume": Option(units.percent(1, 99), "writable again when less of it is used"),
    "gc-interval": Option(units.duration(0.1, 86_400), "how often to look for deleted ledgers"),
    "rewrite-share": Option(
        units.percent(0, 90), "rewrite log files of which less than this is needed; 0: none"
    ),
    "entry-max": Option(units.size(1024, ENTRY_BYTES_MAX), "largest entry taken"),
    "queue-max": Option(units.size(1024, _TIB), "bytes that may wait for the disk"),
    "tls-cert": Option(units.path, "PEM certificate; with --tls-key and --tls-ca"),
    "tls-key": Option(units.path, "PEM private key, not readable by others"),
    "tls-ca": Option(units.path, "PEM certificates of who signs peers"),
    "allow-insecure": Option(units.boolean, "listen beyond this machine without TLS"),
    "session": Option(
        units.duration(0.2, 300), "silence after which ZooKeeper forgets this bookie"
    ),
    "zookeeper-wait": Option(
        units.duration(0.1, 86_400), "how long to wait at the start for ZooKeeper"
    ),
    "drain": Option(units.duration(0, 600), "what calls under way get at the end"),
}


def parser(prog: str, description: str) -> argparse.ArgumentParser:
    """The flags. What is not given is None: the file may say it, or else the default."""
    flags = argparse.ArgumentParser(
        prog=prog,
        description=description,
        epilog="Sizes: 256MiB, 1GiB. Times: 500ms, 10s, 5m. A file given with --config has a line "
        'like `port = 3181` or `gc-interval = "5m"` for each setting; flags go before it.',
        allow_abbrev=False,
    )
    flags.add_argument("--config", metavar="FILE", help="TOML file with any of the settings below")
    for name, option in OPTIONS.items():
        said = f"{option.said} (default: {_shown(name)})"
        if option.is_switch:
            flags.add_argument(
                f"--{name}", action=argparse.BooleanOptionalAction, default=None, help=said
            )
        else:
            flags.add_argument(f"--{name}", metavar="...", help=said.replace("%", "%%"))
    return flags


def _shown(name: str) -> str:
    """The default, as one would write it."""
    default = _default(name)
    if default is None or default == "":
        return "none"
    if isinstance(default, bool):
        return "yes" if default else "no"
    if isinstance(default, float):
        return units.show_time(default)
    if name in ("disk-used-max", "disk-used-resume", "rewrite-share"):
        return f"{default}%"
    if isinstance(default, int) and name != "port":
        return units.show_size(default)
    return str(default)


def _default(name: str) -> object:
    return getattr(NodeConfig(), _field(name))


def _field(name: str) -> str:
    return name.replace("-", "_")


class Settings:
    """What was said, by flags and by the file, and what is wrong with it."""

    def __init__(self, flags: argparse.Namespace) -> None:
        self.faults: list[str] = []
        self.faulty: set[str] = set()
        self._places: dict[str, str] = {}
        self._values: dict[str, Any] = {}
        if flags.config is not None:
            self._read_file(Path(flags.config))
        for name in OPTIONS:
            said = getattr(flags, _field(name))
            if said is not None:
                self._take(name, said, f"--{name}" + ("" if said is True else f" {said}"))

    def __getitem__(self, name: str) -> Any:
        """The value of an option: as said, or its default."""
        return self._values.get(name, _default(name))

    def place(self, name: str) -> str:
        """Where the value comes from, to begin a fault with."""
        return self._places.get(name, f"--{name} {_shown(name)}")

    def config(self) -> NodeConfig:
        """The configuration. Only when there are no faults."""
        assert not self.faults
        known = {field.name for field in fields(NodeConfig)}
        values = {_field(name): self[name] for name in OPTIONS}
        assert values.keys() == known
        return NodeConfig(**values)

    def _take(self, name: str, said: object, place: str) -> None:
        try:
            self._values[name] = OPTIONS[name].parse(said)
            self._places[name] = place
        except ValueError as fault:
            self.faults.append(f"{place}: {fault}")
            self.faulty.add(name)

    def _read_file(self, file: Path) -> None:
        try:
            with file.open("rb") as opened:
                content = opened.read(_FILE_BYTES_MAX + 1)
            if len(content) > _FILE_BYTES_MAX:
                raise ValueError(f"longer than {_FILE_BYTES_MAX} bytes")
            written = content.decode()
        except (OSError, ValueError) as error:
            reason = error.strerror if isinstance(error, OSError) else str(error)
            self.faults.append(f"--config {file}: {reason}")
            return
        try:
            said = tomllib.loads(written)
        except tomllib.TOMLDecodeError as error:
            self.faults.append(_toml_fault(file, str(error), written))
            return
        for name, value in said.items():
            place = f"{file}:{_line_of(name, written)}: {name}"
            if name in OPTIONS:
                self._take(name, value, f"{place} = {_as_written(value)}")
            else:
                self.faults.append(f"{place}: unknown key{_nearest(name)}")


def _as_written(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return f'"{value}"' if isinstance(value, str) else str(value)


def _nearest(name: str) -> str:
    near = difflib.get_close_matches(name.replace("_", "-").lower(), OPTIONS, 1, 0.5)
    return f", nearest is {near[0]}" if near else ""


def _toml_fault(file: Path, message: str, written: str) -> str:
    """With the line in front."""
    at = re.search(r" \(at (?:line (\d+), column \d+|end of document)\)", message)
    line = at[1] if at is not None and at[1] else written.count("\n") + 1
    return f"{file}:{line}: {message.replace(at[0], '') if at is not None else message}"


def _line_of(name: str, written: str) -> int:
    """The line where the key, or the table of that name, stands; 1 if it hides."""
    key = re.escape(name)
    begins = re.compile(rf"""\s*\[*\s*["']?{key}["']?\s*[=.\]]""")
    return next(_lines_matching(begins, written), 1)


def _lines_matching(pattern: re.Pattern[str], written: str) -> Iterator[int]:
    for number, line in enumerate(written.splitlines(), 1):
        if pattern.match(line):
            yield number
