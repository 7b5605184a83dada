"""Commands of both programs, on click.

Every command, at every level, has `-h`, `--help` and `--version`. A usage error is one line on
stderr and exit code 2. The commands of a group are imported only when they are named: neither the
help nor the start of a server pays for a module that it does not use.

Compared with plain click: errors are one line instead of three, an option may have a hidden old
spelling, and a callback may return an exit code.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import sys
from collections.abc import Callable, Generator, Mapping, Sequence
from functools import partial
from importlib import import_module
from itertools import pairwise
from types import SimpleNamespace
from typing import Any, ClassVar, Generic, NamedTuple, TypeVar

import click
from click.core import ParameterSource
from click.exceptions import NoArgsIsHelpError, NoSuchCommand
from click.types import OptionHelpExtra

from ledger.command_line.exit_codes import (
    EXIT_CLOSED_PIPE,
    EXIT_DISK,
    EXIT_INTERRUPTED,
    EXIT_USAGE,
)
from ledger.command_line.failure import print_failure
from ledger.command_line.units import Parse, listed
from ledger.command_line.version import describe

T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Any])

_WIDTH, _WIDTH_MIN, _WIDTH_MAX = 80, 50, 100  # characters of a line of help
_BARE_NUMBER = re.compile(r"-?\d+(\.\d+)?", re.ASCII)
_JSON_FORMS = ("json", "jsonl")
_JSON_WORDS = tuple(f"{name}{form}" for name in ("-o", "-o=", "--output=") for form in _JSON_FORMS)
_WORDS = "ledger.command_line.words"
_GIVEN = "ledger.command_line.given"
_UNITS_HELP = {  # by the placeholder of the options that have such values
    "DURATION": "Durations: 500ms, 10s, 5m, 1h, 7d, PT1H30M.",
    "SIZE": "Sizes: 64KiB, 256MiB, 1GiB.",
}
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)

_SETTINGS: Mapping[str, Any] = {
    "help_option_names": ["-h", "--help"],
    "show_default": True,
}


class _Context(click.Context):
    """A context that finds the width of the terminal without `shutil`, which loads compressors."""

    def make_formatter(self) -> click.HelpFormatter:
        try:
            columns = int(os.environ.get("COLUMNS") or os.get_terminal_size().columns)
        except (OSError, ValueError):  # no terminal
            columns = _WIDTH
        return click.HelpFormatter(width=max(_WIDTH_MIN, min(columns, _WIDTH_MAX) - 2))


class Flags(SimpleNamespace):
    """The values of a command's options, by name, and the words that set them."""

    def __init__(self, given: Mapping[str, str] | None = None, /, **values: Any) -> None:
        super().__init__(**values)
        # By option: its name and its value as the user typed them, which may be an old name.
        self._given = dict(given or {})

    def given(self, name: str) -> str | None:
        """Return the option and its value as typed, such as `--session-ms 6000`, if known."""
        return self._given.get(name)

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"there is no option {name!r}")


class OneLineError(click.ClickException):
    """A usage error: one line on stderr, as JSON if the command was asked for JSON."""

    exit_code: ClassVar[int] = EXIT_USAGE

    def __init__(self, program: str, message: str, *, as_json: bool) -> None:
        super().__init__(message)
        self._program = program
        self._as_json = as_json

    def show(self, file: Any = None) -> None:
        print_failure(self._program, self.message, "USAGE", as_json=self._as_json)


class Value(click.ParamType[T], Generic[T]):
    """The type of an option whose value one of the functions of `units` parses."""

    def __init__(self, name: str, parse: Parse[T]) -> None:
        self.name = name  # in upper case, the placeholder that the help shows
        self._parse = parse

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> Any:
        from click.shell_completion import CompletionItem

        choices: Sequence[str] = getattr(self._parse, "choices", ())
        return [CompletionItem(each) for each in choices if each.startswith(incomplete)]

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> T:
        if not isinstance(value, str):
            return value  # a default of this very type
        if ctx is not None and param is not None:
            _note(ctx, param.name, f"{_spelling(param)} {value}")
        try:
            return self._parse(value)
        except ValueError as fault:
            self.fail(f"{value}: {fault}", param, ctx)


class Option(click.Option):
    """An option whose help always shows its default; `shown` replaces its value there."""

    def __init__(
        self, names: Sequence[str], *, shown: str | None = None, **attributes: Any
    ) -> None:
        super().__init__(names, **attributes)
        self._shown = shown

    def get_help_extra(self, ctx: click.Context) -> OptionHelpExtra:
        extra = super().get_help_extra(ctx)
        is_switch = self.is_flag and not self.secondary_opts
        default = self.get_default(ctx, call=False)
        if self._shown is not None:
            extra["default"] = self._shown
        elif self.required or self.multiple or is_switch:
            pass
        elif isinstance(default, bool):
            extra["default"] = "yes" if default else "no"
        elif default == "" or "default" not in extra:
            extra["default"] = "none"
        return extra


class OldSpelling(click.Option):
    """A hidden option that sets another one, for scripts that were written before it."""

    def __init__(self, names: Sequence[str], *, of: str, unit: str, **attributes: Any) -> None:
        super().__init__(names, hidden=True, type=str, **attributes)
        self.of = of
        self._unit = unit  # of a number without one: the unit that the old name had

    def hand_over(self, command: click.Command, ctx: click.Context) -> None:
        """Set the option that this one spells, if this one was given."""
        value = ctx.params.pop(self.name)
        if value is None:
            return
        new = next(each for each in command.params if each.name == self.of)
        if ctx.get_parameter_source(self.of) is ParameterSource.COMMANDLINE:
            message = f"{self.opts[0]} is an old name of {_spelling(new)}: pass one of the two"
            raise click.UsageError(message, ctx)
        written = self._with_unit(value)
        try:
            ctx.params[self.of] = new.type_cast_value(ctx, written)
        except click.BadParameter as fault:
            reason = fault.message.removeprefix(f"{written}: ")
            raise click.BadParameter(f"{value}: {reason}", ctx, self) from None
        _note(ctx, self.of, f"{self.opts[0]} {value}")

    def _with_unit(self, value: str) -> str:
        if not self._unit or not value.isascii():
            return value
        if _BARE_NUMBER.fullmatch(value):
            return value + self._unit
        try:
            return f"{float(value):.9f}{self._unit}"  # in another form, such as 1e3
        except ValueError:
            return value


def option(*names: str, **attributes: Any) -> Callable[[F], F]:
    """Add an option to a command."""
    return click.option(*names, cls=Option, **attributes)


def old_spelling(name: str, *, of: str, unit: str = "") -> Callable[[F], F]:
    """Let the option `name` set the option `of`; a number without a unit is in `unit`."""
    return click.option(name, cls=OldSpelling, of=of, unit=unit)


Complete = Callable[[click.Context, str], Sequence[str]]
"""Returns the words that begin with these letters, for the completion of a shell."""

completions: dict[str, Complete] = {}
"""By the placeholder of an argument or option, such as TOPIC. A program fills it at its start."""


habits: dict[str, str] = {}
"""What replaces an option of other programs, by its name. A program fills it at its start."""


def _complete(parameter: click.Parameter, ctx: click.Context, incomplete: str) -> list[Any]:
    """Return the completions of a value: by its placeholder, or else by its type."""
    from click.shell_completion import CompletionItem

    complete = completions.get((parameter.metavar or "").removesuffix("..."))
    if complete is None:
        return parameter.type.shell_complete(ctx, parameter, incomplete)
    return [CompletionItem(word) for word in complete(ctx, incomplete)]


class _Common(click.Command):
    """The options of every command and every group, and the form of their usage errors."""

    context_class = _Context

    def __init__(self, *arguments: Any, **attributes: Any) -> None:
        super().__init__(*arguments, context_settings=dict(_SETTINGS), **attributes)
        self.params.append(_version_option())
        for each in self.params:  # click asks the parameter, and its class is click's own
            vars(each)["shell_complete"] = partial(_complete, each)

    def make_context(
        self,
        info_name: str | None,
        args: list[str],
        parent: click.Context | None = None,
        **extra: Any,
    ) -> click.Context:
        words = list(args)
        if parent is None:
            _require_utf8(info_name or "", words)
        try:
            with _quiet_pipe():
                ctx = super().make_context(info_name, args, parent, **extra)
        except NoArgsIsHelpError:
            raise
        except click.UsageError as error:
            path = " ".join(filter(None, (parent and parent.command_path, info_name)))
            raise _one_line(error, path, words) from None
        ctx.meta[_WORDS] = words  # a command comes after its group, so these are its own
        return ctx

    def main(self, *arguments: Any, **extra: Any) -> Any:
        try:
            return super().main(*arguments, **extra)
        except OSError as error:  # of a write to stdout; `_quiet_pipe` ends it if it is closed
            if error.errno not in _FULL or error.filename is not None:
                raise
            close_stdout()
            program = extra.get("prog_name") or self.name or ""
            message = f"cannot write: {error.strerror}"
            print_failure(program, message, "DISK", as_json=_ask_for_json(sys.argv[1:]))
            raise SystemExit(EXIT_DISK) from None

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        kinds = {each.make_metavar(ctx) for each in _shown_options(ctx)}
        lines = [line for kind, line in _UNITS_HELP.items() if kind in kinds]
        if lines:
            formatter.write_paragraph()
            with formatter.indentation():
                formatter.write_text(" ".join(lines))


class Command(_Common):
    """One command. Its callback may return an exit code; Ctrl-C ends it with 130."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        rest = super().parse_args(ctx, args)
        for option in self.params:
            if isinstance(option, OldSpelling):
                option.hand_over(self, ctx)
        return rest

    def invoke(self, ctx: click.Context) -> Any:
        try:
            code = super().invoke(ctx)
        except KeyboardInterrupt:
            code = EXIT_INTERRUPTED
        ctx.exit(code or 0)


class Deferred(NamedTuple):
    """A command that is imported when it is named: `attribute` of `module`."""

    module: str
    attribute: str
    help: str  # the first line of its help, so that a list of commands imports none

    def load(self) -> click.Command:
        return getattr(import_module(self.module), self.attribute)


class CommandGroup(_Common, click.Group):
    """Commands under one name, in the order of their declaration."""

    command_class = Command

    def __init__(
        self,
        name: str,
        help: str,
        deferred: Mapping[str, Deferred] | None = None,
    ) -> None:
        super().__init__(name, help=help)
        self.deferred = dict(deferred or {})

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [*self.deferred, *self.commands]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        deferred = self.deferred.get(cmd_name)
        if deferred is None:
            return super().get_command(ctx, cmd_name)
        return deferred.load()

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        rows = [(name, deferred.help) for name, deferred in self.deferred.items()]
        for name, command in self.commands.items():
            rows.append((name, (command.help or "").partition("\n")[0]))
        with formatter.section("Commands"):
            formatter.write_dl(rows)

    def invoke(self, ctx: click.Context) -> Any:
        words = list(ctx.args)
        try:
            with _quiet_pipe():
                return super().invoke(ctx)
        except NoArgsIsHelpError:  # a group below this one, without a command: show its help
            raise
        except click.UsageError as error:  # no such command
            raise _one_line(error, ctx.command_path, words) from None


def flags_of(command: click.Command, words: Sequence[str]) -> Flags:
    """Return the values of the options that these words set, and the defaults of the others."""
    return _flags(command.make_context(command.name, list(words)))


def flags_given() -> Flags:
    """Return the options of the command that runs now."""
    return _flags(click.get_current_context())


def _flags(ctx: click.Context) -> Flags:
    return Flags(ctx.meta.get(_GIVEN), **ctx.params)


def _note(ctx: click.Context, name: str | None, words: str) -> None:
    """Note the words that set this option, for errors that are found later."""
    ctx.meta.setdefault(_GIVEN, {})[name] = words


def words_given() -> list[str]:
    """Return the words after the name of the command that runs now."""
    return click.get_current_context().meta[_WORDS]


def _version_option() -> click.Option:
    return click.Option(
        ["--version"],
        is_flag=True,
        is_eager=True,
        expose_value=False,
        help="Show the version and exit.",
        callback=_print_version,
    )


def _print_version(ctx: click.Context, _: click.Parameter, asked: bool) -> None:
    if asked and not ctx.resilient_parsing:
        print(f"{program_name(ctx)} {describe()}", flush=True)
        ctx.exit()


def program_name(ctx: click.Context | None) -> str:
    """Return `gateway` or `bookie`, to begin messages with."""
    name = None if ctx is None else ctx.find_root().info_name
    return (name or "gateway").partition(" ")[0]


def close_stdout() -> None:
    """Let stdout lead nowhere: what it has buffered would fail again when the process ends."""
    with contextlib.suppress(OSError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


@contextlib.contextmanager
def _quiet_pipe() -> Generator[None]:
    """End the command with 141 if the program that read its stdout has ended; click has 1."""
    try:
        yield
    except BrokenPipeError:
        close_stdout()
        raise click.exceptions.Exit(EXIT_CLOSED_PIPE) from None


# usage errors


def _require_utf8(program: str, words: Sequence[str]) -> None:
    for word in words:
        try:
            word.encode()
        except UnicodeEncodeError:
            shown = word.encode(errors="surrogateescape").decode(errors="backslashreplace")
            message = f"{shown}: is not valid UTF-8"
            raise OneLineError(program, message, as_json=_ask_for_json(words)) from None


def _one_line(error: click.UsageError, path: str, words: Sequence[str]) -> OneLineError:
    """Return the error as one line; `path` is the command as it was called."""
    message = _message(error, f"see `{path} --help`")
    return OneLineError(path.partition(" ")[0], message, as_json=_ask_for_json(words))


def _ask_for_json(words: Sequence[str]) -> bool:
    if any(word in _JSON_WORDS for word in words):
        return True
    return any(
        name in ("-o", "--output") and value in ("json", "jsonl") for name, value in pairwise(words)
    )


def _message(error: click.UsageError, see: str) -> str:
    if isinstance(error, click.NoSuchOption):
        known = [name for option in _shown_options(error.ctx) for name in option.opts]
        name = error.option_name
        ours = habits.get(name)
        hint = nearest(name, known) if ours is None else f": here it is {ours}"
        return f"no option {name}{hint}; {see}"
    if isinstance(error, NoSuchCommand):
        known = _command_names(error.ctx)
        return f"no command {error.command_name}{nearest(error.command_name, known)}; {see}"
    if isinstance(error, click.MissingParameter) and error.param is not None:
        return f"{_spelling(error.param)} is missing{_purpose(error.param)}; {see}"
    if isinstance(error, click.BadParameter) and error.param is not None:
        return f"{_origin(error.param, error.ctx)} {error.message}"
    if isinstance(error, click.BadOptionUsage):  # `--yes=1`, or `--data` and no word after it
        fault = "takes no value" if "does not take" in error.message else "needs a value"
        return f"{error.option_name} {fault}; {see}"
    message = error.message.rstrip(".")
    return f"{message[:1].lower()}{message[1:]}; {see}"


def _spelling(parameter: click.Parameter) -> str:
    if isinstance(parameter, click.Argument):
        return parameter.human_readable_name
    return max(parameter.opts, key=len)


def _origin(parameter: click.Parameter, ctx: click.Context | None) -> str:
    """Return the option as the user set it: by its name, or by an environment variable."""
    name, variable = parameter.name or "", parameter.envvar
    if ctx is None or ctx.get_parameter_source(name) is not ParameterSource.ENVIRONMENT:
        return _spelling(parameter)
    return variable if isinstance(variable, str) else _spelling(parameter)


def _purpose(parameter: click.Parameter) -> str:
    """Return the first sentence of its help in brackets."""
    sentence = (parameter.help or "").partition(":")[0].rstrip(".")
    return f" ({sentence})" if sentence else ""


def _shown_options(ctx: click.Context | None) -> list[click.Option]:
    parameters = [] if ctx is None else ctx.command.params
    options = [each for each in parameters if isinstance(each, click.Option)]
    return [each for each in options if not each.hidden]


def _command_names(ctx: click.Context | None) -> list[str]:
    group = None if ctx is None else ctx.command
    return group.list_commands(ctx) if ctx and isinstance(group, click.Group) else []


def nearest(word: str, known: Sequence[str], *, most: int = 2, likeness_min: float = 0.75) -> str:
    """Return `: did you mean ...?` with the nearest of the known words, or nothing.

    Names up to `most` words that are as like it as `likeness_min`, from 0 to 1.
    """
    from difflib import get_close_matches

    near = get_close_matches(word, known, most, likeness_min)
    return f": did you mean {listed(near)}?" if near else ""
