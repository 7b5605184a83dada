"""Goal: `gateway ledger` and `gateway bookie` show topics, partitions, groups, sizes and states as
an operator knows them.

Method: the commands as users run them, against one gateway process; owners and sizes by themselves.
"""

from __future__ import annotations

import json
from uuid import UUID

import pytest

from gateway.admin.ledger_owners import LedgerOwner, owner_of
from ledger.command_line.output import show_bytes
from tests.gateway.admin_commands import produced, run
from tests.peers.gateway import Gateway

TOPIC = UUID(int=7)


@pytest.fixture(scope="module")
def gateway(tmp_path_factory):
    with Gateway(tmp_path_factory.mktemp("data"), ["--bookies", "3"]) as broker:
        yield broker


@pytest.fixture(scope="module")
def cli(gateway):
    def command(*words):
        code, out, errors = run(*words, bootstrap=gateway.bootstrap)
        assert (code, errors) == (0, "")
        return out

    return command


def table(text):
    """The rows of a table, by heading."""
    headings, *rows = [line.split() for line in text.splitlines()]
    return [dict(zip(headings, row, strict=True)) for row in rows]


def test_ledgers_are_listed_by_topic_and_partition_with_sizes_for_people(gateway, cli):
    cli("topic", "create", "orders", "-p", "3", "-r", "3")
    produced(gateway, "orders", 2_000, partition=2)
    place = ("--zookeeper", gateway.ledgers)
    rows = [row for row in table(cli("ledger", "list", *place)) if row["TOPIC"] == "orders"]
    (row,) = rows
    assert (row["PARTITION"], row["GROUP"], row["STATE"]) == ("2", "-", "OPEN")
    assert row["SIZE"] == "-"  # nobody knows the size of a ledger that is written
    (found,) = [
        row
        for row in json.loads(cli("ledger", "list", *place, "-o", "json"))
        if row["topic"] == "orders"
    ]
    assert (found["partition"], found["group"], found["bytes"]) == (2, None, None)
    shown = cli("ledger", "show", row["LEDGER"], *place)
    assert shown.startswith(f"Ledger: {row['LEDGER']}  Topic: orders  Partition: 2  State: OPEN")
    assert {copy["STATUS"] for copy in table("\n".join(shown.splitlines()[2:]))} == {"rw"}


def test_the_bookies_of_a_gateway_that_takes_writes_are_writable(gateway, cli):
    rows = table(cli("bookie", "list", "--zookeeper", gateway.ledgers))
    assert [row["STATUS"] for row in rows] == ["rw"] * 3
    assert all(row[size][-3:] in ("GiB", "TiB", "MiB") for row in rows for size in ("DISK", "FREE"))


def test_a_gateway_with_its_own_bookies_does_not_compare_them(gateway):
    code, out, errors = run("bookie", "status", bootstrap=gateway.bootstrap)
    assert (code, out) == (0, "No bookie is greylisted.\n")
    assert errors == f"note: gateway 0 ({gateway.bootstrap}) does not compare bookies\n"
    code, out, errors = run("bookie", "status", "-o", "json", bootstrap=gateway.bootstrap)
    [row] = json.loads(out)
    assert (code, errors) == (0, "")
    assert row == {
        "gateway": 0,
        "address": gateway.bootstrap,
        "detection": "disabled",
        "bookies": [],
    }


def test_the_ledgers_of_a_deleted_topic_do_not_show_its_id(gateway, cli):
    cli("topic", "create", "gone", "-r", "3")
    produced(gateway, "gone", 1)
    cli("topic", "delete", "gone", "--yes")
    for row in table(cli("ledger", "list", "--zookeeper", gateway.ledgers)):
        assert row["TOPIC"] in ("orders", "(deleted)", "-")


@pytest.mark.parametrize(
    ("custom", "owner"),
    [
        ({}, LedgerOwner()),
        ({"stream": f"{TOPIC}-12".encode()}, LedgerOwner("orders", 12)),
        ({"stream": f"{UUID(int=8)}-0".encode()}, LedgerOwner("(deleted)", 0)),
        ({"stream": b"somebody-elses"}, LedgerOwner("somebody-elses")),
        ({"stream": b"\xff"}, LedgerOwner("\N{REPLACEMENT CHARACTER}")),
        ({"subscription": b"/gateway/groups/a%2Fb"}, LedgerOwner(group="a/b")),
        ({"subscription": b"/gateway/groups/%"}, LedgerOwner(group="")),
        ({"subscription": b"/streams/s/<default>/subscribers/one"}, LedgerOwner()),
    ],
)
def test_the_owner_of_a_ledger_is_what_its_metadata_name(custom, owner):
    assert owner_of(custom, {TOPIC: "orders"}) == owner


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, None),
        (0, "0B"),
        (1023, "1023B"),
        (1024, "1.0KiB"),
        (1024**2 - 1, "1.0MiB"),
        (1536 * 1024, "1.5MiB"),
        (63 * 1024**3, "63.0GiB"),
        (5 * 1024**5, "5120.0TiB"),
    ],
)
def test_a_size_has_one_decimal_in_a_unit_that_keeps_it_short(value, text):
    assert show_bytes(value) == text
