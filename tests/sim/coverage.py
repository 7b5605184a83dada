"""Counts what happened in a swarm, so that a fault or a path that never occurs is noticed."""

from collections import Counter

from ledger.core.ledger_metadata import LedgerState
from ledger.errors import AddFailed, Fenced
from ledger.ports.bookies import Status
from tests.sim.checkers import Check

PATHS = (
    "a writer replaced bookies",
    "a recovery replaced bookies",
    "repair replaced bookies",
    "a writer closed its ledger",
    "a recovery closed a ledger",
    "a writer was overtaken",
    "a writer gave up",
    "a writer heard of an acknowledgement after its ledger was taken over",
    "a reader got an entry",
    "a bookie in limbo did not deny",
    "a damaged entry was not denied",
    "a ledger was deleted",
    "a bookie collected a ledger",
    "a bookie lost its data",
)


class Coverage(Check):
    """`seen[path]`: so often it happened."""

    def __init__(self, ledgers, report):
        super().__init__(ledgers, report)
        self.seen = Counter()

    def on_change(self, ledger, old, new):
        if old is None:
            return
        replaced = old.fragments != new.fragments
        if replaced and old.closed:
            self.seen["repair replaced bookies"] += 1
        elif replaced:
            who = "recovery" if new.closed else "writer"
            self.seen[f"a {who} replaced bookies"] += 1
        if new.closed and old.state is LedgerState.IN_RECOVERY:
            self.seen["a recovery closed a ledger"] += 1
        elif new.closed and old.state is LedgerState.OPEN:
            self.seen["a writer closed its ledger"] += 1

    def on_ack(self, host, ledger, entry):
        if self.ledgers.metadata[ledger].state is not LedgerState.OPEN:
            path = "a writer heard of an acknowledgement after its ledger was taken over"
            self.seen[path] += 1

    def on_writer_failed(self, host, ledger, error):
        if isinstance(error, Fenced):
            self.seen["a writer was overtaken"] += 1
        elif isinstance(error, AddFailed):
            self.seen["a writer gave up"] += 1

    def on_delivered(self, ledger, entry, payload):
        self.seen["a reader got an entry"] += 1

    def on_read_reply(self, bookie, ledger, first, last, reply):
        if reply.status is Status.UNKNOWN_LEDGER_STATE:
            self.seen["a bookie in limbo did not deny"] += 1
        elif reply.status is Status.IO_ERROR:
            self.seen["a damaged entry was not denied"] += 1

    def on_deleted(self, ledger):
        self.seen["a ledger was deleted"] += 1

    def on_collected(self, bookie, ledger):
        self.seen["a bookie collected a ledger"] += 1

    def on_lost(self, bookie):
        self.seen["a bookie lost its data"] += 1
