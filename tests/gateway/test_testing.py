"""Goal: an application's tests get a real gateway of their own, and leave nothing behind.

Method: `gateway.testing` is used as an application uses it; pytest and its workers are started for
tests of an application in a directory of its own. Clients are librdkafka's.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from gateway.testing import Gateway, GatewayFailed
from tests.documents import code_blocks
from tests.house import read_sources
from tests.peers.processes import Process, wait_until

pytestmark = pytest.mark.process

HOLDS_ONE = """
import signal, sys
from gateway.testing import Gateway
gateway = Gateway(data=sys.argv[1]).start()
print("HOLDS", gateway.pid, gateway.bootstrap, flush=True)
signal.pause()
"""


FORKS = """
import os, signal, sys
from gateway.testing import Gateway
gateway = Gateway(data=sys.argv[1]).start()
child = os.fork()
if not child:
    gateway.stop()
    signal.pause()
print("HOLDS", gateway.pid, gateway.bootstrap, child, flush=True)
signal.pause()
"""


def write(bootstrap: str, topic: str, value: bytes) -> None:
    producer = Producer({"bootstrap.servers": bootstrap, "acks": "all"})
    producer.produce(topic, value, partition=0)
    assert producer.flush(30.0) == 0


def values_in(bootstrap: str, topic: str, count: int) -> list[bytes]:
    """The first values of partition 0, read without a group."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "unused"})
    consumer.assign([TopicPartition(topic, 0, 0)])
    found: list[bytes] = []

    def enough() -> bool:
        record = consumer.poll(1.0)
        if record is not None and record.error() is None:
            found.append(record.value())
        return len(found) >= count

    try:
        wait_until(enough, f"{count} records of {topic}")
    finally:
        consumer.close()
    return found


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def test_records_are_written_and_read_and_nothing_is_left(monkeypatch, tmp_path):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with Gateway() as gateway:
        write(gateway.bootstrap, "orders", b"3 apples")
        assert values_in(gateway.bootstrap, "orders", 1) == [b"3 apples"]
        pid = gateway.pid
        assert is_alive(pid)
        assert len(list(tmp_path.iterdir())) == 1
    assert not is_alive(pid)
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(GatewayFailed, match="not running: use it in a `with` block"):
        _ = gateway.bootstrap


def test_after_a_kill_it_goes_on_with_its_records_at_the_same_address():
    with Gateway() as gateway:
        write(gateway.bootstrap, "orders", b"1")
        before = gateway.bootstrap
        gateway.kill()
        gateway.start()
        assert gateway.bootstrap == before
        write(gateway.bootstrap, "orders", b"2")
        assert values_in(gateway.bootstrap, "orders", 2) == [b"1", b"2"]


def test_its_own_directory_outlives_it(tmp_path):
    gateway = Gateway(["--partitions", "3"], data=tmp_path / "kept")
    for value in (b"1", b"2"):
        with gateway:
            write(gateway.bootstrap, "orders", value)
            topics = AdminClient({"bootstrap.servers": gateway.bootstrap}).list_topics(timeout=60)
            assert len(topics.topics["orders"].partitions) == 3
    assert (tmp_path / "kept" / "metadata.sqlite").exists()


def test_two_run_beside_each_other():
    with Gateway() as first, Gateway() as second:
        write(first.bootstrap, "orders", b"first")
        write(second.bootstrap, "orders", b"second")
        assert values_in(first.bootstrap, "orders", 1) == [b"first"]
        assert values_in(second.bootstrap, "orders", 1) == [b"second"]


def test_a_start_that_fails_says_why_and_leaves_nothing(monkeypatch, tmp_path):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    gateway = Gateway(["--bookies", "2"])
    with pytest.raises(GatewayFailed, match=r"ended with 78\n +gateway: --bookies 2: must be 1 or"):
        gateway.__enter__()
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(GatewayFailed, match=r"did not start within 0\.001 s"):
        Gateway(start_s_max=0.001).__enter__()
    assert list(tmp_path.iterdir()) == []


def test_a_second_start_is_refused_and_takes_nothing_from_the_first():
    with Gateway() as gateway:
        write(gateway.bootstrap, "orders", b"1")
        for again in (gateway.start, gateway.__enter__):
            with pytest.raises(GatewayFailed, match="started already: stop it first"):
                again()
        gateway.kill()
        gateway.start()
        assert values_in(gateway.bootstrap, "orders", 1) == [b"1"]
        gateway.stop()
        gateway.stop()
        assert gateway.log.count("gateway started") == 2


def test_an_end_that_nobody_asked_for_is_an_error():
    gateway = Gateway().start()
    os.kill(gateway.pid, signal.SIGKILL)
    wait_until(lambda: has_ended(gateway), "the gateway ends")
    with pytest.raises(GatewayFailed, match="the gateway ended with -9\n    gateway started"):
        _ = gateway.bootstrap
    with pytest.raises(GatewayFailed, match="the gateway had ended with -9"):
        gateway.stop()
    gateway.stop()


def has_ended(gateway: Gateway) -> bool:
    try:
        return gateway.pid < 0
    except GatewayFailed:
        return True


def test_a_fork_neither_stops_it_nor_keeps_it_alive(tmp_path):
    """Children of multiprocessing inherit the pipe by which the gateway sees its owner's end."""
    argv = [sys.executable, "-c", FORKS, str(tmp_path / "data")]
    with Process(argv, tmp_path / "holder.log") as holder:
        holder.wait_output("HOLDS", 60.0)
        _, pid, bootstrap, child = holder.output().split()
        write(bootstrap, "orders", b"1")
        assert is_alive(int(child))
        holder.send_signal(signal.SIGKILL)
        wait_until(lambda: not is_alive(int(pid)), "the gateway ends")
        os.kill(int(child), signal.SIGKILL)


@pytest.mark.parametrize(
    ("options", "python", "fault"),
    [
        (["--partitions", "6"], "/no/such/python", "cannot run /no/such/python: No such file"),
        (["--no-such-option"], sys.executable, r"ended with 2\n +gateway: no option --no-such-opt"),
    ],
)
def test_what_cannot_run_is_named(options, python, fault, monkeypatch, tmp_path):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with pytest.raises(GatewayFailed, match=fault):
        Gateway(options, python=python).start()
    assert list(tmp_path.iterdir()) == []


def test_variables_of_other_gateways_do_not_matter(monkeypatch):
    monkeypatch.setenv("GATEWAY_HOST", "no host")
    monkeypatch.setenv("GATEWAY_PARTITIONS", "0")
    with Gateway() as gateway:
        assert gateway.bootstrap.startswith("127.0.0.1:")


def test_options_are_words():
    with pytest.raises(TypeError, match=r"a list of words, such as \['--partitions', '6'\]"):
        Gateway("--partitions 6")


def test_a_folder_named_gateway_does_not_hide_it(monkeypatch, tmp_path):
    (tmp_path / "gateway").mkdir()
    (tmp_path / "gateway" / "__init__.py").write_text("raise RuntimeError('not this one')")
    monkeypatch.chdir(tmp_path)
    with Gateway() as gateway:
        write(gateway.bootstrap, "orders", b"1")
        assert values_in(gateway.bootstrap, "orders", 1) == [b"1"]


def test_it_ends_with_the_process_that_started_it_even_killed(tmp_path):
    argv = [sys.executable, "-c", HOLDS_ONE, str(tmp_path / "data")]
    with Process(argv, tmp_path / "holder.log") as holder:
        holder.wait_output("HOLDS", 60.0)
        _, pid, bootstrap = holder.output().split()
        write(bootstrap, "orders", b"1")
        holder.send_signal(signal.SIGKILL)
        holder.wait_exit(60.0)
        wait_until(lambda: not is_alive(int(pid)), "the gateway ends")
    with Gateway(data=tmp_path / "data") as gateway:
        assert values_in(gateway.bootstrap, "orders", 1) == [b"1"]


def test_stdin_that_cannot_end_is_refused(tmp_path):
    argv = [sys.executable, "-m", "gateway", "dev", "--until-stdin-ends", "--port", "0"]
    with open(os.devnull) as nothing:
        done = subprocess.run(
            [*argv, "--data", str(tmp_path / "data")],
            stdin=nothing,
            capture_output=True,
            text=True,
            timeout=60.0,
        )
    fault = "gateway: --until-stdin-ends: stdin is neither a pipe nor a socket\n"
    assert (done.returncode, done.stderr) == (78, fault)


# -- the fixtures ---------------------------------------------------------------------------------

OF_AN_APPLICATION = """
import sys
import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient

@pytest.mark.parametrize("number", range(4))
def test_orders(ledger_gateway, ledger_topic, number, worker_id):
    server = {"bootstrap.servers": ledger_gateway.bootstrap}
    producer = Producer(server)
    producer.produce(ledger_topic("orders"), b"1")
    assert producer.flush(60) == 0
    topic = AdminClient(server).list_topics(ledger_topic("orders"), timeout=60)
    assert ledger_topic("orders") == ledger_topic("orders")
    print(f"USED {worker_id} {ledger_gateway.bootstrap} {ledger_topic('orders')}")
"""
IDLE = """
import sys

def test_nothing():
    names = ("gateway.testing", "gateway.process", "ledger", "kio", "aiokafka")
    loaded = [name for name in sys.modules if name in names]
    assert "gateway.testing.plugin" in sys.modules
    assert loaded == ["gateway.testing"], loaded
"""


def pytest_in(directory: Path, text: str, *words: str) -> str:
    """Run pytest as an application does, which has only installed the package."""
    (directory / "test_application.py").write_text(text)
    (directory / "pytest.ini").write_text("[pytest]\n")
    plugins = ["-p", "gateway.testing.plugin", "-p", "no:randomly"]
    argv = [sys.executable, "-m", "pytest", "-q", "-rP", *plugins, *words]
    env = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST")}
    done = subprocess.run(
        argv, cwd=directory, env=env, capture_output=True, text=True, timeout=300.0
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def of_the_page(info: str) -> str:
    (page,) = read_sources(["docs/testing-applications.md"])
    (text,) = [block.text for block in code_blocks(page) if block.info == info]
    return text


def test_the_programs_of_the_page_run_as_written(tmp_path):
    argv = [sys.executable, "-c", of_the_page("python")]
    done = subprocess.run(argv, cwd=tmp_path, capture_output=True, text=True, timeout=60.0)
    assert (done.returncode, done.stdout) == (0, "0 records are left\n"), done.stderr
    assert "1 passed" in pytest_in(tmp_path, of_the_page("python pytest"), "-n", "0")


@pytest.mark.proof
def test_each_worker_has_a_gateway_and_each_test_topics_of_its_own(tmp_path):
    said = pytest_in(tmp_path, OF_AN_APPLICATION, "-n", "2")
    used = [line.split()[1:] for line in said.splitlines() if line.startswith("USED ")]
    assert len(used) == 4
    workers = {worker: bootstrap for worker, bootstrap, _ in used}
    assert len(set(workers.values())) == len(workers) == 2
    assert {(worker, bootstrap) for worker, bootstrap, _ in used} == set(workers.items())
    topics = [(bootstrap, topic) for _, bootstrap, topic in used]
    assert len(set(topics)) == 4
    assert all(topic.startswith("test_orders_") for _, topic in topics)


def test_the_plugin_loads_nothing_before_a_test_asks_for_it(tmp_path):
    assert "1 passed" in pytest_in(tmp_path, IDLE, "-n", "0")
