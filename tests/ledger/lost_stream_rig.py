"""Losses of a simulated stream: entries that bookies forget, ranges accepted by hand, and states
of owners that say what they were built from.
"""

from ledger.client.update_metadata import LedgerMetadataStore
from ledger.core.accepted_losses import RESERVED_OFFSETS, LostRange
from ledger.core.gaps import ENTRY_MAX, Acceptance, Evidence, OffsetRange
from ledger.core.loss import CopyAnswer, Verdict, state_of
from ledger.core.records import parse_entry
from ledger.ids import BookieId, EntryId
from ledger.streams.accepted_losses import accept_losses
from tests.ledger.follow_rig import NAME, NoState, Owner
from tests.sim.metadata import SimMetadata


class TellingState(NoState):
    """The state of an owner: `seen` lists what it was built from, in order."""

    def __init__(self):
        self.seen = []

    def encode(self, end_sequence_id):
        return b"%d" % end_sequence_id

    def load(self, data):
        self.seen = [("all below", int(data))] if data else []
        return iter(())

    def replay(self, sequence_id, data):
        self.seen.append(sequence_id)

    def pass_loss(self, first, last):
        self.seen.append(("lost", first, last))


async def telling_owner(rig, host):
    """Return an owner that has just taken over the stream, with a state that tells."""
    owner = Owner(rig, host, state=TellingState())
    await owner.stream.open(begin=True)
    if not owner.stream.writable:
        await owner.stream.begin()
    return owner


def lost_range(segment, first, last, low, high, *, exact=True):
    copies = tuple(state_of(BookieId(f"b{n}"), CopyAnswer.DENIED) for n in range(3))
    evidence = Evidence(
        segment.ledger, Verdict.COMPLETE, copies, 0, Acceptance(1_700_000_000_000, "ops")
    )
    return LostRange(
        segment.number, EntryId(first), EntryId(last), OffsetRange(low, high, exact), evidence
    )


def reserved(segment, first, low):
    """The rest of a segment that is closed by force: entries from `first`, offsets from `low`."""
    return lost_range(segment, first, ENTRY_MAX, low, low + RESERVED_OFFSETS - 1, exact=False)


async def accept(rig, *ranges):
    return await accept_losses(SimMetadata(rig.world.tree), NAME, ranges)


async def close_by_force(rig, ledger, last):
    """Close the ledger at `last`, as if nobody could recover it."""
    store = LedgerMetadataStore(SimMetadata(rig.world.tree), rig.world.config)

    def closed(metadata):
        return None if metadata.closed else metadata.close(EntryId(last), 100)

    await store.update(await store.read(ledger), closed)


def lose_entries(rig, ledger, *entries):
    """Every bookie has forgotten the entries, and does not know that it has."""
    for bookie in rig.world.bookies.values():
        for entry in entries:
            bookie.ledgers[ledger].entries.pop(entry, None)


async def entries_of(rig, segment):
    """What each entry of a segment holds: the offsets of its records, or "control"."""
    client = rig.world.client("looker")
    reader = await client.open(segment.ledger)
    found = {}
    for entry in range(reader.metadata.last_entry + 1):
        [(_, payload)] = await reader.read(entry, entry, 1)
        offsets = [
            segment.start_sequence_id + record.position - 1
            for record in parse_entry(payload)
            if not record.control
        ]
        found[entry] = offsets or "control"
    return found
