"""ZooKeeper, five bookies on five racks, an auditor, writers and readers: all processes here.

Clients reach each bookie through a proxy of its own (127.0.0.11, .12, ... on the bookie's port),
which cuts, drops and slows when told to. All is ended by process id.
"""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Self

from ledger.core.ledger_metadata import LedgerMetadata
from ledger.registry.underreplication import ledger_of_node
from ledger.repair.plan import wanted_quorum
from tests.cluster.client import Session
from tests.cluster.history import Judge, Told, judge_readers, told
from tests.peers import install
from tests.peers.bookie import BookieProcess
from tests.peers.processes import Process, wait_until
from tests.peers.proxy import Proxy
from tests.peers.zookeeper import ZooKeeper

AUDIT = ("--delay-s", "1", "--grace-s", "2", "--interval-s", "2")


class World:
    """One cluster in `directory`."""

    def __init__(self, directory: Path, bookies: int = 5, options: tuple[str, ...] = ()) -> None:
        self.directory = directory
        self.zookeeper = ZooKeeper(directory / "zookeeper", synced=True)
        self.bookies = [self._bookie(number, options) for number in range(bookies)]
        self.proxies = [
            Proxy(bookie.port, host=f"127.0.0.{11 + number}", listen_port=bookie.port)
            for number, bookie in enumerate(self.bookies)
        ]
        self.clients: list[tuple[Path, Process]] = []
        self.auditors: list[Process] = []

    def _bookie(self, number: int, options: tuple[str, ...]) -> BookieProcess:
        return BookieProcess(
            self.directory / f"bookie-{number}" / "data",
            self.zookeeper.servers,
            ["--advertised-host", f"127.0.0.{11 + number}", *options],
            name=f"bookie-{number}",
            rack=f"/rack-{number}",
        )

    def start(self) -> Self:
        try:
            self.zookeeper.start()
            for bookie, proxy in zip(self.bookies, self.proxies, strict=True):
                bookie.data.parent.mkdir(parents=True, exist_ok=True)
                proxy.start()
                bookie.begin()
            for bookie in self.bookies:
                bookie.ready()
        except BaseException:
            self.stop()
            raise
        return self

    def client(self, role: str) -> Process:
        """A new process that writes or reads."""
        log = self.directory / f"{role}-{len(self.clients)}.log"
        words = ["-m", "tests.cluster.client", role, self.zookeeper.servers, str(log)]
        process = Process([sys.executable, *words], log.with_suffix(".out"))
        self.clients.append((log, process))
        process.wait_for(lambda: "started" in process.output(), f"{log.name} to start", 30.0)
        return process

    def auditor(self) -> Process:
        """A process that finds and mends what has too few copies."""
        words = ["-m", "ledger", "audit", "--zookeeper", self.zookeeper.servers, *AUDIT]
        log = self.directory / f"audit-{len(self.auditors)}.log"
        self.auditors.append(Process([install.gateway_python(), *words], log))
        return self.auditors[-1]

    def told(self, role: str = "") -> Told:
        """What the clients of a role were told so far."""
        return told(*(log for log, _ in self.clients if log.name.startswith(role)))

    def wait_acked(self, more: int, what: str, timeout_s: float = 60.0) -> None:
        """So many more entries were acknowledged."""
        wanted = self.told().count() + more
        wait_until(lambda: self._count_or_raise() >= wanted, what, timeout_s)

    def _count_or_raise(self) -> int:
        for log, process in self.clients:
            if process.exit_code not in (None, -signal.SIGKILL):
                raise AssertionError(f"{log.name} ended:\n{process.output()[-3000:]}")
        return self.told().count()

    def end_clients(self) -> None:
        """kill -9 of all of them; what they were told is in their logs."""
        for _, process in self.clients:
            if process.exit_code is None:
                process.kill()

    def heal(self) -> None:
        """Every connection works and every bookie runs."""
        for proxy in self.proxies:
            proxy.heal()
        if not self.zookeeper.running:
            self.zookeeper.start()
        for bookie in self.bookies:
            if bookie.running:
                bookie.resume()
            else:
                bookie.begin()
        for bookie in self.bookies:
            bookie.ready()

    def judge(self, *, all_copies: bool = False) -> list[str]:
        """What is wrong with what the cluster kept; clients must have ended."""
        faults = asyncio.run(self._judge(all_copies))
        return faults + judge_readers(self.told("read"))

    async def _judge(self, all_copies: bool) -> list[str]:
        async with Session(self.zookeeper.servers) as session:
            async with asyncio.timeout(120):
                judge = Judge(session.client, session.bookies)
                return await judge.judge(self.told("write"), all_copies=all_copies)

    def ledger_command(self, *words: str) -> tuple[int, str]:
        """`gateway ledger|bookie ...` against this cluster: exit code and output."""
        argv = [sys.executable, "-m", "gateway", *words, "--zookeeper", self.zookeeper.servers]
        process = Process(argv, self.directory / "command.log")
        wait_until(lambda: process.exit_code is not None, " ".join(words), 60.0)
        assert process.exit_code is not None
        return process.exit_code, process.output()

    def members(self) -> set[str]:
        """Every bookie that the metadata of some ledger name."""
        return asyncio.run(self._members())

    async def _members(self) -> set[str]:
        async with Session(self.zookeeper.servers) as session:
            ledgers = await session.client.list_ledgers()
            metadata = [await session.client.read_metadata(ledger) for ledger in ledgers]
        return {
            bookie for one in metadata for fragment in one.fragments for bookie in fragment.ensemble
        }

    def narrow(self) -> list[int]:
        """Ledgers on fewer bookies than was wanted when they were made."""

        def is_narrow(metadata: LedgerMetadata) -> bool:
            wanted = wanted_quorum(metadata)
            return wanted is not None and wanted.write_quorum > metadata.write_quorum

        return asyncio.run(self._ledgers(is_narrow))

    def close_all(self) -> None:
        """Every ledger is closed: those that nobody writes any more are recovered."""
        asyncio.run(self._ledgers(lambda one: False, recover=True))

    async def _ledgers(
        self, chosen: Callable[[LedgerMetadata], bool], *, recover: bool = False
    ) -> list[int]:
        async with Session(self.zookeeper.servers) as session:
            found: list[int] = []
            for ledger in await session.client.list_ledgers():
                if recover:
                    await session.client.recover(ledger)
                if chosen(await session.client.read_metadata(ledger)):
                    found.append(ledger)
            return found

    def under_replicated(self) -> list[int]:
        """Ledgers on the list of those that lack copies."""
        return asyncio.run(self._under_replicated())

    async def _under_replicated(self) -> list[int]:
        async with Session(self.zookeeper.servers) as session:
            paths = await session.metadata.paths("/ledgers/underreplication/ledgers")
            return [ledger for path in paths if (ledger := ledger_of_node(path)) is not None]

    def stop(self) -> None:
        """Nothing of it runs any more."""
        self.end_clients()
        for auditor in self.auditors:
            if auditor.exit_code is None:
                auditor.stop()
        for bookie in self.bookies:
            if bookie.running:
                bookie.stop()
        for proxy in self.proxies:
            if proxy.running:
                proxy.stop()
        if self.zookeeper.running:
            self.zookeeper.stop()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()
