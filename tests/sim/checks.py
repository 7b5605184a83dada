"""Hears what happens in a cluster, tells every checker, and keeps what was found wrong."""

from ledger.client import metadata_format
from ledger.core.entry_format import HEADER_BYTES, EntryFormat, read_header
from ledger.errors import CorruptFormat
from ledger.ids import NO_ENTRY
from ledger.ports.bookies import Status
from tests.sim.checkers import ABSENT, ALL, DIGEST_BYTES, Check, Ledgers
from tests.sim.coverage import Coverage
from tests.sim.network import Observer

SILENT = {"on_ack", "on_change", "on_set", "on_lost", "on_deleted"}  # told by another name


class Checks(Observer):
    """Tells each event to whoever listens to it."""

    def __init__(self):
        self.violations = []

    def attach(self, cluster):
        self.cluster = cluster
        self.ledgers = Ledgers(cluster)
        self.coverage = Coverage(self.ledgers, None)
        self.all = [kind(self.ledgers, self.violations.append) for kind in ALL]
        self.all.append(self.coverage)
        self._by_event = {}
        cluster.network.on_added = self.on_durable
        cluster.network.observer = self
        cluster.tree.on_set = self.on_metadata
        cluster.tree.on_delete = self.on_metadata_gone
        for name in [name for name in vars(Check) if name.startswith(("on_", "final"))]:
            silent = vars(Check)[name]
            listening = [one for one in self.all if getattr(type(one), name) is not silent]
            self._by_event[name] = [getattr(one, name) for one in listening]
            if name not in vars(Checks):
                setattr(self, name, self._teller(self._by_event[name]))

    @staticmethod
    def _teller(listeners):
        def tell(*args):
            for listener in listeners:
                listener(*args)

        return tell

    def _tell(self, name, *args):
        for listener in self._by_event[name]:
            listener(*args)

    @property
    def events(self):
        """Names of the methods that are told what happens."""
        mine = [name for name in vars(Checks) if name.startswith("on_")]
        return sorted({*mine, *(name for name in self._by_event if name != "final")} - SILENT)

    @property
    def acked(self):
        return self.ledgers.acked

    def report(self, name, text):
        self.violations.append(f"{name}: {text}")

    def on_acked(self, ledger, entry, host="writer"):
        """The writer told its caller that `entry` is confirmed."""
        self._tell("on_ack", host, ledger, entry)
        self.ledgers.acked[ledger] = entry

    def on_durable(self, bookie, ledger, entry, body, recovery):
        known = self.ledgers
        self._has(bookie, ledger, entry)
        if (ledger, entry) not in known.payloads:
            known.payloads[ledger, entry] = body[HEADER_BYTES + DIGEST_BYTES :]
        self._tell("on_durable", bookie, ledger, entry, body, recovery)

    def on_metadata(self, path, data, version):
        ledger = metadata_format.ledger_of_path(path)
        if ledger is None or not data:
            return
        new, old = metadata_format.decode(data, ledger), self.ledgers.metadata.get(ledger)
        self._tell("on_change", ledger, old, new)
        self.ledgers.metadata[ledger] = new

    def on_metadata_gone(self, path):
        ledger = metadata_format.ledger_of_path(path)
        if ledger is not None:
            self._tell("on_deleted", ledger)
            self.ledgers.deleted.add(ledger)

    def on_host_set(self, host, path, data, begins):
        ledger = metadata_format.ledger_of_path(path)
        if ledger is not None:
            metadata = metadata_format.decode(data, ledger)
            self._tell("on_set", host, ledger, metadata, begins)

    def _has(self, bookie, ledger, entry):
        known = self.ledgers
        known.said[ledger, entry].add(bookie)
        known.ever[ledger, entry].add(bookie)
        if known.lost:
            known.had[bookie].discard((ledger, entry))

    def on_read_reply(self, bookie, ledger, first, last, reply):
        if first == NO_ENTRY:
            self._shown(bookie, ledger, reply)
        if reply.status is Status.OK and first >= 0:
            for entry in range(first, first + len(getattr(reply, "bodies", (0,)))):
                self._has(bookie, ledger, entry)
        self._tell("on_read_reply", bookie, ledger, first, last, reply)

    def _shown(self, bookie, ledger, reply):
        """The answer to a fence: its entry is durable there, and the bookie lacks all above.

        It has the entry also if no add of it was ever answered.
        """
        known, highest = self.ledgers, NO_ENTRY
        if reply.status is Status.OK:
            stored = known.metadata[ledger]
            try:
                form = EntryFormat(stored.digest_type, stored.password)
                payload = bytes(form.unpack(reply.body, ledger, NO_ENTRY))
            except CorruptFormat:
                return  # a damaged copy, which recovery does not count either
            highest = read_header(reply.body).entry
            known.payloads.setdefault((ledger, highest), payload)
            self._has(bookie, ledger, highest)
        elif reply.status not in ABSENT:
            return
        if ledger not in known.deleted:
            self._tell("on_highest", bookie, ledger, highest)

    def on_list_reply(self, bookie, ledger, reply):
        for first, last in reply.runs:
            for entry in range(first, last + 1):
                self._has(bookie, ledger, entry)
        self._tell("on_list_reply", bookie, ledger, reply)

    def on_bookie_lost(self, bookie):
        """Its data is gone, or a part of it."""
        known = self.ledgers
        known.lost.add(bookie)
        for key, said in known.said.items():
            if bookie in said:
                said.discard(bookie)
                known.had[bookie].add(key)
        self._tell("on_lost", bookie)

    async def final(self, ledger, repaired=False):
        """After `heal` and a recovery: the whole ledger is there, and is what was written."""
        metadata = self.ledgers.metadata[ledger]
        if not metadata.closed:
            self.report("L8", f"ledger {ledger} is still {metadata.state.name}")
            return
        await self.cluster.all_up()
        await self._look(metadata)
        self._tell("final", metadata, repaired)
        if not self.violations:
            await self._read(metadata)

    async def _look(self, metadata):
        """What the bookies really show of it."""
        ledger = metadata.ledger
        for entry in range(metadata.last_entry + 1):
            for name in self.ledgers.holders(metadata, entry):
                bookie = self.cluster.bookies.get(name)
                reply = bookie and await bookie.read(ledger, entry)
                if reply is not None and reply.status is Status.OK:
                    payload = reply.body[HEADER_BYTES + DIGEST_BYTES :]
                    self.ledgers.shown[ledger, entry, name] = payload

    async def _read(self, metadata):
        ledger = metadata.ledger
        reader = await self.cluster.client("reader").open(ledger)
        entry = 0
        while entry <= metadata.last_entry:
            for read, payload in await reader.read(entry, metadata.last_entry, 1000):
                if read != entry:
                    self.report("L6", f"entry {entry} of {ledger} reads as {read}")
                self._tell("on_delivered", ledger, read, bytes(payload))
                entry += 1
