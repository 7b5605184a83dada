"""The stored segment list of a stream, watched by a reader that does not own the stream.

After a change it reads the names and only the new nodes, so a roll costs two reads regardless of
the length of the stream. Source: DistributedLog, "Log segment notifications" (seed 000).
"""

from __future__ import annotations

from collections.abc import Callable

from ledger.core.accepted_losses import StreamLosses
from ledger.core.segments import Segment, decode_segment, order
from ledger.core.stream_start import decode_start
from ledger.errors import MetadataUnavailable, NoNode
from ledger.ports.metadata import MetadataStore, Unwatch
from ledger.streams.accepted_losses import AcceptedLosses
from ledger.streams.segment_store import log_root

_ATTEMPTS_MAX = 10  # to read the nodes of a list before one of them is replaced


class SegmentList:
    """The segments and the start of a stream as of the last `load`. Read-only."""

    def __init__(self, metadata: MetadataStore, name: str) -> None:
        # The segments in order of their numbers, without gaps.
        self.segments: list[Segment] = []
        # The first readable sequence id. Never decreases.
        self.start_sequence_id = 0
        # The base of the epochs. Never changes after the first `load`.
        self.epoch_base = 0
        self._metadata = metadata
        self._accepted = AcceptedLosses(metadata, name)
        # True while the losses are watched and did not change since they were read.
        self._losses_known = False
        self._root = log_root(name)
        # Segments by node name, so that a node is read once. Pruned by each load.
        self._by_name: dict[str, Segment] = {}
        # The two watches, from `watch` until `unwatch`.
        self._unwatch: list[Unwatch] = []

    def watch(self, on_changed: Callable[[], None]) -> None:
        """Call `on_changed` after each change of the list, of the start or of the losses."""
        assert not self._unwatch
        watch = self._metadata.watch
        self._unwatch = [watch(f"{self._root}/{part}", on_changed) for part in ("ledgers", "start")]

        def on_losses_changed() -> None:
            self._losses_known = False
            on_changed()

        self._accepted.watch(on_losses_changed)

    def unwatch(self) -> None:
        for unwatch in self._unwatch:
            unwatch()
        self._unwatch.clear()
        self._accepted.unwatch()
        self._losses_known = False

    @property
    def losses(self) -> StreamLosses:
        """The accepted losses of the stream, never older than the list."""
        return self._accepted.losses

    async def sync(self) -> None:
        """Make the next `load` see every change that was made before this call."""
        await self._metadata.sync(self._root)

    async def load(self) -> None:
        """Read the list, the losses and the start. Raises NoNode if the stream does not exist.

        Raises also CorruptFormat, MetadataUnavailable.
        """
        segments = await self._load_segments()
        if not self._losses_known:
            self._losses_known = bool(self._unwatch)
            try:
                await self._accepted.load()
            except BaseException:
                self._losses_known = False
                raise
        # Read the start after the list, so that it is never older than the list.
        path = f"{self._root}/start"
        start, base = decode_start((await self._metadata.get(path)).data, path)
        self.segments, self.epoch_base = segments, base
        self.start_sequence_id = max(self.start_sequence_id, start)

    async def _load_segments(self) -> list[Segment]:
        path = f"{self._root}/ledgers"
        for _ in range(_ATTEMPTS_MAX):
            names = await self._metadata.children(path)
            listed = set(names)
            self._by_name = {n: s for n, s in self._by_name.items() if n in listed}
            new = [name for name in names if name not in self._by_name]
            try:
                for name in new:
                    await self._load_segment(path, name)
            except NoNode:  # completed or removed since its name was read
                continue
            segments = order(self._by_name.values(), where=self._root)
            if _newest(segments) < _newest(self.segments):
                await self.sync()
                raise MetadataUnavailable(f"{path}: the store returned an older list than before")
            return segments
        raise MetadataUnavailable(f"{path}: the list changed during each of {_ATTEMPTS_MAX} reads")

    async def _load_segment(self, path: str, name: str) -> None:
        node = await self._metadata.get(f"{path}/{name}")
        found = self._by_name[name] = decode_segment(node.data, where=f"{path}/{name}")
        if found.jumps:
            self._losses_known = False  # its loss is stored, and the watch may be late


def _newest(segments: list[Segment]) -> int:
    """Return the number of the newest completed segment, which decreases only in a stale read."""
    return max((segment.number for segment in segments if segment.completed), default=0)
