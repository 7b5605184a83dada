"""Mistakes of a reader about entries that are lost, planted into the product.

`proof_reading` counts the seeds that find each; `OF_THE_SWARM` are for `mutations`.
"""

from ledger.client import reader
from ledger.client.reader import LedgerReader
from ledger.core import loss, read_plan
from ledger.core.deliveries import Deliveries
from ledger.core.gaps import GapKind
from ledger.core.loss import AuthoritativeStatus, CopyAnswer, CopyState, Verdict
from ledger.core.read_plan import ReadPlan
from ledger.node import losses
from ledger.ports.bookies import Status
from tests.sim import families
from tests.sim.planting import Mutation, patched
from tests.sim.reading_families import Copies
from tests.sim.reading_world import Lossless, Lossy, Trimmed

_answer_of = reader._answer_of
_gone = CopyState.gone
_is_at_risk = losses._is_at_risk
_on_segment_end = Deliveries.on_segment_end
_on_trim = Deliveries.on_trim
_issue_lost = Deliveries._issue_lost


def one_denial_is_enough(self):
    answers = [copy.answer for copy in self.copies]
    if CopyAnswer.HELD in answers:
        return Verdict.DELIVER
    return Verdict.COMPLETE if CopyAnswer.DENIED in answers else Verdict.NONE


def as_a_recovery_judges(copies, ack_quorum):
    """Qw - Qa + 1 denials prove that an entry was not acknowledged; this one was."""
    verdict = loss.judge(copies, ack_quorum)
    return Verdict.COMPLETE if verdict is Verdict.INCOMPLETE else verdict


def silence_is_a_denial(self):
    return _gone.fget(self) or self.status is AuthoritativeStatus.UNAVAILABLE


def damage_is_a_denial(reply, entries):
    answer = _answer_of(reply, entries)
    return CopyAnswer.DENIED if answer is CopyAnswer.DAMAGED else answer


def an_empty_batch_is_a_denial(reply, entries):
    if reply.status is Status.OK and not reply.bodies:
        return CopyAnswer.DENIED
    return _answer_of(reply, entries)


async def trusts_its_metadata(self, first, last, max_bytes):
    return await self._read_some(first, last, max_bytes)


async def closed_is_safe(store, ledger, bookie):
    """Only ledgers that are not closed go into limbo."""
    node = await store.get(losses.metadata_format.ledger_path(ledger))
    metadata = losses.metadata_format.decode(node.data, ledger)
    return not metadata.closed and await _is_at_risk(store, ledger, bookie)


def learns_one_more(self, lac):
    self.last_add_confirmed = max(self.last_add_confirmed, lac + (lac >= 0))


def bridge_is_a_loss(self, segment):
    *before, gap = _on_segment_end(self, segment)
    return [*before, gap._replace(kind=GapKind.DATALOSS)]


def trims_one_segment(self, start, offset):
    """The last position of the gap is said to lie in the segment of its first."""
    return [
        gap._replace(last=gap.last._replace(segment=gap.first.segment))
        for gap in _on_trim(self, start, offset)
    ]


def one_entry_more(self, end):
    return [
        gap._replace(last=gap.last._replace(entry=gap.last.entry + 1))
        for gap in _issue_lost(self, end)
    ]


def one_offset_more(self, end):
    return [
        gap._replace(offsets=gap.offsets._replace(last=gap.offsets.last + 1))
        for gap in _issue_lost(self, end)
    ]


OF_THE_SWARM = (
    Mutation(
        "L6",
        "one no is enough for a reader",
        patched(ReadPlan, verdict=property(one_denial_is_enough)),
        families.Watched,
    ),
)
MUTATIONS = (
    Mutation(
        "L6",
        "Qw - Qa + 1 denials are enough for a reader",
        patched(read_plan, judge=as_a_recovery_judges),
        Copies,
    ),
    Mutation(
        "L6",
        "silence counts as a denial",
        patched(CopyState, gone=property(silence_is_a_denial)),
        Copies,
    ),
    Mutation(
        "L6",
        "a denial of a bookie in limbo counts in full",
        patched(reader, ANSWERS={**reader.ANSWERS, Status.UNKNOWN_LEDGER_STATE: CopyAnswer.DENIED}),
        Copies,
    ),
    Mutation(
        "L6",
        "a wrong digest counts as a denial",
        patched(reader, _answer_of=damage_is_a_denial),
        Copies,
    ),
    Mutation(
        "L6",
        "a batch that ended before the entry counts as a denial",
        patched(reader, _answer_of=an_empty_batch_is_a_denial),
        Copies,
    ),
    Mutation(
        "L6",
        "a reader trusts the write set that it knows",
        patched(LedgerReader, _read_first=trusts_its_metadata),
        Copies,
    ),
    Mutation(
        "L15",
        "an old directory denies what it lost of closed ledgers",
        patched(losses, _is_at_risk=closed_is_safe),
        Copies,
    ),
    Mutation(
        "L7",
        "a native reader ignores the LAC",
        patched(LedgerReader, _raise_lac=learns_one_more),
        Lossless,
    ),
    Mutation(
        "L26",
        "a BRIDGE is reported as a loss",
        patched(Deliveries, on_segment_end=bridge_is_a_loss),
        Lossless,
    ),
    Mutation(
        "D47",
        "both ends of a gap are assumed in one segment",
        patched(Deliveries, on_trim=trims_one_segment),
        Trimmed,
    ),
    Mutation(
        "L16",
        "a gap ends one entry too late",
        patched(Deliveries, _issue_lost=one_entry_more),
        Lossy,
    ),
    Mutation(
        "L16",
        "a gap has one offset too many",
        patched(Deliveries, _issue_lost=one_offset_more),
        Lossy,
    ),
)
