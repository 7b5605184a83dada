"""The reference of all commands, written from their one parser.

`python -m tests.commands_reference` rewrites docs/commands.md.
"""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import Iterator, Sequence

import click

from tests.command_output import PROGRAMS, context_of, walk
from tests.house import ROOT

DOCUMENT = ROOT / "docs/commands.md"
SHARED_MIN = 15  # commands that have an option in the very same words: it is listed once
_HEAD = """\
# Commands

All commands of `gateway` and `bookie`, with their arguments and options. This page is written from
their parser: `python -m tests.commands_reference`. A command shows the same with `--help` (`-h`).
`--version` of each prints version, commit and Python.
[command-output.md](command-output.md) lists what they print, and [errors.md](errors.md) the exit
codes. Options of servers also have variables and keys in files: [settings.md](settings.md).

A duration is `500ms`, `10s`, `5m`, `1h`, `7d` or `PT1H30M`, and a size `64KiB`, `256MiB` or `1GiB`.
"""
_SHARED = """\
## Options of many commands

Sections below name these options and do not repeat them. Where a command has another default or
another meaning for one of them, its section lists it.
"""
_OPTION_HEAD = "| option | meaning | default | variable |\n|---|---|---|---|"
_NO_VARIABLE = " - |"
_NO_VARIABLE_HEAD = "| option | meaning | default |\n|---|---|---|"

Path = tuple[str, ...]


def tree() -> list[tuple[Path, click.Command]]:
    """All commands and groups of both programs."""
    return [each for name, program in PROGRAMS.items() for each in walk(program, (name,))]


def document() -> str:
    """The text of docs/commands.md."""
    found = tree()
    counts = Counter(
        _option_row(option, _context(path, command))
        for path, command in found
        for option in _options(command)
    )
    shared = [row for row, count in counts.items() if count >= SHARED_MIN]
    parts = [_HEAD, _SHARED, "\n".join([_OPTION_HEAD, *shared]), ""]
    for path, command in found:
        parts += _section(path, command, shared)
    return "\n".join(parts).rstrip() + "\n"


def defaults(path: Path, command: click.Command) -> dict[str, str]:
    """The defaults that the page has for the options of a command, by their names."""
    ctx = _context(path, command)
    return {str(each.name): _default(each, ctx) for each in _options(command)}


def differences() -> list[str]:
    """What to do if the document is not as the parser says."""
    if DOCUMENT.exists() and DOCUMENT.read_text() == document():
        return []
    return ["docs/commands.md: run `python -m tests.commands_reference`"]


def _context(path: Path, command: click.Command) -> click.Context:
    """A context as the program makes it: with its settings, by which the help shows defaults."""
    return context_of(command, path, " ".join(path))


def _options(command: click.Command) -> list[click.Option]:
    found = [each for each in command.params if isinstance(each, click.Option)]
    return [each for each in found if not each.hidden and each.name != "version"]


def _section(path: Path, command: click.Command, shared: Sequence[str]) -> Iterator[str]:
    ctx = _context(path, command)
    usage = " ".join([*path, *command.collect_usage_pieces(ctx)])
    yield from (f"## `{' '.join(path)}`", "", *_prose(command), "```text", usage, "```", "")
    if isinstance(command, click.Group):
        yield from _commands_of(path, command, ctx)
        return
    arguments = [each for each in command.params if isinstance(each, click.Argument)]
    if arguments:
        yield from ("| argument | meaning |", "|---|---|")
        yield from (f"| `{each.make_metavar(ctx)}` | {_cell(_help(each))} |" for each in arguments)
        yield ""
    rows = [_option_row(each, ctx) for each in _options(command)]
    own = [row for row in rows if row not in shared]
    if own:
        yield from (*_table(own), "")
    names = [_long_name(row) for row in rows if row in shared]
    if names:
        yield from (f"Also {', '.join(names)} ([shared](#options-of-many-commands)).", "")


def _table(rows: Sequence[str]) -> Iterator[str]:
    """The table of options; without the last column if no option has a variable."""
    if any(not row.endswith(_NO_VARIABLE) for row in rows):
        yield from (_OPTION_HEAD, *rows)
    else:
        yield from (_NO_VARIABLE_HEAD, *(row.removesuffix(_NO_VARIABLE) for row in rows))


def _prose(command: click.Command) -> Iterator[str]:
    for paragraph in inspect.cleandoc(command.help or "").split("\n\n"):
        yield from (_escaped(" ".join(paragraph.replace("\b", "").split())), "")


def _commands_of(path: Path, group: click.Group, ctx: click.Context) -> Iterator[str]:
    yield from ("| command | what it does |", "|---|---|")
    for name in group.list_commands(ctx):
        command = group.get_command(ctx, name)
        assert command is not None
        words = " ".join([*path, name])
        first = " ".join((command.help or "").strip().partition("\n")[0].split())
        yield f"| [`{words}`](#{words.replace(' ', '-')}) | {_cell(first)} |"
    yield ""


def _option_row(option: click.Option, ctx: click.Context) -> str:
    record = option.get_help_record(ctx)
    assert record is not None
    extra = option.get_help_extra(ctx)
    variables = ", ".join(f"`{each}`" for each in extra.get("envvars", ())) or "-"
    default = _default(option, ctx)
    names = f"`{record[0].replace('`', '')}`"
    return f"| {names} | {_cell(option.help or '')} | {_cell(default)} | {variables} |"


def _default(option: click.Option, ctx: click.Context) -> str:
    return "required" if option.required else str(option.get_help_extra(ctx).get("default", "-"))


def _long_name(row: str) -> str:
    words = row.split("`")[1].replace(",", " ").split()
    return f"`{next(word for word in words if word.startswith('--'))}`"


def _help(parameter: click.Parameter) -> str:
    return str(getattr(parameter, "help", "") or "")


def _cell(text: str) -> str:
    return _escaped(" ".join(text.split())).replace("|", "&#124;")


def _escaped(text: str) -> str:
    """The text with what Markdown would take for markup; code stays."""
    parts = text.split("`")
    for place in range(0, len(parts), 2):
        for mark in "\\*_[<":
            parts[place] = parts[place].replace(mark, f"\\{mark}" if mark != "<" else "&lt;")
    return "`".join(parts)


if __name__ == "__main__":
    DOCUMENT.write_text(document())
