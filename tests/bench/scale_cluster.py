"""What the bench of sizes runs on: ZooKeeper, three bookies, gateways; and how work is spread."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, Self, TypeVar

from tests.cluster.client import Session
from tests.peers.bookie import BookieProcess
from tests.peers.gateway import ClusterGateway
from tests.peers.processes import Lifecycle
from tests.peers.zookeeper import ZooKeeper

T = TypeVar("T")
BOOKIES = 3
SESSION_MS = 3_000
HEAP_MB = 3_072  # of ZooKeeper: what is measured is the gateway
LEDGERS_LOOKED_AT_MAX = 2_000


def in_tree(argv: list[str], tree: Path | None) -> list[str]:
    """The command `python -m module ...` with the sources of another tree, if one is given."""
    if tree is None:
        return argv
    python, _, module, *words = argv
    run = (
        f"import runpy, sys; sys.path.insert(0, {str(tree)!r}); sys.argv[0] = {module!r}; "
        f"runpy.run_module({module!r}, run_name='__main__', alter_sys=True)"
    )
    return [python, "-c", run, *words]


class TreeBookie(BookieProcess):
    """A bookie of a source tree."""

    tree: Path | None = None

    def argv(self) -> list[str]:
        return in_tree(super().argv(), self.tree)


class TreeGateway(ClusterGateway):
    """A gateway of a source tree."""

    tree: Path | None = None

    def argv(self) -> list[str]:
        return in_tree(super().argv(), self.tree)


class Cluster(Lifecycle):
    """ZooKeeper and bookies run inside `with`; gateways when they are asked for.

    `tree` has the sources of the bookies and gateways, this one's by default.
    """

    def __init__(
        self, directory: Path, options: Sequence[str] = (), tree: Path | None = None
    ) -> None:
        self._directory = directory
        self._tree = tree
        self._options = options
        self.zookeeper = ZooKeeper(directory / "zookeeper", heap_mb=HEAP_MB)
        self._bookies = [
            TreeBookie(
                directory / f"bookie-{number}" / "data",
                self.zookeeper.servers,
                name=f"bookie-{number}",
                rack=f"/rack-{number}",
                session="10s",
            )
            for number in range(BOOKIES)
        ]
        for bookie in self._bookies:
            bookie.tree = tree
        self._gateways: list[ClusterGateway] = []

    def gateway(self) -> ClusterGateway:
        """One more serves."""
        node_id = len(self._gateways)
        started = TreeGateway(
            self._directory / f"gateway-{node_id}",
            self.zookeeper.servers,
            self._options,
            node_id=node_id,
            session_ms=SESSION_MS,
        )
        started.tree = self._tree
        self._gateways.append(started)
        return started.start()

    async def open_ledgers(self) -> int:
        """Ledgers that are not closed; of many, by a sample."""
        async with Session(self.zookeeper.servers) as session:
            ledgers = await session.client.list_ledgers()
            step = -(-len(ledgers) // LEDGERS_LOOKED_AT_MAX) or 1
            looked_at = ledgers[::step]
            found = await asyncio.gather(*map(session.client.read_metadata, looked_at))
        still_open = sum(metadata.last_entry is None for metadata in found)
        return round(still_open * len(ledgers) / len(looked_at)) if looked_at else 0

    def start(self) -> Self:
        try:
            self.zookeeper.start()
            for bookie in self._bookies:
                bookie.data.parent.mkdir(parents=True, exist_ok=True)
                bookie.start()
        except BaseException:
            self.stop()
            raise
        return self

    def stop(self) -> None:
        """All of it is thrown away, so nothing needs to end well."""
        for process in (*self._gateways, *self._bookies, self.zookeeper):
            if process.running:
                process.kill()


def megabytes(gateway: ClusterGateway) -> tuple[float, float]:
    """Its own share of memory (PSS), and what is resident (RSS)."""
    shared_fairly = gateway.process.memory_bytes()
    return round(shared_fairly / 1e6, 1), round(gateway.usage().resident_bytes / 1e6, 1)


class Bar:
    """How far the work is, on stderr: a line that is written over, or a line for each tenth."""

    def __init__(self, what: str, whole: int) -> None:
        self._what = what
        self._whole = max(1, whole)
        self._began_s = time.monotonic()
        self._shown = -1

    def show(self, done: int) -> None:
        live = sys.stderr.isatty()
        share = done * (100 if live else 10) // self._whole
        if share == self._shown:
            return
        self._shown = share
        filled = done * 30 // self._whole
        took_s = time.monotonic() - self._began_s
        line = f"{self._what:<34} [{'#' * filled:<30}] {done:>7,} of {self._whole:,} {took_s:.0f} s"
        end = "\r" if live and done < self._whole else "\n"
        print(line, end=end, file=sys.stderr, flush=True)


async def spread(
    items: Iterable[T],
    work: Callable[[T, int], Awaitable[Any]],
    bar: Bar | None = None,
    *,
    at_once: int,
    until_s: float,
) -> list[T]:
    """`work(item, worker)` was done for every item, or for as many as could be in the time.

    Returns those that were done. The first error ends all.
    """
    left, done = iter(items), list[T]()

    async def worker(number: int) -> None:
        for item in left:
            if time.monotonic() > until_s:
                return
            await work(item, number)
            done.append(item)
            if bar is not None:
                bar.show(len(done))

    async with asyncio.TaskGroup() as group:
        for number in range(at_once):
            group.create_task(worker(number))
    return done


def seconds(times_s: Iterable[float]) -> dict[str, float]:
    """First, middle and last, rounded."""
    ordered = sorted(times_s)
    return {
        "first_s": round(ordered[0], 3),
        "p50_s": round(ordered[len(ordered) // 2], 3),
        "last_s": round(ordered[-1], 3),
    }
