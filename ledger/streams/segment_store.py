"""The stored metadata of one stream. Every change is a compare-and-set by version.

Layout and steps are DistributedLog's (see docs/formats/segment.md), plus two nodes of ours.
`start` has the first sequence id that readers may read, and the base of the epochs. `losses` exists
from the first accepted loss on.

    /streams/<log>/<default>/{version,maxtxid,ledgers/...,lock,allocation,subscribers,start,losses}
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence

from ledger.core.accepted_losses import NO_LOSSES, StreamLosses, decode_losses
from ledger.core.segments import Segment, decode_segment, order
from ledger.core.stream_start import StreamStart, decode_start
from ledger.errors import (
    BadVersion,
    CorruptFormat,
    MetadataUnavailable,
    NodeExists,
    NoNode,
    StreamUnavailable,
)
from ledger.events import EventKind, note_event
from ledger.ids import LedgerId
from ledger.ports.metadata import Check, Create, Delete, MetadataStore, Node, Op, Set

ROOT = "/streams"
_LOST_REPLIES_MAX = 5
_LAYOUT_VERSION = b"\xff\xff\xff\xff"
_CREATED = ("version", "maxtxid", "ledgers", "lock", "allocation", "subscribers", "start")
_CREATED_DATA = {"version": _LAYOUT_VERSION, "maxtxid": b"0", "ledgers": b"0"}


def log_root(name: str) -> str:
    return f"{ROOT}/{name}/<default>"


def losses_path(name: str) -> str:
    """Return the path of the node that lists the accepted losses of the stream `name`."""
    return f"{log_root(name)}/losses"


async def create_streams(
    metadata: MetadataStore, names: Sequence[str], epoch_base: int = 0
) -> None:
    """Create empty streams, all or none. Raises NodeExists if one of them exists.

    Their first epoch is 1 - `epoch_base`. Releases without bases refuse a stream with a base.
    """
    if not await metadata.exists(ROOT):
        try:
            await metadata.create(ROOT, parents=True)
        except NodeExists:
            pass  # another process created it
    created = {**_CREATED_DATA, "start": StreamStart(0, epoch_base).encode()}
    ops: list[Op] = []
    for name in names:
        assert "/" not in name
        assert not name.startswith((".", "<"))
        root = log_root(name)
        ops += [Create(f"{ROOT}/{name}"), Create(root)]
        ops += [Create(f"{root}/{part}", created.get(part, b"")) for part in _CREATED]
    await metadata.multi(ops)


async def list_streams(metadata: MetadataStore) -> list[str]:
    try:
        names = await metadata.children(ROOT)
    except NoNode:
        return []
    return [name for name in names if not name.startswith((".", "<"))]


async def ledgers_of(metadata: MetadataStore, name: str) -> list[LedgerId]:
    """Return every ledger that the stream's segments name."""
    root = log_root(name)
    nodes = await metadata.read_tree(f"{root}/ledgers")
    return [decode_segment(node.data, where=path).ledger for path, node in nodes.items()]


async def read_next_epoch(metadata: MetadataStore, name: str) -> int:
    """Return the epoch with which the stream opens next, as its metadata are now.

    Raises NoNode for an unknown stream, CorruptFormat, MetadataUnavailable.
    """
    root = log_root(name)
    start = decode_start((await metadata.get(f"{root}/start")).data, f"{root}/start")
    ledgers = await metadata.get(f"{root}/ledgers")
    return _number(ledgers.data, f"{root}/ledgers") + 1 - start.epoch_base


async def delete_stream(metadata: MetadataStore, name: str) -> None:
    """Delete the stream's metadata. Its ledgers must have been deleted before."""
    nodes = await metadata.read_tree(f"{ROOT}/{name}")
    if not nodes and not await metadata.exists(f"{ROOT}/{name}"):
        return
    deepest_first = sorted(nodes, key=lambda path: path.count("/"), reverse=True)
    await metadata.multi([Delete(path) for path in [*deepest_first, f"{ROOT}/{name}"]])


def _number(data: bytes, path: str) -> int:
    try:
        return int(data)
    except ValueError as error:
        raise CorruptFormat(f"{path}: not a number: {data[:40]!r}") from error


class SegmentStore:
    """One owner's view of the stored stream. Changes fail after another process made one."""

    def __init__(self, metadata: MetadataStore, name: str) -> None:
        self.name = name
        # The content of `start`, `ledgers` and `maxtxid`: the first readable sequence id, the
        # highest segment number and the highest transaction id. None of them ever decreases.
        self.start_sequence_id = 0
        self.number_max = 0
        self.txid_max = 0
        # The base of the epochs, as `start` has it. Never changes.
        self.epoch_base = 0
        # The accepted losses as of `load`.
        self.losses: StreamLosses = NO_LOSSES
        self._metadata = metadata
        self._root = log_root(name)
        # Versions of the same nodes, as loaded or as this owner's last change left them.
        self._ledgers_version = 0
        self._txid_version = 0
        self._start_version = 0
        # Held during a change, so that each change uses the versions that the previous change left.
        self._change_lock = asyncio.Lock()

    async def load(self) -> list[Segment]:
        """Read the segments, by number, the losses and all versions.

        Raises NoNode for an unknown stream, and CorruptFormat.
        """
        nodes = await self._metadata.read_tree(self._root)
        for part in ("ledgers", "maxtxid", "start"):
            if f"{self._root}/{part}" not in nodes:
                raise NoNode(f"{self._root}/{part}")
        ledgers = nodes[f"{self._root}/ledgers"]
        self._ledgers_version = ledgers.version
        self.number_max = _number(ledgers.data, f"{self._root}/ledgers")
        txid = nodes[f"{self._root}/maxtxid"]
        self._txid_version = txid.version
        self.txid_max = _number(txid.data, f"{self._root}/maxtxid")
        start = nodes[f"{self._root}/start"]
        self._start_version = start.version
        self.start_sequence_id, self.epoch_base = decode_start(start.data, f"{self._root}/start")
        losses = nodes.get(losses_path(self.name))
        self.losses = (
            NO_LOSSES if losses is None else decode_losses(losses.data, losses_path(self.name))
        )
        prefix = f"{self._root}/ledgers/"
        segments = order(
            [decode_segment(n.data, where=p) for p, n in nodes.items() if p.startswith(prefix)],
            where=self._root,
        )
        if any(each.jumps for each in segments):
            await self._reload_losses()
        return segments

    async def _reload_losses(self) -> None:
        """Read the losses after the segments.

        A tree is read node by node. A forced close in between would show its mark on a segment and
        not its loss, and the reserved ids would be assigned again.
        """
        path = losses_path(self.name)
        try:
            self.losses = decode_losses((await self._metadata.get(path)).data, path)
        except NoNode:
            self.losses = NO_LOSSES

    @property
    def next_epoch(self) -> int:
        """The epoch of an ownership that begins now."""
        return self.number_max + 1 - self.epoch_base

    def _path(self, segment: Segment) -> str:
        return f"{self._root}/ledgers/{segment.node_name}"

    async def complete(self, before: Segment, after: Segment, begun: Segment | None = None) -> None:
        """Replace `before`, in progress, by `after`, completed, and raise maxtxid.

        The same step lists `begun` as in progress, so that two segments never are.
        """
        assert after.completed
        async with self._change_lock:
            txid = max(after.last_txid, self.txid_max)
            number = self.number_max if begun is None else self._next_number(begun)
            ops: list[Op] = [
                Create(self._path(after), after.encode()),
                Delete(self._path(before)),
                Set(f"{self._root}/ledgers", b"%d" % number, self._ledgers_version),
                Set(f"{self._root}/maxtxid", b"%d" % txid, self._txid_version),
            ]
            if begun is not None:
                ops.append(Create(self._path(begun), begun.encode()))
            await self._multi(ops)
            self.number_max = number
            self.txid_max = txid
            self._ledgers_version += 1
            self._txid_version += 1
        if begun is not None:
            self._note(begun)

    def _next_number(self, begun: Segment) -> int:
        assert not begun.completed
        assert begun.number == self.number_max + 1
        return begun.number

    async def start(self, segment: Segment) -> None:
        """List `segment` as in progress. Raises BadVersion if another process owns the stream."""
        async with self._change_lock:
            number = self._next_number(segment)
            ops: list[Op] = [
                Set(f"{self._root}/ledgers", b"%d" % number, self._ledgers_version),
                Create(self._path(segment), segment.encode()),
            ]
            await self._multi(ops)
            self._ledgers_version += 1
            self.number_max = number
        self._note(segment)

    def _note(self, begun: Segment) -> None:
        note_event(EventKind.ROLL, stream=self.name, segment=begun.number, ledger=begun.ledger)

    async def remove(self, segments: Sequence[Segment], start_sequence_id: int) -> None:
        """Remove segments from the list and move the start to `start_sequence_id` or later."""
        async with self._change_lock:
            start = max(start_sequence_id, self.start_sequence_id)
            data = StreamStart(start, self.epoch_base).encode()
            ops: list[Op] = [
                Check(f"{self._root}/ledgers", self._ledgers_version),  # still the owner
                Set(f"{self._root}/start", data, self._start_version),
            ]
            ops += [Delete(self._path(segment)) for segment in segments]
            await self._multi(ops)
            self._start_version += 1
            self.start_sequence_id = start

    async def mark(self, changes: Sequence[tuple[Segment, Segment]]) -> None:
        """Store changed truncation fields of listed segments, (before, after), all or none.

        Raises BadVersion if another process owns the stream or changed one of them.
        """
        async with self._change_lock:
            ops: list[Op] = [Check(f"{self._root}/ledgers", self._ledgers_version)]
            for before, after in changes:
                path = self._path(before)
                assert path == self._path(after)
                ops.append(Set(path, after.encode(), await self._version_of(before)))
            await self._multi(ops)

    async def check(self) -> None:
        """Raise BadVersion if another process changed the list."""
        async with self._change_lock:
            await self._metadata.sync(self._root)
            path = f"{self._root}/ledgers"
            if (await self._metadata.get(path)).version != self._ledgers_version:
                raise BadVersion(path)

    async def replace(self, before: Sequence[Segment], after: Segment) -> None:
        """List the cleaned segment `after` in place of `before`, whose ledgers are then unlisted.

        All of `before` are replaced in one step, or none. Readers notice the new name, and another
        owner the new version of the list. Raises BadVersion if another process owns the stream or
        changed one of them, and StreamUnavailable if an operator accepted a loss in one: the
        entries of the loss would be others.
        """
        assert after.cleaned
        async with self._change_lock:
            # An acceptance changes the version, so one that follows this read makes the step fail.
            versions = [await self._version_of(each) for each in before]
            await self._check_losses(before)
            ops: list[Op] = [
                Set(f"{self._root}/ledgers", b"%d" % self.number_max, self._ledgers_version),
                *(Delete(self._path(each), v) for each, v in zip(before, versions, strict=True)),
                Create(self._path(after), after.encode()),
            ]
            try:
                await self._multi(ops)
            except BadVersion:
                await self._check_losses(before)
                raise
            self._ledgers_version += 1

    async def _check_losses(self, segments: Sequence[Segment]) -> None:
        """Raise StreamUnavailable if a loss in one of these segments was accepted."""
        await self._reload_losses()
        for each in segments:
            if self.losses.of_segment(each.number):
                raise StreamUnavailable(f"{self._path(each)}: a loss in it was accepted")

    async def _version_of(self, segment: Segment) -> int:
        """Return the version of the node of `segment`. Raises BadVersion if it was changed."""
        path = self._path(segment)
        try:
            node = await self._metadata.get(path)
        except NoNode:
            raise BadVersion(path) from None
        if decode_segment(node.data, where=path) != segment:
            raise BadVersion(path)
        return node.version

    async def _multi(self, ops: Sequence[Op]) -> None:
        """Carry out `ops`, all or none. After a lost reply, read the nodes to learn the outcome.

        Only this owner's own change leaves them as `ops` do: new segments name its own ledger.
        """
        for _ in range(_LOST_REPLIES_MAX):
            try:
                await self._metadata.multi(ops)
            except MetadataUnavailable:
                await self._metadata.sync(self._root)
                nodes = await self._metadata.read_tree(self._root)
                if not _is_done(ops, nodes):
                    continue
            return
        raise MetadataUnavailable(
            f"{self._root}: {_LOST_REPLIES_MAX} attempts to change it got no reply"
        )


def _is_done(ops: Sequence[Op], nodes: Mapping[str, Node]) -> bool:
    """True if every node is as `ops` leave it."""
    for op in ops:
        node = nodes.get(op.path)
        if isinstance(op, Delete):
            if node is not None:
                return False
        elif node is None:
            return False
        elif isinstance(op, Create):
            if node != Node(op.data, 0):
                return False
        elif isinstance(op, Set) and node != Node(op.data, op.version + 1):
            return False
    return True
