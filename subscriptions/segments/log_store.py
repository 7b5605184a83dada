"""Positions in log segments: a ledger for each subscriber that commits, its id in a znode.

A commit is a record in the subscriber's open segment; the metadata store hears of it only when a
segment begins or ends. Commits that arrive while an entry is under way share the next one of
their subscriber. A segment begins with the first commit after a claim or a rest, and ends when it
has grown, when it has been idle, and when the subscriber is let go.
Source: the DistributedLog proposal of log segments (seed 004).
"""

from __future__ import annotations

import asyncio
from asyncio import Future
from collections import OrderedDict, deque
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import partial
from typing import cast

from ledger.errors import Fenced, LedgerClosed, LedgerError, NodeExists, NoNode, NotOwner
from ledger.ids import Dlsn
from ledger.ports.clock import Clock
from ledger.ports.metadata import MetadataStore
from ledger.streams.plain_log import PlainLogs
from subscriptions.committed_offset import (
    WHOLE_STREAM,
    CommittedOffset,
    TopicIdPartition,
    encode_advance,
    encode_advances,
)
from subscriptions.segments.log_claim import LogStoreConfig, LogStoreServices, SegmentClaim, settle
from subscriptions.segments.log_history import read_history
from subscriptions.segments.log_read import read_subscription
from subscriptions.segments.segment_records import MORE, encode_native, encode_note, encode_removal
from subscriptions.store import Subscription, SubscriptionHistory
from subscriptions.znodes.znode_format import node_name, subscriber_of

_EXPIRE_S = 3600.0  # so often old history is looked for


class _LogChange:
    """What one call wants written; `deletes` all first, then nothing else."""

    __slots__ = ("bodies", "deletes", "durable", "existed", "keys", "note", "size_bytes", "values")

    def __init__(self, durable: Future[None]) -> None:
        self.durable = durable
        self.keys: Collection[TopicIdPartition] = ()
        self.values: Sequence[bytes | None] = ()  # of the keys; None: removed
        self.bodies: list[bytes] = []  # the records
        self.note: bytes | None = None
        self.size_bytes = 0
        self.deletes = False
        self.existed = False


class _OwnedSubscriber:
    """A claimed subscriber: what waits, what is under way, and who works on its segment."""

    __slots__ = (
        "claim",
        "closing",
        "expiring",
        "lost",
        "name",
        "native_last",
        "parts",
        "touched_s",
        "under_way",
        "waiting",
        "worker",
    )

    def __init__(self, name: str, claim: SegmentClaim) -> None:
        self.name = name
        self.claim = claim
        self.waiting: deque[_LogChange] = deque()
        self.under_way: list[_LogChange] = []
        self.parts: deque[list[bytes]] = deque()  # of what is under way, not sent yet
        self.worker: asyncio.Task[None] | None = None  # begins, ends or deletes; nothing is sent
        self.closing = False  # the segment shall end when nothing waits
        self.expiring = False  # some of its history is too old
        self.lost: LedgerError | None = None
        self.touched_s = 0.0
        self.native_last: Dlsn | None = None  # accepted


class SubscriptionLogStore:
    """The `SubscriptionsStore` with a log segment for each subscriber. Runs on one event loop.

    `native`: subscribers of a stream, of whom only the DLSN is kept, and it only moves forward.
    A failure of the ledger, too, ends a claim: then what was under way has an unknown outcome.
    """

    def __init__(
        self,
        metadata: MetadataStore,
        logs: PlainLogs,
        clock: Clock,
        *,
        root: str = "/gateway/groups",
        native: bool = False,
        config: LogStoreConfig | None = None,
    ) -> None:
        self.config = config or LogStoreConfig()
        self._shared = LogStoreServices(metadata, logs, clock, self.config, native=native)
        self._root = root
        self._native = native
        self._owned: dict[str, _OwnedSubscriber] = {}
        self._working: dict[str, asyncio.Task[None]] = {}  # also of a claim that was given up
        self._open: OrderedDict[str, _OwnedSubscriber] = (
            OrderedDict()
        )  # segments, longest idle first
        self._offsets_waiting = 0
        self._room = asyncio.Event()
        self._room.set()
        self._root_exists = False
        self._timer: asyncio.TimerHandle | None = None
        self._expire_at_s = clock.monotonic_s() + _EXPIRE_S

    @property
    def open_segments(self) -> int:
        """How many ledgers this store could write to."""
        return len(self._open)

    # the port

    async def load(self, subscriber: str) -> Subscription:
        self.release(subscriber)
        await self._wait_for_worker(subscriber)
        claim = SegmentClaim(self._shared, self._path(subscriber), subscriber)
        await claim.find()
        if not claim.exists:
            await self._make_root()
        offsets = claim.state.offsets(claim.path)
        owned = _OwnedSubscriber(subscriber, claim)
        if self._native and WHOLE_STREAM in offsets:
            owned.native_last = offsets[WHOLE_STREAM].position
        self._owned[subscriber] = owned
        if self._timer is None:
            self._arm()
        return Subscription(offsets, claim.state.note, claim.exists)

    async def read(self, subscriber: str) -> Subscription:
        owned = self._owned.get(subscriber)
        if owned is not None and owned.lost is None:
            claim = owned.claim
            state = claim.state
            return Subscription(state.offsets(claim.path), state.note, claim.exists)
        shared = self._shared
        path = self._path(subscriber)
        return await read_subscription(shared.metadata, shared.logs, path, native=self._native)

    async def history(self, subscriber: str) -> SubscriptionHistory:
        shared = self._shared
        path = self._path(subscriber)
        return await read_history(shared.metadata, shared.logs, path, native=self._native)

    async def room(self) -> None:
        await self._room.wait()

    def advance(
        self,
        subscriber: str,
        offsets: Mapping[TopicIdPartition, CommittedOffset | None],
        note: bytes | None = None,
    ) -> Future[None]:
        owned = self._owned[subscriber]
        durable: Future[None] = asyncio.get_running_loop().create_future()
        if owned.lost is not None:
            durable.set_exception(_refused(owned))
            return durable
        change = _LogChange(durable)
        if self._native:
            self._encode_native(owned, change, offsets, note)
        else:
            _encode(change, offsets, note)
        self._count(len(change.bodies))
        owned.waiting.append(change)
        self._go_on(owned)
        return durable

    async def delete(self, subscriber: str) -> bool:
        if subscriber not in self._owned:
            await self.load(subscriber)
        owned = self._owned[subscriber]
        change = _LogChange(asyncio.get_running_loop().create_future())
        change.deletes = True
        if owned.lost is not None:
            raise _refused(owned)
        owned.native_last = None
        owned.waiting.append(change)
        self._go_on(owned)
        await change.durable
        return change.existed

    def release(self, subscriber: str) -> None:
        owned = self._owned.pop(subscriber, None)
        if owned is not None:
            self._open.pop(subscriber, None)
            self._lose(owned, NotOwner("the claim was given up"))

    async def unload(self, subscriber: str) -> None:
        owned = self._owned.get(subscriber)
        if owned is None:
            return
        owned.closing = True
        while owned.lost is None and (
            owned.waiting or owned.under_way or owned.claim.log is not None
        ):
            self._go_on(owned)
            await self._settled(owned)
        if self._owned.get(subscriber) is owned:
            self.release(subscriber)
            await self._wait_for_worker(subscriber)

    async def list(self) -> list[str]:
        try:
            names = await self._shared.metadata.children(self._root)
        except NoNode:
            return []
        return [subscriber_of(name) for name in names]

    async def close(self) -> None:
        waiting: Iterator[str] = iter(list(self._owned))

        async def unload_some() -> None:
            for name in waiting:
                await self.unload(name)

        await asyncio.gather(*(unload_some() for _ in range(self.config.unloads_at_once)))
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    # what waits

    def _encode_native(
        self,
        owned: _OwnedSubscriber,
        change: _LogChange,
        offsets: Mapping[TopicIdPartition, CommittedOffset | None],
        note: bytes | None,
    ) -> None:
        """A position that is as far already changes nothing, but keeps its place in the order."""
        assert note is None, "a native subscriber has no note"
        assert offsets.keys() <= {WHOLE_STREAM}, "a native subscriber has one position"
        target = offsets.get(WHOLE_STREAM)
        if target is None or (
            owned.native_last is not None and target.position <= owned.native_last
        ):
            return
        owned.native_last = target.position
        body = encode_native(target.position)
        change.keys = (WHOLE_STREAM,)
        change.values = change.bodies = [body]
        change.size_bytes = len(body)

    def _count(self, more: int) -> None:
        self._offsets_waiting += more
        if self._offsets_waiting >= self.config.offsets_waiting_max:
            self._room.clear()
        elif more < 0:
            self._room.set()

    def _go_on(self, owned: _OwnedSubscriber) -> None:
        """Whatever is next for the subscriber is under way."""
        if owned.under_way or owned.worker is not None:
            return
        claim, waiting = owned.claim, owned.waiting
        if claim.log is not None and waiting and not waiting[0].deletes and not claim.grown:
            self._send(owned)
        elif waiting or owned.expiring or (claim.log is not None and owned.closing):
            owned.worker = asyncio.get_running_loop().create_task(self._work(owned))
            self._working[owned.name] = owned.worker

    def _send(self, owned: _OwnedSubscriber) -> None:
        """The oldest changes that fit into one entry are under way; one at least."""
        taken, waiting = owned.under_way, owned.waiting
        bodies: list[bytes] = []
        room = self.config.entry_bytes
        while waiting and not waiting[0].deletes:
            change = waiting[0]
            if taken and change.size_bytes > room:
                break
            taken.append(waiting.popleft())
            bodies += change.bodies
            room -= change.size_bytes
        self._count(-len(bodies))
        if not bodies:
            self._on_entry(owned, None)
            return
        if room < 0:
            owned.parts.extend(_parts(bodies, self.config.entry_bytes))
            bodies = owned.parts.popleft()
        self._append(owned, bodies)

    def _append(self, owned: _OwnedSubscriber, bodies: list[bytes]) -> None:
        log = owned.claim.log
        assert log is not None
        try:
            log.append(bodies, self._shared.clock.now_ms(), partial(self._on_entry, owned))
        except LedgerError as error:
            asyncio.get_running_loop().call_soon(self._on_entry, owned, error)

    def _on_entry(self, owned: _OwnedSubscriber, error: LedgerError | None) -> None:
        """An entry is durable, or never will be for all that is known."""
        if error is not None:
            self._lose(owned, error)
            return
        if owned.parts:
            self._append(owned, owned.parts.popleft())
            return
        taken, owned.under_way = owned.under_way, []
        state, noted = owned.claim.state, False
        for change in taken:
            state.update(change.keys, change.values)
            if change.note is not None:
                state.note, noted = change.note, True
            settle(change.durable, None)
        log = owned.claim.log
        if log is not None and owned.lost is None:
            self._touch(owned)
            if noted:
                log.announce()
        if owned.lost is None:
            self._go_on(owned)

    def _lose(self, owned: _OwnedSubscriber, error: LedgerError) -> None:
        """Nothing more is written for this claim; whoever waits is told."""
        if isinstance(error, Fenced | LedgerClosed):
            error = NotOwner(str(error))
        if owned.lost is None:
            owned.lost = error
        if self._open.get(owned.name) is owned:
            del self._open[owned.name]
        taken, owned.under_way = owned.under_way, []
        owned.parts.clear()
        for change in (*taken, *owned.waiting):
            settle(change.durable, type(error)(*error.args))
        self._count(-sum(len(change.bodies) for change in owned.waiting))
        owned.waiting.clear()

    # segments: begin, end, delete; one worker for a subscriber, none for a commit

    async def _work(self, owned: _OwnedSubscriber) -> None:
        try:
            while owned.lost is None and await self._step(owned):
                pass
        except LedgerError as error:
            self._lose(owned, error)
        except BaseException:  # nobody may wait for ever; then it goes on up
            self._lose(owned, NotOwner(f"{owned.claim.path}: the store has ended"))
            raise
        finally:
            owned.worker = None
            self._working.pop(owned.name, None)
        if owned.lost is None:
            self._go_on(owned)

    async def _step(self, owned: _OwnedSubscriber) -> bool:
        """One change of segments. False: there is none to make."""
        claim = owned.claim
        first = owned.waiting[0] if owned.waiting else None
        if first is not None and first.deletes:
            owned.waiting.popleft()
            owned.under_way.append(first)
            first.existed = await claim.delete()
            self._open.pop(owned.name, None)
            owned.under_way.clear()
            settle(first.durable, None)
            return True
        if owned.expiring:
            owned.expiring = False
            await claim.expire()
            return True
        if claim.log is not None and (claim.grown or (owned.closing and first is None)):
            self._open.pop(owned.name, None)
            await claim.end_segment()
            owned.closing = False
            return True
        if claim.log is None and first is not None:
            await claim.begin_segment()
            self._touch(owned)
        return False

    def _touch(self, owned: _OwnedSubscriber) -> None:
        if owned.lost is not None:
            return
        owned.touched_s = self._shared.clock.monotonic_s()
        self._open[owned.name] = owned
        self._open.move_to_end(owned.name)
        if len(self._open) > self.config.open_segments_max:
            self._close_idle(next(iter(self._open.values())))

    def _arm(self) -> None:
        wait_s = self.config.idle_s / 4
        self._timer = asyncio.get_running_loop().call_later(wait_s, self._look_around)

    def _look_around(self) -> None:
        """Idle segments end; now and then, old history goes."""
        self._timer = None
        now_s = self._shared.clock.monotonic_s()
        for owned in list(self._open.values()):
            if owned.touched_s > now_s - self.config.idle_s:
                break
            self._close_idle(owned)
        if now_s >= self._expire_at_s:
            self._expire_at_s = now_s + _EXPIRE_S
            for owned in self._owned.values():
                if owned.lost is None and owned.claim.expires:
                    owned.expiring = True
                    self._go_on(owned)
        if self._owned:
            self._arm()

    def _close_idle(self, owned: _OwnedSubscriber) -> None:
        owned.closing = True
        self._go_on(owned)

    async def _settled(self, owned: _OwnedSubscriber) -> None:
        """Something has changed, or may have."""
        waiting: list[Future[None]] = [each.durable for each in owned.under_way]
        if owned.worker is not None:
            await asyncio.wait([owned.worker])
        elif waiting:
            await asyncio.wait(waiting)
            await asyncio.sleep(0)

    async def _wait_for_worker(self, subscriber: str) -> None:
        worker = self._working.get(subscriber)
        if worker is not None:
            await asyncio.wait([worker])

    # the tree

    async def _make_root(self) -> None:
        if self._root_exists:
            return
        try:
            await self._shared.metadata.create(self._root, parents=True)
        except NodeExists:
            pass
        self._root_exists = True

    def _path(self, subscriber: str) -> str:
        return f"{self._root}/{node_name(subscriber)}"


def _encode(
    change: _LogChange,
    offsets: Mapping[TopicIdPartition, CommittedOffset | None],
    note: bytes | None,
) -> None:
    change.keys = offsets
    if None in offsets.values():
        change.values = [
            None if committed is None else encode_advance(key, committed)
            for key, committed in offsets.items()
        ]
        pairs = zip(offsets, change.values, strict=True)
        change.bodies = [encode_removal(key) if body is None else body for key, body in pairs]
    else:
        known = cast("Mapping[TopicIdPartition, CommittedOffset]", offsets)
        change.values = change.bodies = encode_advances(known.items())
    if note is not None:
        change.note = note
        change.bodies = [*change.bodies, encode_note(note)]
    change.size_bytes = sum(map(len, change.bodies))


def _parts(bodies: list[bytes], entry_bytes: int) -> Iterator[list[bytes]]:
    """One change as several entries, of which only the last record ends it."""
    some: list[bytes] = []
    size = 0
    for body in bodies[:-1]:
        some.append(body + MORE)
        size += len(body)
        if size >= entry_bytes:
            yield some
            some, size = [], 0
    yield [*some, bodies[-1]]


def _refused(owned: _OwnedSubscriber) -> NotOwner:
    return NotOwner(f"{owned.claim.path}: {owned.lost}")
