"""Goal: every command of both programs explains itself in the same way, and none is slow to do so.

Method: the trees of commands are walked, in this process; the modules that a help loads are
counted in one of its own.
"""

from __future__ import annotations

import subprocess
import sys

import click
import pytest
from click.testing import CliRunner

from gateway.process.cli import program as gateway
from ledger.__main__ import program as bookie
from ledger.command_line.program import CommandGroup, OldSpelling, flags_of
from ledger.command_line.version import describe
from tests.command_output import context_of, walk

UNIT = ("-ms", "-s", "-seconds", "-minutes", "-bytes")


TREE = [*walk(gateway, ("gateway",)), *walk(bookie, ("bookie",))]
EACH = pytest.mark.parametrize(("path", "command"), TREE, ids=[" ".join(path) for path, _ in TREE])


def run(path: tuple[str, ...], *words: str) -> tuple[int, str, str]:
    root = {"gateway": gateway, "bookie": bookie}[path[0]]
    done = CliRunner().invoke(root, [*path[1:], *words], prog_name=path[0])
    return done.exit_code, done.stdout, done.stderr


def test_the_tree_is_whole():
    found = [path for path, _ in TREE]
    assert len(found) == len(set(found)) == 102
    for words in (
        "gateway dev",
        "gateway group seek",
        "gateway job audit",
        "bookie check-config",
        "gateway bookie decommission",
        "gateway profile show",
    ):
        assert tuple(words.split()) in found


@EACH
def test_help_and_version_are_there_at_every_level(path, command):
    code, out, errors = run(path, "--help")
    assert (code, errors) == (0, "")
    assert out.startswith(f"Usage: {' '.join(path)} ")
    assert "-h, --help" in out and "--version" in out
    assert run(path, "-h") == (0, out, "")
    assert run(path, "--version") == (0, f"{path[0]} {describe()}\n", "")


@EACH
def test_a_usage_error_is_one_line_at_every_level(path, command):
    code, out, errors = run(path, "--no-such-option")
    assert (code, out) == (2, "")
    assert errors.startswith(f"{path[0]}: no option --no-such-option")
    assert errors.endswith(f"; see `{' '.join(path)} --help`\n")
    assert errors.count("\n") == 1


GROUPS = [path for path, command in TREE if isinstance(command, CommandGroup)]


@pytest.mark.parametrize("path", GROUPS, ids=" ".join)
def test_a_group_without_a_command_shows_its_help_and_exits_with_2(path):
    _, help_text, _ = run(path, "--help")
    assert run(path) == (2, "", help_text)


@EACH
def test_units_are_explained_where_an_option_has_them(path, command):
    _, out, _ = run(path, "--help")
    options, _, _ = out.partition("Durations: ")[0].partition("Sizes: ")
    placeholders = set(options.split())
    assert ("Durations: " in out) == ("DURATION" in placeholders)
    assert ("Sizes: " in out) == ("SIZE" in placeholders)


@EACH
def test_every_option_and_argument_says_what_to_pass(path, command):
    for parameter in command.params:
        if not getattr(parameter, "hidden", False):
            assert parameter.help, f"{path}: {parameter.name}"
            assert parameter.help.endswith("."), f"{path}: {parameter.help}"


@EACH
def test_a_value_that_has_a_default_shows_it(path, command):
    ctx = context_of(command, path)
    for option in command.params:
        if isinstance(option, click.Option) and not (
            option.hidden or option.is_flag or option.required or option.multiple
        ):
            record = option.get_help_record(ctx)
            assert record is not None
            assert "default: " in record[1], f"{path}: {option.opts}"


@EACH
def test_no_name_of_an_option_has_a_unit_but_hidden_old_ones(path, command):
    for option in command.params:
        if isinstance(option, click.Option) and not option.hidden:
            assert not any(name.endswith(UNIT) for name in option.opts), f"{path}: {option.opts}"


def test_a_list_of_commands_shows_the_first_line_of_each_help():
    for path, command in TREE:
        if isinstance(command, CommandGroup):
            for name, deferred in command.deferred.items():
                loaded = deferred.load()
                assert loaded.help is not None
                assert loaded.help.partition("\n")[0] == deferred.help, f"{path} {name}"
                assert loaded.name == name


def test_every_old_name_sets_an_option_that_exists():
    found: list[str] = []
    for path, command in TREE:
        _, out, _ = run(path, "--help")
        names = {each.name for each in command.params if not isinstance(each, OldSpelling)}
        for old in command.params:
            if isinstance(old, OldSpelling):
                assert old.of in names
                assert f"{old.opts[0]} " not in out
                found.append(old.opts[0])
    assert sorted(found) == [
        "--bytes-per-s",
        "--delay-s",
        "--file-bytes",
        "--full-check-s",
        "--grace-s",
        *2 * ["--group-initial-rebalance-delay-ms"],
        *2 * ["--group-max-session-timeout-ms"],
        *2 * ["--group-min-session-timeout-ms"],
        "--interval-s",
        "--max-s",
        "--session-ms",
        "--timeout-s",
    ]


@pytest.mark.parametrize(
    ("words", "value_s"), [(["--timeout", "1e3"], 1000.0), (["--timeout", "90"], 90.0)]
)
def test_a_job_takes_every_number_of_seconds(words, value_s):
    command = dict(TREE)["gateway", "job", "archive"]
    assert flags_of(command, ["orders", "--to", "archive", *words]).timeout == value_s


@pytest.mark.parametrize(
    "words", [["gateway", "--help"], ["ledger", "--help"], ["gateway", "group", "seek", "--help"]]
)
def test_a_help_loads_no_module_of_a_server(words):
    module, *rest = words
    code = (
        f"import sys, runpy; sys.argv[1:] = {rest!r}\n"
        f"try: runpy.run_module({module!r}, run_name='__main__')\n"
        "except SystemExit: pass\n"
        "print(sorted({'asyncio', 'grpc', 'kio', 'pydantic', 'rich', 'structlog', 'typer'}"
        " & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stdout.splitlines()[-1] == "[]"
