"""Goal: `gateway events` shows what happened; only our own programs meet the private request."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import struct
import subprocess
from types import SimpleNamespace

import pytest

from gateway.access import CLUSTER, Operation
from gateway.admin.client import Unreachable
from gateway.admin.events import EventReader
from gateway.handlers import changes, many_rows, private_questions
from gateway.handlers.api import Peer
from gateway.handlers.table import rows
from gateway.wire import private_request
from gateway.wire.messages import PRIVATE_KEY, MalformedMessage
from ledger.add_times import add_times
from ledger.events import PROCESS, EventKind, events, note_event
from tests.gateway.admin_commands import heeding, invoke, produced
from tests.gateway.authorizers import Deciding
from tests.peers import install
from tests.peers.gateway import Gateway

HEAD = struct.Struct(">ihhihB")


# -- one question -----------------------------------------------------------------------------


def asked(body, allowed=lambda *_: True, topic=None):
    """The answer of the handler, and what it asked about rights."""
    rights = []

    def decide(principal, operation, resource):
        rights.append((principal, operation, resource))
        return allowed(principal, operation, resource)

    catalog = SimpleNamespace(by_id=lambda _: topic)
    ctx = SimpleNamespace(
        process_report=None,
        authorizer=Deciding(decide),
        catalog=catalog,
        cluster=SimpleNamespace(node_id=3),
        questions={},
    )
    frame = memoryview(private_request.encode_request(9, "c", body))
    start = len(frame) - len(json.dumps(body).encode())
    decoded = private_request.decode_body(0, frame, start)
    peer = Peer("127.0.0.1", 1, "127.0.0.1", 2)
    request = SimpleNamespace(key=PRIVATE_KEY, body=decoded, correlation_id=9, peer=peer)
    answer = b"".join(asyncio.run(private_questions.handle(request, ctx)))
    number, found = private_request.decode_answer(answer)
    assert number == 9
    return found, rights


def test_events_are_answered_from_a_number_on_and_name_the_topic():
    topic_id = "0b0e6a4e-7a0e-4e43-9e5f-6a6d1b4f1c11"
    before = events.newest
    note_event(EventKind.ROLL, stream=f"{topic_id}-4", segment=2, ledger=17)
    note_event(EventKind.FENCE, ledger=18)
    found, _ = asked({"ask": "events", "after": before}, topic=SimpleNamespace(name="orders"))
    roll, fence = found["events"]
    assert (found["node_id"], found["process"]) == (3, PROCESS)
    assert (roll["number"], roll["kind"]) == (before + 1, "roll")
    assert (roll["topic"], roll["partition"], roll["segment"], roll["ledger"]) == (
        "orders",
        4,
        2,
        17,
    )
    assert "stream" not in roll
    assert (fence["kind"], fence["ledger"]) == ("fence", 18)
    deleted, _ = asked({"ask": "events", "after": before, "count": 1})
    assert deleted["events"][0]["topic"] == f"{topic_id} (deleted)"


def test_an_answer_about_events_has_a_bound_and_leaves_out_none():
    before = events.newest
    for number in range(3_000):
        note_event(EventKind.CHANGE, resource="€" * 300, number_of_it=number)
    read: list[int] = []
    while read[-1:] != [2_999]:
        found, _ = asked({"ask": "events", "after": before + len(read)})
        size = sum(len(str(each)) for each in found["events"])
        assert 0 < size < 2 * private_questions.ANSWER_CHARACTERS_MAX
        read += [each["number_of_it"] for each in found["events"]]
    assert read == list(range(3_000))


@pytest.mark.parametrize(
    ("body", "code"),
    [
        ({}, "UNSUPPORTED_VERSION"),
        ({"ask": "records"}, "UNSUPPORTED_VERSION"),
        ({"ask": ["events"]}, "UNSUPPORTED_VERSION"),
        ({"ask": "events", "after": -1}, "INVALID_REQUEST"),
        ({"ask": "events", "after": True}, "INVALID_REQUEST"),
        ({"ask": "events", "count": "9"}, "INVALID_REQUEST"),
        ({"ask": "events", "after": 1e300}, "INVALID_REQUEST"),
        ({"ask": "acknowledgements"}, "INVALID_REQUEST"),
        ({"ask": "acknowledgements", "ledger": 1, "entry": "2"}, "INVALID_REQUEST"),
        ({"ask": "acknowledgements", "ledger": -1, "entry": 2}, "INVALID_REQUEST"),
    ],
)
def test_a_bad_question_is_refused_with_a_code(body, code):
    found, _ = asked(body)
    assert found["error"] == code and found["message"]


def test_acknowledgements_of_an_entry_are_answered_or_null():
    add_times.add([2**40, 17, 3.0, 2, "b1", 3.0025, "b2", 3.5])
    found, _ = asked({"ask": "acknowledgements", "ledger": 2**40, "entry": 17})
    assert found["acknowledgements"] == [
        {"bookie": "b1", "after_ms": 2.5},
        {"bookie": "b2", "after_ms": 500.0},
    ]
    found, _ = asked({"ask": "acknowledgements", "ledger": 2**40, "entry": 18})
    assert found["acknowledgements"] is None


@pytest.mark.parametrize("ask", ["acknowledgements", "events", "process", "topics", "groups"])
def test_whoever_may_not_describe_the_cluster_learns_nothing(ask):
    found, rights = asked({"ask": ask}, allowed=lambda *_: False)
    assert found.keys() == {"error", "message"}
    assert found["error"] == "CLUSTER_AUTHORIZATION_FAILED"
    assert rights == [("User:ANONYMOUS", Operation.DESCRIBE, CLUSTER)]


@pytest.mark.parametrize(
    "body", [b"", b"[]", b"{", b"\xff", b"[" * 4000, b" " * 5000 + b"{}", b"null"]
)
def test_a_body_that_is_no_small_object_is_malformed(body):
    with pytest.raises(MalformedMessage):
        private_request.decode_body(0, body, 0)


def test_each_row_that_reports_a_change_is_looked_at():
    assert changes._CHANGES.keys() == many_rows._CHANGING


def test_clients_are_told_nothing_about_the_private_request():
    assert PRIVATE_KEY == private_request.KEY
    assert private_request.KEY not in rows()


# -- the events of several gateways -----------------------------------------------------------


class Gateways:
    """Answers of gateways, by node id: a process and its events, or an error."""

    def __init__(self, **answers):
        self.answers = answers

    async def ask_gateways(self, body):
        return {number: self._answer(number, body) for number in self.answers}

    def _answer(self, number, body):
        found = self.answers[number]
        if isinstance(found, Exception):
            return found
        process, numbers = found
        after = body(SimpleNamespace(node_id=number))["after"]
        rows = [{"number": n, "at_ms": n, "kind": "roll"} for n in numbers if n > after][:7]
        return {"process": process, "events": rows}


def read(reader, gateways):
    rows = asyncio.run(reader.more(gateways))
    return [(row["node_id"], row["number"]) for row in rows]


def test_each_event_is_read_once_and_a_process_that_began_anew_from_its_first():
    reader, gateways = EventReader(), Gateways(a=("p1", range(1, 31)), b=("q1", range(1, 3)))
    assert sorted(read(reader, gateways)) == [
        *(("a", n) for n in range(1, 31)),
        ("b", 1),
        ("b", 2),
    ]
    assert read(reader, gateways) == []
    gateways.answers["a"] = ("p2", range(1, 61))  # more events than the process before had
    assert read(reader, gateways) == [("a", n) for n in range(1, 61)]


def test_events_that_a_gateway_dropped_are_counted_and_silence_is_named():
    reader, gateways = EventReader(), Gateways(a=("p1", range(1, 6)), b=Unreachable("away"))
    assert read(reader, gateways) == [("a", n) for n in range(1, 6)]
    assert reader.silent == {"b": "away"}
    gateways.answers["a"] = ("p1", range(9, 12))
    assert read(reader, gateways) == [("a", 9), ("a", 10), ("a", 11)]
    assert reader.silent == {"b": "away"}
    gateways.answers["a"] = Unreachable("away too")
    with pytest.raises(Unreachable, match="away too"):
        read(reader, gateways)


# -- a gateway --------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def gateway(tmp_path_factory):
    with Gateway(tmp_path_factory.mktemp("events") / "data") as broker:
        invoke("topic", "create", "orders", "-p", "2", bootstrap=at(broker))
        produced(broker, "orders", 3)
        yield broker


def at(gateway):
    return f"127.0.0.1:{gateway.port}"


def test_the_first_segment_of_a_partition_is_an_event(gateway):
    code, out, errors = invoke("events", "-o", "json", "--kind", "roll", bootstrap=at(gateway))
    assert (code, errors) == (0, "")
    mine = [row for row in json.loads(out) if row["topic"] == "orders" and row["partition"] == 0]
    assert [(row["kind"], row["facts"]["segment"]) for row in mine] == [("roll", "1")]
    assert mine[0]["ledger"] >= 0 and mine[0]["at"].endswith("Z")
    code, out, _ = invoke("events", "--since", "2099-01-01", "-o", "csv", bootstrap=at(gateway))
    assert (code, out.count("\n")) == (0, 1)


def test_following_prints_new_events_until_ctrl_c(gateway):
    argv = [install.gateway_python(), "-m", "gateway", "events", "-f", "-o", "jsonl"]
    argv += ["--kind", "roll", "-n", "1"]
    environment = {**os.environ, "GATEWAY_BOOTSTRAP": at(gateway)}
    with subprocess.Popen(
        heeding(argv), env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert json.loads(process.stdout.readline())["kind"] == "roll"
        invoke("topic", "create", "later", bootstrap=at(gateway))
        produced(gateway, "later", 1)
        assert json.loads(process.stdout.readline())["topic"] == "later"
        process.send_signal(signal.SIGINT)
        out, errors = process.communicate(timeout=60)
    assert (process.returncode, out, errors) == (130, "", "")


def test_following_ends_with_the_reader_of_its_output(gateway):
    argv = [install.gateway_python(), "-m", "gateway", "events", "-f", "-o", "jsonl"]
    environment = {**os.environ, "GATEWAY_BOOTSTRAP": at(gateway)}
    with subprocess.Popen(
        argv, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout.readline()
        process.stdout.close()
        assert process.wait(timeout=60) == 141
        assert process.stderr.read() == ""


@pytest.mark.parametrize("body", [b"", b"[]", b"{" * 100, b'{"ask": "' + b"x" * 9000 + b'"}'])
def test_a_malformed_private_request_ends_its_connection_and_no_other(gateway, body):
    with socket.create_connection(("127.0.0.1", gateway.port), timeout=60) as wire:
        size = HEAD.size - 4 + len(body)
        wire.sendall(HEAD.pack(size, private_request.KEY, 0, 1, 0, 0) + body)
        assert wire.recv(1) == b""
    assert invoke("events", "-n", "1", bootstrap=at(gateway))[0] == 0


def test_an_array_that_never_ends_is_a_usage_error(gateway):
    code, out, errors = invoke("events", "-f", "-o", "json", bootstrap=at(gateway))
    assert (code, out) == (2, "")
    assert json.loads(errors)["code"] == "USAGE" and "jsonl" in json.loads(errors)["error"]


def test_every_change_is_an_event_with_who_what_and_the_outcome(gateway):
    server = at(gateway)
    for words in (
        ("topic", "create", "audited", "-p", "1"),
        ("topic", "create", "audited"),
        ("topic", "alter", "audited", "-c", "retention.ms=1000"),
        ("topic", "alter", "audited", "--partitions", "3"),
        ("topic", "truncate", "audited", "--to", "end", "--yes"),
        ("topic", "delete", "audited", "--yes"),
        ("group", "delete", "nobody", "--yes"),
        ("topic", "describe", "orders"),
    ):
        invoke(*words, bootstrap=server)
    code, out, _ = invoke("events", "--kind", "change", "-o", "json", bootstrap=server)
    facts = [row["facts"] for row in json.loads(out)]
    assert code == 0
    assert {each["principal"] for each in facts} == {"User:ANONYMOUS"}
    assert {each["address"] for each in facts} == {"127.0.0.1"}
    found = [(each["operation"], each["resource"], each["outcome"]) for each in facts]
    assert [each for each in found if each[1] == "TOPIC:audited"] == [
        ("CREATE", "TOPIC:audited", "NONE"),
        ("CREATE", "TOPIC:audited", "TOPIC_ALREADY_EXISTS"),
        ("ALTER_CONFIGS", "TOPIC:audited", "NONE"),
        ("ALTER", "TOPIC:audited", "NONE"),
        ("DELETE_RECORDS", "TOPIC:audited", "NONE"),
        ("DELETE", "TOPIC:audited", "NONE"),
    ]
