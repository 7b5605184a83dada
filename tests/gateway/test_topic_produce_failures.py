"""Goal: what `topic produce` counts and names is what is in the topic, however the server fails.

Method: the command in a process of its own, against a real gateway that stands still or refuses.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from contextlib import closing, contextmanager, suppress
from fcntl import ioctl
from pathlib import Path
from termios import FIONREAD

import pytest
from aiokafka import errors
from aiokafka.producer.message_accumulator import BatchBuilder

from gateway.admin.client import AdminError, Unreachable
from gateway.admin.record_json import Record
from gateway.admin.record_writer import Place, RecordWriter, Totals, Watch
from tests.gateway.admin_commands import invoke
from tests.gateway.produce_command import argv, created, end_offset, produce, running, values
from tests.peers.gateway import Gateway
from tests.peers.processes import wait_until

ESTABLISHED = "01"  # a connection's state in /proc/net/tcp
REFUSED_MS = 9 * 10**15  # a time that the server refuses


@pytest.fixture(scope="module")
def gateway(tmp_path_factory):
    with Gateway(tmp_path_factory.mktemp("data"), ["--no-auto-create"]) as broker:
        yield broker


class Input:
    """A pipe whose reading end is kept, so that a test sees what was read."""

    def __init__(self):
        self.read_end, self._write_end = os.pipe()

    def end(self, data):
        """Write the last bytes."""
        os.write(self._write_end, data)
        os.close(self._write_end)

    def send(self, data):
        """Return once the command has read these bytes."""
        os.write(self._write_end, data)
        wait_until(lambda: not self._unread(), "the input to be read")

    def _unread(self):
        return int.from_bytes(ioctl(self.read_end, FIONREAD, bytes(4)), sys.byteorder)

    def close(self):
        os.close(self.read_end)


@contextmanager
def paused(gateway):
    gateway.pause()
    try:
        yield
    finally:
        gateway.resume()


def unread_bytes(gateway):
    """Return how many bytes of its clients wait in the receive queues of the gateway."""
    rows = [row.split() for row in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    port = f":{gateway.port:04X}"
    ours = [row for row in rows if row[3] == ESTABLISHED and row[1].endswith(port)]
    return sum(int(row[4].partition(":")[2], 16) for row in ours)


def stands(child):
    """Return whether the command still waits after a moment."""
    with suppress(subprocess.TimeoutExpired):
        child.wait(0.5)
    return child.returncode is None


@pytest.mark.parametrize("acks", ["all", "1"])
@pytest.mark.parametrize("lines", [[b"two\n"], [b"two\n", b"three\n"]], ids=["one", "two"])
def test_ctrl_c_during_the_last_flush_writes_no_record_twice(gateway, acks, lines):
    topic = created(gateway)
    pipe = Input()
    words = (gateway, topic, "--acks", acks)
    with closing(pipe), running(*words, stdin=pipe.read_end) as child:
        pipe.send(b"one\n")
        wait_until(lambda: end_offset(gateway, topic) == 1, "the first record")
        with paused(gateway):
            for line in lines:
                pipe.send(line)
            pipe.end(b"last\n")
            assert stands(child)
            child.send_signal(signal.SIGINT)
            assert stands(child)
        assert child.wait(60) == 130
        errors = child.stderr.read().decode()
    found = values(gateway, topic)
    assert errors == f"wrote {len(found)} records to {topic}\n"
    assert found == [b"one", *(line[:-1] for line in lines), b"last"][: len(found)]
    assert len(found) >= 2  # the last line is read once the one before it is under way


@pytest.mark.parametrize("words", [(), ("--acks", "1"), ("--compression", "zstd")])
@pytest.mark.parametrize("bad", [1, 101, 8999])
def test_records_before_a_refused_one_are_written_and_none_after_it(gateway, words, bad):
    topic = created(gateway)
    lines = [{"value": str(number), "timestamp": 5} for number in range(1, 9001)]
    lines[bad - 1]["timestamp"] = REFUSED_MS
    data = "".join(json.dumps(line) + "\n" for line in lines).encode()
    code, out, errors = produce(gateway, topic, "-i", "jsonl", *words, data=data)
    reason = f"{topic} refused the record of line {bad}: INVALID_TIMESTAMP"
    assert (code, errors) == (1, f"gateway: {reason}\n")
    assert out.startswith(f"wrote {bad - 1} record")
    assert values(gateway, topic) == [b"%d" % number for number in range(1, bad)]


# Outcomes that are unknown


def test_after_sigterm_the_unknown_outcomes_are_counted(gateway):
    topic = created(gateway)
    pipe = Input()
    with closing(pipe), running(gateway, topic, "-o", "json", stdin=pipe.read_end) as child:
        pipe.send(b"one\n")
        wait_until(lambda: end_offset(gateway, topic) == 1, "the first record")
        with paused(gateway):
            pipe.send(b"two\nthree\n")
            child.send_signal(signal.SIGTERM)
            assert stands(child)
            child.send_signal(signal.SIGTERM)
            assert child.wait(60) == 143
        found = json.loads(child.stderr.read())
    assert (found["records"], found["unacknowledged"]) == (1, 2)


def test_a_command_that_stood_still_itself_reads_the_acknowledgement(gateway):
    topic = created(gateway)
    pipe = Input()
    with closing(pipe), running(gateway, topic, "--timeout", "1s", stdin=pipe.read_end) as child:
        pipe.send(b"one\n")
        wait_until(lambda: end_offset(gateway, topic) == 1, "the first record")
        with paused(gateway):
            pipe.send(b"two\n")
            wait_until(lambda: unread_bytes(gateway), "the second record on its way")
            child.send_signal(signal.SIGSTOP)
        wait_until(lambda: end_offset(gateway, topic) == 2, "the second record")
        for _ in range(5):
            assert stands(child)
        child.send_signal(signal.SIGCONT)
        pipe.end(b"three\n")
        assert (child.wait(60), child.stderr.read()) == (0, b"")
        assert child.stdout.read().decode() == f"wrote 3 records to {topic}\n"


class FailingProducer:
    """aiokafka's producer, as the writer sees it, of which each batch fails."""

    _txn_manager = None

    def __init__(self, error):
        self._error = error

    def create_batch(self):
        return BatchBuilder(
            2**19, 0, is_transactional=False, key_serializer=None, value_serializer=None
        )

    async def send_batch(self, builder, topic, *, partition):
        if isinstance(self._error, AssertionError):
            raise self._error
        future = asyncio.get_running_loop().create_future()
        future.set_exception(self._error)
        return future


@pytest.mark.parametrize(
    ("error", "kind", "text", "unknown"),
    [
        (errors.RequestTimedOutError(), Unreachable, "did not acknowledge", 2),
        (errors.KafkaConnectionError(), Unreachable, "lines 1 to 2: the connection was lost", 2),
        (errors.NotEnoughReplicasAfterAppendError(), Unreachable, "did not acknowledge", 2),
        (errors.UnknownError(), Unreachable, "did not acknowledge", 2),
        (errors.TopicAuthorizationFailedError(), AdminError, "orders refused the records", 0),
        (errors.for_code(87)(), AdminError, "lines 1 to 2: INVALID_RECORD", 0),
        (AssertionError(), AdminError, "orders has no partition 3 any more; it was deleted", 0),
    ],
)
def test_only_a_definite_error_is_a_refusal(error, kind, text, unknown):
    async def failure():
        totals, watch = Totals(), Watch(print, print, print, timestamps=False)
        writer = RecordWriter(FailingProducer(error), "orders", 60.0, [3], totals, watch)
        for line in (1, 2):
            await writer.add(Record(b"a", headers=[]), 3, Place("-", line))
        await writer.flush()
        return writer.failure.result(), totals.unacknowledged

    found, unacknowledged = asyncio.run(failure())
    assert (type(found), unacknowledged) == (kind, unknown)
    assert text in str(found)


@pytest.mark.proof
def test_a_topic_that_was_deleted_meanwhile_is_named(gateway):
    topic, pipe = created(gateway), Input()
    words = (gateway, topic, "--timeout", "1s")
    with closing(pipe), running(*words, stdin=pipe.read_end) as child:
        pipe.send(b"one\n")
        wait_until(lambda: end_offset(gateway, topic) == 1, "the first record")
        delete = ("topic", "delete", topic, "--yes")
        assert invoke(*delete, bootstrap=gateway.bootstrap)[0] == 0
        pipe.end(b"two\n")
        assert child.wait(60) == 1
        assert f"{topic} has no partition 0 any more; it was" in child.stderr.read().decode()


def test_without_acknowledgements_the_records_are_sent_not_written(gateway):
    topic = created(gateway)
    code, out, errors = produce(gateway, topic, "--acks", "0", data=b"a\n")
    assert (code, out, errors) == (0, f"sent 1 record to {topic}\n", "")


# Input


def test_a_quote_that_is_never_closed_ends_the_command(gateway, tmp_path):
    topic, file = created(gateway), tmp_path / "orders.csv"
    file.write_bytes(b'value\na\n"b\nc\nd\n')
    code, out, errors = produce(gateway, topic, "-i", "csv", "--skip-bad", str(file))
    assert (code, out) == (65, f"wrote 1 record to {topic}\n")
    assert errors == f"gateway: {file}: lines 3 to 5: a quote is never closed\n"


def test_a_stderr_that_is_full_is_no_unreadable_input(gateway):
    topic = created(gateway)
    command = argv(gateway, topic, "-K:", "--skip-bad")
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            command, input=b"a\nb:c\n", stdout=subprocess.PIPE, stderr=full, timeout=60
        )
    assert done.stdout.decode() == f"wrote 1 record to {topic}, skipped 1 bad line\n"
    assert done.returncode == 0


def test_a_closed_stdout_is_refused_where_the_result_goes_to_it():
    command = subprocess.list2cmdline(argv("127.0.0.1:1", "orders", "-o", "jsonl"))
    done = subprocess.run(["sh", "-c", f"{command} >&-"], stderr=subprocess.PIPE, timeout=60)
    assert done.returncode == 2
    assert b"stdout is closed, and --output jsonl prints to it" in done.stderr


def test_an_empty_name_of_a_topic_is_wrong_usage():
    code, out, errors = produce("127.0.0.1:1", "")
    assert (code, out, errors) == (2, "", "gateway: the name of the topic is empty\n")
