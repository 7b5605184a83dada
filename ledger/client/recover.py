"""Recovery of a ledger whose writer may still run: carries out the actions of `Recovery`."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Coroutine, Sequence
from dataclasses import replace
from functools import partial
from typing import NamedTuple, cast

from ledger.client.config import LedgerClientConfig
from ledger.client.health import BookieHealth
from ledger.client.update_metadata import LedgerMetadataStore
from ledger.core.entry_format import DigestType, EntryFormat, master_key, read_header
from ledger.core.ledger_metadata import LedgerMetadata, LedgerState, Versioned
from ledger.core.recovery import (
    Abort,
    Absent,
    Action,
    Answer,
    Close,
    Fence,
    Found,
    Highest,
    ReadEntry,
    Recovery,
    RecoveryAdd,
    Unknown,
)
from ledger.errors import CorruptFormat, EntryUnknown, Unauthorized
from ledger.events import EventKind, note_ledger_event
from ledger.ids import NO_ENTRY, BookieId, Buffer, EntryId, LedgerId
from ledger.ports.bookies import Bookies, ReadReply, Status
from ledger.tasks import start_once

_ABSENT = (Status.NO_ENTRY, Status.NO_LEDGER)
_OVERLOADED_WAIT_S = 0.05
_CHECKED_BY_BOOKIES = (DigestType.CRC32C, DigestType.CRC32)
"""Digests that a bookie can verify, so that it accepts a copy of an entry with another LAC and
digest. With any other digest, a copy is added exactly as found."""


class Recovered(NamedTuple):
    """A closed ledger, and its last entry with its payload if the recovery has seen it."""

    stored: Versioned
    last: tuple[EntryId, memoryview] | None = None


async def recover_ledger(
    ledger: LedgerId,
    metadata_store: LedgerMetadataStore,
    bookies: Bookies,
    health: BookieHealth,
    config: LedgerClientConfig,
) -> Recovered:
    """Fence and close the ledger, with every entry that was ever acknowledged.

    The old writer can add no more entries. Concurrent recoveries all return the same last entry.
    Raises EntryUnknown, AddFailed or MetadataUnavailable if too few bookies or the store answered.
    The ledger then stays IN_RECOVERY, and the caller may retry.
    """
    current = await metadata_store.read_latest(ledger)
    while True:
        known, current = current, await metadata_store.update(current, start_recovery)
        if current.metadata.closed:
            return Recovered(current)
        note_marked(known.metadata, current.metadata)
        began_with = current.metadata
        close = await RecoveryRun(began_with, bookies, health, config).run()
        length = close.length
        if length is None:
            length = await _length_up_to(close.last_entry, began_with, bookies, config)
        closed = close.metadata.close(close.last_entry, length)
        current = await metadata_store.update(current, partial(_close, began_with, closed))
        if current.metadata == closed:
            note_ledger_event(EventKind.RECOVERY, closed, last_entry=close.last_entry)
            return Recovered(current, last_of(close))
        if current.metadata.closed:
            return Recovered(current)


def last_of(close: Close) -> tuple[EntryId, memoryview] | None:
    """Return the last entry of a ledger with its payload, if its recovery has seen it."""
    return None if close.last is None else (close.last_entry, memoryview(close.last.payload))


def note_marked(before: LedgerMetadata, after: LedgerMetadata) -> None:
    """Note the fence of a ledger that this process has marked IN_RECOVERY."""
    if before.state is LedgerState.OPEN and after.state is LedgerState.IN_RECOVERY:
        note_ledger_event(EventKind.FENCE, after)


def start_recovery(current: LedgerMetadata) -> LedgerMetadata | None:
    return current.in_recovery() if current.state is LedgerState.OPEN else None


def _close(
    began_with: LedgerMetadata, closed: LedgerMetadata, current: LedgerMetadata
) -> LedgerMetadata | None:
    """Return the metadata to store in place of `current`, or None to keep `current`.

    Returns None if another recovery has closed the ledger, because its result stands. Also returns
    None if the last fragment changed, so that recovery must start over. Earlier fragments are taken
    from `current`, since re-replication may have changed them.
    """
    if current == began_with:
        return closed
    if replace(current, fragments=began_with.fragments) != began_with:
        return None
    if current.last_fragment != began_with.last_fragment:
        return None
    own = closed.fragments[len(began_with.fragments) - 1 :]
    return replace(closed, fragments=(*current.fragments[:-1], *own))


class RecoveryRun:
    """One `Recovery` with its requests in flight, whose replies go through one queue."""

    def __init__(
        self,
        metadata: LedgerMetadata,
        bookies: Bookies,
        health: BookieHealth,
        config: LedgerClientConfig,
    ) -> None:
        self._ledger = metadata.ledger
        self._bookies = bookies
        self._timeout_s = config.read_timeout_s
        self._format = EntryFormat(metadata.digest_type, metadata.password)
        self._key = master_key(metadata.password)
        self._verbatim = metadata.digest_type not in _CHECKED_BY_BOOKIES

        def choose_spare(
            ensemble: tuple[BookieId, ...], index: int, refused: Collection[BookieId]
        ) -> BookieId | None:
            return health.choose_replacement(
                ensemble, index, write_quorum=metadata.write_quorum, failed=refused
            )

        self._core = Recovery(
            metadata,
            window=config.recovery_window_entries,
            choose_spare=choose_spare,
            patient=True,
        )
        self._patience_s = config.recovery_patience_s
        # Replies, as calls of `_core`. Each request in flight adds one reply at most.
        self._events: asyncio.Queue[Callable[[], list[Action]]] = asyncio.Queue()
        # Fences and reads in flight. `run` cancels the remaining ones when it ends.
        self._tasks: set[asyncio.Task[None]] = set()
        # True once `run` has ended, to stop the retries at overloaded bookies.
        self._over = False
        self._loop = asyncio.get_running_loop()
        # The time until which adds to an overloaded bookie are retried.
        self._overloaded_until_s = self._loop.time() + config.overloaded_s_max

    async def run(self) -> Close:
        """Return the `Close` that ends recovery. Raises the error if recovery cannot end now."""
        patience = self._loop.call_later(self._patience_s, self._begin)
        try:
            close = self._perform_all(self._core.start())
            while close is None:
                close = self._perform_all((await self._events.get())())
            return close
        finally:
            self._over = True
            patience.cancel()
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)

    def close_by_fences(self, replies: Sequence[ReadReply]) -> Close | None:
        """Return the `Close` if these replies to the fence, one for each bookie, are enough.

        Otherwise the caller recovers the ledger by `run`, of another object.
        """
        fences = self._core.start()
        actions: list[Action] = []
        for fence, reply in zip(fences, replies, strict=True):
            assert isinstance(fence, Fence)
            actions += self._on_fence_reply(fence, reply)
        close = actions[-1] if actions else None
        alone = len(actions) == 1 and isinstance(close, Close) and close.length is not None
        return cast(Close, close) if alone else None

    def _begin(self) -> None:
        """Wait no longer for bookies that have not answered the fence."""
        self._events.put_nowait(self._core.begin)

    def _perform_all(self, actions: list[Action]) -> Close | None:
        for action in actions:
            if isinstance(action, Close):
                return action
            if isinstance(action, Abort):
                raise action.error
            self._perform(action)
        return None

    def _perform(self, action: Fence | ReadEntry | RecoveryAdd) -> None:
        if isinstance(action, Fence):
            self._spawn(self._fence(action))
        elif isinstance(action, ReadEntry):
            self._spawn(self._read(action))
        else:
            self._add(action)

    def _add(self, action: RecoveryAdd) -> None:
        if self._over:
            return
        body: tuple[Buffer, ...] = (action.whole,)
        if not self._verbatim:
            header = self._format.pack(
                self._ledger, action.entry, action.lac, action.length, (action.payload,)
            )
            body = (header, action.payload)
        on_added = partial(self._on_added, action)
        self._bookies.add(
            action.bookie, self._ledger, action.entry, self._key, body, on_added, recovery=True
        )

    def _spawn(self, work: Coroutine[None, None, None]) -> None:
        task = start_once("a request of a recovery", work, self._on_died)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _on_died(self, error: BaseException) -> None:
        """End the recovery, because a request will never be answered. A later one may succeed."""

        def abort() -> list[Action]:
            return [Abort(EntryUnknown(f"ledger {self._ledger}: {error!r}"))]

        self._events.put_nowait(abort)

    def _on_added(self, action: RecoveryAdd, status: Status) -> None:
        if status is Status.OVERLOADED and self._loop.time() < self._overloaded_until_s:
            self._loop.call_later(_OVERLOADED_WAIT_S, self._add, action)
            return
        on_reply = self._core.on_added if status is Status.OK else self._core.on_add_failed
        self._events.put_nowait(partial(on_reply, action.index, action.bookie, action.entry))

    async def _fence(self, fence: Fence) -> None:
        reply = await self._read_fenced(fence.bookie, NO_ENTRY)
        self._events.put_nowait(partial(self._on_fence_reply, fence, reply))

    def _on_fence_reply(self, fence: Fence, reply: ReadReply) -> list[Action]:
        core = self._core
        if reply.status in _ABSENT:
            return core.on_fenced(fence.index, NO_ENTRY, Highest(NO_ENTRY))
        if reply.status is Status.UNAUTHORIZED:
            error = Unauthorized(f"ledger {self._ledger} at {fence.bookie}")
            return core.on_fence_failed(fence.index, error)
        if reply.status is Status.PERMISSION_DENIED:  # nothing is known, but why it is not
            denied = EntryUnknown(f"{fence.bookie} denies it to the role of this certificate")
            return core.on_fence_failed(fence.index, denied)
        if reply.status is not Status.OK:
            return core.on_fence_failed(fence.index)
        try:
            payload = self._format.unpack(reply.body, self._ledger, NO_ENTRY)
        except CorruptFormat:
            return core.on_fenced(fence.index, NO_ENTRY)  # the ledger is fenced all the same
        # Only the entry's own LAC counts, because its digest covers it. The LAC beside the entry
        # may come from a damaged add. A LAC that is too low costs time; one too high loses data.
        header = read_header(reply.body)
        highest = Highest(header.entry, Found(header.length, payload, reply.body))
        return core.on_fenced(fence.index, header.lac, highest)

    async def _read(self, read: ReadEntry) -> None:
        reply = await self._read_fenced(read.bookie, read.entry)
        answer = self._answer_of(read.entry, reply)
        self._events.put_nowait(partial(self._core.on_read, read.index, read.entry, answer))

    def _answer_of(self, entry: EntryId, reply: ReadReply) -> Answer:
        if reply.status in _ABSENT:
            return Absent()
        if reply.status is not Status.OK:
            return Unknown()
        try:
            payload = self._format.unpack(reply.body, self._ledger, entry)
        except CorruptFormat:
            return Unknown()
        return Found(read_header(reply.body).length, payload, reply.body)

    async def _read_fenced(self, bookie: BookieId, entry: EntryId) -> ReadReply:
        try:
            async with asyncio.timeout(self._timeout_s):
                return await self._bookies.read(bookie, self._ledger, entry, fence_key=self._key)
        except TimeoutError:
            return ReadReply(Status.UNREACHABLE)


async def _length_up_to(
    entry: EntryId, metadata: LedgerMetadata, bookies: Bookies, config: LedgerClientConfig
) -> int:
    """Return the payload bytes of entries 0..`entry`, from the header of any copy of `entry`."""
    entry_format = EntryFormat(metadata.digest_type, metadata.password)

    async def ask(bookie: BookieId) -> int:
        async with asyncio.timeout(config.read_timeout_s):
            reply = await bookies.read(bookie, metadata.ledger, entry)
        if reply.status is not Status.OK:
            raise EntryUnknown(f"{bookie}: {reply.status.name}")
        entry_format.unpack(reply.body, metadata.ledger, entry)
        return read_header(reply.body).length

    # Ask all bookies at once, because one unresponsive bookie must not delay a takeover.
    asking = [asyncio.ensure_future(ask(bookie)) for bookie in metadata.bookies_of(entry)]
    try:
        for answer in asyncio.as_completed(asking):
            try:
                return await answer
            except (TimeoutError, CorruptFormat, EntryUnknown):
                continue
    finally:
        for one in asking:
            one.cancel()
        await asyncio.gather(*asking, return_exceptions=True)
    raise EntryUnknown(f"ledger {metadata.ledger} entry {entry}, the last one, cannot be read now")
