"""What commands print as JSON: the documents about it, written from the code, and its check.

`python -m tests.command_output` rewrites docs/command-output.md and the JSON schema beside it.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any

import click
from jsonschema import Draft202012Validator

from gateway.process.cli import program as gateway
from ledger.__main__ import program as bookie
from ledger.command_line.shape import Column, Shape, nested, rows
from tests.house import ROOT

DOCUMENT = ROOT / "docs/command-output.md"
SCHEMA = ROOT / "docs/command-output.schema.json"
PROGRAMS: Mapping[str, click.Group] = {"gateway": gateway, "bookie": bookie}
# By the ids of shapes, which are kept so that no other shape gets such an id.
_VALIDATORS: dict[tuple[object, ...], tuple[Draft202012Validator, Sequence[Shape]]] = {}
CHECKED_MAX = 200  # rows of one output
_HEAD = """\
# What commands print

The keys that commands print as JSON, with their types and meanings. This page and [its JSON
schema](command-output.schema.json) are written from the code: `python -m tests.command_output`. A
definition of the schema has the name of its command, such as `gateway topic list`.

| `--output` | prints |
|---|---|
| `table` | a table or a sentence for people, which may change in each release |
| `wide` | the same with all columns; `topic consume` lacks it |
| `json` | an array or an object, as below |
| `jsonl` | a line for each object of an array; another object on one line |
| `csv` | a line for each row, below the keys; null is empty, what has parts is JSON |

`--columns` chooses columns of the rows by these keys, and their order. Keys keep their names, types
and meanings; a later release may add others. "Or null" means that the key is there without a value.
A failure is a line on stderr, with `json` and `jsonl` an object with `error` and `code`.
"""


def walk(
    command: click.Command, path: tuple[str, ...]
) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    """The command and all below it, each with the words that call it."""
    yield path, command
    if isinstance(command, click.Group):
        for name in command.list_commands(context_of(command, path)):
            below = _below(command, path, name)
            assert below is not None
            yield from walk(below, (*path, name))


def context_of(command: click.Command, path: tuple[str, ...], name: str = "") -> click.Context:
    """A context of a command as its program makes it; a command keeps what it finds there first.

    Without the settings of the program, it would show one name of the option for help in later
    tests, and no defaults.
    """
    settings = PROGRAMS[path[0]].context_settings
    return click.Context(command, info_name=name or path[-1], **settings)


def _below(group: click.Group, path: tuple[str, ...], name: str) -> click.Command | None:
    return group.get_command(context_of(group, path), name)


def commands() -> Iterator[tuple[str, click.Command]]:
    """All commands with `--output`, by command line."""
    for name, program in PROGRAMS.items():
        for path, command in walk(program, (name,)):
            if any("--output" in each.opts for each in command.params):
                yield " ".join(path), command


def shapes_of(command: click.Command) -> Sequence[Shape]:
    """The shapes of what a command prints as JSON."""
    shapes: Sequence[Shape] = getattr(command.callback, "shapes", ())
    return [each for each in shapes if not each.tables_only]


# the documents


def document() -> str:
    """The text of docs/command-output.md."""
    return "\n".join([_HEAD, *(_section(path, command) for path, command in commands())])


def schema() -> str:
    """The text of docs/command-output.schema.json."""
    whole = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "What the commands print with -o json",
        "$defs": {path: schema_of(shapes_of(command)) for path, command in commands()},
    }
    return json.dumps(whole, indent=1) + "\n"


def schema_of(shapes: Sequence[Shape]) -> dict[str, Any]:
    """The schema of what a command with these shapes prints; of each line, if it prints lines."""
    schemas = [each.schema() for each in shapes]
    return schemas[0] if len(schemas) == 1 else {"anyOf": schemas}


def _section(path: str, command: click.Command) -> str:
    parts = [f"## `{path}`", ""]
    for shape in shapes_of(command):
        parts += [f"{_lead(shape)}", "", "| key | type | meaning |", "|---|---|---|"]
        parts += [_row(place, column) for place, column in nested(_keys(shape))]
        parts.append("")
    return "\n".join(parts)


def _lead(shape: Shape) -> str:
    kind = "An object." if shape.fields or shape.rows else "An array of objects."
    if shape.lines:
        kind = "An object on one line."
    return f"{shape.when} {kind[0].lower()}{kind[1:]}" if shape.when else kind


def _keys(shape: Shape) -> Sequence[Column]:
    if not shape.rows:
        return shape.keyed
    return [*shape.fields, rows(shape.rows, "The rows of the table.", *shape.columns)]


def _row(place: str, column: Column) -> str:
    kind = column.kind.value + (" or null" if column.nullable else "")
    kind += ", may be absent" if column.optional else ""
    return f"| `{place}` | {kind} | {column.meaning.replace('|', '&#124;')} |"


def differences() -> Iterator[str]:
    """The documents that are not as the code says."""
    for file, text in ((DOCUMENT, document()), (SCHEMA, schema())):
        if not file.exists() or file.read_text() != text:
            yield f"{file.relative_to(ROOT)}: run `python -m tests.command_output`"


# the check of what was printed


class WrongOutput(AssertionError):
    """A command printed JSON of another form than it declares."""


def check_output(words: Sequence[str], out: str, code: int = 0, program: str = "gateway") -> None:
    """Raise WrongOutput if the command printed JSON of another form than its shapes have.

    Other output passes: of a command that failed, for people, and of chosen columns.
    """
    form = _form(words)
    if form is None or code not in (0, 1, 3) or any(word.startswith("--columns") for word in words):
        return
    command = _command(words, program)
    shapes = shapes_of(command)
    try:
        values = _values(out, form, any(each.lines for each in shapes))
    except ValueError:
        if code:  # it failed meanwhile
            return
        raise WrongOutput(f"`{' '.join(words)}` printed no JSON:\n{out[:2000]}") from None
    validator = _validator(tuple(shapes), form)
    for value in values[:CHECKED_MAX]:
        for error in validator.iter_errors(_cut(value)):
            raise WrongOutput(f"`{' '.join(words)}` at {error.json_path}: {_reason(error)}")


def check_value(path: str, value: Any) -> None:
    """Raise WrongOutput unless this is what the command of this path prints as JSON."""
    program, *words = path.split()
    check_output([*words, "-o", "json"], json.dumps(value), program=program)


def _form(words: Sequence[str]) -> str | None:
    for form in ("json", "jsonl"):
        if f"--output={form}" in words or f"-o{form}" in words:
            return form
        if any(pair in (("-o", form), ("--output", form)) for pair in pairwise(words)):
            return form
    return None


def _command(words: Sequence[str], program: str) -> click.Command:
    """The command that these words call; words that name none are values of options."""
    found: click.Command = PROGRAMS[program]
    path: tuple[str, ...] = (program,)
    for word in words:
        below = _below(found, path, word) if isinstance(found, click.Group) else None
        if below is not None:
            found, path = below, (*path, word)
    return found


def _values(out: str, form: str, lines: bool) -> list[Any]:
    """The documents that were printed. Raises ValueError."""
    if form == "json":
        try:
            return [json.loads(out)]
        except ValueError:
            if not lines:
                raise
    return [json.loads(line) for line in out.splitlines()]


def _validator(shapes: Sequence[Shape], form: str) -> Draft202012Validator:
    """The validator of these shapes, which is built once."""
    key = (*map(id, shapes), form)
    if key not in _VALIDATORS:
        _VALIDATORS[key] = _built(shapes, form), shapes
    return _VALIDATORS[key][0]


def _built(shapes: Sequence[Shape], form: str) -> Draft202012Validator:
    schemas = [each.schema() for each in shapes]
    if form == "jsonl":
        schemas = [each.get("items", each) for each in schemas]
    return Draft202012Validator({"anyOf": schemas} if len(schemas) > 1 else schemas[0])


def _cut(value: Any) -> Any:
    return value[:CHECKED_MAX] if isinstance(value, list) else value


def _reason(error: Any) -> str:
    if not error.context:
        return error.message
    return "; or ".join(f"{each.json_path}: {each.message}" for each in error.context)


def main() -> int:
    DOCUMENT.write_text(document())
    SCHEMA.write_text(schema())
    return 0


if __name__ == "__main__":
    sys.exit(main())
