"""Goal: the admin commands do what they say, in columns and in JSON, and fail in one line.

Method: the commands in this process, and a few as users run them, each in its own process,
against one real gateway process.
"""

import json
import os
import signal
import socket
import subprocess
from functools import partial

import pytest
from confluent_kafka import TopicPartition

from tests.gateway.admin_commands import consumer, heeding, invoke, produced, run, to_full_disk
from tests.peers import install
from tests.peers.gateway import Gateway
from tests.peers.processes import Process, wait_until


@pytest.fixture(scope="module")
def gateway(tmp_path_factory):
    broker = Gateway(tmp_path_factory.mktemp("data"), ["--group-initial-rebalance-delay-ms", "0"])
    with broker:
        yield broker


@pytest.fixture
def cli(gateway):
    return lambda *words: invoke(*words, bootstrap=f"127.0.0.1:{gateway.port}")


def created(cli, name, *options):
    code, _, errors = cli("topic", "create", name, *options)
    assert code == 0, errors


# Without a server


@pytest.mark.parametrize(
    "words",
    [
        ("topic", "list"),
        ("topic", "create", "orders"),
        ("topic", "describe", "orders"),
        ("topic", "delete", "orders", "--yes"),
        ("group", "list"),
        ("group", "describe", "readers"),
    ],
)
def test_without_a_server_the_exit_code_is_69_and_one_line_says_what_to_do(words):
    code, out, errors = invoke(*words)
    assert (code, out) == (69, "")
    assert errors.count("\n") == 1
    assert "no server at 127.0.0.1:1: Connection refused" in errors
    assert "gateway dev" in errors


def test_a_failure_is_json_when_json_was_asked_for():
    code, out, errors = run("topic", "list", "-o", "json")
    assert (code, out) == (69, "")
    assert json.loads(errors)["code"] == "UNREACHABLE"


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        (("topic", "create"), "TOPIC... is missing (Names of the topics)"),
        (
            ("topic", "create", "a", "--partition", "3"),
            "no option --partition: did you mean --partitions?",
        ),
        (
            ("topic", "create", "a", "-p", "0"),
            "--partitions 0: must be a whole number between 1 and 2147483647; leave the option",
        ),
        (("topic", "create", "a", "--partitions", "-1"), "--partitions -1: must be a whole number"),
        (("topic", "create", "a", "-r", "-1"), "-1: must be a whole number between 1 and 32767;"),
        (("topic", "create", "a", "-r", "0"), "0: must be a whole number between 1 and 32767;"),
        (("topic", "alter", "a", "-p", "-1"), "--partitions -1: must be a whole number between 1"),
        (("topic", "add-partitions", "a", "0"), "COUNT 0: must be a whole number between 1 and"),
        (("topic", "create", "a", "-p", "x"), "--partitions x: must be a whole number"),
        (("topic", "create", "a", "-r", "99999"), "--replication-factor 99999"),
        (("topic", "create", "a", "-c", "x"), "is not key=value, for example"),
        (("topic", "list", "-b", "nowhere"), "is not host:port, for example"),
        (("topic", "list", "-o", "xml"), "--output xml: must be table, wide, json, jsonl or csv"),
        (("topic", "delete", "a"), "add --yes"),
        (("ledger", "list", "-z", "grpc://host:99999"), "grpc://host:99999: must be host:port"),
        (("ledger", "list", "-z", "a:1,b:65536/c"), "a:1,b:65536/c: must be host:port"),
        (("topic", "shred", "a"), "no command shred; see `gateway topic --help`"),
        (("group", "describe", "g", "--members", "--state"), "pass only one of them"),
    ],
)
def test_wrong_usage_exits_with_2_and_names_the_word(words, hint):
    code, out, errors = invoke(*words)
    assert (code, out) == (2, "")
    assert hint in errors
    assert errors.count("\n") == 1


@pytest.mark.parametrize(
    ("words", "named"),
    [(("topic", "create", b"\xff\xfe"), r"\xff\xfe"), (("dev", "--host", b"\xff"), r"\xff")],
)
def test_a_word_that_is_no_text_exits_with_2_and_is_named(words, named):
    code, out, errors = run(*words)
    assert (code, out, errors.count("\n")) == (2, "", 1)
    assert f"gateway: {named}: is not valid UTF-8" in errors


@pytest.mark.parametrize("words", [["gateway", "--help"], ["gateway", "--version"]])
def test_a_full_disk_under_stdout_is_one_line_and_exit_code_74(words):
    assert to_full_disk(*words) == (74, "gateway: cannot write: No space left on device\n")


@pytest.mark.parametrize("words", [["--help"], ["serve", "--help"], ["audit", "--version"]])
def test_a_full_disk_under_the_stdout_of_bookie_too(words):
    assert to_full_disk("ledger", *words) == (
        *(74, "bookie: cannot write: No space left on device\n"),
    )


def test_a_list_that_cannot_be_written_is_one_line_or_json(gateway):
    bootstrap = f"127.0.0.1:{gateway.port}"
    words = ("gateway", "topic", "list", "-b", bootstrap)
    assert to_full_disk(*words) == (74, "gateway: cannot write: No space left on device\n")
    code, errors = to_full_disk(*words, "-o", "json")
    assert (code, json.loads(errors)["code"]) == (74, "DISK")


@pytest.mark.parametrize("words", [("ledger", "list"), ("ledger", "verify"), ("bookie", "list")])
def test_a_list_of_the_storage_that_cannot_be_written_is_one_line(gateway, words):
    full = "gateway: cannot write: No space left on device\n"
    assert to_full_disk("gateway", *words, "-z", gateway.ledgers) == (74, full)


def test_a_closed_stdout_ends_a_command_quietly():
    read_end, write_end = os.pipe()
    os.close(read_end)
    with os.fdopen(write_end, "w") as closed:
        argv = [install.gateway_python(), "-m", "gateway", "--help"]
        done = subprocess.run(argv, stdout=closed, stderr=subprocess.PIPE, timeout=60, check=False)
    assert done.stderr == b""


@pytest.mark.parametrize(
    ("host", "fault"),
    [("a b", ": must be a host name or an address"), ("a..b", " --port 0: cannot listen there: ")],
)
def test_a_host_that_cannot_be_one_is_named(host, fault, tmp_path):
    data = str(tmp_path / "data")
    words = ("--port", "0", "--metrics-port", "0", "--ledger-port", "0", "--allow-insecure")
    code, _, errors = run("dev", "--host", host, *words, "--data", data)
    assert code == 78
    assert errors.startswith(f"gateway: --host {host}{fault}")
    assert errors.count("\n") == 1


def test_help_loads_neither_the_protocol_nor_asyncio():
    program = (
        "import sys, gateway.__main__ as command\n"
        "sys.argv[1:] = ['topic', 'create', '--help']\n"
        "try: command.main()\n"
        "except SystemExit: pass\n"
        "heavy = {'asyncio', 'kio', 'pydantic', 'rich', 'structlog', 'typer'}\n"
        "print(sorted(heavy & set(sys.modules)))"
    )
    argv = [install.gateway_python(), "-c", program]
    out = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=True).stdout
    assert out.splitlines()[-1] == "[]"
    assert "--partitions" in out


def test_ctrl_c_exits_with_130_and_no_traceback(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as silent:
        silent.settimeout(60)
        port = silent.getsockname()[1]
        argv = heeding([install.gateway_python(), "-m", "gateway", "topic", "list"])
        with Process([*argv, "-b", f"127.0.0.1:{port}"], tmp_path / "log") as command:
            peer, _ = silent.accept()
            with peer:
                assert peer.recv(4)  # it has asked and now waits for an answer
                command.send_signal(signal.SIGINT)
                assert command.wait_exit(60.0) == 130
    assert "Traceback" not in command.output()


# Topics


def test_a_topic_is_created_listed_described_and_deleted(gateway):
    cli = partial(run, bootstrap=f"127.0.0.1:{gateway.port}")  # in processes, as users do
    code, out, _ = cli("topic", "create", "flow", "-p", "3", "-c", "retention.ms=3600000")
    assert (code, out) == (0, "Created topic flow.\n")
    code, out, _ = cli("topic", "list")
    assert code == 0
    assert ["flow", "3", "false"] in [line.split() for line in out.splitlines()]
    code, out, _ = cli("topic", "describe", "flow")
    assert code == 0
    assert "Configs: retention.ms=3600000" in out
    assert len(out.splitlines()) == 2 + 1 + 3
    code, out, _ = cli("topic", "delete", "flow", "--yes")
    assert (code, out) == (0, "Deleted topic flow.\n")
    code, _, errors = cli("topic", "describe", "flow")
    assert (code, errors) == (1, "gateway: Topic 'flow' does not exist; see `gateway topic list`\n")


def test_json_of_a_topic_has_everything(cli):
    code, out, _ = cli("topic", "create", "exact", "-p", "2", "-o", "json")
    assert code == 0
    made = json.loads(out)
    assert (made["name"], made["partitions"], made["replication_factor"]) == ("exact", 2, 1)
    code, out, _ = cli("topic", "describe", "exact", "-o", "json")
    assert code == 0
    described = json.loads(out)
    assert described["topic_id"] == made["topic_id"]
    assert described["configs"] == {}
    assert [row["partition"] for row in described["partitions"]] == [0, 1]
    assert [row["log_end_offset"] for row in described["partitions"]] == [0, 0]
    code, out, _ = cli("topic", "list", "-o", "json")
    assert {"name": "exact", "partitions": 2, "internal": False} in json.loads(out)


def test_the_servers_refusal_is_one_line_and_exit_code_1(cli):
    created(cli, "twice")
    assert cli("topic", "create", "twice") == (
        1,
        "",
        "gateway: Topic 'twice' already exists; pass --if-not-exists to leave it as it is\n",
    )
    code, _, errors = cli("topic", "create", "odd", "-c", "foo=1", "-o", "json")
    assert code == 1
    assert json.loads(errors) == {
        "error": "Unknown topic config name: foo",
        "code": "INVALID_CONFIG",
    }
    code, _, errors = cli("topic", "delete", "none", "--yes")
    assert code == 1
    assert errors == "gateway: Topic 'none' does not exist; see `gateway topic list`\n"


@pytest.mark.parametrize("words", [("topic", "list", "-b"), ("ledger", "list", "-z")])
def test_a_closed_pipe_ends_the_command_quietly(cli, gateway, words):
    created(cli, f"piped-{words[0]}")
    reading, writing = os.pipe()
    os.close(reading)
    place = gateway.ledgers if words[0] == "ledger" else gateway.bootstrap
    try:
        done = subprocess.run(
            [install.gateway_python(), "-m", "gateway", *words, place],
            stdout=writing,
            stderr=subprocess.PIPE,
            text=True,
            timeout=60,
            check=False,
        )
    finally:
        os.close(writing)
    assert (done.returncode, done.stderr) == (141, "")


# Groups


def test_a_query_of_spark_shows_what_it_fetches_next_and_says_so(cli, gateway):
    created(cli, "diary")
    produced(gateway, "diary", 10)
    name = "spark-kafka-relation-0f8fad5b-d9cb-469f-a165-70867728950e-executor"
    reader = consumer(gateway, name, f"consumer-{name}-1")
    reader.assign([TopicPartition("diary", 0, 4)])
    wait_until(lambda: reader.poll(0.1) is not None, "the query to read")
    reader.close()

    code, out, errors = cli("group", "describe", name, "-o", "json")
    assert code == 0
    assert errors == f"Group '{name}' commits nothing: this is what its clients fetch next.\n"
    (row,) = json.loads(out)
    assert (row["topic"], row["partition"], row["host"]) == ("diary", 0, "/127.0.0.1")
    assert row["client_id"] == f"consumer-{name}-1"
    assert row["current_offset"] + row["lag"] == row["log_end_offset"] == 10


def test_a_group_without_members_shows_its_offsets_and_its_lag(cli, gateway):
    created(cli, "letters")
    produced(gateway, "letters", 10)
    reader = consumer(gateway, "post")
    reader.commit(offsets=[TopicPartition("letters", 0, 4)], asynchronous=False)
    reader.close()

    code, out, errors = cli("group", "describe", "post")
    assert code == 0
    assert errors == "Consumer group 'post' has no active members.\n"
    blank, heading, row = out.splitlines()
    assert blank == ""
    assert heading.split() == [
        "GROUP",
        "TOPIC",
        "PARTITION",
        "CURRENT-OFFSET",
        "LOG-END-OFFSET",
        "LAG",
        "CONSUMER-ID",
        "HOST",
        "CLIENT-ID",
    ]
    assert row.split() == ["post", "letters", "0", "4", "10", "6", "-", "-", "-"]
    assert row.index("letters") == heading.index("TOPIC") == 16
    code, out, _ = cli("group", "list", "-o", "json")
    assert code == 0
    assert "post" in [group["group"] for group in json.loads(out)]


def test_a_group_with_a_member_shows_who_holds_what(cli, gateway):
    created(cli, "parcels", "-p", "2")
    produced(gateway, "parcels", 3)
    reader = consumer(gateway, "couriers")
    try:
        reader.subscribe(["parcels"])
        wait_until(lambda: reader.poll(0.1) and reader.assignment(), "an assignment")
        reader.commit(offsets=[TopicPartition("parcels", 0, 1)], asynchronous=False)
        code, out, errors = cli("group", "describe", "couriers", "-o", "json")
        assert (code, errors) == (0, "")
        rows = json.loads(out)
        assert [(row["partition"], row["current_offset"], row["lag"]) for row in rows] == [
            (0, 1, 2),
            (1, None, None),
        ]
        assert {row["client_id"] for row in rows} == {"reader"}
        code, out, _ = cli("group", "describe", "couriers", "--members", "-o", "json")
        (member,) = json.loads(out)
        assert (member["client_id"], member["partitions"]) == ("reader", 2)
        code, out, _ = cli("group", "describe", "couriers", "--state")
        assert code == 0
        assert out.splitlines()[1].split()[-2:] == ["STATE", "#MEMBERS"]
        assert out.splitlines()[2].split()[-2:] == ["Stable", "1"]
        assert f"127.0.0.1:{gateway.port} (0)" in out
    finally:
        reader.close()


def test_a_group_that_nobody_made_does_not_exist(cli):
    code, out, errors = cli("group", "describe", "nobody")
    assert (code, out) == (1, "")
    assert errors == "gateway: Consumer group 'nobody' does not exist; see `gateway group list`\n"
