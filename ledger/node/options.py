"""The options of `bookie serve` and `bookie audit`: their flags, the file of `serve`, their faults.

A flag and a key of the file have one name. A flag overrides the file, the file overrides the
default. All faults are found at once; each is one line, those of the file with its name and line.
"""

from __future__ import annotations

import difflib
import re
import tomllib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Final

import click

from ledger.bookie.config import ENTRY_BYTES_MAX
from ledger.command_line import units
from ledger.command_line.program import Command, Flags, OldSpelling, Option, flags_given
from ledger.node.config import NodeConfig
from ledger.ports.bookies import BookieTransport
from ledger.repair.config import RepairConfig

_TIB: Final = 2**40
_FILE_BYTES_MAX: Final = 64 * 1024
_TIME_S_MAX: Final = 10 * 365 * 86_400.0
_NODE: Final = NodeConfig()
_REPAIR: Final = RepairConfig()


@dataclass(frozen=True, slots=True)
class Setting:
    """One setting: how its value is parsed, what its help shows, and its default."""

    kind: str  # placeholder of its value in the help
    parse: units.Parse[Any]
    help: str
    default: object
    old: tuple[str, str] | None = None  # a hidden older name, and the unit of a bare number

    @property
    def is_switch(self) -> bool:
        return self.parse is units.boolean


OPTIONS: Final[dict[str, Setting]] = {
    "zookeeper": Setting(
        "SERVERS",
        units.servers,
        "ZooKeeper servers: host:port,host:port, with an optional /chroot at the end.",
        _NODE.zookeeper,
    ),
    "data": Setting(
        "DIR", units.path, "Directory of all data of this bookie; made if missing.", _NODE.data
    ),
    "host": Setting("HOST", units.text, "Address to listen on.", _NODE.host),
    "port": Setting("PORT", units.whole(0, 65_535), "TCP port; 0 takes any free port.", _NODE.port),
    "grpc-port": Setting(
        "PORT", units.whole(0, 65_535), "gRPC port; 0 takes any free port.", _NODE.grpc_port
    ),
    "advertised-host": Setting(
        "HOST",
        units.text,
        "Address at which clients reach it, if not --host.",
        _NODE.advertised_host,
    ),
    "rack": Setting(
        "RACK", units.rack, "Its rack; copies of an entry go to different racks.", _NODE.rack
    ),
    "name": Setting(
        "NAME", units.name, "First part of its id; the rest comes from its directory.", _NODE.name
    ),
    "journal-sync": Setting(
        "MODE",
        units.one_of("group", "never"),
        "group: entries are synced before they are acknowledged; never: they are not.",
        _NODE.journal_sync,
    ),
    "io": Setting(
        "MODE",
        units.one_of("auto", "uring", "off"),
        "uring: the journal is written by io_uring; auto: where it works; off: never.",
        _NODE.io,
    ),
    "disk-free-min": Setting(
        "SIZE",
        units.size(0, 1024 * _TIB),
        "Becomes read-only with less free disk space.",
        _NODE.disk_free_min,
    ),
    "disk-used-max": Setting(
        "PERCENT",
        units.percent(1, 100),
        "Becomes read-only when more of the disk is used.",
        _NODE.disk_used_max,
    ),
    "disk-used-resume": Setting(
        "PERCENT",
        units.percent(1, 99),
        "Becomes writable again when less of the disk is used.",
        _NODE.disk_used_resume,
    ),
    "gc-interval": Setting(
        "DURATION",
        units.duration(0.1, 86_400),
        "Time between two searches for deleted ledgers.",
        _NODE.gc_interval,
    ),
    "rewrite-share": Setting(
        "PERCENT",
        units.percent(0, 90),
        "Rewrites a log file of which a smaller share is live; 0 rewrites none.",
        _NODE.rewrite_share,
    ),
    "entry-max": Setting(
        "SIZE", units.size(1024, ENTRY_BYTES_MAX), "Largest entry that it stores.", _NODE.entry_max
    ),
    "queue-max": Setting(
        "SIZE",
        units.size(1024, _TIB),
        "Bytes that may wait for the disk before adds are refused.",
        _NODE.queue_max,
    ),
    "answers-max": Setting(
        "SIZE",
        units.size(1024, _TIB),
        "Bytes of unsent answers, of all clients, before reads wait or are refused.",
        _NODE.answers_max,
    ),
    "write-cache": Setting(
        "SIZE",
        units.size(0, _TIB),
        "Bytes of the newest entries that stay in memory for readers; 0 keeps none.",
        _NODE.write_cache,
    ),
    "read-ahead": Setting(
        "SIZE",
        units.size(0, _TIB),
        "Bytes of the log that are read from disk ahead of a ledger's reader; 0 reads nothing.",
        _NODE.read_ahead,
    ),
    "tls-cert": Setting(
        "FILE",
        units.path,
        "PEM file with its certificate; needs --tls-key and --tls-ca.",
        _NODE.tls_cert,
    ),
    "tls-key": Setting(
        "FILE",
        units.path,
        "PEM file with its private key; only its owner and group may read it.",
        _NODE.tls_key,
    ),
    "tls-ca": Setting(
        "FILE",
        units.path,
        "PEM file with the CA certificates that sign peer certificates.",
        _NODE.tls_ca,
    ),
    "allow-insecure": Setting(
        "",
        units.boolean,
        "Accept connections from other machines without TLS.",
        _NODE.allow_insecure,
    ),
    "session": Setting(
        "DURATION",
        units.duration(0.2, 300),
        "ZooKeeper session timeout: how long it stays registered after it died.",
        _NODE.session,
    ),
    "zookeeper-wait": Setting(
        "DURATION",
        units.duration(0.1, 86_400),
        "How long to wait for ZooKeeper at the start.",
        _NODE.zookeeper_wait,
    ),
    "audit": Setting(
        "",
        units.boolean,
        "Also find and re-replicate under-replicated ledgers, as `bookie audit` does.",
        _NODE.audit,
    ),
    "audit-delay": Setting(
        "DURATION",
        units.duration(0, _TIME_S_MAX),
        "With --audit: how long a bookie may be absent before its ledgers are re-replicated.",
        _NODE.audit_delay,
    ),
    "bookie-transport": Setting(
        "TRANSPORT",
        units.one_of(*BookieTransport),
        "With --audit: how to reach other bookies: tcp or grpc.",
        BookieTransport.TCP.value,
    ),
    "drain": Setting(
        "DURATION",
        units.duration(0, 600),
        "Time for calls under way to finish when it stops.",
        _NODE.drain,
    ),
}
"""Options of `bookie serve`, which are keys of its file too."""

AUDIT_OPTIONS: Final[dict[str, Setting]] = {
    "zookeeper": Setting(
        "SERVERS",
        units.servers,
        "ZooKeeper servers: host:port,host:port, with an optional /chroot at the end.",
        _NODE.zookeeper,
    ),
    "delay": Setting(
        "DURATION",
        units.duration(0.0, _TIME_S_MAX),
        "How long a bookie may be absent before its ledgers are re-replicated.",
        _REPAIR.delay_s,
        ("--delay-s", "s"),
    ),
    "grace": Setting(
        "DURATION",
        units.duration(0.0, _TIME_S_MAX),
        "Time for a writer to replace a failed bookie before its ledger is fenced.",
        _REPAIR.grace_s,
        ("--grace-s", "s"),
    ),
    "interval": Setting(
        "DURATION",
        units.duration(0.1, _TIME_S_MAX),
        "Time between two audits of the metadata of all ledgers.",
        _REPAIR.interval_s,
        ("--interval-s", "s"),
    ),
    "full-check-interval": Setting(
        "DURATION",
        units.duration(0.1, _TIME_S_MAX),
        "Time between two checks of the entries that each bookie holds.",
        _REPAIR.full_check_s,
        ("--full-check-s", "s"),
    ),
    "ledgers-at-once": Setting(
        "COUNT",
        units.whole(1, 1000),
        "Ledgers that this process re-replicates at a time.",
        _REPAIR.ledgers_at_once,
    ),
    "copy-rate": Setting(
        "SIZE",
        units.rate(0, _TIB),
        "Bytes per second that this process copies at most; 0: no limit.",
        _REPAIR.copy_bytes_per_s_max,
        ("--bytes-per-s", ""),
    ),
    "session": Setting(
        "DURATION",
        units.duration(0.2, 300),
        "ZooKeeper session timeout: how long its locks last after it died.",
        10.0,
    ),
    "tls-cert": Setting(
        "FILE", units.path, "PEM file with its certificate; needs --tls-key and --tls-ca.", None
    ),
    "tls-key": Setting("FILE", units.path, "PEM file with its private key.", None),
    "tls-ca": Setting(
        "FILE", units.path, "PEM file with the CA certificates that sign bookie certificates.", None
    ),
    "bookie-transport": Setting(
        "TRANSPORT",
        units.one_of(*BookieTransport),
        "How to reach bookies: tcp or grpc.",
        BookieTransport.TCP.value,
    ),
}
"""Options of `bookie audit`."""

_COUNTS: Final = ("port", "grpc-port", "ledgers-at-once")


def options_command(
    name: str,
    description: str,
    options: Mapping[str, Setting],
    run: Callable[[Flags], int],
    *others: Option,
) -> Command:
    """Return the command of these options, which are text until `Settings` parses them."""
    parameters: list[click.Parameter] = list(others)
    for each, option in options.items():
        shown = _shown(each, option.default)
        if option.is_switch:
            names = [f"--{each}/--no-{each}"]
            parameters.append(Option(names, default=None, help=option.help, shown=shown))
            continue
        parameters.append(Option([f"--{each}"], metavar=option.kind, help=option.help, shown=shown))
        if option.old is not None:
            old, unit = option.old
            parameters.append(OldSpelling([old], of=_field(each), unit=unit))

    def callback(**_: Any) -> int:
        return run(flags_given())

    return Command(name, params=parameters, help=description, callback=callback)


def serve_command(name: str, description: str, run: Callable[[Flags], int]) -> Command:
    """Return a command with the options of `bookie serve`."""
    file = Option(
        ["--config"],
        metavar="FILE",
        help='TOML file with a line like `port = 3181` or `gc-interval = "5m"` for each option '
        "below; a flag overrides it.",
    )
    return options_command(name, description, OPTIONS, run, file)


def _shown(name: str, default: object) -> str:
    """Return the default as one would write it."""
    if default is None or default == "":
        return "none"
    if isinstance(default, bool):
        return "yes" if default else "no"
    if isinstance(default, float):
        return units.show_time(default)
    if name in ("disk-used-max", "disk-used-resume", "rewrite-share"):
        return f"{default}%"
    if isinstance(default, int) and name not in _COUNTS:
        return units.show_size(default)
    return str(default)


def _field(name: str) -> str:
    return name.replace("-", "_")


class Settings:
    """The values of options, where each comes from, and their faults."""

    def __init__(self, flags: Flags, options: Mapping[str, Setting]) -> None:
        # One line for each value that cannot be parsed, and the names of these options.
        self.faults: list[str] = []
        self.faulty: set[str] = set()
        self._options = options
        # By option: its parsed value, and its source as errors name it. An option that was not
        # given, or whose value is faulty, is in neither and has its default.
        self._values: dict[str, Any] = {}
        self._places: dict[str, str] = {}
        self._read_files(flags)
        for name in options:
            written = getattr(flags, _field(name))
            if written is not None:
                place = f"--{name}" + ("" if written is True else f" {written}")
                self._take(name, written, flags.given(_field(name)) or place)

    def __getitem__(self, name: str) -> Any:
        """Return the value of an option: as given, or its default."""
        return self._values.get(name, self._options[name].default)

    def place(self, name: str) -> str:
        """Return the source of a value, to begin a fault with."""
        return self._places.get(name, f"--{name} {_shown(name, self._options[name].default)}")

    def _read_files(self, flags: Flags) -> None:
        """Take values from files before those of flags. This class has none."""

    def _take(self, name: str, written: object, place: str) -> None:
        try:
            self._values[name] = self._options[name].parse(written)
            self._places[name] = place
        except ValueError as fault:
            self.faults.append(f"{place}: {fault}")
            self.faulty.add(name)


class NodeSettings(Settings):
    """The options of `bookie serve`, from flags and from the file that `--config` names."""

    def __init__(self, flags: Flags) -> None:
        super().__init__(flags, OPTIONS)

    def config(self) -> NodeConfig:
        """Return the configuration. There must be no faults."""
        assert not self.faults
        known = {field.name for field in fields(NodeConfig)}
        values = {_field(name): self[name] for name in OPTIONS}
        assert values.keys() == known
        return NodeConfig(**values)

    def _read_files(self, flags: Flags) -> None:
        if flags.config is not None:
            self._read_file(Path(flags.config))

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
            values = tomllib.loads(written)
        except tomllib.TOMLDecodeError as error:
            self.faults.append(_toml_fault(file, str(error), written))
            return
        for name, value in values.items():
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
    """Return the fault with its line in front."""
    at = re.search(r" \(at (?:line (\d+), column \d+|end of document)\)", message)
    line = at[1] if at is not None and at[1] else written.count("\n") + 1
    return f"{file}:{line}: {message.replace(at[0], '') if at is not None else message}"


def _line_of(name: str, written: str) -> int:
    """Return the line of the key, or of the table of that name; 1 if it is not found."""
    key = re.escape(name)
    begins = re.compile(rf"""\s*\[*\s*["']?{key}["']?\s*[=.\]]""")
    return next(_lines_matching(begins, written), 1)


def _lines_matching(pattern: re.Pattern[str], written: str) -> Iterator[int]:
    for number, line in enumerate(written.splitlines(), 1):
        if pattern.match(line):
            yield number
