"""Positions in the metadata store, one node each.

Kafka groups: `<root>/<group>` holds the note, its children one position each. Native subscribers:
`<stream>/subscribers/<id>` holds the text of a DLSN, as DistributedLog has it.

Every write carries the versions that were read at load, so a store that lost a subscriber cannot
write. Changes that wait while a write is under way share the next `multi`, whichever subscribers
they are of; if a shared one is refused, each change is tried alone.
"""

from __future__ import annotations

import asyncio
from asyncio import Future
from collections.abc import Iterable, Mapping

from ledger.errors import (
    BadVersion,
    LedgerError,
    NodeExists,
    NoNode,
    NotEmpty,
    NotOwner,
)
from ledger.ports.metadata import Create, Delete, MetadataStore, Node, Op, Set
from ledger.streams.plain_log import PlainLogs
from subscriptions.log_node import is_log_node
from subscriptions.log_read import read_subscription
from subscriptions.old_forms import OPS_MAX, decode_child, node_op, position_ops
from subscriptions.positions import (
    WHOLE_STREAM,
    Position,
    PositionKey,
    decode_subscriber,
    encode_subscriber,
    key_name,
    node_name,
    subscriber_of,
    unseal,
)
from subscriptions.store import History, Subscription
from subscriptions.write_back import write_back

QUEUED_POSITIONS_MAX = 20_000  # waiting changes; then `room` waits

_REFUSED = (BadVersion, NodeExists, NoNode, NotEmpty)


class _Claim:
    """One subscriber as this store knows it. `version` is its node's, None while it has none."""

    __slots__ = ("last", "lost", "path", "positions", "version", "versions")

    def __init__(self, path: str) -> None:
        self.path = path
        self.version: int | None = None
        self.versions: dict[PositionKey, int] = {}  # of the position nodes; empty natively
        self.positions: dict[PositionKey, Position] = {}  # native only
        self.lost: LedgerError | None = None
        self.last: Future[None] | None = None  # of the change that was accepted last


class _Change:
    """What waits to be written for one subscriber."""

    __slots__ = ("claim", "delete", "durable", "existed", "note", "positions")

    def __init__(self, claim: _Claim) -> None:
        self.claim = claim
        self.delete = False  # first delete all, then apply the rest
        self.existed = False  # there was something to delete
        self.positions: dict[PositionKey, Position | None] = {}
        self.note: bytes | None = None
        self.durable: list[Future[None]] = []

    def lives(self) -> bool:
        """May still be written. If not, who waits for it has been told."""
        if self.claim.lost is not None:
            self.settle(NotOwner(f"{self.claim.path}: {self.claim.lost}"))
            return False
        self.existed = self.claim.version is not None
        return True

    def settle(self, error: LedgerError | None) -> None:
        for future in self.durable:
            if future.done():
                continue
            if error is None:
                future.set_result(None)
            else:
                future.set_exception(error)


class _ZnodeStore:
    """What both layouts share: claims, the queue, and the one writer behind it."""

    _native = False

    def __init__(self, metadata: MetadataStore, root: str, logs: PlainLogs | None) -> None:
        """`logs`: where positions are found that a log-segment store has written."""
        self._metadata = metadata
        self._logs = logs
        self._root = root
        self._claims: dict[str, _Claim] = {}
        self._waiting: dict[str, _Change] = {}  # in order of arrival
        self._positions_waiting = 0
        self._room = asyncio.Event()
        self._room.set()
        self._writer: asyncio.Task[None] | None = None
        self._root_exists = False

    # the layout

    async def _find_in_nodes(
        self, path: str, node: Node, *, claim: bool
    ) -> tuple[_Claim, Subscription]:
        """Of a node in this store's own form."""
        raise NotImplementedError

    def _ops(self, change: _Change) -> list[Op]:
        """The writes of one change, all or nothing. May be empty."""
        raise NotImplementedError

    def _on_written(self, change: _Change) -> None:
        """The claim knows what `_ops` of this change has changed."""
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

    async def room(self) -> None:
        await self._room.wait()

    def advance(
        self,
        subscriber: str,
        positions: Mapping[PositionKey, Position | None],
        note: bytes | None = None,
    ) -> Future[None]:
        change, future = self._queue(subscriber)
        if change is not None:
            before = len(change.positions)
            change.positions.update(positions)
            if note is not None:
                change.note = note
            self._positions_waiting += len(change.positions) - before
            if self._positions_waiting >= QUEUED_POSITIONS_MAX:
                self._room.clear()
        return future

    async def delete(self, subscriber: str) -> bool:
        if subscriber not in self._claims:
            await self.load(subscriber)
        change, future = self._queue(subscriber)
        if change is None:
            await future  # raises
            return False
        self._positions_waiting -= len(change.positions)
        change.positions.clear()
        change.note = None
        change.delete = True
        await future
        return change.existed

    def release(self, subscriber: str) -> None:
        claim = self._claims.pop(subscriber, None)
        if claim is not None and claim.lost is None:
            claim.lost = NotOwner("the claim was given up")

    async def unload(self, subscriber: str) -> None:
        claim = self._claims.get(subscriber)
        if claim is None:
            return
        while claim.last is not None and not claim.last.done():
            await asyncio.wait([claim.last])
        self.release(subscriber)

    async def history(self, subscriber: str) -> History:
        found = await self.read(subscriber)
        since_ms = max((each.commit_time_ms for each in found.positions.values()), default=0)
        return History(since_ms, found.positions, found.note, [])

    async def list(self) -> list[str]:
        try:
            return [subscriber_of(name) for name in await self._metadata.children(self._root)]
        except NoNode:
            return []

    async def close(self) -> None:
        while self._writer is not None:
            await asyncio.wait([self._writer])
        self._claims.clear()

    # behind it

    async def _find(self, path: str, *, claim: bool) -> tuple[_Claim, Subscription]:
        if claim:  # a follower that is behind must not pass for a subscriber without positions
            await self._metadata.sync(path)
        try:
            node = await self._metadata.get(path)
            if is_log_node(node.data):
                if not claim:
                    found = await read_subscription(
                        self._metadata, self._logs, path, native=self._native
                    )
                    return _Claim(path), found
                await write_back(self._metadata, self._logs, path, node, native=self._native)
                node = await self._metadata.get(path)
        except NoNode:
            return _Claim(path), Subscription({}, exists=False)
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

    def _queue(self, subscriber: str) -> tuple[_Change | None, Future[None]]:
        """The waiting change of this subscriber, and a future of it; None when it is lost."""
        claim = self._claims[subscriber]
        future: Future[None] = asyncio.get_running_loop().create_future()
        if claim.lost is not None:
            future.set_exception(NotOwner(f"{claim.path}: {claim.lost}"))
            return None, future
        change = self._waiting.get(subscriber)
        if change is not None and change.claim is not claim:
            self._positions_waiting -= len(change.positions)
            change.lives()  # it does not: whoever waits for the lost claim is told
            change = None
        if change is None:
            change = self._waiting[subscriber] = _Change(claim)
        change.durable.append(future)
        claim.last = future
        if self._writer is None:
            self._writer = asyncio.get_running_loop().create_task(self._write_all())
        return change, future

    async def _write_all(self) -> None:
        taken: list[_Change] = []
        try:
            while self._waiting:
                taken = self._take()
                await self._write(taken)
        except BaseException:  # nobody may wait for ever; then it goes on up
            lost = NotOwner(f"{self._root}: the store has ended")
            for change in [*taken, *self._waiting.values()]:
                change.claim.lost = lost
                change.settle(lost)
            self._waiting.clear()
            raise
        finally:
            self._writer = None

    def _take(self) -> list[_Change]:
        """The oldest changes that fit into one `multi`; one at least."""
        taken: list[_Change] = []
        ops_count = 0
        while self._waiting:
            subscriber = next(iter(self._waiting))
            change = self._waiting[subscriber]
            cost = 1 + len(change.positions) + (OPS_MAX if change.delete else 0)
            if taken and ops_count + cost > OPS_MAX:
                break
            taken.append(self._waiting.pop(subscriber))
            ops_count += cost
            self._positions_waiting -= len(change.positions)
        if self._positions_waiting < QUEUED_POSITIONS_MAX:
            self._room.set()
        return taken

    async def _write(self, changes: list[_Change]) -> None:
        live = [change for change in changes if change.lives()]
        ops = [op for change in live for op in self._ops(change)]
        try:
            if ops:
                await self._metadata.multi(ops)
        except _REFUSED as error:
            if len(live) > 1:
                for change in live:
                    await self._write([change])
                return
            _lose(live, NotOwner(f"{live[0].claim.path}: {error}"))
        except LedgerError as error:
            _lose(live, error)
        else:
            for change in live:
                self._on_written(change)
                change.settle(None)


def _lose(changes: Iterable[_Change], error: LedgerError) -> None:
    for change in changes:
        change.claim.lost = error
        change.settle(error)


class GroupPositions(_ZnodeStore):
    """The `SubscriptionsStore` of Kafka groups, below `/gateway/groups`."""

    def __init__(
        self,
        metadata: MetadataStore,
        root: str = "/gateway/groups",
        logs: PlainLogs | None = None,
    ) -> None:
        super().__init__(metadata, root, logs)

    async def _find_in_nodes(
        self, path: str, node: Node, *, claim: bool
    ) -> tuple[_Claim, Subscription]:
        found = _Claim(path)
        note = unseal(node.data, path)
        # The version rises here, so that whoever held the group before can write no more, and
        # the positions read below are the last ones.
        found.version = (
            await self._metadata.set(path, node.data, node.version) if claim else node.version
        )
        positions: dict[PositionKey, Position] = {}
        for child, data in (await self._metadata.read_tree(path)).items():
            key, position = decode_child(child, data)
            positions[key] = position
            found.versions[key] = data.version
        return found, Subscription(positions, note)

    def _ops(self, change: _Change) -> list[Op]:
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
        if change.delete and not change.positions and change.note is None:
            return ops
        ops.append(node_op(claim.path, version, change.note))
        for key, position in change.positions.items():
            ops += position_ops(f"{claim.path}/{key_name(key)}", key, position, versions.get(key))
        return ops

    def _on_written(self, change: _Change) -> None:
        claim = change.claim
        if change.delete:
            claim.versions.clear()
            claim.version = None
            if not change.positions and change.note is None:
                return
        if claim.version is None:
            claim.version = 0
        elif change.note is not None:
            claim.version += 1
        for key, position in change.positions.items():
            if position is None:
                claim.versions.pop(key, None)
            else:
                claim.versions[key] = claim.versions.get(key, -1) + 1


class StreamSubscribers(_ZnodeStore):
    """The `SubscriptionsStore` of one stream's native subscribers, with DistributedLog's znodes.

    The only key is WHOLE_STREAM, only the DLSN of a position is kept, and it only moves forward:
    an advance to a lower position is durable at once and changes nothing. There is no note.
    """

    _native = True

    def __init__(self, metadata: MetadataStore, stream: str, logs: PlainLogs | None = None) -> None:
        super().__init__(metadata, f"{stream}/subscribers", logs)

    async def _find_in_nodes(
        self, path: str, node: Node, *, claim: bool
    ) -> tuple[_Claim, Subscription]:
        found = _Claim(path)
        found.version = node.version
        if node.data:  # else only a reader's lock was ever made below it
            found.positions[WHOLE_STREAM] = Position(decode_subscriber(node.data, path))
        return found, Subscription(dict(found.positions))

    def _ops(self, change: _Change) -> list[Op]:
        claim = change.claim
        assert change.note is None, "a native subscriber has no note"
        assert change.positions.keys() <= {WHOLE_STREAM}, "a native subscriber has one position"
        version = claim.version
        ops: list[Op] = []
        if change.delete and version is not None:
            ops.append(Delete(claim.path, version))
            version = None
        target = self._target(change)
        if target is None:
            return ops
        data = encode_subscriber(target.dlsn)
        ops.append(Create(claim.path, data) if version is None else Set(claim.path, data, version))
        return ops

    def _on_written(self, change: _Change) -> None:
        claim = change.claim
        target = self._target(change)
        if change.delete:
            claim.version = None
            claim.positions.clear()
        if target is not None:
            claim.version = 0 if claim.version is None else claim.version + 1
            claim.positions[WHOLE_STREAM] = target

    def _target(self, change: _Change) -> Position | None:
        """The position to write, None when the stored one is as far already."""
        target = change.positions.get(WHOLE_STREAM)
        last = None if change.delete else change.claim.positions.get(WHOLE_STREAM)
        if target is None or (last is not None and target.dlsn <= last.dlsn):
            return None
        return target
