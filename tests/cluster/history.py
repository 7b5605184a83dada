"""What writers were told and readers were shown, and whether the cluster kept it.

A log line is one fact: `A ledger entry at_ms` the writer was told that the entry is kept, `C ledger
last` that the ledger is closed, `F ledger why` it gave the ledger up, `D ledger entry` a reader was
shown it, `X ledger` its deletion was asked for. Payloads follow from ledger and entry, so every
byte can be judged.
"""

from __future__ import annotations

import asyncio
import os
import random
from collections import defaultdict
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from zlib import crc32

from ledger.client.client import LedgerClient
from ledger.client.reader import LedgerReader
from ledger.core.entry_format import EntryFormat
from ledger.core.ledger_metadata import LedgerMetadata
from ledger.errors import CorruptFormat, LedgerError
from ledger.ids import BookieId, EntryId, LedgerId
from ledger.ports.bookies import Bookies, ReadManyReply, Status

CHUNK_BYTES = 1024 * 1024
PAYLOAD_BYTES_MAX = 600
LEDGERS_AT_ONCE = 8
AGAIN_S = 0.1
PATIENCE_S = 60.0  # for one ledger, while what it raises may pass
COPY_PATIENCE_S = 10.0  # for one read of a bookie whose connection breaks, or that has no room
_POOL = random.Random(2).randbytes(65_536 + PAYLOAD_BYTES_MAX)


def payload(ledger: int, entry: int) -> bytes:
    """The one payload that this entry can have."""
    head = b"%d:%d:" % (ledger, entry)
    drawn = crc32(head)
    start = drawn & 0xFFFF
    return head + _POOL[start : start + (drawn >> 16) % (PAYLOAD_BYTES_MAX + 1)]


class Log:
    """Facts of one process, written at once: they outlive its kill -9."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def write(self, line: str) -> None:
        os.write(self._file, line.encode() + b"\n")


@dataclass
class Told:
    """The facts of all logs of one kind."""

    acked: dict[int, list[int]] = field(default_factory=lambda: defaultdict(list))
    at_ms: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    closed: dict[int, int] = field(default_factory=dict)
    given_up: list[str] = field(default_factory=list)
    shown: dict[tuple[str, int], list[int]] = field(default_factory=lambda: defaultdict(list))
    deleted: set[int] = field(default_factory=set)

    def count(self) -> int:
        """Entries acknowledged."""
        return sum(map(len, self.acked.values()))

    def longest_gap_ms(self, from_ms: float, to_ms: float) -> float:
        """Without an acknowledgement of one and the same writer, the worst of them, from then to
        then.
        """
        return max(longest_gap_ms(times, from_ms, to_ms) for times in self.at_ms.values())


def longest_gap_ms(times_ms: Iterable[float], from_ms: float, to_ms: float) -> float:
    """Between two of these times, and to either end of the span."""
    inside = [from_ms, *(at for at in times_ms if from_ms < at < to_ms), to_ms]
    return max(later - earlier for earlier, later in pairwise(inside))


def told(*logs: Path) -> Told:
    """What these logs say. The last line of a killed process may be torn: it was not told."""
    facts = Told()
    for log in logs:
        text = log.read_text() if log.exists() else ""
        for line in text.splitlines(keepends=True):
            if line.endswith("\n"):
                _take(facts, log.name, line.split())
    return facts


def _take(facts: Told, log: str, words: list[str]) -> None:
    kind, ledger = words[0], int(words[1])
    match kind:
        case "A":
            facts.acked[ledger].append(int(words[2]))
            facts.at_ms[log].append(float(words[3]))
        case "D":
            facts.shown[log, ledger].append(int(words[2]))
        case "C":
            facts.closed[ledger] = int(words[2])
        case "F":
            facts.given_up.append(" ".join(words))
        case "X":
            facts.deleted.add(ledger)
        case _:
            raise AssertionError(f"{log}: {words}")


class Judge:
    """Looks at every ledger there is; what is wrong is a line of `faults`."""

    def __init__(
        self, client: LedgerClient, bookies: Bookies, patience_s: float = PATIENCE_S
    ) -> None:
        self.faults: list[str] = []
        self.entries = 0
        self._client = client
        self._bookies = bookies
        self._patience_s = patience_s

    async def judge(
        self, facts: Told, *, all_copies: bool = False, among: Collection[int] | None = None
    ) -> list[str]:
        """Every acknowledged entry is there once, in order, on Qa good copies (or on all Qw).

        Every copy that there is has the payload that was written, and no reader was shown what is
        not there. `among`: only these ledgers. Ledgers are closed by it.
        """
        there = set(await self._client.list_ledgers())
        wanted = there | facts.acked.keys() if among is None else set(among)
        self.faults += [
            f"ledger {ledger}: acknowledged, and gone"
            for ledger in sorted(wanted & facts.acked.keys() - there - facts.deleted)
        ]
        waiting = sorted(wanted & there, reverse=True)

        async def work() -> None:
            while waiting:
                await self._judge_ledger(LedgerId(waiting.pop()), facts, all_copies)

        await asyncio.gather(*[work() for _ in range(LEDGERS_AT_ONCE)])
        self.faults.sort()
        return self.faults

    async def _judge_ledger(self, ledger: LedgerId, facts: Told, all_copies: bool) -> None:
        try:
            reader = await retried(lambda: self._client.recover(ledger), self._patience_s)
            metadata = await retried(lambda: self._client.read_metadata(ledger))
            await self._read(reader, metadata)
        except LedgerError as error:
            if ledger not in facts.deleted:
                self._say(ledger, f"unreadable: {type(error).__name__}: {error}")
            return
        assert metadata.closed and metadata.last_entry is not None
        self._hold_against(ledger, metadata.last_entry, facts)
        self.entries += metadata.last_entry + 1
        await self._count_copies(metadata, metadata.write_quorum if all_copies else None)

    def _hold_against(self, ledger: LedgerId, last: int, facts: Told) -> None:
        """What was told and shown of a ledger that ends at `last`."""
        acked = facts.acked.get(ledger, [])
        for place, entry in enumerate(acked):
            if entry != place:
                self._say(ledger, f"acknowledged out of order: {entry} as number {place}")
                break
        if max(acked, default=-1) > last:
            self._say(ledger, f"acknowledged {max(acked)}, closed at {last}")
        if facts.closed.get(ledger, last) != last:
            self._say(ledger, f"its writer closed it at {facts.closed[ledger]}, not at {last}")
        for (reader, shown_ledger), entries in facts.shown.items():
            if shown_ledger == ledger and max(entries) > last:
                self._say(ledger, f"{reader} was shown {max(entries)}, closed at {last}")

    async def _read(self, reader: LedgerReader, metadata: LedgerMetadata) -> None:
        """Every entry as a reader gets it."""
        ledger, last = metadata.ledger, metadata.last_entry
        assert last is not None
        entry = 0
        while entry <= last:
            at = EntryId(entry)
            for read, data in await retried(lambda at=at: reader.read(at, last, CHUNK_BYTES)):
                if read != entry or data != payload(ledger, entry):
                    self._say(ledger, f"entry {entry} reads as {read}, {bytes(data[:30])!r}")
                entry += 1

    async def _count_copies(self, metadata: LedgerMetadata, wanted: int | None) -> None:
        members = sorted({b for fragment in metadata.fragments for b in fragment.ensemble})
        held = dict(
            zip(
                members,
                await asyncio.gather(*[self._good_copies(metadata, each) for each in members]),
                strict=True,
            )
        )
        assert metadata.last_entry is not None
        for number in range(metadata.last_entry + 1):
            entry = EntryId(number)
            holders = [bookie for bookie in metadata.bookies_of(entry) if entry in held[bookie]]
            if len(holders) < (wanted or metadata.ack_quorum):
                self._say(
                    metadata.ledger,
                    f"entry {entry} only on {holders} of {metadata.bookies_of(entry)}",
                )

    async def _good_copies(self, metadata: LedgerMetadata, bookie: BookieId) -> set[int]:
        """The entries of its write sets that this bookie shows as they were written."""
        ledger, last = metadata.ledger, metadata.last_entry
        assert last is not None
        entries = EntryFormat(metadata.digest_type, metadata.password)
        good: set[int] = set()
        number = 0
        while number <= last:
            reply = await self._answer(bookie, ledger, EntryId(number), last)
            bodies = reply.bodies if reply.status is Status.OK else ()
            for body in bodies:
                try:
                    data = bytes(entries.unpack(body, ledger, EntryId(number)))
                except CorruptFormat as error:
                    data = str(error).encode()
                if data == payload(ledger, number):
                    good.add(number)
                else:
                    self._say(ledger, f"entry {number} is wrong on {bookie}: {data[:50]!r}")
                number += 1
            number += 0 if bodies else 1
        return good

    async def _answer(
        self, bookie: BookieId, ledger: LedgerId, first: EntryId, last: EntryId
    ) -> ReadManyReply:
        """What the bookie says. One that is registered and says nothing yet is asked again."""
        loop = asyncio.get_running_loop()
        until_s = loop.time() + min(self._patience_s, COPY_PATIENCE_S)
        while True:
            reply = await self._bookies.read_many(bookie, ledger, first, last, CHUNK_BYTES)
            silent = reply.status in (Status.UNREACHABLE, Status.OVERLOADED)
            if not silent or bookie not in self._bookies.registered() or loop.time() > until_s:
                return reply
            await asyncio.sleep(AGAIN_S)

    def _say(self, ledger: LedgerId, what: str) -> None:
        self.faults.append(f"ledger {ledger}: {what}")


async def retried(attempt, patience_s: float = PATIENCE_S):
    """The result of `attempt`, again and again while what it raises may pass."""
    loop = asyncio.get_running_loop()
    until_s = loop.time() + patience_s
    while True:
        try:
            return await attempt()
        except LedgerError as error:
            if not error.retryable or loop.time() > until_s:
                raise
            await asyncio.sleep(AGAIN_S)


def judge_readers(facts: Told) -> list[str]:
    """Each reader was shown each ledger from its start, in order, nothing twice, no holes."""
    faults: list[str] = []
    for (reader, ledger), entries in facts.shown.items():
        for place, entry in enumerate(entries):
            if entry != place:
                faults.append(f"ledger {ledger}: {reader} was shown {entry} as number {place}")
                break
    return faults
