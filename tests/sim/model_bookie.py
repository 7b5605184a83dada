"""A bookie small enough to be believed: entries in a dict, a journal that syncs one by one.

It has the calls of `ledger.bookie.bookie.Bookie`, so a cluster may run on either. What is
accepted becomes durable in order, after a delay; a crash drops what is not durable. A fence takes
effect at once and is answered once it is durable, after everything accepted before it.
"""

import asyncio
from dataclasses import dataclass, field

from ledger.core.entry_format import read_header
from ledger.ids import EntryId
from ledger.world.bookies import ReadManyReply, ReadReply, Status

NO_ENTRY = EntryId(-1)


@dataclass
class Stored:
    """What one bookie durably knows of one ledger."""

    key: bytes
    fenced: bool = False
    entries: dict = field(default_factory=dict)
    explicit_lac: int = -1

    def lac(self):
        return max([self.explicit_lac, *(read_header(body).lac for body in self.entries.values())])


class ModelBookie:
    """`sync_s()` draws how long each journal write takes."""

    def __init__(self, sync_s):
        self.ledgers = {}  # durable
        self.keys = {}  # as accepted, durable or not; forgotten by a crash
        self.fencing = set()
        self.up = True  # a new one serves at once
        self._sync_s = sync_s
        self._incarnation = 0
        self._settled_at_s = 0.0
        self._settles = {}  # the newest accepted journal write of each ledger

    async def start(self):
        self.restart()

    def crash(self):
        """Nothing that was not durable is left, and nothing under way is answered."""
        self.up = False
        self._incarnation += 1

    def restart(self):
        self.up = True
        self.keys = {ledger: stored.key for ledger, stored in self.ledgers.items()}
        self.fencing = {ledger for ledger, stored in self.ledgers.items() if stored.fenced}
        self._settles = {}

    def durable_entries(self, ledger):
        """Bodies by entry id, as they would be found after a power cut now."""
        stored = self.ledgers.get(ledger)
        return {} if stored is None else stored.entries

    def add(self, ledger, entry, master_key, body, on_added, *, recovery=False):
        assert self.up
        if self.keys.setdefault(ledger, master_key) != master_key:
            self._soon(on_added, Status.UNAUTHORIZED)
            return
        if ledger in self.fencing and not recovery:
            self._soon(on_added, Status.FENCED)
            return
        whole = b"".join(body)

        def store():
            self._stored(ledger, master_key).entries[entry] = whole
            on_added(Status.OK)

        self._journal(ledger, store)

    async def read(self, ledger, entry, *, fence_key=None):
        if fence_key is not None:
            if self.keys.setdefault(ledger, fence_key) != fence_key:
                return ReadReply(Status.UNAUTHORIZED)
            self.fencing.add(ledger)

            def fence():
                self._stored(ledger, fence_key).fenced = True

            await asyncio.shield(self._journal(ledger, fence))
        elif ledger in self._settles:
            await asyncio.shield(self._settles[ledger])
        return self._read(ledger, entry)

    def _read(self, ledger, entry):
        stored = self.ledgers.get(ledger)
        if stored is None:
            return ReadReply(Status.NO_LEDGER)
        if entry == NO_ENTRY:
            entry = max(stored.entries, default=NO_ENTRY)
        if entry not in stored.entries:
            return ReadReply(Status.NO_ENTRY, lac=EntryId(stored.lac()))
        return ReadReply(Status.OK, stored.entries[entry], EntryId(stored.lac()))

    async def read_many(self, ledger, first, last, max_bytes):
        bodies, size = [], 0
        reply = self._read(ledger, first)
        entries = self.durable_entries(ledger)
        for entry in range(first, last + 1):
            if entry not in entries or (bodies and size >= max_bytes):
                break
            bodies.append(entries[entry])
            size += len(entries[entry])
        return ReadManyReply(reply.status, bodies, reply.lac)

    async def read_lac(self, ledger):
        reply = self._read(ledger, NO_ENTRY)
        status = Status.OK if reply.status is Status.NO_ENTRY else reply.status
        return ReadReply(status, lac=reply.lac)

    async def write_lac(self, ledger, master_key, lac):
        stored = self._stored(ledger, master_key)
        stored.explicit_lac = max(stored.explicit_lac, lac)
        return Status.OK

    def _stored(self, ledger, key):
        return self.ledgers.setdefault(ledger, Stored(key))

    def _soon(self, on_added, status):
        asyncio.get_running_loop().call_soon(on_added, status)

    def _journal(self, ledger, settle):
        """`settle` runs once this write is durable, after all accepted before it."""
        loop = asyncio.get_running_loop()
        self._settled_at_s = max(self._settled_at_s + 1e-9, loop.time() + self._sync_s())
        incarnation = self._incarnation
        settled = self._settles[ledger] = loop.create_future()

        def run():
            if incarnation == self._incarnation:
                settle()
                settled.set_result(None)

        loop.call_at(self._settled_at_s, run)
        return settled
