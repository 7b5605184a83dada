"""Goal: one can read how a failed bookie is replaced while a ledger is written.

Method: stories, played on the pure state machine; each `ensemble_*.txt` is one. Commands:

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
from ledger.core.ledger_metadata import Fragment, LedgerMetadata, Versioned
from ledger.core.ledger_writing import ChooseSpares, Confirm, Fail, LedgerWriting, Refusal, Resend
from ledger.errors import AddFailed, LedgerError
from tests.stories.runner import names, play


def worded_error(error):
    if isinstance(error, AddFailed):
        assert str(error).endswith("IO_ERROR"), "the last refusal is the reason"
        return "AddFailed: too few of its bookies take it"
    return f"{type(error).__name__}: {error}"


class Teller:
    """Feeds one line after the other to a writer's decisions, and words the effects.

    A choice of spares that the writer asked for is answered by the line that says how.
    """

    def __init__(self):
        self.slots = {}  # every one there was, by bookie
        self.stored = None
        self.asked = None  # the ChooseSpares to answer

    async def execute(self, command):
        what, *words = command.split()
        told = getattr(self, f"on_{what}")(*words)
        return told or ["nothing yet"]

    def on_ledger(self, e, qw, qa, ensemble):
        shape = {"ensemble_size": int(e), "write_quorum": int(qw), "ack_quorum": int(qa)}
        bookies = tuple(ensemble.split(","))
        self.stored = LedgerMetadata(ledger=1, fragments=(Fragment(0, bookies),), **shape)
        self.writing = LedgerWriting(
            Versioned(self.stored, 0),
            AddPipeline(**shape, entries_max=100, bytes_max=1000),
            overloaded_s_max=30.0,
            change_s_max=30.0,
            failed_bookie_pause_s=10.0,
        )
        self.remember()
        return ["ready"]

    def remember(self):
        for one in self.writing.change.sets:
            self.slots.update({slot.bookie: slot for slot in one})

    def worded(self, effects):
        """What is sent, confirmed and failed. The rest is what the next lines are about."""
        lines = []
        for effect in effects:
            match effect:
                case Resend(slot, entry, _):
                    lines.append(f"send {entry} to {slot.bookie}")
                case Confirm(items):
                    lines += [f"CONFIRMED {entry}" for entry in items]
                case Fail(error, items):
                    lines += [f"FAILED {entry}: {worded_error(error)}" for entry in items]
                case ChooseSpares():
                    self.asked = effect
        return lines

    def on_add(self, entry):
        assert self.writing.adds.add(1, int(entry)) == int(entry)
        sets = self.writing.change.sets
        return [f"send {entry} to {slot.bookie}" for slot in sets[int(entry) % len(sets)]]

    def on_added(self, bookie, entry):
        slot = self.slots[bookie]
        if slot.replaced:
            return [f"ignored: {bookie} was replaced"]
        confirmed = self.writing.adds.on_added(slot.index, int(entry))
        return self.worded([Confirm(confirmed), *self.writing.after_confirm()])

    def on_refused(self, bookie, entry):
        slot = self.slots[bookie]
        lines = self.worded(
            self.writing.on_refused(slot, int(entry), Refusal.UNHEALTHY, "IO_ERROR", 0.0)
        )
        assert slot.failed
        if self.writing.adds.out_of_reach:
            return [f"{bookie} should be replaced; {entry} cannot be confirmed otherwise", *lines]
        return [f"{bookie} should be replaced", *lines]

    def on_propose(self, *moves):
        spares = {}
        for move in moves:
            old, new = move.split("->")
            spares[self.slots[old].index] = new
        self.writing.on_spares_chosen(self.asked, spares, (), 0.0)
        [self.request] = self.writing.on_metadata_read(Versioned(self.stored, 0), 0.0)
        first = self.request.change.first
        return [f"from {first} on, if the ledger is as it was when read"]

    def on_store(self):
        self.stored = self.request.change.apply(self.stored)
        return self.committed()

    def on_reply(self, lost):
        assert lost == "lost"
        self.stored = self.request.change.apply(self.stored)
        assert self.writing.on_metadata_unavailable(LedgerError(), 0.0) == [self.request]
        assert self.request.change.apply(self.stored) is None
        return ["it is there already", *self.committed()]

    def committed(self):
        effects = self.writing.on_change_stored(Versioned(self.stored, 1), 0.0)
        self.remember()
        fragments = "; ".join(f"{f.first} {','.join(f.ensemble)}" for f in self.stored.fragments)
        return [f"fragments {fragments}", *self.worded(effects)]

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
            self.request.change.apply(found)
        except LedgerError as error:
            return self.worded(self.writing.on_change_failed(error))
        return ["try again"]

    def on_no(self, spare):
        assert spare == "spare"
        return self.worded(self.writing.on_spares_chosen(self.asked, {}, (), 0.0))

    def on_back(self, bookie):
        assert self.worded(self.writing.on_timer(None, 0.0)) == []
        return self.worded(self.writing.on_spares_chosen(self.asked, {}, {bookie}, 0.0))


@pytest.mark.parametrize("name", names("ensemble_"))
def test_a_change_of_bookies_goes_as_the_story_says(name):
    asyncio.run(play(name, Teller().execute))
