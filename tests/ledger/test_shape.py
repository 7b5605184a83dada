"""Goal: the schema that is made from a shape accepts what `-o json` prints, and nothing else.

Method: values of each shape, whole and with one fault each, are validated by jsonschema.
"""

from __future__ import annotations

import copy

import jsonschema
import pytest

from ledger.command_line.shape import Column, Kind, Shape, nested, pairs, rows, text, truth, whole
from tests.ledger.printing import (
    AN_OBJECT,
    AN_OBJECT_WITH_ROWS,
    COPIES,
    OBJECT,
    ONLY_ROWS,
    ROWS,
    SOME_ROWS,
    WITH_ROWS,
)

EVERY_KIND = Shape(
    fields=(
        text("text", "Text."),
        whole("whole", "A number."),
        Column("number", Kind.number, "A number."),
        truth("truth", "Whether."),
        Column("texts", Kind.texts, "Texts."),
        Column("wholes", Kind.wholes, "Numbers."),
        pairs("pairs", "Settings."),
    )
)
ONE_OF_EACH = {
    "text": "a",
    "whole": 1,
    "number": 0.5,
    "truth": True,
    "texts": ["a"],
    "wholes": [1],
    "pairs": {"a": "b", "c": None},
}


def valid(shape: Shape, value: object) -> bool:
    schema = shape.schema()
    jsonschema.Draft202012Validator.check_schema(schema)
    return jsonschema.Draft202012Validator(schema).is_valid(value)


@pytest.mark.parametrize(
    ("shape", "value"),
    [
        (ROWS, SOME_ROWS),
        (ROWS, []),
        (OBJECT, AN_OBJECT),
        (OBJECT, {**AN_OBJECT, "size": None, "first": None}),
        (WITH_ROWS, AN_OBJECT_WITH_ROWS),
        (WITH_ROWS, {**AN_OBJECT_WITH_ROWS, "copies": []}),
        (ONLY_ROWS, {"copies": COPIES}),
        (EVERY_KIND, ONE_OF_EACH),
    ],
)
def test_a_whole_value_is_valid(shape, value):
    assert valid(shape, value)


@pytest.mark.parametrize(
    ("shape", "value"),
    [
        (ROWS, SOME_ROWS[0]),
        (ROWS, {}),
        (OBJECT, [AN_OBJECT]),
        (WITH_ROWS, COPIES),
        (WITH_ROWS, {"copies": COPIES}),
        (ONLY_ROWS, COPIES),
        (ONLY_ROWS, {}),
        (ONLY_ROWS, {"copies": COPIES, "name": "a"}),
        (ONLY_ROWS, {"copies": None}),
    ],
)
def test_another_form_is_not_valid(shape, value):
    assert not valid(shape, value)


PLACES = [
    *((ROWS, SOME_ROWS, (0, key)) for key in SOME_ROWS[0]),
    *((ROWS, SOME_ROWS, (0, "copies", 0, key)) for key in COPIES[0]),
    *((OBJECT, AN_OBJECT, (key,)) for key in AN_OBJECT),
    (OBJECT, AN_OBJECT, ("first", "bookie")),
    *((WITH_ROWS, AN_OBJECT_WITH_ROWS, (key,)) for key in AN_OBJECT_WITH_ROWS),
    (WITH_ROWS, AN_OBJECT_WITH_ROWS, ("copies", 1, "bytes")),
    *((EVERY_KIND, ONE_OF_EACH, (key,)) for key in ONE_OF_EACH),
]


def changed(value, place, change):
    """A copy of the value, in which `change` was called with the object and key of this place."""
    value = copy.deepcopy(value)
    *path, key = place
    within = value
    for step in path:
        within = within[step]
    change(within, key)
    return value


@pytest.mark.parametrize(("shape", "value", "place"), PLACES)
def test_a_value_with_a_missing_an_extra_or_a_wrong_key_is_not_valid(shape, value, place):
    def drop(within, key):
        del within[key]

    def rename(within, key):
        within[key + "s"] = within.pop(key)

    def add(within, key):
        within[key + "s"] = within[key]

    def retype(within, key):
        within[key] = 1.5 if isinstance(within[key], (str, type(None))) else "a"

    for change in (drop, rename, add, retype):
        assert not valid(shape, changed(value, place, change)), change.__name__


@pytest.mark.parametrize(
    ("key", "wrong"),
    [
        *((key, None) for key in ONE_OF_EACH),
        ("whole", 0.5),
        ("whole", True),
        ("number", False),
        ("truth", 1),
        ("texts", [1]),
        ("texts", [None]),
        ("wholes", [0.5]),
        ("pairs", {"a": 1}),
        ("pairs", []),
    ],
)
def test_a_value_of_another_type_is_not_valid(key, wrong):
    assert not valid(EVERY_KIND, {**ONE_OF_EACH, key: wrong})


def test_a_schema_has_the_meaning_of_each_key():
    copies = ROWS.schema()["items"]["properties"]["copies"]
    assert copies["description"] == "Copies."
    assert copies["items"]["properties"]["bookie"] == {"type": "string", "description": "Address."}


def test_keys_within_others_have_a_place():
    inner = rows("copies", "Copies.", text("bookie", "Address."))
    assert [place for place, _ in nested([text("name", "Name."), inner])] == [
        "name",
        "copies",
        "copies[].bookie",
    ]


@pytest.mark.parametrize(
    "parts",
    [
        {},
        {"rows": "copies"},
        {"fields": (text("name", "Name."),), "rows": "copies"},
        {"fields": (text("name", "Name."),), "columns": (text("bookie", "Address."),)},
    ],
)
def test_a_shape_that_means_nothing_cannot_be_made(parts):
    with pytest.raises(AssertionError):
        Shape(**parts)
