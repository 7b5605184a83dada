"""Goal: the same bytes make the same records, wherever they are cut; bad lines have their place.

Method: Hypothesis draws records, writes them by hand in each format, and cuts the bytes anywhere.
"""

from __future__ import annotations

import csv
import io
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.admin.record_input import (
    COUNT_MAX,
    BadHeader,
    Defaults,
    InputFormat,
    RecordInput,
    TooLong,
    UnclosedQuote,
    batch_bytes,
    fits,
    read_timestamp,
)
from gateway.admin.record_json import BadRecord, Record, encode_record

LIMIT = 1000
NOTHING = Defaults()
CUTS = st.lists(st.integers(0, 400), max_size=6)
LINES = st.lists(st.binary(max_size=40).map(lambda data: data.replace(b"\n", b"")), max_size=8)
TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
DATA = st.binary(max_size=40)
HOSTILE = st.lists(st.sampled_from([*b'a",\n\r\xff\0']), max_size=60).map(bytes)


def items(data, form=InputFormat.lines, defaults=NOTHING, cuts=(), limit=LIMIT):
    reader = RecordInput(form, defaults, limit)
    places = [0, *sorted(min(cut, len(data)) for cut in cuts), len(data)]
    found = []
    for start, end in pairwise(places):
        found += reader.feed(data[start:end])
    return [*found, *reader.end()]


def plain(found):
    """The items as values that can be compared."""
    return [
        (line, (type(each), str(each), each.column) if isinstance(each, BadRecord) else each)
        for line, each in found
    ]


def records(found):
    return [each for _, each in found if isinstance(each, Record)]


def only_bad(found):
    ((line, bad),) = found
    assert isinstance(bad, BadRecord)
    return line, bad.column, str(bad)


# lines


@given(LINES, CUTS)
def test_each_line_is_a_value_whatever_its_bytes_are(lines, cuts):
    data = b"".join(line + b"\n" for line in lines)
    found = items(data, cuts=cuts)
    assert found == [(number, Record(line)) for number, line in enumerate(lines, 1)]


def test_a_carriage_return_is_data_and_an_empty_line_an_empty_value():
    found = items(b"a\r\n\n\xff\0\nlast")
    assert [each.value for each in records(found)] == [b"a\r", b"", b"\xff\0", b"last"]


@pytest.mark.parametrize(("data", "count"), [(b"", 0), (b"\n", 1), (b"a", 1), (b"a\n", 1)])
def test_the_last_line_needs_no_line_end(data, count):
    assert len(items(data)) == count


def test_a_line_is_split_at_the_first_separator():
    found = items(b"a::b::c\n::d\ne::", defaults=Defaults(separator=b"::"))
    pairs = [(each.key, each.value) for each in records(found)]
    assert pairs == [(b"a", b"b::c"), (b"", b"d"), (b"e", b"")]


def test_a_line_without_its_separator_is_bad():
    found = items(b"a:b\nc\nd:e\n", defaults=Defaults(separator=b":"))
    assert [line for line, _ in found] == [1, 2, 3]
    assert only_bad(found[1:2]) == (2, 0, "no ':' between a key and a value")


def test_lines_have_the_defaults():
    defaults = Defaults(b"k", 2, 5, [("h", b"1")])
    assert records(items(b"a", defaults=defaults)) == [
        Record(b"a", b"k", [("h", b"1")], None, 2, None, 5)
    ]


def test_a_tombstone_line_is_a_key():
    assert records(items(b"ann\nbob\n", defaults=Defaults(tombstone=True))) == [
        Record(None, b"ann"),
        Record(None, b"bob"),
    ]


@given(st.lists(st.integers(0, 30), max_size=6), CUTS)
def test_a_line_that_is_too_long_has_its_size_and_the_others_are_read(sizes, cuts):
    data = b"".join(b"x" * size + b"\n" for size in sizes)
    found = items(data, cuts=cuts, limit=10)
    shown = [len(each.value) if isinstance(each, Record) else each.size for _, each in found]
    assert shown == sizes
    assert [isinstance(each, TooLong) for _, each in found] == [size > 10 for size in sizes]


def test_a_line_without_end_is_reported_while_it_goes_on_and_once():
    reader = RecordInput(InputFormat.lines, Defaults(), LIMIT)
    piece = b"x" * 2**24
    found = [item for _ in range(20) for item in reader.feed(piece)]
    ((line, bad),) = found
    assert (line, bad.exact, bad.size > COUNT_MAX) == (1, False, True)
    assert [*reader.feed(b"\nnext\n")] == [(2, Record(b"next"))]


# raw


@given(DATA, CUTS)
def test_raw_is_one_record_whatever_its_bytes_are(data, cuts):
    assert records(items(data, InputFormat.raw, cuts=cuts)) == [Record(data)]


def test_raw_has_a_bound():
    ((_, bad),) = items(b"x" * 1001, InputFormat.raw, cuts=(400,))
    assert isinstance(bad, TooLong)
    assert bad.size == 1001


# jsonl

NUMBERS = st.none() | st.integers(0, 2**31 - 1)
RECORDS = st.builds(
    Record,
    value=st.none() | DATA,
    key=st.none() | DATA,
    headers=st.lists(st.tuples(TEXTS, st.none() | DATA), max_size=3),
    topic=st.none(),
    partition=NUMBERS,
    offset=st.none(),
    timestamp=NUMBERS,
    timestamp_type=st.none(),
)


@given(st.lists(RECORDS, max_size=5), CUTS)
def test_records_come_back_from_json_lines(wanted, cuts):
    data = "".join(encode_record(each) + "\n" for each in wanted).encode()
    assert records(items(data, InputFormat.jsonl, cuts=cuts)) == wanted


def test_topic_and_offset_of_a_record_are_ignored():
    line = encode_record(Record(b"v", topic="elsewhere", partition=1, offset=7)).encode()
    assert records(items(line, InputFormat.jsonl)) == [Record(b"v", headers=[], partition=1)]


def test_what_a_record_has_itself_goes_before_the_defaults():
    defaults = Defaults(b"k", 2, 5, [("h", b"1")])
    own = encode_record(Record(b"v", b"own", [("a", b"b")], None, 0, None, 9)).encode()
    bare = b'\n{"value": "w"}'
    assert records(items(own + bare, InputFormat.jsonl, defaults)) == [
        Record(b"v", b"own", [("a", b"b"), ("h", b"1")], None, 0, None, 9),
        Record(b"w", b"k", [("h", b"1")], None, 2, None, 5),
    ]


@pytest.mark.parametrize(
    ("data", "place"),
    [
        (b'{"value": 3 apples}', (1, 13, "not JSON: Expecting ',' delimiter")),
        ('{"é": "\xff"}'.encode("latin-1"), (1, 3, "not UTF-8")),
        ('{"value": "é'.encode() + b'\xff"}', (1, 13, "not UTF-8")),
        (b"\n \t\r\n", None),
    ],
)
def test_a_bad_json_line_has_its_place(data, place):
    found = items(data, InputFormat.jsonl)
    assert (only_bad(found) if found else None) == place


def test_blank_json_lines_are_passed_over():
    found = items(b'\n{"value": "a"}\r\n \t\r\n{"value": "b"}\n\n', InputFormat.jsonl)
    assert [(line, each.value) for line, each in found] == [(2, b"a"), (4, b"b")]


def test_a_byte_order_mark_is_left_out_before_the_first_line_only():
    found = items(b'\xef\xbb\xbf{"value": "a"}\n\xef\xbb\xbf{"value": "a"}', InputFormat.jsonl)
    assert [isinstance(each, Record) for _, each in found] == [True, False]


@pytest.mark.parametrize(("form", "head"), [(InputFormat.jsonl, b""), (InputFormat.csv, b"key\n")])
def test_a_tombstone_needs_a_key(form, head):
    data = head + (b'{"value": "a"}' if form is InputFormat.jsonl else b'""\n')
    found = items(data, form, Defaults(tombstone=True))
    assert only_bad(found)[2] == "a tombstone needs a key"


# csv

COLUMNS = ["key", "value", "partition", "timestamp", "header.trace"]
ROWS = st.lists(st.tuples(TEXTS, TEXTS, NUMBERS, NUMBERS, TEXTS), max_size=5)


@given(ROWS, CUTS, st.sampled_from([("\n", csv.QUOTE_ALL), ("\r\n", csv.QUOTE_MINIMAL)]))
def test_rows_come_back_from_csv(rows, cuts, form):
    written = io.StringIO()
    writer = csv.writer(written, lineterminator=form[0], quoting=form[1])
    writer.writerow(COLUMNS)
    writer.writerows(rows)
    found = items(written.getvalue().encode(), InputFormat.csv, cuts=cuts)
    assert records(found) == [
        Record(
            value=value.encode(),
            key=key.encode() or None,
            headers=[("trace", trace.encode())] if trace else [],
            partition=partition,
            timestamp=timestamp,
        )
        for key, value, partition, timestamp, trace in rows
    ]
    assert len(found) == len(rows)


@given(HOSTILE, CUTS, st.sampled_from(InputFormat))
def test_any_bytes_are_records_or_bad_lines_wherever_they_are_cut(data, cuts, form):
    data = b"value\n" * (form is InputFormat.csv) + data
    whole = plain(items(data, form))
    assert plain(items(data, form, cuts=cuts)) == whole
    assert plain(items(data, form, cuts=range(len(data)))) == whole
    lines = [line for line, _ in whole]
    assert lines == sorted(set(lines))


def test_a_row_in_quotes_has_the_number_of_its_first_line():
    found = items(b'value\n"a\nb"\nc\n"d\n', InputFormat.csv)
    assert found[:2] == [(2, Record(b"a\nb", headers=[])), (4, Record(b"c", headers=[]))]
    assert only_bad(found[2:]) == (5, 0, "a quote is never closed")


@given(st.integers(0, 4), st.booleans(), CUTS)
def test_a_quote_that_is_never_closed_has_its_first_and_last_line(lines, line_end, cuts):
    data = b'value\na\n"b' + lines * b"\nc," + line_end * b"\n"
    *others, (line, bad) = items(data, InputFormat.csv, cuts=cuts)
    assert [each.value for each in records(others)] == [b"a"]
    assert isinstance(bad, UnclosedQuote)
    assert (line, bad.last_line) == (3, 3 + lines)


def test_csv_keeps_bytes_that_are_not_utf8_and_null_bytes():
    assert records(items(b"value\n\xff\0\n", InputFormat.csv)) == [Record(b"\xff\0", headers=[])]


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        (b"a,b,c", "3 fields, and the header row has 2"),
        (b"a,x", "`partition` must be a whole number between 0 and 2147483647"),
        (b'"a"b,1', "not CSV: ',' expected after '\"'"),
        (b"a\rb,1", "not CSV: a carriage return within a field that has no quotes"),
    ],
)
def test_a_bad_row_is_named_and_the_next_one_is_read(row, reason):
    found = items(b"value,partition\n" + row + b"\n\nnext,1\n", InputFormat.csv)
    assert only_bad(found[:1]) == (2, 0, reason)
    assert found[1:] == [(4, Record(b"next", headers=[], partition=1))]


@pytest.mark.parametrize(
    ("header", "reason"),
    [
        ("key;value", "no column 'key;value' in a record; the separator of fields is a comma"),
        ("value,valeu", "no column 'valeu' in a record; known are key, value, partition"),
        ("value,header.", "no column 'header.' in a record"),
        ("value,key,value", "the column value is there twice"),
        ("key,partition", "the header row has no column value"),
        ("", "the header row is empty"),
    ],
)
def test_without_a_header_row_no_row_is_read(header, reason):
    found = items(f"{header}\na,b\n".encode(), InputFormat.csv)
    assert isinstance(found[0][1], BadHeader)
    line, _, said = only_bad(found)
    assert (line, said.startswith(reason)) == (1, True), said


def test_a_time_in_csv_is_a_number_or_a_time():
    found = records(items(b"value,timestamp\na,5\nb,1970-01-01T00:00:01Z\n", InputFormat.csv))
    assert [each.timestamp for each in found] == [5, 1000]


# sizes and times


@given(RECORDS)
def test_the_size_of_a_batch_is_that_of_the_producer(record):
    from aiokafka.record.default_records import DefaultRecordBatchBuilder

    builder = DefaultRecordBatchBuilder(2, 0, 0, -1, -1, 0, 16_384)
    builder.append(0, 5, record.key, record.value, record.headers)
    assert batch_bytes(record) == builder.size() == len(builder.build())


@given(RECORDS, st.integers(60, 300))
def test_a_record_fits_if_its_batch_does(record, limit):
    assert fits(record, limit) == (batch_bytes(record) <= limit)


@pytest.mark.parametrize(
    ("word", "at_ms"),
    [
        ("0", 0),
        ("1767225600000", 1767225600000),
        ("0" * 5000 + "5", 5),
        ("2026-01-01", 1767225600000),
    ],
)
def test_a_timestamp_is_milliseconds_or_a_time(word, at_ms):
    assert read_timestamp(word) == at_ms


@pytest.mark.parametrize("word", ["-1", "1.5", "9" * 30, "1960-01-01", "0001-01-01", "soon", ""])
def test_a_timestamp_that_is_none_is_refused(word):
    with pytest.raises(ValueError, match=r"time|1970"):
        read_timestamp(word)
