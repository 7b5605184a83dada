"""Taking a ledger over from its writer: fence it, find its last entry, restore copies, close it.

    fence the last ensemble ─▶ base = highest LAC inside a covering set's last entries
    ─▶ read base+1, base+2 … each with the fence flag ─▶ add each one again ─▶ close at the last

The answers to the fence spare most of this. A bookie that has fenced durably and names its highest
entry has shown that entry, and lacks all above it. It need not be asked for any of them. An entry
that its whole write set has shown is not added again. Usually all bookies name the same entry, and
the ledger is closed without a read or an add.

Pure: replies come in as calls, each returns the next actions. Three rules where the original text
would lose or lock up data:
- Every recovery read fences too: the fence may have been answered by other bookies.
- The base is never below the start of the last fragment: earlier fragments are confirmed.
- An entry is absent only if Qw - Qa + 1 members of its write set lack it. Any other failure to
  answer is no evidence.
Reads go to the ensemble as it was when recovery began. Bookies replaced during recovery become
visible only with the compare-and-set that closes the ledger.
Source: seed 001, "Closing a ledger as a reader"; apache/bookkeeper #2614, #2615, #2908.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass

from ledger.core.add_pipeline import AddPipeline
from ledger.core.ledger_metadata import LedgerMetadata, LedgerState
from ledger.core.quorum import Coverage, write_set, write_sets
from ledger.errors import AddFailed, EntryUnknown, LedgerError, Unauthorized
from ledger.ids import NO_ENTRY, BookieId, Buffer, EntryId


@dataclass(frozen=True, slots=True)
class Fence:
    """The action to read the highest entry and the LAC of `bookie`, with the fence flag."""

    index: int
    bookie: BookieId


@dataclass(frozen=True, slots=True)
class ReadEntry:
    """The action to read `entry` from `bookie`, with the fence flag."""

    index: int
    bookie: BookieId
    entry: EntryId


@dataclass(frozen=True, slots=True)
class RecoveryAdd:
    """The action to store `entry` on `bookie` with the recovery flag."""

    index: int
    bookie: BookieId
    entry: EntryId
    lac: EntryId
    length: int
    payload: Buffer
    whole: Buffer  # the copy as found, with the LAC and the digest of the first writer


@dataclass(frozen=True, slots=True)
class Close:
    """The action to close the ledger with this content by compare-and-set.

    `length` is None if it must still be read.
    """

    last_entry: EntryId
    length: int | None
    metadata: LedgerMetadata  # IN_RECOVERY, with the ensembles of the entries added again
    last: Found | None = None  # a copy of the last entry, if this attempt has found it


@dataclass(frozen=True, slots=True)
class Abort:
    """The action to give up. The ledger stays IN_RECOVERY, and recovery may start over."""

    error: LedgerError


Action = Fence | ReadEntry | RecoveryAdd | Close | Abort


@dataclass(frozen=True, slots=True)
class Found:
    """A copy with correct digest and ids."""

    length: int
    payload: Buffer
    whole: Buffer = b""


@dataclass(frozen=True, slots=True)
class Absent:
    """The answer of a bookie that has complete data, and lacks the entry."""


@dataclass(frozen=True, slots=True)
class Unknown:
    """Any other result: an I/O error, bit rot, limbo, overload, or no answer."""


Answer = Found | Absent | Unknown


@dataclass(frozen=True, slots=True)
class Highest:
    """What a bookie that has fenced durably shows besides: its highest entry, -1 if it has none.

    It lacks all entries above, so a bookie in limbo, which may have lost some, shows nothing.
    """

    entry: EntryId
    copy: Found | None = None  # of that entry


ChooseSpare = Callable[[tuple[BookieId, ...], int, Collection[BookieId]], BookieId | None]
"""Chooses a bookie for an index of an ensemble, never one that has refused, or None."""


def in_order(spares: Iterable[BookieId]) -> ChooseSpare:
    """Return a function that chooses the first usable one of `spares`."""
    spares = tuple(spares)

    def choose(
        ensemble: tuple[BookieId, ...], index: int, refused: Collection[BookieId]
    ) -> BookieId | None:
        free = (one for one in spares if one not in ensemble and one not in refused)
        return next(free, None)

    return choose


class _Reading:
    """One entry that is being read from its whole write set at once."""

    __slots__ = ("absent", "found", "holders", "unanswered")

    def __init__(self, indexes: tuple[int, ...], ack_quorum: int) -> None:
        # Negative answers. Once they cover the write set, the entry was never acknowledged.
        self.absent = Coverage((indexes,), ack_quorum)
        # The first correct copy, which outweighs all negative answers.
        self.found: Found | None = None
        # Ensemble indexes whose bookies showed their copy when they fenced.
        self.holders: set[int] = set()
        # Ensemble indexes without an answer yet.
        self.unanswered = set(indexes)

    def weigh(self, entry: EntryId, highest: Mapping[int, Highest]) -> None:
        """Count what the bookies showed when they fenced as their answers."""
        for index in [one for one in self.unanswered if one in highest]:
            shown = highest[index]
            if shown.entry == entry and shown.copy is not None:
                self.found = self.found or shown.copy
                self.holders.add(index)
                self.unanswered.discard(index)
            elif shown.entry < entry:
                self.absent.on_known(index)
                self.unanswered.discard(index)

    @property
    def decided(self) -> bool:
        """True if it is certain whether the ledger has the entry."""
        return self.found is not None or self.absent.reached

    @property
    def hopeless(self) -> bool:
        """True if all bookies answered, without a copy and without enough negative answers."""
        return not (self.unanswered or self.absent.reached or self.found)


class Recovery:
    """One attempt to recover one ledger. It ends when it returns `Close` or `Abort`."""

    def __init__(
        self,
        metadata: LedgerMetadata,
        *,
        window: int,
        spares: Iterable[BookieId] = (),
        choose_spare: ChooseSpare | None = None,
        patient: bool = False,
    ) -> None:
        """`metadata` are the stored metadata, in state IN_RECOVERY.

        If `patient`, reading begins when all bookies have answered the fence, or when the caller
        calls `begin`, because the answers of all spare most reads and adds.

        Bookies that refuse adds are replaced by the choice of `choose_spare`, or by the first
        usable bookie of `spares`.
        """
        assert metadata.state is LedgerState.IN_RECOVERY
        assert window >= 1
        # All entries up to here are confirmed. Set once the ledger is fenced, then constant.
        self.base = NO_ENTRY
        # The stored metadata, with the bookies that this attempt replaced. Only `Close` publishes
        # them.
        self._metadata = metadata
        # The last ensemble as stored when recovery began. All fences and reads go there.
        self._read_ensemble = metadata.last_fragment.ensemble
        self._choose_spare = choose_spare or in_order(spares)
        # Bookies that refused an add in this attempt. None of them is chosen as a spare.
        self._refused: set[BookieId] = set()
        # The maximum of entries that are read ahead, and also of entries that are being added
        # again.
        self._window = window
        sets = write_sets(metadata.ensemble_size, metadata.write_quorum)
        # Answers to the fence. Once every write set is covered, reading begins.
        self._fenced: Coverage = Coverage(sets, metadata.ack_quorum)
        # The highest LAC in the answers to the fence.
        self._lac = NO_ENTRY
        # What bookies showed when they fenced, by ensemble index. Constant once reading begins.
        self._highest: dict[int, Highest] = {}
        # Ensemble indexes without an answer to the fence, while the caller is patient.
        self._awaited = set(range(metadata.ensemble_size)) if patient else set[int]()
        # Entries _next, _next + 1 ... that are being read. The head is decided first.
        self._reading: deque[_Reading] = deque()
        # The first entry that is neither found nor absent yet.
        self._next = NO_ENTRY
        # Found entries that are being added again. Created once the ledger is fenced.
        self._adding: AddPipeline[Found] | None = None
        # Payload bytes up to the last found entry; None while no entry was found above the base.
        self._length: int | None = None
        # The last entry that was found, None while none was found above the base.
        self._last: Found | None = None
        # True once entry `_next` is absent, so that the ledger ends before it. Never reset.
        self._end_found = False
        # True once `Close` or `Abort` was returned. All later replies are ignored.
        self._over = False
        # What a bookie said that refuses to fence, for the error. Empty if none refuses.
        self._refusal = ""

    def start(self) -> list[Action]:
        """Return the first actions: fence every bookie of the last ensemble."""
        return [Fence(index, bookie) for index, bookie in enumerate(self._read_ensemble)]

    def on_fenced(self, index: int, lac: EntryId, highest: Highest | None = None) -> list[Action]:
        """Count the fence of the bookie at `index`, which knows `lac` and shows `highest`."""
        if self._over or self._adding is not None:
            return []
        self._fenced.on_known(index)
        self._awaited.discard(index)
        self._lac = max(self._lac, lac)
        if highest is not None:
            self._highest[index] = highest
        return [] if self._awaited else self.begin()

    def on_fence_failed(self, index: int, error: LedgerError | None = None) -> list[Action]:
        """Continue without the bookie at `index`, which may or may not have fenced the ledger."""
        if self._over or self._adding is not None:
            return []
        if isinstance(error, Unauthorized):
            return self._abort(error)
        if error is not None:
            self._refusal = f": {error}"
        self._fenced.on_unknown(index)
        self._awaited.discard(index)
        if self._fenced.lost:
            what = f"{self._name}: too few bookies confirmed the fence{self._refusal}"
            return self._abort(EntryUnknown(what))
        return [] if self._awaited else self.begin()

    def begin(self) -> list[Action]:
        """Wait for no more answers than are needed: begin to read once the ledger is fenced."""
        self._awaited.clear()
        if self._over or self._adding is not None or not self._fenced.reached:
            return []
        return self._begin_reading()

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
        """Count the answer to a read of `entry` by the bookie at `index`, which has fenced."""
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
        """Count the durable copy on `bookie`, at `index`."""
        if self._over or self._ensemble[index] != bookie:
            return []
        assert self._adding is not None
        self._adding.on_added(index, entry)
        return self._advance()

    def on_add_failed(self, index: int, bookie: BookieId, entry: EntryId) -> list[Action]:
        """Replace `bookie`, which did not take the copy, or continue with the other bookies."""
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
        """Put `spare` at `index` from the first unconfirmed entry on, and send it its entries."""
        adding = self._adding
        assert adding is not None
        ensemble = list(self._ensemble)
        ensemble[index] = spare
        first = EntryId(adding.lac + 1)
        self._metadata = self._metadata.with_ensemble(first, tuple(ensemble))
        adding.forget(index)
        return [
            self._recovery_add(index, one.entry, one.item)
            for one in adding.pending()
            if index in adding.write_set(one.entry)
        ]

    def _advance(self) -> list[Action]:
        """Return all actions that the answers so far allow."""
        actions: list[Action] = []
        adding = self._adding
        assert adding is not None
        while not self._end_found:
            actions += self._read_ahead()
            if adding.full or not self._reading:
                break
            head = self._reading[0]
            if head.found is not None:
                actions += self._accept(head, head.found)
            elif head.absent.reached:
                self._end_found = True
            elif head.hopeless:
                error = f"{self._name}: entry {self._next} was neither found nor shown absent"
                return self._abort(EntryUnknown(error))
            else:
                break
        if self._end_found and adding.empty:
            self._over = True
            actions.append(Close(adding.lap, self._length, self._metadata, self._last))
        return actions

    def _accept(self, reading: _Reading, found: Found) -> list[Action]:
        adding = self._adding
        assert adding is not None
        self._reading.popleft()
        entry = adding.add(len(found.payload), found)
        assert entry == self._next
        self._next = EntryId(entry + 1)
        self._length, self._last = found.length, found
        indexes = adding.write_set(entry)
        safe = self._safe_at(reading, indexes)
        for index in safe:
            adding.on_added(index, entry)
        return [self._recovery_add(index, entry, found) for index in indexes if index not in safe]

    def _safe_at(self, reading: _Reading, indexes: tuple[int, ...]) -> set[int]:
        """Return the indexes whose bookies need no copy, because the whole write set has one.

        A bookie that this attempt has put in the place of another one needs it all the same.
        """
        if not reading.holders.issuperset(indexes):
            return set()
        return {i for i in indexes if self._ensemble[i] == self._read_ensemble[i]}

    def _recovery_add(self, index: int, entry: EntryId, found: Found) -> RecoveryAdd:
        # The LAC of a restored copy is the base. This attempt's own progress may rest on spares
        # that are lost if the attempt dies. With a higher LAC, the next attempt would then skip
        # entries that the bookies in its metadata lack.
        bookie, length = self._ensemble[index], found.length
        return RecoveryAdd(index, bookie, entry, self.base, length, found.payload, found.whole)

    def _read_ahead(self) -> list[Action]:
        """Read up to `window` entries at once, none of them above an entry that is absent."""
        actions: list[Action] = []
        metadata = self._metadata
        while len(self._reading) < self._window:
            if self._reading and self._reading[-1].found is None and self._reading[-1].decided:
                break
            entry = EntryId(self._next + len(self._reading))
            indexes = write_set(entry, metadata.ensemble_size, metadata.write_quorum)
            one = _Reading(indexes, metadata.ack_quorum)
            one.weigh(entry, self._highest)
            self._reading.append(one)
            if not one.decided:
                asked = [i for i in indexes if i in one.unanswered]
                actions += [ReadEntry(i, self._read_ensemble[i], entry) for i in asked]
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
