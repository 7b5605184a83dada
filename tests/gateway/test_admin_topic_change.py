"""Goal: topics are altered and truncated from the command line, and what cannot be is said.

Method: the command in this process, against one real gateway process.
"""

import json

import pytest

from tests.gateway.admin_commands import invoke, produced
from tests.peers.gateway import Gateway


@pytest.fixture(scope="module")
def gateway(tmp_path_factory):
    with Gateway(tmp_path_factory.mktemp("data"), []) as broker:
        yield broker


@pytest.fixture
def cli(gateway):
    return lambda *words: invoke(*words, bootstrap=f"127.0.0.1:{gateway.port}")


def described(cli, name):
    code, out, errors = cli("topic", "describe", name, "-o", "json")
    assert code == 0, errors
    return json.loads(out)


def test_settings_are_changed_and_given_up(cli):
    cli("topic", "create", "changing", "-c", "retention.ms=1000", "-c", "segment.ms=60000")
    code, out, errors = cli(
        "topic", "alter", "changing", "-c", "retention.ms=2000", "-d", "segment.ms"
    )
    assert (code, out, errors) == (0, "Altered topic changing.\n", "")
    assert described(cli, "changing")["configs"] == {"retention.ms": "2000"}


def test_more_acknowledgements_than_copies_are_told_and_refused_to_producers(cli, gateway):
    said = (
        "warning: min.insync.replicas=2 exceeds the replication factor 1: producers with acks=all "
        "get NOT_ENOUGH_REPLICAS.\n"
    )
    made = cli("topic", "create", "careful", "-c", "min.insync.replicas=2")
    assert made == (0, "Created topic careful.\n", said)
    assert cli("topic", "create", "lax", "-c", "min.insync.replicas=1")[2] == ""
    altered = cli("topic", "alter", "lax", "-c", "min.insync.replicas=2")
    assert altered == (0, "Altered topic lax.\n", said)
    assert cli("topic", "alter", "lax", "-d", "min.insync.replicas") == (
        *(0, "Altered topic lax.\n"),
        "",
    )
    produced(gateway, "lax", 1)


def test_partitions_are_added_and_take_records(cli, gateway):
    cli("topic", "create", "growing", "-p", "2")
    produced(gateway, "growing", 3, partition=1)
    code, out, errors = cli("topic", "alter", "growing", "--partitions", "4")
    assert (code, out, errors) == (0, "Altered topic growing.\n", "")
    produced(gateway, "growing", 5, partition=3)
    rows = described(cli, "growing")["partitions"]
    assert [row["log_end_offset"] for row in rows] == [0, 3, 0, 5]
    code, out, errors = cli("topic", "alter", "growing", "-p", "3", "-o", "json")
    assert (code, out) == (1, "")
    assert json.loads(errors)["code"] == "INVALID_PARTITIONS"
    assert "currently has 4 partition(s)" in json.loads(errors)["error"]


def test_a_topic_is_truncated(cli, gateway):
    cli("topic", "create", "cut", "-p", "2")
    produced(gateway, "cut", 10)
    produced(gateway, "cut", 4, partition=1)
    code, out, errors = cli("topic", "truncate", "cut", "--to", "3", "-p", "0", "--yes")
    assert (code, errors) == (0, "")
    assert out.split() == ["PARTITION", "LOG-START-OFFSET", "0", "3"]
    code, out, _ = cli("topic", "truncate", "cut", "--to", "end", "--yes", "-o", "json")
    assert code == 0
    assert [row["log_start_offset"] for row in json.loads(out)] == [10, 4]


def starts(cli, name):
    return [row["log_start_offset"] for row in described(cli, name)["partitions"]]


def test_a_truncation_that_one_partition_does_not_reach_changes_none(cli, gateway):
    cli("topic", "create", "uneven", "-p", "3")
    produced(gateway, "uneven", 10)
    produced(gateway, "uneven", 4, partition=1)
    code, out, errors = cli("topic", "truncate", "uneven", "--to", "9", "--yes")
    assert (code, out) == (1, "")
    assert errors == (
        "gateway: offset 9 is past the end: partition 1 ends at 4, 2 ends at 0; no partition was "
        "changed. Pass a lower offset, end, or some partitions with --partition\n"
    )
    assert starts(cli, "uneven") == [0, 0, 0]
    code, _, errors = cli("topic", "truncate", "uneven", "--to", "9", "--yes", "-o", "json")
    assert (code, json.loads(errors)["code"]) == (1, "OFFSET_OUT_OF_RANGE")
    code, out, errors = cli("topic", "truncate", "uneven", "--to", "9", "-p", "0", "--yes")
    assert (code, errors) == (0, "")
    assert starts(cli, "uneven") == [9, 0, 0]


def test_a_partition_that_the_server_refuses_to_truncate_is_shown_with_the_reason(cli, gateway):
    cli("topic", "create", "kept", "-p", "2", "-c", "cleanup.policy=compact")
    code, out, errors = cli("topic", "truncate", "kept", "--to", "end", "--yes")
    assert code == 1
    assert [line.split() for line in out.splitlines()] == [
        ["PARTITION", "LOG-START-OFFSET", "ERROR"],
        ["0", "-", "POLICY_VIOLATION"],
        ["1", "-", "POLICY_VIOLATION"],
    ]
    assert errors == (
        "gateway: 2 of 2 partitions were not truncated: POLICY_VIOLATION; remove the cause, then "
        "run the command again\n"
    )


@pytest.mark.parametrize(
    ("words", "code", "text"),
    [
        (("alter", "t"), 2, "nothing to change: pass -c"),
        (("alter", "t", "-p", "0"), 2, "--partitions 0: must be a whole number"),
        (("alter", "t", "-p", "2", "-d", "segment.ms"), 2, "pass only one of them"),
        (("alter", "missing", "-p", "2"), 1, "does not exist"),
        (("alter", "t", "-c", "x"), 2, "is not key=value"),
        (("alter", "missing", "-c", "retention.ms=1"), 1, "The topic 'missing' does not exist;"),
        (("alter", "plain", "-c", "no.such=1"), 1, "Unknown topic config name: no.such"),
        (("truncate", "plain", "--to", "1"), 2, "add --yes"),
        (("truncate", "plain", "--to", "soon", "--yes"), 2, "must be an offset, or end"),
        (("truncate", "plain", "--to", "99", "--yes"), 1, "partition 0 ends at 0"),
        (("truncate", "plain", "--to", "0", "-p", "7", "--yes"), 1, "has no partition 7"),
        (("truncate", "missing", "--to", "0", "--yes"), 1, "does not exist"),
    ],
)
def test_what_cannot_be_is_said(cli, words, code, text):
    cli("topic", "create", "plain")
    found, _, errors = cli("topic", *words)
    assert found == code
    assert text in errors
