"""Mistakes about a refusal: PERMISSION_DENIED is taken for absence. They are for `mutations`.

Those about a LAC and about repair are planted in `tests/ledger/test_permission_denied.py`.
"""

from ledger.client import reader, recover_many
from ledger.core.loss import CopyAnswer
from ledger.ports.bookies import ReadReply, Status
from tests.sim import families
from tests.sim.planting import Mutation, patched
from tests.sim.reading_families import Copies

DENIED = Status.PERMISSION_DENIED

_ask = recover_many.LedgerRecoveries._ask


async def refused_fences_find_no_ledger(self, bookie, rows, known):
    replies = await _ask(self, bookie, rows, known)
    none = ReadReply(Status.NO_LEDGER)
    return [none if reply.status is DENIED else reply for reply in replies]


OF_THE_SWARM = (
    Mutation(
        "T22",
        "refused fences of many ledgers are read as no ledger",
        patched(recover_many.LedgerRecoveries, _ask=refused_fences_find_no_ledger),
        families.Refused,
    ),
)
OF_READERS = (
    Mutation(
        "T22",
        "a refused read counts as a denial",
        patched(reader, ANSWERS={**reader.ANSWERS, DENIED: CopyAnswer.DENIED}),
        Copies,
    ),
)
