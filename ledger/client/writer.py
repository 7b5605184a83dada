"""An open ledger's one writer: runs `AddPipeline` and `EnsembleChange` against the bookies."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import partial

from ledger.client.config import LedgerClientConfig
from ledger.client.health import SICK, BookieHealth
from ledger.client.update_metadata import LedgerMetadataStore, Versioned
from ledger.core.add_pipeline import AddPipeline
from ledger.core.ensemble_change import Again, EnsembleChange, Seat
from ledger.core.entry_format import EntryFormat, master_key
from ledger.core.ledger_metadata import LedgerMetadata, LedgerState
from ledger.errors import (
    AddFailed,
    EntryTooLarge,
    Fenced,
    LedgerClosed,
    LedgerError,
    MetadataUnavailable,
    StorageFull,
    Unauthorized,
)
from ledger.ids import BookieId, Buffer, EntryId, LedgerId
from ledger.ports.bookies import Bookies, Status

OnConfirmed = Callable[[LedgerError | None], None]
Body = tuple[Buffer, ...]
"""A whole entry in parts: header and digest, then the payload's buffers."""


_Item = tuple[Body, OnConfirmed]
"""What a pending entry needs for a resend and for its end."""

_OVERLOADED_WAIT_S = 0.005
_OVERLOADED_WAIT_S_MAX = 0.25
_SPARE_WAIT_S = 0.1
_SPARE_WAIT_S_MAX = 2.0


class LedgerWriter:
    """Adds entries in order. Belongs to one task; every method runs on the event loop's thread.

    A bookie that fails is replaced at once where a spare exists. Without one, writing goes on
    while every write set keeps Qa that answer. After the first entry that cannot reach its ack
    quorum the writer is over (`failed`): what was pending has an unknown outcome until the
    ledger is recovered.
    """

    __slots__ = (
        "__weakref__",
        "_bookies",
        "_change",
        "_change_s_max",
        "_changing",
        "_closed",
        "_closing",
        "_entry_bytes_max",
        "_format",
        "_health",
        "_key",
        "_looking",
        "_loop",
        "_metadata_store",
        "_overloaded_s_max",
        "_pipeline",
        "_refusal",
        "_spare_wait_s",
        "_version",
        "_waiting",
        "failed",
        "ledger",
        "on_failed",
    )

    def __init__(
        self,
        metadata: Versioned,
        metadata_store: LedgerMetadataStore,
        bookies: Bookies,
        health: BookieHealth,
        config: LedgerClientConfig,
    ) -> None:
        value = metadata.metadata
        assert value.state is LedgerState.OPEN
        assert len(value.fragments) == 1, "a writer starts at entry 0; taking over means recovery"
        self.ledger: LedgerId = value.ledger
        self.failed: LedgerError | None = None
        self.on_failed: Callable[[LedgerError], None] | None = None
        self._version = metadata.version
        self._metadata_store = metadata_store
        self._bookies = bookies
        self._health = health
        self._format = EntryFormat(value.digest_type, value.password)
        self._key = master_key(value.password)
        self._entry_bytes_max = config.entry_bytes_max
        self._overloaded_s_max = config.overloaded_s_max
        self._change_s_max = config.ensemble_change_s_max
        self._pipeline: AddPipeline[_Item] = AddPipeline(
            ensemble_size=value.ensemble_size,
            write_quorum=value.write_quorum,
            ack_quorum=value.ack_quorum,
            entries_max=config.pending_entries_max,
            bytes_max=config.pending_bytes_max,
        )
        self._change = EnsembleChange(value, self._pipeline, pause_s=config.failed_bookie_pause_s)
        self._changing: asyncio.Task[None] | None = None
        self._looking: asyncio.TimerHandle | None = None  # for spares, of which there were none
        self._spare_wait_s = _SPARE_WAIT_S
        self._refusal: LedgerError = AddFailed(f"ledger {self.ledger}")  # the last one heard
        self._waiting: list[asyncio.Future[None]] = []
        self._closing = False
        self._closed = asyncio.Lock()
        self._loop = asyncio.get_running_loop()

    @property
    def lap(self) -> EntryId:
        """Last add pushed; -1 at first."""
        return self._pipeline.lap

    @property
    def lac(self) -> EntryId:
        """Last add confirmed: it and all before it are on Qa bookies. -1 at first."""
        return self._pipeline.lac

    @property
    def length(self) -> int:
        """Payload bytes of entries 0..lap."""
        return self._pipeline.length

    @property
    def full(self) -> bool:
        """`add` must wait for `room`. Never once the writer has failed: then `add` raises."""
        return self._pipeline.full and self.failed is None

    @property
    def metadata(self) -> LedgerMetadata:
        """As this writer last read or wrote them."""
        return self._change.metadata

    def add(self, payload: Sequence[Buffer], on_confirmed: OnConfirmed) -> EntryId:
        """Accepted, in order, on return; durable on Qa bookies when `on_confirmed(None)` runs.

        `on_confirmed` runs in entry order, once, never inside `add`. With an error the outcome
        is unknown until recovery. The buffers are never copied and must not change before.
        Raises what the writer failed with, LedgerClosed, EntryTooLarge. Not while `full`.
        """
        if self.failed is not None:
            raise _again(self.failed)
        if self._closing:
            raise LedgerClosed(f"ledger {self.ledger} is being closed by its writer")
        pipeline = self._pipeline
        assert not pipeline.full
        size = sum(map(len, payload))
        if size > self._entry_bytes_max:
            raise EntryTooLarge(f"{size} bytes, at most {self._entry_bytes_max}")
        entry = EntryId(pipeline.lap + 1)
        length = pipeline.length + size
        header = self._format.pack(self.ledger, entry, pipeline.lac, length, payload)
        body = (header, *payload)
        pipeline.add(size, (body, on_confirmed))
        send, sets = self._bookies.add, self._change.sets
        for seat in sets[entry % len(sets)]:
            on_added = partial(self._on_added, seat, entry, body)
            send(seat.bookie, self.ledger, entry, self._key, body, on_added)
        return entry

    def _on_added(self, seat: Seat, entry: EntryId, body: Body, status: Status) -> None:
        if seat.replaced:
            return
        if status is not Status.OK:
            self._on_not_added(seat, entry, body, status)
            return
        confirmed = self._pipeline.on_added(seat.index, entry)
        if confirmed:
            self._tell_confirmed(confirmed)

    def _tell_confirmed(self, confirmed: list[_Item]) -> None:
        for _, on_confirmed in confirmed:
            on_confirmed(None)
        if self._pipeline.error is not None:
            self._tell_failed()
        if self._waiting and not self._pipeline.full:
            self._wake()

    def _on_not_added(self, seat: Seat, entry: EntryId, body: Body, status: Status) -> None:
        if status is Status.OVERLOADED:
            give_up_at_s = self._loop.time() + self._overloaded_s_max
            self._send_later(seat, entry, body, _OVERLOADED_WAIT_S, give_up_at_s)
        else:
            self._on_refused(seat, entry, status)

    # An overloaded bookie wrote nothing, so it may be asked again, until it takes the entry or
    # time is up. What is pending stays bounded, so its lack of room climbs to `room`.

    def _send_later(
        self, seat: Seat, entry: EntryId, body: Body, wait_s: float, give_up_at_s: float
    ) -> None:
        self._loop.call_later(wait_s, self._send_again, seat, entry, body, wait_s, give_up_at_s)

    def _send_again(
        self, seat: Seat, entry: EntryId, body: Body, waited_s: float, give_up_at_s: float
    ) -> None:
        if seat.replaced:
            return
        wait_s = min(2 * waited_s, _OVERLOADED_WAIT_S_MAX)
        on_added = partial(self._on_added_late, seat, entry, body, wait_s, give_up_at_s)
        self._bookies.add(seat.bookie, self.ledger, entry, self._key, body, on_added)

    def _on_added_late(
        self,
        seat: Seat,
        entry: EntryId,
        body: Body,
        wait_s: float,
        give_up_at_s: float,
        status: Status,
    ) -> None:
        if status is not Status.OVERLOADED:
            self._on_added(seat, entry, body, status)
        elif self._loop.time() < give_up_at_s:
            self._send_later(seat, entry, body, wait_s, give_up_at_s)
        elif not seat.replaced:
            self._on_refused(seat, entry, status)

    def _on_refused(self, seat: Seat, entry: EntryId, status: Status) -> None:
        pipeline = self._pipeline
        if self._closing and pipeline.empty:
            return  # one copy fewer of an entry that has enough
        place = f"ledger {self.ledger} entry {entry} at {seat.bookie}"
        if status is Status.FENCED:
            self._fail(Fenced(f"{place}: a reader has taken this ledger over"))
            return
        if status is Status.UNAUTHORIZED:
            self._fail(Unauthorized(f"{place}: the master key does not match"))
            return
        if status is Status.READ_ONLY and pipeline.write_quorum == 1:
            # The only bookie refused: the entry is nowhere, so nothing after it will be kept.
            self._refusal = StorageFull(f"{place}: no room")
        else:
            self._refusal = AddFailed(f"{place}: {status.name}")
        if not seat.failed and status in SICK:
            self._health.on_result(seat.bookie, ok=False)
        self._change.on_failed(seat, self._loop.time())
        stuck = pipeline.on_refused(seat.index, entry)
        if stuck or self._looking is None:
            self._mend()

    def _fail(self, error: LedgerError) -> None:
        """Whatever is pending fails, and nothing more is taken."""
        self._pipeline.fail(error)
        self._tell_failed()

    # Failed bookies are replaced, all that have failed so far at a time, by one task: the only
    # await is for the metadata store. Adds go on meanwhile, to the bookies as committed.

    def _mend(self) -> None:
        """Spares take the places of failed bookies; or what needed one has failed."""
        pipeline = self._pipeline
        if self._changing is not None or self._start_change():
            return
        if pipeline.error is None:
            self._look_later()
        pipeline.fail_out_of_reach(self._refusal)
        if pipeline.error is not None:
            self._tell_failed()

    def _start_change(self) -> bool:
        """False: there is nobody to choose, or no use in it any more."""
        pipeline = self._pipeline
        if pipeline.error is not None or (self._closing and not pipeline.out_of_reach):
            return False
        spares = self._choose_spares()
        if spares:
            self._changing = self._loop.create_task(self._replace(spares))
            self._changing.add_done_callback(self._on_change_over)
        return bool(spares)

    def _choose_spares(self) -> dict[int, BookieId]:
        """By index of the failed bookie; fewer than have failed, or none, when they are few."""
        change = self._change
        ensemble = list(change.metadata.last_fragment.ensemble)
        paused = change.paused(self._loop.time())
        spares: dict[int, BookieId] = {}
        for seat in change.failed:
            spare = self._health.choose_replacement(
                tuple(ensemble),
                seat.index,
                write_quorum=change.metadata.write_quorum,
                failed=paused,
            )
            if spare is not None:
                spares[seat.index] = ensemble[seat.index] = spare
        return spares

    async def _replace(self, spares: dict[int, BookieId]) -> None:
        give_up_at_s = self._loop.time() + self._change_s_max
        try:
            known = await self._read_metadata(give_up_at_s)
        except MetadataUnavailable as error:
            # Nothing was proposed: the ensemble is as committed, and what can be confirmed may be.
            self._refusal = error
            self._look_later()
            self._pipeline.fail_out_of_reach(error)
            return
        if self._pipeline.error is not None:
            return
        proposal = self._change.propose(spares)
        while True:
            try:
                stored = await self._metadata_store.update(known, proposal.apply)
                break
            except MetadataUnavailable:
                # Whether it happened is not known, and it may yet happen: nothing is confirmed.
                if self._loop.time() >= give_up_at_s:
                    raise
        self._version = stored.version
        again = self._change.on_committed(stored.metadata)
        if self._pipeline.error is None:
            self._spare_wait_s = _SPARE_WAIT_S
            self._send_all(again)
            self._tell_confirmed(self._pipeline.release())

    async def _read_metadata(self, give_up_at_s: float) -> Versioned:
        """Asked first, so that a store that is away does not hold up what can be confirmed."""
        while True:
            try:
                return await self._metadata_store.read(self.ledger)
            except MetadataUnavailable:
                if self._loop.time() >= give_up_at_s or self._pipeline.error is not None:
                    raise

    def _send_all(self, again: list[Again[_Item]]) -> None:
        for seat, entry, (body, _) in again:
            on_added = partial(self._on_added, seat, entry, body)
            self._bookies.add(seat.bookie, self.ledger, entry, self._key, body, on_added)

    def _on_change_over(self, task: asyncio.Task[None]) -> None:
        self._changing = None
        error = AddFailed(f"ledger {self.ledger}") if task.cancelled() else task.exception()
        if error is not None:
            known = isinstance(error, LedgerError)
            self._pipeline.fail(error if known else AddFailed(f"ledger {self.ledger}: {error!r}"))
        if self._pipeline.error is not None:
            self._pipeline.fail_out_of_reach(self._refusal)  # what lost its quorum meanwhile
            self._tell_failed()
        elif self._change.failed and self._looking is None:
            self._mend()
        self._wake()
        if error is not None and not isinstance(error, LedgerError):
            raise error

    # Without spares: while entries are pending they are looked for again and again; otherwise the
    # next refusal does it.

    def _look_later(self) -> None:
        if self._looking is None:
            self._looking = self._loop.call_later(self._spare_wait_s, self._look_again)
            self._spare_wait_s = min(2 * self._spare_wait_s, _SPARE_WAIT_S_MAX)

    def _look_again(self) -> None:
        self._looking = None
        if self._changing is not None or self._pipeline.empty or self._start_change():
            return
        if self._pipeline.error is None:
            self._send_all(self._change.rejoin(self._bookies.available()))
            if self._change.failed:
                self._look_later()

    def _tell_failed(self) -> None:
        """Pending entries got the error, oldest first, as far as none before may succeed."""
        pipeline = self._pipeline
        error = pipeline.error
        assert error is not None
        first = self.failed is None
        self.failed = error
        for _, on_confirmed in pipeline.take_failed():
            on_confirmed(error)
        self._wake()
        if first and self.on_failed is not None:
            self.on_failed(error)

    async def room(self) -> None:
        """Returns when there is room for an entry, or when the writer has failed."""
        while self.full:
            await self._news()

    async def close(self) -> EntryId:
        """The ledger is CLOSED at its last confirmed entry, which is returned.

        Waits for what is pending. Raises what the writer failed with (recover the ledger then),
        Fenced when a reader is recovering it, LedgerClosed when it was closed elsewhere.
        Source: seed 001, "Closing a ledger as a writer".
        """
        self._closing = True
        async with self._closed:
            while not self._pipeline.empty or self._changing is not None:
                await self._news()
            if self.failed is not None:
                raise _again(self.failed)
            known = Versioned(self._change.metadata, self._version)
            stored = await self._metadata_store.update(known, self._close_change)
            self._change.metadata, self._version = stored
            self._report_health()
        return self.lac

    def _report_health(self) -> None:
        metadata, pipeline = self._change.metadata, self._pipeline
        ensemble = metadata.last_fragment.ensemble
        copies = pipeline.lac_length * pipeline.write_quorum
        self._health.on_placed(ensemble, copies // pipeline.ensemble_size)
        failed = {seat.bookie for seat in self._change.failed}
        for bookie in failed.symmetric_difference(ensemble):
            self._health.on_result(bookie, ok=True)

    def _close_change(self, current: LedgerMetadata) -> LedgerMetadata | None:
        last = self._pipeline.lac
        if current.state is LedgerState.OPEN:
            return current.close(last, self._pipeline.lac_length)
        if current.state is LedgerState.IN_RECOVERY:
            raise Fenced(f"ledger {self.ledger} is being recovered by a reader")
        if current.last_entry != last:
            raise LedgerClosed(
                f"ledger {self.ledger} was closed at {current.last_entry}, not at {last}"
            )
        return None

    async def _news(self) -> None:
        waiting = asyncio.get_running_loop().create_future()
        self._waiting.append(waiting)
        await waiting

    def _wake(self) -> None:
        waiting, self._waiting = self._waiting, []
        for one in waiting:
            if not one.done():
                one.set_result(None)


def _again(error: LedgerError) -> LedgerError:
    """A new exception with the same meaning, so that tracebacks do not pile up on one."""
    return type(error)(*error.args)
