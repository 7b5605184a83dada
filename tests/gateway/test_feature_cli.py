"""Goal: `gateway feature` shows and changes levels, in columns and in JSON, and fails in one line.

Method: the commands in this process, against a gateway on a new
directory. Each test leaves the levels as they were.
"""

from __future__ import annotations

import json

import pytest

from gateway.admin.features import level_text
from tests.gateway.admin_commands import invoke
from tests.peers.gateway import Gateway

NEWEST = {
    "gateway.version": 3,
    "group.version": 1,
    "metadata.version": 30,
    "transaction.version": 2,
}


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory):
    with Gateway(tmp_path_factory.mktemp("data")) as broker:
        yield broker


@pytest.fixture
def cli(gateway):
    return lambda *words: invoke("feature", *words, bootstrap=f"127.0.0.1:{gateway.port}")


def levels(cli):
    code, out, errors = cli("describe", "-o", "json")
    assert code == 0, errors
    return {row["feature"]: row["finalized"] for row in json.loads(out)}


def test_describe_shows_supported_and_finalized_levels(cli):
    code, out, _ = cli("describe")
    lines = [line.split() for line in out.splitlines()]
    assert (code, lines[0]) == (
        0,
        ["FEATURE", "SUPPORTED-MIN", "SUPPORTED-MAX", "FINALIZED", "EPOCH"],
    )
    assert [line[:4] for line in lines[1:]] == [
        ["gateway.version", "0", "3", "3"],
        ["group.version", "0", "1", "1"],
        ["metadata.version", "3.3-IV3", "4.3-IV0", "4.3-IV0"],
        ["transaction.version", "0", "2", "2"],
    ]
    assert levels(cli) == NEWEST


def test_levels_go_down_and_without_names_all_go_up(cli):
    down = ("transaction.version=0", "gateway.version=2")
    code, out, _ = cli("downgrade", *down, "--dry-run")
    assert (code, levels(cli)) == (0, NEWEST)
    assert out.splitlines() == [
        "transaction.version can be downgraded to 0.",
        "gateway.version can be downgraded to 2.",
    ]
    assert cli("downgrade", *down)[0] == 0
    assert levels(cli) == {**NEWEST, "transaction.version": 0, "gateway.version": 2}
    code, out, _ = cli("upgrade", "-o", "json")
    assert json.loads(out) == {
        "upgraded": [
            {"feature": "gateway.version", "level": 3},
            {"feature": "transaction.version", "level": 2},
        ]
    }
    assert levels(cli) == NEWEST
    assert cli("upgrade") == (0, "All features have their newest levels.\n", "")


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (("upgrade", "transaction.version=3"), "only supports versions 0-2"),
        (("upgrade", "group.version=2"), "only supports versions 0-1"),
        (("upgrade", "share.version=1"), "does not support this feature"),
        (("upgrade", "transaction.version=1"), "without setting the upgrade type"),
        (("downgrade", "metadata.version=29"), "it might delete metadata information"),
        (("downgrade", "metadata.version=29", "--unsafe"), "Unsafe metadata downgrade"),
        (("downgrade", "gateway.version=2"), "depends on gateway.version level 3"),
        (("downgrade", "gateway.version=1"), "Data of version 2 may exist"),
    ],
)
def test_a_refusal_is_one_line_and_changes_nothing(cli, words, text):
    code, out, errors = cli(*words)
    assert (code, out) == (1, "")
    assert text in errors
    assert errors.count("\n") == 1
    assert levels(cli) == NEWEST


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (("upgrade", "transaction.version"), "is not feature=level"),
        (("upgrade", "=1"), "is not feature=level"),
        (("upgrade", "transaction.version=-1"), "is not feature=level"),
        (("upgrade", "transaction.version=32768"), "is not feature=level"),
        (("upgrade", "a=1", "a=2"), "feature a is named twice"),
        (("downgrade",), "FEATURE=LEVEL... is missing"),
    ],
)
def test_wrong_usage_is_refused_without_a_request(words, text):
    code, out, errors = invoke("feature", *words)
    assert (code, out) == (2, "")
    assert text in errors


def test_levels_of_metadata_have_the_names_of_kafka():
    known = {7: "3.3-IV3", 19: "3.7-IV4", 23: "4.0-IV1", 30: "4.3-IV0", 31: "UNKNOWN 31"}
    assert {level: level_text("metadata.version", level) for level in known} == known
