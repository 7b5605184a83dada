"""Bookies, links and metadata of one simulated cluster, and what must hold of every ledger in it.

`Cluster` gives each host its own `LedgerClient` over its own port and metadata session.
`LedgerChecks` watches every durable write, every metadata change and every acknowledgement, and
keeps what it finds wrong in `violations`; the names are those of the tests' invariants:

    ack-quorum  an acknowledged entry is durable on Qa of its committed write set, all before it too
    lac         an entry carries a LAC below itself, never above what was acknowledged
    immutable   all copies of an entry ever stored have one payload
    cut         nothing acknowledged lies above the last entry of a closed ledger
    states      OPEN, IN_RECOVERY, CLOSED only forward; a closed ledger never changes
    fragments   fragments only grow at the end
    replicated  every entry of a closed ledger is on Qa of its write set, and can be read
"""

import asyncio
import random
from collections import defaultdict

from ledger.client import metadata_format
from ledger.client.client import LedgerClient
from ledger.client.config import LedgerClientConfig
from ledger.core.entry_format import HEADER_BYTES, read_header
from ledger.ids import BookieId
from ledger.world.bookies import Status
from tests.sim.loop import SimClock
from tests.sim.metadata import MetadataFaults, MetadataTree, SimMetadata
from tests.sim.model_bookie import ModelBookie
from tests.sim.network import Network, SimBookies, Weather

DIGEST_BYTES = 4  # CRC32C


class Cluster:
    """`bookies` of them, by seed. Hosts are named; a host's client lives until `kill`."""

    def __init__(self, seed, *, bookies=5, weather=None, config=None, bookie=None):
        self.draw = random.Random(f"{seed}:cluster")
        self.weather = weather or Weather()
        self.config = config or LedgerClientConfig(read_timeout_s=2 * self.weather.timeout_s)
        new_bookie = bookie or model_bookie
        self.bookies = {BookieId(f"b{n}"): new_bookie(self.draw) for n in range(bookies)}
        self.network = Network(self.draw, self.weather, self.bookies)
        self.tree = MetadataTree()
        self.metadata_faults = MetadataFaults(self.draw)
        self.ports = {}
        self.checks = LedgerChecks()
        self.checks.attach(self)

    async def start(self):
        """All bookies serve; those of the model do so from the beginning."""
        await asyncio.gather(*(bookie.start() for bookie in self.bookies.values()))

    async def all_up(self):
        while not all(bookie.up for bookie in self.bookies.values()):
            await asyncio.sleep(0.01)

    def client(self, host):
        """A new process on `host`: its own metadata session and its own connections."""
        port = self.ports[host] = SimBookies(self.network, host)
        session = SimMetadata(self.tree, self.metadata_faults)
        return LedgerClient(session, port, SimClock(), self.config)

    def kill(self, host):
        """The process hears nothing any more; what it sent is still on its way."""
        self.ports[host].dead = True

    def heal(self):
        """From now on everything works."""
        self.network.heal()
        self.metadata_faults.unsent = self.metadata_faults.reply_lost = 0.0
        for bookie in self.bookies.values():
            if not bookie.up:
                bookie.restart()

    def metadata_of(self, ledger):
        record = self.tree.get(metadata_format.ledger_path(ledger))
        return metadata_format.decode(record.data, ledger)

    def holders(self, ledger, entry):
        """The bookies of the entry's committed write set that said that they durably hold it."""
        said = self.checks.said[ledger, entry]
        return [b for b in self.metadata_of(ledger).bookies_of(entry) if b in said]


def model_bookie(draw):
    return ModelBookie(lambda: draw.expovariate(1 / 0.0005))


class LedgerChecks:
    """Facts are reported by the cluster and by the test; `final` is asked at the end."""

    def __init__(self):
        self.violations = []
        self.acked = defaultdict(lambda: -1)  # by ledger: all entries up to here
        self.said = defaultdict(set)  # by (ledger, entry): bookies that said "durable"
        self.payloads = {}
        self.metadata = {}

    def attach(self, cluster):
        self.cluster = cluster
        cluster.network.on_added = self.on_durable
        cluster.tree.on_set = self.on_metadata

    def report(self, name, text):
        self.violations.append(f"{name}: {text}")

    def on_acked(self, ledger, entry):
        """The writer told its caller that `entry` is confirmed."""
        if entry != self.acked[ledger] + 1:
            self.report("ack-quorum", f"{entry} acknowledged after {self.acked[ledger]}")
        self.acked[ledger] = entry
        metadata = self.cluster.metadata_of(ledger)
        holders = self.cluster.holders(ledger, entry)
        if len(holders) < metadata.ack_quorum:
            self.report("ack-quorum", f"{entry} acknowledged, but durable on {holders} only")
        if metadata.closed and entry > metadata.last_entry:
            self.report("cut", f"{entry} acknowledged after closing at {metadata.last_entry}")

    def on_durable(self, bookie, ledger, entry, body, recovery):
        self.said[ledger, entry].add(bookie)
        payload = body[HEADER_BYTES + DIGEST_BYTES :]
        if self.payloads.setdefault((ledger, entry), payload) != payload:
            self.report("immutable", f"{bookie} holds another payload of entry {entry}")
        lac = read_header(body).lac
        if lac >= entry:
            self.report("lac", f"entry {entry} says that {lac} is confirmed")
        if lac > self.acked[ledger] and not recovery:
            self.report("lac", f"entry {entry} says {lac}, acknowledged is {self.acked[ledger]}")

    def on_metadata(self, path, data, version):
        ledger = metadata_format.ledger_of_path(path)
        if ledger is None:
            return
        new, old = metadata_format.decode(data, ledger), self.metadata.get(ledger)
        self.metadata[ledger] = new
        if old is None:
            return
        if new.state < old.state or old.closed:
            self.report("states", f"{old.state.name} became {new.state.name}")
        if old.fragments[:-1] != new.fragments[: len(old.fragments) - 1]:
            self.report("fragments", f"{old.fragments} became {new.fragments}")
        if new.closed and new.last_entry < self.acked[ledger]:
            self.report("cut", f"closed at {new.last_entry}, acknowledged {self.acked[ledger]}")

    async def final(self, ledger):
        """After `heal` and a recovery: the whole ledger is there, and is what was written."""
        metadata = self.cluster.metadata_of(ledger)
        if not metadata.closed:
            self.report("states", f"still {metadata.state.name}")
            return
        await self.cluster.all_up()
        for entry in range(metadata.last_entry + 1):
            await self._check_copies(metadata, entry)
        reader = await self.cluster.client("reader").open(ledger)
        entry = 0
        while entry <= metadata.last_entry and not self.violations:
            for read, payload in await reader.read(entry, metadata.last_entry, 1000):
                if read != entry or self.payloads[ledger, read] != payload:
                    self.report("replicated", f"entry {entry} reads as {read}: {bytes(payload)}")
                entry += 1

    async def _check_copies(self, metadata, entry):
        """Every bookie that said "durable" still shows the entry, and they are enough."""
        ledger = metadata.ledger
        holders = self.cluster.holders(ledger, entry)
        if len(holders) < metadata.ack_quorum:
            self.report("replicated", f"entry {entry} is on {holders} only")
        for holder in holders:
            reply = await self.cluster.bookies[holder].read(ledger, entry)
            payload = reply.body[HEADER_BYTES + DIGEST_BYTES :]
            if reply.status is not Status.OK or payload != self.payloads[ledger, entry]:
                self.report("replicated", f"{holder} lost entry {entry}: {reply.status.name}")
