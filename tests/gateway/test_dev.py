"""Goal: `gateway dev` starts fast, says where it is, ends well, and refuses with reasons.

Method: the real process on free loopback ports and a directory of its own, ended by its id.
"""

from __future__ import annotations

import contextlib
import re
import resource
import signal
import socket
import subprocess
import sys

import pytest
from confluent_kafka.admin import AdminClient

from gateway.process import dev
from gateway.wire.messages import decode_response, encode_request
from ledger.command_line.program import flags_of
from tests.peers.gateway import Gateway
from tests.peers.processes import Process

START_S_MAX = 60
COMMAND = [sys.executable, "-m", "gateway"]
PORTS = ["--port", "0", "--ledger-port", "0", "--no-http-port"]
IMPORTS = "import sys, gateway.process.embedded, gateway.process.assemble, gateway.handlers.table"
MODULES_MAX = 720


def ended(*arguments, interpreter=()):
    """Exit code and both outputs of a process that ends by itself."""
    done = subprocess.run(
        [sys.executable, *interpreter, "-m", "gateway", *arguments],
        capture_output=True,
        text=True,
        timeout=START_S_MAX,
    )
    return done.returncode, done.stdout, done.stderr


@contextlib.contextmanager
def started(data, *arguments):
    """A gateway that serves, its first line, and its port."""
    argv = [*COMMAND, "dev", *PORTS, "--data", str(data), *arguments]
    process = Process(argv, data.with_name("log"), errors=data.with_name("errors"))
    try:
        line = line_of(process, 1)
        found = re.search(r":(\d+) ", line)
        assert found, data.with_name("errors").read_text()
        yield process, line, int(found[1])
    finally:
        process.stop(START_S_MAX)


def line_of(process, number):
    """Return a line of the output, counted from 1, once it has come."""
    process.wait_for(lambda: process.output().count("\n") >= number, "its lines", START_S_MAX)
    return process.output().splitlines()[number - 1]


def ask(port, key, version, body):
    frame = encode_request(key, version, 1, "test", body)
    with socket.create_connection(("127.0.0.1", port), timeout=START_S_MAX) as peer:
        peer.sendall(len(frame).to_bytes(4, "big") + frame)
        stream = peer.makefile("rb")
        size = int.from_bytes(stream.read(4), "big")
        return decode_response(key, version, stream.read(size)).body


def test_it_says_where_it_listens_and_answers_there(tmp_path):
    with started(tmp_path / "data") as (process, line, port):
        assert line.startswith(f"gateway started: bootstrap.servers=127.0.0.1:{port} ")
        words = line_of(process, 2)
        assert re.search(r"Started Kafka API server", words)
        assert re.search(r"\[KafkaServer id=\d+\] started", words)
        served = {row.api_key: row for row in ask(port, 18, 0, {}).api_keys}
        assert (served[0].min_version, served[0].max_version) == (0, 13)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 0), (signal.SIGINT, 130)])
def test_a_signal_ends_it_cleanly(tmp_path, number, code):
    with (
        started(tmp_path / "data") as (process, _, port),
        socket.create_connection(("127.0.0.1", port)),
    ):
        process.send_signal(number)
        assert process.wait_exit(START_S_MAX) == code
    assert (tmp_path / "errors").read_text() == ""


def cpu_s():
    """Return the CPU seconds of all children that have ended."""
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return children.ru_utime + children.ru_stime


def test_starting_and_ending_takes_less_work_than_importing(tmp_path):
    imported: list[float] = []
    run: list[float] = []
    for turn in range(10):  # until one start was undisturbed
        before = cpu_s()
        subprocess.run([sys.executable, "-c", IMPORTS], check=True)
        between = cpu_s()
        with started(tmp_path / f"data-{turn}"):
            pass
        imported.append(between - before)
        run.append(cpu_s() - between)
        if turn >= 1 and min(run) < 2 * min(imported):
            break
    assert min(run) < 2 * min(imported)


def test_a_gateway_imports_few_modules():
    count = subprocess.check_output([sys.executable, "-c", f"{IMPORTS}; print(len(sys.modules))"])
    assert int(count) < MODULES_MAX


def test_the_start_waits_for_no_codec():
    codecs = "{'zstandard', 'cramjam', 're2'} & sys.modules.keys()"
    code = f"{IMPORTS}; gateway.handlers.table.rows(); print({codecs})"
    assert subprocess.check_output([sys.executable, "-c", code]) == b"set()\n"


def test_every_fault_of_the_configuration_is_listed(tmp_path):
    (tmp_path / "file").write_text("")
    code, out, err = ended(
        *("dev", "--port", "99999", "--bookies", "2", "--journal-sync", "maybe"),
        *("--partitions", "0", "--data", str(tmp_path / "file")),
    )
    assert (code, out) == (78, "")
    assert [line.split(":")[1].split()[0] for line in err.splitlines()] == [
        "--port",
        "--partitions",
        "--bookies",
        "--journal-sync",
        "--data",
    ]


@pytest.mark.parametrize("foreign", ["notes.txt", ".git", "VERSION", "log-00000001"])
def test_a_directory_that_holds_other_things_is_refused_and_left_alone(tmp_path, foreign):
    data = tmp_path / "data"
    (data / foreign).mkdir(parents=True)
    code, out, err = ended("dev", "--port", "0", "--data", str(data))
    assert (code, out) == (78, "")
    assert err == (
        f"gateway: --data {data}: not a gateway's directory: it contains {foreign}; name an empty "
        "or a new one\n"
    )
    assert [each.name for each in data.iterdir()] == [foreign]


def test_the_root_of_the_machine_is_refused():
    code, out, err = ended("dev", "--port", "0", "--data", "/")
    assert (code, out) == (78, "")
    assert "--data /: not a gateway's directory: it contains " in err


def test_a_directory_of_a_cluster_and_a_start_that_was_cut_short_are_no_foreign_things(tmp_path):
    data = tmp_path / "data"
    for name in ("cluster", "lost+found", "bookie-1"):
        (data / name).mkdir(parents=True)
    with started(data):
        (data / "notes.txt").write_text("of a user, beside data that is in use")
    with started(data):
        assert (data / "notes.txt").exists()


def test_a_port_in_use_is_said_plainly(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        code, _, err = ended("dev", "--port", str(port), "--data", str(tmp_path / "data"))
    assert code == 78
    assert err.startswith(f"gateway: --port {port}: in use")
    assert len(err.splitlines()) == 1


def test_a_host_of_another_machine_is_said_plainly(tmp_path):
    code, _, err = ended("dev", "--port", "0", "--host", "192.0.2.1", "--data", str(tmp_path))
    assert code == 78
    assert len(err.splitlines()) == 1


def test_a_directory_in_use_is_said_plainly(tmp_path):
    with started(tmp_path / "data"):
        code, _, err = ended("dev", "--port", "0", "--data", str(tmp_path / "data"))
    assert code == 78
    assert err.startswith("gateway: --data ")
    assert "Traceback" not in err


def test_an_unknown_flag_is_a_usage_error():
    code, _, err = ended("dev", "--prot", "1")
    assert code == 2
    assert err.startswith("gateway: no option --prot: did you mean --port")
    assert err.count("\n") == 1


def test_values_that_cannot_be_read_are_all_listed():
    assert ended("dev", "--port", "many", "--data", "") == (
        *(78, ""),
        "gateway: --port many: must be a whole number between 0 and 65535\n"
        "gateway: --data : must not be empty\n",
    )


def test_a_host_that_no_client_can_look_up_is_refused():
    fault = "gateway: --advertised-host a b: must be a host name or an address\n"
    assert ended("dev", "--advertised-host", "a b") == (78, "", fault)
    assert ended("serve", "--zookeeper", "z:1", "--advertised-host", "a b") == (78, "", fault)
    code, _, err = ended("serve", "--zookeeper", "z:1", "--peer-host", "a b")
    assert (code, err) == (78, fault.replace("advertised", "peer"))


def test_without_assertions_it_does_not_start():
    code, _, err = ended("dev", interpreter=("-O",))
    assert code == 78
    assert "python -O" in err


def test_the_help_lists_all_commands():
    code, out, _ = ended("--help")
    assert code == 0
    assert {"dev", "topic", "group"} <= set(out.split())


def test_clients_are_told_the_advertised_address(tmp_path):
    words = ["--advertised-host", "broker.example", "--advertised-port", "19092"]
    with Gateway(tmp_path / "data", words) as gateway:
        found = AdminClient({"bootstrap.servers": gateway.bootstrap, "log_level": 0})
        (broker,) = found.list_topics(timeout=60).brokers.values()
        assert (broker.host, broker.port) == ("broker.example", 19092)


@pytest.mark.parametrize("port", ["0", "65536", "-1"])
def test_an_advertised_port_is_one_that_clients_can_connect_to(port):
    words = ["--advertised-port", port]
    (fault,) = dev.faults_of(dev.settings_of(flags_of(dev.dev, words)))
    assert fault == f"--advertised-port {port}: must be a whole number between 1 and 65535"
