"""Goal: values keep their meaning between JSON and Avro, and hostile data take no memory.

Method: Hypothesis draws schemas with their values; fastavro, which decodes in another way, judges
the bytes. Schemas and data that would fill the memory or the stack are refused.
"""

from __future__ import annotations

import json
import tracemalloc
from io import BytesIO

import fastavro
import pytest
from fastavro.utils import generate_many
from hypothesis import given
from hypothesis import strategies as st

from gateway.admin.avro_schema import InvalidDatum, InvalidSchema, Schema
from gateway.admin.avro_types import Mismatch

ORDER = {
    "type": "record",
    "name": "Order",
    "namespace": "acme",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "who", "type": ["null", "string"], "default": None},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}, "default": 0},
        {"name": "part", "type": ["null", "Order"], "default": None},
    ],
}
INTS = st.integers(-(2**31), 2**31 - 1)
LONGS = st.integers(-(2**63), 2**63 - 1)
TEXTS = st.text(st.characters(codec="utf-8"), max_size=5)
BYTES = st.text(st.characters(max_codepoint=255), max_size=5)
FLOATS = st.floats(width=32, allow_nan=False) | st.just("-Infinity")
PRIMITIVES = {
    "null": st.none(),
    "boolean": st.booleans(),
    "int": INTS,
    "long": LONGS,
    "float": FLOATS.filter(lambda each: each not in (float("inf"), float("-inf"))),
    "double": st.floats(allow_nan=False, allow_infinity=False),
    "bytes": BYTES,
    "string": TEXTS,
}


def name_of(schema):
    return schema if isinstance(schema, str) else schema.get("name", schema["type"])


@st.composite
def typed(draw, depth=3, *, in_union=False, items=False):
    """A schema, and a strategy for its values in Avro's JSON encoding."""
    kinds = ["primitive", "enum", "fixed"]
    if depth:
        kinds += ["array", "map", "record"] + ([] if in_union else ["union"])
    kind = draw(st.sampled_from(kinds))
    name = f"N{draw(st.uuids()).hex}"
    if kind == "primitive":
        known = sorted(set(PRIMITIVES) - ({"null"} if items else set()))
        chosen = draw(st.sampled_from(known))
        return chosen, PRIMITIVES[chosen]
    if kind == "enum":
        return {"type": kind, "name": name, "symbols": ["A", "B"]}, st.sampled_from(["A", "B"])
    if kind == "fixed":
        texts = st.text(st.characters(max_codepoint=255), min_size=2, max_size=2)
        return {"type": kind, "name": name, "size": 2}, texts
    if kind == "array":
        schema, values = draw(typed(depth - 1, items=True))
        return {"type": kind, "items": schema}, st.lists(values, max_size=3)
    if kind == "map":
        schema, values = draw(typed(depth - 1, items=depth > 1))
        return {"type": kind, "values": schema}, st.dictionaries(TEXTS, values, max_size=3)
    if kind == "record":
        fields = draw(st.lists(typed(depth - 1, items=items), min_size=1, max_size=3))
        found = [{"name": f"f{at}", "type": each[0]} for at, each in enumerate(fields)]
        values = st.fixed_dictionaries({f"f{at}": each[1] for at, each in enumerate(fields)})
        return {"type": kind, "name": name, "fields": found}, values
    branches = draw(
        st.lists(
            typed(depth - 1, in_union=True),
            min_size=1,
            max_size=4,
            unique_by=lambda x: name_of(x[0]),
        )
    )
    values = st.one_of(
        [
            st.none() if schema == "null" else wrapped(name_of(schema), values)
            for schema, values in branches
        ]
    )
    return [schema for schema, _ in branches], values


def wrapped(name, values):
    return values.map(lambda value: {name: value})


def by_fastavro(schema, data):
    return fastavro.schemaless_reader(BytesIO(data), fastavro.parse_schema(schema), None)


@given(st.data())
def test_a_value_is_the_same_after_avro_and_json(data):
    schema, values = data.draw(typed())
    value = data.draw(values)
    ours = Schema(json.dumps(schema))
    written = ours.encode(value)
    shown = json.loads(json.dumps(ours.decode(written)))
    again = ours.encode(shown)
    assert ours.decode(again) == shown
    assert by_fastavro(schema, again) == by_fastavro(schema, written)
    if "[" not in json.dumps(schema).replace('["A", "B"]', "").replace('"fields": [', ""):
        assert shown == value  # without a union, nothing is wrapped


@given(st.data())
def test_what_fastavro_writes_is_read_and_written_again(data):
    schema, _ = data.draw(typed())
    ours, parsed = Schema(json.dumps(schema)), fastavro.parse_schema(schema)
    for datum in generate_many(schema, 2):
        file = BytesIO()
        fastavro.schemaless_writer(file, parsed, datum)
        shown = json.loads(json.dumps(ours.decode(file.getvalue())))
        assert by_fastavro(schema, ours.encode(shown)) == by_fastavro(schema, file.getvalue())


@given(st.data(), st.binary(max_size=40))
def test_any_bytes_are_a_datum_or_refused(data, junk):
    schema, values = data.draw(typed())
    ours = Schema(json.dumps(schema))
    whole = ours.encode(data.draw(values))
    for found in (junk, whole + b"\0", whole[: len(whole) // 2], junk + whole):
        try:
            ours.decode(found)
        except InvalidDatum as error:
            assert str(error)


def test_fields_with_defaults_may_be_absent_and_unions_need_no_name():
    ours = Schema(json.dumps(ORDER))
    whole = {"id": 1, "who": "ann", "at": 0, "part": {"id": 2, "who": None, "at": 0, "part": None}}
    plain = {"id": 1, "who": "ann", "part": {"id": 2}}
    named = {"id": 1, "who": {"string": "ann"}, "part": {"acme.Order": {"id": 2}}}
    assert ours.encode(plain) == ours.encode(named) == ours.encode(whole)
    assert ours.decode(ours.encode(plain)) == whole


def test_a_value_is_wrapped_only_where_its_branch_is_not_the_first_that_takes_it():
    ours = Schema('["null", "bytes", "string", {"type": "map", "values": "int"}]')
    shown = [None, "a", {"string": "a"}, "\u0100", {"map": {"map": 1}}, {"b": 1}]
    assert [ours.decode(ours.encode(each)) for each in shown] == shown
    numbers = Schema('["float", "double"]')
    assert numbers.decode(numbers.encode(0.1)) == 0.1
    assert numbers.decode(numbers.encode("NaN")) == "NaN"


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (5, "the value must be acme.Order, not 5"),
        ({}, "the value must have the field id of acme.Order"),
        ({"id": 1, "x": 2}, "the value has no field 'x'; acme.Order has id, who, at, part"),
        ({"id": "1"}, "`id` must be long, not '1'"),
        ({"id": 2**63}, f"`id` must be long, not {2**63}"),
        ({"id": True}, "`id` must be long, not True"),
        ({"id": 1, "who": 5}, "`who` must be string, not 5"),
        ({"id": 1, "who": "\ud800"}, "`who` must be string, not '\\ud800'"),
        ({"id": 1, "part": {"id": 2, "at": None}}, "`part.at` must be long, not null"),
    ],
)
def test_a_value_that_does_not_fit_is_named(value, reason):
    with pytest.raises(Mismatch) as refused:
        Schema(json.dumps(ORDER)).encode(value)
    assert str(refused.value) == reason


def array(items):
    return {"type": "array", "items": items}


def record(name, *types):
    fields = [{"name": f"f{at}", "type": each} for at, each in enumerate(types)]
    return {"type": "record", "name": name, "fields": fields}


def doubling(levels):
    """A record of 2 ** levels nulls."""
    found = record("A0", "null")
    for level in range(1, levels):
        found = record(f"A{level}", found, f"A{level - 1}")
    return found


def nested(levels):
    found = "int"
    for _ in range(levels):
        found = array(found)
    return found


def field(name):
    return {"type": "record", "name": "A", "fields": [{"name": name, "type": "int"}]}


SPARSE = record("S", "int", *["null"] * 98)


@pytest.mark.parametrize(
    ("schema", "reason"),
    [
        ("{", "not JSON"),
        ("[" * 100_000, "not JSON"),
        ('"' + "a" * 2**20 + '"', "1 MiB"),
        ('"strin"', "there is no type strin"),
        ("5", "5 is no type"),
        ("[]", "a union must have types"),
        ('[["int"]]', "no other union"),
        ('["int", "int"]', "a type twice"),
        ('{"type": "record", "name": "A"}', "`fields` is missing"),
        ('{"type": "fixed", "name": "F", "size": 99999999999}', "the size of F"),
        ('{"type": "enum", "name": "E", "symbols": [1]}', "the symbols of E"),
        (array("null"), "an array of null has no bound"),
        (array(record("A")), "an array of A has no bound"),
        (array({"type": "fixed", "name": "F", "size": 0}), "an array of F has no bound"),
        (record("L", "L"), "a datum of L has no end"),
        (record("L", record("M", "L")), "a datum of L has no end"),
        (doubling(40), "too many values that take no byte"),
        (record("W", *["null"] * 200), "too many values that take no byte"),
        (nested(200), "nested deeper"),
        (array({"type": "enum", "name": "E", "symbols": ["a" * 1025]}), "more than 1024 char"),
        (array(field("a" * 1025)), "more than 1024 characters"),
        ({"type": "fixed", "name": "a" * 1025, "size": 1}, "more than 1024 characters"),
        (array(SPARSE), "S repeats, and has more than 8 values for each byte"),
        (array(["null", SPARSE]), "null or S repeats"),
        ({"type": "map", "values": SPARSE}, "S repeats"),
        (array(record("L", SPARSE)), "L repeats"),
        (record("L", *["null"] * 90, array("L")), "L repeats"),
        (record("L", *["null"] * 90, array(record("M", ["null", "L"]))), "L repeats"),
        ({"__fastavro_parsed": 1, "type": "record", "name": "A", "fields": 1}, "must be a list"),
    ],
)
def test_a_schema_that_is_wrong_or_without_bounds_is_refused(schema, reason):
    text = schema if isinstance(schema, str) else json.dumps(schema)
    with pytest.raises(InvalidSchema, match=reason):
        Schema(text)


def test_items_of_nested_records_are_no_waste():
    inner = record("C", "int", record("D", "int", record("E", "int")), ["null", "string"])
    ours = Schema(json.dumps(array(["null", record("B", inner, *["C"] * 20), "C"])))
    assert ours.decode(ours.encode([None])) == [None]


def test_a_datum_with_long_names_is_refused_before_it_is_written():
    ours = Schema(json.dumps(array(field("a" * 1024))))
    assert len(ours.decode(zeros(1000))) == 1000
    with pytest.raises(InvalidDatum, match="is more than 64 MiB of JSON"):
        ours.decode(zeros(70_000))


def zeros(count):
    """An array of `count` datums of a zero byte."""
    file = BytesIO()
    fastavro.schemaless_writer(file, {"type": "array", "items": "int"}, [0] * count)
    return file.getvalue()


def test_a_long_is_shown_as_the_branch_that_takes_it():
    ours = Schema('["int", "long"]')
    for value in (5_000_000_000, -(2**63), 2**31):
        shown = ours.decode(ours.encode(value))
        assert shown == value
        assert ours.decode(ours.encode(shown)) == value
    texts = Schema('["string", "long", "int"]')
    assert texts.decode(texts.encode({"int": 5})) == 5


LONG_MAX = b"\xfe" + b"\xff" * 8 + b"\x01"


@pytest.mark.parametrize(
    ("schema", "data"),
    [
        ("bytes", LONG_MAX),
        ("string", LONG_MAX + b"abc"),
        (array("int"), LONG_MAX),
        (array("boolean"), LONG_MAX + b"\1" * 100),
        ({"type": "map", "values": "null"}, LONG_MAX),
        (record("L", ["null", "L"]), b"\x02" * 1_000_000),
        (record("L", array("L")), b"\x02" * 1_000_000),
        ({"type": "fixed", "name": "F", "size": 2**20}, b"abc"),
        ("bytes", bytes(16 * 2**20 + 1)),
    ],
)
def test_a_datum_that_lies_takes_no_memory(schema, data):
    ours = Schema(json.dumps(schema))
    tracemalloc.start()
    try:
        with pytest.raises(InvalidDatum):
            ours.decode(data)
        assert tracemalloc.get_traced_memory()[1] < 4 * 2**20 + len(data)
    finally:
        tracemalloc.stop()
