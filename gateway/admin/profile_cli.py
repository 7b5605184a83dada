"""The commands `gateway profile ...`."""

from __future__ import annotations

import sys
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import click

from gateway.admin import profile_shapes
from gateway.admin.client_settings import CLIENT_KEYS, PLAINTEXT, PROTOCOL, SASL_KEYS
from gateway.admin.confirm import confirm
from gateway.admin.connection_settings import (
    Origin,
    Setting,
    no_such_profile,
    profile_named_by,
    selection,
    setting,
)
from gateway.admin.profile_place import NO_PROFILE, file_path
from gateway.admin.profiles import (
    BOOKIES,
    Profile,
    ProfileFault,
    ProfileFile,
    check_name,
    hidden,
    is_secret,
    load,
    nearest,
    parse_value,
)
from gateway.admin.requests import storage_option, tls_directory_option
from ledger.command_line import units
from ledger.command_line.exit_codes import EXIT_CONFIG, EXIT_DISK, EXIT_FAILED
from ledger.command_line.output import Output, fail, note, output_option, usage
from ledger.command_line.program import CommandGroup, Value, option

_SETTINGS: Final = ("schema_registry", "output", "color")  # of --set, beside Kafka's keys
_SHOWN: Final = ("bootstrap", "zookeeper", "tls", *_SETTINGS)
_DEFAULTS: Final = {"output": "table", "color": "auto", PROTOCOL: PLAINTEXT}
_STDIN: Final = "-"

profile = CommandGroup("profile", "Create, choose, show and edit profiles: where commands connect.")

_NAME: Final = Value("name", units.name)
_name_argument = click.argument("name", metavar="PROFILE", type=_NAME, help="Name of the profile.")


@profile.command("create")
@click.argument("name", metavar="NAME", type=Value("name", check_name), help="Name of the profile.")
@option("--bootstrap", "-b", metavar="SERVERS", help="Servers to connect to: host:port,host:port.")
@option("--zookeeper", "-z", metavar="SERVERS", help="ZooKeeper servers, as for `gateway ledger`.")
@option(
    "--tls",
    type=Value("dir", units.path),
    help="Directory with tls.crt, tls.key and ca.crt, if the bookies require certificates.",
)
@option("--protected", is_flag=True, help="Let destructive commands ask for the profile's name.")
@option(
    "--set",
    "pairs",
    metavar="KEY=VALUE",
    multiple=True,
    help="One of schema_registry, output, color, or a client key of Kafka, such as "
    "security.protocol=SSL; KEY=- reads the value from stdin. Repeat for several.",
)
@option("--use", "uses", is_flag=True, help="Make it the current profile; the first one is it.")
@output_option(profile_shapes.CREATED)
def _create(
    name: str,
    bootstrap: str | None,
    zookeeper: str | None,
    tls: Path | None,
    protected: bool,
    pairs: Sequence[str],
    uses: bool,
    output: Output,
) -> None:
    """Create a profile. Commands read its settings if it is the current one, or by --profile."""
    table = _table(bootstrap, zookeeper, tls, output)
    for key, value in _pairs(pairs, output).items():
        if key in CLIENT_KEYS:
            table.setdefault("sasl" if key in SASL_KEYS else "tls", {})[key] = value
        else:
            table[key] = value
    if protected:
        table["protected"] = True

    def edit(tables: Any) -> None:
        if name in tables.get("profiles", {}):
            message = f"profile {name} exists; change it with `gateway profile edit`"
            fail(EXIT_FAILED, message, "PROFILE_EXISTS", output)
        if uses or tables.get("current") is None:
            tables["current"] = name
        tables.setdefault("profiles", {})[name] = table

    found = _change(edit, output)
    current = found.current == name
    made = {"created": name, "file": str(file_path()), "current": current}
    text = f"Created profile {name}{' and made it the current one' if current else ''}."
    output.done(made, text)
    keys = found.profiles[name].client_keys
    if keys and PROTOCOL not in keys:
        note(f"note: without {PROTOCOL} these keys have no effect, and commands exit with 78")


def _table(
    bootstrap: str | None, zookeeper: str | None, tls: Path | None, output: Output
) -> dict[str, Any]:
    """Return the table of a profile with these settings. End the command if one is not valid."""
    table: dict[str, Any] = {}
    for key, value in (("bootstrap", bootstrap), ("zookeeper", zookeeper)):
        if value is not None:
            table[key] = _parsed(f"--{key} {value}", key, value, output)
    if tls is not None:
        table["tls"] = {BOOKIES: _parsed("--tls", "tls", str(tls.absolute()), output)}
    return table


def _pairs(pairs: Sequence[str], output: Output) -> dict[str, str]:
    found: dict[str, str] = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not equals:
            usage("--set: is not key=value, for example security.protocol=SSL", output)
        if key not in CLIENT_KEYS and key not in _SETTINGS:
            near = nearest(key, [*sorted(CLIENT_KEYS), *_SETTINGS])
            usage(f"--set {key}: there is no such key{near}", output)
        if key in found:
            usage(f"--set {key}: is set twice", output)
        if value == _STDIN:
            value = sys.stdin.read().rstrip("\n")
        elif is_secret(key, value):
            fix = f"pass --set {key}=- and the value on stdin, or use `gateway profile edit`"
            usage(f"--set {key}: others can read the arguments of a command; {fix}", output)
        found[key] = _parsed(f"--set {key}", key, value, output)
    return found


def _parsed(words: str, key: str, value: str, output: Output) -> str:
    try:
        return parse_value(key, value)
    except ValueError as error:
        usage(f"{words}: {error}", output)


@profile.command("use")
@click.argument(
    "name", metavar="PROFILE", type=_NAME, help=f"Name of the profile; {NO_PROFILE}: no profile."
)
@output_option(profile_shapes.USED)
def _use(name: str, output: Output) -> None:
    """Make a profile the current one, for all commands without --profile."""

    def edit(tables: Any) -> None:
        if name == NO_PROFILE:
            tables.pop("current", None)
            return
        _require(name, tables.get("profiles", {}), output)
        tables["current"] = name

    _change(edit, output)
    current = None if name == NO_PROFILE else name
    text = f"Profile {name} is current." if current else "No profile is the current one."
    output.done({"current": current}, text)


@profile.command("list")
@output_option(profile_shapes.LISTED)
def _list(output: Output) -> None:
    """List profiles."""
    found = _load(output)
    rows = [
        {
            "name": each.name,
            "current": each.name == found.current,
            "protected": each.protected,
            "bootstrap": each.values.get("bootstrap"),
            "zookeeper": each.values.get("zookeeper"),
        }
        for each in found.profiles.values()
    ]
    output.show(rows)


@profile.command("show")
@click.argument(
    "name",
    metavar="[NAME]",
    required=False,
    type=_NAME,
    help="Name of the profile; none: the one in use.",
)
@option("--origin", is_flag=True, help="Show what a command would use, and where it comes from.")
@storage_option
@tls_directory_option
@profile_named_by("name")
@output_option(profile_shapes.SHOWN, profile_shapes.VALUES, profile_shapes.ORIGINS)
def _show(name: str | None, origin: bool, output: Output, **_: Any) -> None:
    """Show the settings of a profile. Secrets are hidden."""
    chosen = selection().profile
    if origin:
        _show_origins(chosen, output)
        return
    if chosen is None:
        fix = "name one, or choose one with `gateway profile use NAME`"
        usage(f"no profile is in use; {fix}", output)
    shown = dict(_values(chosen))
    if output.is_json:
        current = chosen.name == _load(output).current
        output.show({"name": chosen.name, "current": current, "settings": shown})
        return
    rows = [{"key": key, "value": value} for key, value in shown.items()]
    output.show(rows, before=f"Profile: {chosen.name}\n", shape=profile_shapes.VALUES)


def _values(chosen: Profile) -> Iterator[tuple[str, Any]]:
    for key, value in (*chosen.values.items(), *sorted(chosen.client_keys.items())):
        yield key, hidden(key, value)
    if chosen.protected:
        yield "protected", "true"


def _show_origins(chosen: Profile | None, output: Output) -> None:
    ctx = click.get_current_context()
    keys = [*_SHOWN, *sorted({PROTOCOL, *selection().client_keys})]
    found = {key: setting(ctx, key) for key in keys}
    if chosen is not None and chosen.protected:
        origin = selection().origin
        found["protected"] = Setting("true", origin, chosen.name)
    else:
        found["protected"] = Setting("false", Origin.DEFAULT)
    rows = [
        {
            "key": key,
            "value": _shown(key, each.value),
            "origin": each.origin.value,
            "from": each.name,
        }
        for key, each in found.items()
    ]
    output.show(rows, shape=profile_shapes.ORIGINS)


def _shown(key: str, value: str | None) -> str | None:
    return _DEFAULTS.get(key) if value is None else hidden(key, value)


@profile.command("edit")
@output_option(profile_shapes.EDITED)
def _edit(output: Output) -> None:
    """Open all profiles in the editor that VISUAL or EDITOR names.

    The text is checked first; a text with a fault is kept in a file of its own.
    """
    from gateway.admin.profile_edit import EditRefused, edit

    with _faults(output):
        try:
            changed = edit(file_path())
        except EditRefused as refusal:
            code = "CONFIGURATION" if refusal.exit_code == EXIT_CONFIG else "NOT_CHANGED"
            fail(refusal.exit_code, str(refusal), code, output)
    text = f"Changed {file_path()}." if changed else "Nothing was changed."
    output.done({"file": str(file_path()), "changed": changed}, text)


@profile.command("delete")
@_name_argument
@option("--yes", is_flag=True, help="Delete also the current or a protected profile.")
@output_option(profile_shapes.DELETED)
def _delete(name: str, yes: bool, output: Output) -> None:
    """Delete a profile. The current profile and protected ones need an answer, or --yes."""
    found = _load(output)
    _require(name, found.profiles, output)
    if name == found.current or found.profiles[name].protected:
        kind = "current" if name == found.current else "protected"
        confirm(yes, f"deletes profile {name}, which is {kind}", name, output)

    def edit(tables: Any) -> None:
        _require(name, tables.get("profiles", {}), output)
        if tables.get("current") == name:
            del tables["current"]
        del tables["profiles"][name]
        if not tables["profiles"]:
            del tables["profiles"]

    _change(edit, output)
    output.done({"deleted": name}, f"Deleted profile {name}.")


def _require(name: str, profiles: Any, output: Output) -> None:
    if name not in profiles:
        usage(f"{name}: {no_such_profile(name, profiles)}", output)


def _load(output: Output) -> ProfileFile:
    with _faults(output):
        return load(file_path())


def _change(edit: Callable[[Any], None], output: Output) -> ProfileFile:
    from gateway.admin.profile_file import change

    with _faults(output):
        return change(file_path(), edit)


@contextmanager
def _faults(output: Output) -> Generator[None]:
    """End the command if the file has a fault, or cannot be written."""
    try:
        yield
    except ProfileFault as fault:
        fail(EXIT_CONFIG, str(fault), "CONFIGURATION", output)
    except OSError as error:
        message = f"cannot write {error.filename or file_path()}: {error.strerror}"
        fail(EXIT_DISK, message, "DISK", output)
