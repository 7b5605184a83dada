"""The node of a stream that lists its accepted losses: read, followed by watch, and changed.

    /streams/<log>/<default>/losses

Every change is a compare-and-set, so that two operators cannot overwrite each other. An unreadable
node is an error, never "no loss".
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import NamedTuple

from ledger.core.accepted_losses import (
    NO_LOSSES,
    LostRange,
    StreamLosses,
    decode_losses,
    encode_losses,
)
from ledger.core.gaps import OffsetRange, Position
from ledger.core.loss import EntryAwaited, EntryLost
from ledger.core.segments import Segment, decode_segment, names_segment
from ledger.errors import (
    BadVersion,
    InvalidArgument,
    LedgerError,
    MetadataUnavailable,
    NodeExists,
    NoNode,
)
from ledger.ports.metadata import Create, MetadataStore, Node, Op, Set, Unwatch
from ledger.streams.segment_store import log_root, losses_path
from ledger.tasks import start_once

_ATTEMPTS_MAX = 10
_RETRY_S = 1.0  # delay before a node is read again whose change was not read

__all__ = [
    "AcceptedLosses",
    "EntryAwaited",
    "EntryLost",
    "LostRange",
    "StreamLosses",
    "WatchedLosses",
    "accept_losses",
    "drop_truncated",
    "losses_path",
    "reserve_ops",
]


class AcceptedLosses:
    """The accepted losses of one stream as of the last `load`. Read-only."""

    def __init__(self, metadata: MetadataStore, name: str) -> None:
        self.losses: StreamLosses = NO_LOSSES
        self._metadata = metadata
        self._path = losses_path(name)
        # The watch, from `watch` until `unwatch`.
        self._unwatch: Unwatch | None = None

    def watch(self, on_changed: Callable[[], None]) -> None:
        """Call `on_changed` after each change of the node, its creation included."""
        assert self._unwatch is None
        self._unwatch = self._metadata.watch(self._path, on_changed)

    def unwatch(self) -> None:
        if self._unwatch is not None:
            self._unwatch()
            self._unwatch = None

    async def load(self) -> StreamLosses:
        """Read the node. Without it nothing was accepted.

        Raises CorruptFormat, MetadataUnavailable; the losses then stay as they were.
        """
        node = await _read(self._metadata, self._path)
        self.losses = NO_LOSSES if node is None else decode_losses(node.data, self._path)
        return self.losses


class WatchedLosses:
    """The accepted losses of a stream that this process owns, read again after each change."""

    def __init__(
        self,
        metadata: MetadataStore,
        name: str,
        on_changed: Callable[[StreamLosses], None],
        on_failed: Callable[[LedgerError], None],
    ) -> None:
        """`on_changed` receives the losses after each change; `on_failed` an unreadable node."""
        self._accepted = AcceptedLosses(metadata, name)
        self._on_changed = on_changed
        self._on_failed = on_failed
        # True from `start` until `stop`.
        self._watching = False
        # True if the node changed since `start`.
        self._changed = False
        # True from a change of the node until a read that began after it.
        self._stale = False
        # Reads the node while it is stale. None while it is not.
        self._reading: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Watch the node, unless it is watched. The caller reads it next, and calls `catch_up`."""
        self._changed = False
        if not self._watching:
            self._watching = True
            self._accepted.watch(self._on_node_changed)

    def catch_up(self) -> None:
        """Read the node again if it changed since `start`."""
        if self._changed:
            self._on_node_changed()

    def stop(self) -> None:
        self._watching = self._stale = False
        self._accepted.unwatch()
        reading, self._reading = self._reading, None
        if reading is not None:
            reading.cancel()

    def _on_node_changed(self) -> None:
        self._changed = self._stale = True
        if self._watching and self._reading is None:
            self._reading = start_once("a read of accepted losses", self._read())

    async def _read(self) -> None:
        try:
            while self._stale:
                self._stale = False
                try:
                    losses = await self._accepted.load()
                except MetadataUnavailable:
                    self._stale = True
                    await asyncio.sleep(_RETRY_S)
                except LedgerError as error:
                    self._on_failed(error)
                else:
                    self._on_changed(losses)
        finally:
            if self._reading is asyncio.current_task():
                self._reading = None


async def accept_losses(
    metadata: MetadataStore, name: str, added: Sequence[LostRange]
) -> StreamLosses:
    """Store further ranges of the stream `name`, all or none, and return all of its ranges.

    Ranges that are stored already change nothing. The reserved rest of a segment ends its owner in
    the same step, and keeps releases out that would assign the reserved offsets. So store it before
    the ledger is closed.

    Raises InvalidArgument if a range overlaps another one, has no room, reserves the rest of a
    segment that is not the last one, or lies in a ledger that a cleaning replaced; NoNode for an
    unknown stream, CorruptFormat, MetadataUnavailable.
    """

    async def change(losses: StreamLosses) -> _Changed:
        # By path: one step changes a node once, and several ranges may lie in one segment.
        ops: dict[str, Op] = {}
        for each in added:
            if losses.with_range(each) is losses:
                continue
            if each.forced:
                each, marks = await _end_of_dense_ids(metadata, name, each)
                ops.update((mark.path, mark) for mark in marks)
            else:
                for mark in await _unreplaced(metadata, name, each):
                    ops.setdefault(mark.path, mark)
            losses = losses.with_range(each)
        return _Changed(losses, list(ops.values()))

    return await _change(metadata, name, change)


async def reserve_ops(metadata: MetadataStore, name: str, reserved: LostRange) -> list[Op]:
    """Return the changes that store the reserved rest of a segment, for one step with others.

    There is none if the range is stored already. Raises as `accept_losses`, and BadVersion if the
    owner of the stream changed its list meanwhile.
    """
    assert reserved.forced
    path = losses_path(name)
    await metadata.sync(path)
    node = await _read(metadata, path)
    before = NO_LOSSES if node is None else decode_losses(node.data, path)
    if before.with_range(reserved) is before:
        return []
    reserved, marks = await _end_of_dense_ids(metadata, name, reserved)
    data = encode_losses(before.with_range(reserved))
    change = Create(path, data) if node is None else Set(path, data, node.version)
    return [change, *marks]


async def drop_truncated(metadata: MetadataStore, name: str, start: Position) -> StreamLosses:
    """Remove the ranges that end before `start`, the durable start of the stream `name`."""

    async def change(losses: StreamLosses) -> _Changed:
        return _Changed(losses.without_below(start), [])

    return await _change(metadata, name, change)


class _Changed(NamedTuple):
    """The losses after a change, and further changes for the same step."""

    losses: StreamLosses
    ops: list[Op]


async def _change(
    metadata: MetadataStore,
    name: str,
    change: Callable[[StreamLosses], Awaitable[_Changed]],
) -> StreamLosses:
    path = losses_path(name)
    for _ in range(_ATTEMPTS_MAX):
        await metadata.sync(path)
        node = await _read(metadata, path)
        before = NO_LOSSES if node is None else decode_losses(node.data, path)
        try:
            after, marks = await change(before)
            if after == before:
                return after
            data = encode_losses(after)
            stored = Create(path, data) if node is None else Set(path, data, node.version)
            await metadata.multi([stored, *marks])
        except (NodeExists, BadVersion):
            continue  # another process changed the node: look again
        except NoNode:
            if not await metadata.exists(log_root(name)):
                raise
            continue  # a segment was replaced or removed meanwhile
        except MetadataUnavailable:
            continue  # the outcome is unknown: the next look shows it
        return after
    raise MetadataUnavailable(f"{path}: {_ATTEMPTS_MAX} attempts to change it failed")


async def _unreplaced(metadata: MetadataStore, name: str, lost: LostRange) -> list[Op]:
    """Return the changes that keep the ledger of a loss in its segment, for one step with it.

    A cleaning that read the node before finds another version. Raises InvalidArgument if the
    segment has another ledger by now: the entries of the loss are not those of that ledger.
    """
    root = f"{log_root(name)}/ledgers"
    ops: list[Op] = []
    for child in await metadata.children(root):
        if child.startswith("inprogress_") or not names_segment(child, lost.segment):
            continue
        path = f"{root}/{child}"
        try:
            node = await metadata.get(path)
        except NoNode as error:
            raise BadVersion(path) from error
        if decode_segment(node.data, where=path).ledger != lost.evidence.ledger:
            raise InvalidArgument(
                f"{name}: segment {lost.segment} was cleaned, ledger {lost.evidence.ledger} holds "
                "no part of it now"
            )
        ops.append(Set(path, node.data, node.version))
    return ops


async def _end_of_dense_ids(
    metadata: MetadataStore, name: str, reserved: LostRange
) -> tuple[LostRange, list[Op]]:
    """Return the changes that mark a segment and end its owner, for one step with the losses.

    A segment in progress may follow, if another program listed it before it completed this one.
    If its start is known, the reserved offsets end there; otherwise it begins behind them.
    """
    number = reserved.segment
    root = f"{log_root(name)}/ledgers"
    listed = await metadata.get(root)
    names = sorted(await metadata.children(root), key=lambda child: child.rpartition("_")[2])
    both = [f"inprogress_{each:018d}" for each in (number, number + 1)]
    names = both if names[-2:] == both else names[-1:]
    if not names or not names[0].endswith(f"_{number:018d}"):
        raise InvalidArgument(
            f"{name}: segment {number} is not the last one, so no offset behind it can be reserved"
        )
    ops: list[Op] = [Set(root, listed.data, listed.version)]  # then the owner's changes fail
    for child in names:
        path = f"{root}/{child}"
        try:
            node = await metadata.get(path)
        except NoNode as error:
            raise BadVersion(path) from error  # its owner completed it meanwhile
        segment = decode_segment(node.data, where=path)
        if segment.number > number:
            reserved, segment = _apart(reserved, segment)
        ops.append(Set(path, segment.with_jump.encode(), node.version))
    return reserved, ops


def _apart(reserved: LostRange, following: Segment) -> tuple[LostRange, Segment]:
    """Return the reserved offsets and the segment behind them, with no offset in both."""
    first, last, exact = reserved.offsets
    start = following.start_sequence_id
    if start < first:  # unknown
        return reserved, replace(following, start_sequence_id=last + 1)
    return reserved._replace(offsets=OffsetRange(first, min(last, start - 1), exact)), following


async def _read(metadata: MetadataStore, path: str) -> Node | None:
    try:
        return await metadata.get(path)
    except NoNode:
        return None
