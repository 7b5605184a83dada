"""The node of a stream that lists its accepted losses: read, followed by watch, and changed.

    /streams/<log>/<default>/losses

Every change is a compare-and-set, so that two operators cannot overwrite each other. An unreadable
node is an error, never "no loss".
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ledger.core.accepted_losses import (
    NO_LOSSES,
    LostRange,
    StreamLosses,
    decode_losses,
    encode_losses,
)
from ledger.core.gaps import Position
from ledger.errors import BadVersion, MetadataUnavailable, NodeExists, NoNode
from ledger.ports.metadata import MetadataStore, Node, Unwatch
from ledger.streams.segment_store import log_root

_ATTEMPTS_MAX = 10

__all__ = [
    "AcceptedLosses",
    "LostRange",
    "StreamLosses",
    "accept_losses",
    "drop_truncated",
    "losses_path",
]


def losses_path(name: str) -> str:
    """Return the path of the node of the stream `name`."""
    return f"{log_root(name)}/losses"


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


async def accept_losses(
    metadata: MetadataStore, name: str, added: Sequence[LostRange]
) -> StreamLosses:
    """Store further ranges of the stream `name`, all or none, and return all of its ranges.

    Ranges that are stored already change nothing. Raises InvalidArgument if one of them overlaps
    another range or has no room, NoNode for an unknown stream, CorruptFormat, MetadataUnavailable.
    """

    def change(losses: StreamLosses) -> StreamLosses:
        for each in added:
            losses = losses.with_range(each)
        return losses

    return await _change(metadata, name, change)


async def drop_truncated(metadata: MetadataStore, name: str, start: Position) -> StreamLosses:
    """Remove the ranges that end before `start`, the durable start of the stream `name`."""
    return await _change(metadata, name, lambda losses: losses.without_below(start))


async def _change(
    metadata: MetadataStore, name: str, change: Callable[[StreamLosses], StreamLosses]
) -> StreamLosses:
    path = losses_path(name)
    for _ in range(_ATTEMPTS_MAX):
        await metadata.sync(path)
        node = await _read(metadata, path)
        before = NO_LOSSES if node is None else decode_losses(node.data, path)
        after = change(before)
        if after == before:
            return after
        try:
            if node is None:
                await metadata.create(path, encode_losses(after))
            else:
                await metadata.set(path, encode_losses(after), node.version)
        except (NodeExists, BadVersion):
            continue  # another process changed the node: look again
        except MetadataUnavailable:
            continue  # the outcome is unknown: the next look shows it
        return after
    raise MetadataUnavailable(f"{path}: {_ATTEMPTS_MAX} attempts to change it failed")


async def _read(metadata: MetadataStore, path: str) -> Node | None:
    try:
        return await metadata.get(path)
    except NoNode:
        return None
