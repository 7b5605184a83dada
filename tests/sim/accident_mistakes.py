"""Mistakes about accidents of a disk and about exceptions that nobody planned.

They are planted into the real bookies and the clients of a cluster; one is planted into the bookies
of the model.
"""

import weakref

from ledger.bookie.entry_reader import EntryReader
from ledger.bookie.journal import Journal
from ledger.bookie.replay import LogReplay
from ledger.client.recover import RecoveryRun
from ledger.client.writer import LedgerWriter
from ledger.ids import EntryId
from ledger.ports.bookies import ReadReply, Status
from ledger.tasks import Guard
from tests.sim import bookie_mistakes, families
from tests.sim.model_bookie import ModelBookie
from tests.sim.planting import Mutation, patched

_run = LogReplay.run


async def damage_ends_the_log(self):
    """Damage below what was durable is taken for a write that a crash cut short."""
    return (await _run(self))._replace(corrupt=())


_add, _read = ModelBookie.add, ModelBookie.read
_ACCEPTED = weakref.WeakKeyDictionary()  # by bookie: bodies by incarnation, ledger and entry


def notes_what_it_accepts(self, ledger, entry, master_key, body, on_added, *, recovery=False):
    if recovery or ledger not in self.fencing:
        accepted = _ACCEPTED.setdefault(self, {})
        accepted[self._incarnation, ledger, entry] = b"".join(body)
    _add(self, ledger, entry, master_key, body, on_added, recovery=recovery)


async def shows_what_it_accepted(self, ledger, entry, *, fence_key=None):
    """The fence is durable. An entry that was accepted meanwhile need not be."""
    reply = await _read(self, ledger, entry, fence_key=fence_key)
    if fence_key is None or entry >= 0 or reply.status not in (Status.OK, Status.NO_ENTRY):
        return reply
    accepted = _ACCEPTED.get(self, {})
    mine = [key for key in accepted if key[:2] == (self._incarnation, ledger)]
    highest = max([key[2] for key in mine], default=-1)
    if highest <= max(self.durable_entries(ledger), default=-1):
        return reply
    return ReadReply(Status.OK, accepted[self._incarnation, ledger, highest], EntryId(-1))


MUTATIONS = (
    Mutation(
        "T2",
        "a durable fence shows an entry that is not durable",
        patched(ModelBookie, add=notes_what_it_accepts, read=shows_what_it_accepted),
        families.Replaced,
    ),
    Mutation(
        "T5",
        "an entry that the disk cannot read is denied",
        patched(EntryReader, read=bookie_mistakes.unreadable_is_absent),
        families.RealAccidents,
    ),
    Mutation(
        "T7",
        "a failed sync is ignored",
        patched(Journal, _on_synced=bookie_mistakes.failed_sync_is_ignored),
        families.RealAccidents,
    ),
    Mutation(
        "T7",
        "a group that ENOSPC cut short is acknowledged",
        patched(Journal, _refuse_group=bookie_mistakes.refused_group_is_acknowledged),
        families.RealAccidents,
    ),
    Mutation(
        "L15",
        "damage of the log counts as its end",
        patched(LogReplay, run=damage_ends_the_log),
        families.RealMisdirected,
    ),
    Mutation(
        "S2",
        "a request of a recovery dies unnoticed",
        patched(RecoveryRun, _on_died=lambda self, error: None),
        families.Surprised,
    ),
    Mutation(
        "S2",
        "a writer's exchange with the store dies unnoticed",
        patched(LedgerWriter, _on_exchange_over=lambda self, task: None),
        families.Surprised,
    ),
    Mutation(
        "S2",
        "a bookie goes on after a surprise in its journal",
        patched(Guard, end=lambda self, error: None),
        families.RealSurprised,
    ),
)
