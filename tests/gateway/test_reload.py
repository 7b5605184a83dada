"""Goal: SIGHUP takes over what may change, reports what may not, and no fault changes anything.

Method: settings in this process with a file that changes; a gateway with workers as processes is
not needed: the supervisor runs small programs.
"""

from __future__ import annotations

import os
import signal
import sys
from types import SimpleNamespace

import pytest

from gateway.access import CLUSTER, Operation
from gateway.config import Authorization
from gateway.process import dev, reload, serve
from gateway.process.reload import OF_FILE, read_again, take_for_workers
from gateway.settings.stored_acls import StoredAcls
from ledger.adapters.system.controlling_terminal import Terminal
from ledger.command_line.program import flags_of
from tests.peers.processes import Process
from tests.sim.metadata import SimMetadata

WAIT_S = 60.0


@pytest.fixture
def file(tmp_path):
    return tmp_path / "gateway.toml"


def settings_of(file, *words):
    return dev.settings_of(flags_of(dev.dev, ["--config", str(file), *words]))


def test_what_may_change_is_applied_and_the_rest_is_reported(file, capsys):
    file.write_text("super-users = 'User:a'\nport = 1\n")
    before, applied = settings_of(file), []
    file.write_text("super-users = 'User:b'\nport = 2\nnode-id = 3\n")
    held = reload.reload(before, lambda _: [], applied.append)
    log = capsys.readouterr().err
    assert [each["super-users"] for each in applied] == ["User:b"]
    assert (held["super-users"], held["port"]) == ("User:b", 1)
    assert 'changed="super-users"' in log or "changed=super-users" in log
    assert "port, node-id" in log and "restart" in log
    reload.reload(held, lambda _: [], applied.append)
    log = capsys.readouterr().err
    assert "changed=none" in log and "port, node-id" in log  # still waits for a restart


def test_a_fault_changes_nothing(file, capsys):
    file.write_text("super-users = 'User:a'\n")
    before, applied = settings_of(file), []
    file.write_text("super-users = 'User:b'\nprot = 2\n")
    held = reload.reload(before, dev.faults_of, applied.append)
    log = capsys.readouterr().err
    assert (held, applied, held["super-users"]) == (before, [], "User:a")
    assert f"{file}:2: prot: unknown key" in log and "not reloaded" in log


def test_a_flag_wins_over_a_changed_file(file):
    file.write_text("super-users = 'User:a'\n")
    before, applied = settings_of(file, "--super-users", "User:flag"), []
    file.write_text("super-users = 'User:b'\n")
    reload.reload(before, lambda _: [], applied.append)
    assert [each["super-users"] for each in applied] == ["User:flag"]


async def test_super_users_are_those_of_the_newest_settings():
    acls = StoredAcls(SimMetadata(), Authorization(authorizer="standard", super_users=("User:a",)))
    await acls.load()
    try:
        asked = ("10.0.0.1", Operation.ALTER, CLUSTER)
        assert acls.allows("User:a", *asked)
        acls.configure(Authorization(authorizer="standard", super_users=("User:b",)))
        assert not acls.allows("User:a", *asked)
        assert acls.allows("User:b", *asked)
    finally:
        await acls.close()


def test_a_worker_reads_the_file_again_past_what_its_supervisor_set(file, monkeypatch):
    file.write_text("super-users = 'User:new'\nport = 2\n")
    words = ["--zookeeper", "z:1", "--config", str(file), "--supervisor", "1", "--workers", "1"]
    flags = flags_of(serve.serve, words)
    monkeypatch.setenv("GATEWAY_SUPER_USERS", "User:old")
    monkeypatch.setenv("GATEWAY_NODE_ID", "5")
    monkeypatch.setenv(OF_FILE, "GATEWAY_SUPER_USERS")
    assert serve.settings_of(flags)["super-users"] == "User:old"
    again = read_again(flags, serve.TABLE)
    assert (again["super-users"], again["node-id"], again["port"]) == ("User:new", 5, 2)


def test_workers_that_start_later_have_what_may_change(file, monkeypatch):
    file.write_text("super-users = 'User:a'\nrack = 'r1'\n")
    words = ["--zookeeper", "z:1", "--config", str(file), "--workers", "2"]
    before = serve.settings_of(flags_of(serve.serve, words))
    for name, text in before.of_file().items():
        monkeypatch.setenv(name, text)
    monkeypatch.setenv(OF_FILE, ",".join(before.of_file()))
    monkeypatch.setenv("GATEWAY_SSL_CLIENT_AUTH", "")
    file.write_text("super-users = 'User:b'\nrack = 'r2'\nssl-client-auth = 'requested'\n")
    take_for_workers(before)
    found = [os.environ[f"GATEWAY_{name}"] for name in ("SUPER_USERS", "RACK", "SSL_CLIENT_AUTH")]
    assert found == ["User:b", "r1", "requested"]
    file.write_text("rack = 'r2'\nprot = 1\n")
    take_for_workers(before)  # a faulty file changes nothing
    assert os.environ["GATEWAY_SUPER_USERS"] == "User:b"
    file.write_text("rack = 'r2'\n")
    take_for_workers(before)
    assert "GATEWAY_SUPER_USERS" not in os.environ


PROGRAM = """
import signal, sys, time
def hung_up(*_):
    print('hung up', flush=True)
    sys.exit(0) if hung_up.ends else None
hung_up.ends = False
signal.signal(signal.SIGHUP, hung_up)
print('gateway started: bootstrap.servers=127.0.0.1:1', flush=True)
while True:
    signal.pause()
"""
SUPERVISOR = f"""
import sys
from gateway.process.supervisor import supervise
words = [sys.executable, "-c", {PROGRAM!r}]
sys.exit(supervise([words, words], on_hangup=lambda: print("read again", flush=True)))
"""


@pytest.mark.process
def test_a_supervisor_passes_sighup_on_after_it_has_read_the_file(tmp_path):
    process = Process([sys.executable, "-c", SUPERVISOR], tmp_path / "log")
    try:
        process.wait_output("workers=2", WAIT_S)
        process.send_signal(signal.SIGHUP)
        process.wait_for(lambda: process.output().count("hung up") == 2, "both workers", WAIT_S)
        assert process.output().index("read again") < process.output().index("hung up")
    finally:
        process.stop(WAIT_S)


def test_a_process_without_a_terminal_outlives_sighup(monkeypatch):
    there = SimpleNamespace(now=False)
    place = "ledger.adapters.system.controlling_terminal._is_there"
    monkeypatch.setattr(place, lambda: there.now)
    daemon = Terminal()
    there.now = True
    shell = Terminal()
    assert not daemon.is_gone() and not shell.is_gone()
    there.now = False
    assert not daemon.is_gone() and shell.is_gone()
