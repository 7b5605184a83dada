"""Goal: a command of the toolkit fails in one line that names what is wrong, and lists only what it
documents.

Method: two small commands, run in this process.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys

import click
import pytest
from click.testing import CliRunner

from ledger.command_line import units
from ledger.command_line.output import Output, fail, output_option
from ledger.command_line.program import (
    Command,
    CommandGroup,
    Deferred,
    Value,
    flags_of,
    old_spelling,
)
from ledger.command_line.shape import Shape, text
from ledger.command_line.version import describe


def program() -> CommandGroup:
    """A program with one command of its own and one that cannot be imported."""
    root = CommandGroup(
        "tool", "Do things.", {"late": Deferred("no.such.module", "late", "Be late.")}
    )

    @root.command("wait")
    @click.argument("place", help="The place.")
    @click.option("--time", type=Value("duration", units.duration(0, 60)), default="10s")
    @old_spelling("--time-ms", of="time", unit="ms")
    @output_option(Shape(fields=(text("place", "The place."),)))
    def wait(place: str, time: float, output: Output) -> int:  # pyright: ignore[reportUnusedFunction]
        """Wait at a place.

        As long as you like.
        """
        if place == "nowhere":
            fail(69, "nowhere is not there", "NOWHERE", output)
        if place == "ctrl-c":
            raise KeyboardInterrupt
        print(f"{place} {time:g}")
        return 3 if place == "three" else 0

    return root


def run(*words: str) -> tuple[int, str, str]:
    done = CliRunner().invoke(program(), words)
    return done.exit_code, done.stdout, done.stderr


@pytest.mark.parametrize("words", [["-h"], ["--help"]])
def test_the_help_of_a_group_imports_no_command(words):
    code, out, _ = run(*words)
    assert code == 0
    assert "late  Be late." in out
    assert "wait  Wait at a place." in out


def test_the_version_is_known_at_every_level():
    assert run("--version") == run("wait", "--version") == (0, f"tool {describe()}\n", "")


def test_help_shows_defaults_and_no_old_name():
    code, out, _ = run("wait", "-h")
    assert code == 0
    assert "[default: 10s]" in out
    assert "--time DURATION" in out
    assert "--time-ms" not in out


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["wait"], "PLACE is missing (The place); see `tool wait --help`"),
        (["wait", "a", "b"], "got unexpected extra argument (b); see `tool wait --help`"),
        (["wait", "a", "--tme", "1s"], "no option --tme: did you mean --time?; see `tool wait"),
        (["wait", "a", "--zzz"], "no option --zzz; see `tool wait --help`"),
        (["wait", "a", "--time"], "--time needs a value; see `tool wait --help`"),
        (["wait", "a", "--time", "10"], "--time 10: 10 has no unit; write 10s, 500ms"),
        (["wait", "a", "--time", "2h"], "--time 2h: must be between 0ms and 1m"),
        (["wait", "a", "--time-ms", "x"], "--time-ms x: must be a duration"),
        (["wait", "a", "--time-ms", "-5"], "--time-ms -5: must be between 0ms and 1m"),
        (["wait", "a", "--time-ms", "1e9"], "--time-ms 1e9: must be between 0ms and 1m"),
        (["wait", "\udcff\udcfe"], "\\xff\\xfe: is not valid UTF-8"),
        (["wait", "a", "--time", "\udcff"], "\\xff: is not valid UTF-8"),
        (["wait", "a", "--time-ms", "1", "--time", "1s"], "--time-ms is an old name of --time"),
        (["wait", "a", "--version=1"], "--version takes no value"),
        (["wait", "a", "-o", "xml"], "--output xml: must be table, wide, json, jsonl or csv"),
        (["wiat"], "no command wiat: did you mean wait?; see `tool --help`"),
        (["--zzz"], "no option --zzz; see `tool --help`"),
    ],
)
def test_a_usage_error_is_one_line_and_exit_code_2(words, line):
    code, out, errors = run(*words)
    assert (code, out) == (2, "")
    assert errors.startswith(f"tool: {line}")
    assert errors.count("\n") == 1


@pytest.mark.parametrize("words", [["-o", "json"], ["--output", "json"], ["--output=json"]])
def test_a_usage_error_is_json_when_json_was_asked_for(words):
    code, _, errors = run("wait", "a", "--zzz", *words)
    assert code == 2
    assert json.loads(errors) == {
        "error": "no option --zzz; see `tool wait --help`",
        "code": "USAGE",
    }


def test_a_failure_is_a_line_or_json():
    assert run("wait", "nowhere") == (69, "", "tool: nowhere is not there\n")
    code, out, errors = run("wait", "nowhere", "-o", "json")
    assert (code, out) == (69, "")
    assert json.loads(errors) == {"error": "nowhere is not there", "code": "NOWHERE"}


def test_the_exit_code_is_what_the_command_returns_or_130_after_ctrl_c():
    assert run("wait", "a") == (0, "a 10\n", "")
    assert run("wait", "three")[0] == 3
    assert run("wait", "ctrl-c") == (130, "", "")


@pytest.mark.parametrize(
    ("words", "seconds"),
    [
        ([], 10.0),
        (["--time", "500ms"], 0.5),
        (["--time-ms", "6000"], 6.0),
        (["--time-ms", "6s"], 6.0),
        (["--time-ms", "6e3"], 6.0),
        (["--time", "1s", "--time", "2s"], 2.0),
    ],
)
def test_an_old_name_sets_the_option_in_its_own_unit(words, seconds):
    command = program().commands["wait"]
    assert isinstance(command, Command)
    flags = flags_of(command, ["a", *words])
    assert flags.time == seconds
    assert not hasattr(flags, "time_ms")
    assert flags.given("time") == (" ".join(words[-2:]) or "--time 10s")


def test_a_duration_is_explained_only_where_an_option_takes_one():
    assert "Durations: 500ms, 10s, 5m, 1h, 7d, PT1H30M.\n" in run("wait", "-h")[1]
    assert "Sizes:" not in run("wait", "-h")[1]
    assert "Durations" not in run("-h")[1]


def test_a_group_without_a_command_shows_its_help():
    code, _, errors = run()
    assert code == 2
    assert "wait  Wait at a place." in errors


@pytest.mark.parametrize("words", ["ledger serve --bogus", "gateway topic --bogus"])
def test_a_full_stderr_does_not_change_the_exit_code(words: str):
    environment = {**os.environ, "PYTHONUNBUFFERED": ""}  # then Python keeps the line
    command = [sys.executable, "-m", *words.split()]
    with open("/dev/full", "wb") as full:
        done = subprocess.run(command, stderr=full, env=environment, check=False)
    assert done.returncode == 2
