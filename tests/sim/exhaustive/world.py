"""A writer, those who recover, bookies and metadata: one state and all that may happen next.

A state is a tuple of small numbers: local states of the hosts, metadata, columns (a bookie and the
messages on their way to it), what is left of each budget. What keeps the number of states small
without losing a behaviour that could break an invariant:

- A reply arrives when the request is handled, or never: a recovery decides by *which* replies it
  got, so one that comes later is a request that was handled later, or one that no longer counts.
  Where ensembles change while entries are pending this is not enough: there `late` replies to adds
  may arrive at any time.
- What could only stop a writer or a recovery (a refusal, an error) is the same as silence, since
  in every state nobody has to do anything.
- In a closed ledger only an acknowledgement could still be wrong: recoverers are done.
- Where Qw = E bookies are interchangeable, and recoverers always: of states that differ by names
  only one is kept.
"""

from dataclasses import dataclass, replace
from itertools import permutations
from typing import NamedTuple

from ledger.core.ledger_metadata import Fragment, LedgerMetadata, LedgerState
from ledger.core.quorum import coverage_size, write_sets
from tests.sim.exhaustive.columns import (
    LATE,
    NOBODY,
    STRAY,
    WAITING,
    Column,
    Message,
    deliverable,
    handle,
)
from tests.sim.exhaustive.freeze import Interner, freeze
from tests.sim.exhaustive.hosts import (
    BareRecoverer,
    Machines,
    Recoverer,
    Request,
    Stored,
    Writer,
    name_of,
    number_of,
)

WRITER = 0
_OTHER = {WRITER: WRITER, 1: 2, 2: 1, NOBODY: NOBODY}


class Violation(Exception):
    """An invariant does not hold; the message begins with its name."""


@dataclass(frozen=True)
class Bounds:
    """What is searched: all orders of all messages within these numbers."""

    ensemble_size: int = 3
    write_quorum: int = 3
    ack_quorum: int = 2
    spares: int = 0
    entries: int = 2
    recoverers: int = 2
    window: int = 1
    timeouts: int = 0  # adds whose sender gives up waiting and takes a spare
    late: int = 0  # replies to adds that are held up
    wipes: int = 0  # bookies that lose their disk and come back in limbo
    bare: bool = False  # the answers to fences have damaged entries: all must be read
    symmetric: bool = True  # bookies are interchangeable where Qw = E


class State(NamedTuple):
    hosts: tuple
    metadata: int
    columns: tuple
    timeouts: int
    late: int
    wipes: int


class World:
    """Successors and checks. Everything that depends on a part of the state is remembered.

    `faults` are mistakes of bookies: "limbo denies", "unknown" (an error is heard as an answer),
    "wiped bookies serve", "fences are forgotten", "acknowledged before the sync".
    """

    def __init__(self, bounds, writer=Writer, recoverer=Recoverer, faults=frozenset()):
        self.bounds = bounds
        self.faults = faults
        self.bookies = bounds.ensemble_size + bounds.spares
        self.machines = Machines(self._permuted_event)
        self.columns = Interner()
        self.stored = []
        self._metadata_numbers = Interner()
        self._writer = writer
        self._recoverer = BareRecoverer if bounds.bare else recoverer
        self._handled = {}
        self._tidied = {}
        self._checked = set()
        self._permuted_metadata = {}
        self._swapped_columns = {}
        self.gives_up = bounds.timeouts > 0
        self._places = None
        self._sorting = {}
        if bounds.symmetric and bounds.write_quorum == bounds.ensemble_size:
            rest = tuple(range(bounds.ensemble_size, self.bookies))
            self._places = tuple(one + rest for one in permutations(range(bounds.ensemble_size)))

    # -- numbers for values --------------------------------------------------------------------

    def number_of(self, metadata):
        number = self._metadata_numbers.number(freeze(metadata))
        if number == len(self.stored):
            self.stored.append(Stored(number, metadata))
        return number

    def column_number(self, column):
        return self.columns.number(column.tidy(self.gives_up))

    def initial(self):
        """The writer sends at once, or waits for each entry; recoverers begin when they like."""
        bounds = self.bounds
        ensemble = tuple(map(name_of, range(bounds.ensemble_size)))
        spares = tuple(map(name_of, range(bounds.ensemble_size, self.bookies)))
        metadata = LedgerMetadata(
            ledger=1,
            ensemble_size=bounds.ensemble_size,
            write_quorum=bounds.write_quorum,
            ack_quorum=bounds.ack_quorum,
            fragments=(Fragment(0, ensemble),),
        )
        recoverers = [self._recoverer(bounds.window, spares) for _ in range(bounds.recoverers)]
        for patient in (False, True):
            writer = self._writer(metadata, bounds.entries, spares, patient)
            sends = writer.begin()
            state = State(
                tuple(map(self.machines.number, [writer, *recoverers])),
                self.number_of(metadata),
                (self.columns.number(Column()),) * self.bookies,
                bounds.timeouts,
                bounds.late,
                bounds.wipes,
            )
            yield self._sent(state, WRITER, sends)

    # -- what may happen next ------------------------------------------------------------------

    def successors(self, state):
        """(what happened, the state after it) for everything that may happen."""
        for bookie, number in enumerate(state.columns):
            for message, after, reply in self._handle(number):
                yield from self._arrivals(state, bookie, message, after, reply)
            column = self.columns.values[number]
            yield from self._late_replies(state, bookie, column)
            if state.timeouts:
                yield from self._timeouts(state, bookie, column)
            if state.wipes:
                yield from self._wipes(state, bookie, column)
        yield from self._of_writer(state)
        for host in range(1, len(state.hosts)):
            yield from self._of_recoverer(state, host)

    def _handle(self, number):
        """(message, column after, reply) for each request that this bookie may handle next."""
        known = self._handled.get(number)
        if known is None:
            column = self.columns.values[number]
            known = self._handled[number] = [
                (message, *handle(column, message, self.faults)) for message in deliverable(column)
            ]
        return known

    def _arrivals(self, state, bookie, message, after, reply):
        """The bookie handled it: its reply arrives, or is held up, or is lost."""
        label = (message, f"at b{bookie}")
        if message.request.kind in "AG" or message.state == STRAY:
            yield (*label, "reply lost"), self._at(state, bookie, after)
        if message.state != WAITING or reply is None:
            return
        event = (reply[0], bookie, *reply[1:])
        yield (*label, reply), self._step(self._at(state, bookie, after), message.host, event)
        if state.late and reply[0] == "added":
            late = after.with_message(message._replace(state=LATE))
            yield (
                (*label, "reply late"),
                self._at(state._replace(late=state.late - 1), bookie, late),
            )

    def _late_replies(self, state, bookie, column):
        for message in column.messages:
            if message.state == LATE:
                after = self._at(state, bookie, column.without(message))
                event = ("added", bookie, message.request.entry)
                yield (message, f"of b{bookie}", "arrives"), self._step(after, message.host, event)

    def _timeouts(self, state, bookie, column):
        for message in column.messages:
            if message.state == STRAY or message.request.kind not in self._given_up:
                continue
            after = column.without(message)
            if message.state == WAITING:
                after = after.with_message(message._replace(state=STRAY))
            left = self._at(state._replace(timeouts=state.timeouts - 1), bookie, after)
            event = ("lost", bookie, message.request.entry)
            if message.request.kind in "RU":
                event = ("read", bookie, message.request.entry, "unknown")
            yield (message, f"at b{bookie}", "given up"), self._step(left, message.host, event)

    @property
    def _given_up(self):
        return "AGRU" if "unknown" in self.faults else "AG"

    def _wipes(self, state, bookie, column):
        left = state._replace(wipes=state.wipes - 1)
        if "fences are forgotten" in self.faults:
            yield f"b{bookie} restarts", self._at(left, bookie, column._replace(fenced=False))
        elif "acknowledged before the sync" in self.faults:
            for entry in range(self.bounds.entries):
                gone = column._replace(held=column.held & ~(1 << entry))
                if gone != column:
                    yield f"b{bookie} loses {entry}", self._at(left, bookie, gone)
        elif not column.limbo:
            serves = "wiped bookies serve" in self.faults
            gone = column._replace(fenced=not serves, held=0, lac=-1, limbo=not serves)
            yield f"b{bookie} is wiped", self._at(left, bookie, gone)

    def _of_writer(self, state):
        writer = self.machines.objects[state.hosts[WRITER]]
        if writer.over:
            return
        metadata = self.stored[state.metadata].value
        if writer.wants_to_change():
            after = self._step(state, WRITER, ("cas", self.stored[state.metadata]))
            yield "the writer's change is stored", after
        if writer.committed is not None:
            yield "the writer learns of its change", self._step(state, WRITER, ("learn",))
        elif writer.wants_to_close() and metadata.state is LedgerState.OPEN:
            after = self._step(state, WRITER, ("end",))
            closed = metadata.close(writer.acked, writer.acked + 1)
            yield "the writer closes", self._stored_anew(after, closed)

    def _of_recoverer(self, state, host):
        machine = self.machines.objects[state.hosts[host]]
        if machine.over:
            return
        metadata = self.stored[state.metadata].value
        if machine.began_with is None:
            if host > 1 and state.hosts[host] == state.hosts[host - 1]:
                return  # they are the same: the first one begins
            after = state
            if metadata.state is LedgerState.OPEN:
                after = self._stored_anew(state, metadata.in_recovery())
            event = ("start", self.stored[after.metadata])
            yield f"r{host} starts", self._step(after, host, event)
        elif machine.may_begin():
            yield f"r{host} waits for no more fences", self._step(state, host, ("begin",))
        elif machine.closing is not None:
            after = self._step(state, host, ("end",))
            if metadata == machine.began_with:
                after = self._stored_anew(after, machine.closing)
            yield f"r{host} closes", after

    # -- changes -------------------------------------------------------------------------------

    def _at(self, state, bookie, column):
        columns = list(state.columns)
        columns[bookie] = self.column_number(column)
        return state._replace(columns=tuple(columns))

    def _step(self, state, host, event):
        """The host got `event`; what it sends is on its way."""
        number, effects = self.machines.step(state.hosts[host], event)
        after = state
        if number != state.hosts[host]:
            hosts = list(state.hosts)
            hosts[host] = number
            columns = self._tidied_columns(state, host, number)
            after = state._replace(hosts=tuple(hosts), columns=columns)
        after = self._sent(after, host, effects)
        for effect in effects:
            if effect[0] == "acked":
                self.check_ack(after, effect[1])
                self._check_not_moving(number, effect[1])
            elif effect[0] == "store":
                after = self._stored_anew(after, effect[1])
        return after

    def _sent(self, state, host, effects):
        columns = list(state.columns)
        reads = False
        for effect in effects:
            if effect[0] == "send":
                bookie, request = effect[1:]
                self._check_request(state, host, request)
                column = self.columns.values[columns[bookie]]
                message = Message(host, request, WAITING)
                columns[bookie] = self.column_number(column.with_message(message))
                reads = reads or request.kind in "RU"
        after = state._replace(columns=tuple(columns))
        if reads:
            self._check_fenced(after, host)
        return after

    def _tidied_columns(self, state, host, number):
        """Requests whose replies this host would ignore from now on have become strays."""
        tidied = []
        for bookie, column in enumerate(state.columns):
            key = (column, bookie, host, number)
            known = self._tidied.get(key)
            if known is None:
                known = self._tidied[key] = self._tidied_column(*key)
            tidied.append(known)
        return tuple(tidied)

    def _tidied_column(self, column_number, bookie, host, number):
        column = self.columns.values[column_number]
        messages = []
        for message in column.messages:
            ignored = (
                message.host == host
                and message.state != STRAY
                and self.machines.changes_nothing(number, _good_answer(message.request, bookie))
            )
            if not ignored:
                messages.append(message)
            elif message.state == WAITING:
                messages.append(message._replace(state=STRAY))
        return self.column_number(column._replace(messages=tuple(messages)))

    def _stored_anew(self, state, metadata):
        self.check_change(self.stored[state.metadata].value, metadata)
        after = state._replace(metadata=self.number_of(metadata))
        return self._all_recovered(after) if metadata.closed else after

    def _all_recovered(self, state):
        """Nothing of a recovery is of interest any more."""
        hosts = [self.machines.step(number, ("end",))[0] for number in state.hosts[1:]]
        columns = []
        for number in state.columns:
            column = self.columns.values[number]
            kept = tuple(one for one in column.messages if one.request.kind == "A")
            columns.append(self.column_number(column._replace(messages=kept)))
        return state._replace(hosts=(state.hosts[0], *hosts), columns=tuple(columns))

    # -- states that differ by names only ------------------------------------------------------

    def canonical(self, state):
        """One state for all that differ only by which bookie is which, or who recovers."""
        best = min(self._sorted(state))
        if self.bounds.recoverers == 2:
            best = min(best, *self._sorted(self._swapped(state)))
        return best

    def _sorted(self, state):
        """The same state with bookies called so that their columns rise; ties in every order."""
        if self._places is None:
            return (state,)
        columns = state.columns
        known = self._sorting.get(columns)
        if known is None:
            wanted = sorted(columns[: self.bounds.ensemble_size])
            known = self._sorting[columns] = [
                places
                for places in self._places
                if all(columns[b] == wanted[places[b]] for b in range(len(wanted)))
            ]
        return [self._renamed(state, places) for places in known]

    def _renamed(self, state, places):
        if places == self._places[0]:
            return state
        columns = [0] * self.bookies
        for bookie, column in enumerate(state.columns):
            columns[places[bookie]] = column
        hosts = tuple([self.machines.permuted(number, places) for number in state.hosts])
        metadata = self._metadata_at(state.metadata, places)
        return State(hosts, metadata, tuple(columns), state.timeouts, state.late, state.wipes)

    def _swapped(self, state):
        """The first recoverer is called the second."""
        columns = []
        for number in state.columns:
            known = self._swapped_columns.get(number)
            if known is None:
                column = self.columns.values[number]
                swapped = (
                    one._replace(host=(0, 2, 1, NOBODY)[one.host]) for one in column.messages
                )
                known = self.column_number(column._replace(messages=tuple(swapped)))
                self._swapped_columns[number] = known
            columns.append(known)
        writer, first, second = state.hosts
        return state._replace(hosts=(writer, second, first), columns=tuple(columns))

    def _metadata_at(self, number, places):
        known = self._permuted_metadata.get((number, places))
        if known is None:
            value = self.stored[number].value
            fragments = []
            for fragment in value.fragments:
                ensemble = [""] * len(fragment.ensemble)
                for index, name in enumerate(fragment.ensemble):
                    ensemble[places[index]] = name_of(places[number_of(name)])
                fragments.append(Fragment(fragment.first, tuple(ensemble)))
            known = self.number_of(replace(value, fragments=tuple(fragments)))
            self._permuted_metadata[number, places] = known
        return known

    def _permuted_event(self, event, places):
        if event[0] in ("start", "cas"):
            return (event[0], self.stored[self._metadata_at(event[1].number, places)])
        if len(event) > 1:
            return (event[0], places[event[1]], *event[2:])
        return event

    # -- invariants ----------------------------------------------------------------------------

    def check(self, state):
        """What must hold in every state."""
        columns = self.columns.values
        kept = tuple(columns[number].kept for number in state.columns)
        acked = self.machines.objects[state.hosts[WRITER]].acked
        key = (state.metadata, acked, kept, state.wipes)
        if key in self._checked:
            return
        self._checked.add(key)
        metadata = self.stored[state.metadata].value
        if metadata.closed and acked > metadata.last_entry:
            raise Violation(f"L5: {acked} was acknowledged, closed at {metadata.last_entry}")
        if self.bounds.wipes - state.wipes >= metadata.ack_quorum:
            return  # more failures than are promised to be survived
        for entry in range(acked + 1):
            self._check_copies("L6", metadata, kept, entry)
        if metadata.closed:
            for entry in range(metadata.last_entry + 1):
                self._check_copies("L7", metadata, kept, entry)

    def _check_copies(self, name, metadata, kept, entry):
        """On Qa of its write set, but for those that lost their disk since."""
        held = lost = 0
        for bookie in metadata.bookies_of(entry):
            _, entries, limbo = kept[number_of(bookie)]
            held += entries >> entry & 1
            lost += limbo and not entries >> entry & 1
        if held + lost < metadata.ack_quorum or not held:
            raise Violation(f"{name}: entry {entry} is on {held} bookies, {lost} lost theirs")

    def check_ack(self, state, entry):
        metadata = self.stored[state.metadata].value
        if metadata.state is LedgerState.OPEN:
            kept = tuple(self.columns.values[number].kept for number in state.columns)
            self._check_copies("L2", metadata, kept, entry)

    def _check_not_moving(self, number, entry):
        proposal = self.machines.objects[number].writing.change.proposal
        if proposal is not None and entry >= proposal.first:
            raise Violation(f"L17: {entry} is acknowledged while {proposal} is on its way")

    def _check_request(self, state, host, request):
        if request.kind not in "AG":
            return
        acked = self.machines.objects[state.hosts[WRITER]].acked
        if request.lac >= request.entry or request.lac > acked:
            raise Violation(f"L3: {who(host)} sends {request}, acknowledged is {acked}")

    def check_change(self, old, new):
        if new.state < old.state or old.closed:
            raise Violation(f"L8: {old.state.name} became {new.state.name}")
        if old.fragments[:-1] != new.fragments[: len(old.fragments) - 1]:
            raise Violation(f"L9: {old.fragments} became {new.fragments}")
        if old.state is LedgerState.IN_RECOVERY and not new.closed:
            raise Violation("L13: metadata changed during recovery before the close")

    def _check_fenced(self, state, host):
        """Reading forward has begun: every write set of the last ensemble is covered by fences."""
        metadata = self.machines.objects[state.hosts[host]].began_with
        ensemble = metadata.last_fragment.ensemble
        needed = coverage_size(metadata.write_quorum, metadata.ack_quorum)
        for one in write_sets(metadata.ensemble_size, metadata.write_quorum):
            columns = [state.columns[number_of(ensemble[index])] for index in one]
            fenced = sum(self.columns.values[number].fenced for number in columns)
            if fenced < needed:
                raise Violation(f"L11: {who(host)} reads with {fenced} of {one} fenced")


def who(host):
    if host == NOBODY:
        return "a stray"
    return "writer" if host == WRITER else f"r{host}"


def _good_answer(request: Request, bookie):
    if request.kind == "F":
        return ("fence", bookie, -1, -1)
    if request.kind in "RU":
        return ("read", bookie, request.entry, "absent")
    return ("added", bookie, request.entry)
