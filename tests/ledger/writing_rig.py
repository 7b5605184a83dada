"""A writer's decisions over a pipeline, as a new ledger has them."""

from ledger.core.add_pipeline import AddPipeline
from ledger.core.ledger_metadata import Fragment, LedgerMetadata, Versioned
from ledger.core.ledger_writing import LedgerWriting

OVERLOADED_S_MAX = 30.0
CHANGE_S_MAX = 20.0
PAUSE_S = 10.0


def opened(e=3, qw=3, qa=2):
    return LedgerMetadata(
        ledger=7,
        ensemble_size=e,
        write_quorum=qw,
        ack_quorum=qa,
        fragments=(Fragment(0, tuple(f"b{n}" for n in range(e))),),
    )


def writing_of(e=3, qw=3, qa=2, entries=0):
    adds = AddPipeline(
        ensemble_size=e, write_quorum=qw, ack_quorum=qa, entries_max=100, bytes_max=10_000
    )
    writing = LedgerWriting(
        Versioned(opened(e, qw, qa), 5),
        adds,
        overloaded_s_max=OVERLOADED_S_MAX,
        change_s_max=CHANGE_S_MAX,
        failed_bookie_pause_s=PAUSE_S,
    )
    for entry in range(entries):
        adds.add(10, entry)
    return writing


def slot_of(writing, index):
    return next(slot for one in writing.change.sets for slot in one if slot.index == index)
