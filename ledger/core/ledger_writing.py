"""The decisions of a ledger's writer: events come in as calls, each returns effects to carry out.

    added ─▶ confirm, in entry order
    overloaded ─▶ start a timer ─▶ send again, until the bookie takes the entry or time is up
    refused ─▶ choose spares ─▶ read metadata ─▶ compare and set ─▶ send again, confirm
                     └▶ no spare ─▶ start a timer ─▶ choose spares, or else retry failed bookies
    fenced, or an entry lost its ack quorum without a spare ─▶ fail, and all later entries too
    close ─▶ nothing is pending ─▶ compare and set

Pure. `client.writer.LedgerWriter` carries the effects out, in order, and reports their results as
the next events. What may become durable is decided by two parts: `AddPipeline` (what is confirmed)
and `EnsembleChange` (which acknowledgements count).

Adds and acknowledgements are hot: one event per entry and bookie. They create no effect objects,
and go straight to `AddPipeline`, since one more call per event costs 5 % of an add:
- `LedgerWriter.add` calls `AddPipeline.add` and sends to the slots `EnsembleChange.sets`.
- An acknowledgement from a slot that is `replaced` is dropped; any other goes to
  `AddPipeline.on_added`, which returns the items to confirm. Then `after_confirm` is called.
All other events return lists of `Effect`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Generic, NamedTuple, TypeVar

from ledger.core.add_pipeline import AddPipeline
from ledger.core.ensemble_change import EnsembleChange, EnsembleSlot, Proposal, Resend
from ledger.core.ledger_metadata import LedgerMetadata, LedgerState, Versioned
from ledger.errors import (
    AddFailed,
    Fenced,
    LedgerClosed,
    LedgerError,
    StorageFull,
    Unauthorized,
    copy_error,
)
from ledger.ids import BookieId, EntryId, LedgerId

Item = TypeVar("Item")

OVERLOADED_WAIT_S = 0.005
OVERLOADED_WAIT_S_MAX = 0.25
SPARE_WAIT_S = 0.1
SPARE_WAIT_S_MAX = 2.0


class Refusal(Enum):
    """The reason why a bookie did not take an entry, as far as it matters to the writer."""

    FENCED = 1
    UNAUTHORIZED = 2
    NO_SPACE = 3  # the disks are full; the bookie is healthy but read-only
    UNHEALTHY = 4  # no answer, an I/O error or overload; counts against the bookie
    OTHER = 5


class OverloadRetry(NamedTuple, Generic[Item]):
    """The effect to send an entry again to a bookie that was overloaded, after a `StartTimer`."""

    slot: EnsembleSlot
    entry: EntryId
    item: Item
    delay_s: float  # the wait before this attempt
    give_up_at_s: float


class StartTimer(NamedTuple, Generic[Item]):
    """The effect to report `on_timer(retry)` after `delay_s` seconds.

    `retry` is None if the timer is for a new search for spares.
    """

    delay_s: float
    retry: OverloadRetry[Item] | None


class ChooseSpares(NamedTuple):
    """The effect to choose available bookies for `indexes` and report `on_spares_chosen`."""

    ensemble: tuple[BookieId, ...]
    indexes: tuple[int, ...]  # ensemble indexes of the failed bookies
    write_quorum: int
    paused: Collection[BookieId]  # bookies that must not be chosen
    retry: bool  # True to retry live failed bookies if there are no spares


class ReadMetadata(NamedTuple):
    """The effect to read the ledger's metadata and report `on_metadata_read` or the failure."""

    ledger: LedgerId


class CompareAndSet(NamedTuple):
    """The effect to store the result of `change.apply` on the metadata, beginning with `known`."""

    known: Versioned
    change: Proposal | Closing


class ReportHealth(NamedTuple):
    """The effect to report that the bookie took its adds (`ok`) or failed one."""

    bookie: BookieId
    ok: bool


class ReportPlaced(NamedTuple):
    """The effect to report `size` bytes of the ledger as load of each of `bookies`."""

    bookies: tuple[BookieId, ...]
    size: int


class Confirm(NamedTuple, Generic[Item]):
    """The effect to acknowledge these entries, in this order."""

    items: list[Item]


class Fail(NamedTuple, Generic[Item]):
    """The effect to report the failure of the writer and fail these entries, in this order."""

    error: LedgerError
    items: list[Item]


Effect = (
    Resend[Item]
    | OverloadRetry[Item]
    | StartTimer[Item]
    | ChooseSpares
    | ReadMetadata
    | CompareAndSet
    | ReportHealth
    | ReportPlaced
    | Confirm[Item]
    | Fail[Item]
)


@dataclass(frozen=True, slots=True)
class Closing:
    """The change that closes the ledger at `last_entry`, after `length` payload bytes."""

    last_entry: EntryId
    length: int

    def apply(self, current: LedgerMetadata) -> LedgerMetadata | None:
        """Return the metadata to store, or None if `current` is already closed at `last_entry`.

        Raises Fenced or LedgerClosed if this writer has lost the ledger.
        """
        if current.state is LedgerState.OPEN:
            return current.close(self.last_entry, self.length)
        if current.state is LedgerState.IN_RECOVERY:
            raise Fenced(f"ledger {current.ledger} is being recovered by a reader")
        if current.last_entry != self.last_entry:
            raise LedgerClosed(
                f"ledger {current.ledger} was closed at {current.last_entry},"
                f" not at {self.last_entry}"
            )
        return None


class LedgerWriting(Generic[Item]):
    """The writer of one open ledger, which starts at entry 0.

    A bookie that fails is replaced at once if a spare exists. Without a spare, writing continues
    while every write set has Qa bookies that answer. The first entry that cannot reach its ack
    quorum fails the writer.
    """

    __slots__ = (
        "_change_s_max",
        "_closing",
        "_give_up_at_s",
        "_overloaded_s_max",
        "_refusal",
        "_request",
        "_spare_delay_s",
        "_spares",
        "_waits_for_spares",
        "adds",
        "change",
        "ledger",
        "refused_for",
        "version",
    )

    def __init__(
        self,
        stored: Versioned,
        adds: AddPipeline[Item],
        *,
        overloaded_s_max: float,
        change_s_max: float,
        failed_bookie_pause_s: float,
    ) -> None:
        """`stored` is the metadata of a new ledger, `adds` its empty pipeline.

        An overloaded bookie is retried for `overloaded_s_max` seconds, an unavailable metadata
        store for `change_s_max` seconds.
        """
        metadata = stored.metadata
        assert metadata.state is LedgerState.OPEN
        assert len(metadata.fragments) == 1, "a writer starts at entry 0; taking over is recovery"
        self.ledger = metadata.ledger
        # Pending entries and the first failure. Once `adds.error` is set, the writer has failed.
        self.adds = adds
        # The ensemble and the metadata, as this writer last read or stored them.
        self.change: EnsembleChange[Item] = EnsembleChange(
            metadata, adds, pause_s=failed_bookie_pause_s
        )
        # The version of `change.metadata` in the store. Both change together.
        self.version = stored.version
        self._overloaded_s_max = overloaded_s_max
        self._change_s_max = change_s_max
        # The spares of the present ensemble change, by index. Set from ReadMetadata until the last
        # result of the exchange with the metadata store.
        self._spares: Mapping[int, BookieId] | None = None
        # From this time on, the ensemble change does not retry an unavailable metadata store.
        self._give_up_at_s = 0.0
        # The change in flight, to be repeated if the store is unavailable. Set by the proposal and
        # cleared once the change is stored. It stays set if the change fails. The proposal holds
        # `adds`. A stored change releases `adds`, but only if the writer has not failed.
        self._request: CompareAndSet | None = None
        # True while the timer for spares runs, from StartTimer until `on_timer(None)`. At most one
        # runs.
        self._waits_for_spares = False
        # The next delay of the timer for spares. Doubles up to a bound; a stored change resets it.
        self._spare_delay_s = SPARE_WAIT_S
        # The last refusal of an entry. Entries that lose their ack quorum fail with this error.
        self._refusal: LedgerError = AddFailed(f"ledger {self.ledger}")
        # The reason of the last refusal after which bookies were to be replaced.
        self.refused_for = Refusal.OTHER
        # True once `on_close` was called, never reset. Bookies are then replaced only if a pending
        # entry needs a replacement.
        self._closing = False

    # Answers of bookies

    def after_confirm(self) -> list[Effect[Item]]:
        """Fail the entries that waited for older entries, if the writer has failed."""
        return self._fail_settled() if self.adds.error is not None else []

    def on_overloaded(
        self, slot: EnsembleSlot, entry: EntryId, item: Item, now_s: float
    ) -> list[Effect[Item]]:
        """Send `entry` again after a short wait: the overloaded bookie wrote nothing.

        Pending entries are bounded, so an overloaded bookie slows the writer's callers down.
        """
        if slot.replaced:
            return []
        give_up_at_s = now_s + self._overloaded_s_max
        retry = OverloadRetry(slot, entry, item, OVERLOADED_WAIT_S, give_up_at_s)
        return [StartTimer(retry.delay_s, retry)]

    def on_overloaded_again(
        self, retry: OverloadRetry[Item], status: str, now_s: float
    ) -> list[Effect[Item]]:
        """Send the entry again after a longer wait, or count it as refused once time is up."""
        if retry.slot.replaced:
            return []
        if now_s >= retry.give_up_at_s:
            return self.on_refused(retry.slot, retry.entry, Refusal.UNHEALTHY, status, now_s)
        delay_s = min(2 * retry.delay_s, OVERLOADED_WAIT_S_MAX)
        return [StartTimer(delay_s, retry._replace(delay_s=delay_s))]

    def on_refused(
        self, slot: EnsembleSlot, entry: EntryId, refusal: Refusal, status: str, now_s: float
    ) -> list[Effect[Item]]:
        """Replace the bookie, which did not take `entry`. `status` names its answer in errors."""
        adds = self.adds
        if slot.replaced or (self._closing and adds.empty):
            return []  # all entries are confirmed: no bookie needs a replacement
        place = f"ledger {self.ledger} entry {entry} at {slot.bookie}"
        if refusal is Refusal.FENCED:
            return self._fail(Fenced(f"{place}: a reader has taken this ledger over"))
        if refusal is Refusal.UNAUTHORIZED:
            return self._fail(Unauthorized(f"{place}: the master key does not match"))
        if refusal is Refusal.NO_SPACE and adds.write_quorum == 1:
            # No copy of the entry exists, so neither this entry nor any later one can be kept.
            self._refusal = StorageFull(f"{place}: the bookie is read-only, its disks are full")
        else:
            self._refusal = AddFailed(f"{place}: {status}")
        self.refused_for = refusal
        effects: list[Effect[Item]] = []
        if refusal is Refusal.UNHEALTHY and not slot.failed:
            effects.append(ReportHealth(slot.bookie, ok=False))
        self.change.on_failed(slot, now_s)
        stuck = adds.on_refused(slot.index, entry)
        if stuck or not self._waits_for_spares:
            effects += self._start_ensemble_change(now_s)
        return effects

    # Changing the ensemble. One change replaces all bookies that have failed so far. Meanwhile adds
    # continue on the stored ensemble.

    def _start_ensemble_change(self, now_s: float) -> list[Effect[Item]]:
        if self._spares is not None:
            return []
        if self.adds.error is not None:
            return self._fail_out_of_reach()
        return [self._choose_spares(now_s, retry=False)]

    def _choose_spares(self, now_s: float, *, retry: bool) -> ChooseSpares:
        change = self.change
        useful = not self._closing or self.adds.out_of_reach
        return ChooseSpares(
            change.metadata.last_fragment.ensemble,
            tuple(slot.index for slot in change.failed) if useful else (),
            change.metadata.write_quorum,
            change.paused(now_s),
            retry,
        )

    def on_spares_chosen(
        self,
        request: ChooseSpares,
        spares: Mapping[int, BookieId],
        live: Collection[BookieId],
        now_s: float,
    ) -> list[Effect[Item]]:
        """Replace failed bookies by `spares`, or retry failed bookies that are `live`."""
        if self._spares is not None or self.adds.error is not None:
            return []
        if spares:
            self._spares = spares
            self._give_up_at_s = now_s + self._change_s_max
            return [ReadMetadata(self.ledger)]
        if not request.retry:
            return [*self._schedule_spare_retry(), *self._fail_out_of_reach()]
        effects: list[Effect[Item]] = [*self.change.retry_failed(live)]
        if self.change.failed:
            effects += self._schedule_spare_retry()
        return effects

    def _schedule_spare_retry(self) -> list[Effect[Item]]:
        if self._waits_for_spares:
            return []
        self._waits_for_spares = True
        delay_s = self._spare_delay_s
        self._spare_delay_s = min(2 * delay_s, SPARE_WAIT_S_MAX)
        return [StartTimer(delay_s, None)]

    def on_timer(self, retry: OverloadRetry[Item] | None, now_s: float) -> list[Effect[Item]]:
        """Send `retry` after its timer expired, or look for spares again if `retry` is None."""
        if retry is not None:
            return [] if retry.slot.replaced else [retry]
        self._waits_for_spares = False
        # With nothing pending, the next refusal looks for spares again.
        if self._spares is not None or self.adds.empty or self.adds.error is not None:
            return []
        return [self._choose_spares(now_s, retry=True)]

    def on_metadata_read(self, known: Versioned, now_s: float) -> list[Effect[Item]]:
        """Propose the change, and hold confirms from now on.

        The read comes first, so that an unavailable store delays no entry that the present
        ensemble can acknowledge.
        """
        if self._spares is None or self.adds.error is not None:
            return self._end_change(now_s)
        self._request = CompareAndSet(known, self.change.propose(self._spares))
        return [self._request]

    def on_metadata_unavailable(self, error: LedgerError, now_s: float) -> list[Effect[Item]]:
        """Retry the read or the change, until `change_s_max` is over."""
        waits = now_s < self._give_up_at_s
        if self._request is not None:
            # The change may have been stored, or be stored later, so nothing can be confirmed.
            return [self._request] if waits else self.on_change_failed(error)
        if self.adds.error is not None:
            return self._end_change(now_s)
        if waits:
            return [ReadMetadata(self.ledger)]
        # Nothing was proposed, so entries that the ensemble can acknowledge are confirmed.
        self._refusal = error
        effects = self._schedule_spare_retry()
        self.adds.fail_out_of_reach(error)
        return effects + self._end_change(now_s)

    def on_change_stored(self, stored: Versioned, now_s: float) -> list[Effect[Item]]:
        """Adopt the stored metadata, then resend and confirm entries.

        The store holds this change, or another change that made it unnecessary.
        """
        resends = self.change.on_committed(stored.metadata)
        self.version = stored.version
        self._request = None
        effects: list[Effect[Item]] = []
        if self.adds.error is None:
            self._spare_delay_s = SPARE_WAIT_S
            confirmed = self.adds.release()
            effects = [*resends, Confirm(confirmed)] if confirmed else [*resends]
        return effects + self._end_change(now_s)

    def on_change_failed(self, error: LedgerError) -> list[Effect[Item]]:
        """Fail all pending entries: the change was refused, or its outcome stays unknown."""
        self._spares = None
        return self._fail(error)

    def _end_change(self, now_s: float) -> list[Effect[Item]]:
        self._spares = None
        if self.adds.error is not None:
            return self._fail_out_of_reach()  # for entries that lost their quorum meanwhile
        if self.change.failed and not self._waits_for_spares:
            return self._start_ensemble_change(now_s)
        return []

    # Failing

    def _fail(self, error: LedgerError) -> list[Effect[Item]]:
        self.adds.fail(error)
        return self._fail_settled()

    def _fail_out_of_reach(self) -> list[Effect[Item]]:
        self.adds.fail_out_of_reach(self._refusal)
        return self._fail_settled() if self.adds.error is not None else []

    def _fail_settled(self) -> list[Effect[Item]]:
        """Report the failed entries, unless an older entry may still be confirmed."""
        assert self.adds.error is not None
        return [Fail(self.adds.error, self.adds.take_failed())]

    # Closing

    def on_close(self) -> None:
        """Replace bookies only if a pending entry needs it: no more entries will be added."""
        self._closing = True

    def close_request(self) -> CompareAndSet | None:
        """Return the request that closes the ledger, or None while entries are pending.

        Raises the writer's failure, after which the ledger must be recovered.
        """
        if not self.adds.empty or self._spares is not None:
            return None
        if self.adds.error is not None:
            raise copy_error(self.adds.error)
        known = Versioned(self.change.metadata, self.version)
        return CompareAndSet(known, Closing(self.adds.lac, self.adds.lac_length))

    def on_closed(self, stored: Versioned) -> list[Effect[Item]]:
        """Report the load and the health of the bookies: the ledger is closed."""
        change, adds = self.change, self.adds
        change.metadata, self.version = stored
        ensemble = stored.metadata.last_fragment.ensemble
        copies = adds.lac_length * adds.write_quorum
        failed = {slot.bookie for slot in change.failed}
        took = [ReportHealth(name, ok=True) for name in ensemble if name not in failed]
        return [ReportPlaced(ensemble, copies // adds.ensemble_size), *took]
