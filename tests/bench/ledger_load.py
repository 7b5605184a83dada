"""Our ledger client under load: ledgers of E 3, Qw 3, Qa 2 with CRC32C digests.

    python -m tests.bench.ledger_load ZOOKEEPER ENTRY_BYTES SECONDS IN_FLIGHT adds,single,reads

"adds" keeps IN_FLIGHT adds pending, "single" waits for each, "reads" goes through a ledger added
before. Each part runs once before it counts. One JSON line tells. It is the twin of
java/BookKeeperLoad.java.
"""

from __future__ import annotations

import asyncio
import json
import random
import statistics
import sys
import time
from collections.abc import Callable, Coroutine
from typing import Any

from ledger.adapters.open_bookies import open_bookies
from ledger.adapters.system.clock import SystemClock
from ledger.adapters.system.memory import collect_rarely
from ledger.adapters.system.process import loop_factory
from ledger.adapters.zookeeper.zookeeper_metadata import connect_zookeeper
from ledger.client.client import LedgerClient
from ledger.client.writer import LedgerWriter
from ledger.errors import LedgerError
from ledger.ids import LedgerId
from ledger.ports.bookies import BookieTransport
from ledger.registry.discovery import Discovery

RANGE = 16  # entries that one read asks for
RANGES = 4  # such reads in flight
Said = dict[str, float]


class Load:
    """One client; what each part showed goes into `said`."""

    def __init__(self, client: LedgerClient, entry_bytes: int, in_flight: int) -> None:
        self._client = client
        self._payload = (random.Random(1).randbytes(entry_bytes),)
        self._in_flight = in_flight
        self._written: LedgerId | None = None  # what is read
        self.parts: dict[str, Callable[[float, Said], Coroutine[Any, Any, Any]]] = {
            "adds": self.adds,
            "single": self.single,
            "reads": self.reads,
        }

    async def _create(self) -> LedgerWriter:
        return await self._client.create(ensemble_size=3, write_quorum=3, ack_quorum=2)

    async def adds(self, seconds: float, said: Said) -> LedgerId:
        writer, pump = await self._create(), Pump(self._in_flight)
        add, payload, clock = writer.add, self._payload, time.perf_counter
        started_s = clock()
        ends_s = started_s + seconds
        added = 0
        while clock() < ends_s:
            while pump.room > 0:
                pump.room -= 1
                add(payload, pump.on_confirmed)
                added += 1
            await pump.wait(1)
        await pump.wait(self._in_flight)
        took_s = clock() - started_s
        await writer.close()
        said["adds"], said["adds_per_s"] = added, added / took_s
        return writer.ledger

    async def single(self, seconds: float, said: Said) -> None:
        writer, pump = await self._create(), Pump(1)
        took_s: list[float] = []
        ends_s = time.perf_counter() + seconds
        while (started_s := time.perf_counter()) < ends_s:
            pump.room -= 1
            writer.add(self._payload, pump.on_confirmed)
            await pump.wait(1)
            took_s.append(time.perf_counter() - started_s)
        await writer.close()
        took_s.sort()
        said["single_adds"] = len(took_s)
        said["single_ms_mean"] = statistics.fmean(took_s) * 1e3
        said["single_ms_p50"] = took_s[len(took_s) // 2] * 1e3
        said["single_ms_p99"] = took_s[int(len(took_s) * 0.99)] * 1e3

    async def reads(self, seconds: float, said: Said) -> None:
        """Entries in order, from the first to the last and again, some ranges in flight."""
        if self._written is None:
            self._written = await self.adds(seconds, {})
        reader = await self._client.open(self._written)
        last = reader.last_add_confirmed
        starts = range(0, last + 1, RANGE)
        started_s = time.perf_counter()
        ends_s = started_s + seconds
        turn = read = 0

        async def ranges() -> None:
            nonlocal turn, read
            while time.perf_counter() < ends_s:
                first = starts[turn % len(starts)]
                turn += 1
                end = min(first + RANGE - 1, last)
                entries = await reader.read(first, end, 2**30)
                assert len(entries) == end - first + 1
                assert all(len(payload) == len(self._payload[0]) for _, payload in entries)
                read += len(entries)

        await asyncio.gather(*(ranges() for _ in range(RANGES)))
        said["reads"], said["reads_per_s"] = read, read / (time.perf_counter() - started_s)


class Pump:
    """So many adds may be pending; wakes its one waiter when there is room again."""

    def __init__(self, room: int) -> None:
        self.room = room
        self._wanted = 0
        self._waiting: asyncio.Future[None] | None = None

    def on_confirmed(self, error: LedgerError | None) -> None:
        assert error is None, error
        self.room += 1
        if self._waiting is not None and self.room >= self._wanted:
            self._waiting.set_result(None)
            self._waiting = None

    async def wait(self, wanted: int) -> None:
        if self.room < wanted:
            self._wanted = wanted
            self._waiting = asyncio.get_running_loop().create_future()
            await self._waiting


async def main(
    servers: str, entry_bytes: int, seconds: float, in_flight: int, parts: list[str]
) -> Said:
    store = await connect_zookeeper(servers)
    discovery = Discovery(store)
    await discovery.start()
    bookies = open_bookies(discovery.registered, BookieTransport.TCP, None)
    load = Load(LedgerClient(store, bookies, SystemClock()), entry_bytes, in_flight)
    collect_rarely()  # as gateways and bookies do
    said: Said = {"entry_bytes": entry_bytes}
    for part in parts:
        await load.parts[part](seconds / 2, {})
        await load.parts[part](seconds, said)
    await bookies.close()
    await discovery.stop()
    await store.close()
    return said


if __name__ == "__main__":
    servers, entry_bytes, seconds, in_flight, parts = sys.argv[1:]
    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        told = runner.run(
            main(servers, int(entry_bytes), float(seconds), int(in_flight), parts.split(","))
        )
    print(json.dumps(told))
