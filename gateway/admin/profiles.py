"""Profiles: named settings of commands, in `$XDG_CONFIG_HOME/ledger-gateway/config.toml`.

The file is read whole and checked whole, so a fault in one profile is reported whichever profile is
used. A fault names the file, the line and the fix, and never contains the value of a secret.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple, NoReturn, cast

from gateway.admin.addresses import check_metadata_address, parse_bootstrap
from gateway.admin.client_settings import (
    CLIENT_KEYS,
    HIDDEN,
    PROTOCOL,
    PROTOCOLS,
    SASL_KEYS,
    SECRET_KEYS,
    TLS_KEYS,
)
from gateway.admin.profile_place import COLORS, NO_PROFILE, OUTPUTS
from ledger.command_line import program, units
from ledger.command_line.secret_files import others_read

BOOKIES: Final = "bookies"
"""The key in the table `tls` for the directory of `--tls`."""

BYTES_MAX: Final = 65_536
_DEPTH_MAX: Final = 8  # of keys with dots; Kafka's have up to six parts
_SHOWN_MAX: Final = 100  # characters of a key
_PLACE: Final = re.compile(r"(.*) \(at (?:line (\d+), column \d+|end of document)\)", re.DOTALL)
_REGISTRY: Final = re.compile(r"https?://(?:[^/@\s]+@)?[^/@\s?#]+(?:/[^@\s?#]*)?")

Keys = tuple[str, ...]
"""The keys that lead to a value, from the top of the file."""


class ProfileFault(Exception):
    """A fault of the file of profiles. The text names the file, the line and the fix."""


class _Fault(Exception):
    """A fault at a place of the file. `path` is empty if it has no place of its own."""

    def __init__(self, path: Keys, message: str) -> None:
        super().__init__(message)
        self.path = path


class Profile(NamedTuple):
    """One profile. `values` has the settings that are set, by the names of their options."""

    name: str
    values: Mapping[str, str]
    client_keys: Mapping[str, str]
    protected: bool

    @property
    def secrets(self) -> list[str]:
        """The names of the settings that hold secrets."""
        values = {**self.client_keys, **self.values}
        return [key for key, value in values.items() if is_secret(key, value)]


class ProfileFile(NamedTuple):
    """The content of the file. `current` is the name of one of the profiles."""

    current: str | None = None
    profiles: Mapping[str, Profile] = {}


# values


def _text_of(value: object) -> str:
    """Parse a value of a client key: text, a number or a boolean, as Kafka spells it."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (int, float)):
        return str(value)
    if not isinstance(value, str):
        raise ValueError("must be text, a number or a boolean")
    return value


def _bootstrap(value: object) -> str:
    found = units.text(value)
    parse_bootstrap(found)
    return found


def _zookeeper(value: object) -> str:
    found = units.text(value)
    check_metadata_address(found)
    return found


def _directory(value: object) -> str:
    if not Path(units.text(value)).is_absolute() or "\0" in units.text(value):
        raise ValueError("must be the absolute path of a directory")
    return units.text(value)


def _registry(value: object) -> str:
    if not _REGISTRY.fullmatch(units.text(value)):
        raise ValueError("must be a URL such as http://127.0.0.1:8081")
    return units.text(value)


_PARSERS: Final[Mapping[str, Callable[[object], str]]] = {
    "bootstrap": _bootstrap,
    "zookeeper": _zookeeper,
    "schema_registry": _registry,
    "output": units.one_of(*OUTPUTS),
    "color": units.one_of(*COLORS),
    "tls": _directory,
    PROTOCOL: units.one_of_any_case(*PROTOCOLS),
}
_PLAIN: Final = ("bootstrap", "zookeeper", "schema_registry", "output", "color")
_TABLES: Final[Mapping[str, Sequence[str]]] = {"tls": TLS_KEYS, "sasl": (PROTOCOL, *SASL_KEYS)}
_PROFILE_KEYS: Final = (*_PLAIN, *_TABLES, "protected")


def parse_value(key: str, value: object) -> str:
    """Parse the value of a setting or of a client key. Raises ValueError with the form."""
    return _PARSERS.get(key, _text_of)(value)


def hidden(key: str, value: str) -> str:
    """Return the value as it may be shown: a secret is replaced, also one in a URL."""
    if key == "schema_registry":
        return re.sub(r"//[^/]*@", f"//{HIDDEN}@", value)
    return HIDDEN if key in SECRET_KEYS else value


def is_secret(key: str, value: str) -> bool:
    """Return whether the value is a password, a private key, or a URL with a password."""
    return hidden(key, value) != value


def nearest(word: str, known: Sequence[str]) -> str:
    """Return a question that names the nearest of the known words, or nothing."""
    if len(word) > _SHOWN_MAX:  # the search takes time with the square of the length
        return ""
    return program.nearest(word, known, most=1, likeness_min=0.6)


def check_name(name: object) -> str:
    """Parse the name of a profile. Raises ValueError with the form."""
    if units.name(name) == NO_PROFILE:
        raise ValueError(f"{NO_PROFILE} stands for no profile; choose another name")
    return units.name(name)


# the file


def load(path: Path) -> ProfileFile:
    """Return the profiles; none if there is no file. Raises ProfileFault."""
    try:
        path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return ProfileFile()
    except OSError as error:
        raise ProfileFault(f"{path}: {error.strerror}") from None
    text, mode = read(path)
    found = parse(path, text)
    if others_read(mode):
        _refuse_secrets(path, found)
    return found


def _refuse_secrets(path: Path, found: ProfileFile) -> None:
    for profile in found.profiles.values():
        if profile.secrets:
            from shlex import quote

            what = f"{profile.secrets[0]} of profile {profile.name}"
            fix = f"run chmod 600 {quote(str(path))}"
            raise ProfileFault(f"{path} holds a secret ({what}) that others may read; {fix}")


def read(path: Path) -> tuple[str, int]:
    """Return the text of the file, and its mode. Raises ProfileFault."""
    try:
        number = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        with open(number, "rb") as file:
            mode = os.fstat(number).st_mode
            if not stat.S_ISREG(mode):
                raise ProfileFault(f"{path}: is not a file")
            data = file.read(BYTES_MAX + 1)
    except OSError as error:
        raise ProfileFault(f"{path}: {error.strerror}") from None
    if len(data) > BYTES_MAX:
        raise ProfileFault(f"{path}: has more than {units.show_size(BYTES_MAX)}")
    try:
        return data.decode(), mode
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise ProfileFault(f"{path} line {line}: is not UTF-8") from None


def parse(path: Path, text: str) -> ProfileFile:
    """Parse and check the text of the file. Raises ProfileFault."""
    try:
        return _profiles(_toml(text))
    except _Fault as fault:
        line = f" line {_line_of(text, fault.path)}" if fault.path else ""
        raise ProfileFault(f"{path}{line}: {fault}") from None
    except RecursionError:
        raise ProfileFault(f"{path}: tables or arrays are nested too deeply") from None
    except ValueError as error:
        _raise_not_toml(path, text, error)


def _toml(text: str) -> dict[str, Any]:
    import tomllib

    return tomllib.loads(text)


def _raise_not_toml(path: Path, text: str, error: ValueError) -> NoReturn:
    found = _PLACE.fullmatch(str(error))
    reason = found[1] if found else str(error)
    line = (found and found[2]) or (text.rstrip("\n").count("\n") + 1 if found else None)
    place = f"{path} line {line}" if line else path
    raise ProfileFault(f"{place}: {reason[:1].lower()}{reason[1:]}") from None


def _line_of(text: str, path: Keys) -> int:
    """Return the line on which the statement begins that sets this path.

    Of all beginnings of the file that are valid TOML, the shortest one with the path ends there.
    """
    lines = text.split("\n")
    without, within = 0, len(lines)
    while within - without > 1:
        middle = (without + within) // 2
        if _is_set(_shortest(lines, middle), path):
            within = middle
        else:
            without = middle
    return within


def _shortest(lines: Sequence[str], count: int) -> dict[str, Any]:
    """Parse these lines, and as many further ones as their last statement needs."""
    for end in range(count, len(lines)):
        try:
            return _toml("\n".join(lines[:end]) + "\n")
        except ValueError:
            continue
    return _toml("\n".join(lines))


def _is_set(tables: Mapping[str, Any], path: Keys) -> bool:
    found: Any = tables
    for key in path:
        below = _as_table(found)
        if below is None or key not in below:
            return False
        found = below[key]
    return True


def _as_table(value: Any) -> Mapping[str, Any] | None:
    return cast("Mapping[str, Any]", value) if isinstance(value, dict) else None


# checks


def _profiles(tables: Mapping[str, Any]) -> ProfileFile:
    for key in tables:
        if key not in ("current", "profiles"):
            _raise_unknown((), key, ("current", "profiles"))
    found: dict[str, Profile] = {}
    for name, table in _table(("profiles",), tables.get("profiles", {})).items():
        path = ("profiles", name)
        _parsed(path, f"profile {name!r}", check_name, name)
        found[name] = _profile(path, name, _table(path, table))
    if "current" not in tables:
        return ProfileFile(None, found)
    current = _parsed(("current",), "current", units.text, tables["current"])
    if current not in found:
        fix = nearest(current, list(found)) or "; use `gateway profile edit`"
        raise _Fault(("current",), f"current is {current}, which is no profile{fix}")
    return ProfileFile(current, found)


def _profile(path: Keys, name: str, table: Mapping[str, Any]) -> Profile:
    values: dict[str, str] = {}
    keys: dict[str, str] = {}
    protected = False
    for key, value in table.items():
        if key in _PLAIN:
            values[key] = _parsed((*path, key), key, _PARSERS[key], value)
        elif key == "protected":
            protected = _parsed((*path, key), key, units.boolean, value)
        elif key in _TABLES:
            _add_keys((*path, key), _table((*path, key), value), values, keys)
        else:
            _raise_unknown(path, key, _PROFILE_KEYS, value)
    return Profile(name, values, keys, protected)


def _add_keys(
    path: Keys, table: Mapping[str, Any], values: dict[str, str], keys: dict[str, str]
) -> None:
    """Add the keys of a table `tls` or `sasl`."""
    known = _TABLES[path[-1]]
    for key, value, place in _leaves(path, table):
        if path[-1] == "tls" and key == BOOKIES:
            values["tls"] = _parsed(place, f"tls.{BOOKIES}", _directory, value)
        elif key not in known:
            _raise_unknown(path, key, (*known, BOOKIES), place=place)
        elif key in keys:
            raise _Fault(place, f"{key} is set twice")
        else:
            keys[key] = _parsed(place, key, _PARSERS.get(key, _text_of), value)


def _leaves(path: Keys, table: Mapping[str, Any]) -> Iterator[tuple[str, Any, Keys]]:
    """Yield each key with its dots, its value, and its path: `ssl.protocol` is a table in TOML."""
    pending: list[tuple[Keys, Any]] = [((*path, key), value) for key, value in table.items()]
    while pending:
        place, value = pending.pop(0)
        below = _as_table(value)
        if below and len(place) < len(path) + _DEPTH_MAX:
            pending = [((*place, key), each) for key, each in below.items()] + pending
        else:
            yield ".".join(place[len(path) :]), value, place


def _table(path: Keys, value: Any) -> Mapping[str, Any]:
    found = _as_table(value)
    if found is None:
        raise _Fault(path, f"{path[-1]} must be a table")
    return found


def _parsed(path: Keys, name: str, parse: Callable[[object], Any], value: object) -> Any:
    try:
        return parse(value)
    except ValueError as error:
        shown = f" {value}" if name in ("output", "color") and isinstance(value, str) else ""
        raise _Fault(path, f"{name}{shown}: {error}") from None


def _raise_unknown(
    path: Keys, key: str, known: Sequence[str], value: Any = None, place: Keys | None = None
) -> NoReturn:
    """Raise the fault of an unknown key, which may be known in another table."""
    whole = key if not isinstance(value, dict) else next(_leaves(path, {key: value}))[0]
    for table, names in _TABLES.items():
        if whole in names:
            where = ".".join(("profiles", path[1], table)) if len(path) > 1 else table
            raise _Fault(place or (*path, key), f"{whole} belongs in the table [{where}]")
    if whole == "current":
        raise _Fault(place or (*path, key), "current belongs above the first table")
    near = nearest(whole, known)
    if not near and len(path) > 1:
        near = nearest(whole, sorted(CLIENT_KEYS))
    raise _Fault(place or (*path, key), f"unknown key {_cut(whole)}{near}")


def _cut(key: str) -> str:
    return key if len(key) <= _SHOWN_MAX else f"{key[:_SHOWN_MAX]}..."
