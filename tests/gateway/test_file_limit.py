"""Goal: a gateway raises its limit of open files, and tells if the system allows too few.

Method: a real gateway that `prlimit` starts with limits of the test's own.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from gateway.config import ConnectionLimits
from gateway.process.file_limit import FILES_OF_STORAGE
from tests.peers.gateway import Gateway

NEEDED = ConnectionLimits().connections_max + FILES_OF_STORAGE


class LimitedGateway(Gateway):
    """A gateway with a soft and a hard limit of open files."""

    limits = ""

    def argv(self):
        return ["prlimit", f"--nofile={self.limits}", *super().argv()]


def soft_limit(pid):
    limits = Path(f"/proc/{pid}/limits").read_text()
    return int(re.search(r"Max open files\s+(\d+)", limits)[1])


@pytest.mark.parametrize(
    ("limits", "soft", "connections"),
    [(f"256:{NEEDED}", NEEDED, None), ("256:3000", 3000, 2000), ("256:400", 400, 200)],
)
def test_the_soft_limit_is_raised_and_a_low_hard_limit_is_told(tmp_path, limits, soft, connections):
    gateway = LimitedGateway(tmp_path)
    gateway.limits = limits
    with gateway:
        assert soft_limit(gateway.process.pid) == soft
        told = gateway.process.output()
    assert (f"accepts {connections} connections instead of 10000" in told) is bool(connections)
