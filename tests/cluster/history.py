"""What writers were told and readers were shown, and whether the cluster kept it.

A log line is one fact: `A ledger entry at_ms` the writer was told that the entry is kept, `F ledger
why` it gave the ledger up, `D ledger entry` a reader was shown it. Payloads follow from ledger and
entry, so every byte can be judged.
"""

from __future__ import annotations

import os
import random
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path

from ledger.client.client import LedgerClient
from ledger.core.entry_format import EntryFormat
from ledger.core.ledger_metadata import LedgerMetadata
from ledger.errors import CorruptFormat
from ledger.ids import BookieId, EntryId, LedgerId
from ledger.world.bookies import Bookies, Status

CHUNK_BYTES = 1024 * 1024


def payload(ledger: int, entry: int) -> bytes:
    """The one payload that this entry can have."""
    draw = random.Random(f"{ledger}:{entry}")
    return b"%d:%d:" % (ledger, entry) + draw.randbytes(draw.randint(0, 600))


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
    at_ms: list[float] = field(default_factory=list)
    given_up: list[str] = field(default_factory=list)
    shown: dict[tuple[str, int], list[int]] = field(default_factory=lambda: defaultdict(list))

    def longest_pause_ms(self) -> float:
        """Between two acknowledgements of one writer's log."""
        pairs = zip(self.at_ms, self.at_ms[1:], strict=False)
        return max((later - earlier for earlier, later in pairs), default=0.0)

    def count(self) -> int:
        return sum(map(len, self.acked.values()))


def told(*logs: Path) -> Told:
    """What these logs say. The last line of a killed process may be torn: it was not told."""
    facts = Told()
    for log in logs:
        text = log.read_text() if log.exists() else ""
        for line in text.splitlines(keepends=True):
            words = line.split()
            if not line.endswith("\n"):
                continue
            if words[0] == "A":
                facts.acked[int(words[1])].append(int(words[2]))
                facts.at_ms.append(float(words[3]))
            elif words[0] == "D":
                facts.shown[log.name, int(words[1])].append(int(words[2]))
            elif words[0] == "F":
                facts.given_up.append(line.strip())
    return facts


class Judge:
    """Looks at every ledger there is; what is wrong is a line of `faults`."""

    def __init__(self, client: LedgerClient, bookies: Bookies) -> None:
        self.faults: list[str] = []
        self.entries = 0
        self._client = client
        self._bookies = bookies

    async def judge(self, facts: Told, *, all_copies: bool = False) -> list[str]:
        """Every acknowledged entry is there once, in order, on Qa good copies (or on all Qw)."""
        ledgers = await self._client.list_ledgers()
        self.faults += [
            f"ledger {ledger}: acknowledged, and gone"
            for ledger in facts.acked
            if ledger not in ledgers
        ]
        for ledger in ledgers:
            await self._judge_ledger(ledger, facts.acked.get(ledger, []), all_copies)
        return self.faults

    async def _judge_ledger(self, ledger: LedgerId, acked: list[int], all_copies: bool) -> None:
        reader = await self._client.recover(ledger)
        metadata = await self._client.read_metadata(ledger)
        assert metadata.closed and metadata.last_entry is not None
        last = metadata.last_entry
        if acked != list(range(len(acked))):
            self.faults.append(f"ledger {ledger}: acknowledged out of order: {acked[:50]}")
        if acked and acked[-1] > last:
            self.faults.append(f"ledger {ledger}: acknowledged {acked[-1]}, closed at {last}")
        entry = 0
        while entry <= last:
            for read, data in await reader.read(EntryId(entry), last, CHUNK_BYTES):
                if read != entry or data != payload(ledger, entry):
                    self.faults.append(f"ledger {ledger}: entry {entry} reads as {read}")
                entry += 1
        self.entries += last + 1
        await self._count_copies(metadata, metadata.write_quorum if all_copies else None)

    async def _count_copies(self, metadata: LedgerMetadata, wanted: int | None) -> None:
        members = {bookie for fragment in metadata.fragments for bookie in fragment.ensemble}
        held = {bookie: await self._good_copies(metadata, bookie) for bookie in members}
        assert metadata.last_entry is not None
        for number in range(metadata.last_entry + 1):
            entry = EntryId(number)
            holders = [bookie for bookie in metadata.bookies_of(entry) if entry in held[bookie]]
            if len(holders) < (wanted or metadata.ack_quorum):
                self.faults.append(
                    f"ledger {metadata.ledger}: entry {entry} only on {holders} of "
                    f"{metadata.bookies_of(entry)}"
                )

    async def _good_copies(self, metadata: LedgerMetadata, bookie: BookieId) -> set[EntryId]:
        """The entries of its write sets that this bookie shows as they were written."""
        ledger, last = metadata.ledger, metadata.last_entry
        assert last is not None
        entries = EntryFormat(metadata.digest_type, metadata.password)
        good: set[EntryId] = set()
        number = 0
        while number <= last:
            entry = EntryId(number)
            reply = await self._bookies.read_many(bookie, ledger, entry, last, CHUNK_BYTES)
            bodies = reply.bodies if reply.status is Status.OK else ()
            for body in bodies:
                entry = EntryId(number)
                try:
                    data = entries.unpack(body, ledger, entry)
                except CorruptFormat:
                    data = b""
                if data == payload(ledger, entry):
                    good.add(entry)
                number += 1
            number += 0 if bodies else 1
        return good


def judge_readers(facts: Told) -> list[str]:
    """Each reader was shown each ledger from its start, in order, nothing twice, no holes."""
    return [
        f"{reader}, ledger {ledger}: shown {entries[:50]}"
        for (reader, ledger), entries in facts.shown.items()
        if entries != list(range(len(entries)))
    ]
