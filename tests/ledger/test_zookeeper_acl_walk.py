"""Goal: the repair of ACLs takes little memory and time on a tree of 100,000 nodes.

Method: the command in a process of its own on a real ZooKeeper; its memory beside that of the same
command on a small tree.
"""

import asyncio
import json
import os
import subprocess
import time

import pytest

from ledger.ports.metadata import Create
from tests.ledger.zookeeper_rig import lasting
from tests.peers import install
from tests.peers.zookeeper import ZooKeeper

NODES = 100_000
AT_ONCE = 1_000
MORE_BYTES_MAX = 48 * 1024 * 1024
APPLY_S_MAX = 120.0
# Runs the command, and prints at its end the most memory that it took, in KiB.
MEASURED = """
import atexit, re, runpy, sys
def show():
    with open("/proc/self/status") as status:
        print(re.search(r"VmHWM:\\s+(\\d+)", status.read())[1], file=sys.stderr)
atexit.register(show)
runpy.run_module("gateway", run_name="__main__", alter_sys=True)
"""


async def grow(servers, root, nodes):
    """Create nodes below a wide node, and below many narrow ones."""
    store = await lasting(servers, chroot=root)
    wide = [Create(f"/wide/{each:09d}-{'x' * 20}") for each in range(nodes // 2)]
    narrow = [
        Create(f"/narrow/{each}{below}") for each in range(nodes // 4) for below in ("", "/leaf")
    ]
    await store.create("/wide")
    await store.create("/narrow")
    for ops in (wide, narrow):
        for at in range(0, len(ops), AT_ONCE):
            await store.multi(ops[at : at + AT_ONCE])
    await store.close()


def command(servers, mode):
    """Return the report of the command, its time, and the most memory that it took."""
    words = [install.gateway_python(), "-c", MEASURED, "security", "zookeeper", mode]
    environment = {
        **os.environ,
        "GATEWAY_ZOOKEEPER_AUTH": "env:IDENTITY",
        "GATEWAY_ZOOKEEPER_READ_AUTH": "env:READER",
        "IDENTITY": "cluster:secret",
        "READER": "reader:secret",
    }
    began_s = time.monotonic()
    words += ["-z", servers, "-o", "json"]
    done = subprocess.run(words, env=environment, capture_output=True, text=True, timeout=300)
    *_, highest_kib = done.stderr.split()
    return json.loads(done.stdout), time.monotonic() - began_s, int(highest_kib) * 1024


@pytest.mark.proof
def test_a_tree_of_100_000_nodes_is_repaired_in_little_memory(tmp_path):
    with ZooKeeper(tmp_path / "zookeeper", applies_acls=True, heap_mb=512) as server:
        asyncio.run(grow(server.servers, "/small", 100))
        asyncio.run(grow(server.servers, "/large", NODES))
        small, _, small_bytes = command(f"{server.servers}/small", "--apply")
        large, took_s, large_bytes = command(f"{server.servers}/large", "--apply")
        again, check_s, _ = command(f"{server.servers}/large", "--check")
    assert (small["changed"], small["left"]) == (103, 0)
    assert (large["nodes"], large["changed"], large["left"]) == (NODES + 3, NODES + 3, 0)
    assert (again["nodes"], again["left"]) == (NODES + 3, 0)
    print(f"apply {took_s:.1f} s, check {check_s:.1f} s, {large_bytes - small_bytes:,} bytes more")
    assert took_s < APPLY_S_MAX
    assert large_bytes - small_bytes < MORE_BYTES_MAX
