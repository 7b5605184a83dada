"""Goal: in a first session the storage commands find the ledgers by asking the gateway, and a group
has a history to go back in.

Method: the commands as users run them, with no other address than that of the gateway.
"""

from __future__ import annotations

import json
import time

import pytest
from confluent_kafka import TopicPartition

from tests.gateway.admin_commands import consumer, produced, run
from tests.peers.gateway import Gateway
from tests.peers.processes import free_port, wait_until


@pytest.fixture(scope="module")
def gateway(tmp_path_factory):
    with Gateway(tmp_path_factory.mktemp("data")) as broker:
        assert run("topic", "create", "t", bootstrap=broker.bootstrap)[0] == 0
        produced(broker, "t", 9)
        yield broker


@pytest.fixture
def cli(gateway):
    def command(*words):
        code, out, errors = run(*words, "-o", "json", bootstrap=gateway.bootstrap)
        assert code == 0, errors
        return json.loads(out)

    return command


def commit(gateway, group, offset):
    reader = consumer(gateway, group)
    reader.commit(offsets=[TopicPartition("t", 0, offset)], asynchronous=False)
    reader.close()


def test_ledgers_and_bookies_are_found_by_asking_the_gateway(cli):
    assert "t" in [row["topic"] for row in cli("ledger", "list")]
    (bookie,) = cli("bookie", "list")
    assert bookie["status"] == "rw"
    ledger = next(row["ledger"] for row in cli("ledger", "list") if row["topic"] == "t")
    assert cli("ledger", "show", str(ledger))["partition"] == 0
    assert cli("ledger", "why", str(ledger))["because"]
    assert cli("ledger", "verify")["clean"]


def test_a_group_has_a_history_and_can_be_restored_without_a_flag(gateway, cli):
    commit(gateway, "readers", 3)
    then = a_moment_that_is_past()
    commit(gateway, "readers", 7)
    rows = cli("group", "history", "readers")
    assert [row["offset"] for row in rows if row["topic"] == "t"] == [3, 7]
    (row,) = cli("group", "restore", "readers", "--at", then, "--execute")["offsets"]
    assert row["new_offset"] == 3
    (row,) = cli("group", "describe", "readers")
    assert row["current_offset"] == 3
    assert "readers" in [row["group"] for row in cli("ledger", "list")]


def test_history_survives_a_restart(gateway, cli):
    commit(gateway, "again", 2)
    gateway.kill()
    gateway.start()
    commit(gateway, "again", 5)
    rows = cli("group", "history", "again")
    assert [row["offset"] for row in rows if row["topic"] == "t"] == [2, 5]


@pytest.mark.parametrize(
    "words", [("ledger", "list"), ("bookie", "list"), ("group", "history", "g")]
)
def test_without_a_gateway_one_line_says_what_to_name(words):
    port = free_port()
    code, out, errors = run(*words, "-b", f"127.0.0.1:{port}")
    assert (code, out) == (69, "")
    assert errors == (
        f"gateway: no server at 127.0.0.1:{port}: Connection refused; name a gateway with "
        "--bootstrap host:port, or its metadata with --zookeeper host:port\n"
    )


def test_a_gateway_without_a_ledger_port_says_what_to_do(tmp_path):
    with Gateway(tmp_path / "data", ["--no-ledger-port"]) as gateway:
        code, out, errors = run("ledger", "list", bootstrap=gateway.bootstrap)
    assert (code, out) == (1, "")
    assert errors == (
        "gateway: the server does not say where its ledgers are: pass --zookeeper host:port, or "
        "start `gateway dev` without --no-ledger-port and without --secure\n"
    )


def a_moment_that_is_past():
    """Commits before this call are older than the moment, later ones are newer."""
    moment = time.gmtime(time.time() + 1)
    wait_until(lambda: time.gmtime() > moment, "a second to pass")
    return time.strftime("%Y-%m-%dT%H:%M:%S", moment)
