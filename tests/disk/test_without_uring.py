"""Goal: where the kernel has no io_uring, or a container runtime forbids it, a server works as
before; one that is told to use it says in one line that it cannot, and does not start.

Method: the real programs under a filter of system calls.
"""

from __future__ import annotations

import os
import subprocess
from contextlib import suppress
from pathlib import Path

import pytest

from tests.crash.load import Load, judge, read_all
from tests.peers import install
from tests.peers.gateway import Gateway
from tests.peers.processes import free_port, wait_until

pytestmark = [pytest.mark.slow, pytest.mark.proof]

ENDS_S_MAX = 60
WITHOUT = ["tests.disk.without_uring"]
ERRORS = [("ENOSYS", "Function not implemented"), ("EPERM", "Operation not permitted")]


def ended(error: str, *words: str) -> tuple[int, list[str]]:
    """The exit code of a command without io_uring, and its lines on stderr."""
    command = [install.gateway_python(), "-m", *WITHOUT, error, "-m", *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=ENDS_S_MAX)
    return done.returncode, done.stderr.splitlines()


@pytest.mark.parametrize(("error", "reason"), ERRORS)
def test_a_server_that_is_told_to_use_io_uring_does_not_start_without_it(tmp_path, error, reason):
    data = tmp_path / "data"
    fault = f"--io uring: the kernel refuses io_uring: {reason}; pass --io auto"
    place = ["--data", str(data), "--port", str(free_port())]
    assert ended(error, "gateway", "dev", "--io", "uring", *place) == (78, [f"gateway: {fault}"])
    for command in ("serve", "check-config"):
        found = ended(error, "ledger", command, "--io", "uring", *place)
        assert found == (78, [f"bookie: {fault}"])
    assert not data.exists()


class WithoutUring(Gateway):
    """A gateway on a kernel without io_uring."""

    def argv(self):
        python, *rest = super().argv()
        return [python, "-m", *WITHOUT, "ENOSYS", *rest]


OF_A_RING = 3
"""Handles: one of the ring, and one for each of its two mappings."""


def rings_of(gateway: Gateway) -> int:
    """How many handles of rings the process has."""
    rings = 0
    for handle in Path(f"/proc/{gateway.process.pid}/fd").iterdir():
        with suppress(FileNotFoundError):  # it was closed meanwhile
            rings += "io_uring" in os.readlink(handle)
    return rings


def stored_by(gateway: Gateway, topic: str) -> int:
    """How many records it acknowledged and has, before and after kill -9."""
    load = Load(gateway.bootstrap, topic, "p", pause_s=0.01)
    wait_until(lambda: len(load.told.offsets) > 200, "acknowledgements", 60.0)
    gateway.kill()
    gateway.start()
    wait_until(lambda: len(load.told.offsets) > 400, "acknowledgements after kill -9", 60.0)
    told = load.end()
    return judge(read_all(gateway.bootstrap, topic, 1), [told])


def test_a_gateway_goes_on_without_io_uring(tmp_path):
    with WithoutUring(tmp_path / "data") as gateway:
        assert stored_by(gateway, "before") > 400
        assert rings_of(gateway) == 0


def test_a_directory_is_served_with_and_without_io_uring_in_turn(tmp_path):
    data = tmp_path / "data"
    rings = []
    for number, io in enumerate(["off", "auto", "uring", "off"]):
        with Gateway(data, ["--io", io]) as gateway:
            assert stored_by(gateway, f"topic-{number}") > 400
            rings.append(rings_of(gateway))
    others = rings[0]  # libuv may have one of its own
    assert [found - others for found in rings] == [0, OF_A_RING, OF_A_RING, 0]
