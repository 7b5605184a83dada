"""A world for `mutations` in which a reader meets copies that are lost, damaged or out of reach.

Each copy of each entry of a closed ledger is drawn, and an oracle that knows all of them says what
the reader must make of the entry. A bookie may answer with batches that end early, repair may have
moved copies that the reader still looks for at the old place, and bookies may come back with an
old directory.
"""

from dataclasses import replace
from random import Random

from ledger.core.loss import EntryLost, Verdict, judge
from ledger.errors import EntryUnknown
from ledger.node import losses
from ledger.ports.bookies import Status
from tests.ledger.calm_cluster import cluster, written
from tests.ledger.reader_rig import change_metadata, reader_of, settled
from tests.sim.metadata import SimMetadata
from tests.sim.model_bookie import Stored

SHAPES = ((2, 2, 2), (3, 3, 2), (3, 2, 2), (4, 3, 2), (5, 5, 3), (3, 3, 3))
STATES = ("whole", "whole", "forgets", "old directory", "rots", "away", "sick")
SICK = (
    *(Status.IO_ERROR, Status.OVERLOADED, Status.READ_ONLY, Status.BAD_REQUEST),
    Status.PERMISSION_DENIED,
)


class ShortBatches:
    """The bookies of a rig; those of `short` end a batch early, often before its first entry."""

    def __init__(self, port, draw):
        self.port = port
        self.short = set()
        self._draw = draw

    def __getattr__(self, name):
        return getattr(self.port, name)

    async def read_many(self, bookie, *rest, **how):
        reply = await self.port.read_many(bookie, *rest, **how)
        if bookie not in self.short or reply.status is not Status.OK:
            return reply
        return reply._replace(bodies=reply.bodies[: self._draw.choice([0, 0, 1, 2])])


class Copies:
    """One seed: a closed ledger, a state for each bookie, and one read of each entry."""

    def __init__(self, seed):
        self.draw = Random(f"{seed}:copies")
        self.found = []

    async def run(self):
        draw = self.draw
        e, qw, qa = draw.choice(SHAPES)
        self.world = cluster(bookies=e + 1)
        self.count = draw.randint(1, 6)
        writer, _ = await written(self.world, self.count, e=e, qw=qw, qa=qa)
        self.ledger = writer.ledger
        await settled(self.world, self.ledger, self.count)
        await writer.close()
        rig = await reader_of(self.world, self.ledger)
        rig.port.port = self.port = ShortBatches(rig.port.port, draw)
        if draw.random() < 0.3:
            await self._move_copies()
        await self._draw_states(rig)
        for entry in draw.sample(range(self.count), self.count):
            await self._read(rig.reader, entry)
        return self.found

    # -- what the copies are -----------------------------------------------------------------------

    async def _move_copies(self):
        """Repair has moved one bookie's copies, and the reader has not read the metadata since."""
        ensemble = self.metadata.last_fragment.ensemble
        old = self.draw.choice(ensemble)
        (new,) = set(self.world.bookies) - set(ensemble)
        held = self.world.bookies[old].ledgers.pop(self.ledger, Stored(b""))
        self.world.bookies[new].ledgers[self.ledger] = held
        names = tuple(new if one == old else one for one in ensemble)

        def change(metadata):
            return replace(metadata, fragments=(metadata.fragments[0]._replace(ensemble=names),))

        await change_metadata(self.world, self.ledger, change)

    async def _draw_states(self, rig):
        draw = self.draw
        self.victims = draw.sample(range(self.count), draw.randint(1, self.count))
        common = draw.choice(STATES)
        self.states, self.limbo = {}, set()
        for name in self.metadata.last_fragment.ensemble:
            state = common if draw.random() < 0.6 else draw.choice(STATES)
            self.states[name] = state
            await getattr(self, f"_{state.replace(' ', '_')}")(rig, name)
            if draw.random() < 0.2:
                self.port.short.add(name)

    async def _whole(self, rig, name):
        pass

    async def _forgets(self, rig, name):
        """Some entries never were there, or were lost without a trace."""
        self._drop(name)

    async def _old_directory(self, rig, name):
        """It starts as a node does: the ledgers that name it go into limbo."""
        self._drop(name)
        self.limbo.add(name)
        store = SimMetadata(self.world.tree, self.world.metadata_faults)
        for ledger in await losses.ledgers_at_risk(store, name):
            stored = self.world.bookies[name].ledgers.setdefault(ledger, Stored(b""))
            stored.limbo = stored.fenced = True

    async def _rots(self, rig, name):
        bookie = self.world.bookies[name]
        for entry in self._some():
            if entry in bookie.durable_entries(self.ledger):
                bookie.rotten[self.ledger, entry] = self.draw.choice(["unreadable", "payload"])

    async def _away(self, rig, name):
        self._drop(name)
        self.world.bookies[name].crash()

    async def _sick(self, rig, name):
        self._drop(name)
        rig.port.answers[name] = self.draw.choice(SICK)

    def _drop(self, name):
        for entry in self._some():
            self.world.bookies[name].durable_entries(self.ledger).pop(entry, None)

    def _some(self):
        """Mostly the same entries on all bookies, so that no copy of these is left."""
        if self.draw.random() < 0.7:
            return self.victims
        return self.draw.sample(range(self.count), self.draw.randint(0, self.count))

    # -- what the reader must make of it -----------------------------------------------------------

    @property
    def metadata(self):
        return self.world.metadata_of(self.ledger)

    def _copy(self, name, entry):
        """sound, doubtful, denied, lost, or away: the truth about one copy."""
        if self.states[name] in ("away", "sick"):
            return "away"
        if entry not in self.world.bookies[name].durable_entries(self.ledger):
            return "lost" if name in self.limbo else "denied"
        if (self.ledger, entry) in self.world.bookies[name].rotten:
            return "away"
        return "doubtful" if name in self.port.short else "sound"

    async def _read(self, reader, entry):
        copies = [self._copy(name, entry) for name in self.metadata.bookies_of(entry)]
        outcome = await self._outcome(reader, entry)
        expected = self._expected(copies)
        if outcome not in expected:
            self.found.append(f"L6: entry {entry} with copies {copies} is {outcome}")

    def _expected(self, copies):
        """The outcomes that are right for an entry with these copies."""
        if "sound" in copies:
            return {"delivered"}
        if "doubtful" in copies:
            return {"delivered", "waits"}
        if "away" in copies:
            return {"waits"}
        needed = len(copies) - self.metadata.ack_quorum + 1
        enough = copies.count("denied") >= needed
        return {Verdict.COMPLETE if enough else Verdict.NON_AUTHORITATIVE}

    async def _outcome(self, reader, entry):
        try:
            entries = await reader.read(entry, self.count - 1, 10_000)
        except EntryLost as lost:
            if {copy.bookie for copy in lost.copies} != set(self.metadata.bookies_of(entry)):
                return f"lost by the answers of {lost.copies}"
            return judge(lost.copies, self.metadata.ack_quorum)
        except EntryUnknown:
            return "waits"
        for number, payload in entries:
            if bytes(payload) != b"entry %d" % number:
                return f"delivered as {bytes(payload)}"
        return "delivered"
