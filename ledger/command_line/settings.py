"""Settings of servers: one row for each feeds flags, environment, files, help and reference.

A flag overrides the environment, the environment overrides the file of `--config`, and the file
overrides the default. In the environment, a variable with the prefix of the table overrides one of
Kafka's images (`KAFKA_NODE_ID`), which tables with answers to foreign keys read. All faults are
found at once; each is one line that begins with its place.
An option that concerns one start only, such as `--once`, is no setting and has no row.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, NamedTuple, cast

import click

from ledger.command_line import units
from ledger.command_line.program import Flags, OldSpelling, Option, Value

NOTICES_MAX: Final = 100
"""Most faults, and most warnings, that are reported of one start."""

HIDDEN: Final = "[hidden]"
OFF: Final = "off"
REFERENCES: Final = ("file:", "env:")
"""How the name of a place with a secret begins."""

MANY_MAX: Final = 16
"""Most values of a setting that has several."""

_KAFKA: Final = "KAFKA_"
_WRITTEN_MAX: Final = 200  # characters of a value that a fault quotes
_BARE_NUMBER = re.compile(r"-?\d+(\.\d+)?", re.ASCII)
_BOOLEANS: Final = {"true": True, "false": False}
_SERVICE_PORT = re.compile(r"(tcp|udp|sctp)://[^\s/]+:\d+", re.ASCII)


class KafkaKey(NamedTuple):
    """A key of Kafka's broker that means the same as a setting."""

    name: str
    unit: str = ""  # of a value without one
    is_list: bool = False  # Kafka takes several values there; the setting takes one


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """One row: the names of a setting, and how its value is parsed and shown."""

    name: str  # of its flag, without the leading `--`
    kind: str = ""  # placeholder of its value in the help; "" for a switch
    parse: units.Parse[Any] = units.boolean
    help: str
    default: object = None  # None if there is no value
    shown: str | None = None  # text of the help in place of the default
    kafka: tuple[KafkaKey, ...] = ()
    environment: str = ""  # name of its variable; "": from the prefix of the table and its name
    secret: bool = False
    reference: bool = False  # names where a secret is; what is no such name may be the secret
    old: tuple[str, str] | None = None  # a hidden older name, and the unit of a bare number
    many: bool = False  # several values: a tuple; in text, commas are between them
    off: str = ""  # help of the flag `--no-NAME`, if `off` is a value; it is parsed as None

    @property
    def field(self) -> str:
        """The name of its option in `Flags`."""
        return self.name.replace("-", "_")

    @property
    def is_switch(self) -> bool:
        return not self.kind

    def hides(self, written: object) -> bool:
        """Return whether a value must not be shown as it was written."""
        is_name = isinstance(written, str) and written.startswith(REFERENCES)
        return self.secret or (self.reference and not is_name)

    def write(self, value: Any) -> str:
        """Return the value as one would write it, or "" if there is none."""
        if self.many:
            return ",".join(map(str, value))
        if value is None:
            return OFF if self.off else ""
        if isinstance(value, bool):
            return "true" if value else "false"
        if self.kind == "DURATION":
            return _written_duration(value)
        if self.kind == "SIZE":
            return units.show_size(value)
        return f"{value}%" if self.kind == "PERCENT" else str(value)

    def plain(self, value: Any) -> bool | int | str | None:
        """Return the value as TOML and JSON write it. Units need text."""
        if (value is None and not self.off) or value == ():
            return None
        if isinstance(value, int) and self.kind not in ("DURATION", "SIZE", "PERCENT"):
            return value
        return self.write(value)

    def parse_value(self, written: object) -> Any:
        """Parse a value. Raises ValueError with the accepted form."""
        if self.many:
            return self._parse_many(written)
        if self.off and written == OFF:
            return None
        if isinstance(written, str) and _has_surrogate(written):
            raise ValueError("is not valid UTF-8")
        if isinstance(written, str) and "\0" in written:  # no variable of a worker can have it
            raise ValueError("must not have a NUL character")
        return self.parse(written)

    def _parse_many(self, written: object) -> tuple[Any, ...]:
        """Parse text with commas, or a list of texts. Raises ValueError that names a bad one."""
        if isinstance(written, str):
            written = written.split(",")
        if not isinstance(written, (list, tuple)):
            raise ValueError("must be text, or a list of texts")
        items = cast("Sequence[object]", written)
        if len(items) > MANY_MAX:
            raise ValueError(f"has {len(items)} values; at most {MANY_MAX} are possible")
        one, found = replace(self, many=False), list[Any]()
        for each in items:
            item = each.strip(" \t") if isinstance(each, str) else each
            try:
                found.append(one.parse_value(item))
            except ValueError as fault:
                if len(items) == 1:
                    raise
                raise ValueError(f"{cut(str(item))}: {fault}") from None
        return tuple(found)

    def parse_text(self, written: str) -> Any:
        """Parse a value of a variable or of a properties file, where a boolean is text too."""
        return self.parse_value(
            _BOOLEANS.get(written.lower(), written) if self.is_switch else written
        )


def _has_surrogate(text: str) -> bool:
    return any("\ud800" <= character <= "\udfff" for character in text)


def _written_duration(value_s: float) -> str:
    """Return a duration that is parsed as exactly this value."""
    shown = units.show_time(value_s)
    if units.seconds(shown) == value_s:
        return shown
    from decimal import Decimal

    return f"{Decimal(repr(float(value_s))):f}s"


class Foreign(NamedTuple):
    """A key of Kafka that sets nothing here."""

    text: str  # what follows `FILE:LINE: KEY: `
    is_fault: bool  # otherwise it is only a warning


ForeignKeys = Callable[[str, str, Mapping[str, str]], Foreign | None]
"""Returns the answer to a key that is no setting, or None.

It gets the key, its value as text, and all keys of the file with their values as text.
"""


Prefixed = Callable[[str], tuple[Setting, KafkaKey] | None]
"""Returns the row of a key that begins with the name of a part of the server, or None.

The name of the row is the key in lower case, and its variable that of Kafka's images.
"""


class Table:
    """The rows of one command, by name."""

    def __init__(
        self,
        prefix: str,
        rows: Sequence[Setting],
        *,
        one_start: Sequence[str] = (),
        foreign: ForeignKeys | None = None,
        prefixed: Prefixed | None = None,
    ) -> None:
        # Rows of a part of the server, such as one of its listeners; no flag sets them.
        self.prefixed: Final = prefixed
        named = [row if row.environment else _with_environment(row, prefix) for row in rows]
        self.rows: Final[Mapping[str, Setting]] = {row.name: row for row in named}
        assert len(self.rows) == len(rows)
        assert len({row.environment for row in named}) == len(rows)
        self.prefix: Final = prefix
        # Names of options that concern one start: a file that has one gets an answer of its own.
        self.one_start: Final = frozenset(one_start)
        self.foreign: Final = foreign
        self._by_kafka: Final[Mapping[str, tuple[Setting, KafkaKey]]] = {
            key.name: (row, key) for row in named for key in row.kafka
        }

    def __getitem__(self, name: str) -> Setting:
        found = self.rows.get(name)
        if found is None:
            of_part = self.prefixed(name) if self.prefixed is not None else None
            if of_part is None:
                raise KeyError(name)
            return of_part[0]
        return found

    def __iter__(self) -> Iterator[Setting]:
        return iter(self.rows.values())

    def find(self, key: str) -> tuple[Setting, KafkaKey | None] | None:
        """Return the row of a key of a file: a flag's name, with `-` or `_`, or a key of Kafka."""
        row = self.rows.get(key.replace("_", "-"))
        return self.find_kafka(key) if row is None else (row, None)

    def find_kafka(self, key: str) -> tuple[Setting, KafkaKey] | None:
        """Return the row of a key of Kafka."""
        found = self._by_kafka.get(key)
        return self.prefixed(key) if found is None and self.prefixed is not None else found

    def keys(self) -> list[str]:
        """Return all keys that a file may have."""
        return [*self.rows, *self._by_kafka]

    def kafka_keys(self) -> list[str]:
        """Return the keys of Kafka."""
        return [*self._by_kafka]


def _with_environment(row: Setting, prefix: str) -> Setting:
    return replace(row, environment=f"{prefix}_{row.field.upper()}")


class Origin(NamedTuple):
    """The source of a value, and the words that begin a fault of it."""

    text: str  # `flag`, `environment GATEWAY_PORT`, `file FILE:LINE` or `default`
    place: str  # such as `--port 70000` or `gateway.toml:3: port = 70000`


class Settings:
    """The values of a command's settings, the origin of each, and their faults."""

    def __init__(
        self,
        flags: Flags,
        table: Table,
        environment: Mapping[str, str] | None = None,
        *,
        reads_file: bool = False,
    ) -> None:
        """Read the settings. A worker of a supervisor reads the file only with `reads_file`."""
        self.flags: Final = flags
        self.table: Final = table
        # One line for each value that cannot be used, and the names of their settings.
        self.faults: list[str] = []
        self.faulty: set[str] = set()
        # One line for each key that has no effect. The process starts nevertheless.
        self.warnings: list[str] = []
        # By setting: its parsed value and its origin. A setting that was not given, or whose value
        # is faulty, is in neither and has its default.
        self._values: dict[str, Any] = {}
        self._origins: dict[str, Origin] = {}
        # Keys of Kafka that are no settings here, with their values as text: of the file, and of
        # variables, which override them.
        self.foreign: dict[str, str] = {}
        is_read = reads_file or not self._is_worker
        if getattr(flags, "config", None) is not None and is_read:
            from ledger.command_line.settings_file import take_file

            take_file(self, flags.config)
        variables = os.environ if environment is None else environment
        if table.foreign is not None and any(name.startswith(_KAFKA) for name in variables):
            from ledger.command_line.settings_kafka import take_variables

            take_variables(self, variables)
        self._take_environment(variables)
        self._take_flags()

    @property
    def _is_worker(self) -> bool:
        """Whether a supervisor started this process: it has read the file already."""
        return getattr(self.flags, "supervisor", None) is not None

    def __getitem__(self, name: str) -> Any:
        """Return the value of a setting: as given, or its default."""
        return self._values[name] if name in self._values else self.table[name].default

    def place(self, name: str) -> str:
        """Return the source of a value, to begin a fault with."""
        if name in self._origins:
            return self._origins[name].place
        row = self.table[name]
        return f"--{name} {row.shown or row.write(row.default) or 'none'}"

    def origin(self, name: str) -> str:
        """Return `flag`, `environment NAME`, `file FILE:LINE` or `default`."""
        return self._origins[name].text if name in self._origins else "default"

    @property
    def of_parts(self) -> list[Setting]:
        """The rows of parts of the server that were given, by name."""
        return [self.table[name] for name in sorted(self._values) if name not in self.table.rows]

    def is_default(self, name: str) -> bool:
        """Return whether the setting was given nowhere."""
        return name not in self._origins

    def take_over(self, name: str, other: Settings) -> None:
        """Take a value and its origin from other settings of the same table."""
        for ours, theirs in ((self._values, other._values), (self._origins, other._origins)):
            ours.pop(name, None)
            if name in theirs:
                ours[name] = theirs[name]

    def of_file(self) -> dict[str, str]:
        """Return the values that come from the file, as variables that would set the same."""
        return {
            self.table[name].environment: self.table[name].write(self._values[name])
            for name, origin in self._origins.items()
            if origin.text.startswith("file ")
        }

    def placed(self, fault: str) -> str:
        """Return a fault that begins with a flag and its value with the place of that value."""
        for name in self._origins:
            row, value = self.table[name], self._values[name]
            for each in map(str, value) if row.many else (row.write(value),):
                flag = f"--{name} {each}"
                if fault.startswith((f"{flag}:", f"{flag} ")):
                    return self.place_of(name, each) + fault.removeprefix(flag)
        return fault

    def place_of(self, name: str, written: str) -> str:
        """Return the source of a value, or of one of several, to begin a fault with."""
        origin = self._origins[name]
        if not self.table[name].many:
            return origin.place
        return f"--{name} {written}" if origin.text == "flag" else f"{origin.place}: {written}"

    def take(self, row: Setting, written: object, origin: Origin, *, is_text: bool = False) -> None:
        """Set a value as it was written, or note why it cannot be used."""
        try:
            if is_text:
                value = row.parse_text(str(written))
            else:
                value = row.parse_value(written)
        except ValueError as fault:
            message = str(fault)
            if row.hides(written):
                message = message.replace(str(written), HIDDEN) if written else message
            self.fault(f"{origin.place}: {message}", row.name)
            return
        self._values[row.name] = value
        self._origins[row.name] = origin

    def fault(self, line: str, name: str | None = None) -> None:
        """Note a fault, of the setting `name` if it is known."""
        _note(self.faults, line, "faults")
        if name is not None:
            self.faulty.add(name)

    def warn(self, line: str) -> None:
        """Note a key that has no effect."""
        _note(self.warnings, line, "warnings")

    def _take_environment(self, environment: Mapping[str, str]) -> None:
        for row in self.table:
            name, written = row.environment, environment.get(row.environment)
            # An empty variable counts as none. One that a flag overrides may be meant for clients.
            if not written or self.has_flag(row):
                continue
            if _is_of_kubernetes(name, written, environment):
                self.warn(f"{name}={written}: Kubernetes sets this for a Service; it is ignored")
                continue
            shown = HIDDEN if row.hides(written) else cut(written)
            self.take(row, written, Origin(f"environment {name}", f"{name}={shown}"), is_text=True)

    def has_flag(self, row: Setting) -> bool:
        """Return whether a flag sets this row, so that no variable does."""
        if row.name not in self.table.rows:
            return False
        is_off = bool(row.off) and getattr(self.flags, f"no_{row.field}")
        return is_off or getattr(self.flags, row.field) not in (None, ())

    def _take_flags(self) -> None:
        for row in self.table:
            if row.off and getattr(self.flags, f"no_{row.field}"):
                self.take(row, OFF, Origin("flag", f"--no-{row.name}"))
                continue
            if row.many:
                self._take_repeated(row)
                continue
            written = getattr(self.flags, row.field)
            if written is None:
                continue
            flag = f"--{'' if written is not False else 'no-'}{row.name}"
            if row.hides(written):
                place = f"{flag} {HIDDEN}"
            elif row.is_switch:
                place = flag
            else:
                place = self.flags.given(row.field) or f"{flag} {written}"
            self.take(row, written, Origin("flag", place))

    def _take_repeated(self, row: Setting) -> None:
        written: Sequence[str] = getattr(self.flags, row.field)
        if written:
            place = cut(" ".join(f"--{row.name} {each}" for each in written))
            self.take(row, written, Origin("flag", place))


def _note(lines: list[str], line: str, what: str) -> None:
    if len(lines) < NOTICES_MAX:
        lines.append(line)
    elif len(lines) == NOTICES_MAX:
        lines.append(f"there are more than {NOTICES_MAX} {what}; the others are not shown")


def _is_of_kubernetes(name: str, written: str, environment: Mapping[str, str]) -> bool:
    """Return whether Kubernetes set the variable, for a Service of the name in front of `_PORT`."""
    service = name.removesuffix("_PORT")
    if service == name or not _SERVICE_PORT.fullmatch(written):
        return False
    return f"{service}_SERVICE_HOST" in environment


def cut(written: str) -> str:
    """Return the value, or its begin if it is too long for a line."""
    return written if len(written) <= _WRITTEN_MAX else f"{written[:_WRITTEN_MAX]}..."


def with_unit(written: object, unit: str) -> object:
    """Return the value with the unit that it lacks."""
    is_number = isinstance(written, (int, float, str)) and not isinstance(written, bool)
    if unit and is_number and _BARE_NUMBER.fullmatch(str(written)):
        return f"{written}{unit}"
    return written


def options_of(table: Table) -> list[click.Parameter]:
    """Return the options of all rows. Their values are text until `Settings` parses them."""
    return [option for row in table for option in _options_of(row)]


def _options_of(row: Setting) -> Iterator[click.Parameter]:
    shown = row.shown or row.write(row.default) or "none"
    if row.is_switch:
        if row.shown is None:
            shown = {True: "yes", False: "no"}.get(bool(row.default))
        names = [f"--{row.name}/--no-{row.name}"]
        yield Option(names, default=None, help=row.help, shown=shown)
        return
    yield Option([f"--{row.name}"], metavar=row.kind, help=row.help, shown=shown, multiple=row.many)
    if row.off:
        yield Option([f"--no-{row.name}"], is_flag=True, help=row.off)
    if row.old is not None:
        old, unit = row.old
        yield OldSpelling([old], of=row.field, unit=unit)


def file_options(prefix: str, *, formats: str = "table, json or toml") -> list[click.Parameter]:
    """Return `--config` and `--print-config`."""
    return [
        Option(
            ["--config"],
            metavar="FILE",
            help="File with settings, in TOML or, if its name ends in .properties, as Kafka's "
            f"server.properties. A flag overrides a variable such as {prefix}_PORT, which "
            "overrides the file.",
        ),
        Option(
            ["--print-config"],
            is_flag=True,
            help="Print each setting with its value and origin, and start nothing. -o chooses the "
            f"form: {formats}.",
        ),
    ]


def output_option() -> Option:
    """Return `--output` of a server that prints nothing else in several forms."""
    return Option(
        ["--output", "-o"],
        type=Value("format", units.one_of("table", "json", "toml")),
        default="table",
        help="Form of --print-config: table, json or toml. With json, errors are JSON too.",
    )
