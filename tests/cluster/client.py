"""One process that writes, or reads, ledgers of a cluster and logs what it is told.

    python -m tests.cluster.client write ZOOKEEPER LOG [E,Qw,Qa ...]
    python -m tests.cluster.client pace ZOOKEEPER LOG
    python -m tests.cluster.client read ZOOKEEPER LOG [FIRST]

A writer adds to one ledger after another, of the shapes given in turn; one that fails is recovered,
and the next begun. `pace` stays with one ledger and adds to it evenly. A reader follows every
ledger from id FIRST on, from its first entry, while it grows. All end with a signal.
"""

from __future__ import annotations

import asyncio
import itertools
import math
import sys
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from ledger.adapters.system.clock import SystemClock
from ledger.adapters.tcp.tcp_bookies import TcpBookies
from ledger.adapters.tcp.tcp_config import TcpClientConfig
from ledger.adapters.zookeeper.zookeeper_metadata import ZooKeeperMetadata, connect_zookeeper
from ledger.client.client import LedgerClient
from ledger.client.config import LedgerClientConfig
from ledger.client.tail import TailReader
from ledger.client.writer import LedgerWriter
from ledger.errors import LedgerError, NoSuchLedger
from ledger.ids import EntryId, LedgerId
from ledger.registry.discovery import Discovery
from tests.cluster.history import AGAIN_S, Log, payload, retried

SHAPE = "3,3,2"  # ensemble, write quorum, ack quorum
ENTRIES_PER_LEDGER = 400
GROUP = 20  # entries sent together
PAUSE_S = 0.04
PACE_S = 0.004
ADD_TIMEOUT_S = 4.0  # a silent bookie is replaced after it; all are silent while a machine is
SESSION_MS = 2_000
LIST_S = 0.3


class Session:
    """A client process's view of the cluster."""

    def __init__(self, zookeeper: str, session_ms: int = SESSION_MS) -> None:
        self._zookeeper = zookeeper
        self._session_ms = session_ms

    async def __aenter__(self) -> Session:
        servers, slash, path = self._zookeeper.partition("/")
        self.metadata: ZooKeeperMetadata = await connect_zookeeper(
            servers, session_ms=self._session_ms, chroot=slash + path
        )
        self.discovery = Discovery(self.metadata)
        await self.discovery.start()
        wire = TcpClientConfig(add_timeout_s=ADD_TIMEOUT_S)
        self.bookies = TcpBookies(self.discovery.registered, wire)
        self.config = LedgerClientConfig(read_timeout_s=2.0)
        self.client = LedgerClient(self.metadata, self.bookies, SystemClock(), self.config)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.bookies.close()
        await self.discovery.stop()
        await self.metadata.close()


def patiently(attempt):
    """As `retried`, for ever."""
    return retried(attempt, math.inf)


class Writer:
    def __init__(self, session: Session, log: Log, shapes: Sequence[str] = ()) -> None:
        self._session = session
        self._log = log
        self._shapes = itertools.cycle(shapes or (SHAPE,))

    async def run(self) -> None:
        for shape in self._shapes:
            await self._write(await patiently(partial(self._create, shape)))

    async def _create(self, shape: str) -> LedgerWriter:
        ensemble, write, ack = map(int, shape.split(","))
        return await self._session.client.create(
            ensemble_size=ensemble, write_quorum=write, ack_quorum=ack
        )

    async def _write(self, writer: LedgerWriter) -> None:
        """The ledger is full and closed; or given up, and recovered."""
        try:
            for _ in range(ENTRIES_PER_LEDGER // GROUP):
                await self.add_group(writer)
                await asyncio.sleep(PAUSE_S)
            last = await writer.close()
            self._log.write(f"C {writer.ledger} {last}")
        except LedgerError as error:
            self._log.write(f"F {writer.ledger} {type(error).__name__}: {error}")
            try:
                await patiently(lambda: self._session.client.recover(writer.ledger))
            except NoSuchLedger:
                pass

    async def add_group(self, writer: LedgerWriter, entries: int = GROUP) -> None:
        """So many entries were sent; raises what the ledger has failed with."""
        await writer.room()
        for _ in range(entries):
            if writer.failed is not None:
                raise writer.failed
            if writer.full:
                await writer.room()
            entry = EntryId(writer.lap + 1)

            def on_confirmed(error: LedgerError | None, entry: EntryId = entry) -> None:
                if error is None:
                    at_ms = time.monotonic() * 1000
                    self._log.write(f"A {writer.ledger} {entry} {at_ms:.1f}")

            writer.add((payload(writer.ledger, entry),), on_confirmed)


async def pace(session: Session, log: Log) -> None:
    """An entry every few milliseconds, for ever; raises what the ledger fails with."""
    writer = await session.client.create(ensemble_size=3, write_quorum=3, ack_quorum=2)
    told = Writer(session, log)
    while True:
        await told.add_group(writer, 1)
        await asyncio.sleep(PACE_S)


class Follower:
    def __init__(self, session: Session, log: Log, first: int) -> None:
        self._session = session
        self._log = log
        self._first = first
        self._known: dict[LedgerId, asyncio.Task[None]] = {}
        self._wanted: dict[LedgerId, int] = {}

    async def run(self) -> None:
        while True:
            for ledger in await patiently(self._session.client.list_ledgers):
                if ledger >= self._first and ledger not in self._known:
                    self._known[ledger] = asyncio.create_task(self._follow_or_leave(ledger))
            failed = [task for task in self._known.values() if task.done() and task.exception()]
            if failed:
                raise SystemExit(f"a reader failed: {failed[0].exception()!r}")
            await asyncio.sleep(LIST_S)

    async def _follow_or_leave(self, ledger: LedgerId) -> None:
        try:
            await self._follow(ledger)
        except NoSuchLedger:
            pass  # whether it may be gone is for the judge to say

    async def _follow(self, ledger: LedgerId) -> None:
        session = self._session
        self._wanted[ledger] = 0
        for _ in itertools.count():
            reader = await patiently(lambda: session.client.open(ledger))
            health = session.client.health
            tail = TailReader(reader, session.bookies, session.config, health)
            try:
                await self._follow_to_the_end(ledger, tail)
                return
            except LedgerError as error:
                if not error.retryable:
                    raise
                await asyncio.sleep(AGAIN_S)
            finally:
                tail.close()

    async def _follow_to_the_end(self, ledger: LedgerId, tail: TailReader) -> None:
        async for entry, data in tail.follow(EntryId(self._wanted[ledger])):
            if data != payload(ledger, entry):
                raise SystemExit(f"ledger {ledger}: entry {entry} is not as written")
            self._log.write(f"D {ledger} {entry}")
            self._wanted[ledger] = entry + 1


async def main(role: str, zookeeper: str, log: Path, words: Sequence[str]) -> None:
    async with Session(zookeeper) as session:
        print("started", flush=True)
        if role == "write":
            await Writer(session, Log(log), words).run()
        elif role == "pace":
            await pace(session, Log(log))
        else:
            first = int(words[0]) if words else 0
            await Follower(session, Log(log), first).run()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2], Path(sys.argv[3]), sys.argv[4:]))
