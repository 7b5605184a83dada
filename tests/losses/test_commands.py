"""Goal: an operator finds a loss, reads why, accepts it and sees that it is settled.

Method: ZooKeeper and three bookies as real processes; a segment whose last entry no bookie ever
got; commands as users run them.
"""

import asyncio
import json
import os
import pty
import subprocess
from dataclasses import replace

import pytest

from gateway.topics.catalog import IDS, NAMES
from ledger.adapters.open_bookies import open_bookies
from ledger.adapters.system.clock import SystemClock
from ledger.client.client import LedgerClient
from ledger.client.config import LedgerClientConfig
from ledger.client.update_metadata import LedgerMetadataStore
from ledger.core.segments import decode_segment
from ledger.ports.bookies import BookieTransport
from ledger.registry.discovery import Discovery
from ledger.sealed import seal
from ledger.streams.config import StreamConfig
from ledger.streams.segment_store import create_streams, log_root
from ledger.streams.stream import Stream, StreamServices
from tests.command_output import check_output
from tests.ledger.follow_rig import NoState, data_of
from tests.ledger.zookeeper_rig import lasting
from tests.losses.rig import STREAM, TOPIC, TOPIC_ID
from tests.peers import install
from tests.peers.bookie import BookieProcess

RECORDS = 5


async def write_and_lose(zookeeper):
    """A topic whose only segment lacks its last entry, offsets 5 to 7. Returns the ledger."""
    store = await lasting(zookeeper)
    discovery = Discovery(store)
    await discovery.start()
    bookies = open_bookies(discovery.registered, BookieTransport.TCP, None)
    client = LedgerClient(store, bookies, SystemClock())
    topic = {"name": TOPIC, "partitions": 1, "replication_factor": 3, "configs": {}}
    await store.create(f"{NAMES}/{TOPIC}", str(TOPIC_ID).encode(), parents=True)
    await store.create(f"{IDS}/{TOPIC_ID}", seal(topic), parents=True)
    await create_streams(store, [STREAM])
    services = StreamServices(store, client, SystemClock())
    config = StreamConfig(ensemble_size=3, write_quorum=3, ack_quorum=3)  # no copy is late
    stream = Stream(
        STREAM, services, lambda: config, NoState(), on_advanced=lambda end: None, on_failed=print
    )
    await stream.open(begin=True)
    if not stream.writable:
        await stream.begin()
    for number in range(RECORDS):
        done = asyncio.get_running_loop().create_future()
        data = data_of(number, number)
        stream.append((data,), len(data), 1, number, done.set_result)
        assert await done is None
    await stream.close()
    root = f"{log_root(STREAM)}/ledgers"
    [name] = await store.children(root)
    node = await store.get(f"{root}/{name}")
    segment = decode_segment(node.data, where=name)
    last = segment.last_entry + 1
    longer = replace(segment, last_entry=last, record_count=RECORDS + 3)
    await store.set(f"{root}/{name}", longer.encode(), node.version)
    ledgers = LedgerMetadataStore(store, LedgerClientConfig())
    stored = await ledgers.read(segment.ledger)
    await ledgers.update(stored, lambda metadata: replace(metadata, last_entry=last))
    await discovery.stop()
    await bookies.close()
    await store.close()
    return segment.ledger


def _rest(terminal):
    printed = b""
    while True:
        try:
            some = os.read(terminal, 4096)
        except OSError:  # the other end is closed
            return printed
        if not some:
            return printed
        printed += some


class Operator:
    def __init__(self, zookeeper):
        self.zookeeper = zookeeper

    def run(self, *words, code=0):
        """What a command printed, with stderr."""
        argv = [install.gateway_python(), "-m", "gateway", *words]
        environment = {**os.environ, "GATEWAY_ZOOKEEPER": self.zookeeper}
        done = subprocess.run(
            argv, env=environment, capture_output=True, text=True, timeout=120, check=False
        )
        assert "Traceback" not in done.stderr
        assert done.returncode == code, done.stdout + done.stderr
        check_output(words, done.stdout, code)
        return done.stdout + done.stderr

    def answer(self, text, *words):
        """What a command printed on a terminal, on which the answer to its question is typed."""
        ours, theirs = pty.openpty()
        argv = [install.gateway_python(), "-m", "gateway", *words]
        environment = {**os.environ, "GATEWAY_ZOOKEEPER": self.zookeeper}
        printed = b""
        with subprocess.Popen(
            argv, env=environment, stdin=theirs, stdout=theirs, stderr=theirs, close_fds=True
        ) as command:
            os.close(theirs)
            while b"to do it:" not in printed:
                printed += os.read(ours, 4096)
            os.write(ours, f"{text}\n".encode())
            printed += _rest(ours)
            assert command.wait(60) == 2
        os.close(ours)
        return " ".join(printed.decode().split())

    def json(self, *words, code=0):
        return json.loads(self.run(*words, "-o", "json", code=code))


@pytest.fixture
def operator(zookeeper, tmp_path):
    place = f"{zookeeper.servers}{zookeeper.unused_chroot()}"
    bookies = [
        BookieProcess(tmp_path / f"b{n}", place, (), name=f"b{n}", session="20s") for n in range(3)
    ]
    for bookie in bookies:
        bookie.begin()
    for bookie in bookies:
        bookie.wait_started()
    yield Operator(place)
    for bookie in bookies:
        bookie.stop()


def test_a_loss_is_found_explained_accepted_and_settled(operator):
    ledger = str(asyncio.run(write_and_lose(operator.zookeeper)))
    [row] = operator.json("topic", "gaps", TOPIC, code=1)
    assert (row["kind"], row["state"], row["offsets"]) == ("DATALOSS", "lost", [5, 7])
    assert {copy["answer"] for copy in row["evidence"]} == {"denied"}
    assert operator.json("ledger", "gaps", ledger, code=1)[0]["offsets"] == [5, 7]
    operator.run("ledger", "verify", ledger, code=1)
    assert "topic accept-loss log -p 0 --offsets 5-7" in operator.run("ledger", "why", ledger)
    asked = operator.run("topic", "accept-loss", TOPIC, "-p", "0", "--offsets", "5-7", code=2)
    assert "gives up offsets 5-7 of partition 0 of topic log for ever; add --yes" in asked
    question = operator.answer("no", "ledger", "recover", ledger, "--accept-loss")
    assert "of which no bookie has a readable copy" in question
    assert "nothing was done" in question
    words = ("topic", "accept-loss", TOPIC, "-p", "0")
    for offsets, hint in (
        ("5-8", "past the end 8"),
        ("4-7", "offset 4 is not lost"),
        ("6-7", "pass --offsets 5-7"),
    ):
        assert hint in operator.run(*words, "--offsets", offsets, "--yes", code=1)
    assert "Accepted the loss of offsets 5-7" in operator.run(*words, "--offsets", "5-7", "--yes")
    assert "no change" in operator.run(*words, "--offsets", "5-7", "--yes")
    [row] = operator.json("topic", "gaps", TOPIC)
    assert row["state"] == "accepted"
    verified = operator.run("ledger", "verify")
    assert "Accepted losses, which are no damage" in verified
    assert "clean" in verified
    read = operator.run("ledger", "read", ledger, "--stats")
    assert "DATALOSS" in read
    assert "accepted by" in read
    assert "BYTES SERVED" in read


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        (("-p", "0", "--offsets", "7-5"), "5 is before 7"),
        (("-p", "0", "--offsets", "-1-5"), "must be FIRST-LAST"),
        (("-p", "0", "--offsets", "5"), "must be FIRST-LAST"),
        (("-p", "0", "--offsets", "0-9223372036854775807"), "offsets are below"),
        (("-p", "-1", "--offsets", "0-1"), "must be"),
        (("--offsets", "0-1"), "--partition"),
        (("-p", "0"), "--offsets"),
        (("-p", "0", "--offsets", "0-1", "-z", "grpc://127.0.0.1:1"), "for reading only"),
    ],
)
def test_wrong_usage_exits_with_2_and_names_the_word(words, hint):
    argv = [install.gateway_python(), "-m", "gateway", "topic", "accept-loss", TOPIC, *words]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert hint in done.stderr
