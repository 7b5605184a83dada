"""The writer of an open ledger: carries out the decisions of `core.ledger_writing`."""

from __future__ import annotations

import asyncio
from bisect import bisect_left
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Final

from ledger.client.config import LedgerClientConfig
from ledger.client.health import UNHEALTHY, BookieHealth
from ledger.client.update_metadata import LedgerMetadataStore
from ledger.core.add_pipeline import AddPipeline
from ledger.core.ensemble_change import EnsembleSlot, Resend
from ledger.core.entry_format import EntryFormat, master_key
from ledger.core.ledger_metadata import LedgerMetadata, Versioned
from ledger.core.ledger_writing import (
    ChooseSpares,
    CompareAndSet,
    Confirm,
    Effect,
    Fail,
    LedgerWriting,
    OverloadRetry,
    ReadMetadata,
    Refusal,
    ReportHealth,
    ReportPlaced,
    StartTimer,
)
from ledger.errors import (
    AddFailed,
    EntryTooLarge,
    LedgerClosed,
    LedgerError,
    MetadataUnavailable,
    copy_error,
)
from ledger.events import EventKind, note_ledger_event
from ledger.ids import BookieId, Buffer, EntryId, LedgerId
from ledger.ports.bookies import Bookies, Status
from ledger.ports.clock import Histogram, measured_s
from ledger.tasks import do_each

if TYPE_CHECKING:
    from ledger.add_times import Times

TIMED_EACH_S: Final = 0.002
"""After so long since the last one, the acknowledgements of an entry are remembered."""
TIMED_MASK: Final = 63  # entries whose ids have none of these bits are remembered always
TIMED_FIRST: Final = 8  # the first entries of a ledger, which are remembered always

OnConfirmed = Callable[[LedgerError | None], None]
Body = tuple[Buffer, ...]
"""A whole entry in parts: header and digest, then the payload's buffers."""

_Item = tuple[Body, OnConfirmed, float]
"""A pending entry: the body to send to bookies, the callback for the outcome, and when it came."""

_OnAnswer = Callable[[EnsembleSlot, EntryId, _Item, Status], None]

_REFUSALS = {
    Status.FENCED: Refusal.FENCED,
    Status.UNAUTHORIZED: Refusal.UNAUTHORIZED,
    Status.READ_ONLY: Refusal.NO_SPACE,
    **dict.fromkeys(UNHEALTHY, Refusal.UNHEALTHY),
}


def _confirm_item(item: _Item) -> None:
    item[1](None)


class LedgerWriter:
    """The one writer of a ledger, used by one task on the event loop's thread.

    A bookie that fails is replaced at once if a spare exists. Without a spare, writing continues
    while every write set has Qa bookies that answer. The first entry that cannot reach its ack
    quorum fails the writer (`failed`). The outcome of all pending entries is then unknown until the
    ledger is recovered.
    """

    __slots__ = (
        "__weakref__",
        "_ack_quorum",
        "_added",
        "_adds",
        "_bookies",
        "_change",
        "_close_lock",
        "_closing",
        "_entry_bytes_max",
        "_exchange",
        "_format",
        "_health",
        "_key",
        "_loop",
        "_metadata_store",
        "_timed_from_s",
        "_waiters",
        "_writing",
        "failed",
        "ledger",
        "on_failed",
    )

    def __init__(
        self,
        stored: Versioned,
        metadata_store: LedgerMetadataStore,
        bookies: Bookies,
        health: BookieHealth,
        config: LedgerClientConfig,
        added: Histogram | None = None,
    ) -> None:
        """Write the ledger. `added` counts the seconds from each add to its confirmation."""
        value = stored.metadata
        self._added = added or Histogram()
        # The acknowledgements of the next entry from this time on are remembered. 0.0 until the
        # first `TIMED_FIRST` entries were sent, so that `add` compares no more than this.
        self._timed_from_s = 0.0
        self.ledger: LedgerId = value.ledger
        self._ack_quorum = value.ack_quorum
        # The error of the first failure, of an entry or the writer; None without one. Never reset.
        self.failed: LedgerError | None = None
        # Called once, when `failed` is set. The owner sets it after construction.
        self.on_failed: Callable[[LedgerError], None] | None = None
        self._metadata_store = metadata_store
        self._bookies = bookies
        self._health = health
        self._format = EntryFormat(value.digest_type, value.password)
        self._key = master_key(value.password)
        self._entry_bytes_max = config.entry_bytes_max
        self._adds: AddPipeline[_Item] = AddPipeline(
            ensemble_size=value.ensemble_size,
            write_quorum=value.write_quorum,
            ack_quorum=value.ack_quorum,
            entries_max=config.pending_entries_max,
            bytes_max=config.pending_bytes_max,
        )
        # Makes all decisions. `_adds` and `_change` are parts of it that `add` uses directly.
        self._writing: LedgerWriting[_Item] = LedgerWriting(
            stored,
            self._adds,
            overloaded_s_max=config.overloaded_s_max,
            change_s_max=config.ensemble_change_s_max,
            failed_bookie_pause_s=config.failed_bookie_pause_s,
        )
        self._change = self._writing.change
        # The last exchange with the metadata store. The reference keeps the task alive.
        self._exchange: asyncio.Task[None] | None = None
        # Futures of waiting `room` and `close` calls. Every change resolves and removes them all.
        self._waiters: list[asyncio.Future[None]] = []
        # True once `close` was called, never reset. No more entries are accepted.
        self._closing = False
        # Held while one `close` waits and stores. Concurrent calls then find the ledger closed.
        self._close_lock = asyncio.Lock()
        self._loop = asyncio.get_running_loop()

    @property
    def lap(self) -> EntryId:
        """Last add pushed, -1 at first."""
        return self._adds.lap

    @property
    def lac(self) -> EntryId:
        """Last add confirmed: this entry and all before it are on Qa bookies. -1 at first."""
        return self._adds.lac

    @property
    def length(self) -> int:
        """Payload bytes of entries 0..lap."""
        return self._adds.length

    @property
    def full(self) -> bool:
        """True if `add` must wait for `room`. False once the writer has failed: `add` raises."""
        return self._adds.full and self.failed is None

    @property
    def metadata(self) -> LedgerMetadata:
        """The ledger's metadata, as this writer last read or stored them."""
        return self._change.metadata

    def add(self, payload: Sequence[Buffer], on_confirmed: OnConfirmed) -> EntryId:
        """Accept the next entry. It is durable on Qa bookies when `on_confirmed(None)` runs.

        `on_confirmed` runs once per entry, in entry order, never inside `add`. If it receives an
        error, the outcome of the entry is unknown until recovery. The buffers are never copied and
        must not change before `on_confirmed` runs. Raises the writer's failure, LedgerClosed or
        EntryTooLarge. Must not be called while `full`.
        """
        if self.failed is not None:
            raise copy_error(self.failed)
        if self._closing:
            raise LedgerClosed(f"ledger {self.ledger} is being closed by its writer")
        adds = self._adds
        assert not adds.full
        size = sum(map(len, payload))
        if size > self._entry_bytes_max:
            raise EntryTooLarge(f"{size} bytes, at most {self._entry_bytes_max}")
        entry = adds.next_entry
        length = adds.length + size
        lac = adds.lac
        header = self._format.pack(self.ledger, entry, lac, length, payload)
        body = (header, *payload)
        began_s = measured_s()
        item = (body, on_confirmed, began_s)
        adds.add(size, item)
        sent = self._format.body(body)
        send, sets = self._bookies.add, self._change.sets
        on_answer = self._on_added
        if began_s >= self._timed_from_s or not entry & TIMED_MASK:
            on_answer = self._timed(entry, began_s)
        for slot in sets[entry % len(sets)]:
            on_added = partial(on_answer, slot, entry, item)
            send(slot.bookie, self.ledger, entry, self._key, sent, on_added)
        return entry

    # Answers of bookies

    def _timed(self, entry: EntryId, began_s: float) -> _OnAnswer:
        """Return `_on_added` for an entry whose acknowledgements are remembered."""
        from ledger.add_times import add_times  # no start waits for it

        if entry >= TIMED_FIRST - 1:
            self._timed_from_s = began_s + TIMED_EACH_S
        times: Times = [self.ledger, entry, began_s, self._ack_quorum]
        add_times.add(times)
        return partial(self._on_timed, times)

    def _on_timed(
        self, times: Times, slot: EnsembleSlot, entry: EntryId, item: _Item, status: Status
    ) -> None:
        if status is Status.OK and not slot.replaced:
            times.extend((slot.bookie, measured_s()))
        self._on_added(slot, entry, item, status)

    def _on_resent(self, entry: EntryId) -> _OnAnswer:
        """Return what the answer of a further bookie to an entry is passed to."""
        from ledger.add_times import add_times

        times = add_times.times_of(self.ledger, entry)
        return self._on_added if times is None else partial(self._on_timed, times)

    def _on_added(self, slot: EnsembleSlot, entry: EntryId, item: _Item, status: Status) -> None:
        if slot.replaced:
            return
        if status is not Status.OK:
            self._on_not_added(slot, entry, item, status)
            return
        confirmed = self._adds.on_added(slot.index, entry)
        if confirmed:
            self._confirm(confirmed)

    def _confirm(self, items: list[_Item]) -> None:
        now_s, added = measured_s(), self._added
        bounds, counts = added.bounds, added.counts
        for item in items:  # as `Histogram.add`, without a call for each entry
            seconds = now_s - item[2]
            counts[bisect_left(bounds, seconds)] += 1
            added.total_s += seconds
        do_each("a confirmation", _confirm_item, items)
        if self.failed is not None:
            self._carry_out(self._writing.after_confirm())
        if self._waiters and not self._adds.full:
            self._notify_waiters()

    def _on_not_added(
        self, slot: EnsembleSlot, entry: EntryId, item: _Item, status: Status
    ) -> None:
        now_s = self._loop.time()
        if status is Status.OVERLOADED:
            self._carry_out(self._writing.on_overloaded(slot, entry, item, now_s))
            return
        refusal = _REFUSALS.get(status, Refusal.OTHER)
        self._carry_out(self._writing.on_refused(slot, entry, refusal, status.name, now_s))

    def _on_retried(self, retry: OverloadRetry[_Item], status: Status) -> None:
        if status is Status.OVERLOADED:
            now_s = self._loop.time()
            self._carry_out(self._writing.on_overloaded_again(retry, status.name, now_s))
        else:
            self._on_added(retry.slot, retry.entry, retry.item, status)

    # Effects are carried out in the order of the decisions. A choice of spares is reported, with
    # all its consequences, before the next effect.

    def _carry_out(self, effects: Sequence[Effect[_Item]]) -> None:
        for effect in effects:
            match effect:
                case Resend(slot, entry, item):
                    on_added = partial(self._on_resent(entry), slot, entry, item)
                    self._send(slot, entry, item, on_added)
                case OverloadRetry(slot, entry, item):
                    self._send(slot, entry, item, partial(self._on_retried, effect))
                case StartTimer(delay_s, retry):
                    self._loop.call_later(delay_s, self._on_timer, retry)
                case ChooseSpares():
                    self._choose_spares(effect)
                case ReadMetadata() | CompareAndSet():
                    self._exchange = self._loop.create_task(self._ask_store(effect))
                    self._exchange.add_done_callback(self._on_exchange_over)
                case Confirm(items):
                    self._confirm(items)
                case Fail(error, items):
                    self._fail(error, items)
                case ReportHealth() | ReportPlaced():
                    self._report(effect)
        self._notify_waiters()

    def _report(self, effect: ReportHealth | ReportPlaced) -> None:
        if isinstance(effect, ReportHealth):
            self._health.on_result(effect.bookie, ok=effect.ok)
        else:
            self._health.on_placed(effect.bookies, effect.size)

    def _send(
        self, slot: EnsembleSlot, entry: EntryId, item: _Item, on_added: Callable[[Status], None]
    ) -> None:
        self._bookies.add(slot.bookie, self.ledger, entry, self._key, item[0], on_added)

    def _on_timer(self, retry: OverloadRetry[_Item] | None) -> None:
        self._carry_out(self._writing.on_timer(retry, self._loop.time()))

    def _choose_spares(self, request: ChooseSpares) -> None:
        ensemble = list(request.ensemble)
        spares: dict[int, BookieId] = {}
        for index in request.indexes:
            spare = self._health.choose_replacement(
                tuple(ensemble), index, write_quorum=request.write_quorum, failed=request.paused
            )
            if spare is not None:
                spares[index] = ensemble[index] = spare
        live, now_s = self._bookies.available(), self._loop.time()
        self._carry_out(self._writing.on_spares_chosen(request, spares, live, now_s))

    async def _ask_store(self, request: ReadMetadata | CompareAndSet) -> None:
        writing, store = self._writing, self._metadata_store
        try:
            if isinstance(request, ReadMetadata):
                known = await store.read(request.ledger)
                effects = writing.on_metadata_read(known, self._loop.time())
            else:
                stored = await store.update(request.known, request.change.apply)
                reason = self._writing.refused_for.name.lower().replace("_", "-")
                _note_change(request.known.metadata, stored.metadata, reason)
                effects = writing.on_change_stored(stored, self._loop.time())
        except MetadataUnavailable as error:
            effects = writing.on_metadata_unavailable(error, self._loop.time())
        except LedgerError as error:
            effects = writing.on_change_failed(error)
        self._carry_out(effects)

    def _on_exchange_over(self, task: asyncio.Task[None]) -> None:
        """Fail the writer if the exchange was cancelled, or raised an unexpected exception."""
        if task.cancelled():
            self._carry_out(self._writing.on_change_failed(AddFailed(f"ledger {self.ledger}")))
        elif (error := task.exception()) is not None:
            failure = AddFailed(f"ledger {self.ledger}: {error!r}")
            self._carry_out(self._writing.on_change_failed(failure))
            raise error

    def _fail(self, error: LedgerError, items: list[_Item]) -> None:
        first = self.failed is None
        self.failed = error
        do_each("a failure", lambda item: item[1](error), items)
        self._notify_waiters()  # before `on_failed`, which may raise
        if first and self.on_failed is not None:
            self.on_failed(error)

    # Waiting

    async def room(self) -> None:
        """Wait until there is room for an entry, or the writer has failed."""
        while self.full:
            await self._wait_for_progress()

    async def close(self) -> EntryId:
        """Close the ledger at its last confirmed entry, which is returned.

        Waits for pending entries. Raises the writer's failure (recover the ledger then), Fenced
        if a reader is recovering it, LedgerClosed if it was closed elsewhere.
        Source: seed 001, "Closing a ledger as a writer".
        """
        self._closing = True
        self._writing.on_close()
        async with self._close_lock:
            while (request := self._writing.close_request()) is None:
                await self._wait_for_progress()
            stored = await self._metadata_store.update(request.known, request.change.apply)
            self._carry_out(self._writing.on_closed(stored))
        return self.lac

    async def _wait_for_progress(self) -> None:
        waiter = self._loop.create_future()
        self._waiters.append(waiter)
        await waiter

    def _notify_waiters(self) -> None:
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)


def _note_change(before: LedgerMetadata, after: LedgerMetadata, reason: str) -> None:
    old, new = before.last_fragment.ensemble, after.last_fragment.ensemble
    if old != new:
        note_ledger_event(
            EventKind.ENSEMBLE_CHANGE,
            after,
            reason=reason,
            first_entry=after.last_fragment.first,
            bookies_left=",".join(each for each in old if each not in new),
            bookies_joined=",".join(each for each in new if each not in old),
        )
