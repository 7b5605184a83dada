"""Goal: `gateway transaction` lists and describes transactions, and fails in one line.

Method: the commands in this process, against a gateway on a new
directory, with one transaction that is open and one id without a transaction.
"""

from __future__ import annotations

import json

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from gateway.admin.transaction_cli import STATES
from gateway.core.transaction_states import TransactionState
from gateway.wire.messages import decode_response, encode_request
from tests.compat.differential.connection import Connection
from tests.gateway.admin_commands import invoke
from tests.peers.gateway import Gateway
from tests.peers.processes import wait_until

INIT, ADD = 22, 24
TIMEOUT_MS = 900_000  # the longest; the transaction is open for all tests


def asked(connection, key, version, **fields):
    connection.send(encode_request(key, version, 7, None, fields))
    return decode_response(key, version, connection.receive()).body


def producer(connection, port, name):
    """Return the producer id of an id that is initialised once its log exists."""
    invoke("transaction", "describe", name, bootstrap=f"127.0.0.1:{port}")

    def given():
        body = asked(connection, INIT, 2, transactional_id=name, transaction_timeout=TIMEOUT_MS)
        return None if body.error_code else body

    return wait_until(given, f"a producer id of {name}").producer_id


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory):
    with Gateway(tmp_path_factory.mktemp("data")) as broker:
        admin = AdminClient({"bootstrap.servers": f"127.0.0.1:{broker.port}"})
        for made in admin.create_topics([NewTopic("orders", 3, 1)]).values():
            made.result(60)
        connection = Connection(("127.0.0.1", broker.port))
        producer(connection, broker.port, "idle")
        pay = producer(connection, broker.port, "pay")
        body = asked(
            connection,
            ADD,
            3,
            v3_and_below_transactional_id="pay",
            v3_and_below_producer_id=pay,
            v3_and_below_producer_epoch=0,
            v3_and_below_topics=[{"name": "orders", "partitions": [0, 2]}],
        )
        (topic,) = body.results_by_topic_v3_and_below
        assert not any(each.partition_error_code for each in topic.results_by_partition)
        connection.close()
        yield broker


@pytest.fixture
def cli(gateway):
    return lambda *words: invoke("transaction", *words, bootstrap=f"127.0.0.1:{gateway.port}")


def names(cli, *words):
    code, out, errors = cli("list", *words, "-o", "json")
    assert code == 0, errors
    return [row["transactional_id"] for row in json.loads(out)]


def test_transactions_are_listed_in_columns(cli):
    code, out, _ = cli("list")
    lines = [line.split() for line in out.splitlines()]
    assert (code, lines[0]) == (0, ["TRANSACTIONAL-ID", "PRODUCER-ID", "STATE"])
    assert [(line[0], line[2]) for line in lines[1:]] == [("idle", "Empty"), ("pay", "Ongoing")]


def test_the_list_is_filtered(cli):
    assert names(cli) == ["idle", "pay"]
    assert names(cli, "--state", "Ongoing") == ["pay"]
    assert names(cli, "--state", "Ongoing", "--state", "Empty") == ["idle", "pay"]
    assert names(cli, "--state", "Ongoing", "--longer-than", "1h") == []
    assert names(cli, "--pattern", "p.*") == ["pay"]
    assert names(cli, "--pattern", "p") == []
    (row,) = json.loads(cli("list", "--state", "Empty", "-o", "json")[1])
    assert names(cli, "--producer-id", str(row["producer_id"])) == ["idle"]
    assert names(cli, "--state", "ongoing") == ["pay"]
    assert {state for state in STATES if names(cli, "--state", state)} == {"Empty", "Ongoing"}


def test_a_state_that_there_is_not_is_wrong_usage_and_the_states_are_listed(cli):
    assert [state.kafka_name for state in TransactionState] == list(STATES)
    code, out, errors = cli("list", "--state", "ongong", "-o", "json")
    assert (code, out) == (2, "")
    assert all(state in json.loads(errors)["error"] for state in STATES)


def test_a_text_that_is_no_pattern_is_refused_in_one_line(cli):
    code, out, errors = cli("list", "--pattern", "(")
    assert (code, out) == (1, "")
    assert errors == "gateway: pattern (: INVALID_REGULAR_EXPRESSION\n"


def test_a_transaction_is_described(cli):
    code, out, _ = cli("describe", "pay", "-o", "json")
    row = json.loads(out)
    assert code == 0
    assert row["partitions"] == ["orders-0", "orders-2"]
    assert (row["state"], row["producer_epoch"], row["timeout_ms"]) == ("Ongoing", 0, TIMEOUT_MS)
    assert row["started_ms"] > 0
    lines = dict(line.split(maxsplit=1) for line in cli("describe", "pay")[1].splitlines())
    assert lines["partitions"] == "orders-0,orders-2"
    idle = json.loads(cli("describe", "idle", "-o", "json")[1])
    assert (idle["state"], idle["started_ms"], idle["partitions"]) == ("Empty", None, [])


def test_an_unknown_id_is_refused_in_one_line(cli):
    code, out, errors = cli("describe", "unknown")
    assert (code, out) == (1, "")
    assert len(errors.splitlines()) == 1
    assert "unknown" in errors


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (("list", "--producer-id", str(2**63)), "between 0 and 9223372036854775807"),
        (("list", "--producer-id", "-1"), "between 0 and 9223372036854775807"),
        (("find-hanging", "--topic", "t", "--partition", str(2**31)), "between 0 and 2147483647"),
        (("abort", "t", str(2**31), "--start-offset", "1", "--yes"), "between 0 and 2147483647"),
        (("abort", "t", "0", "--start-offset", str(2**63), "--yes"), "9223372036854775807"),
        (("abort", "t", "0", "--start-offset", "9" * 5_000, "--yes"), "9223372036854775807"),
    ],
)
def test_a_number_that_no_request_holds_is_a_wrong_flag(cli, words, text):
    code, out, errors = cli(*words, "-o", "json")
    assert (code, out) == (2, "")
    assert text in json.loads(errors)["error"]


def test_the_largest_producer_id_is_asked_for(cli):
    code, out, errors = cli("list", "--producer-id", str(2**63 - 1), "-o", "json")
    assert (code, json.loads(out)) == (0, []), errors


def test_a_name_that_no_request_holds_is_an_error_in_one_line(cli):
    """The gateway closes the connection of such a request, as Kafka does."""
    code, out, errors = cli("abort", "t" * 40_000, "0", "--start-offset", "1", "--yes")
    assert (code, out) == (69, "")
    assert errors.count("\n") == 1
