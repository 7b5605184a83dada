"""The writer and those who recover, as state machines around the real pure cores.

A host is stepped by one event and answers with effects; nothing else happens in it. `Machines`
runs the real code once for each (state, event) and remembers the outcome: a state is frozen into
a value and its number stands for it. Bookies are numbers, "b0" is the name of bookie 0.

    writer      ("added", i, e)  ("lost", i, e)  ("cas", metadata)  ("learn",)
    recoverer   ("added", i, e)  ("lost", i, e)  ("start", metadata)  ("fence", i, lac, highest)
                ("begin",)  ("read", i, e, "found" | "absent" | "unknown")
    both        ("end",)

Effects: ("send", i, Request) · ("acked", e) · ("store", metadata)
"""

import copy
from typing import NamedTuple

from ledger.core import recovery
from ledger.core.add_pipeline import AddPipeline
from ledger.core.ensemble_change import Resend
from ledger.core.ledger_metadata import LedgerMetadata, Versioned
from ledger.core.ledger_writing import (
    ChooseSpares,
    CompareAndSet,
    Confirm,
    LedgerWriting,
    ReadMetadata,
    Refusal,
)
from ledger.core.quorum import coverage_size
from ledger.errors import LedgerError
from tests.sim.exhaustive.freeze import Interner, freeze


class Request(NamedTuple):
    """To one bookie. `kind`: A add, G add again with the recovery flag, F fence, R read, U read
    that does not fence (a mistake).
    """

    kind: str
    entry: int = -1
    lac: int = -1


class Stored:
    """Ledger metadata that can be a part of an event: as good as its number."""

    def __init__(self, number, value: LedgerMetadata):
        self.number = number
        self.value = value

    def __hash__(self):
        return self.number

    def __eq__(self, other):
        return self.number == other.number

    def __deepcopy__(self, memo):
        return self


def name_of(bookie):
    return f"b{bookie}"


def number_of(name):
    return int(name[1:])


def payload_of(entry):
    return b"%d" % entry


class Writer:
    """As `client.writer` carries out what `LedgerWriting` decides.

    It sends all its entries at once, or (`patient`) each as soon as the one before is confirmed:
    any other moment to send is one of these with messages that take longer. Metadata are read in
    the moment of the choice of spares; the timers never end.
    """

    pipeline_type = AddPipeline

    def __init__(self, metadata, entries, spares, patient):
        self.entries = entries
        self.spares = list(spares)
        self.patient = patient
        self.over = False
        self.in_flight = None  # the change that the store has not got yet
        self.committed = None  # what the store holds, before the writer has learnt it
        adds = self.pipeline_type(
            ensemble_size=metadata.ensemble_size,
            write_quorum=metadata.write_quorum,
            ack_quorum=metadata.ack_quorum,
            entries_max=100,
            bytes_max=100,
        )
        self.writing = LedgerWriting(
            Versioned(metadata, 0),
            adds,
            overloaded_s_max=1000.0,
            change_s_max=1000.0,
            failed_bookie_pause_s=1000.0,
        )

    @property
    def acked(self):
        return self.writing.adds.lac

    def begin(self):
        count = 1 if self.patient else self.entries
        return [send for _ in range(count) for send in self._add()]

    def step(self, event):
        if self.over:
            return []
        effects = getattr(self, "on_" + event[0])(*event[1:])
        adds = self.writing.adds
        self.over = self.over or (adds.error is not None and adds.empty)
        return effects

    def _add(self):
        adds, sets = self.writing.adds, self.writing.change.sets
        lac = adds.lac
        entry = adds.add(1, adds.lap + 1)
        request = Request("A", entry, lac)
        return [("send", number_of(s.bookie), request) for s in sets[entry % len(sets)]]

    def _slot(self, bookie):
        slots = self.writing.change._slots
        return next((one for one in slots if one.bookie == name_of(bookie)), None)

    def on_added(self, bookie, entry):
        slot = self._slot(bookie)
        if slot is None:
            return []
        confirmed = self.writing.adds.on_added(slot.index, entry)
        return self._confirmed(confirmed) + self._carry_out(self.writing.after_confirm())

    def _confirmed(self, items):
        effects = [("acked", entry) for entry in items]
        if items and self.patient and self.writing.adds.lap + 1 < self.entries:
            effects += self._add()
        return effects

    def on_lost(self, bookie, entry):
        slot = self._slot(bookie)
        if slot is None:
            return []
        refused = self.writing.on_refused(slot, entry, Refusal.UNHEALTHY, "LOST", 0.0)
        return self._carry_out(refused)

    def _carry_out(self, decided):
        effects = []
        for one in decided:
            match one:
                case ChooseSpares():
                    effects += self._choose_spares(one)
                case ReadMetadata():
                    known = Versioned(self.writing.change.metadata, 0)
                    effects += self._carry_out(self.writing.on_metadata_read(known, 0.0))
                case CompareAndSet():
                    self.in_flight = one.change
                case Resend(slot, entry, _):
                    request = Request("A", entry, self._lac_of(entry))
                    effects.append(("send", number_of(slot.bookie), request))
                case Confirm(items):
                    effects += self._confirmed(items)
        return effects

    def _choose_spares(self, request):
        spares = dict(zip(request.indexes, self.spares, strict=False))
        self.spares = self.spares[len(spares) :]
        chosen = self.writing.on_spares_chosen(request, spares, (), 0.0)
        return self._carry_out(chosen)

    def wants_to_change(self):
        return self.in_flight is not None

    def on_cas(self, stored):
        """The store applied the proposal, or said no; the writer has not heard of it yet."""
        change, self.in_flight = self.in_flight, None
        try:
            changed = change.apply(stored.value)
        except LedgerError as error:
            return self._carry_out(self.writing.on_change_failed(error))
        self.committed = changed or stored.value
        return [] if changed is None else [("store", changed)]

    def on_learn(self):
        committed, self.committed = self.committed, None
        return self._carry_out(self.writing.on_change_stored(Versioned(committed, 0), 0.0))

    def _lac_of(self, entry):
        """The body is sent as it was packed when it was added."""
        return entry - 1 if self.patient else -1

    def on_end(self):
        self.over = True
        return []

    def wants_to_close(self):
        writing = self.writing
        return writing.adds.error is None and writing.close_request() is not None


class Recoverer:
    """As `client.recover` drives `Recovery`."""

    recovery_type = recovery.Recovery
    read_kind = "R"
    hears_highest = True  # else every answer to a fence has a damaged entry

    def __init__(self, window, spares):
        self.window = window
        self.spares = tuple(spares)
        self.core = None
        self.began_with = None
        self.closing = None
        self.over = False
        self.absent = set()  # (bookie, entry) that said no: the evidence

    @property
    def active(self):
        return self.core is not None and not self.over and self.closing is None

    def step(self, event):
        if self.over or not (self.active or event[0] in ("start", "end")):
            return []
        effects = self._effects(getattr(self, "on_" + event[0])(*event[1:]))
        self._forget_what_is_over()
        return effects

    def _forget_what_is_over(self):
        """Fields that the core never looks at again make no new state."""
        if self.over or self.closing is not None:
            self.core = None
            self.absent = set()
        elif self.core is not None and self.core._adding is not None:
            self.core._fenced = None
            self.core._lac = None
            self.core._awaited = None

    def on_end(self):
        self.over, self.closing, self.began_with = True, None, None
        return ()

    def on_start(self, stored):
        if stored.value.closed:
            self.over = True
            return []
        self.began_with = stored.value
        self.core = self.recovery_type(
            stored.value, window=self.window, spares=self.spares, patient=True
        )
        return self.core.start()

    def on_fence(self, bookie, lac, highest):
        if self.core._adding is not None:
            return []
        index = self._place(self.core._read_ensemble, bookie)
        if not self.hears_highest:
            return self.core.on_fenced(index, -1)
        copy = recovery.Found(highest + 1, payload_of(highest)) if highest >= 0 else None
        return self.core.on_fenced(index, lac, recovery.Highest(highest, copy))

    def may_begin(self):
        """It may lose its patience with the bookies that have not answered."""
        return self.active and self.core._adding is None and self.core._fenced.reached

    def on_begin(self):
        return self.core.begin()

    def on_read(self, bookie, entry, answer):
        core = self.core
        index = self._place(core._read_ensemble, bookie)
        if index is None:
            return []
        if answer == "found":
            said = recovery.Found(entry + 1, payload_of(entry))
        else:
            said = recovery.Absent() if answer == "absent" else recovery.Unknown()
        if answer == "absent" and not core._end_found:
            self.absent.add((bookie, entry))
        actions = core.on_read(index, entry, said)
        self.absent = {one for one in self.absent if one[1] >= core._next}
        return actions

    def on_added(self, bookie, entry):
        index = self._place(self.core._ensemble, bookie)
        return [] if index is None else self.core.on_added(index, name_of(bookie), entry)

    def on_lost(self, bookie, entry):
        index = self._place(self.core._ensemble, bookie)
        return [] if index is None else self.core.on_add_failed(index, name_of(bookie), entry)

    def _place(self, ensemble, bookie):
        name = name_of(bookie)
        return ensemble.index(name) if name in ensemble else None

    def _effects(self, actions):
        effects = []
        for action in actions:
            if isinstance(action, recovery.Abort):
                self.over = True
            elif isinstance(action, recovery.Close):
                self._check_evidence(action)
                self.closing = action.metadata.close(action.last_entry, action.last_entry + 1)
            else:
                effects.append(("send", number_of(action.bookie), self._request(action)))
        return effects

    def _check_evidence(self, close):
        began = self.began_with
        end = close.last_entry + 1
        ensemble, shown = self.core._read_ensemble, self.core._highest
        noes = {bookie for bookie, entry in self.absent if entry == end}
        noes.update(number_of(ensemble[i]) for i in shown if shown[i].entry < end)
        noes &= {number_of(name) for name in began.bookies_of(end)}
        noes = len(noes)
        needed = coverage_size(began.write_quorum, began.ack_quorum)
        assert noes >= needed, f"L12: {noes} noes ended the recovery, {needed} are needed"

    def _request(self, action):
        if isinstance(action, recovery.Fence):
            return Request("F")
        if isinstance(action, recovery.ReadEntry):
            return Request(self.read_kind, action.entry)
        assert bytes(action.payload) == payload_of(action.entry), "L4: another payload"
        return Request("G", action.entry, action.lac)


class BareRecoverer(Recoverer):
    hears_highest = False


class Machines:
    """All local states met so far, by number, how each was reached, and what each event does."""

    def __init__(self, permuted_event):
        self._numbers = Interner()
        self.objects = []
        self._reached = []  # by number: (state before, event), or None for a first state
        self._outcomes = {}
        self._permuted = {}
        self._permuted_event = permuted_event

    def number(self, machine, reached=None):
        number = self._numbers.number(freeze(machine))
        if number == len(self.objects):
            self.objects.append(machine)
            self._reached.append(reached)
        return number

    def step(self, number, event):
        """The number of the next state, and the effects."""
        outcome = self._outcomes.get((number, event))
        if outcome is None:
            machine = copy.deepcopy(self.objects[number])
            effects = tuple(machine.step(event))
            next_number = self.number(machine, (number, event))
            outcome = self._outcomes[number, event] = (next_number, effects)
        return outcome

    def changes_nothing(self, number, event):
        return self.step(number, event) == (number, ())

    def permuted(self, number, places):
        """The state that the same history leads to when bookie b is called places[b]."""
        known = self._permuted.get((number, places))
        if known is None:
            reached = self._reached[number]
            if reached is None:
                known = number
            else:
                before = self.permuted(reached[0], places)
                known, _ = self.step(before, self._permuted_event(reached[1], places))
            self._permuted[number, places] = known
        return known
