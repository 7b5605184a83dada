"""Offset commits per second: offsets in log segments beside offsets in znodes.

    make bench-subscriptions                   worst of three rounds
    python -m tests.bench.subscriptions --rounds 1 --seconds 3

One ZooKeeper and three bookies serve both stores, each a process that syncs before it acknowledges.
The stores take turns at being first. The load is the same: GROUPS groups of MEMBERS members with
PARTITIONS partitions each; a member commits all of its partitions, and again when that is durable.
A client process of its own runs one side once. ZooKeeper reports its count of requests and
transactions; without commits, sessions alone cause some twenty requests a second.

The gain is per partition of a commit: an offset is a node there and 80 bytes of an entry here. A
commit of one partition gains nothing: an entry on three bookies costs more than its share of a
transaction of 500 changes. The first of several PARTITIONS decides.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from uuid import UUID

from ledger.adapters.open_bookies import open_bookies
from ledger.adapters.system.clock import SystemClock
from ledger.adapters.system.memory import collect_rarely
from ledger.adapters.system.process import loop_factory
from ledger.adapters.zookeeper.zookeeper_metadata import connect_zookeeper
from ledger.client.client import LedgerClient
from ledger.ids import INVALID_DLSN
from ledger.ports.bookies import BookieTransport
from ledger.registry.discovery import Discovery
from ledger.streams.plain_log import LogQuorum, PlainLogs
from subscriptions.committed_offset import CommittedOffset, TopicIdPartition
from subscriptions.rollout.open_store import open_store
from tests.peers import install
from tests.peers.bookie import BookieProcess
from tests.peers.install import CACHE
from tests.peers.zookeeper import ZooKeeper

BOOKIES = 3
SIDES = ("znode", "log")
TOPIC = UUID(int=7)
LOAD_S_MAX = 180.0
Said = dict[str, float]


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


class Load:
    """Keep one commit of each member of each group pending, until the time is over."""

    def __init__(self, store, groups: int, members: int, partitions: int) -> None:
        self.store = store
        self.names = [f"group-{n}" for n in range(groups)]
        keys = [TopicIdPartition(TOPIC, n) for n in range(members * partitions)]
        self.shares = [keys[n::members] for n in range(members)]
        self.commits = 0
        self.took_s: list[float] = []
        self.ends_s = 0.0
        self.going = 0
        self.over: asyncio.Future[None] | None = None

    async def begin(self) -> None:
        """Claim every group and commit once."""
        for at in range(0, len(self.names), 50):
            some = self.names[at : at + 50]
            await asyncio.gather(*(self.store.load(name) for name in some))
            whole = [key for share in self.shares for key in share]
            await asyncio.gather(*(self.store.advance(n, positions(whole, 0)) for n in some))

    async def run(self, seconds: float) -> float:
        """Return the commits per second."""
        self.commits, self.took_s = 0, []
        self.over = asyncio.get_running_loop().create_future()
        started_s = time.perf_counter()
        self.ends_s = started_s + seconds
        self.going = 0
        for share in self.shares:
            for name in self.names:
                self.going += 1
                self.commit(name, share)
        await self.over
        return self.commits / (time.perf_counter() - started_s)

    def commit(self, name: str, share: list[TopicIdPartition]) -> None:
        started_s = time.perf_counter()
        durable = self.store.advance(name, positions(share, self.commits))
        durable.add_done_callback(lambda done: self.on_durable(name, share, started_s, done))

    def on_durable(self, name: str, share: list[TopicIdPartition], started_s: float, done) -> None:
        done.result()
        now_s = time.perf_counter()
        self.commits += 1
        self.took_s.append(now_s - started_s)
        if now_s < self.ends_s:
            self.commit(name, share)
            return
        self.going -= 1
        if not self.going:
            self.over.set_result(None)


def positions(keys: list[TopicIdPartition], number: int) -> dict[TopicIdPartition, CommittedOffset]:
    now_ms = time.time_ns() // 1_000_000
    position = CommittedOffset(
        INVALID_DLSN, 1_000_000 + number, 3, "", now_ms
    )  # as the coordinator's
    return dict.fromkeys(keys, position)


async def load(side: str, servers: str, asked: argparse.Namespace) -> Said:
    """Run one side once. Reads ZooKeeper's counters while no other request is pending."""
    metadata = await connect_zookeeper(servers)
    discovery = Discovery(metadata)
    await discovery.start()
    bookies = open_bookies(discovery.registered, BookieTransport.TCP, None)
    clock = SystemClock()
    logs = PlainLogs(LedgerClient(metadata, bookies, clock), lambda: LogQuorum(3, 3, 2))
    root = f"/bench/{time.time_ns()}"
    store = open_store(side == "log", metadata, logs, clock, root=root)
    work = Load(store, asked.groups, asked.members, asked.partitions[0])
    collect_rarely()  # as gateways and bookies do
    await work.begin()
    await work.run(asked.seconds / 3)
    before = {**counters(servers), **cpu(asked.pids)}
    per_s = await work.run(asked.seconds)
    after = {**counters(servers), **cpu(asked.pids)}
    work.took_s.sort()
    said = {
        "commits_per_s": per_s,
        "commits": work.commits,
        "p50_ms": work.took_s[len(work.took_s) // 2] * 1e3,
        "p99_ms": work.took_s[int(len(work.took_s) * 0.99)] * 1e3,
        **{
            f"{who}_us": (after[who] - before[who]) / work.commits * 1e6
            for who in ("client", "bookies", "zookeeper")
        },
        "requests_per_commit": (after["requests"] - before["requests"]) / work.commits,
        "changes_per_commit": (after["changes"] - before["changes"]) / work.commits,
    }
    await check(store, work)
    await store.close()
    await bookies.close()
    await discovery.stop()
    await metadata.close()
    return said


async def check(store, work: Load) -> None:
    """Check that a new owner finds the last acknowledged offsets."""
    name = work.names[0]
    whole = [key for share in work.shares for key in share]
    wanted = positions(whole, 10**9)
    await store.advance(name, wanted)
    await store.unload(name)
    assert (await store.load(name)).offsets == wanted


def cpu(pids: list[int]) -> dict[str, float]:
    """Return the CPU seconds used. `pids` are ZooKeeper's, then the bookies'."""
    used = [_cpu_s(pid) for pid in pids]
    return {"client": time.process_time(), "zookeeper": used[0], "bookies": sum(used[1:])}


def _cpu_s(pid: int) -> float:
    """Return user and system time of all live threads."""
    tasks = Path(f"/proc/{pid}/task").iterdir()
    return sum(int((task / "schedstat").read_text().split()[0]) for task in tasks) / 1e9


def counters(servers: str) -> dict[str, int]:
    """Return ZooKeeper's requests of all sessions, and its transactions (a multi is one)."""
    said = _zookeeper(servers)
    lines = dict(line.split(": ", 1) for line in said.splitlines() if ": " in line)
    return {"requests": int(lines["Received"]), "changes": int(lines["Zxid"], 16)}


def _zookeeper(servers: str) -> str:
    import socket

    host, port = servers.split(":")
    with socket.create_connection((host, int(port)), 5.0) as connection:
        connection.sendall(b"srvr")
        return b"".join(iter(lambda: connection.recv(65536), b"")).decode()


def run_side(
    side: str, partitions: int, servers: str, pids: list[int], asked: argparse.Namespace
) -> Said:
    words = [str(asked.groups), str(asked.members), str(partitions), str(asked.seconds)]
    python = [install.gateway_python(), "-m", "tests.bench.subscriptions"]
    names = ("--groups", "--members", "--partitions", "--seconds")
    options = [word for pair in zip(names, words, strict=True) for word in pair]
    done = subprocess.run(
        [*python, *options, "--load", side, servers, "--pids", *map(str, pids)],
        cwd=install.ROOT,
        capture_output=True,
        text=True,
        timeout=LOAD_S_MAX,
    )
    if done.returncode != 0:
        raise RuntimeError(f"{side}: the client failed\n{done.stderr[-3000:]}")
    return json.loads(done.stdout.splitlines()[-1])


def shown(said: Said) -> str:
    return (
        f"{said['commits_per_s']:.0f} commits/s, p50 {said['p50_ms']:.1f} ms, "
        f"p99 {said['p99_ms']:.1f} ms, CPU us per commit: client {said['client_us']:.0f}, "
        f"bookies {said['bookies_us']:.0f}, ZooKeeper {said['zookeeper_us']:.0f}; "
        f"ZooKeeper {said['requests_per_commit']:.5f} requests "
        f"and {said['changes_per_commit']:.5f} transactions per commit"
    )


def rounds(asked: argparse.Namespace, scratch: Path) -> dict[int, list[dict[str, Said]]]:
    """Return the figures of both sides in each round, by partitions of a commit."""
    done: dict[int, list[dict[str, Said]]] = {partitions: [] for partitions in asked.partitions}
    zookeeper = ZooKeeper(scratch / "zookeeper", synced=True)
    bookies: list[BookieProcess] = []
    try:
        zookeeper.start()
        for number in range(BOOKIES):
            place = scratch / f"bookie-{number}"
            bookies.append(BookieProcess(place, zookeeper.servers, name=f"b{number}").start())
        pids = [zookeeper.process.pid, *(bookie.process.pid for bookie in bookies)]
        for number, partitions in itertools.product(range(asked.rounds), asked.partitions):
            said: dict[str, Said] = {}
            for side in SIDES[:: -1 if number % 2 else 1]:
                said[side] = run_side(side, partitions, zookeeper.servers, pids, asked)
                say(f"round {number + 1}, {partitions} partitions, {side}: {shown(said[side])}")
            done[partitions].append(said)
    finally:
        for bookie in bookies:
            if bookie.running:
                bookie.stop()
        if zookeeper.running:
            zookeeper.stop()
    return done


def ratio(said: dict[str, Said]) -> float:
    return round(said["log"]["commits_per_s"] / said["znode"]["commits_per_s"], 2)


def main() -> int:
    """Run, and print one line of JSON."""
    words = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    words.add_argument("--rounds", type=int, default=3, help="the worst of so many is reported")
    words.add_argument("--seconds", type=float, default=5.0, help="of each side in each round")
    words.add_argument("--groups", type=int, default=100)
    words.add_argument("--members", type=int, default=4, help="of each group")
    words.add_argument(
        "--partitions", type=int, nargs="+", default=[100, 10, 1], help="of a member"
    )
    words.add_argument("--load", nargs=2, metavar=("SIDE", "SERVERS"), help=argparse.SUPPRESS)
    words.add_argument("--pids", nargs="*", type=int, default=[], help=argparse.SUPPRESS)
    asked = words.parse_args()
    if asked.load:
        with asyncio.Runner(loop_factory=loop_factory()) as runner:
            print(json.dumps(runner.run(load(*asked.load, asked))))
        return 0
    CACHE.mkdir(exist_ok=True)
    scratch = Path(tempfile.mkdtemp(prefix="bench-subscriptions-", dir=CACHE))
    try:
        done = rounds(asked, scratch)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    ratios = {partitions: [ratio(said) for said in each] for partitions, each in done.items()}
    judged = done[asked.partitions[0]]
    logs = [said["log"] for said in judged]
    result = {
        "bench": "subscriptions",
        "commits_ratio": min(ratios[asked.partitions[0]]),
        "zookeeper_ops_per_commit": round(max(said["requests_per_commit"] for said in logs), 6),
        "zookeeper_transactions_per_commit": max(said["changes_per_commit"] for said in logs),
        "ratios_by_partitions": ratios,
        "log_commits_per_s": round(min(said["commits_per_s"] for said in logs)),
        "znode_commits_per_s": round(min(said["znode"]["commits_per_s"] for said in judged)),
        "groups": asked.groups,
        "members": asked.members,
    }
    print(json.dumps(result))
    return 0


if __name__ == "__main__":
    sys.exit(main())
