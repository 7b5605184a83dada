"""Goal: a command prints its result in the form that its user asked for, exactly as documented.

Method: commands with results of each shape, run in this process with stdout as a pipe; and the
functions that print, with names that clients chose to forge a row, a line or a colour.
"""

from __future__ import annotations

import csv
import io
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ledger.command_line.failure import print_failure
from ledger.command_line.output import Output, as_json, emit, headings, note
from ledger.command_line.shape import Column, Kind, Shape, text, whole
from ledger.command_line.table import as_table
from tests.ledger.printing import (
    AN_OBJECT,
    AN_OBJECT_WITH_ROWS,
    COPIES,
    FIRST,
    OBJECT,
    ONLY_ROWS,
    ROWS,
    SECOND,
    SOME_ROWS,
    WITH_ROWS,
    printed,
)

CHARACTERS = "\n\r\t\x07\x1b\x7f\x85\x9b\u2028\u202e\ud800"
FORGED = "".join(f"a{each}[31m" for each in CHARACTERS)


def show_rows(output: Output) -> None:
    output.show(SOME_ROWS)


def lines_of(*words, show=show_rows, shapes=(ROWS,)):
    code, out, errors = printed(show, *words, shapes=shapes)
    assert (code, errors) == (0, "")
    return out.splitlines()


# -- rows -----------------------------------------------------------------------------------------


def test_a_table_has_the_columns_that_people_need():
    assert lines_of() == [
        "NAME   LOG-END-OFFSET INTERNAL STATE",
        "orders 12             false    Stable",
        "x      -              true     Dead",
    ]


def test_a_wide_table_has_more_columns_but_no_nested_ones():
    assert lines_of("-o", "wide") == [
        "NAME   LOG-END-OFFSET INTERNAL STATE  HOST      TAGS CONFIGS",
        "orders 12             false    Stable 127.0.0.1 a,b  retention.ms=5",
        "x      -              true     Dead   127.0.0.1 -    -",
    ]


def test_a_column_that_few_rows_need_is_shown_if_one_has_a_value():
    failed = {**SECOND, "error": "NOT_LEADER"}
    lines = lines_of(show=lambda output: output.show([FIRST, failed]))
    assert [line.split()[-1] for line in lines] == ["ERROR", "-", "NOT_LEADER"]


def test_json_has_every_key_of_every_row():
    assert json.loads("\n".join(lines_of("-o", "json"))) == SOME_ROWS


def test_jsonl_has_a_row_on_each_line():
    assert [json.loads(line) for line in lines_of("-o", "jsonl")] == SOME_ROWS


def test_no_rows_are_a_heading_an_empty_array_or_nothing():
    def show_nothing(output: Output) -> None:
        output.show([])

    assert lines_of(show=show_nothing) == ["NAME LOG-END-OFFSET INTERNAL STATE"]
    assert lines_of("--no-header", show=show_nothing) == []
    assert lines_of("-o", "json", show=show_nothing) == ["[]"]
    assert lines_of("-o", "jsonl", show=show_nothing) == []
    assert lines_of("-o", "csv", "--no-header", show=show_nothing) == []


# -- objects --------------------------------------------------------------------------------------


def test_an_object_is_a_line_for_each_field_for_people():
    assert lines_of(show=lambda output: output.show(AN_OBJECT), shapes=(OBJECT,)) == [
        "FIELD VALUE",
        "name  orders",
        "size  7B",
    ]


@pytest.mark.parametrize(
    ("words", "out"),
    [
        (("-o", "json"), json.dumps(AN_OBJECT, indent=2)),
        (("-o", "jsonl"), json.dumps(AN_OBJECT)),
        (("-o", "csv"), "name,size\norders,7"),
        (("--columns", "size,name"), "SIZE NAME\n7B   orders"),
        (("--columns", "size,name", "--no-header"), "7B orders"),
        (("--no-header",), "name orders\nsize 7B"),
        (("-o", "jsonl", "--columns", "first"), '{"first": {"bookie": "b:1", "bytes": 3}}'),
    ],
    ids=" ".join,
)
def test_an_object_is_printed_as_programs_want_it(words, out):
    lines = lines_of(*words, show=lambda output: output.show(AN_OBJECT), shapes=(OBJECT,))
    assert lines == out.split("\n")


@pytest.mark.parametrize("words", [(), ("-o", "wide"), ("--no-header",)])
def test_what_was_done_is_a_sentence_for_people(words):
    def done(output: Output) -> None:
        output.done(AN_OBJECT, "Made orders.")

    assert lines_of(*words, show=done, shapes=(OBJECT,)) == ["Made orders."]
    assert lines_of("-o", "csv", show=done, shapes=(OBJECT,)) == ["name,size", "orders,7"]
    assert lines_of("--columns", "name", show=done, shapes=(OBJECT,)) == ["NAME", "orders"]


def show_framed(output: Output) -> None:
    output.show(AN_OBJECT_WITH_ROWS, before="Topic: orders\n", after="\nThat is all.")


def test_the_table_of_an_object_with_rows_may_have_lines_around_it():
    assert lines_of(show=show_framed, shapes=(WITH_ROWS,)) == [
        *("Topic: orders", ""),
        *("BOOKIE BYTES", "b:1    3", "b:2    -"),
        *("", "That is all."),
    ]


@pytest.mark.parametrize(
    ("words", "out"),
    [
        (("-o", "json"), json.dumps(AN_OBJECT_WITH_ROWS, indent=2)),
        (("-o", "jsonl"), json.dumps(AN_OBJECT_WITH_ROWS)),
        (("-o", "csv"), "bookie,bytes\nb:1,3\nb:2,"),
        (("--no-header",), "b:1 3\nb:2 -"),
        (("--columns", "bytes"), "BYTES\n3\n-"),
        (
            ("-o", "jsonl", "--columns", "bytes"),
            '{"name": "orders", "size": null, "copies": [{"bytes": 3}, {"bytes": null}]}',
        ),
    ],
    ids=" ".join,
)
def test_programs_read_an_object_with_rows_without_lines_around_it(words, out):
    assert lines_of(*words, show=show_framed, shapes=(WITH_ROWS,)) == out.split("\n")


def test_an_object_may_have_nothing_but_rows():
    def show(output: Output) -> None:
        output.show({"copies": COPIES})

    assert lines_of(show=show, shapes=(ONLY_ROWS,)) == ["BOOKIE BYTES", "b:1    3", "b:2    -"]
    assert json.loads("".join(lines_of("-o", "json", show=show, shapes=(ONLY_ROWS,)))) == {
        "copies": COPIES
    }


def test_a_table_in_the_form_of_kafkas_tools_has_an_empty_line_and_wide_columns():
    def show(output: Output) -> None:
        output.show(COPIES, width_min=15, blank_first=True)

    form = Shape(WITH_ROWS.columns)
    assert lines_of(show=show, shapes=(form,)) == [
        "",
        "BOOKIE          BYTES",
        "b:1             3",
        "b:2             -",
    ]
    assert lines_of("--no-header", show=show, shapes=(form,)) == [
        "b:1             3",
        "b:2             -",
    ]
    assert json.loads(lines_of("-o", "jsonl", show=show, shapes=(form,))[0]) == COPIES[0]


# -- columns --------------------------------------------------------------------------------------


def test_chosen_columns_come_in_the_given_order_and_once():
    words = ("--columns", "STATE, log-end-offset,name,state")
    assert lines_of(*words) == [
        "STATE  LOG-END-OFFSET NAME",
        "Stable 12             orders",
        "Dead   -              x",
    ]
    assert lines_of(*words, "--no-header")[0] == "Stable 12 orders"
    assert lines_of(*words, "-o", "csv")[1] == "Stable,12,orders"
    row = json.loads(lines_of(*words, "-o", "jsonl")[0])
    assert list(row.items()) == [("state", "Stable"), ("log_end_offset", 12), ("name", "orders")]


def test_a_table_shows_columns_of_wide_tables_if_they_are_chosen():
    assert lines_of("--columns", "tags,error") == ["TAGS ERROR", "a,b  -", "-    -"]


def test_only_json_has_nested_keys():
    assert json.loads(lines_of("--columns", "copies", "-o", "jsonl")[1]) == {"copies": []}
    for form in ("table", "wide", "csv"):
        code, out, errors = printed(show_rows, "--columns", "name,copies", "-o", form)
        assert (code, out) == (2, "")
        assert errors == (
            "tool: --columns copies: only -o json and jsonl have 'copies'; a table has name, "
            "log_end_offset, internal, state, error, host, tags, configs\n"
        )


@pytest.mark.parametrize(
    ("names", "hint"),
    [
        ("nam", "there is no column 'nam': did you mean name?"),
        ("name,log-end-ofset", "no column 'log-end-ofset': did you mean log_end_offset?"),
        ("name,", "there is no column ''; there are configs, copies, error,"),
        ("lag", "there is no column 'lag'; there are configs, copies, error,"),
        ("#", "there is no column '#'; there are configs"),
    ],
)
def test_an_unknown_column_is_one_line_with_the_nearest_name(names, hint):
    code, out, errors = printed(show_rows, "--columns", names)
    assert (code, out, errors.count("\n")) == (2, "", 1)
    assert errors.startswith(f"tool: --columns {names}: ")
    assert hint in errors
    code, out, errors = printed(show_rows, "--columns", names, "-o", "json")
    assert (code, out, json.loads(errors)["code"]) == (2, "", "USAGE")


VIEWS = (Shape((text("name", "Name."), whole("lag", "Lag."))), Shape((text("host", "Address."),)))


@pytest.mark.parametrize("form", ["table", "wide", "csv", "json", "jsonl"])
def test_a_column_of_another_view_is_refused_before_the_result_is_asked_for(form):
    asked: list[str] = []

    def show(output: Output) -> None:
        output = output.of(VIEWS[1])
        asked.append("hosts")
        output.show([{"host": "h"}])

    code, out, errors = printed(show, "--columns", "lag", "-o", form, shapes=VIEWS)
    assert (code, out, asked) == (2, "", [])
    assert "--columns lag: this view has no column 'lag'; it has host" in errors
    code, out, _ = printed(show, "--columns", "host", "-o", form, shapes=VIEWS)
    assert (code, asked) == (0, ["hosts"])
    assert "h" in out


def test_a_view_that_lacks_a_chosen_column_prints_nothing():
    def show(output: Output) -> None:
        output.show([{"host": "h"}], shape=VIEWS[1])

    code, out, errors = printed(show, "--columns", "lag", shapes=VIEWS)
    assert (code, out) == (2, "")
    assert errors == "tool: --columns lag: this view has no column 'lag'; it has host\n"


def test_columns_of_two_views_are_refused_before_the_command_runs():
    ran: list[Output] = []
    code, out, errors = printed(ran.append, "--columns", "lag,host", shapes=VIEWS)
    assert (code, out, ran) == (2, "", [])
    assert errors == "tool: --columns host: this view has no column 'host'; it has name, lag\n"


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (("-o", "xml"), "--output xml: must be table, wide, json, jsonl or csv"),
        (("--color", "sometimes"), "--color sometimes: must be auto, always or never"),
        (("--columns",), "--columns needs a value"),
    ],
)
def test_a_form_that_does_not_exist_is_refused_with_those_that_do(words, text):
    code, out, errors = printed(show_rows, *words)
    assert (code, out, errors.count("\n")) == (2, "", 1)
    assert text in errors


# -- CSV ------------------------------------------------------------------------------------------

CELLS = Shape(
    (
        text("name", "Name.", nullable=True),
        whole("size", "Size.", nullable=True),
        Column("tags", Kind.texts, "Tags."),
    )
)
HARD = [
    {"name": 'a,"b"', "size": 1, "tags": ["x,y", '"']},
    {"name": "two\nlines\r\n", "size": 0, "tags": []},
    {"name": "\x1b[31m\u2028żó東", "size": None, "tags": ["\x1b", "東"]},
    {"name": None, "size": None, "tags": []},
    {"name": "and\rmore", "size": -1, "tags": []},
    {"name": " spaces ", "size": 2**63, "tags": []},
]


def csv_of(*words):
    return printed(lambda output: output.show(HARD), "-o", "csv", *words, shapes=(CELLS,))[1]


def test_csv_in_a_pipe_has_the_exact_text():
    assert csv_of() == (
        "name,size,tags\n"
        '"a,""b""",1,"[""x,y"", ""\\""""]"\n'
        '"two\nlines\r\n",0,[]\n'
        '\x1b[31m\u2028żó東,,"[""\\u001b"", ""東""]"\n'
        ",,[]\n"
        '"and\rmore",-1,[]\n'
        " spaces ,9223372036854775808,[]\n"
    )


def test_a_reader_of_csv_finds_the_same_values():
    found = list(csv.reader(io.StringIO(csv_of("--no-header"), newline="")))
    assert [row[0] for row in found] == [row["name"] or "" for row in HARD]
    assert [row[1] for row in found] == ["1", "0", "", "", "-1", str(2**63)]
    assert [json.loads(row[2]) for row in found] == [row["tags"] for row in HARD]


@settings(max_examples=20)
@given(st.lists(st.text(st.characters(codec="utf-8")), min_size=1))
def test_a_reader_of_csv_finds_any_name(names):
    rows = [{"name": name, "size": None, "tags": [name]} for name in names]
    for columns in ("name", "tags,name"):
        words = ("-o", "csv", "--no-header", "--columns", columns)
        text = printed(lambda output: output.show(rows), *words, shapes=(CELLS,))[1]
        found = list(csv.reader(io.StringIO(text, newline="")))
        assert [row[-1] for row in found] == names
        assert columns == "name" or [json.loads(row[0]) for row in found] == [[n] for n in names]


def test_a_row_of_one_empty_value_is_no_empty_line():
    text = csv_of("--columns", "size", "--no-header")
    assert text.splitlines() == ["1", "0", '""', '""', "-1", str(2**63)]
    assert len(list(csv.reader(io.StringIO(text)))) == len(HARD)


def test_csv_has_truth_as_json_writes_it():
    lines = lines_of("-o", "csv", "--columns", "internal,configs")
    assert lines == ["internal,configs", 'false,"{""retention.ms"": ""5""}"', "true,{}"]


# -- names that clients chose ---------------------------------------------------------------------


def test_a_cell_shows_such_characters_as_escapes():
    shown = as_table(headings("group", "state"), [{"group": FORGED, "state": "Empty"}])
    heading, row = shown.split("\n")
    assert row.isprintable()
    assert row.startswith(r"a\n[31ma\r[31ma\t[31ma\x07[31ma\x1b[31ma\x7f[31ma\x85[31m")
    assert heading.index("STATE") == row.index("Empty")


@pytest.mark.parametrize("form", ["table", "wide"])
def test_such_names_forge_no_row(form):
    row = {**FIRST, "name": FORGED, "host": FORGED, "tags": [FORGED], "configs": {FORGED: FORGED}}
    lines = lines_of("-o", form, show=lambda output: output.show([row, SECOND]))
    assert len(lines) == 3
    assert all(line.isprintable() for line in lines)


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


def test_without_a_stderr_a_failure_and_a_note_are_dropped(capsys, monkeypatch):
    """Python has None for a stream that was closed before the start; print() takes stdout then."""
    monkeypatch.setattr("sys.stderr", None)
    print_failure("tool", "no group", "NO_GROUP", as_json=False)
    note("group is empty")
    assert capsys.readouterr().out == ""
