"""A reader takes a ledger over: fence, find the last entry, copy what may be half written, close.

    fence the last ensemble ─▶ base = highest LAC known to a covering set of it
    ─▶ read base+1, base+2 … each with the fence flag ─▶ add each one again ─▶ close at the last

Pure: replies come in as calls, each returns what to do next. Three rules where the original text
would lose or lock up data: every recovery read fences too (a fence answer may have come from other
bookies than the read's); the base is never below the last fragment's start (earlier fragments are
confirmed); an entry is absent only when Qw - Qa + 1 of its write set said so, any other answer
says nothing. Reads go to the ensemble as it was when recovery began; bookies replaced meanwhile
stay a private matter until the one compare-and-set that closes.
Source: seed 001, "Closing a ledger as a reader"; apache/bookkeeper #2614, #2615, #2908.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass

from ledger.core.add_pipeline import AddPipeline
from ledger.core.ledger_metadata import LedgerMetadata, LedgerState
from ledger.core.quorum import Coverage, write_set, write_sets
from ledger.errors import AddFailed, EntryUnknown, LedgerError, Unauthorized
from ledger.ids import NO_ENTRY, BookieId, Buffer, EntryId


@dataclass(frozen=True, slots=True)
class Fence:
    """Ask `bookie` for its highest entry and LAC, with the fence flag."""

    index: int
    bookie: BookieId


@dataclass(frozen=True, slots=True)
class ReadEntry:
    """Ask `bookie` for `entry`, with the fence flag."""

    index: int
    bookie: BookieId
    entry: EntryId


@dataclass(frozen=True, slots=True)
class AddAgain:
    """Store `entry` on `bookie` with the recovery flag."""

    index: int
    bookie: BookieId
    entry: EntryId
    lac: EntryId
    length: int
    payload: Buffer
    whole: Buffer  # the copy as it was found, with the LAC and the digest of its first writer


@dataclass(frozen=True, slots=True)
class Close:
    """Close with this content by compare-and-set. `length` None: nobody has told it yet."""

    last_entry: EntryId
    length: int | None
    metadata: LedgerMetadata  # IN_RECOVERY, with the ensembles of the entries added again


@dataclass(frozen=True, slots=True)
class Abort:
    """Give up for now; the ledger stays IN_RECOVERY and recovery may start over."""

    error: LedgerError


Action = Fence | ReadEntry | AddAgain | Close | Abort


@dataclass(frozen=True, slots=True)
class Found:
    """A copy whose digest and ids are right."""

    length: int
    payload: Buffer
    whole: Buffer = b""


@dataclass(frozen=True, slots=True)
class Absent:
    """The bookie would know and says that it does not have the entry."""


@dataclass(frozen=True, slots=True)
class Unknown:
    """Anything else: no answer, I/O error, rot, limbo, overload."""


Answer = Found | Absent | Unknown


ChooseSpare = Callable[[tuple[BookieId, ...], int, Collection[BookieId]], BookieId | None]
"""Whom to put into an ensemble at an index; never one of the bookies that refused before."""


def in_order(spares: Iterable[BookieId]) -> ChooseSpare:
    """The first of `spares` that may be used."""
    spares = tuple(spares)

    def choose(
        ensemble: tuple[BookieId, ...], index: int, refused: Collection[BookieId]
    ) -> BookieId | None:
        free = (one for one in spares if one not in ensemble and one not in refused)
        return next(free, None)

    return choose


class _Reading:
    """One entry being read from all its bookies at once."""

    __slots__ = ("absent", "found", "unanswered")

    def __init__(self, indexes: tuple[int, ...], ack_quorum: int) -> None:
        self.absent = Coverage((indexes,), ack_quorum)
        self.found: Found | None = None
        self.unanswered = set(indexes)

    @property
    def hopeless(self) -> bool:
        """Neither a copy nor enough noes, and nobody is left to answer."""
        return not (self.unanswered or self.absent.reached or self.found)


class Recovery:
    """One attempt to recover one ledger. Over after it returned `Close` or `Abort`."""

    def __init__(
        self,
        metadata: LedgerMetadata,
        *,
        window: int,
        spares: Iterable[BookieId] = (),
        choose_spare: ChooseSpare | None = None,
    ) -> None:
        """`metadata` as stored: IN_RECOVERY. `spares`, in this order, or whom `choose_spare`
        names, stand in for bookies that refuse adds."""
        assert metadata.state is LedgerState.IN_RECOVERY
        assert window >= 1
        self.base = NO_ENTRY  # everything up to here is confirmed; known once fenced
        self._metadata = metadata
        self._read_ensemble = metadata.last_fragment.ensemble
        self._choose_spare = choose_spare or in_order(spares)
        self._refused: set[BookieId] = set()
        self._window = window
        sets = write_sets(metadata.ensemble_size, metadata.write_quorum)
        self._fenced: Coverage = Coverage(sets, metadata.ack_quorum)
        self._lac = NO_ENTRY
        self._reading: deque[_Reading] = deque()  # entries _next, _next + 1 ...
        self._next = NO_ENTRY
        self._adding: AddPipeline[Found] | None = None
        self._length: int | None = None
        self._end_found = False
        self._over = False

    def start(self) -> list[Action]:
        """First of all: fence every bookie of the last ensemble."""
        return [Fence(index, bookie) for index, bookie in enumerate(self._read_ensemble)]

    def on_fenced(self, index: int, lac: EntryId) -> list[Action]:
        """The bookie at `index` is fenced for good and has heard of `lac`."""
        if self._over or self._adding is not None:
            return []
        self._fenced.on_known(index)
        self._lac = max(self._lac, lac)
        return self._begin_reading() if self._fenced.reached else []

    def on_fence_failed(self, index: int, error: LedgerError | None = None) -> list[Action]:
        """Whether the bookie at `index` is fenced is not known."""
        if self._over or self._adding is not None:
            return []
        if isinstance(error, Unauthorized):
            return self._abort(error)
        self._fenced.on_unknown(index)
        if self._fenced.lost:
            return self._abort(EntryUnknown(f"{self._name}: too few bookies answered the fence"))
        return []

    def _begin_reading(self) -> list[Action]:
        metadata = self._metadata
        self.base = EntryId(max(self._lac, metadata.last_fragment.first - 1))
        if self.base == NO_ENTRY:
            self._length = 0
        self._adding = AddPipeline(
            ensemble_size=metadata.ensemble_size,
            write_quorum=metadata.write_quorum,
            ack_quorum=metadata.ack_quorum,
            entries_max=self._window,
            bytes_max=2**63,
            last_confirmed=self.base,
        )
        self._next = EntryId(self.base + 1)
        return self._advance()

    def on_read(self, index: int, entry: EntryId, answer: Answer) -> list[Action]:
        """The bookie at `index`, which fenced before it answered, said this of `entry`."""
        place = entry - self._next
        if self._over or self._end_found or not 0 <= place < len(self._reading):
            return []
        one = self._reading[place]
        one.unanswered.discard(index)
        if isinstance(answer, Found):
            one.found = one.found or answer
        elif isinstance(answer, Absent):
            one.absent.on_known(index)
        return self._advance()

    def on_added(self, index: int, bookie: BookieId, entry: EntryId) -> list[Action]:
        """`bookie` has the copy durably."""
        if self._over or self._ensemble[index] != bookie:
            return []
        assert self._adding is not None
        self._adding.on_added(index, entry)
        return self._advance()

    def on_add_failed(self, index: int, bookie: BookieId, entry: EntryId) -> list[Action]:
        """`bookie` did not take the copy: a spare takes its place, or the others must do."""
        if self._over or self._ensemble[index] != bookie:
            return []
        adding = self._adding
        assert adding is not None
        if entry <= adding.lac:
            return []
        self._refused.add(bookie)
        spare = self._choose_spare(self._ensemble, index, self._refused)
        if spare is not None:
            return self._replace(index, spare)
        adding.on_failed(index, entry, AddFailed(f"{self._name}: {bookie} refused entry {entry}"))
        if adding.error is not None:
            return self._abort(adding.error)
        return []

    def _replace(self, index: int, spare: BookieId) -> list[Action]:
        """`spare` holds, from the first unconfirmed entry on, what `index` would have held."""
        adding = self._adding
        assert adding is not None
        ensemble = list(self._ensemble)
        ensemble[index] = spare
        first = EntryId(adding.lac + 1)
        self._metadata = self._metadata.with_ensemble(first, tuple(ensemble))
        adding.forget(index)
        return [
            self._add_again(index, one.entry, one.item)
            for one in adding.pending()
            if index in adding.write_set(one.entry)
        ]

    def _advance(self) -> list[Action]:
        """Everything that the answers so far allow."""
        actions: list[Action] = []
        adding = self._adding
        assert adding is not None
        while not self._end_found and self._reading and not adding.full:
            head = self._reading[0]
            if head.found is not None:
                actions += self._accept(head.found)
            elif head.absent.reached:
                self._end_found = True
            elif head.hopeless:
                error = f"{self._name}: entry {self._next} was neither found nor shown absent"
                return self._abort(EntryUnknown(error))
            else:
                break
        actions += self._read_ahead()
        if self._end_found and adding.empty:
            self._over = True
            actions.append(Close(adding.lap, self._length, self._metadata))
        return actions

    def _accept(self, found: Found) -> list[Action]:
        adding = self._adding
        assert adding is not None
        self._reading.popleft()
        entry = adding.add(len(found.payload), found)
        assert entry == self._next
        self._next = EntryId(entry + 1)
        self._length = found.length
        return [self._add_again(index, entry, found) for index in adding.write_set(entry)]

    def _add_again(self, index: int, entry: EntryId, found: Found) -> AddAgain:
        # Never this attempt's own progress: that may rest on spares which nobody will hear of if
        # it dies, and the next attempt would start above entries that their bookies lack.
        bookie = self._ensemble[index]
        return AddAgain(index, bookie, entry, self.base, found.length, found.payload, found.whole)

    def _read_ahead(self) -> list[Action]:
        actions: list[Action] = []
        metadata = self._metadata
        while not self._end_found and len(self._reading) < self._window:
            entry = EntryId(self._next + len(self._reading))
            indexes = write_set(entry, metadata.ensemble_size, metadata.write_quorum)
            self._reading.append(_Reading(indexes, metadata.ack_quorum))
            actions += [ReadEntry(i, self._read_ensemble[i], entry) for i in indexes]
        return actions

    def _abort(self, error: LedgerError) -> list[Action]:
        self._over = True
        return [Abort(error)]

    @property
    def _ensemble(self) -> tuple[BookieId, ...]:
        return self._metadata.last_fragment.ensemble

    @property
    def _name(self) -> str:
        return f"recovery of ledger {self._metadata.ledger}"
