"""Goal: the units of compose/systemd/ are what systemd takes, run our commands, with few rights.

Method: systemd-analyze as the judge; the commands through our own parsers; the system calls of a
gateway under load, by strace, against the filter of the units.
"""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from confluent_kafka import Producer

from gateway.process import serve
from ledger.command_line.program import flags_of
from ledger.node import audit
from ledger.node import serve as bookie
from ledger.node.options import NodeSettings
from tests.peers import install
from tests.peers.install import ROOT
from tests.peers.processes import Process, free_port

UNITS = sorted((ROOT / "compose" / "systemd").glob("*.service"))
EXPOSURE_MAX = 20  # tenths
START_S_MAX = 120.0
EACH = pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.name)


def settings_in(unit):
    """The lines of a unit, by their names; continued ones joined."""
    text = unit.read_text().replace("\\\n", " ")
    found = {}
    for line in text.splitlines():
        name, separator, value = line.partition("=")
        if separator and not line.startswith("#"):
            found.setdefault(name, []).append(value)
    return found


def command_of(unit, place):
    """The words after the program, with the files below `place`."""
    (line,) = settings_in(unit)["ExecStart"]
    line = line.replace("%l", "host").replace("%i", "1")
    program, *words = shlex.split(line)
    return program, [word.replace("/etc/ledger-gateway", str(place)) for word in words]


@EACH
def test_systemd_takes_the_unit(unit, tmp_path):
    program, _ = command_of(unit, tmp_path)
    copy = tmp_path / unit.name
    copy.write_text(unit.read_text().replace(program, sys.executable))
    named = str(copy).replace("@.", "@1.")
    if named != str(copy):
        Path(named).symlink_to(copy)
    analyze = install.systemd_analyze()
    done = subprocess.run([analyze, "verify", "--man=no", named], capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@EACH
def test_the_unit_has_few_rights(unit):
    words = ["security", "--offline=true", f"--threshold={EXPOSURE_MAX}", "--no-pager"]
    argv = [install.systemd_analyze(), *words, str(unit)]
    done = subprocess.run(argv, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout
    assert re.search(r"exposure level for \S+: [01]\.\d", done.stdout)


@EACH
def test_the_unit_waits_for_readiness_and_for_the_end(unit):
    found = settings_in(unit)
    assert found["Type"] == ["notify"]
    assert found["WatchdogSec"] == ["30"]
    assert found["TimeoutStopSec"] == ["60"]
    assert found["KillMode"] == ["mixed"]
    assert found["RestartPreventExitStatus"] == ["78"]


def test_the_commands_are_ours(tmp_path):
    (tmp_path / "gateway.toml").write_text('zookeeper = "z:2181"\nnode-id = 1\n')
    (tmp_path / "bookie.toml").write_text('zookeeper = "z:2181"\nallow-insecure = true\n')
    (tmp_path / "audit.toml").write_text('zookeeper = "z:2181"\n')
    commands = {unit.name: command_of(unit, tmp_path) for unit in UNITS}
    programs = {name: (program, words[0]) for name, (program, words) in commands.items()}
    assert programs == {
        "audit.service": ("/opt/gateway/bin/bookie", "audit"),
        "bookie@.service": ("/opt/gateway/bin/bookie", "serve"),
        "gateway.service": ("/opt/gateway/bin/gateway", "serve"),
    }
    words = {name: words[1:] for name, (_, words) in commands.items()}
    gateway = serve.settings_of(flags_of(serve.serve, words["gateway.service"]))
    assert serve.faults_of(gateway) == []
    auditing = audit.settings_of(flags_of(audit.audit, words["audit.service"]))
    assert audit.faults_of(auditing) == []
    storing = NodeSettings(flags_of(bookie.serve, words["bookie@.service"]))
    assert storing.faults == []
    assert (storing["name"], str(storing["data"])) == ("host-1", "/var/lib/ledger-bookie/1")
    (state,) = settings_in(UNITS[1])["StateDirectory"]
    assert f"/var/lib/{state}" == "/var/lib/ledger-bookie/%i"


def calls_of(names, listed):
    """The system calls of the sets, with those of the sets in them."""
    found = set()
    for name in names:
        for line in listed[name]:
            found |= calls_of([line], listed) if line.startswith("@") else {line}
    return found


def allowed_calls(unit):
    shown = subprocess.check_output([install.systemd_analyze(), "syscall-filter", "--no-pager"])
    listed, name = {}, ""
    for line in shown.decode().splitlines():
        if line.startswith("@"):
            name = line.strip()
            listed[name] = []
        elif line.startswith("    ") and not line.strip().startswith("#"):
            listed[name].append(line.strip())
    allowed = calls_of(["@default"], listed)
    for value in settings_in(unit)["SystemCallFilter"]:
        sets = value.removeprefix("~").split()
        if value.startswith("~"):
            allowed -= calls_of(sets, listed) - calls_of(["@default"], listed)
        else:
            allowed |= calls_of(sets, listed)
    return allowed


@pytest.mark.proof
def test_a_gateway_with_a_bookie_makes_only_system_calls_that_the_units_allow(tmp_path):
    """The embedded gateway: it has a bookie, and serves clients as a gateway of a cluster does."""
    port = free_port()
    argv = [install.strace(), "-f", "-qq", "-o", str(tmp_path / "calls"), sys.executable]
    argv += ["-m", "gateway", "dev", "--port", str(port), "--no-ledger-port", "--io", "off"]
    argv += ["--data", str(tmp_path / "data")]
    process = Process(argv, tmp_path / "log")
    try:
        process.wait_output("KafkaServer", START_S_MAX)
        producer = Producer({"bootstrap.servers": f"127.0.0.1:{port}", "log_level": 0})
        for number in range(1_000):
            producer.produce("t", b"%d" % number)
        assert producer.flush(START_S_MAX) == 0
    finally:
        process.stop(START_S_MAX)
    lines = (tmp_path / "calls").read_text(errors="replace").splitlines()
    made = {match[1] for line in lines if (match := re.match(r"\d+ +(\w+)\(", line))}
    assert "epoll_wait" in made or "epoll_pwait" in made
    allowed = allowed_calls(ROOT / "compose" / "systemd" / "bookie@.service")
    as_root = {"fchown"}  # by SQLite, for files beside a database; a unit does not run as root
    assert made - allowed - as_root == set()
