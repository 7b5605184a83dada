"""Goal: `gateway explain` answers users of `gateway dev` as the docs say.

Method: one gateway process with three bookies, records by librdkafka, and the command against it. A
walk over the log files of the process finds each field again. Another gateway has no ledger port,
and Apache Kafka is no gateway.
"""

from __future__ import annotations

import json
from types import SimpleNamespace

import pytest
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from gateway.admin.client import AdminError
from gateway.admin.explain_cli import Place, read_at, read_place
from gateway.admin.explain_kafka import ledger_address
from gateway.admin.explain_text import explanation_text
from ledger.client.writer import TIMED_FIRST
from tests.gateway.admin_commands import invoke, run
from tests.gateway.explain_walk import check_explanation
from tests.ledger.log_walk import files_in
from tests.peers.gateway import Gateway
from tests.peers.kafka import ApacheKafka

pytestmark = [pytest.mark.process, pytest.mark.compat]
FIRST_MS = 1_600_000_000_000


@pytest.fixture(scope="module")
def gateway(tmp_path_factory):
    with Gateway(tmp_path_factory.mktemp("explain") / "data", ["--bookies", "3"]) as server:
        client = AdminClient({"bootstrap.servers": server.bootstrap})
        topics = [
            NewTopic("orders", 2, 3, config={"retention.ms": "-1"}),
            NewTopic("paid", 1, 3),
            NewTopic("cut", 1, 3, config={"retention.bytes": "1000000"}),
        ]
        for made in client.create_topics(topics).values():
            made.result(60)
        # One batch for each flush, which does not wait for `linger.ms`.
        settings = {"compression.type": "lz4", "enable.idempotence": True, "linger.ms": 60_000}
        producer = writer(server, **settings)
        for number in range(40):
            at = FIRST_MS + 1000 * number
            key, headers = f"k{number}", [("trace", b"1")]
            producer.produce("orders", b"v" * 100, key, 1, timestamp=at, headers=headers)
            producer.produce("cut", b"v" * number, partition=0)
            if number % 10 == 9:
                assert producer.flush(60) == 0
        in_transactions(server)
        server.transactions = open_transaction(server)
        deleted = client.delete_records([TopicPartition("cut", 0, 25)])
        assert [each.result(60).low_watermark for each in deleted.values()] == [25]
        yield server


def writer(server, **settings):
    return Producer({"bootstrap.servers": server.bootstrap, "linger.ms": 5, **settings})


def in_transactions(server):
    """Offset 0 is committed, 1 the marker; 2 is aborted, 3 the marker."""
    producer = writer(server, **{"transactional.id": "first"})
    producer.init_transactions(30)
    for end in (producer.commit_transaction, producer.abort_transaction):
        producer.begin_transaction()
        producer.produce("paid", b"x", partition=0)
        assert producer.flush(60) == 0
        end(30)


def open_transaction(server):
    """Offset 4 belongs to a transaction that stays open with the producer that is returned."""
    producer = writer(server, **{"transactional.id": "second"})
    producer.init_transactions(30)
    producer.begin_transaction()
    producer.produce("paid", b"x", partition=0)
    assert producer.flush(60) == 0
    return producer


def explained(server, *words):
    code, out, errors = invoke("explain", *words, "-o", "json", bootstrap=server.bootstrap)
    assert (code, errors) == (0, ""), errors
    return json.loads(out)


def refused(server, *words):
    code, out, errors = invoke("explain", *words, bootstrap=server.bootstrap)
    assert out == ""
    assert errors.count("\n") == 1
    return code, errors.removeprefix("gateway: ").rstrip("\n")


def files_of(server):
    """The log files by the name of the bookie, which begins with that of its directory."""
    found = {}
    for directory in server.data.glob("bookie-*"):
        instance = (directory / "VERSION").read_text().split("instance ")[1]
        found[f"{directory.name}-{instance[:8]}"] = files_in(directory)
    assert len(found) == 3
    return found


@pytest.mark.parametrize("offset", [0, 7, 20, 39])
def test_each_field_is_as_the_files_of_the_process_have_it(gateway, offset):
    found = explained(gateway, "orders", "1", str(offset))
    assert list(found) == [
        "record",
        "batch",
        "transaction",
        "leader",
        "segment",
        "ledger",
        "copies",
        "goes",
        "acknowledged",
    ]
    check_explanation(found, files_of(gateway))
    assert [row["has"] for row in found["copies"]] == ["yes"] * 3
    assert found["record"]["timestamp"] == FIRST_MS + 1000 * offset
    assert (found["batch"]["codec"], found["batch"]["crc"]) == ("lz4", "correct")
    assert found["acknowledged"]["at_least"] == 2
    assert found["acknowledged"]["proof"] == "LAC >= entry"
    assert found["leader"]["address"] == gateway.bootstrap


def test_the_times_of_acknowledgements_are_those_of_the_bookies_that_have_the_entry(gateway):
    """These are among the first entries of their ledger, which are remembered however fast."""
    for offset in (0, 10, 20, 30):
        found = explained(gateway, "orders", "1", str(offset))
        times = found["acknowledged"]["times"]
        assert found["acknowledged"]["entry"] < TIMED_FIRST
        assert {row["bookie"] for row in times} == {row["bookie"] for row in found["copies"]}
        assert all(0 <= row["after_ms"] < 60_000 for row in times)


@pytest.mark.parametrize("words", [["orders/1@20"], ["orders/1", "20"]])
def test_a_place_may_be_one_word(gateway, words):
    assert explained(gateway, *words)["record"]["offset"] == 20


@pytest.mark.parametrize("time", [str(FIRST_MS + 20_000), "2020-09-13T12:27:00Z"])
def test_a_time_finds_the_first_record_since(gateway, time):
    assert explained(gateway, "orders/1", "--at", time)["record"]["offset"] == 20


def test_the_states_of_transactions_are_those_of_their_producers(gateway):
    states = []
    for offset in range(5):
        found = explained(gateway, "paid/0", str(offset))
        check_explanation(found, files_of(gateway))
        states.append((found["transaction"]["state"], found["transaction"]["marker"]))
    assert states == [
        ("committed", None),
        ("marker", "commit"),
        ("aborted", None),
        ("marker", "abort"),
        ("open", None),
    ]


def test_the_text_has_sections_of_at_most_100_columns(gateway):
    for place in ("orders/1@20", "paid/0@1", "cut/0@30"):
        code, out, _ = invoke("explain", place, bootstrap=gateway.bootstrap)
        assert code == 0
        lines = out.splitlines()
        assert max(map(len, lines)) <= 100
        labels = [line.split()[0] for line in lines if line and line[0] != " "]
        assert labels[1:] == [
            "Record",
            "Batch",
            "Transaction",
            "Leader",
            "Segment",
            "Ledger",
            "Copies",
            "Goes",
            "Acknowledged",
        ]
        assert "at least 2 of 3: LAC" in out


def test_the_command_as_a_process_prints_the_same(gateway):
    code, out, errors = run("explain", "cut", "0", "30", bootstrap=gateway.bootstrap)
    assert (code, errors) == (0, "")
    assert out.startswith("cut/0 offset 30\n")
    assert "3 of 3 bookies returned it with a correct digest" in out
    assert "retention.bytes: after " in out


def test_an_offset_without_a_record_is_one_line_and_1(gateway):
    assert refused(gateway, "orders/1@40") == (1, "not written yet: ends at 40")
    assert refused(gateway, "orders/0@0") == (1, "not written yet: ends at 0")
    assert refused(gateway, "cut", "0", "5") == (
        1,
        "offset 5 was deleted by truncation; the first is 25",
    )
    late = refused(gateway, "orders/1", "--at", "2030-01-01T00:00:00Z")
    assert late == (1, "no record is as new as --at: it ends at 40")


def test_a_refusal_is_json_where_json_was_asked_for(gateway):
    words = ["explain", "cut/0@5", "-o", "json"]
    code, out, errors = invoke(*words, bootstrap=gateway.bootstrap)
    assert (code, out) == (1, "")
    assert json.loads(errors)["code"] == "OFFSET_DELETED"


def test_topics_and_partitions_that_do_not_exist_are_named(gateway):
    assert refused(gateway, "none/0@0") == (
        1,
        "Topic 'none' does not exist; see `gateway topic list`",
    )
    assert refused(gateway, "orders/2@0") == (1, "Topic 'orders' has no partition 2: it has 2.")


def test_the_ledger_port_may_be_named(gateway):
    code, out, _ = invoke(
        "explain", "orders/1@3", "-z", gateway.ledgers, bootstrap=gateway.bootstrap
    )
    assert code == 0
    assert "orders/1 offset 3" in out


def test_no_server_and_no_metadata_are_69(tmp_path):
    code, text = refused(SimpleNamespace(bootstrap="127.0.0.1:1"), "orders/0@0")
    assert code == 69
    assert "no server at 127.0.0.1:1" in text
    with Gateway(tmp_path / "data", ["--no-ledger-port"]) as server:
        code, text = refused(server, "orders/0@0")
        assert code == 69
        assert "--no-ledger-port" in text


class NoGateway:
    """A broker that has neither the config nor the feature of gateways."""

    bootstrap_hosts = ("kafka",)

    async def brokers(self):
        return [SimpleNamespace(node_id=1)]

    async def send(self, key, body):
        return SimpleNamespace(results=[SimpleNamespace(configs=[])])

    async def reaches_gateway(self):
        return False


async def test_a_server_that_is_no_gateway_is_refused():
    with pytest.raises(AdminError, match="is not a ledger gateway") as raised:
        await ledger_address(NoGateway())
    assert raised.value.code == "NOT_A_LEDGER_GATEWAY"


@pytest.mark.proof
def test_apache_kafka_is_named_as_no_gateway(tmp_path):
    with ApacheKafka(tmp_path / "data") as broker:
        code, text = refused(broker, "orders/0@0")
        assert code == 1
        assert "is not a ledger gateway" in text


# -- words -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "place"),
    [
        (["t", "3", "9"], Place("t", 3, 9)),
        (["t/3@9"], Place("t", 3, 9)),
        (["t/3", "9"], Place("t", 3, 9)),
        (["t/3"], Place("t", 3, None)),
        (["t", "3"], Place("t", 3, None)),
        (["t.a-b_c/0@0"], Place("t.a-b_c", 0, 0)),
    ],
)
def test_a_place_has_three_forms(words, place):
    assert read_place(words) == place


@pytest.mark.parametrize(
    "words",
    [
        ["t"],
        ["t", "x"],
        ["t", "0", "x"],
        ["t", "0", "1", "2"],
        ["t/0@1", "2"],
        ["t/x@1"],
        ["t/0@"],
        ["/0@1"],
        ["t/0", "-1"],
        ["t", "4294967296", "1"],
        ["t", "0", "9999999999999999999"],
        ["t", "٣", "1"],
    ],
)
def test_anything_else_is_a_usage_error(words):
    with pytest.raises(ValueError):
        read_place(words)
    code, out, errors = invoke("explain", "--", *words)
    assert (code, out, errors.count("\n")) == (2, "", 1)


@pytest.mark.parametrize("word", ["yesterday", "@", "2026-13-01", "", "1h2"])
def test_a_time_that_is_none_is_a_usage_error(word):
    code, _, errors = invoke("explain", "t/0", "--at", word)
    assert (code, errors.count("\n")) == (2, 1)


def test_times_are_read_in_all_forms():
    assert read_at("@1777636800000", 0) == read_at("1777636800000", 0) == 1_777_636_800_000
    assert read_at("2026-05-01T12:00", 0) == 1_777_636_800_000
    assert read_at("1h", 7_200_000) == read_at("@1h", 7_200_000) == 3_600_000


# -- text ------------------------------------------------------------------------------------------


def test_the_text_of_a_record_whose_bookies_are_away(gateway):
    found = explained(gateway, "orders/1@3")
    for row in found["copies"]:
        row |= {"status": "away", "has": "unknown", "file": None, "position": None}
    found["leader"] = {"node": None, "address": None, "epoch": None}
    found["acknowledged"] |= {"at_least": None, "proof": None, "last_add_confirmed": -1}
    found["record"] |= {"timestamp": None, "key_bytes": None, "value_bytes": None}
    text = explanation_text(found)
    assert "Record        cannot be decoded" in text
    assert "0 of 3 bookies returned it" in text
    assert "none, epoch unknown" in text
    assert "not yet: LAC -1 < entry" in text
