"""Goal: whatever a server sends, `topic consume` ends with one line and the right exit code.

Method: a broker in this process sends damaged batches, errors, parts of responses, and nothing.
"""

from __future__ import annotations

import asyncio
import gzip
import json
import os
import subprocess
import time

import cramjam
import pytest
import zstandard

from gateway.admin.client import AdminClient
from gateway.admin.consume import Printer, Wanted, consume
from gateway.admin.consume_output import raw
from gateway.admin.consume_stdout import Stdout
from gateway.admin.consume_values import plain_bytes
from tests.batches import raw_batch, record
from tests.gateway.admin_commands import invoke
from tests.gateway.broken_broker import BrokenBroker
from tests.peers import install
from tests.peers.processes import status_bytes

GOOD = raw_batch(record(0, 0, None, b"good"), base_offset=0)
NEXT = raw_batch(record(0, 0, None, b"next"), base_offset=1)
DAMAGED = NEXT[:-3] + b"X" + NEXT[-2:]


def consumed(broker, *words):
    return invoke("topic", "consume", "t", "--retry", "300ms", *words, bootstrap=broker.bootstrap)


@pytest.mark.parametrize(
    ("records", "printed", "text"),
    [
        (DAMAGED, "", "gateway: t/0@1: the batch is damaged: its CRC-32C does not match\n"),
        (GOOD + DAMAGED, "good\n", "t/0@1: the batch is damaged: its CRC-32C does not match\n"),
        (b"\1" * 300, "", "gateway: t/0@0: the batch is damaged: message format 1"),
        (GOOD[:40], "", "gateway: t/0@0: the batch is damaged: 40 bytes hold no whole batch"),
        (GOOD + b"\0" * 100, "good\n", "t/0@1: the batch is damaged: message format 0"),
        (raw_batch(b"\1", attributes=4), "", "t/0@0: the batch is damaged: "),
        (raw_batch(b"\1", attributes=7), "", "t/0@0: the batch is damaged: codec 7 is unknown"),
    ],
)
def test_a_damaged_batch_is_named(records, printed, text):
    with BrokenBroker(records, end=2) as broker:
        code, out, errors = consumed(broker)
    assert (code, out) == (1, printed)
    assert text in errors
    assert errors.count("\n") == 1


def test_a_damaged_batch_behind_the_end_is_not_looked_at():
    with BrokenBroker(GOOD + DAMAGED, end=1) as broker:
        assert consumed(broker) == (0, "good\n", "")
    with BrokenBroker(GOOD + DAMAGED, end=2) as broker:
        assert consumed(broker, "-n", "1") == (0, "good\n", "")


def test_a_server_that_ends_within_its_answer_is_unreachable():
    with BrokenBroker(GOOD, cut=True) as broker:
        code, out, errors = consumed(broker)
    assert (code, out, errors.count("\n")) == (69, "", 1)
    assert "closed the connection" in errors


@pytest.mark.parametrize("records", [b"", GOOD])
def test_a_server_that_brings_nothing_more_is_not_waited_for(records):
    with BrokenBroker(records, end=5) as broker:
        code, out, errors = consumed(broker)
    assert (code, out) == (1, "good\n" if records else "")
    assert "although the log ends at 5" in errors
    assert errors.count("\n") == 1


@pytest.mark.parametrize(
    ("error", "code", "text"),
    [
        (29, 77, "t/0: TOPIC_AUTHORIZATION_FAILED"),
        (2, 1, "t/0@4: the batch is damaged: the server reports it"),
        (6, 1, "t/0: NOT_LEADER_OR_FOLLOWER"),
        (3, 1, "t/0: UNKNOWN_TOPIC_OR_PARTITION"),
    ],
)
def test_an_error_of_fetch_ends_it(error, code, text):
    with BrokenBroker(b"", first=4, end=5, error=error) as broker:
        found, out, errors = consumed(broker)
    assert (found, out, errors) == (code, "", f"gateway: {text}\n")


@pytest.mark.parametrize("failure", [{"error": 6}, {"error": 74}, {"cut": True}])
def test_a_leader_that_moved_is_followed(failure):
    with (
        BrokenBroker(GOOD) as new,
        BrokenBroker(GOOD, successor=new, **failure) as old,
    ):
        assert consumed(old) == (0, "good\n", "")
        assert (old.fetches, new.fetches) == (1, 1)


def test_a_second_outage_has_its_own_time_though_no_record_arrived():
    with BrokenBroker(GOOD, before=[None, b"", None]) as broker:
        words = ("--follow", "-n", "1", "--retry", "0s")
        assert consumed(broker, *words) == (0, "good\n", "")
        assert broker.fetches >= 4


def test_a_server_that_went_away_is_named_with_the_time_that_it_had():
    with BrokenBroker(b"", before=[GOOD, None, None]) as broker:
        code, out, errors = consumed(broker, "--follow", "--retry", "0s")
    assert (code, out, errors.count("\n")) == (69, "good\n", 1)
    text = f"the server at {broker.bootstrap} went away, and did not come back within 0 s"
    assert errors.startswith(f"gateway: {text}")


@pytest.mark.parametrize(
    ("later", "text"),
    [
        ((8, 10), "t/0: offset 4 is below the first, 8 (the log ends at 10)"),
        ((0, 2), "t/0: offset 4 is past the end, 2 (the log begins at 0)"),
    ],
)
def test_records_that_are_deleted_meanwhile_are_an_error_with_the_range(later, text):
    with BrokenBroker(b"", first=4, end=5, error=1, later=later) as broker:
        assert consumed(broker) == (1, "", f"gateway: {text}\n")


def test_an_error_is_json_with_the_form_json():
    with BrokenBroker(b"", end=5, error=29) as broker:
        code, out, errors = consumed(broker, "-o", "json")
    assert (code, json.loads(out)) == (77, [])
    assert (
        errors
        == '{"error": "t/0: TOPIC_AUTHORIZATION_FAILED", "code": "TOPIC_AUTHORIZATION_FAILED"}\n'
    )


def test_an_array_is_closed_by_an_error():
    with BrokenBroker(GOOD + DAMAGED, end=2) as broker:
        code, out, errors = consumed(broker, "-o", "json")
    assert (code, len(json.loads(out)), errors.count("\n")) == (1, 1, 1)


@pytest.mark.parametrize("output", ["json", "csv", "table"])
@pytest.mark.parametrize("words", [["-p", "7"], ["--from", "9"]])
def test_nothing_is_printed_if_there_is_nothing_to_read(output, words):
    with BrokenBroker(GOOD) as broker:
        code, out, errors = consumed(broker, "-o", output, *words)
    assert (code, out, errors.count("\n")) == (1, "", 1)


def test_other_tasks_have_their_turn_while_no_record_matches():
    records = b"".join(record(at, 0, None, b"v") for at in range(5000))
    turns, seen = 0, []

    def none(record):
        if record.offset % 1000 == 0:  # the first of those that are decoded together
            seen.append(turns)
            until_s = time.monotonic() + 0.06
            while time.monotonic() < until_s:
                pass
        return False

    async def count_turns():
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    async def work():
        counting = asyncio.create_task(count_turns())
        async with AdminClient(broker.bootstrap) as client:
            printer = Printer(Stdout(), raw(plain_bytes, exact=True), [none], None)
            await consume(client, Wanted(["t"]), printer)
        counting.cancel()

    with BrokenBroker(raw_batch(records, 5000), end=5000) as broker:
        asyncio.run(work())
    assert len(set(seen)) == 5


MIB = 1024 * 1024
LARGE = 200_000  # records of a batch
VALUE = bytes(1000)
BOUNDED = {
    "gzip": (1, lambda data: gzip.compress(data, 1)),
    "snappy": (2, lambda data: XERIAL + b"".join(map(block, cut(data)))),
    "zstd": (4, zstandard.ZstdCompressor().compress),
}
XERIAL = b"\x82SNAPPY\0" + bytes((0, 0, 0, 1)) * 2


def cut(data):
    return [data[at : at + 32_768] for at in range(0, len(data), 32_768)]


def block(data):
    packed = bytes(cramjam.snappy.compress_raw(data))
    return len(packed).to_bytes(4, "big") + packed


def peak_bytes(broker):
    """The most memory of the command, seen while its output is read, and the size of that."""
    argv = [install.gateway_python(), "-m", "gateway", "topic", "consume", "t"]
    environment = {**os.environ, "GATEWAY_BOOTSTRAP": broker.bootstrap}
    size = peak = 0
    with subprocess.Popen(argv, env=environment, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        while piece := process.stdout.read(MIB):
            size += len(piece)
            if len(piece) == MIB:  # it still has something to write
                peak = max(peak, status_bytes(process.pid, "VmHWM"))
    assert process.returncode == 0
    return peak, size


@pytest.mark.slow
@pytest.mark.parametrize("codec", sorted(BOUNDED))
def test_the_memory_is_bounded_although_a_batch_decompresses_to_200_mib(codec):
    number, compress = BOUNDED[codec]
    records = b"".join(record(at, 0, None, VALUE) for at in range(LARGE))
    batch = raw_batch(compress(records), LARGE, attributes=number)
    with BrokenBroker(batch, end=LARGE) as broker:
        peak, size = peak_bytes(broker)
    assert size == LARGE * (len(VALUE) + 1)
    assert peak < 64 * MIB + len(batch)


@pytest.mark.slow
@pytest.mark.parametrize("codec", [3, 4])
def test_a_record_of_128_mib_needs_at_most_five_times_its_size(codec):
    compress = {3: cramjam.lz4.compress, 4: zstandard.ZstdCompressor().compress}[codec]
    records = record(0, 0, None, bytes(128 * MIB))
    with BrokenBroker(raw_batch(bytes(compress(records)), attributes=codec)) as broker:
        peak, size = peak_bytes(broker)
    assert size == 128 * MIB + 1
    assert peak < 5 * 128 * MIB
