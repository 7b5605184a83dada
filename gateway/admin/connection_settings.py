"""The settings with which a command connects, and the origin of each.

The order is: flag, environment variable, profile named by `--profile` or `GATEWAY_PROFILE`, current
profile, default. Click looks at flags and variables first; `ProfileOption` gives it the values of
the profile as defaults of this call. So one order holds for every option of every command.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from enum import StrEnum
from typing import TYPE_CHECKING, Any, ClassVar, Final, NamedTuple, TypeVar

import click
from click.core import ParameterSource

from gateway.admin.client_settings import (
    CLIENT_KEYS,
    ClientSettings,
    UnsupportedSecurity,
    variable_of,
)
from gateway.admin.profile_place import COLORS, NO_PROFILE, OUTPUTS, file_path
from ledger.command_line import units
from ledger.command_line.exit_codes import EXIT_CONFIG
from ledger.command_line.failure import print_failure
from ledger.command_line.output import FailureForm, fail
from ledger.command_line.program import OneLineError, Option, Value, program_name

if TYPE_CHECKING:
    from gateway.admin.profiles import Profile, ProfileFile

F = TypeVar("F", bound=Callable[..., Any])

_SELECTED: Final = f"{__name__}.selected"  # its key in the context of a command
_NAMED: Final = f"{__name__}.named"  # the name behind --profile, while a shell completes
_COMMAND_CONFIG: Final = "GATEWAY_COMMAND_CONFIG"
_JSON: Final = ("json", "jsonl")
# Variables of options that click does not read from the environment itself.
_VARIABLES: Final = {
    "output": "GATEWAY_OUTPUT",
    "color": "GATEWAY_COLOR",
    "schema_registry": "GATEWAY_SCHEMA_REGISTRY",
}
_CHOICES: Final = {"output": OUTPUTS, "color": COLORS}


class Origin(StrEnum):
    """Where a value comes from; earlier ones win."""

    FLAG = "flag"
    ENVIRONMENT = "environment"
    PROFILE = "profile"
    CURRENT = "current"
    DEFAULT = "default"


class Setting(NamedTuple):
    """A value, its origin, and the name of the flag, the variable or the profile."""

    value: str | None
    origin: Origin
    name: str | None = None


class Selection(NamedTuple):
    """The profile of a command, and the values that it and the environment give."""

    profile: Profile | None = None
    origin: Origin = Origin.DEFAULT  # of the choice of the profile
    given: Mapping[str, Setting] = {}  # by the name of an option
    client_keys: Mapping[str, Setting] = {}
    command_config: str = ""  # the file of `--command-config`

    @property
    def protected(self) -> bool:
        return self.profile is not None and self.profile.protected


class ConfigurationError(OneLineError):
    """A fault of the file of profiles: one line on stderr, and the exit code 78."""

    exit_code: ClassVar[int] = EXIT_CONFIG

    def show(self, file: Any = None) -> None:
        print_failure(self._program, self.message, "CONFIGURATION", as_json=self._as_json)


class ProfileOption(Option):
    """`--profile`: selects the profile before any other option is read.

    An argument of the command, if one is named, may name the profile too.
    """

    def __init__(self, names: list[str], *, argument: str = "", **attributes: Any) -> None:
        super().__init__(names, **attributes)
        self._argument = argument

    def handle_parse_result(
        self, ctx: click.Context, opts: Mapping[str, Any], args: list[str]
    ) -> tuple[Any, list[str]]:
        value, rest = super().handle_parse_result(ctx, opts, args)
        if ctx.resilient_parsing:  # of a completion: nothing must fail, and nothing is asked for
            ctx.meta[_NAMED] = value if isinstance(value, str) else None
            return value, rest
        name = value if isinstance(value, str) else None  # click has an object for "not set"
        argument = opts.get(self._argument)
        if isinstance(argument, str):
            if name not in (None, argument):
                raise click.UsageError(f"profile {argument} and --profile {name} differ", ctx)
            name = argument
        selection = _select(ctx, self, name, opts)
        ctx.meta[_SELECTED] = selection
        ctx.default_map = {
            key: each.value for key, each in selection.given.items() if _fits(ctx, key, each)
        }
        return value, rest


def profile_named_by(argument: str) -> Callable[[F], F]:
    """Add `--profile` to a command whose argument with this name may name the profile too."""
    return lambda function: profile_option(function, argument)


def profile_option(function: F, argument: str = "") -> F:
    """Add `--profile` to a command, unless it has one."""
    parameters: list[Any] = getattr(function, "__click_params__", [])
    if any(isinstance(each, ProfileOption) for each in parameters):
        return function
    function = click.option(
        "--command-config",
        metavar="FILE",
        cls=Option,
        type=Value("file", units.text),
        envvar=_COMMAND_CONFIG,
        show_envvar=True,
        is_eager=True,
        expose_value=False,
        help="File with Kafka's client keys, as its tools take it. They go before those of the "
        "profile.",
    )(function)
    return click.option(
        "--profile",
        metavar="PROFILE",
        cls=ProfileOption,
        argument=argument,
        type=Value("name", units.name),
        envvar="GATEWAY_PROFILE",
        show_envvar=True,
        is_eager=True,
        expose_value=False,
        shown="the current one",
        help="Profile with the settings that no flag and no variable sets; none: no profile.",
    )(function)


def _select(
    ctx: click.Context, option: click.Option, name: str | None, opts: Mapping[str, Any]
) -> Selection:
    """Return the profile with this name, or the current one, and what it sets."""
    found: Profile | None = None
    if name != NO_PROFILE:
        file = _load(ctx, opts)
        profiles: Mapping[str, Profile] = {} if file is None else file.profiles
        if name is not None and name not in profiles:
            raise click.BadParameter(f"{name}: {no_such_profile(name, profiles)}", ctx, option)
        chosen = file and file.current if name is None else name
        found = None if chosen is None else profiles[chosen]
    origin = Origin.CURRENT if name is None else Origin.PROFILE
    given = {} if found is None else _of_profile(found, origin, found.values)
    if _is_given(opts, "bootstrap", "GATEWAY_BOOTSTRAP"):
        # The metadata of the profile are those of another cluster, perhaps.
        given.pop("zookeeper", None)
    given |= _of_environment(ctx)
    keys = {} if found is None else _of_profile(found, origin, found.client_keys)
    for key in CLIENT_KEYS:
        if variable := os.environ.get(variable_of(key)):
            value = _client_key(ctx, key, variable)
            keys[key] = Setting(value, Origin.ENVIRONMENT, variable_of(key))
    file = str(opts.get("command_config") or os.environ.get(_COMMAND_CONFIG) or "")
    if file:
        keys = _of_command_config(ctx, opts, file)
    return Selection(found, origin, given, keys, file)


def _of_command_config(
    ctx: click.Context, opts: Mapping[str, Any], file: str
) -> dict[str, Setting]:
    """Return the client keys of a file of Kafka's tools. Raises ConfigurationError."""
    from gateway.admin.command_config import CommandConfigFault, client_keys_of

    try:
        found = client_keys_of(file)
    except CommandConfigFault as fault:
        as_json = (opts.get("output") or os.environ.get("GATEWAY_OUTPUT")) in _JSON
        message = f"--command-config {file}: {fault}"
        raise ConfigurationError(program_name(ctx), message, as_json=as_json) from None
    return {key: Setting(value, Origin.FLAG, "--command-config") for key, value in found.items()}


def _load(ctx: click.Context, opts: Mapping[str, Any]) -> ProfileFile | None:
    """Return the profiles, or None if there is no file. Raises ConfigurationError."""
    path = file_path()
    try:
        path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError:
        pass  # `load` reports it
    from gateway.admin.profiles import ProfileFault, load

    try:
        return load(path)
    except ProfileFault as fault:
        as_json = (opts.get("output") or os.environ.get("GATEWAY_OUTPUT")) in _JSON
        raise ConfigurationError(program_name(ctx), str(fault), as_json=as_json) from None


def no_such_profile(name: str, profiles: Mapping[str, Profile]) -> str:
    """Return the reason and the fix for a name that no profile has."""
    from gateway.admin.profiles import nearest

    fix = "`gateway profile list` lists all" if profiles else "make it by `gateway profile create`"
    return f"there is no such profile{nearest(name, list(profiles))}; {fix}"


def _of_profile(profile: Profile, origin: Origin, values: Mapping[str, str]) -> dict[str, Setting]:
    return {key: Setting(value, origin, profile.name) for key, value in values.items()}


def _of_environment(ctx: click.Context) -> dict[str, Setting]:
    found: dict[str, Setting] = {}
    for key, variable in _VARIABLES.items():
        value = os.environ.get(variable)
        if not value:
            continue
        choices = _CHOICES.get(key)
        if choices is not None and value not in choices:
            message = f"variable {variable} is {value}: must be {units.listed(choices)}"
            raise click.UsageError(message, ctx)
        found[key] = Setting(value, Origin.ENVIRONMENT, variable)
    return found


def _client_key(ctx: click.Context, key: str, value: str) -> str:
    from gateway.admin.profiles import parse_value

    try:
        return parse_value(key, value)
    except ValueError as error:
        raise click.UsageError(f"variable {variable_of(key)}: {error}", ctx) from None


def _is_given(opts: Mapping[str, Any], name: str, variable: str) -> bool:
    return isinstance(opts.get(name), str) or bool(os.environ.get(variable))


def _fits(ctx: click.Context, key: str, setting: Setting) -> bool:
    """Return whether the command has such an option, and it takes this value.

    A `--zookeeper` that reads no variable chooses a way of working, as that of `group seek`.
    """
    option = _option(ctx, key)
    if option is None or (key == "zookeeper" and option.envvar is None):
        return False
    if key in _CHOICES:
        try:
            option.type.convert(setting.value, None, None)
        except click.BadParameter:
            return False
    return True


def _option(ctx: click.Context, name: str) -> click.Parameter | None:
    return next((each for each in ctx.command.params if each.name == name), None)


# what a command asks


def selection() -> Selection:
    """Return the profile of the command that runs now."""
    ctx = click.get_current_context(silent=True)
    return Selection() if ctx is None else ctx.meta.get(_SELECTED, Selection())


def client_settings(bootstrap: str) -> ClientSettings:
    """Return the settings of connections to these servers, for the command that runs now."""
    keys = selection().client_keys
    return ClientSettings(bootstrap, {key: each.value or "" for key, each in keys.items()})


def completing_settings(ctx: click.Context, default: str) -> ClientSettings:
    """Return the settings of connections while a shell completes. Raises ProfileFault."""
    from gateway.admin.profiles import load

    source = ctx.get_parameter_source("bootstrap")
    is_set = source in (ParameterSource.COMMANDLINE, ParameterSource.ENVIRONMENT)
    given = ctx.params.get("bootstrap") if is_set else None
    file = load(file_path())
    profile = file.profiles.get(ctx.meta.get(_NAMED) or file.current or NO_PROFILE)
    if profile is None:
        return ClientSettings(str(given or default))
    return ClientSettings(
        str(given or profile.values.get("bootstrap", default)), profile.client_keys
    )


def refuse_unsupported(output: FailureForm) -> None:
    """End the command with 78 if its client keys cannot be used."""
    try:
        client_settings("").require_supported()
    except UnsupportedSecurity as error:
        fail(EXIT_CONFIG, str(error), "UNSUPPORTED_SECURITY", output)


def setting(ctx: click.Context, name: str) -> Setting:
    """Return the value of an option or a client key, with its origin."""
    chosen: Selection = ctx.meta.get(_SELECTED, Selection())
    given = chosen.client_keys.get(name) or chosen.given.get(name)
    option = _option(ctx, name)
    if option is None:
        return given or Setting(None, Origin.DEFAULT)
    value = ctx.params.get(name)
    text = None if value is None else str(value)
    source = ctx.get_parameter_source(name)
    if source is ParameterSource.COMMANDLINE:
        return Setting(text, Origin.FLAG, max(option.opts, key=len))
    if source is ParameterSource.ENVIRONMENT:
        return Setting(text, Origin.ENVIRONMENT, str(option.envvar))
    if source is ParameterSource.DEFAULT_MAP and given is not None:
        return given
    return Setting(text, Origin.DEFAULT)
