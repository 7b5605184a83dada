"""A simulated cluster with repair workers and auditors on it, and a dumb look at every copy."""

import asyncio
import random

from ledger.client.config import LedgerClientConfig
from ledger.client.update_metadata import LedgerMetadataStore
from ledger.core.entry_format import EntryFormat
from ledger.errors import CorruptFormat
from ledger.repair.auditor import Auditor
from ledger.repair.config import RepairConfig
from ledger.repair.replication_worker import ReplicationWorker
from ledger.repair.underreplicated_ledgers import UnderreplicatedLedgers
from tests.ledger.calm_cluster import Told, cluster
from tests.sim.loop import SimClock
from tests.sim.metadata import SimMetadata
from tests.sim.model_bookie import DISK_BYTES, Stored
from tests.sim.network import SimBookies

CLIENT = LedgerClientConfig(read_timeout_s=1.0)


class CheckedTold(Told):
    """Tells the cluster's checks of each acknowledgement as it happens."""

    def __init__(self, writer, checks):
        super().__init__(writer)
        self.checks = checks

    def add(self, *payload):
        entry = self.writer.lap + 1

        def on_told(error):
            if error is None:
                self.checks.on_acked(self.writer.metadata.ledger, entry)
            self.news.append((entry, error))

        return self.writer.add(payload, on_told)


class Hanging:
    """The bookies; what `names` are asked by these methods they never answer."""

    def __init__(self, port, *methods):
        self.port = port
        self.methods = methods
        self.names = set()

    def __getattr__(self, name):
        method = getattr(self.port, name)
        if name not in self.methods:
            return method

        async def ask(bookie, *rest, **more):
            if bookie in self.names:
                await asyncio.Event().wait()
            return await method(bookie, *rest, **more)

        return ask


class Rig:
    """Bookies b0, b1 ... and what repairs them. `worker`s and `auditor`s are processes."""

    def __init__(self, bookies=4):
        self.world = cluster(bookies)
        self.sessions = {}
        self.underreplicated = self.list_of("test")

    def session(self, host):
        self.sessions[host] = SimMetadata(self.world.tree)
        return self.sessions[host]

    def bookies(self, host):
        return SimBookies(self.world.network, host)

    def list_of(self, host):
        return UnderreplicatedLedgers(self.session(host), SimClock(), host)

    def worker(self, host="worker", store=None, bookies=None, **config):
        return ReplicationWorker(
            store or self.session(host),
            bookies or self.bookies(host),
            SimClock(),
            host,
            random.Random(host).random,
            RepairConfig(**config),
            CLIENT,
        )

    def auditor(self, host="auditor", **config):
        store = self.session(host)
        underreplicated = UnderreplicatedLedgers(store, SimClock(), host)
        port = self.bookies(host)
        return Auditor(store, port, SimClock(), underreplicated, RepairConfig(**config), CLIENT)

    async def ledger(self, count=5, *, e=3, qw=3, qa=2, close=True, host="writer"):
        """A new ledger with so many entries `entry 0`, `entry 1` ...; its writer when open."""
        client = self.world.client(host)
        writer = await client.create(ensemble_size=e, write_quorum=qw, ack_quorum=qa)
        told = CheckedTold(writer, self.world.checks)
        for number in range(count):
            await writer.room()
            told.add(b"entry ", b"%d" % number)
        await told.wait(count)
        await asyncio.sleep(1)  # the slowest copies arrive as well
        if close:
            await writer.close()
            return writer.metadata.ledger
        return writer, told

    def metadata(self, ledger):
        return self.world.metadata_of(ledger)

    async def set_metadata(self, ledger, change):
        """The stored metadata are `change` of what they were."""
        store = LedgerMetadataStore(self.session("test"), CLIENT)
        return await store.update(await store.read(ledger), change)

    def bookie(self, name):
        return self.world.bookies[name]

    def lose(self, *names):
        for name in names:
            self.bookie(name).crash()

    def members(self, ledger):
        """The last fragment's bookies."""
        return self.metadata(ledger).last_fragment.ensemble

    def outside(self, ledger):
        """Live bookies that no fragment names."""
        named = {b for one in self.metadata(ledger).fragments for b in one.ensemble}
        return [b for b in self.world.bookies if b not in named and self.bookie(b).up]

    def forget(self, bookie, ledger, *entries):
        """These copies are gone, and the bookie says so."""
        stored = self.bookie(bookie).ledgers[ledger]
        for entry in entries or list(stored.entries):
            del stored.entries[entry]

    def spoil(self, bookie, ledger, entry):
        """One bit of the payload flips."""
        stored = self.bookie(bookie).ledgers[ledger]
        body = stored.entries[entry]
        stored.entries[entry] = body[:-1] + bytes([body[-1] ^ 1])

    def crowd(self, bookie):
        """Its disk is fuller than the others': it is chosen last."""
        self.bookie(bookie).ledgers[999] = Stored(b"", entries={0: bytes(DISK_BYTES // 50)})

    def faults(self, ledger):
        """What is wrong with the copies of a closed ledger; empty: all are there, and right."""
        metadata = self.metadata(ledger)
        if not metadata.closed:
            return [f"ledger {ledger} is {metadata.state.name}"]
        entry_format = EntryFormat(metadata.digest_type, metadata.password)
        found = []
        for entry in range(metadata.last_entry + 1):
            for name in metadata.bookies_of(entry):
                found += self._fault(name, ledger, entry, entry_format)
        return found

    def _fault(self, name, ledger, entry, entry_format):
        bookie = self.bookie(name)
        body = bookie.durable_entries(ledger).get(entry)
        if not bookie.up:
            return [f"{name} is down"]
        if body is None:
            return [f"{name} lacks {entry}"]
        try:
            payload = bytes(entry_format.unpack(body, ledger, entry))
        except CorruptFormat:
            return [f"{name} has a bad copy of {entry}"]
        return [] if payload == b"entry %d" % entry else [f"{name}: {entry} is {payload}"]

    async def marked(self):
        return await self.underreplicated.ledgers()


async def mend(worker, passes=1):
    """So many passes over the list, nothing waits; the last outcomes."""
    outcomes = {}
    for _ in range(passes):
        outcomes = await worker.repair_all(await worker.underreplicated.ledgers())
    return outcomes
