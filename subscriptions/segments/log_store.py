"""Committed offsets in log segments: a ledger for each active subscriber, its id in a znode.

A commit is a record in the subscriber's open segment. The metadata store is written only when a
segment begins or ends. Commits that arrive while an entry is in flight share the next entry of
their subscriber. A segment begins with the first commit after a claim or an idle time. It ends when
it is full, idle for `idle_s`, or when the subscriber is unloaded.
Source: the DistributedLog proposal of log segments (seed 004).
"""

from __future__ import annotations

import asyncio
from asyncio import Future
from collections import OrderedDict, deque
from collections.abc import Iterator, Mapping
from functools import partial

from ledger.errors import Fenced, LedgerClosed, LedgerError, NodeExists, NoNode, NotOwner
from ledger.ids import Dlsn
from ledger.ports.clock import Clock
from ledger.ports.metadata import MetadataStore
from ledger.streams.plain_log import PlainLogs
from ledger.tasks import reported, start_once
from subscriptions.committed_offset import (
    WHOLE_STREAM,
    CommittedOffset,
    TopicIdPartition,
)
from subscriptions.pending_offsets import PendingOffsets
from subscriptions.segments.in_steps import check_offsets, copy_offsets
from subscriptions.segments.log_change import LogChange
from subscriptions.segments.log_claim import LogStoreConfig, LogStoreServices, SegmentClaim, resolve
from subscriptions.segments.log_history import read_history
from subscriptions.segments.log_read import read_subscription
from subscriptions.segments.segment_records import (
    MORE,
    encode_native,
)
from subscriptions.store import Subscription, SubscriptionHistory
from subscriptions.znodes.znode_format import node_name, subscriber_of

_EXPIRE_S = 3600.0  # period in which old history is searched for


class _OwnedSubscriber:
    """A claimed subscriber: its waiting changes, those in flight, and its worker."""

    __slots__ = (
        "claim",
        "closing",
        "expiring",
        "in_flight",
        "lost",
        "name",
        "native_last",
        "parts",
        "touched_s",
        "waiting",
        "worker",
    )

    def __init__(self, name: str, claim: SegmentClaim) -> None:
        self.name = name
        self.claim = claim
        # Accepted changes that are not sent, oldest first.
        self.waiting: deque[LogChange] = deque()
        # The changes of the entry in flight, or the deletion that the worker carries out.
        self.in_flight: list[LogChange] = []
        # Entries that complete the changes in flight and are not sent yet.
        self.parts: deque[list[bytes]] = deque()
        # Begins or ends a segment, expires history or deletes. No entry is sent while it runs.
        self.worker: asyncio.Task[None] | None = None
        # True if the segment is due to end once no change waits. Cleared when it has ended.
        self.closing = False
        # True if the worker is due to expire history. Cleared when it begins to.
        self.expiring = False
        # The error that ended the claim. Once set, no change is accepted and none waits.
        self.lost: LedgerError | None = None
        # Monotonic time of the last durable entry, or of the segment's beginning.
        self.touched_s = 0.0
        # The last accepted position of a native subscriber. Never decreases but by a deletion.
        self.native_last: Dlsn | None = None


class SubscriptionLogStore:
    """The `SubscriptionsStore` with a log segment for each subscriber. Used on one event loop.

    With `native` it stores the subscribers of a stream: their positions only, which never move
    back. A failure of the ledger ends the claim as well; the changes in flight then have an
    unknown outcome.
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
        # Claimed subscribers by name, from `load` until `release`, also with a lost claim.
        self._owned: dict[str, _OwnedSubscriber] = {}
        # Running workers by subscriber, also of released claims: `load` waits for them.
        self._working: dict[str, asyncio.Task[None]] = {}
        # Owned subscribers with an open segment, the longest idle one first.
        self._open: OrderedDict[str, _OwnedSubscriber] = OrderedDict()
        # Records that wait in all subscribers. `_room` is cleared at `offsets_waiting_max`.
        self._offsets_waiting = 0
        self._room = asyncio.Event()
        self._room.set()
        # True once this store has created or found the root.
        self._root_exists = False
        # Runs `_on_timer` periodically while a subscriber is owned.
        self._timer: asyncio.TimerHandle | None = None
        # Monotonic time of the next search for old history.
        self._expire_at_s = clock.monotonic_s() + _EXPIRE_S

    @property
    def open_segments(self) -> int:
        """The number of open ledgers that this store writes."""
        return len(self._open)

    # the port

    async def load(self, subscriber: str) -> Subscription:
        self.release(subscriber)
        await self._wait_for_worker(subscriber)
        claim = SegmentClaim(self._shared, self._path(subscriber), subscriber)
        await claim.find()
        if not claim.exists:
            await self._make_root()
        offsets = await check_offsets(claim.state, claim.path)
        owned = _OwnedSubscriber(subscriber, claim)
        if self._native and WHOLE_STREAM in offsets:
            owned.native_last = offsets[WHOLE_STREAM].position
        self._owned[subscriber] = owned
        if self._timer is None:
            self._start_timer()
        return Subscription(offsets, claim.state.note, claim.exists, claim.state.keyed)

    async def read(self, subscriber: str) -> Subscription:
        owned = self._owned.get(subscriber)
        if owned is not None and owned.lost is None:
            claim = owned.claim
            state = claim.state
            note, exists, keyed = state.note, claim.exists, dict(state.keyed)
            return Subscription(await copy_offsets(state, claim.path), note, exists, keyed)
        shared = self._shared
        path = self._path(subscriber)
        return await read_subscription(shared.metadata, shared.logs, path, native=self._native)

    async def exists(self, subscriber: str) -> bool:
        metadata, path = self._shared.metadata, self._path(subscriber)
        await metadata.sync(path)  # a lagging ZooKeeper follower may not have the node yet
        try:
            await metadata.get(path)  # unlike `exists`, such reads share a request
        except NoNode:
            return False
        return True

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
            durable.set_exception(_not_owner(owned))
            return durable
        change = LogChange(durable)
        if self._native:
            self._encode_native(owned, change, offsets, note)
        else:
            change.put_offsets(offsets, note)
        return self._accept(owned, change)

    def advance_keyed(
        self, subscriber: str, keyed: Mapping[str, bytes | None], note: bytes | None = None
    ) -> Future[None]:
        assert not self._native, "a native subscriber has no notes"
        change = LogChange(asyncio.get_running_loop().create_future())
        change.put_keyed(keyed, note)
        return self._accept(self._owned[subscriber], change)

    def pending(self, subscriber: str) -> PendingOffsets:
        return self._owned[subscriber].claim.state.pending

    def advance_pending(
        self,
        subscriber: str,
        producer_id: int,
        epoch: int,
        offsets: Mapping[TopicIdPartition, CommittedOffset],
    ) -> Future[None]:
        assert producer_id >= 0
        change = LogChange(asyncio.get_running_loop().create_future())
        change.put_pending(producer_id, epoch, offsets)
        return self._accept(self._owned[subscriber], change)

    def end_pending(
        self, subscriber: str, producer_id: int, epoch: int, *, commits: bool
    ) -> Future[None]:
        assert producer_id >= 0
        change = LogChange(asyncio.get_running_loop().create_future())
        change.end_pending(producer_id, epoch, commits=commits)
        return self._accept(self._owned[subscriber], change)

    def _accept(self, owned: _OwnedSubscriber, change: LogChange) -> Future[None]:
        if owned.lost is not None:
            change.durable.set_exception(_not_owner(owned))
            return change.durable
        self._count_waiting(len(change.bodies))
        owned.waiting.append(change)
        self._continue(owned)
        return change.durable

    async def delete(self, subscriber: str) -> bool:
        if subscriber not in self._owned:
            await self.load(subscriber)
        owned = self._owned[subscriber]
        change = LogChange(asyncio.get_running_loop().create_future())
        change.deletes = True
        if owned.lost is not None:
            raise _not_owner(owned)
        owned.native_last = None
        owned.waiting.append(change)
        self._continue(owned)
        await change.durable
        return change.existed

    def release(self, subscriber: str) -> None:
        owned = self._owned.pop(subscriber, None)
        if owned is not None:
            self._open.pop(subscriber, None)
            self._fail(owned, NotOwner("the claim was released"))

    async def unload(self, subscriber: str) -> None:
        owned = self._owned.get(subscriber)
        if owned is None:
            return
        owned.closing = True
        while owned.lost is None and (
            owned.waiting or owned.in_flight or owned.claim.log is not None
        ):
            self._continue(owned)
            await self._wait_for_progress(owned)
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
        await self._shared.wait_deleted()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    # the queue of changes

    def _encode_native(
        self,
        owned: _OwnedSubscriber,
        change: LogChange,
        offsets: Mapping[TopicIdPartition, CommittedOffset | None],
        note: bytes | None,
    ) -> None:
        """Encode a position. One that is not ahead writes nothing, but completes in order."""
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

    def _count_waiting(self, more: int) -> None:
        self._offsets_waiting += more
        if self._offsets_waiting >= self.config.offsets_waiting_max:
            self._room.clear()
        elif more < 0:
            self._room.set()

    def _continue(self, owned: _OwnedSubscriber) -> None:
        """Send the next entry or start the worker, unless one of them is active."""
        if owned.in_flight or owned.worker is not None:
            return
        claim, waiting = owned.claim, owned.waiting
        if claim.log is not None and waiting and _sendable(owned, waiting[0]) and not claim.grown:
            self._send(owned)
        elif waiting or owned.expiring or (claim.log is not None and owned.closing):
            owned.worker = start_once("the segments of a subscriber", self._work(owned))
            self._working[owned.name] = owned.worker

    def _send(self, owned: _OwnedSubscriber) -> None:
        """Send the oldest changes that fit into one entry, at least one."""
        taken, waiting = owned.in_flight, owned.waiting
        bodies: list[bytes] = []
        room = self.config.entry_bytes
        while waiting and _sendable(owned, waiting[0]):
            change = waiting[0]
            if taken and change.size_bytes > room:
                break
            taken.append(waiting.popleft())
            bodies += change.bodies
            room -= change.size_bytes
        self._count_waiting(-len(bodies))
        if not bodies:
            self._on_entry(owned, None)
            return
        if room < 0:
            owned.parts.extend(_parts(bodies, self.config.entry_bytes))
            bodies = owned.parts.popleft()
        self._append(owned, bodies)

    def _append(self, owned: _OwnedSubscriber, bodies: list[bytes]) -> None:
        claim, log = owned.claim, owned.claim.log
        assert log is not None
        now_ms, on_entry = self._shared.clock.now_ms(), partial(self._on_entry, owned)
        try:
            log.append(bodies, now_ms, on_entry, compress=claim.compresses)
        except LedgerError as error:
            asyncio.get_running_loop().call_soon(self._on_entry, owned, error)

    def _on_entry(self, owned: _OwnedSubscriber, error: LedgerError | None) -> None:
        """Complete the changes of an entry, or end the claim if its outcome is unknown."""
        if error is not None:
            self._fail(owned, error)
            return
        if owned.parts:
            self._append(owned, owned.parts.popleft())
            return
        taken, owned.in_flight = owned.in_flight, []
        state, noted = owned.claim.state, False
        for change in taken:
            change.apply(state)
            noted = noted or change.note is not None or bool(change.keyed)
            resolve(change.durable, None)
        log = owned.claim.log
        if log is not None and owned.lost is None:
            self._touch(owned)
        if owned.lost is None:
            self._continue(owned)
        if noted and log is not None and owned.lost is None and not owned.in_flight:
            log.announce()  # else the next entry, which is sent, lets readers see the notes

    def _fail(self, owned: _OwnedSubscriber, error: LedgerError) -> None:
        """End the claim with `error`, and fail all its changes."""
        if isinstance(error, Fenced | LedgerClosed):
            error = NotOwner(str(error))
        if owned.lost is None:
            owned.lost = error
        if self._open.get(owned.name) is owned:
            del self._open[owned.name]
        taken, owned.in_flight = owned.in_flight, []
        owned.parts.clear()
        for change in (*taken, *owned.waiting):
            resolve(change.durable, type(error)(*error.args))
        self._count_waiting(-sum(len(change.bodies) for change in owned.waiting))
        owned.waiting.clear()

    # segments: begin, end, delete. A subscriber has at most one worker; a commit needs none.

    async def _work(self, owned: _OwnedSubscriber) -> None:
        try:
            while owned.lost is None and await self._step(owned):
                pass
        except LedgerError as error:
            self._fail(owned, error)
        except BaseException:  # fail all changes, so that no caller waits forever
            self._fail(owned, NotOwner(f"{owned.claim.path}: the store was stopped"))
            raise
        finally:
            owned.worker = None
            self._working.pop(owned.name, None)
        if owned.lost is None:
            self._continue(owned)

    async def _step(self, owned: _OwnedSubscriber) -> bool:
        """Carry out one step on the segments. Returns False if no further step is due."""
        claim = owned.claim
        first = owned.waiting[0] if owned.waiting else None
        if first is not None and first.deletes:
            owned.waiting.popleft()
            owned.in_flight.append(first)
            first.existed = await claim.delete()
            self._open.pop(owned.name, None)
            owned.in_flight.clear()
            resolve(first.durable, None)
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
        if first is not None and not _sendable(owned, first):
            await claim.take(first.form)
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
            self._end_segment(next(iter(self._open.values())))

    def _start_timer(self) -> None:
        wait_s = self.config.idle_s / 4
        self._timer = asyncio.get_running_loop().call_later(wait_s, self._on_timer)

    def _on_timer(self) -> None:
        """End idle segments and, once per `_EXPIRE_S`, expire old history."""
        self._timer = None
        with reported("the timer of subscribers"):
            self._end_idle(self._shared.clock.monotonic_s())
        if self._owned:
            self._start_timer()

    def _end_idle(self, now_s: float) -> None:
        for owned in list(self._open.values()):
            if owned.touched_s > now_s - self.config.idle_s:
                break
            self._end_segment(owned)
        if now_s >= self._expire_at_s:
            self._expire_at_s = now_s + _EXPIRE_S
            for owned in self._owned.values():
                if owned.lost is None and owned.claim.expires:
                    owned.expiring = True
                    self._continue(owned)

    def _end_segment(self, owned: _OwnedSubscriber) -> None:
        owned.closing = True
        self._continue(owned)

    async def _wait_for_progress(self, owned: _OwnedSubscriber) -> None:
        """Wait until the worker ends or the changes in flight are completed."""
        waiting: list[Future[None]] = [each.durable for each in owned.in_flight]
        if owned.worker is not None:
            await asyncio.wait([owned.worker])
        elif waiting:
            await asyncio.wait(waiting)
            await asyncio.sleep(0)

    async def _wait_for_worker(self, subscriber: str) -> None:
        worker = self._working.get(subscriber)
        if worker is not None:
            await asyncio.wait([worker])

    # paths

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


def _sendable(owned: _OwnedSubscriber, change: LogChange) -> bool:
    """Return whether the change may be written, once there is a segment."""
    return not change.deletes and owned.claim.takes(change.form)


def _parts(bodies: list[bytes], entry_bytes: int) -> Iterator[list[bytes]]:
    """Yield one change as several entries. Only its last record lacks `more`."""
    some: list[bytes] = []
    size = 0
    for body in bodies[:-1]:
        some.append(body + MORE)
        size += len(body)
        if size >= entry_bytes:
            yield some
            some, size = [], 0
    yield [*some, bodies[-1]]


def _not_owner(owned: _OwnedSubscriber) -> NotOwner:
    return NotOwner(f"{owned.claim.path}: {owned.lost}")
