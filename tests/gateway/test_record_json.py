"""Goal: a record becomes a line of JSON and the same record again, whatever its bytes are.

Method: Hypothesis draws records; lines that people may write wrongly are written by hand.
"""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.admin.record_json import BadRecord, Record, decode_record, encode_record

NUMBERS = st.none() | st.integers(0, 2**31 - 1)
DATA = st.none() | st.binary(max_size=200) | st.text(max_size=50).map(str.encode)
NAMES = st.text(max_size=20)
RECORDS = st.builds(
    Record,
    value=DATA,
    key=DATA,
    headers=st.lists(st.tuples(NAMES, DATA), max_size=4),
    topic=st.none() | NAMES,
    partition=NUMBERS,
    offset=NUMBERS,
    timestamp=NUMBERS,
    timestamp_type=st.sampled_from([None, "create", "append"]),
)


@given(RECORDS)
def test_a_record_survives_as_one_line_that_no_terminal_obeys(record):
    line = encode_record(record)
    assert line.isprintable() or not any(ord(each) < 32 or ord(each) == 127 for each in line)
    assert len(line.splitlines()) == 1
    assert decode_record(line) == record


def test_a_megabyte_of_every_byte_and_repeated_headers_survive():
    data = bytes(range(256)) * 4096
    record = Record(data, key=None, headers=[("a", b"1"), ("a", None), ("a", b"\xff")])
    assert decode_record(encode_record(record)) == record


def test_the_keys_are_those_that_programs_know():
    line = encode_record(Record(b"v", b"\xff", [("h", b"x")], "orders", 0, 12, 5, "create"))
    assert json.loads(line) == {
        "topic": "orders",
        "partition": 0,
        "offset": 12,
        "timestamp": 5,
        "timestamp_type": "create",
        "key": "/w==",
        "value": "v",
        "headers": [["h", "x"]],
        "key_encoding": "base64",
        "value_encoding": "text",
    }


@pytest.mark.parametrize(
    ("line", "column", "reason"),
    [
        ('{"value": 3 apples}', 13, "not JSON: Expecting ',' delimiter"),
        ("", 1, "not JSON: Expecting value"),
        ('{"value": NaN}', 0, "not JSON: NaN"),
        ("[1]", 1, 'must be a JSON object such as {"value": "3 apples"}'),
        ('{"key": "a"}', 0, "`value` is missing; null makes a tombstone"),
        ('{"value": {"a": 1}}', 0, "`value` must be text or null; write an object as a text of"),
        ('{"valeu": "a"}', 0, "no key 'valeu' in a record; known are topic, partition"),
        ('{"value": "a", "partition": "0"}', 0, "`partition` must be a whole number between 0"),
        ('{"value": "a", "partition": true}', 0, "`partition` must be a whole number"),
        ('{"value": "a", "timestamp": 1.5}', 0, "`timestamp` must be a whole number"),
        ('{"value": "a*", "value_encoding": "base64"}', 0, "`value` is not base64"),
        ('{"value": "a", "value_encoding": "hex"}', 0, "`value_encoding` must be text or base64"),
        ('{"value": "\\ud800"}', 0, "`value` has half of a surrogate pair"),
        ('{"value": "a", "headers": {"a": "b"}}', 0, "`headers` must be a list of pairs"),
        ('{"value": "a", "headers": [["a"]]}', 0, "header 1 must be a pair"),
        ('{"value": "a", "headers": [["a", 1]]}', 0, "the value of header 1 must be text, null"),
        ('{"value": "a", "timestamp_type": "log"}', 0, "`timestamp_type` must be create or"),
    ],
)
def test_a_line_that_is_no_record_is_refused_with_its_place(line, column, reason):
    with pytest.raises(BadRecord) as found:
        decode_record(line)
    assert (str(found.value).startswith(reason), found.value.column) == (True, column), found.value


def test_a_number_with_more_digits_than_python_converts_is_refused():
    with pytest.raises(BadRecord, match="too many digits"):
        decode_record('{"value": "a", "offset": ' + "9" * 5_000 + "}")


def test_nesting_without_end_is_refused():
    with pytest.raises(BadRecord, match="nested too deeply"):
        decode_record("[" * 100_000)
