"""Goal: a misspelt chroot is said as such, and nobody who only looks leaves a trace of it.

Method: commands, a direct source, an auditor and a gateway against a real ZooKeeper, at a chroot
that does not exist, and at one that exists and holds no cluster; the tree is looked at from the
root before and after. And each looking command once over a cluster that is there.
"""

import asyncio
import json
import subprocess
from contextlib import asynccontextmanager

import pytest

from gateway.pipelines.shared.errors import JobError
from gateway.pipelines.shared.storage import open_storage
from tests.gateway.admin_commands import invoke
from tests.ledger.zookeeper_rig import lasting
from tests.node.cluster_rig import laid_out
from tests.peers import install

LOOKING = [
    ("ledger", "list"),
    ("ledger", "show", "1"),
    ("ledger", "verify", "1"),
    ("ledger", "why", "1"),
    ("bookie", "list"),
    ("group", "history", "g"),
    ("group", "restore", "g", "--at", "2026-01-01T00:00:00"),
]
CHANGING = [("ledger", "recover", "1", "--yes"), ("bookie", "decommission", "b", "--yes")]


@asynccontextmanager
async def root_of(zookeeper):
    store = await lasting(zookeeper.servers)
    try:
        yield store
    finally:
        await store.close()


async def nodes_below(zookeeper, path):
    """Every node of it, itself included; empty when it does not exist."""
    async with root_of(zookeeper) as store:
        if not await store.exists(path):
            return []
        return [path, *await store.paths(path)]


def tree_below(zookeeper, path):
    return asyncio.run(nodes_below(zookeeper, path))


def made(zookeeper, path):
    async def main():
        async with root_of(zookeeper) as store:
            await store.create(path, parents=True)

    asyncio.run(main())


@pytest.fixture(params=["missing", "there but empty"])
def typo(request, zookeeper):
    """A chroot without a cluster."""
    chroot = f"{zookeeper.unused_chroot()}/typo"
    if request.param != "missing":
        made(zookeeper, chroot)
    return chroot


@pytest.mark.parametrize("words", LOOKING + CHANGING, ids=lambda words: "-".join(words[:2]))
def test_a_command_names_the_chroot_that_holds_no_cluster_and_makes_nothing(zookeeper, typo, words):
    before = tree_below(zookeeper, typo)
    code, out, err = invoke(*words, "-z", zookeeper.servers + typo, "-o", "json")
    assert (code, out) == (1, ""), err
    failure = json.loads(err)
    assert failure["code"] == "NO_CLUSTER"
    assert f"is the chroot {typo} right?" in failure["error"]
    assert tree_below(zookeeper, typo) == before


@pytest.mark.real_loop
async def test_sparks_direct_source_names_it_and_makes_nothing(zookeeper, typo):
    before = await nodes_below(zookeeper, typo)
    with pytest.raises(JobError, match=f"is the chroot {typo} right") as failed:
        async with open_storage(f"zk://{zookeeper.servers}{typo}"):
            pass
    assert failed.value.code == "NO_CLUSTER"
    assert await nodes_below(zookeeper, typo) == before


@pytest.mark.parametrize(
    ("words", "expected"),
    [(["ledger", "audit", "--once"], 78), (["gateway", "serve", "--port", "0"], 69)],
    ids=["auditor", "gateway"],
)
def test_a_process_that_needs_a_cluster_names_it_and_makes_nothing(
    zookeeper, typo, words, expected
):
    before = tree_below(zookeeper, typo)
    place = zookeeper.servers + typo
    argv = [install.gateway_python(), "-m", *words, "--zookeeper", place]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (expected, "")
    (line,) = done.stderr.splitlines()
    assert place in line
    assert f"is the chroot {typo} right?" in line
    assert tree_below(zookeeper, typo) == before


def test_without_a_chroot_nobody_asks_for_one(zookeeper):
    code, _, err = invoke("ledger", "list", "-z", zookeeper.servers)
    assert code == 1
    assert "chroot" not in err


def test_looking_at_a_cluster_makes_nothing_in_it(zookeeper):
    chroot = laid_out(zookeeper)
    before = tree_below(zookeeper, chroot)
    for words in LOOKING:
        _, _, err = invoke(*words, "-z", zookeeper.servers + chroot, "-o", "json")
        assert "NO_CLUSTER" not in err
    assert tree_below(zookeeper, chroot) == before
