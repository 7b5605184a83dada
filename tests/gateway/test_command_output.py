"""Goal: JSON that a command prints has the keys and types that its documents declare.

Method: the declarations of all commands; samples that are made from them, with one key renamed or
one value of another type; and a real command.
"""

from __future__ import annotations

import copy
import json

import pytest
from jsonschema import Draft202012Validator

from gateway.pipelines import packages_command
from ledger.command_line.shape import Kind, Shape, nested, text
from tests import command_output
from tests.command_output import WrongOutput, check_output, check_value, shapes_of
from tests.gateway.admin_commands import invoke

COMMANDS = dict(command_output.commands())
EACH = pytest.mark.parametrize("path", COMMANDS)
VALUES = {
    Kind.text: "some",
    Kind.whole: 5,
    Kind.number: 0.5,
    Kind.truth: True,
    Kind.scalar: "some",
    Kind.texts: ["some"],
    Kind.wholes: [5, 9],
    Kind.pairs: {"some": "other"},
    Kind.lists: [["some", "other"]],
}


def sample(columns):
    """An object with all of these keys."""
    return {each.key: value_of(each) for each in columns}


def value_of(column):
    if column.kind in VALUES:
        return VALUES[column.kind]
    inner = sample(column.columns)
    return {Kind.rows: [inner], Kind.by_name: {"0": inner}, Kind.one: inner}[column.kind]


def printed(shape):
    if shape.rows:
        return {**sample(shape.fields), shape.rows: [sample(shape.columns)]}
    return sample(shape.fields) if shape.fields else [sample(shape.columns)]


def objects(value, shape_keys):
    """All objects inside a value, but for those whose keys users choose."""
    if isinstance(value, list):
        for each in value:
            yield from objects(each, shape_keys)
    elif isinstance(value, dict):
        if value.keys() & shape_keys:
            yield value
        for each in value.values():
            yield from objects(each, shape_keys)


def test_the_documents_are_as_the_code_says():
    assert list(command_output.differences()) == []
    Draft202012Validator.check_schema(json.loads(command_output.SCHEMA.read_text()))


@EACH
def test_a_command_with_an_output_option_declares_what_it_prints(path):
    assert shapes_of(COMMANDS[path]), f"{path}: pass a shape to output_option"
    for shape in shapes_of(COMMANDS[path]):
        for place, column in nested([*shape.fields, *shape.columns]):
            assert column.meaning.endswith("."), f"{path}: {place}"
            assert not column.wide or not column.json_only, f"{path}: {place}"


def renamed(shape):
    """What the command prints, with one key renamed: each key once."""
    whole = printed(shape)
    keys = {column.key for _, column in nested([*shape.fields, *shape.columns])} | {shape.rows}
    for number, inner in enumerate(objects(whole, keys)):
        for key in inner.keys() & keys:
            broken = copy.deepcopy(whole)
            at = [*objects(broken, keys)][number]
            at[f"{key}_renamed"] = at.pop(key)
            yield broken


def of_another_type(shape):
    """What the command prints, with one value of another type, or null against the declaration."""
    for number, column in enumerate([*shape.fields, *shape.columns]):
        for wrong in [{"a": [1]}, *([] if column.nullable else [None])]:
            broken = printed(shape)
            rows = broken if isinstance(broken, list) else broken.get(shape.rows)
            (broken if number < len(shape.fields) else rows[0])[column.key] = wrong
            yield broken


@EACH
def test_a_renamed_key_a_wrong_type_and_an_unexpected_null_are_found(path):
    for shape in shapes_of(COMMANDS[path]):
        check_value(path, printed(shape))
        wrong = [*renamed(shape), *of_another_type(shape)]
        assert len(wrong) >= 2 * (len(shape.fields) + len(shape.columns))
        for value in wrong:
            with pytest.raises(WrongOutput):
                check_value(path, value)


def test_a_line_of_json_lines_is_checked_too():
    rows = [{"name": "orders", "partitions": 1, "internal": False}]
    words = ["topic", "list", "-o", "jsonl"]
    check_output(words, f"{json.dumps(rows[0])}\n" * 2)
    with pytest.raises(WrongOutput, match=r"'internal' is a required property"):
        check_output(words, f'{json.dumps(rows[0])}\n{{"name": "orders", "partitions": 1}}\n')
    with pytest.raises(WrongOutput, match="printed no JSON"):
        check_output(words, "orders\n")


def test_a_line_may_have_each_shape_of_a_command():
    for shape in shapes_of(COMMANDS["gateway group describe"]):
        words = ["group", "describe", "a", "-o", "jsonl"]
        check_output(words, f"{json.dumps(sample(shape.columns))}\n")
        with pytest.raises(WrongOutput):
            check_output(words, "{}\n")


def test_what_is_not_the_whole_json_passes():
    check_output(["topic", "list"], "NAME PARTITIONS INTERNAL\n")
    check_output(["topic", "list", "-o", "json", "--columns", "name"], '[{"name": "orders"}]')
    check_output(["topic", "list", "-o", "json"], "", code=69)


def test_the_helper_of_the_tests_finds_a_key_that_is_not_declared(monkeypatch):
    code, out, errors = invoke("job", "packages", "-o", "json")
    assert code == 0, errors
    assert json.loads(out)[0]["package"].startswith("org.apache.spark:")
    callback = packages_command.packages.callback
    monkeypatch.setattr(callback, "shapes", (Shape((text("artifact", "A package."),)),))
    with pytest.raises(WrongOutput, match="'artifact' is a required property"):
        invoke("job", "packages", "-o", "json")
