"""Goal: a table fits the terminal and has colour there, and nowhere else unless that is asked for.

Method: results are printed to a pseudo-terminal of a chosen width, and to a pipe.
"""

from __future__ import annotations

import io

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ledger.command_line.output import Format, Output
from ledger.command_line.shape import Shape, Tone, text, whole
from ledger.command_line.table import Look, draw_table
from ledger.command_line.terminal import Color, columns, cut, text_width
from tests.ledger.printing import FIRST, ROWS, SECOND, SOME_ROWS, Terminal

GREEN, RED, BOLD, PLAIN = "\x1b[32m", "\x1b[31m", "\x1b[1m", "\x1b[0m"
NAMES = Shape(
    (text("name", "Name."), text("host", "Address."), whole("size", "Size.")),
)


@pytest.fixture(autouse=True)
def environment(monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    for name in ("NO_COLOR", "COLUMNS"):
        monkeypatch.delenv(name, raising=False)


def on_terminal(monkeypatch, value, *, shape=ROWS, width=200, form=Format.table, **asked):
    """What a terminal of this width shows of the value."""
    terminal = Terminal(width)
    monkeypatch.setattr("sys.stdout", terminal.stream)
    width_min = asked.pop("width_min", 0)
    Output(form, shape, **asked).show(value, width_min=width_min)
    return terminal.shown()


def in_pipe(monkeypatch, value, *, shape=ROWS, form=Format.table, **asked):
    pipe = io.StringIO()
    monkeypatch.setattr("sys.stdout", pipe)
    Output(form, shape, **asked).show(value)
    return pipe.getvalue()


def row(name, host, size=1):
    return {"name": name, "host": host, "size": size}


def narrow(monkeypatch, *rows, width=40, **asked):
    asked.setdefault("color", Color.never)
    shown = on_terminal(monkeypatch, list(rows), shape=NAMES, width=width, **asked)
    return shown.splitlines()


# -- width ----------------------------------------------------------------------------------------


def test_the_longest_column_is_cut_first(monkeypatch):
    lines = narrow(monkeypatch, row("n" * 30, "h" * 12), row("short", "h"))
    assert lines == [
        "NAME                   HOST         SIZE",
        "nnnnnnnnnnnnnnnnnnnnn… hhhhhhhhhhhh 1",
        "short                  h            1",
    ]
    assert max(map(len, lines)) == 40


def test_two_long_columns_are_cut_to_the_same_width(monkeypatch):
    lines = narrow(monkeypatch, row("n" * 30, "h" * 50))
    assert lines[1] == "n" * 16 + "… " + "h" * 16 + "… 1"
    assert len(lines[0]) == 40
    lines = narrow(monkeypatch, row("n" * 30, "h" * 50), width=39)
    assert lines[1] == "n" * 16 + "… " + "h" * 15 + "… 1"
    assert len(lines[0]) == 39


@settings(max_examples=60)
@given(st.lists(st.integers(1, 40), min_size=1, max_size=6), st.integers(1, 200))
def test_columns_are_cut_one_character_at_a_time_from_the_longest(widths, width_max):
    cells = [text(f"c{number}", "A column.") for number in range(len(widths))]
    values = {column.key: "x" * width for column, width in zip(cells, widths, strict=True)}
    drawn = draw_table(cells, [values], Look(header=False, width_max=width_max))

    slow = list(widths)
    while sum(slow) + len(slow) - 1 > width_max and max(slow) > 8:
        slow[len(slow) - 1 - slow[::-1].index(max(slow))] -= 1
    assert [len(each) for each in drawn.split(" ")] == slow
    assert drawn.count("…") == sum(now < before for now, before in zip(slow, widths, strict=True))


def test_a_table_that_fits_is_not_cut(monkeypatch):
    lines = narrow(monkeypatch, row("n" * 22, "h" * 12))
    assert lines[1] == "n" * 22 + " " + "h" * 12 + " 1"
    assert len(lines[0]) == 40


def test_no_column_is_cut_to_less_than_eight_characters(monkeypatch):
    assert narrow(monkeypatch, row("n" * 30, "host"), width=10)[1] == "nnnnnnn… host 1"


@pytest.mark.parametrize(
    ("width", "line"),
    [
        (47, "name            host            1"),
        (46, "name host 1"),
    ],
)
def test_room_between_columns_is_given_up_before_text_is_cut(monkeypatch, width, line):
    shown = narrow(monkeypatch, row("name", "host"), width=width, width_min=15)
    assert shown[1] == line


def test_headings_are_cut_with_their_column(monkeypatch):
    shape = Shape((whole("a_very_long_heading_of_a_column", "Size."), whole("size", "Size.")))
    value = [{"a_very_long_heading_of_a_column": 1, "size": 2}]
    shown = on_terminal(monkeypatch, value, shape=shape, width=20, color=Color.never)
    assert shown == "A-VERY-LONG-HE… SIZE\n1               2\n"


def test_an_object_is_cut_too(monkeypatch):
    shape = Shape(fields=NAMES.columns)
    shown = on_terminal(monkeypatch, row("n" * 60, "h"), shape=shape, width=40, color=Color.never)
    assert shown.splitlines() == ["FIELD VALUE", f"name  {'n' * 33}…", "host  h", "size  1"]


@pytest.mark.parametrize("form", [Format.table, Format.wide, Format.csv, Format.json])
def test_nothing_is_cut_in_a_pipe(monkeypatch, form):
    monkeypatch.setenv("COLUMNS", "40")
    value = [row("n" * 200, "h" * 200)]
    shown = in_pipe(monkeypatch, value, shape=NAMES, form=form)
    assert "n" * 200 in shown
    assert "h" * 200 in shown
    assert "…" not in shown


@pytest.mark.parametrize("form", [Format.csv, Format.json, Format.jsonl])
def test_what_programs_read_is_not_cut_on_a_terminal_either(monkeypatch, form):
    shown = on_terminal(monkeypatch, [row("n" * 200, "h")], shape=NAMES, width=40, form=form)
    assert "n" * 200 in shown


def test_a_terminal_without_a_size_cuts_nothing(monkeypatch):
    assert "n" * 200 in narrow(monkeypatch, row("n" * 200, "h"), width=0)[1]


@pytest.mark.parametrize(
    ("given", "width"), [("60", 60), ("0", 40), ("-1", 40), ("wide", 40), ("", 40)]
)
def test_a_number_in_columns_comes_before_the_size_of_the_terminal(monkeypatch, given, width):
    monkeypatch.setenv("COLUMNS", given)
    terminal = Terminal(40)
    assert columns(terminal.stream) == width
    assert columns(io.StringIO()) is None
    assert terminal.shown() == ""


def test_wide_characters_are_counted_as_a_terminal_shows_them(monkeypatch):
    lines = narrow(monkeypatch, row("東" * 20, "h" * 12), row("z\u0307ażó\u0301łć", "h"))
    assert lines[1] == "東" * 10 + "…  " + "h" * 12 + " 1"
    assert [text_width(line) for line in lines] == [40, 37, 37]
    assert lines[2].index(" h") + 1 - 2 == lines[0].index("HOST")  # two of it have no width


@pytest.mark.parametrize(
    ("word", "width", "shown"),
    [
        ("abc", 3, "abc"),
        ("abcd", 3, "ab…"),
        ("abc", 1, "…"),
        ("東京", 3, "東…"),
        ("東京", 4, "東京"),
    ],
)
def test_text_is_cut_to_a_width(word, width, shown):
    assert cut(word, width) == shown
    assert text_width(shown) <= width


# -- colour ---------------------------------------------------------------------------------------


def test_a_terminal_gets_bold_headings_and_states_in_colour(monkeypatch):
    assert on_terminal(monkeypatch, SOME_ROWS).splitlines() == [
        f"{BOLD}NAME   LOG-END-OFFSET INTERNAL STATE{PLAIN}",
        f"orders 12             false    {GREEN}Stable{PLAIN}",
        f"x      -              true     {RED}Dead{PLAIN}",
    ]


def test_a_value_that_is_cut_keeps_its_colour(monkeypatch):
    tones = {"PreparingRebalance": Tone.warning}
    shape = Shape((text("state", "State.", tones=tones), whole("size", "Size.")))
    value = [{"state": "PreparingRebalance", "size": 1}]
    shown = on_terminal(monkeypatch, value, shape=shape, width=14)
    assert shown.splitlines()[1] == f"\x1b[33mPreparin…{PLAIN} 1"


def test_without_headings_the_first_row_is_as_the_others(monkeypatch):
    shown = on_terminal(monkeypatch, SOME_ROWS, header=False, chosen=("state", "name"))
    assert shown == f"{GREEN}Stable{PLAIN} orders\n{RED}Dead{PLAIN}   x\n"


@pytest.mark.parametrize(
    ("variable", "value", "colored"),
    [
        ("NO_COLOR", "1", False),
        ("NO_COLOR", "", True),
        ("TERM", "dumb", False),
        ("TERM", "xterm-256color", True),
    ],
)
def test_the_environment_forbids_colour(monkeypatch, variable, value, colored):
    monkeypatch.setenv(variable, value)
    assert ("\x1b" in on_terminal(monkeypatch, [FIRST])) == colored
    assert "\x1b" in on_terminal(monkeypatch, [FIRST], color=Color.always)
    assert "\x1b" not in on_terminal(monkeypatch, [FIRST], color=Color.never)


def test_a_pipe_gets_colour_only_if_that_is_asked_for(monkeypatch):
    assert "\x1b" not in in_pipe(monkeypatch, [FIRST])
    assert f"{GREEN}Stable{PLAIN}" in in_pipe(monkeypatch, [FIRST], color=Color.always)


@pytest.mark.parametrize("form", [Format.csv, Format.json, Format.jsonl])
def test_what_programs_read_never_has_colour(monkeypatch, form):
    assert "\x1b" not in on_terminal(monkeypatch, SOME_ROWS, form=form, color=Color.always)


# -- names that clients chose ---------------------------------------------------------------------


def test_csv_is_escaped_on_a_terminal_and_exact_in_a_pipe(monkeypatch):
    value = [row("a\x1b[2J\nforged,1\x9b", "żółć 東")]
    assert on_terminal(monkeypatch, value, shape=NAMES, form=Format.csv) == (
        'name,host,size\n"a\\x1b[2J\\nforged,1\\x9b",żółć 東,1\n'
    )
    assert in_pipe(monkeypatch, value, shape=NAMES, form=Format.csv) == (
        'name,host,size\n"a\x1b[2J\nforged,1\x9b",żółć 東,1\n'
    )


def test_a_name_brings_no_colour_into_a_table(monkeypatch):
    shown = on_terminal(monkeypatch, [{**SECOND, "name": "\x1b[31mred"}], header=False)
    assert shown == f"\\x1b[31mred - true {RED}Dead{PLAIN}\n"
