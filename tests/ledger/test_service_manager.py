"""Goal: systemd learns when a server is ready, that its loop runs, and when it stops.

Method: a real datagram socket as systemd's, by a path and in the abstract namespace; the link on a
real loop; the embedded gateway and a supervisor of workers as processes.
"""

from __future__ import annotations

import asyncio
import os
import select
import signal
import socket
import subprocess
import sys

import pytest

from ledger.adapters.system.process import ExitAsked
from ledger.adapters.system.service_manager import ServiceManager
from tests.gateway.test_workers import SERVES, Supervised
from tests.peers.processes import Process, until, wait_until

WAIT_S_MAX = 60.0


class Systemd:
    """The socket of a service manager. `address` is what NOTIFY_SOCKET has."""

    def __init__(self, directory, *, is_abstract=False):
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        path = str(directory / "notify")
        self.socket.bind(f"\0{path}" if is_abstract else path)
        self.socket.setblocking(False)
        self.address = f"@{path}" if is_abstract else path
        self.received = []

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.socket.close()

    def environment(self, watchdog_ms=0):
        return {"NOTIFY_SOCKET": self.address, "WATCHDOG_USEC": str(1000 * watchdog_ms)}

    def read(self):
        """All messages so far, and those that are new."""
        before = len(self.received)
        while select.select([self.socket], [], [], 0)[0]:
            self.received.append(self.socket.recv(4096).decode())
        return self.received, self.received[before:]

    def wait_for(self, message):
        wait_until(lambda: message in self.read()[0], message, WAIT_S_MAX)


@pytest.fixture(params=[False, True], ids=["path", "abstract"])
def systemd(request, tmp_path):
    with Systemd(tmp_path, is_abstract=request.param) as each:
        yield each


@pytest.mark.real_loop
async def test_the_loop_pings_until_it_is_blocked(systemd):
    manager = ServiceManager(systemd.environment(watchdog_ms=90))
    assert manager.ping_s == pytest.approx(0.03)
    manager.ready()
    manager.start_pings(asyncio.get_running_loop())
    assert systemd.read()[1] == ["READY=1", "WATCHDOG=1"]
    pings = []

    def pinged(times):
        pings.extend(systemd.read()[1])
        return len(pings) >= times

    await until(lambda: pinged(2), "two pings", WAIT_S_MAX)
    select.select([], [], [], 0.3)  # blocks the loop
    assert systemd.read()[1] == []
    pings.clear()
    await until(lambda: pinged(1), "a ping after it", WAIT_S_MAX)
    assert set(pings) == {"WATCHDOG=1"}
    manager.stop()
    systemd.read()
    await asyncio.sleep(0.1)
    assert systemd.read()[1] == []


@pytest.mark.parametrize(
    ("variables", "ping_s"),
    [
        ({}, None),
        ({"WATCHDOG_USEC": "0"}, None),
        ({"WATCHDOG_USEC": "x"}, None),
        ({"WATCHDOG_USEC": "30000000"}, 10.0),
        ({"WATCHDOG_USEC": "30000000", "WATCHDOG_PID": str(os.getpid())}, 10.0),
        ({"WATCHDOG_USEC": "30000000", "WATCHDOG_PID": "1"}, None),
    ],
)
def test_only_the_watched_process_pings_thrice_in_an_interval(variables, ping_s):
    assert ServiceManager(variables).ping_s == ping_s


@pytest.mark.parametrize("address", ["", "vsock:2:1234", "relative", "/nowhere/notify", "@", "/"])
def test_an_address_that_cannot_be_reached_is_no_failure(address):
    manager = ServiceManager({"NOTIFY_SOCKET": address})
    manager.ready()
    manager.stopping()
    assert manager.ping_s is None


def test_a_full_socket_does_not_wait(tmp_path):
    with Systemd(tmp_path) as systemd:
        manager = ServiceManager(systemd.environment())
        for _ in range(2_000):  # more than a socket holds
            manager.ping()
        assert 0 < len(systemd.read()[1]) < 2_000


@pytest.mark.real_loop
async def test_a_process_that_systemd_did_not_start_loads_nothing(monkeypatch):
    monkeypatch.delenv("NOTIFY_SOCKET", raising=False)
    asked = ExitAsked()
    asked.ready()
    assert asked._manager is None
    name = "ledger.adapters.system.service_manager"
    code = f"import sys, gateway.process.run; print({name!r} in sys.modules)"
    assert subprocess.check_output([sys.executable, "-c", code]) == b"False\n"


def test_a_gateway_reports_its_life(systemd, tmp_path):
    argv = [sys.executable, "-m", "gateway", "dev", "--port", "0", "--no-ledger-port"]
    argv += ["--data", str(tmp_path / "data")]
    process = Process(argv, tmp_path / "log", systemd.environment(watchdog_ms=300))
    try:
        systemd.wait_for("READY=1")
        assert "gateway started" in process.output()
        systemd.wait_for("WATCHDOG=1")
        assert systemd.received[0] == "READY=1"
        wait_until(lambda: systemd.read()[0].count("WATCHDOG=1") >= 3, "pings", WAIT_S_MAX)
        process.send_signal(signal.SIGTERM)
        systemd.wait_for("STOPPING=1")
        assert process.wait_exit(WAIT_S_MAX) == 0
    finally:
        process.kill()
    assert systemd.read()[0].count("READY=1") == 1


def test_the_first_process_of_several_workers_reports_for_them(tmp_path, monkeypatch):
    says = "print('notify', os.environ.get('NOTIFY_SOCKET'), flush=True)\n"
    with Systemd(tmp_path) as systemd:
        for name, value in systemd.environment(watchdog_ms=300).items():
            monkeypatch.setenv(name, value)
        with Supervised(tmp_path, says + SERVES, says + SERVES) as supervised:
            supervised.wait_said("gateways started")
            wait_until(lambda: systemd.read()[0].count("WATCHDOG=1") >= 3, "pings", WAIT_S_MAX)
            assert systemd.received[0] == "READY=1"
            assert supervised.process.output().count("notify None") == 2
            supervised.process.send_signal(signal.SIGTERM)
            systemd.wait_for("STOPPING=1")
            assert supervised.wait_exit() == 0
