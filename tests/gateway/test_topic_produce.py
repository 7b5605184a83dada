"""Goal: `topic produce` writes what it is given, counts what is acknowledged, and fails in a line.

Method: the command as users run it, in a process of its own, against a real gateway and against
Apache Kafka; librdkafka reads back.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
from contextlib import suppress
from pathlib import Path

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
)

from gateway.admin.record_json import Record, encode_record
from tests.gateway.admin_commands import invoke
from tests.gateway.produce_command import (
    argv,
    created,
    end_offset,
    produce,
    records,
    running,
    values,
)
from tests.peers.gateway import Gateway
from tests.peers.kafka import FOR_TESTS, ApacheKafka
from tests.peers.processes import wait_until
from tests.sim.seeds import first_at_commit

MEMORY_BYTES_MAX = 64 * 2**20 + 2**20  # and the largest record
LIMIT = 1048588  # Kafka's default of max.message.bytes
RESTRICTED = {
    **FOR_TESTS,
    "auto.create.topics.enable": "false",
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "allow.everyone.if.no.acl.found": "true",
}
# A commit copies records from Apache Kafka to Apache Kafka; every case on it is a proof.
ON_KAFKA = (pytest.mark.compat, pytest.mark.proof)


@pytest.fixture(scope="module")
def gateway(tmp_path_factory):
    with Gateway(tmp_path_factory.mktemp("data"), ["--no-auto-create"]) as broker:
        yield broker


@pytest.fixture(scope="module")
def kafka(tmp_path_factory):
    with ApacheKafka(tmp_path_factory.mktemp("kafka") / "data", RESTRICTED) as broker:
        yield broker


@pytest.fixture(params=["gateway", pytest.param("kafka", marks=ON_KAFKA)])
def broker(request):
    return request.getfixturevalue(request.param)


@pytest.fixture
def topic(broker):
    """The name of a new topic with one partition."""
    return created(broker)


# What is written


def test_lines_are_written_in_order_and_counted(broker, topic):
    code, out, errors = produce(broker, topic, data=b"a\n\n\xff\0\r\nlast")
    assert (code, out, errors) == (0, f"wrote 4 records to {topic}\n", "")
    assert values(broker, topic) == [b"a", b"", b"\xff\0\r", b"last"]


def test_nothing_is_written_from_an_empty_input(broker, topic):
    assert produce(broker, topic) == (0, f"wrote 0 records to {topic}\n", "")


@pytest.mark.parametrize("codec", first_at_commit(["zstd", "gzip", "none", "snappy", "lz4"], 2))
def test_every_codec_is_read_back(broker, topic, codec):
    data = b"".join(b"a line that is like the others %d\n" % number for number in range(20_000))
    code, _, errors = produce(broker, topic, "--compression", codec, data=data)
    assert (code, errors) == (0, "")
    assert values(broker, topic) == data.splitlines()


def test_options_give_records_what_they_do_not_have(broker):
    topic = created(broker, "-p", "3")
    words = ["-K", ":", "-H", "trace=a1", "-H", "trace=a=2", "-p", "2"]
    code, _, errors = produce(broker, topic, *words, "--timestamp", "2026-01-01", data=b"ann:3:4\n")
    assert (code, errors) == (0, "")
    headers = [("trace", b"a1"), ("trace", b"a=2")]
    assert records(broker, topic, 3) == [(2, 0, b"ann", b"3:4", headers, 1767225600000)]


def test_json_lines_keep_all_that_a_record_has(broker):
    topic = created(broker, "-p", "2")
    own = {
        "topic": "elsewhere",
        "offset": 99,
        "partition": 1,
        "timestamp": 1767225600000,
        "key": "/w==",
        "key_encoding": "base64",
        "value": None,
        "headers": [["h", None], ["h", {"base64": "/w=="}]],
    }
    data = json.dumps(own).encode() + b'\n{"value": null, "partition": 0, "timestamp": 7}'
    code, _, errors = produce(broker, topic, "-i", "jsonl", data=data)
    assert (code, errors) == (0, "")
    assert records(broker, topic, 2) == [
        (0, 0, None, None, None, 7),
        (1, 0, b"\xff", None, [("h", None), ("h", b"\xff")], 1767225600000),
    ]


def test_csv_and_raw_files_are_written(broker, topic, tmp_path):
    table, image = tmp_path / "a.csv", tmp_path / "b.bin"
    table.write_text('key,value,header.trace\nann,"3\napples",a1\n')
    image.write_bytes(b"line\nline\n\0")
    assert produce(broker, topic, "-i", "csv", str(table))[0] == 0
    assert produce(broker, topic, "-i", "raw", str(image), str(image))[0] == 0
    assert [each[2:5] for each in records(broker, topic)] == [
        (b"ann", b"3\napples", [("trace", b"a1")]),
        *2 * [(None, b"line\nline\n\0", None)],
    ]


def test_tombstones_are_null_values(broker, topic):
    assert produce(broker, topic, "--tombstone", data=b"ann\nbob")[0] == 0
    assert produce(broker, topic, "--tombstone", "--key", "eve", data=b"unread")[0] == 0
    pairs = [(each[2], each[3]) for each in records(broker, topic)]
    assert pairs == [(b"ann", None), (b"bob", None), (b"eve", None)]


def test_records_with_a_key_go_where_kafkas_clients_send_them(broker):
    topic, other = created(broker, "-p", "5"), created(broker, "-p", "5")
    keys = [b"%d" % number for number in range(50)]
    assert produce(broker, topic, "--tombstone", data=b"\n".join(keys))[0] == 0
    java = {"bootstrap.servers": broker.bootstrap, "partitioner": "murmur2_random"}
    producer = Producer(java)
    for key in keys:
        producer.produce(other, key=key)
    assert producer.flush(60) == 0
    places, wanted = ({each[2]: each[0] for each in records(broker, t, 5)} for t in (topic, other))
    assert places == wanted


@pytest.mark.parametrize("acks", ["all", "1", "0"])
def test_each_kind_of_acknowledgement_is_counted(broker, topic, acks):
    code, out, _ = produce(broker, topic, "--acks", acks, "-o", "json", data=b"a\nb\n")
    offsets = {"first_offset": 0, "last_offset": 1}
    if acks == "0":
        offsets = dict.fromkeys(offsets)
    assert code == 0
    assert json.loads(out) == {
        "topic": topic,
        "records": 2,
        "bytes": 2,
        "skipped": 0,
        "unacknowledged": 0,
        "partitions": {"0": {**offsets, "records": 2}},
    }
    wait_until(lambda: end_offset(broker, topic) == 2, "both records to be there")


def test_json_lines_on_stdout_have_each_offset_and_timestamp(broker, topic):
    code, out, _ = produce(broker, topic, "-o", "jsonl", "--timestamp", "5", data=b"a\nb\n")
    assert code == 0
    assert [json.loads(line) for line in out.splitlines()] == [
        {"topic": topic, "partition": 0, "offset": offset, "timestamp": 5} for offset in (0, 1)
    ]


def test_the_time_of_the_append_is_shown_where_the_topic_has_it(broker):
    topic = created(broker, "-c", "message.timestamp.type=LogAppendTime")
    code, out, _ = produce(broker, topic, "-o", "jsonl", "--timestamp", "5", data=b"a\n")
    assert code == 0
    assert json.loads(out)["timestamp"] == records(broker, topic)[0][5] > 5


def test_a_rate_is_kept(broker, topic):
    code, _, _ = produce(broker, topic, "--rate", "100", data=b"a\n" * 60)
    times = [each[5] for each in records(broker, topic)]
    assert (code, len(times)) == (0, 60)
    assert times[-1] - times[0] >= 580  # milliseconds for 59 steps


# Bad input


def test_a_bad_line_ends_the_command_after_the_records_before_it(broker, topic):
    data = b'{"value": "a"}\n{"value": 3 apples}\n{"value": "b"}\n'
    code, out, errors = produce(broker, topic, "-i", "jsonl", data=data)
    assert (code, out) == (65, f"wrote 1 record to {topic}\n")
    assert errors == "gateway: line 2 column 13: not JSON: Expecting ',' delimiter\n"
    assert values(broker, topic) == [b"a"]


def test_a_bad_line_of_a_file_is_named_with_its_file(gateway, tmp_path):
    topic, file = created(gateway), tmp_path / "orders.jsonl"
    file.write_bytes(b'{"value": "\xff"}')
    code, out, errors = produce(gateway, topic, "-i", "jsonl", str(file), "-o", "json")
    assert (code, json.loads(out)["records"]) == (65, 0)
    assert json.loads(errors) == {
        "error": f"{file}: line 1 column 12: not UTF-8",
        "code": "BAD_INPUT",
    }


def test_bad_lines_are_skipped_and_the_first_twenty_are_named(gateway):
    topic = created(gateway)
    data = b"a:b\n" + 25 * b"none\n" + b"c:d\n"
    code, out, errors = produce(gateway, topic, "-K:", "--skip-bad", data=data)
    assert (code, out) == (0, f"wrote 2 records to {topic}, skipped 25 bad lines\n")
    lines = errors.splitlines()
    assert lines[0] == "gateway: line 2: no ':' between a key and a value; skipped"
    assert lines[20:] == ["gateway: 5 more bad lines were skipped"]


def test_a_header_row_that_names_no_column_is_never_skipped(gateway):
    topic = created(gateway)
    code, _, errors = produce(gateway, topic, "-i", "csv", "--skip-bad", data=b"valeu\na\n")
    assert (code, errors[:42]) == (65, "gateway: line 1: no column 'valeu' in a re")


@pytest.mark.parametrize(
    "data",
    [b"\xff\xfe\n", b"\0\n", b'{"value": "a", "offset": ' + b"9" * 5000 + b"}", b"[" * 99_999],
    ids=["not UTF-8", "NUL", "digits", "nesting"],
)
def test_hostile_json_is_one_line(gateway, data):
    code, _, errors = produce(gateway, created(gateway), "-i", "jsonl", data=data)
    assert (code, errors.count("\n"), len(errors) < 400) == (65, 1, True)


def test_a_record_that_is_too_large_is_named_with_its_size(broker, topic):
    fits = b"x" * (LIMIT - 72)  # its batch has exactly as many bytes as the topic takes
    data = fits + b"\n" + fits + b"xxxx\n"
    code, out, errors = produce(broker, topic, data=data)
    assert (code, out) == (1, f"wrote 1 record to {topic}\n")
    line = f"line 2: the record has {LIMIT + 4} bytes, and {topic} takes at most {LIMIT}"
    assert errors == f"gateway: {line} (max.message.bytes)\n"
    assert len(values(broker, topic)[0]) == len(fits)


def test_a_line_of_50_mb_is_refused_with_its_size_and_little_memory(gateway):
    topic = created(gateway)
    with running(gateway, topic) as child:
        child.stdin.write(b"a\n" + b"x" * 50_000_000)
        child.stdin.flush()
        wait_until(lambda: end_offset(gateway, topic) == 1, "the line before to be written")
        assert peak_bytes(child.pid) < MEMORY_BYTES_MAX
        _, errors = child.communicate(timeout=60)
    assert child.returncode == 1
    assert "line 2: the record has 50000000 bytes, and" in errors.decode()


def test_a_topic_with_a_higher_limit_takes_larger_records(broker):
    topic = created(broker, "-c", "max.message.bytes=5000000")
    code, _, errors = produce(broker, topic, data=b"x" * 4_000_000)
    assert (code, errors) == (0, "")
    assert len(values(broker, topic)[0]) == 4_000_000


def test_a_compacted_topic_takes_no_record_without_a_key(broker):
    topic = created(broker, "-c", "cleanup.policy=compact")
    code, _, errors = produce(broker, topic, data=b"a\n")
    reason = f"{topic} is compacted, and takes no record without a key"
    assert (code, errors) == (1, f"gateway: line 1: {reason}\n")


# Servers that refuse


@pytest.mark.proof
def test_a_topic_that_does_not_exist_is_reported_within_seconds(broker):
    code, out, errors = produce(broker, "nowhere", data=b"a\n")
    fix = "create it with gateway topic create nowhere"
    assert (code, out, errors) == (1, "", f"gateway: nowhere does not exist; {fix}\n")


def test_a_topic_is_created_where_the_server_does_so(tmp_path):
    with Gateway(tmp_path / "data") as creating:
        written, created_it = "wrote 1 record to fresh\n", "gateway: created topic fresh\n"
        assert produce(creating, "fresh", data=b"a\n") == (0, written, created_it)
        assert produce(creating, "fresh", data=b"a\n") == (0, written, "")
        assert values(creating, "fresh") == [b"a", b"a"]


def test_a_partition_that_does_not_exist_is_reported_with_their_number(broker, topic):
    reason = f"{topic} has no partition 7; it has 1, numbered from 0"
    code, out, errors = produce(broker, topic, "-p", "7", data=b"a\n")
    assert (code, out, errors) == (1, "", f"gateway: {reason}\n")
    data = b'{"value": "a"}\n{"value": "b", "partition": 7}\n'
    code, out, errors = produce(broker, topic, "-i", "jsonl", data=data)
    assert (code, out) == (1, f"wrote 1 record to {topic}\n")
    assert errors == f"gateway: line 2: {reason}\n"


def test_without_a_server_the_exit_code_is_69():
    code, out, errors = produce("127.0.0.1:1", "orders", data=b"a\n")
    assert (code, out, errors.count("\n")) == (69, "", 1)
    assert "no server at 127.0.0.1:1: Connection refused; start one with `gateway dev`" in errors


@pytest.mark.parametrize("name", ["gateway", pytest.param("kafka", marks=ON_KAFKA)])
def test_what_consume_prints_as_json_lines_produce_writes_again(name, request):
    broker = request.getfixturevalue(name)
    first, second = created(broker), created(broker)
    lines = [
        encode_record(Record(b"3 apples", b"ann", [("trace", b"a1"), ("trace", None)])),
        encode_record(Record(None, b"\xff\x00")),
        encode_record(Record(bytes(range(256)) * 400, None)),
    ]
    data = "".join(f"{line}\n" for line in lines).encode()
    assert produce(broker, first, "-i", "jsonl", data=data)[0] == 0
    words = ("topic", "consume", first, "-o", "jsonl", "-q")
    code, printed, errors = invoke(*words, bootstrap=broker.bootstrap)
    assert code == 0, errors
    assert produce(broker, second, "-i", "jsonl", data=printed.encode())[0] == 0
    assert records(broker, second) == records(broker, first)
    assert len(records(broker, first)) == 3


@pytest.mark.compat
@pytest.mark.proof
@pytest.mark.parametrize("may_describe", [True, False])
def test_without_authorization_the_exit_code_is_77(kafka, may_describe):
    topic = created(kafka)
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap})
    granted = [acl(topic, "User:bob", AclOperation.WRITE)]
    if may_describe:
        granted.append(acl(topic, "User:ANONYMOUS", AclOperation.DESCRIBE))
    for each in admin.create_acls(granted).values():
        each.result(60)
    code, out, errors = produce(kafka, topic, data=b"a\n")
    assert (code, errors.count("\n")) == (77, 1)
    assert out == (f"wrote 0 records to {topic}\n" if may_describe else "")
    assert "TOPIC_AUTHORIZATION_FAILED" in errors


def acl(topic, principal, operation):
    place = (ResourceType.TOPIC, topic, ResourcePatternType.LITERAL)
    return AclBinding(*place, principal, "*", operation, AclPermissionType.ALLOW)


def test_a_server_that_dies_meanwhile_is_reported_with_what_was_written(tmp_path):
    with Gateway(tmp_path / "data") as dying:
        topic = created(dying)
        with running(dying, topic, "--timeout", "1s") as child:
            child.stdin.write(b"a\n")
            child.stdin.flush()
            wait_until(lambda: end_offset(dying, topic) == 1, "the first record")
            dying.kill()
            out, errors = child.communicate(b"b\nc\n", timeout=60)
    assert (child.returncode, out.decode()) == (69, f"wrote 1 record to {topic}\n")
    late = f"{topic} did not acknowledge the record of line 2 within 1s"
    unknown = "2 records without acknowledgement may be written"
    assert errors.decode() == f"gateway: {late}; {unknown}\n"


def test_a_port_that_answers_nothing_is_interrupted_at_once():
    with socket.create_server(("127.0.0.1", 0)) as silent:
        silent.settimeout(60)
        with running(f"127.0.0.1:{silent.getsockname()[1]}", "orders") as child:
            peer, _ = silent.accept()
            with peer:
                assert peer.recv(4)
                child.send_signal(signal.SIGINT)
                assert child.wait(60) == 130
                assert child.stderr.read() == b""


# Files, pipes and terminals


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        (("/no/such/file",), "/no/such/file: No such file or directory"),
        (("/",), "/: Is a directory"),
        (("-i", "xml"), "--input xml: must be lines, jsonl, csv, avro or raw"),
        (("-K", ":", "--key", "a"), "--key-separator and --key: pass only one of them"),
        (("-K", ":", "-i", "csv"), "--key-separator is for lines, and --input is csv"),
        (("-K", ""), "--key-separator must not be empty"),
        (("-H", "trace"), "--header 'trace' is not name=value"),
        (("--timestamp", "soon"), "--timestamp soon: 'soon' is not a time"),
        (("--tombstone", "-i", "raw"), "--tombstone and --input raw: a tombstone has no value"),
        (("--tombstone", "--key", "a", "-"), "--tombstone: pass --key, or a FILE"),
        (("--acks", "2"), "--acks 2: must be all, 1 or 0"),
        (("--rate", "0"), "--rate 0: must be a whole number between 1 and"),
        (("-o", "xml"), "--output xml: must be table, json or jsonl"),
    ],
)
def test_wrong_usage_exits_with_2_and_names_the_word(words, hint):
    code, out, errors = produce("127.0.0.1:1", "orders", *words)
    assert (code, out, errors.count("\n")) == (2, "", 1)
    assert hint in errors


def test_stdin_that_is_closed_is_named():
    command = subprocess.list2cmdline(argv("127.0.0.1:1", "orders"))
    done = subprocess.run(["sh", "-c", f"{command} <&-"], capture_output=True, timeout=60)
    assert (done.returncode, done.stderr) == (2, b"gateway: stdin is closed; name a FILE\n")


def test_a_named_pipe_is_read_to_its_end(gateway, tmp_path):
    topic, pipe = created(gateway), tmp_path / "pipe"
    os.mkfifo(pipe)
    with running(gateway, topic, str(pipe)) as child:
        with pipe.open("wb") as writer:
            writer.write(b"a\nb")
        out, errors = child.communicate(timeout=60)
    assert (out.decode(), errors) == (f"wrote 2 records to {topic}\n", b"")


def test_ctrl_c_counts_what_was_acknowledged(broker, topic):
    with running(broker, topic) as child:
        child.stdin.write(b"a\nb\n")
        child.stdin.flush()
        wait_until(lambda: end_offset(broker, topic) == 2, "both lines to be written")
        child.send_signal(signal.SIGINT)
        assert child.wait(60) == 130
        assert child.stdout.read() == b""
        assert child.stderr.read().decode() == f"wrote 2 records to {topic}\n"


@pytest.mark.parametrize("form", first_at_commit(["table", "json", "jsonl"], 1))
def test_a_closed_stdout_ends_the_command_quietly(gateway, form):
    read_end, write_end = os.pipe()
    os.close(read_end)
    words = (gateway, created(gateway), "-o", form)
    with os.fdopen(write_end, "w") as closed, running(*words, stdout=closed) as child:
        _, errors = child.communicate(b"a\n", timeout=60)
    assert (child.returncode, errors) == (141, b"")


@pytest.mark.parametrize("form", first_at_commit(["table", "json", "jsonl"], 1))
def test_a_full_disk_under_stdout_is_one_line(gateway, form):
    words = (gateway, created(gateway), "-o", form)
    with open("/dev/full", "w") as full, running(*words, stdout=full) as child:
        _, errors = child.communicate(b"a\n", timeout=60)
    assert child.returncode == 74
    assert errors.count(b"\n") == 1
    assert b"cannot write: No space left on device" in errors


def test_a_person_gets_the_offset_of_each_line(broker, topic):
    ours, theirs = os.openpty()
    with running(broker, topic, stdin=theirs, stdout=theirs) as child:
        os.close(theirs)
        shown = b""
        for offset in range(2):
            os.write(ours, b"a line\n")
            while f"{topic}/0 offset {offset}".encode() not in shown:
                shown += os.read(ours, 4096)
        os.write(ours, b"\x04")
        assert child.wait(60) == 0
        assert child.stderr.read() == b""
    with suppress(OSError):  # EIO: nothing holds the other side
        shown += os.read(ours, 4096)
    os.close(ours)
    assert b"wrote" not in shown
    assert values(broker, topic) == [b"a line", b"a line"]


@pytest.mark.parametrize("quiet", [True, False])
def test_progress_is_shown_on_a_terminal_unless_it_is_quiet(gateway, quiet):
    topic = created(gateway)
    ours, theirs = os.openpty()
    words = ["--rate", "20", *(["-q"] if quiet else [])]
    command = argv(gateway, topic, *words)
    done = subprocess.run(command, input=b"a\n" * 20, stdout=subprocess.PIPE, stderr=theirs)
    os.close(theirs)
    shown = b""
    with suppress(OSError):
        while piece := os.read(ours, 4096):
            shown += piece
    os.close(ours)
    assert (done.returncode, done.stdout.decode()) == (0, f"wrote 20 records to {topic}\n")
    assert (b"records written" in shown) is not quiet
    assert shown.endswith(b"\r") is not quiet


# Long input


def peak_bytes(pid):
    status = Path(f"/proc/{pid}/status").read_text()
    line = next(each for each in status.splitlines() if each.startswith("VmHWM"))
    return int(line.split()[1]) * 1024


@pytest.mark.proof
@pytest.mark.parametrize("line_bytes", [1_000, 100])
def test_100_mb_through_a_pipe_take_little_memory(gateway, line_bytes):
    topic = created(gateway)
    lines = 100_000_000 // line_bytes
    block = b"".join(b"%0*d\n" % (line_bytes - 1, number) for number in range(lines // 100))
    with running(gateway, topic) as child:
        for _ in range(100):
            child.stdin.write(block)
        child.stdin.flush()
        wait_until(lambda: end_offset(gateway, topic) == lines, "all lines", 60, pause_s=0.2)
        assert peak_bytes(child.pid) < MEMORY_BYTES_MAX
        out, _ = child.communicate(timeout=60)
    assert out.decode() == f"wrote {lines} records to {topic}\n"


@pytest.mark.proof
def test_many_partitions_share_the_bound_of_memory(gateway):
    topic = created(gateway, "-p", "200")
    block = b"".join(b"%d:%099d\n" % (number % 997, number) for number in range(100_000))
    with running(gateway, topic, "-K:", "-o", "json", stdout=subprocess.DEVNULL) as child:
        for _ in range(3):
            child.stdin.write(block)
        child.stdin.flush()
        assert peak_bytes(child.pid) < MEMORY_BYTES_MAX
        child.stdin.close()
        child.stdin = None
        assert child.wait(60) == 0
