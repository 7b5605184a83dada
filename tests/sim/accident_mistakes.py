"""Mistakes about accidents of a disk and about exceptions that nobody planned.

They are planted into the real bookies and the clients of a cluster.
"""

from ledger.bookie.entry_reader import EntryReader
from ledger.bookie.journal import Journal
from ledger.bookie.replay import LogReplay
from ledger.client.recover import RecoveryRun
from ledger.client.writer import LedgerWriter
from ledger.tasks import Guard
from tests.sim import bookie_mistakes, families
from tests.sim.planting import Mutation, patched

_run = LogReplay.run


async def damage_ends_the_log(self):
    """Damage below what was durable is taken for a write that a crash cut short."""
    return (await _run(self))._replace(corrupt=())


MUTATIONS = (
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
