"""A bookie small enough to be believed: entries in a dict, a journal that syncs one by one.

It has the calls of the bookies port but for the bookie's name, as `DiskBookie` has, so a cluster
may run on either. What is accepted becomes durable in order, after a delay; a crash drops what is
not durable. A fence takes effect at once and is answered once it is durable, after everything
accepted before it. What is in limbo is never denied, only shown or unknown.
"""

import asyncio
import copy
from dataclasses import dataclass, field

from ledger.core.entry_format import read_header
from ledger.core.fencing import same_entry
from ledger.ids import EntryId
from ledger.ports.bookies import (
    BookieStats,
    EntriesReply,
    LocateReply,
    ReadManyReply,
    ReadReply,
    Status,
)

NO_ENTRY = EntryId(-1)
DAMAGES = ("unreadable", "payload", "lac")
DISK_BYTES = 1 << 30


def runs_of(entries):
    """Rising ids as (first, last) pairs."""
    runs = []
    for entry in entries:
        if runs and runs[-1][1] == entry - 1:
            runs[-1] = (runs[-1][0], entry)
        else:
            runs.append((entry, entry))
    return tuple(runs)


@dataclass
class Stored:
    """What one bookie durably knows of one ledger."""

    key: bytes
    fenced: bool = False
    entries: dict = field(default_factory=dict)
    highest_lac: int = -1
    limbo: bool = False


class ModelBookie:
    """`sync_s()` draws how long each journal write takes."""

    def __init__(self, sync_s):
        self.ledgers = {}  # durable
        self.keys = {}  # as accepted, durable or not; forgotten by a crash
        self.fencing = set()
        self.up = True  # a new one serves at once
        self.read_only = False
        self.overloaded = False
        self.limbo_below = 0  # ledgers below it that are unknown here are in limbo, not absent
        self.deleted = set()  # ledgers that were collected
        self.rotten = {}  # by (ledger, entry): a name in `DAMAGES`
        self.conflicts = 0  # adds whose payload differs from what is stored
        self._waiting = {}  # by ledger: who waits for a higher LAC
        self._sync_s = sync_s
        self._incarnation = 0
        self._settled_at_s = 0.0
        self._settles = {}  # the newest accepted journal write of each ledger

    async def start(self):
        self.restart()

    @property
    def start_id(self):
        return f"start-{self._incarnation}"

    def crash(self):
        """Nothing that was not durable is left, and nothing under way is answered."""
        self.up = False
        self._incarnation += 1

    def kill(self):
        self.crash()

    def restart(self):
        self.up = True
        self.keys = {ledger: stored.key for ledger, stored in self.ledgers.items()}
        self.fencing = {ledger for ledger, stored in self.ledgers.items() if stored.fenced}
        self._settles = {}

    @property
    def writable(self):
        return self.up and not self.read_only

    def wipe(self):
        """Its disk is empty. It does not serve until `restart`."""
        self.crash()
        self.ledgers = {}
        self.deleted = set()
        self.rotten = {}
        self.limbo_below = 0

    def keep(self):
        """A copy of its disk, for `put_back`."""
        return copy.deepcopy((self.ledgers, self.deleted, self.limbo_below))

    def put_back(self, kept):
        """Its disk is as it once was. It does not serve until `restart`."""
        self.crash()
        self.ledgers, self.deleted, self.limbo_below = copy.deepcopy(kept)

    def rot(self, draw):
        """All that it holds is damaged. False if nothing is."""
        for ledger, stored in self.ledgers.items():
            for entry in stored.entries:
                self.rotten[ledger, entry] = draw.choice(DAMAGES)
        return bool(self.ledgers)

    def delete_ledger(self, ledger):
        """Nothing of it is left, and none of its adds is ever taken again."""
        self.ledgers.pop(ledger, None)
        self.deleted.add(ledger)

    def begin_limbo(self, next_ledger):
        """It may have lost entries and fences of every ledger below `next_ledger`."""
        self.limbo_below = max(self.limbo_below, next_ledger)
        for ledger, stored in self.ledgers.items():
            if ledger < next_ledger:
                stored.limbo = stored.fenced = True
                self.fencing.add(ledger)

    def durable_entries(self, ledger):
        """Bodies by entry id, as they would be found after a power cut now."""
        stored = self.ledgers.get(ledger)
        return {} if stored is None else stored.entries

    def add(self, ledger, entry, master_key, body, on_added, *, recovery=False):
        assert self.up
        if ledger in self.deleted:
            self._soon(on_added, Status.NO_LEDGER)
            return
        if self.keys.setdefault(ledger, master_key) != master_key:
            self._soon(on_added, Status.UNAUTHORIZED)
            return
        if not recovery and (ledger in self.fencing or self._is_lost(ledger)):
            self._soon(on_added, Status.FENCED)
            return
        if self.read_only and not recovery:
            self._soon(on_added, Status.READ_ONLY)
            return
        if self.overloaded:
            self._soon(on_added, Status.OVERLOADED)
            return
        whole = b"".join(body)

        def store():
            if ledger in self.deleted:
                on_added(Status.NO_LEDGER)
                return
            stored = self._stored(ledger, master_key)
            if (ledger, entry) in self.rotten:
                del self.rotten[ledger, entry]
                stored.entries[entry] = whole
            if not same_entry(stored.entries.setdefault(entry, whole), whole):
                self.conflicts += 1
                on_added(Status.BAD_REQUEST)
                return
            stored.highest_lac = max(stored.highest_lac, read_header(whole).lac)
            on_added(Status.OK)
            self._wake(ledger)

        self._journal(ledger, store)

    def read(self, ledger, entry, *, fence_key=None):
        if fence_key is not None:
            if self.keys.setdefault(ledger, fence_key) != fence_key:
                return self._at_once(ReadReply(Status.UNAUTHORIZED))
            self.fencing.add(ledger)

            def fence():
                self._stored(ledger, fence_key).fenced = True
                self._wake(ledger)

            self._journal(ledger, fence)
        return self._settled(ledger, lambda: self._read(ledger, entry))

    async def fence_many(self, ledgers):
        asked = [self.read(ledger, NO_ENTRY, fence_key=key) for ledger, key in ledgers]
        return list(await asyncio.gather(*asked))

    def _at_once(self, reply):
        answer = asyncio.get_running_loop().create_future()
        answer.set_result(reply)
        return answer

    def _settled(self, ledger, reply):
        """What `reply()` says once all accepted so far for this ledger is durable."""
        settles = self._settles.get(ledger)
        if settles is None:
            return self._at_once(reply())
        answer = asyncio.get_running_loop().create_future()

        def tell(_):
            if not answer.cancelled():
                answer.set_result(reply())

        settles.add_done_callback(tell)
        return answer

    def _read(self, ledger, entry):
        stored = self.ledgers.get(ledger)
        if stored is None:
            return ReadReply(self._nothing(ledger))
        if entry == NO_ENTRY:
            if stored.limbo:
                return ReadReply(self._nothing(ledger))
            entry = max(stored.entries, default=NO_ENTRY)
        if entry not in stored.entries:
            return ReadReply(self._nothing(ledger), lac=EntryId(stored.highest_lac))
        if self._cannot_be_read(ledger, entry):
            return ReadReply(self._rotten())
        return ReadReply(Status.OK, self._body(ledger, entry), EntryId(stored.highest_lac))

    def _cannot_be_read(self, ledger, entry):
        return self.rotten.get((ledger, entry)) == "unreadable"

    def _body(self, ledger, entry):
        """As it is on the disk."""
        body = self.ledgers[ledger].entries[entry]
        damage = self.rotten.get((ledger, entry))
        if damage == "payload":
            return body[:-1] + bytes([body[-1] ^ 1])
        if damage == "lac":
            return body[:16] + (entry - 1).to_bytes(8, "big", signed=True) + body[24:]
        return body

    def _rotten(self):
        return Status.IO_ERROR

    def _is_lost(self, ledger):
        """Nothing is known here of a ledger that may have been here."""
        lost = ledger not in self.ledgers and ledger < self.limbo_below
        return lost and ledger not in self.deleted

    def _nothing(self, ledger):
        """What to answer when the entry is not here."""
        if self._is_lost(ledger):
            return Status.UNKNOWN_LEDGER_STATE
        stored = self.ledgers.get(ledger)
        if stored is None:
            return Status.NO_LEDGER
        return Status.UNKNOWN_LEDGER_STATE if stored.limbo else Status.NO_ENTRY

    def read_many(self, ledger, first, last, max_bytes, *, from_disk=False):
        bodies, size = [], 0
        reply = self._read(ledger, first)
        entries = self.durable_entries(ledger)
        for entry in range(first, last + 1):
            if entry not in entries or self._cannot_be_read(ledger, entry):
                break
            if bodies and size >= max_bytes:
                break
            bodies.append(self._body(ledger, entry))
            size += len(entries[entry])
        return self._at_once(ReadManyReply(reply.status, bodies, reply.lac))

    def read_lac(self, ledger):
        stored = self.ledgers.get(ledger)
        if stored is None or stored.limbo:
            return self._at_once(ReadReply(self._nothing(ledger)))
        return self._at_once(ReadReply(Status.OK, lac=EntryId(stored.highest_lac)))

    def write_lac(self, ledger, master_key, lac):
        if self.keys.setdefault(ledger, master_key) != master_key:
            return self._at_once(Status.UNAUTHORIZED)

        def store():
            stored = self._stored(ledger, master_key)
            stored.highest_lac = max(stored.highest_lac, lac)
            self._wake(ledger)

        self._journal(ledger, store)
        return self._settled(ledger, lambda: Status.OK)

    async def wait_lac(self, ledger, previous, timeout_s):
        """As the port says; with an entry when it is here."""
        loop = asyncio.get_running_loop()
        end_s = loop.time() + timeout_s
        while not self._has_news(ledger, previous) and loop.time() < end_s:
            waiting = loop.create_future()
            self._waiting.setdefault(ledger, []).append(waiting)
            await asyncio.wait([waiting], timeout=end_s - loop.time())
        stored = self.ledgers.get(ledger)
        if stored is None or stored.limbo:
            return ReadReply(self._nothing(ledger))
        body = b""
        if stored.highest_lac > previous and previous + 1 in stored.entries:
            body = self._read(ledger, previous + 1).body
        return ReadReply(Status.OK, body, EntryId(stored.highest_lac))

    def _has_news(self, ledger, previous):
        stored = self.ledgers.get(ledger)
        if stored is None:
            return self._is_lost(ledger)
        return stored.fenced or stored.limbo or stored.highest_lac > previous

    def _wake(self, ledger):
        for waiting in self._waiting.pop(ledger, ()):
            if not waiting.done():
                waiting.set_result(None)

    def list_entries(self, ledger):
        return self._settled(ledger, lambda: self._list(ledger))

    def _list(self, ledger):
        stored = self.ledgers.get(ledger)
        if stored is None or stored.limbo:
            return EntriesReply(self._nothing(ledger))
        return EntriesReply(Status.OK, runs_of(sorted(stored.entries)))

    def end_limbo(self, ledger, master_key, start=""):
        if start and start != self.start_id:
            return self._at_once(Status.WRONG_INSTANCE)
        if self.keys.setdefault(ledger, master_key) != master_key:
            return self._at_once(Status.UNAUTHORIZED)
        was_lost = self._is_lost(ledger)

        def end():
            stored = self._stored(ledger, master_key)
            stored.fenced = stored.fenced or stored.limbo or was_lost
            stored.limbo = False
            if stored.fenced:
                self.fencing.add(ledger)

        self._journal(ledger, end)
        return self._settled(ledger, lambda: Status.OK)

    def locate(self, ledger, entry):
        """The entries of a ledger lie in the file of its number, in the order of their ids."""
        return self._settled(ledger, lambda: self._place(ledger, entry))

    def _place(self, ledger, entry):
        stored = self.ledgers.get(ledger)
        if stored is None or entry not in stored.entries:
            return LocateReply(self._nothing(ledger))
        before = sum(len(body) for each, body in stored.entries.items() if each < entry)
        return LocateReply(Status.OK, ledger, before, len(stored.entries[entry]))

    def stats(self):
        held = sum(len(body) for one in self.ledgers.values() for body in one.entries.values())
        free = max(0, DISK_BYTES - held)
        stats = BookieStats(Status.OK, DISK_BYTES, free, len(self.ledgers), self.writable)
        return self._at_once(stats)

    def _stored(self, ledger, key):
        stored = self.ledgers.get(ledger)
        if stored is None:
            lost = self._is_lost(ledger)
            if lost:
                self.fencing.add(ledger)
            stored = self.ledgers[ledger] = Stored(key, fenced=lost, limbo=lost)
        return stored

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
                if self._settles.get(ledger) is settled:
                    del self._settles[ledger]

        loop.call_at(self._settled_at_s, run)
        return settled
