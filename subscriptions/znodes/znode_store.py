"""Committed offsets in the metadata store, one node each.

Kafka groups: `<root>/<group>` holds the note, each of its children one offset. Native subscribers:
`<stream>/subscribers/<id>` holds the text of a DLSN, as in DistributedLog.

Every write checks the versions that were read at load, so a store that lost a subscriber cannot
write. Changes that wait while a write is in flight share the next `multi`, also those of different
subscribers. If a shared `multi` is refused or too large, each of its changes is tried alone.
"""

from __future__ import annotations

import asyncio
from asyncio import Future
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Protocol

from ledger.errors import (
    BadVersion,
    EntryTooLarge,
    LedgerError,
    NodeExists,
    NoNode,
    NotEmpty,
    NotOwner,
)
from ledger.ports.metadata import Create, Delete, MetadataStore, Node, Op, Set
from ledger.tasks import start_once
from subscriptions.committed_offset import WHOLE_STREAM, CommittedOffset, TopicIdPartition
from subscriptions.store import Subscription, SubscriptionHistory
from subscriptions.znodes.znode_format import (
    OPS_MAX,
    decode_child,
    decode_subscriber,
    encode_subscriber,
    key_name,
    node_name,
    node_op,
    offset_ops,
    subscriber_of,
    unseal,
)

QUEUED_OFFSETS_MAX = 20_000  # offsets that wait to be written, beyond which `room` waits

_REFUSED = (BadVersion, NodeExists, NoNode, NotEmpty)


class SegmentForm(Protocol):
    """Access to subscriptions that a log-segment store has written, for a store of nodes."""

    def is_segment(self, data: bytes) -> bool:
        """True if a log-segment store has written this data of a node."""
        ...

    async def read(self, path: str) -> Subscription: ...

    async def write_back(self, path: str, node: Node) -> None:
        """Turn the subscription at `path` into nodes, and fence the writer of its segment."""
        ...


class _ZnodeClaim:
    """The claim of one subscriber, from `load` until `release` or a failure."""

    __slots__ = ("last", "lost", "offsets", "path", "version", "versions")

    def __init__(self, path: str) -> None:
        self.path = path
        # The version of the subscriber's node as last read or written; None if there is no node.
        self.version: int | None = None
        # The same of the nodes of its offsets. Empty for a native subscriber.
        self.versions: dict[TopicIdPartition, int] = {}
        # The stored offsets: of a group by partition, of a native subscriber its position. The
        # claim owns them; `load` returns a view of them.
        self.offsets: dict[TopicIdPartition, CommittedOffset] = {}
        # The error that ended the claim. Once set, every change fails.
        self.lost: LedgerError | None = None
        # Resolves with the change that was accepted last.
        self.last: Future[None] | None = None


class _ZnodeChange:
    """The waiting changes of one subscriber, merged into one."""

    __slots__ = ("claim", "delete", "durable", "existed", "note", "offsets")

    def __init__(self, claim: _ZnodeClaim) -> None:
        self.claim = claim
        self.delete = False  # deletes the subscriber first, and then applies the rest
        self.existed = False  # the subscriber existed when the change was written
        self.offsets: dict[TopicIdPartition, CommittedOffset | None] = {}  # None removes one
        self.note: bytes | None = None  # None leaves the note as it is
        self.durable: list[Future[None]] = []  # one for each call that was merged

    def may_be_written(self) -> bool:
        """Return False, and fail the change, if its claim has ended."""
        if self.claim.lost is not None:
            self.resolve(NotOwner(f"{self.claim.path}: {self.claim.lost}"))
            return False
        self.existed = self.claim.version is not None
        return True

    def resolve(self, error: LedgerError | None) -> None:
        for future in self.durable:
            if future.done():
                continue
            if error is None:
                future.set_result(None)
            else:
                future.set_exception(error)


class _ZnodeStore:
    """The part that both layouts share: claims, the queue, and the only task that writes it."""

    def __init__(
        self, metadata: MetadataStore, root: str, segments: SegmentForm | None = None
    ) -> None:
        """Without `segments`, loading a subscription in a log segment raises CorruptFormat."""
        self._metadata = metadata
        self._segments = segments
        self._root = root
        # Claims by subscriber, from `load` until `release`, also those that have failed.
        self._claims: dict[str, _ZnodeClaim] = {}
        # Waiting changes by subscriber, in order of arrival. The writer removes them.
        self._waiting: dict[str, _ZnodeChange] = {}
        # Offsets in all waiting changes. `_room` is cleared at `QUEUED_OFFSETS_MAX`.
        self._offsets_waiting = 0
        self._room = asyncio.Event()
        self._room.set()
        # Runs while changes wait or are being written.
        self._writer: asyncio.Task[None] | None = None
        # True once this store has created or found the root.
        self._root_exists = False

    # the layout

    async def _find_in_nodes(
        self, path: str, node: Node, *, claim: bool
    ) -> tuple[_ZnodeClaim, Subscription]:
        """Read a subscriber whose node is in this store's own form, and claim it if `claim`."""
        raise NotImplementedError

    def _ops(self, change: _ZnodeChange) -> list[Op]:
        """Return the operations of one change, to be carried out all or none. May be empty."""
        raise NotImplementedError

    def _on_written(self, change: _ZnodeChange) -> None:
        """Update the claim after the operations of this change were carried out."""
        raise NotImplementedError

    # the port

    async def load(self, subscriber: str) -> Subscription:
        path = self._path(subscriber)
        self.release(subscriber)
        try:
            claim, found = await self._find(path, claim=True)
        except _REFUSED as error:
            raise NotOwner(f"{path}: {error}") from error
        if not found.exists:
            await self._make_root()
        self._claims[subscriber] = claim
        return found

    async def read(self, subscriber: str) -> Subscription:
        _, found = await self._find(self._path(subscriber), claim=False)
        return found

    async def exists(self, subscriber: str) -> bool:
        path = self._path(subscriber)
        await self._metadata.sync(path)  # a lagging ZooKeeper follower may not have the node yet
        return await self._metadata.exists(path)

    async def room(self) -> None:
        await self._room.wait()

    def advance(
        self,
        subscriber: str,
        offsets: Mapping[TopicIdPartition, CommittedOffset | None],
        note: bytes | None = None,
    ) -> Future[None]:
        change, future = self._queue(subscriber)
        if change is not None:
            before = len(change.offsets)
            change.offsets.update(offsets)
            if note is not None:
                change.note = note
            self._offsets_waiting += len(change.offsets) - before
            if self._offsets_waiting >= QUEUED_OFFSETS_MAX:
                self._room.clear()
        return future

    async def delete(self, subscriber: str) -> bool:
        if subscriber not in self._claims:
            await self.load(subscriber)
        change, future = self._queue(subscriber)
        if change is None:
            await future  # raises
            return False
        self._offsets_waiting -= len(change.offsets)
        change.offsets.clear()
        change.note = None
        change.delete = True
        await future
        return change.existed

    def release(self, subscriber: str) -> None:
        claim = self._claims.pop(subscriber, None)
        if claim is not None and claim.lost is None:
            claim.lost = NotOwner("the claim was released")

    async def unload(self, subscriber: str) -> None:
        claim = self._claims.get(subscriber)
        if claim is None:
            return
        while claim.last is not None and not claim.last.done():
            await asyncio.wait([claim.last])
        self.release(subscriber)

    async def history(self, subscriber: str) -> SubscriptionHistory:
        found = await self.read(subscriber)
        since_ms = max((each.commit_time_ms for each in found.offsets.values()), default=0)
        return SubscriptionHistory(since_ms, found.offsets, found.note, [])

    async def list(self) -> list[str]:
        try:
            return [subscriber_of(name) for name in await self._metadata.children(self._root)]
        except NoNode:
            return []

    async def close(self) -> None:
        while self._writer is not None:
            await asyncio.wait([self._writer])
        self._claims.clear()

    # the queue and its writer

    async def _find(self, path: str, *, claim: bool) -> tuple[_ZnodeClaim, Subscription]:
        if claim:  # a lagging ZooKeeper follower may not have the node yet
            await self._metadata.sync(path)
        try:
            node = await self._metadata.get(path)
            segments = self._segments
            if segments is not None and segments.is_segment(node.data):
                if not claim:
                    return _ZnodeClaim(path), await segments.read(path)
                await segments.write_back(path, node)
                node = await self._metadata.get(path)
        except NoNode:
            found = _ZnodeClaim(path)
            return found, Subscription(MappingProxyType(found.offsets), exists=False)
        return await self._find_in_nodes(path, node, claim=claim)

    async def _make_root(self) -> None:
        if self._root_exists:
            return
        try:
            await self._metadata.create(self._root, parents=True)
        except NodeExists:
            pass
        self._root_exists = True

    def _path(self, subscriber: str) -> str:
        return f"{self._root}/{node_name(subscriber)}"

    def _queue(self, subscriber: str) -> tuple[_ZnodeChange | None, Future[None]]:
        """Return the subscriber's waiting change, None if its claim has ended, and a future."""
        claim = self._claims[subscriber]
        future: Future[None] = asyncio.get_running_loop().create_future()
        if claim.lost is not None:
            future.set_exception(NotOwner(f"{claim.path}: {claim.lost}"))
            return None, future
        change = self._waiting.get(subscriber)
        if change is not None and change.claim is not claim:
            self._offsets_waiting -= len(change.offsets)
            change.may_be_written()  # fails the change of the old claim
            change = None
        if change is None:
            change = self._waiting[subscriber] = _ZnodeChange(claim)
        change.durable.append(future)
        claim.last = future
        if self._writer is None:
            self._writer = start_once("the writes of subscriptions", self._write_all())
        return change, future

    async def _write_all(self) -> None:
        taken: list[_ZnodeChange] = []
        try:
            while self._waiting:
                taken = self._take()
                await self._write(taken)
        except BaseException:  # fail all changes, so that no caller waits forever
            lost = NotOwner(f"{self._root}: the store was stopped")
            for change in [*taken, *self._waiting.values()]:
                change.claim.lost = lost
                change.resolve(lost)
            self._waiting.clear()
            raise
        finally:
            self._writer = None

    def _take(self) -> list[_ZnodeChange]:
        """Remove and return the oldest changes that fit into one `multi`, at least one."""
        taken: list[_ZnodeChange] = []
        ops_count = 0
        while self._waiting:
            subscriber = next(iter(self._waiting))
            change = self._waiting[subscriber]
            cost = 1 + len(change.offsets) + (OPS_MAX if change.delete else 0)
            if taken and ops_count + cost > OPS_MAX:
                break
            taken.append(self._waiting.pop(subscriber))
            ops_count += cost
            self._offsets_waiting -= len(change.offsets)
        if self._offsets_waiting < QUEUED_OFFSETS_MAX:
            self._room.set()
        return taken

    async def _write(self, changes: list[_ZnodeChange]) -> None:
        live = [change for change in changes if change.may_be_written()]
        ops = [op for change in live for op in self._ops(change)]
        try:
            if ops:
                await self._metadata.multi(ops)
        except LedgerError as error:
            alone = isinstance(error, (*_REFUSED, EntryTooLarge))
            if alone and len(live) > 1:
                for change in live:
                    await self._write([change])
                return
            if isinstance(error, _REFUSED):
                error = NotOwner(f"{live[0].claim.path}: {error}")
            _lose(live, error)
        else:
            for change in live:
                self._on_written(change)
                change.resolve(None)


def _lose(changes: Iterable[_ZnodeChange], error: LedgerError) -> None:
    for change in changes:
        change.claim.lost = error
        change.resolve(error)


class GroupZnodeStore(_ZnodeStore):
    """The `SubscriptionsStore` of Kafka groups, below `/gateway/groups`."""

    def __init__(
        self,
        metadata: MetadataStore,
        root: str = "/gateway/groups",
        segments: SegmentForm | None = None,
    ) -> None:
        super().__init__(metadata, root, segments)

    async def _find_in_nodes(
        self, path: str, node: Node, *, claim: bool
    ) -> tuple[_ZnodeClaim, Subscription]:
        found = _ZnodeClaim(path)
        note = unseal(node.data, path)
        # A new version fences the previous owner, so the offsets read below are the last ones.
        found.version = (
            await self._metadata.set(path, node.data, node.version) if claim else node.version
        )
        for child, data in (await self._metadata.read_tree(path)).items():
            key, committed = decode_child(child, data)
            found.offsets[key] = committed
            found.versions[key] = data.version
        return found, Subscription(MappingProxyType(found.offsets), note)

    def _ops(self, change: _ZnodeChange) -> list[Op]:
        claim = change.claim
        versions = claim.versions
        version = claim.version
        ops: list[Op] = []
        if change.delete:
            ops += [
                Delete(f"{claim.path}/{key_name(key)}", number) for key, number in versions.items()
            ]
            if version is not None:
                ops.append(Delete(claim.path, version))
            versions, version = {}, None
        if change.delete and not change.offsets and change.note is None:
            return ops
        ops.append(node_op(claim.path, version, change.note))
        for key, committed in change.offsets.items():
            ops += offset_ops(f"{claim.path}/{key_name(key)}", key, committed, versions.get(key))
        return ops

    def _on_written(self, change: _ZnodeChange) -> None:
        claim = change.claim
        if change.delete:
            claim.versions.clear()
            claim.offsets.clear()
            claim.version = None
            if not change.offsets and change.note is None:
                return
        if claim.version is None:
            claim.version = 0
        elif change.note is not None:
            claim.version += 1
        for key, committed in change.offsets.items():
            if committed is None:
                claim.versions.pop(key, None)
                claim.offsets.pop(key, None)
            else:
                claim.versions[key] = claim.versions.get(key, -1) + 1
                claim.offsets[key] = committed


class NativeZnodeStore(_ZnodeStore):
    """The `SubscriptionsStore` of one stream's native subscribers, with DistributedLog's znodes.

    The only key is WHOLE_STREAM, and only its position is stored, which never moves back: an
    advance to a lower position succeeds and changes nothing. A native subscriber has no note.
    """

    def __init__(
        self, metadata: MetadataStore, stream: str, segments: SegmentForm | None = None
    ) -> None:
        super().__init__(metadata, f"{stream}/subscribers", segments)

    async def _find_in_nodes(
        self, path: str, node: Node, *, claim: bool
    ) -> tuple[_ZnodeClaim, Subscription]:
        found = _ZnodeClaim(path)
        found.version = node.version
        if node.data:  # else only the lock of a reader was ever created below it
            found.offsets[WHOLE_STREAM] = CommittedOffset(decode_subscriber(node.data, path))
        return found, Subscription(MappingProxyType(found.offsets))

    def _ops(self, change: _ZnodeChange) -> list[Op]:
        claim = change.claim
        assert change.note is None, "a native subscriber has no note"
        assert change.offsets.keys() <= {WHOLE_STREAM}, "a native subscriber has one position"
        version = claim.version
        ops: list[Op] = []
        if change.delete and version is not None:
            ops.append(Delete(claim.path, version))
            version = None
        target = self._target(change)
        if target is None:
            return ops
        data = encode_subscriber(target.position)
        ops.append(Create(claim.path, data) if version is None else Set(claim.path, data, version))
        return ops

    def _on_written(self, change: _ZnodeChange) -> None:
        claim = change.claim
        target = self._target(change)
        if change.delete:
            claim.version = None
            claim.offsets.clear()
        if target is not None:
            claim.version = 0 if claim.version is None else claim.version + 1
            claim.offsets[WHOLE_STREAM] = target

    def _target(self, change: _ZnodeChange) -> CommittedOffset | None:
        """Return the offset to write, or None if the stored position is not behind it."""
        target = change.offsets.get(WHOLE_STREAM)
        last = None if change.delete else change.claim.offsets.get(WHOLE_STREAM)
        if target is None or (last is not None and target.position <= last.position):
            return None
        return target
