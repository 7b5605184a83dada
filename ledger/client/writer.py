"""An open ledger's one writer: runs `AddPipeline` against the bookies."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import partial

from ledger.client.config import LedgerClientConfig
from ledger.client.update_metadata import LedgerMetadataStore, Versioned
from ledger.core.add_pipeline import AddPipeline
from ledger.core.entry_format import EntryFormat, master_key
from ledger.core.ledger_metadata import LedgerMetadata, LedgerState
from ledger.errors import (
    AddFailed,
    EntryTooLarge,
    Fenced,
    LedgerClosed,
    LedgerError,
    StorageFull,
    Unauthorized,
)
from ledger.ids import Buffer, EntryId, LedgerId
from ledger.world.bookies import Bookies, Status

OnConfirmed = Callable[[LedgerError | None], None]
Body = tuple[Buffer, ...]
"""A whole entry in parts: header and digest, then the payload's buffers."""

_OVERLOADED_WAIT_S = 0.005
_OVERLOADED_WAIT_S_MAX = 0.25


class LedgerWriter:
    """Adds entries in order. Belongs to one task; every method runs on the event loop's thread.

    After the first entry that cannot reach its ack quorum the writer is over (`failed`): what
    was pending has an unknown outcome until the ledger is recovered.
    """

    __slots__ = (
        "_bookies",
        "_closed",
        "_closing",
        "_ensemble",
        "_entry_bytes_max",
        "_format",
        "_key",
        "_metadata",
        "_metadata_store",
        "_overloaded_s_max",
        "_pipeline",
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
        config: LedgerClientConfig,
    ) -> None:
        value = metadata.metadata
        assert value.state is LedgerState.OPEN
        assert len(value.fragments) == 1, "a writer starts at entry 0; taking over means recovery"
        self.ledger: LedgerId = value.ledger
        self.failed: LedgerError | None = None
        self.on_failed: Callable[[LedgerError], None] | None = None
        self._metadata = metadata
        self._metadata_store = metadata_store
        self._bookies = bookies
        self._ensemble = value.last_fragment.ensemble
        self._format = EntryFormat(value.digest_type, value.password)
        self._key = master_key(value.password)
        self._entry_bytes_max = config.entry_bytes_max
        self._overloaded_s_max = config.overloaded_s_max
        self._pipeline: AddPipeline[OnConfirmed] = AddPipeline(
            ensemble_size=value.ensemble_size,
            write_quorum=value.write_quorum,
            ack_quorum=value.ack_quorum,
            entries_max=config.pending_entries_max,
            bytes_max=config.pending_bytes_max,
        )
        self._waiting: list[asyncio.Future[None]] = []
        self._closing = False
        self._closed = asyncio.Lock()

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
        return self._metadata.metadata

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
        lac = pipeline.lac
        entry = pipeline.add(size, on_confirmed)
        header = self._format.pack(self.ledger, entry, lac, pipeline.length, payload)
        body = (header, *payload)
        send = self._bookies.add
        for index in pipeline.write_set(entry):
            on_added = partial(self._on_added, index, entry, body)
            send(self._ensemble[index], self.ledger, entry, self._key, body, on_added)
        return entry

    def _on_added(self, index: int, entry: EntryId, body: Body, status: Status) -> None:
        if status is Status.OVERLOADED:
            give_up_at_s = asyncio.get_running_loop().time() + self._overloaded_s_max
            self._send_later(index, entry, body, _OVERLOADED_WAIT_S, give_up_at_s)
            return
        if status is not Status.OK:
            self._on_refused(index, entry, status)
            return
        confirmed = self._pipeline.on_added(index, entry)
        if not confirmed:
            return
        for on_confirmed in confirmed:
            on_confirmed(None)
        if self._pipeline.error is not None:
            self._tell_failed()
        if self._waiting and not self._pipeline.full:
            self._wake()

    # An overloaded bookie wrote nothing, so it may be asked again, until it takes the entry or
    # time is up. What is pending stays bounded, so its lack of room climbs to `room`.

    def _send_later(
        self, index: int, entry: EntryId, body: Body, wait_s: float, give_up_at_s: float
    ) -> None:
        loop = asyncio.get_running_loop()
        loop.call_later(wait_s, self._send_again, index, entry, body, wait_s, give_up_at_s)

    def _send_again(
        self, index: int, entry: EntryId, body: Body, waited_s: float, give_up_at_s: float
    ) -> None:
        wait_s = min(2 * waited_s, _OVERLOADED_WAIT_S_MAX)
        on_added = partial(self._on_added_late, index, entry, body, wait_s, give_up_at_s)
        self._bookies.add(self._ensemble[index], self.ledger, entry, self._key, body, on_added)

    def _on_added_late(
        self,
        index: int,
        entry: EntryId,
        body: Body,
        wait_s: float,
        give_up_at_s: float,
        status: Status,
    ) -> None:
        if status is not Status.OVERLOADED:
            self._on_added(index, entry, body, status)
        elif asyncio.get_running_loop().time() < give_up_at_s:
            self._send_later(index, entry, body, wait_s, give_up_at_s)
        else:
            self._on_refused(index, entry, status)

    def _on_refused(self, index: int, entry: EntryId, status: Status) -> None:
        pipeline = self._pipeline
        if self._closing and pipeline.empty:
            return  # one copy fewer of an entry that has enough
        place = f"ledger {self.ledger} entry {entry} at {self._ensemble[index]}"
        if status is Status.FENCED:
            pipeline.fail(Fenced(f"{place}: a reader has taken this ledger over"))
        elif status is Status.UNAUTHORIZED:
            pipeline.fail(Unauthorized(f"{place}: the master key does not match"))
        elif status is Status.READ_ONLY and self._pipeline.write_quorum == 1:
            # The only bookie refused: the entry is nowhere, so nothing after it will be kept.
            pipeline.on_failed(index, entry, StorageFull(f"{place}: no room"))
        else:
            pipeline.on_failed(index, entry, AddFailed(f"{place}: {status.name}"))
        if pipeline.error is not None:
            self._tell_failed()

    def _tell_failed(self) -> None:
        """Pending entries got the error, oldest first, as far as none before may succeed."""
        pipeline = self._pipeline
        error = pipeline.error
        assert error is not None
        first = self.failed is None
        self.failed = error
        for on_confirmed in pipeline.take_failed():
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
            while not self._pipeline.empty:
                await self._news()
            if self.failed is not None:
                raise _again(self.failed)
            self._metadata = await self._metadata_store.update(self._metadata, self._close_change)
        return self.lac

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
