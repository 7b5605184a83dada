"""Goal: a cluster of this machine is found again by its directory, and nothing else is ever killed.

Method: the parts without a cluster: commands against those of the compose file, process ids of
short-lived children, ports that others have, states that are damaged.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading

import pytest

from gateway.process.local_cluster import launcher, state, zookeeper
from gateway.process.local_cluster.faults import CannotStart, LocalClusterError
from gateway.process.local_cluster.pids import ProcessId, identify
from gateway.process.local_cluster.ports import can_listen, choose_ports
from gateway.process.local_cluster.services import (
    AUDIT,
    SESSION,
    SHARED_DISK,
    ZOOKEEPER,
    Size,
    words_of,
)
from gateway.process.local_cluster.state import State
from tests.gateway.admin_commands import invoke
from tests.peers import bookie
from tests.peers.compose import commands, local_command
from tests.peers.processes import free_port, wait_until


def as_flags(words):
    """The words of a command without their order: flags with their values."""
    flags, at = {}, 0
    while at < len(words):
        valued = at + 1 < len(words) and not words[at + 1].startswith("--")
        flags[words[at]] = words[at + 1] if valued else None
        at += 2 if valued else 1
    return flags


def test_the_processes_are_those_of_the_compose_file(tmp_path):
    described = commands()
    size = Size()
    assert {*described, ZOOKEEPER} == set(size.names)
    assert SHARED_DISK == bookie.SHARED_DISK
    assert SESSION == bookie.SESSION
    ports = {name: 1000 + at for at, name in enumerate(size.names)}
    for name, words in described.items():
        local = local_command(words, f"127.0.0.1:{ports[ZOOKEEPER]}", tmp_path / name, ports[name])
        module, command, *rest = words_of(name, ports, tmp_path)
        assert [module, command] == local[2:4]
        assert as_flags(rest) == as_flags(local[4:])


@pytest.fixture
def child():
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    yield process
    process.kill()
    process.wait()
    process.stdin.close()


def test_a_process_is_known_by_its_start_and_its_boot(child):
    found = identify(child.pid)
    assert found is not None
    assert found.alive
    assert found.uptime_s is not None
    assert not found._replace(started=found.started + 1).alive
    assert not found._replace(boot="another").alive


def test_a_process_that_has_an_old_id_is_not_killed(child):
    found = identify(child.pid)
    assert not found._replace(started=found.started - 1).send(signal.SIGKILL)
    assert child.poll() is None
    assert found.send(signal.SIGKILL)
    wait_until(lambda: not found.alive, "the process to end")  # it is a zombie then
    assert not found.send(signal.SIGKILL)
    assert found.uptime_s is None


def test_an_old_id_that_is_a_thread_by_now_is_not_running(child):
    done = threading.Event()
    thread = threading.Thread(target=done.wait)
    thread.start()
    try:
        found = ProcessId(thread.native_id, 1, identify(child.pid).boot)
        assert not found.send(signal.SIGKILL)
        same = identify(thread.native_id)
        assert not same.send(signal.SIGKILL)
    finally:
        done.set()
        thread.join()


def test_a_process_whose_name_is_not_utf_8_is_known(child, tmp_path):
    program = tmp_path / os.fsdecode(b"a\xff")
    program.symlink_to(shutil.which("sleep"))
    sleeper = subprocess.Popen([program, "60"])
    try:
        assert identify(sleeper.pid).alive
    finally:
        sleeper.kill()
        sleeper.wait()


def test_no_process_is_killed_if_another_one_does_not_run(child, tmp_path):
    size = Size(1, 1)
    saved = State(size, dict.fromkeys(size.names, 1), {"gateway-1": identify(child.pid)})
    state.save(tmp_path, saved)
    with pytest.raises(LocalClusterError, match="bookie-1 does not run"):
        launcher.kill(tmp_path, ["gateway-1", "bookie-1"])
    assert child.poll() is None
    launcher.kill(tmp_path, ["gateway-1", "gateway-1"])
    assert child.wait() == -signal.SIGKILL


@pytest.fixture
def failing(tmp_path, monkeypatch):
    """A launcher whose ZooKeeper ends at once."""
    java = tmp_path / "bin" / "java"
    java.parent.mkdir()
    java.write_text("#!/bin/sh\nexit 3\n")
    java.chmod(0o755)
    (tmp_path / "zookeeper-3.9.3.jar").touch()
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    return launcher.Launcher(tmp_path / "c", lambda _: None, jars=tmp_path)


@pytest.mark.process
def test_a_start_that_fails_leaves_size_and_ports_as_they_were(failing):
    first, other = free_port(), free_port()
    saved = State(Size(1, 1), {"gateway-1": first, "bookie-1": free_port(), ZOOKEEPER: free_port()})
    failing.directory.mkdir()
    state.save(failing.directory, saved)
    with pytest.raises(LocalClusterError, match="zookeeper ended with 3"):
        failing.up(Size(1, 9), other)
    assert state.load(failing.directory) == saved


@pytest.mark.process
def test_a_first_start_that_fails_leaves_no_cluster(failing):
    with pytest.raises(LocalClusterError, match="zookeeper ended with 3"):
        failing.up(Size(1, 9), free_port())
    assert state.load(failing.directory) is None
    with pytest.raises(LocalClusterError, match="zookeeper ended with 3"):
        failing.up(Size(1, 1), free_port())


def test_a_state_is_read_as_it_was_written(tmp_path):
    saved = State(Size(2, 1), {"gateway-1": 1, "gateway-2": 2, ZOOKEEPER: 3})
    saved.processes[ZOOKEEPER] = ProcessId(1, 2, "boot")
    state.save(tmp_path, saved)
    assert state.load(tmp_path) == saved
    assert (tmp_path / "zookeeper.pid").read_text() == "1\n"
    assert (tmp_path / "env").read_text() == (
        "export GATEWAY_BOOTSTRAP=127.0.0.1:1,127.0.0.1:2\nexport GATEWAY_ZOOKEEPER=127.0.0.1:3\n"
    )
    saved.processes.clear()
    state.save(tmp_path, saved)
    assert not list(tmp_path.glob("*.pid"))


@pytest.mark.parametrize("text", ["", "[]", '{"version": 2}', '{"version": 1, "gateways": "x"}'])
def test_a_damaged_state_is_refused(tmp_path, text):
    (tmp_path / "cluster.json").write_text(text)
    code, out, errors = invoke("cluster", "status", "--data", str(tmp_path))
    assert (code, out) == (78, "")
    assert "cluster.json cannot be read" in errors
    assert errors.count("\n") == 1


@pytest.mark.parametrize("words", [("status",), ("down",), ("kill", "gateway-1")])
def test_without_a_cluster_a_command_says_how_to_start_one(tmp_path, words):
    place = tmp_path / "none"
    code, out, errors = invoke("cluster", *words, "--data", str(place))
    assert (code, out) == (1, "")
    assert "start one with `gateway cluster up`" in errors
    assert not place.exists()
    code, _, errors = invoke("cluster", *words, "--data", str(place), "-o", "json")
    assert json.loads(errors)["code"] == "NO_CLUSTER"


def test_a_wrong_name_is_a_usage_error(tmp_path):
    state.save(tmp_path, State(Size(1, 1), dict.fromkeys(Size(1, 1).names, 1)))
    code, _, errors = invoke("cluster", "kill", "gatway-1", "--data", str(tmp_path))
    assert (code, errors) == (
        2,
        "gateway: there is no process 'gatway-1': did you mean gateway-1?\n",
    )
    code, _, errors = invoke("cluster", "kill", "gateway-1", "--data", str(tmp_path))
    assert (code, errors) == (1, "gateway: gateway-1 does not run\n")


# ports


def test_gateways_follow_each_other_and_keep_their_ports(tmp_path):
    found, size, first = State(), Size(2, 1), 29_000
    choose_ports(tmp_path, found, size, first)
    assert [found.ports[name] for name in size.gateway_names] == [first, first + 1]
    assert set(found.ports) == {*size.names} - {AUDIT}
    before = dict(found.ports)
    choose_ports(tmp_path, found, size, None)
    assert found.ports == before


def test_a_port_of_a_gateway_that_another_has_is_refused(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert not can_listen(port)
        with pytest.raises(CannotStart, match=f"port {port} of gateway-1 is in use"):
            choose_ports(tmp_path, State(), Size(1, 1), port)


def test_gateways_do_not_take_the_port_of_another_process_of_the_cluster(tmp_path):
    found = State(Size(1, 1), {"gateway-1": 28_000, "bookie-1": 29_001, ZOOKEEPER: 28_500})
    before = dict(found.ports)
    with pytest.raises(CannotStart, match="port 29001 of gateway-2 is that of bookie-1"):
        choose_ports(tmp_path, found, Size(2, 1), 29_000)
    assert found.ports == before


def test_zookeeper_keeps_the_port_of_the_last_run_and_takes_another_if_it_is_taken(tmp_path):
    port = free_port()
    (tmp_path / "env").write_text(f"export GATEWAY_ZOOKEEPER=127.0.0.1:{port}\n")
    first = free_port()
    found = State()
    choose_ports(tmp_path, found, Size(1, 1), first)
    assert found.ports[ZOOKEEPER] == port
    with socket.create_server(("127.0.0.1", port)):
        choose_ports(tmp_path, found, Size(1, 1), first)
        assert found.ports[ZOOKEEPER] != port


# what is missing


def test_one_line_says_that_java_is_missing(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    code, out, errors = invoke("cluster", "up", "--data", str(tmp_path / "c"))
    assert (code, out) == (78, "")
    assert errors == (
        "gateway: Java is missing, which ZooKeeper needs: install it (Debian: apt-get install "
        "default-jre-headless), or set JAVA_HOME\n"
    )
    assert not (tmp_path / "c" / "cluster.json").exists()


def test_zookeepers_jars_are_found_in_known_places(tmp_path, monkeypatch):
    monkeypatch.setattr(zookeeper, "_DEBIAN", (tmp_path / "debian",))
    monkeypatch.setenv("ZOOKEEPER_HOME", str(tmp_path / "home"))
    with pytest.raises(CannotStart, match="ZooKeeper is missing: install it"):
        zookeeper.find_jars(None)
    for place in (tmp_path / "debian", tmp_path / "home" / "lib"):
        place.mkdir(parents=True)
        (place / "zookeeper-3.9.3.jar").touch()
        assert zookeeper.find_jars(None) == f"{place}/*"
    with pytest.raises(CannotStart, match="--zookeeper-jars"):
        zookeeper.find_jars(tmp_path)


def test_a_cluster_does_not_get_fewer_processes(tmp_path, monkeypatch):
    state.save(tmp_path, State(Size(2, 2), dict.fromkeys(Size(2, 2).names, 1)))
    with pytest.raises(LocalClusterError, match="cannot have fewer"):
        launcher.Launcher(tmp_path, print, jars=None).up(Size(1, 2), None)
