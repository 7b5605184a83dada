"""Goal: an application needs one import and an address to read topics and to keep logs of its own,
and the programs of docs/native_api.md do what the document says.

Method: the programs run as written, but for the addresses, against a real `gateway dev` and
against a real ZooKeeper with three bookies.
"""

import ast
import json
import subprocess

import pytest
from confluent_kafka import Producer

from gateway.native import EARLIEST, GapKind, InvalidArgument, JobError, Offset, connect
from tests.documents import code_blocks
from tests.house import ROOT, read_sources
from tests.peers import install
from tests.peers.bookie import BookieProcess
from tests.peers.gateway import Gateway
from tests.peers.processes import free_port

pytestmark = pytest.mark.real_loop

PROGRAM_S_MAX = 60.0
SHOWN_PORT = "grpc://127.0.0.1:3181"
SHOWN_CLUSTER = "zk://127.0.0.1:2181/cluster"


def blocks(info):
    (document,) = read_sources(["docs/native_api.md"])
    return [block.text for block in code_blocks(document) if block.info == info]


FOLLOW, RESUME, OWN_LOG = blocks("python native")


def waiting(program, timeout_s):
    """Return the program with a wait that no busy machine exceeds."""
    assert "timeout_s=3.0" in program
    return program.replace("timeout_s=3.0", f"timeout_s={timeout_s}")


def run(program, shown, address, work):
    assert shown in program
    script = work / "program.py"
    script.write_text(program.replace(shown, address))
    done = subprocess.run(
        [install.gateway_python(), str(script)],
        cwd=work,
        env={"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        timeout=PROGRAM_S_MAX,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def gateway(tmp_path_factory):
    data = tmp_path_factory.mktemp("native") / "data"
    with Gateway(data, ("--bookies", "3", "--journal-sync", "never")) as started:
        send(started, "flights", 5)
        yield started


def send(gateway, topic, count):
    """Send records one by one, so that each is a batch."""
    producer = Producer({"bootstrap.servers": gateway.bootstrap, "linger.ms": 0})
    for number in range(count):
        producer.produce(topic, b"%d" % number, partition=0)
        assert producer.flush(60) == 0


def test_a_program_follows_a_topic_and_counts_gaps(gateway, tmp_path):
    counted = ast.literal_eval(run(waiting(FOLLOW, 10.0), SHOWN_PORT, gateway.ledgers, tmp_path))
    assert counted.pop("records") == 5
    assert set(counted) <= {"BRIDGE"}  # another test may have restarted the gateway


def test_a_program_resumes_from_a_saved_dlsn(gateway, tmp_path):
    program = waiting(RESUME, 30.0)
    printed = [run(program, SHOWN_PORT, gateway.ledgers, tmp_path).strip() for _ in range(4)]
    assert printed == [f"offsets {n} to {n}" for n in range(4)]
    assert len(json.loads((tmp_path / "flights-0.json").read_text())) == 3


def test_a_program_keeps_a_log_of_its_own(zookeeper, tmp_path):
    place = zookeeper.servers + zookeeper.unused_chroot()
    started = []
    try:
        for number in range(3):
            name = f"b{number}"
            bookie = BookieProcess(tmp_path / name, place, name=name, session="20s")
            bookie.start()
            started.append(bookie)
        printed = run(OWN_LOG, SHOWN_CLUSTER, f"zk://{place}", tmp_path)
        (shown,) = blocks("text native")
        assert printed.strip() == shown.strip()
    finally:
        for bookie in started:
            bookie.kill()


async def test_a_completed_segment_of_a_topic_ends_with_a_bridge(gateway):
    send(gateway, "restarted", 2)
    gateway.stop()
    gateway.start()
    send(gateway, "restarted", 1)
    async with connect(gateway.ledgers) as logs:
        reader = await logs.topic_reader("restarted", 0)
        await reader.start(EARLIEST, Offset(2))
        kinds = []
        while not reader.ended:
            records, gap = await reader.read(10, 10.0)
            kinds += [record.offset for record in records] + ([gap.kind] if gap else [])
        assert kinds == [0, 1, GapKind.BRIDGE, 2]
        await reader.stop()


async def test_wrong_addresses_names_and_partitions_are_refused_with_the_remedy(gateway):
    async with connect(gateway.ledgers) as logs:
        with pytest.raises(InvalidArgument, match=r"flights has the partitions 0 to 0, not 3"):
            await logs.topic_reader("flights", 3)
        with pytest.raises(JobError, match="topic nowhere does not exist"):
            await logs.topic_reader("nowhere", 0)
        with pytest.raises(InvalidArgument, match="serves readers only: to write, connect to zk"):
            logs.writer("orders")
    with pytest.raises(JobError, match="must be zk://host:port"):
        async with connect("kafka://x"):
            raise AssertionError("connected")
    with pytest.raises(JobError, match="is `gateway dev` running"):
        async with connect(f"grpc://127.0.0.1:{free_port()}", connect_s=0.2):
            raise AssertionError("connected")
