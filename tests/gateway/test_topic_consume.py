"""Goal: `gateway topic consume` prints what clients wrote, as kcat does, and ends as it says.

Method: librdkafka writes to a gateway process and to Apache Kafka; the command runs as users run
it, and its output is compared with what was written and with kcat's. Fake servers send damaged
batches, and end in the middle.
"""

from __future__ import annotations

import json
import os
import pty
import select
import signal
import subprocess
from contextlib import contextmanager

import pytest
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from gateway.admin.record_json import decode_record
from tests.command_output import check_output
from tests.gateway.admin_commands import heeding, invoke
from tests.peers import install
from tests.peers.gateway import Gateway
from tests.peers.kafka import ApacheKafka
from tests.peers.processes import Process, free_port, wait_until
from tests.sim.seeds import first_at_commit

pytestmark = pytest.mark.compat
BINARY = bytes(range(256))
FIRST_MS = 1_600_000_000_000
TIMEOUT_S = 60


# Every case on Apache Kafka is a proof; tests of `topic produce` read from it in each commit.
@pytest.fixture(scope="module", params=["gateway", pytest.param("kafka", marks=pytest.mark.proof)])
def server(request, tmp_path_factory):
    data = tmp_path_factory.mktemp(request.param) / "data"
    kind = {"gateway": Gateway, "kafka": ApacheKafka}[request.param]
    with kind(data) as broker:
        create(broker, "orders", 3)
        producer = writer(broker)
        for number in range(30):
            producer.produce(
                "orders",
                json.dumps({"order": {"id": number}}),
                key=f"k{number}" if number % 3 else None,
                partition=number % 3,
                timestamp=FIRST_MS + 1000 * number,
                headers=[("trace", str(number)), ("trace", "twice"), ("none", None)],
            )
        assert producer.flush(60) == 0
        yield broker


@pytest.fixture(scope="module")
def gateway(tmp_path_factory):
    with Gateway(tmp_path_factory.mktemp("alone") / "data") as broker:
        create(broker, "orders", 2)
        write(broker, "orders", [b"a", b"b\x1b[31m\xff"])
        yield broker


def create(broker, name, partitions=1):
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    kept = {"retention.ms": "-1"}  # records of 2020
    for made in admin.create_topics([NewTopic(name, partitions, 1, config=kept)]).values():
        made.result(60)


def writer(broker, **more):
    return Producer({"bootstrap.servers": broker.bootstrap, "linger.ms": 20, **more})


def write(broker, topic, values, **more):
    producer = writer(broker, **more)
    for value in values:
        producer.produce(topic, value, partition=0)
    assert producer.flush(60) == 0


def argv(*words):
    return heeding([install.gateway_python(), "-m", "gateway", "topic", "consume", *words])


def environment(broker):
    return {**os.environ, "GATEWAY_BOOTSTRAP": broker.bootstrap}


def consumed(broker, *words):
    """The bytes that the command prints."""
    done = subprocess.run(
        argv(*words), env=environment(broker), capture_output=True, timeout=TIMEOUT_S
    )
    assert (done.returncode, done.stderr) == (0, b"")
    check_output(("topic", "consume", *words), done.stdout.decode(errors="replace"))
    return done.stdout


def refused(broker, *words):
    return invoke("topic", "consume", *words, bootstrap=broker.bootstrap)


def numbers(broker, *words):
    """Return the numbers that the command prints, without a process of its own."""
    words = ("topic", "consume", "orders", "-f", "{value.order.id} ", *words)
    code, out, errors = invoke(*words, bootstrap=broker.bootstrap)
    assert (code, errors) == (0, "")
    return sorted(map(int, out.split()))


def by_kcat(broker, topic, template):
    words = ["-b", broker.bootstrap, "-C", "-t", topic, "-e", "-q", "-f", template]
    done = subprocess.run([install.kcat(), *words], capture_output=True, timeout=TIMEOUT_S)
    assert done.returncode == 0, done.stderr
    return done.stdout


# places


@pytest.mark.parametrize(
    ("words", "found"),
    [
        ((), range(30)),
        (("-p", "1"), range(1, 30, 3)),
        (("-p", "0,1-2", "--from", "9"), [27, 28, 29]),
        (("--from", "-1"), [27, 28, 29]),
        (("--from", "+8", "--to", "+9"), [24, 25, 26]),
        (("--to", "1"), [0, 1, 2]),
        (("--to", "-9"), [0, 1, 2]),
        (("--from", "end", "-q"), []),
        (("--from", "@2020-09-13T14:27:07+02:00"), range(27, 30)),
        (("--to", "@2020-09-13T12:26:43"), [0, 1, 2]),
        (("--from", "@-1m"), []),
        (("-p", "0", "-n", "3"), [0, 3, 6]),
        (("--isolation", "read_uncommitted"), range(30)),
        (("--key", "k2?"), [20, 22, 23, 25, 26, 28, 29]),
        (("--grep", r": 1[0-2]\D"), [10, 11, 12]),
        (("--header", "trace=7"), [7]),
        (("--header", "none", "--header", "trace=twice", "--key", "k1"), [1]),
        (("--key", "k*", "-p", "1", "-n", "2"), [1, 4]),
    ],
)
def test_the_records_between_two_places_are_printed(server, words, found):
    assert numbers(server, *words) == list(found)


def test_several_topics_and_patterns_are_read(server):
    create(server, "other.1")
    write(server, "other.1", [b"x"])
    lines = consumed(server, "orders", "other.1", "-f", "%t\n").split()
    assert lines.count(b"orders") == 30
    assert lines.count(b"other.1") == 1
    assert consumed(server, r"/other\.\d/", "-f", "%t %s") == b"other.1 x"
    code, _, errors = refused(server, "/nothing.*/")
    assert code == 1
    assert errors.startswith("gateway: no topic matches /nothing.*/; there are ")
    assert "orders" in errors
    assert "other.1" in errors


@pytest.mark.parametrize(
    "template", [r"%t/%p@%o %T [%k:%K] %s (%S) %h\n", r"100%% \x41\t%s\n", r"%o,%k\n"]
)
def test_a_format_prints_what_kcat_prints(server, template):
    ours, theirs = (
        sorted(found.splitlines())
        for found in (
            consumed(server, "orders", "-f", template),
            by_kcat(server, "orders", template),
        )
    )
    assert ours == theirs
    assert len(ours) == 30


def test_json_lines_are_what_was_written(server):
    create(server, "copied")
    records = [
        (None, b"key", []),
        (b"", b"", [("a", b"1"), ("a", b"2"), ("null", None), ("bytes", BINARY)]),
        (BINARY, BINARY, []),
        ("\u2028é\n".encode(), None, [("é", b"")]),
        (os.urandom(1000) * 950, None, []),
    ]
    producer = writer(server)
    for value, key, headers in records:
        producer.produce("copied", value, key=key, headers=headers, partition=0)
    assert producer.flush(60) == 0
    lines = consumed(server, "copied", "-o", "jsonl").decode().splitlines()
    found = [decode_record(line) for line in lines]
    assert [(each.value, each.key, list(each.headers)) for each in found] == records
    assert [(each.topic, each.partition, each.offset) for each in found] == [
        ("copied", 0, at) for at in range(5)
    ]
    assert json.loads(consumed(server, "copied", "-o", "json")) == [*map(json.loads, lines)]
    raw = b"".join((value or b"") + b"\n" for value, _, _ in records)
    assert consumed(server, "copied") == raw


@pytest.mark.parametrize("codec", first_at_commit(["zstd", "lz4", "none", "gzip", "snappy"], 2))
def test_every_codec_of_librdkafka_is_read(server, codec):
    create(server, f"by-{codec}")
    values = [b"%06d" % at * 15 for at in range(2_000)]
    write(server, f"by-{codec}", values, **{"compression.type": codec})
    assert consumed(server, f"by-{codec}").split() == values
    middle = consumed(server, f"by-{codec}", "--from", "777", "--to", "1333")
    assert middle.split() == values[777:1333]


def transaction(server, topic, name, values, *, commit):
    producer = writer(server, **{"transactional.id": name})

    def begun():
        try:
            producer.init_transactions(10)
        except KafkaException:  # the log of transactions is being created
            return False
        return True

    wait_until(begun, "transactions to begin")
    producer.begin_transaction()
    for value in values:
        producer.produce(topic, value, partition=0)
    assert producer.flush(60) == 0
    if commit is None:
        return producer
    _ = producer.commit_transaction(30) if commit else producer.abort_transaction(30)
    return None


def test_aborted_and_open_transactions_are_hidden_from_committed_readers(server):
    if isinstance(server, Gateway):
        assert invoke("feature", "describe", bootstrap=server.bootstrap)[0] == 0
    create(server, "paid")
    transaction(server, "paid", "one", [b"a", b"b"], commit=True)
    transaction(server, "paid", "two", [b"no", b"no"], commit=False)
    transaction(server, "paid", "one", [b"c"], commit=True)
    left_open = transaction(server, "paid", "three", [b"open"], commit=None)
    write(server, "paid", [b"behind"])
    assert wait_until(
        lambda: (found := consumed(server, "paid").split()) == [b"a", b"b", b"c"] and found,
        "the commit to be seen",
    )
    every = consumed(server, "paid", "--isolation", "read_uncommitted").split()
    assert every == [b"a", b"b", b"no", b"no", b"c", b"open", b"behind"]
    left_open.abort_transaction(30)
    wait_until(
        lambda: consumed(server, "paid").split() == [b"a", b"b", b"c", b"behind"],
        "the abort to be seen",
    )


# groups


def committed(server, group, topic, partitions=1):
    reader = Consumer({"bootstrap.servers": server.bootstrap, "group.id": group})
    places = [TopicPartition(topic, index) for index in range(partitions)]
    found = [each.offset for each in reader.committed(places, 30)]
    reader.close()
    return found


def test_a_group_commits_what_was_printed(server):
    words = ("orders", "-g", "readers", "-f", "{value.order.id} ")
    first = consumed(server, *words, "-n", "7").split()
    assert len(first) == 7
    assert sum(max(each, 0) for each in committed(server, "readers", "orders", 3)) == 7
    rest = consumed(server, *words).split()
    assert sorted(map(int, first + rest)) == list(range(30))
    assert committed(server, "readers", "orders", 3) == [10, 10, 10]
    assert consumed(server, *words) == b""


# the end


def interrupted(broker, tmp_path, *words, ready):
    """Ctrl-C once `ready` is in the output; exit code, output and errors."""
    errors = tmp_path / "errors"
    process = Process(argv(*words), tmp_path / "out", environment(broker), errors=errors)
    with process:
        process.wait_for(lambda: ready in process.log.read_bytes(), "records", TIMEOUT_S)
        process.send_signal(signal.SIGINT)
        code = process.wait_exit(TIMEOUT_S)
    return code, process.log.read_bytes(), errors.read_text()


def test_follow_goes_on_until_ctrl_c(server, tmp_path):
    create(server, "live")
    write(server, "live", [b"one"])
    errors = tmp_path / "errors"
    process = Process(
        argv("live", "--follow"), tmp_path / "out", environment(server), errors=errors
    )
    with process:
        for ready, more in ((b"one\n", [b"two", b"three"]), (b"three\n", [])):
            process.wait_for(lambda ready=ready: ready in process.log.read_bytes(), "records", 60)
            write(server, "live", more)
        process.send_signal(signal.SIGINT)
        code = process.wait_exit(TIMEOUT_S)
    out = process.log.read_bytes()
    assert (code, out) == (130, b"one\ntwo\nthree\n")
    assert errors.read_text() == "read 3 records of live\n"


def test_a_group_commits_before_ctrl_c_ends_it(server, tmp_path):
    create(server, "watched")
    write(server, "watched", [b"one", b"two"])
    words = ("watched", "--follow", "-g", "watchers")
    assert interrupted(server, tmp_path, *words, ready=b"two\n")[0] == 130
    assert committed(server, "watchers", "watched") == [2]


def test_an_array_is_closed_by_ctrl_c(gateway, tmp_path):
    words = ("orders", "--follow", "-o", "json")
    code, out, _ = interrupted(gateway, tmp_path, *words, ready=b'"offset": 1')
    assert (code, len(json.loads(out))) == (130, 2)


def test_an_offset_out_of_range_is_refused_with_the_range(server):
    code, out, errors = refused(server, "orders", "-p", "0", "--from", "11")
    assert (code, out) == (1, "")
    assert errors == "gateway: orders/0: offset 11 is past the end, 10 (the log begins at 0)\n"
    create(server, "cut")
    write(server, "cut", [b"a", b"b", b"c"])
    words = ("topic", "truncate", "cut", "--to", "2", "--yes")
    assert invoke(*words, bootstrap=server.bootstrap)[0] == 0
    code, _, errors = refused(server, "cut", "--from", "1", "-o", "json")
    assert code == 1
    assert json.loads(errors) == {
        "error": "cut/0: offset 1 is below the first, 2 (the log ends at 3)",
        "code": "OFFSET_OUT_OF_RANGE",
    }
    assert consumed(server, "cut") == b"c\n"


def test_a_reader_from_the_end_is_noted_to_end_at_once(gateway):
    note = "--from end without --follow ends at once; pass --follow to wait for new records\n"
    assert refused(gateway, "orders", "--from", "end") == (0, "", note)


def test_unknown_topics_and_partitions_name_what_exists(gateway):
    assert refused(gateway, "oders")[::2] == (
        1,
        "gateway: topic 'oders' does not exist; there is orders\n",
    )
    assert refused(gateway, "orders", "-p", "1-3")[::2] == (
        1,
        "gateway: orders has no partition 2-3; there are 0-1\n",
    )


def test_no_server_is_said_as_by_other_commands():
    expected = invoke("topic", "list", bootstrap=f"127.0.0.1:{free_port()}")
    code, out, errors = invoke("topic", "consume", "t", bootstrap="127.0.0.1:1")
    assert (code, out) == (69, "")
    assert errors.partition(": Connection")[2] == expected[2].partition(": Connection")[2] != ""


@pytest.mark.parametrize(
    ("words", "text"),
    [
        ((), "is missing"),
        (("--from", "x"), "--from x: must be start, end, an offset"),
        (("--to", "@x"), "--to @x:"),
        (("--from", "5", "--to", "3"), "--from 5 is behind --to 3"),
        (("--from", "-3", "--to", "-5"), "--from -3 is behind --to -5"),
        (("--from", "end", "--to", "start"), "--from end is behind --to start"),
        (("-p", "x"), "--partition x: must be partitions such as"),
        (("-f", "%y"), "--format %y: %y is unknown; known are %t %p %o %k"),
        (("-n", "0"), "--count 0: must be a whole number between 1"),
        (("-g", "g", "--from", "end"), "--from and --group exclude each other"),
        (("-g", "g", "-p", "0"), "--partition and --group exclude each other"),
        (("--follow", "--to", "5"), "--follow and --to exclude each other"),
        (("-f", "%s", "-o", "csv"), "--format and --output csv exclude each other"),
        (("--no-header",), "--no-header needs --output csv"),
        (("--value", "hex", "-o", "jsonl"), "--value hex and --output jsonl exclude"),
        (("--grep", "("), "--grep (: is no regular expression"),
        (("--header", "=x"), "--header =x: must be name=value"),
        (("-o", "xml"), "raw, table, jsonl, json or csv"),
    ],
)
def test_wrong_usage_is_one_line(words, text):
    topic = ("t",) if words else ()
    code, out, errors = invoke("topic", "consume", *topic, *words)
    assert (code, out, errors.count("\n")) == (2, "", 1)
    assert text in errors


@pytest.fixture(scope="module")
def long(server):
    """A topic that no pipe holds."""
    create(server, "long")
    write(server, "long", [b"x" * 1000] * 5000)


def test_a_closed_pipe_ends_it_silently(server, long):
    assert ended_by_its_reader(server, 1, b"x", "long") == (141, b"")


def test_a_pipe_that_is_closed_ends_it_while_it_waits(server):
    create(server, "quiet")
    write(server, "quiet", [b"one"])
    assert ended_by_its_reader(server, 9, b"one\n", "quiet", "--follow") == (141, b"")


def ended_by_its_reader(server, most, first, *words):
    """The exit code and stderr, after one read of at most `most` bytes gave `first`."""
    reader, closed = os.pipe()
    with subprocess.Popen(
        argv(*words), env=environment(server), stdout=closed, stderr=subprocess.PIPE
    ) as process:
        os.close(closed)
        assert os.read(reader, most) == first
        os.close(reader)
        errors = process.communicate(timeout=TIMEOUT_S)[1]
    return process.returncode, errors


def test_a_closed_stdout_is_no_traceback(gateway):
    words = ["bash", "-c", '"$@" >&-', "bash", *argv("orders")]
    done = subprocess.run(words, env=environment(gateway), capture_output=True, timeout=TIMEOUT_S)
    fault = b"gateway: stdout is closed, and records are printed to it\n"
    assert (done.returncode, done.stderr) == (2, fault)


@pytest.mark.parametrize(("more", "shown"), [((), True), (("-q",), False)])
def test_a_long_wait_is_shown_on_a_terminal(gateway, tmp_path, more, shown):
    with (
        terminal() as (ours, theirs),
        open(tmp_path / "out", "wb") as out,
        subprocess.Popen(
            argv("orders", "--follow", *more), env=environment(gateway), stdout=out, stderr=theirs
        ) as process,
    ):
        os.close(theirs)
        waits = bool(select.select([ours], [], [], TIMEOUT_S if shown else 3)[0])
        found = read_terminal(ours) if waits else b""
        process.send_signal(signal.SIGINT)
        assert process.wait(TIMEOUT_S) == 130
    assert (found == b"\rread 2 records, printed 2") == shown


def test_ctrl_c_ends_it_while_the_pipe_is_full(server, long):
    reader, full = os.pipe()
    with subprocess.Popen(
        argv("long"), env=environment(server), stdout=full, stderr=subprocess.PIPE
    ) as process:
        os.close(full)
        wait_until(lambda: bool(select.select([reader], [], [], 0)[0]), "the pipe to fill")
        process.send_signal(signal.SIGINT)
        errors = process.communicate(timeout=TIMEOUT_S)[1]
        os.close(reader)
    assert process.returncode == 130
    assert errors.startswith(b"read ")


def test_a_full_disk_is_said_in_one_line(gateway):
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            argv("orders"),
            env=environment(gateway),
            stdout=full,
            stderr=subprocess.PIPE,
            timeout=TIMEOUT_S,
        )
    assert done.returncode == 74
    assert done.stderr == b"gateway: cannot write: No space left on device\n"


@contextmanager
def terminal():
    ours, theirs = pty.openpty()
    try:
        yield ours, theirs
    finally:
        os.close(ours)


def read_terminal(ours):
    try:
        return os.read(ours, 4096)
    except OSError:  # the other end is closed
        return b""


def on_terminal(broker, *words):
    """What the command prints to a terminal of 80 columns."""
    found = b""
    with (
        terminal() as (ours, theirs),
        subprocess.Popen(argv(*words), env=environment(broker), stdout=theirs) as process,
    ):
        os.close(theirs)
        while piece := read_terminal(ours):
            found += piece
        assert process.wait(TIMEOUT_S) == 0
    return found.replace(b"\r\n", b"\n").decode()


def test_a_terminal_gets_no_control_characters(gateway):
    assert on_terminal(gateway, "orders", "-q") == "a\nb\\x1b[31m\\xff\n"
    assert on_terminal(gateway, "orders", "-f", r"%s\n") == "a\nb\\x1b[31m\\xff\n"
    assert consumed(gateway, "orders") == b"a\nb\x1b[31m\xff\n"


FORMS = ["raw", "table", "csv", "jsonl", "json"]
FORMATS = [["-o", each] for each in FORMS]
FORMATS += [["-f", r"%k %s %h {value.a} {key.a} {headers.h}\n"], ["-o", "csv", "--value", "json"]]


@pytest.mark.parametrize("words", first_at_commit(FORMATS, 3))
def test_no_form_prints_a_control_character_of_a_record_on_a_terminal(hostile, words):
    found = on_terminal(hostile, "hostile", "-q", *words)
    assert "v" in found
    assert [each for each in found if not each.isprintable() and each != "\n"] == []


@pytest.fixture(scope="module")
def hostile(tmp_path_factory):
    """A gateway with a topic of records that are full of control characters."""
    controls = "v" + "".join(map(chr, [*range(32), *range(127, 160), 0x2028, 0x202E]))
    inside = json.dumps({"a": controls}, ensure_ascii=False)
    with Gateway(tmp_path_factory.mktemp("hostile") / "data") as broker:
        create(broker, "hostile")
        producer = writer(broker)
        for text in (controls, inside, json.dumps({"a": controls})):
            headers = {"h": text, f"n{controls[2:]}": b"\x1b[31m\xff"}
            producer.produce("hostile", text, key=text, headers=headers, partition=0)
            producer.produce("hostile", text.encode() + b"\x1b\xff", key=b"\x9b\x1b", partition=0)
        assert producer.flush(60) == 0
        yield broker


# servers that fail


def test_a_server_that_is_killed_and_stays_away_is_said_in_one_line(tmp_path):
    with Gateway(tmp_path / "data") as broker:
        create(broker, "orders")
        write(broker, "orders", [b"one"])
        words = argv("orders", "--follow", "--retry", "1s")
        errors = tmp_path / "errors"
        with Process(words, tmp_path / "out", environment(broker), errors=errors) as process:
            process.wait_for(lambda: b"one" in process.log.read_bytes(), "a record", TIMEOUT_S)
            broker.kill()
            assert process.wait_exit(TIMEOUT_S) == 69
        assert process.log.read_bytes() == b"one\n"
        assert errors.read_text().startswith(
            f"gateway: the server at {broker.bootstrap} went away, and did not come back within 1 s"
        )
        assert errors.read_text().count("\n") == 1


def test_a_server_that_is_killed_and_comes_back_is_followed(tmp_path):
    with Gateway(tmp_path / "data") as broker:
        create(broker, "orders")
        write(broker, "orders", [b"one"])
        words = argv("orders", "--follow", "-n", "2", "-q")
        errors = tmp_path / "errors"
        with Process(words, tmp_path / "out", environment(broker), errors=errors) as process:
            process.wait_for(lambda: b"one" in process.log.read_bytes(), "a record", TIMEOUT_S)
            broker.restart(kill=True)
            write(broker, "orders", [b"two"])
            assert process.wait_exit(TIMEOUT_S) == 0
        assert process.log.read_bytes() == b"one\ntwo\n"
        assert errors.read_text() == ""
