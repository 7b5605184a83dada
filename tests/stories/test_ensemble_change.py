"""Goal: one can read how a failed bookie is replaced while a ledger is written. Method: stories,
played on the pure state machine; each `ensemble_*.txt` is one. Commands:

    ledger E Qw Qa b1,b2,b3
    add ENTRY · added B ENTRY · refused B ENTRY
    propose b1->b9 [b2->b8]       what the store is asked for; nothing is confirmed from now on
    store                         the store takes it
    reply lost                    the store took it, and nobody knows: it is read again
    found open|in-recovery|closed N     somebody else was first, and this is stored
    repaired FIRST b1,b2,b3       re-replication has changed an earlier fragment; read again
    no spare                      there is nobody to put in
    back B                        a bookie that failed answers again, and there are no spares
"""

import asyncio
from dataclasses import replace

import pytest

from ledger.core.add_pipeline import AddPipeline
from ledger.core.ensemble_change import EnsembleChange
from ledger.core.ledger_metadata import Fragment, LedgerMetadata
from ledger.errors import AddFailed, LedgerError
from tests.stories.runner import names, play


class Teller:
    """Feeds one line after the other to a writer's two machines, and words what comes of it."""

    def __init__(self):
        self.seats = {}  # every one there was, by bookie
        self.stored = None

    async def execute(self, command):
        what, *words = command.split()
        told = getattr(self, f"on_{what}")(*words)
        return told or ["nothing yet"]

    def on_ledger(self, e, qw, qa, ensemble):
        shape = {"ensemble_size": int(e), "write_quorum": int(qw), "ack_quorum": int(qa)}
        bookies = tuple(ensemble.split(","))
        self.stored = LedgerMetadata(ledger=1, fragments=(Fragment(0, bookies),), **shape)
        self.adds = AddPipeline(**shape, entries_max=100, bytes_max=1000)
        self.change = EnsembleChange(self.stored, self.adds, pause_s=10.0)
        self.remember()
        return ["ready"]

    def remember(self):
        for one in self.change.sets:
            self.seats.update({seat.bookie: seat for seat in one})

    def on_add(self, entry):
        assert self.adds.add(1, int(entry)) == int(entry)
        seats = self.change.sets[int(entry) % len(self.change.sets)]
        return [f"send {entry} to {seat.bookie}" for seat in seats]

    def on_added(self, bookie, entry):
        seat = self.seats[bookie]
        if seat.replaced:
            return [f"ignored: {bookie} was replaced"]
        return self.confirmed(self.adds.on_added(seat.index, int(entry)))

    def confirmed(self, entries):
        return [*(f"CONFIRMED {entry}" for entry in entries), *self.failed()]

    def on_refused(self, bookie, entry):
        seat = self.seats[bookie]
        self.change.on_failed(seat, 0.0)
        if self.adds.on_refused(seat.index, int(entry)):
            return [f"{bookie} should be replaced; {entry} cannot be confirmed otherwise"]
        return [f"{bookie} should be replaced"]

    def on_propose(self, *moves):
        spares = {}
        for move in moves:
            old, new = move.split("->")
            spares[self.seats[old].index] = new
        self.proposal = self.change.propose(spares)
        return [f"from {self.proposal.first} on, if the ledger is as it was when read"]

    def on_store(self):
        self.stored = self.proposal.apply(self.stored)
        return self.committed()

    def on_reply(self, lost):
        assert lost == "lost"
        self.stored = self.proposal.apply(self.stored)
        assert self.proposal.apply(self.stored) is None
        return ["it is there already", *self.committed()]

    def committed(self):
        again = self.change.on_committed(self.stored)
        self.remember()
        fragments = "; ".join(f"{f.first} {','.join(f.ensemble)}" for f in self.stored.fragments)
        sent = [f"send {one.entry} to {one.seat.bookie}" for one in again]
        return [f"fragments {fragments}", *sent, *self.confirmed(self.adds.release())]

    def on_repaired(self, first, ensemble):
        changed = Fragment(int(first), tuple(ensemble.split(",")))
        fragments = (changed if one.first == int(first) else one for one in self.stored.fragments)
        self.stored = replace(self.stored, fragments=tuple(fragments))
        return ["still open, the failed one still there: try again"]

    def on_found(self, state, last=None):
        found = self.stored
        if state != "open":
            found = found.close(int(last), 0) if state == "closed" else found.in_recovery()
        try:
            self.proposal.apply(found)
        except LedgerError as error:
            self.adds.fail(error)
            return self.failed()
        return ["try again"]

    def on_no(self, spare):
        assert spare == "spare"
        self.adds.fail_out_of_reach(AddFailed("too few of its bookies take it"))
        return self.failed()

    def failed(self):
        error = self.adds.error
        entries = self.adds.take_failed()
        return [f"FAILED {entry}: {type(error).__name__}: {error}" for entry in entries]

    def on_back(self, bookie):
        return [f"send {one.entry} to {one.seat.bookie}" for one in self.change.rejoin({bookie})]


@pytest.mark.parametrize("name", names("ensemble_"))
def test_a_change_of_bookies_goes_as_the_story_says(name):
    asyncio.run(play(name, Teller().execute))
