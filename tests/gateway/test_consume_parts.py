"""Goal: places, partitions, formats, filters and forms mean what the help says.

Method: every notation by hand and by Hypothesis; formats against what kcat prints are in
test_topic_consume.py.
"""

from __future__ import annotations

import base64
import csv
import io
import json
from contextlib import suppress
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.admin import consume_output
from gateway.admin.consume_batches import PlainRecord
from gateway.admin.consume_bounds import (
    END,
    START,
    Bound,
    LogRange,
    OutOfRange,
    is_behind,
    limits,
    read_bound,
    read_partitions,
    show_partitions,
)
from gateway.admin.consume_filters import (
    by_header,
    by_key,
    by_value,
    matching,
    topics_by_pattern,
)
from gateway.admin.consume_format import compile_format
from gateway.admin.consume_values import (
    ValueForm,
    escaped_text,
    one_line_json,
    parse_json,
    plain_bytes,
    value_show,
)
from gateway.admin.record_json import decode_record

NOW_MS = 1_800_000_000_000
NOON_MS = round(datetime(2026, 5, 1, 12, tzinfo=UTC).timestamp() * 1000)
LOG = LogRange(120, 340)
BINARY = bytes(range(256))


def rec(value=b"v", key=b"k", offset=7, timestamp=1000, headers=(), kind=0):
    return PlainRecord(offset, timestamp, kind, key, value, headers)


@pytest.mark.parametrize(
    ("word", "bound"),
    [
        ("start", START),
        ("end", END),
        ("42", Bound("offset", 42)),
        ("-42", Bound("before", 42)),
        ("+42", Bound("after", 42)),
        ("@2026-05-01T12:00", Bound("time", NOON_MS)),
        ("@2026-05-01T14:00+02:00", Bound("time", NOON_MS)),
        ("@1700000000000", Bound("time", 1_700_000_000_000)),
        ("@-1h", Bound("time", NOW_MS - 3_600_000)),
        ("@-PT1H", Bound("time", NOW_MS - 3_600_000)),
        ("@1960-01-01", Bound("time", 0)),
    ],
)
def test_a_place_is_read(word, bound):
    assert read_bound(word, NOW_MS) == bound


@pytest.mark.parametrize(
    "word", ["", "first", "1.5", "--3", "@", "@noon", "@-", "@1h", "@-1x", "9" * 19, "9" * 30, "²"]
)
def test_a_word_that_is_no_place_is_refused_with_the_form(word):
    with pytest.raises(ValueError, match=r"\w"):
        read_bound(word, NOW_MS)


@given(st.text(max_size=12))
def test_any_text_is_a_place_or_a_value_error(word):
    try:
        assert read_bound(word, NOW_MS).number >= 0
    except ValueError as error:
        assert str(error)


BOUNDS = st.builds(
    Bound, st.sampled_from(["start", "end", "offset", "before", "after"]), st.integers(0, 400)
)


@given(BOUNDS, BOUNDS)
def test_no_record_lies_between_a_place_and_one_that_it_is_behind(start, stop):
    if is_behind(start, stop):
        with suppress(OutOfRange):
            first, end = limits(start, stop, LOG, {})
            assert first == end
    else:
        assert not (start.kind == stop.kind == "offset" and start.number > stop.number)


@given(BOUNDS, BOUNDS)
def test_what_is_read_lies_in_the_log(start, stop):
    try:
        first, end = limits(start, stop, LOG, {})
    except OutOfRange:
        assert start.kind == "offset"
        assert not LOG.first <= start.number <= LOG.end
    else:
        assert LOG.first <= first <= end <= LOG.end


def test_an_offset_out_of_range_is_named_with_the_range():
    with pytest.raises(OutOfRange) as low:
        limits(Bound("offset", 5), END, LOG, {})
    assert str(low.value) == "offset 5 is below the first, 120 (the log ends at 340)"
    with pytest.raises(OutOfRange) as high:
        limits(Bound("offset", 341), END, LOG, {})
    assert str(high.value) == "offset 341 is past the end, 340 (the log begins at 120)"


def test_a_time_without_a_later_record_is_the_end():
    time = Bound("time", 5)
    assert limits(time, END, LOG, {}) == LogRange(340, 340)
    assert limits(time, END, LOG, {time: 200}) == LogRange(200, 340)
    assert limits(START, time, LOG, {time: 200}) == LogRange(120, 200)


def test_partitions_are_read_and_shown():
    assert read_partitions("0,2-4, 3") == [0, 2, 3, 4]
    assert show_partitions([4, 0, 2, 3]) == "0,2-4"
    for word in ("", "a", "3-1", "1-", "-1", "0-99999999", "99999999999"):
        with pytest.raises(ValueError, match="must be partitions such as"):
            read_partitions(word)


@given(st.sets(st.integers(0, 500), min_size=1))
def test_partitions_survive_being_shown(indexes):
    assert sorted(read_partitions(show_partitions(sorted(indexes)))) == sorted(indexes)


# formats


def formatted(template, record):
    return compile_format(template, plain_bytes)("orders", 3, [record])


@pytest.mark.parametrize(
    ("template", "printed"),
    [
        (r"%t %p %o %k %s %T %S %K %%\n", b"orders 3 7 k v 1000 1 1 %\n"),
        (r"\t\r\\\x41\q", b"\t\r\\Aq"),
        ("%h", b"a=1,b=NULL,a=2"),
        ("{headers.a} {headers.none}.", b"2 ."),
        ("{headers[a]}{headers[none]}{headers[]}", b"2{headers[]}"),
        ("{key}{value}", b"kv"),
        ('{"k":"%k"} {x}', b'{"k":"k"} {x}'),
        ("{value.x}", b""),
    ],
)
def test_a_format_is_filled(template, printed):
    record = rec(headers=[("a", b"1"), ("b", None), ("a", b"2")])
    assert formatted(template, record) == printed


def test_fields_of_json_are_found():
    value = json.dumps({"order": {"id": 12, "name": "é\n", "lines": [{"sku": "x"}]}}).encode()
    record = rec(value=value, key=b'{"region": "eu"}')
    assert formatted("{value.order.id}|{value.order.name}", record) == "12|é\n".encode()
    assert formatted("{value.order.lines.0.sku} {key.region}", record) == b"x eu"
    assert formatted("{value.order.lines}", record) == b'[{"sku": "x"}]'
    assert formatted("{value.order.none.x}{value.order.lines.9}", record) == b""
    assert formatted("{value[order].lines[0][sku]} {key[region]}", record) == b"x eu"
    assert formatted("{value[a.b]} {value.a.b}", rec(value=b'{"a.b": 1}')) == b"1 "


def test_numbers_inside_json_are_printed_as_they_are_written():
    record = rec(value=b'{"a": [1.10, 1e400, {"b": 12345678901234567890.0}], "n": NaN}')
    assert formatted("{value.a}", record) == b""
    record = record._replace(value=record.value.replace(b"NaN", b"-0"))
    assert formatted("{value.a}", record) == b'[1.10, 1e400, {"b": 12345678901234567890.0}]'
    assert formatted("{value.n} {value.a.0}", record) == b"-0 1.10"


@given(st.recursive(st.none() | st.booleans() | st.integers() | st.text(), st.lists, max_leaves=9))
def test_json_in_one_line_has_the_same_value(value):
    shown = value_show(ValueForm.json, escaped=False)
    line = shown(json.dumps({"x": value}, indent=3).encode())
    assert json.loads(line) == {"x": value}
    assert b"\n" not in line
    assert json.loads(one_line_json(parse_json(line))) == {"x": value}


def test_null_has_no_bytes_and_the_size_minus_one():
    assert formatted("[%k|%s|%K|%S]", rec(value=None, key=None)) == b"[||-1|-1]"


@pytest.mark.parametrize("template", ["%x", "%", "a %R", "%é"])
def test_an_unknown_letter_is_named_with_the_known_ones(template):
    with pytest.raises(ValueError, match=r"%.? is unknown; known are %t %p %o %k %s %T"):
        compile_format(template, plain_bytes)


@given(st.text(max_size=30))
def test_any_format_is_filled_or_refused(template):
    try:
        assert isinstance(formatted(template, rec(value=b'{"a": [1]}')), bytes)
    except ValueError as error:
        assert "%" in str(error) or "headers" in str(error)


# values


@pytest.mark.parametrize(
    ("form", "value", "printed"),
    [
        ("text", BINARY, BINARY),
        ("text", None, b""),
        ("json", b'{"a":  1}', b'{"a": 1}'),
        ("json", b"no json", b'"no json"'),
        (
            "json",
            b'\n{"a" :[1.10,\t-0, 1E400],\r\n "b":" \\" ,:"}',
            b'{"a": [1.10, -0, 1E400], "b": " \\" ,:"}',
        ),
        ("json", b"9" * 5000, b"9" * 5000),
        ("json", b'{"a": NaN}', b'"{\\"a\\": NaN}"'),
        ("json", b"-Infinity", b'"-Infinity"'),
        ("json", '"a"'.encode("utf-16"), b'"\\\\xff\\\\xfe\\"\\u0000a\\u0000\\"\\u0000"'),
        ("json", b"[" * 100_000, b'"' + b"[" * 100_000 + b'"'),
        ("json", None, b"null"),
        ("hex", b"\x00\xff", b"00ff"),
        ("base64", b"\x00\xff", b"AP8="),
        ("auto", b"\x00\xff", b"AP8="),
        ("auto", "é".encode(), "é".encode()),
    ],
)
def test_a_value_is_shown_in_a_form(form, value, printed):
    assert value_show(ValueForm(form), escaped=False)(value) == printed


@given(st.binary(max_size=60), st.sampled_from(sorted(ValueForm)))
def test_no_control_character_reaches_a_terminal(value, form):
    assert value_show(form, escaped=True)(value).decode().isprintable()


# filters


def test_records_are_filtered():
    records = [
        rec(value=b"3 apples", key=b"ann", headers=[("t", b"1")]),
        rec(value=b"1 pear", key=b"bob", headers=[("t", None)]),
        rec(value=b"\xff apples", key=b"Ann"),
        rec(value=None, key=None),
    ]

    def kept(*filters):
        return [records.index(each) for each in matching(filters, records)]

    assert kept() == [0, 1, 2, 3]
    assert kept(by_key("a*")) == [0]
    assert kept(by_key("[ab]*")) == [0, 1]
    assert kept(by_value("^[0-9]+ .*s$")) == [0]
    assert kept(by_value("apples")) == [0, 2]
    assert kept(by_header("t")) == [0, 1]
    assert kept(by_header("t=1")) == [0]
    assert kept(by_header("t="), by_key("*")) == []
    assert kept(by_key("ann"), by_value("pear")) == []


def test_a_wrong_filter_is_a_value_error():
    for make, word in ((by_value, "("), (by_header, ""), (by_header, "=v")):
        with pytest.raises(ValueError, match=r"\w"):
            make(word)
    with pytest.raises(ValueError, match="no regular expression"):
        topics_by_pattern("(", ["a"])


def test_a_pattern_matches_whole_names_of_topics():
    assert topics_by_pattern("order.*|pay", ["orders", "reorders", "pay", "payments"]) == [
        "orders",
        "pay",
    ]


# forms

DATA = st.none() | st.binary(max_size=40)
RECORDS = st.lists(
    st.builds(
        rec,
        value=DATA,
        key=DATA,
        offset=st.integers(0, 2**60),
        timestamp=st.none() | st.integers(-1, 2**62),
        headers=st.lists(st.tuples(st.text(max_size=9), DATA), max_size=3),
        kind=st.sampled_from([0, 1]),
    ),
    min_size=1,
    max_size=5,
)


def printed_as(form, records):
    return form.head + form.render("orders", 3, records) + form.foot


@given(RECORDS)
def test_json_lines_are_the_records(records):
    lines = printed_as(consume_output.json_lines(), records).decode().splitlines()
    found = [decode_record(line) for line in lines]
    assert [(each.key, each.value, each.offset) for each in found] == [
        (each.key, each.value, each.offset) for each in records
    ]
    assert [list(each.headers) for each in found] == [each.headers for each in records]
    array = json.loads(printed_as(consume_output.json_array(), records))
    assert array == [json.loads(line) for line in lines]


def test_an_empty_array_is_json():
    form = consume_output.json_array()
    assert json.loads(form.head + form.foot) == []
    parts = form.render("t", 0, [rec()]) + form.render("t", 0, [rec()])
    assert len(json.loads(form.head + parts + form.foot)) == 2


def bytes_of(row, name):
    encoding = row[f"{name}_encoding"]
    return base64.b64decode(row[name]) if encoding == "base64" else row[name].encode()


@given(RECORDS)
def test_csv_is_utf_8_and_has_every_byte_of_keys_and_values(records):
    form = consume_output.csv(ValueForm.text, header=True, escaped=False)
    text = printed_as(form, records).decode()
    rows = [*csv.DictReader(io.StringIO(text, newline=""))]
    back = [(bytes_of(row, "key"), bytes_of(row, "value")) for row in rows]
    assert back == [(each.key or b"", each.value or b"") for each in records]
    assert [int(row["offset"]) for row in rows] == [each.offset for each in records]


@given(RECORDS, st.sampled_from(sorted(ValueForm)))
def test_a_row_of_csv_for_a_terminal_is_one_line(records, shown):
    form = consume_output.csv(shown, header=False, escaped=True)
    lines = printed_as(form, records).decode().split("\n")
    assert len(lines) == len(records) + 1
    assert all(line.isprintable() for line in lines)


@pytest.mark.parametrize(
    ("form", "cell", "encoding"),
    [("hex", "ff", "hex"), ("base64", "/w==", "base64"), ("auto", "/w==", "base64")],
)
def test_csv_names_the_encoding_of_a_value(form, cell, encoding):
    made = consume_output.csv(ValueForm(form), header=True, escaped=False)
    (row,) = csv.DictReader(io.StringIO(printed_as(made, [rec(value=b"\xff")]).decode()))
    assert (row["value"], row["value_encoding"], row["key_encoding"]) == (cell, encoding, "text")


@given(RECORDS)
def test_a_row_of_a_table_is_one_line_that_fits_the_terminal(records):
    form = consume_output.table(escaped_text, ["orders"], 60)
    lines = printed_as(form, records).decode().split("\n")
    assert len(lines) == len(records) + 2
    assert all(len(line) <= 60 and line.isprintable() for line in lines)


def test_a_table_in_a_pipe_is_not_cut():
    form = consume_output.table(plain_bytes, ["orders"], None)
    line = form.render("orders", 3, [rec(value=b"x" * 500, key=None, timestamp=NOON_MS)]).decode()
    assert line.split() == ["orders", "3", "7", "2026-05-01T12:00:00.000Z", "-", "x" * 500]


@given(RECORDS)
def test_raw_is_the_bytes_and_line_ends(records):
    form = consume_output.raw(plain_bytes, exact=True)
    assert printed_as(form, records) == b"".join((each.value or b"") + b"\n" for each in records)
