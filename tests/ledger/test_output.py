"""Goal: a name that clients chose forges no row, no line and no colour in what a command prints.

Method: the functions that print, with names that contain such characters.
"""

import json

import pytest

from ledger.command_line.failure import print_failure
from ledger.command_line.output import as_json, as_table, emit, headings, note

CHARACTERS = "\n\r\t\x07\x1b\x7f\x85\x9b\u2028\u202e\ud800"
FORGED = "".join(f"a{each}[31m" for each in CHARACTERS)


def test_a_cell_shows_such_characters_as_escapes():
    shown = as_table(headings("group", "state"), [{"group": FORGED, "state": "Empty"}])
    heading, row = shown.split("\n")
    assert row.isprintable()
    assert row.startswith(r"a\n[31ma\r[31ma\t[31ma\x07[31ma\x1b[31ma\x7f[31ma\x85[31m")
    assert heading.index("STATE") == row.index("Empty")


def test_other_writing_stays_as_it_is():
    assert as_table(headings("group"), [{"group": "zażółć 東京 \\n"}]).endswith("\nzażółć 東京 \\n")
    assert "zażółć 東京" in as_json(["zażółć 東京"])


@pytest.mark.parametrize("value", [FORGED, "\U000e0001", {FORGED: [FORGED]}])
def test_json_has_them_as_escapes_and_is_read_as_the_same_value(value):
    text = as_json({"value": value})
    assert text.replace("\n", "").isprintable()
    assert json.loads(text) == {"value": value}


def test_printed_lines_have_no_such_character(capsys):
    emit(f"Deleted group {FORGED}.")
    out = capsys.readouterr().out
    assert out.replace("\n", "").isprintable()
    assert r"a\x1b[31m" in out


@pytest.mark.parametrize("as_json", [True, False])
def test_a_failure_and_a_note_are_one_line(capsys, as_json):
    print_failure("tool", f"no group {FORGED}", "NO_GROUP", as_json=as_json)
    note(f"group {FORGED} is empty")
    lines = capsys.readouterr().err.split("\n")
    assert len(lines) == 3
    assert all(line.isprintable() for line in lines)
    assert not as_json or json.loads(lines[0])["error"] == f"no group {FORGED}"
