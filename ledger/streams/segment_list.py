"""The segments of a stream as somebody sees them who does not own it: told by watch.

A change reads the names and only those nodes that are new, so that a roll costs two reads however
long the stream is. Source: DistributedLog, "Log segment notifications" (seed 000).
"""

from __future__ import annotations

from collections.abc import Callable

from ledger.core.segments import Segment, decode_segment, order
from ledger.errors import CorruptFormat, MetadataUnavailable, NoNode
from ledger.ports.metadata import MetadataStore, Unwatch
from ledger.streams.segment_store import log_root

_TRIES_MAX = 10  # of names that go between their listing and their reading


class SegmentList:
    """`segments` and `start_sequence_id` are as of the last `load`. Nothing is ever written."""

    def __init__(self, metadata: MetadataStore, name: str) -> None:
        self.segments: list[Segment] = []
        self.start_sequence_id = 0
        self._metadata = metadata
        self._root = log_root(name)
        self._by_name: dict[str, Segment] = {}
        self._unwatch: list[Unwatch] = []

    def watch(self, on_changed: Callable[[], None]) -> None:
        """`on_changed` runs after segments came, were completed or went, or the start moved."""
        assert not self._unwatch
        watch = self._metadata.watch
        self._unwatch = [watch(f"{self._root}/{part}", on_changed) for part in ("ledgers", "start")]

    def unwatch(self) -> None:
        for unwatch in self._unwatch:
            unwatch()
        self._unwatch.clear()

    async def sync(self) -> None:
        """The next `load` sees at least what was there before this call."""
        await self._metadata.sync(self._root)

    async def load(self) -> None:
        """Raises NoNode when the stream is gone, CorruptFormat, MetadataUnavailable."""
        segments = await self._load_segments()
        # After the list: the start is never older than the list whose segments it cuts.
        path = f"{self._root}/start"
        node = await self._metadata.get(path)
        try:
            start = int(node.data)
        except ValueError as error:
            raise CorruptFormat(f"{path}: not a number: {node.data[:40]!r}") from error
        self.segments = segments
        self.start_sequence_id = max(self.start_sequence_id, start)

    async def _load_segments(self) -> list[Segment]:
        path = f"{self._root}/ledgers"
        for _ in range(_TRIES_MAX):
            names = await self._metadata.children(path)
            listed = set(names)
            self._by_name = {n: s for n, s in self._by_name.items() if n in listed}
            new = [name for name in names if name not in self._by_name]
            try:
                for name in new:
                    node = await self._metadata.get(f"{path}/{name}")
                    self._by_name[name] = decode_segment(node.data, where=f"{path}/{name}")
            except NoNode:  # completed or removed since its name was read
                continue
            segments = order(self._by_name.values(), where=self._root)
            if _newest(segments) < _newest(self.segments):
                await self.sync()
                raise MetadataUnavailable(f"{path}: told as it was before")
            return segments
        raise MetadataUnavailable(f"{path}: its names change faster than they can be read")


def _newest(segments: list[Segment]) -> int:
    """The newest completed one's number: it never falls, but a new session may look back."""
    return max((segment.number for segment in segments if segment.completed), default=0)
