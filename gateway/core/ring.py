"""The candidate of each stream and group: consistent hashing with bounded load.

Each broker has many points on a circle. Each stream and each group has one point. The next broker
clockwise is the candidate, unless this broker already has its share. The result depends only on the
brokers and the topics, not on what happened before. Source: DistributedLog, "Ownership tracking"
(seed 000); Mirrokni, Thorup and Zadimoghaddam, "Consistent Hashing with Bounded Loads".
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from hashlib import shake_128
from struct import unpack
from uuid import UUID

POINTS_PER_NODE = 256  # with 256 points, shares of the circle differ by about a sixteenth
SLACK_PERCENT = 10  # excess of one broker over the mean; more slack moves fewer streams

_POINT_BYTES = 8


def _points(of: bytes, count: int) -> tuple[int, ...]:
    """Return the first `count` points of an endless sequence that `of` determines."""
    return unpack(f">{count}Q", shake_128(of).digest(_POINT_BYTES * count))


class Ring:
    """Brokers on a circle, each at many points. Without brokers every answer is None."""

    __slots__ = ("_at", "_places", "_successors", "nodes")

    def __init__(self, nodes: Iterable[int]) -> None:
        self.nodes: tuple[int, ...] = tuple(sorted(set(nodes)))
        circle = sorted(
            (point, at)
            for at, node in enumerate(self.nodes)
            for point in _points(b"gateway %d" % node, POINTS_PER_NODE)
        )
        self._places = [point for point, _ in circle]
        self._at = [at for _, at in circle]
        self._successors: dict[int, tuple[int, ...]] = {}

    def candidate(self, group: str) -> int | None:
        """Return the broker that should coordinate the group."""
        if not self.nodes:
            return None
        (point,) = _points(b"group " + group.encode(errors="surrogatepass"), 1)
        return self.nodes[self._at[self._place(point)]]

    def places(self, topic_id: UUID, count: int) -> array[int]:
        """Return the points of the first `count` partitions of the topic."""
        points = _points(b"topic " + topic_id.bytes, count)
        places, total = self._places, len(self._places)
        return array("I", [bisect_left(places, point) % total for point in points])

    def at(self, place: int) -> int:
        """Return the broker at this point, as an index into `nodes`."""
        return self._at[place]

    def successors(self, place: int) -> tuple[int, ...]:
        """Return all nodes, in clockwise order from this point."""
        found = self._successors.get(place)
        if found is None:
            at = self._at
            met = dict.fromkeys(at[place:])
            if len(met) < len(self.nodes):
                met |= dict.fromkeys(at[:place])
            found = self._successors[place] = tuple(self.nodes[one] for one in met)
        return found

    def _place(self, point: int) -> int:
        return bisect_left(self._places, point) % len(self._places)


class Assignment:
    """The candidate of every stream.

    No broker has more than its share of all streams and, where possible, of the partitions of one
    topic. `topics` are (id, partitions) of all topics, in any order. `before` is an earlier
    assignment. It only saves work, and only if the ring and the topics are the same.
    """

    __slots__ = ("_chosen", "_known", "_places", "_ring")

    def __init__(
        self, ring: Ring, topics: Iterable[tuple[UUID, int]], before: Assignment | None = None
    ) -> None:
        self._ring = ring
        known = before is not None and before._ring is ring
        self._known: dict[UUID, array[int]] = before._places if before and known else {}
        self._places: dict[UUID, array[int]] = {}
        self._chosen: dict[UUID, array[int]] = {}  # node id of each partition, by topic
        if not ring.nodes:
            return
        ordered = sorted(topics, key=lambda topic: topic[0].bytes)
        share = _share(sum(count for _, count in ordered), len(ring.nodes))
        loads = [0] * len(ring.nodes)
        for topic_id, count in ordered:
            self._assign(topic_id, count, loads, share)
        self._known = {}

    def candidate(self, topic_id: UUID, partition: int) -> int | None:
        """Return the candidate's node id, or None if there is no broker or no such stream."""
        chosen = self._chosen.get(topic_id)
        if chosen is None or not 0 <= partition < len(chosen):
            return None
        return chosen[partition]

    def candidates(self, topic_id: UUID) -> Sequence[int]:
        """Return the node id for each partition. The result is empty for an unknown topic."""
        return self._chosen.get(topic_id, ())

    def successors(self, topic_id: UUID, partition: int) -> Sequence[int]:
        """Return all nodes clockwise from the stream's point.

        The result is empty for an unknown stream.
        """
        places = self._places.get(topic_id)
        if places is None or not 0 <= partition < len(places):
            return ()
        return self._ring.successors(places[partition])

    def _assign(self, topic_id: UUID, count: int, loads: list[int], share: int) -> None:
        ring = self._ring
        topic_share = _share(count, len(ring.nodes))
        topic_loads = [0] * len(ring.nodes)
        places = self._known.get(topic_id)
        if places is None or len(places) != count:
            places = ring.places(topic_id, count)
        chosen: list[int] = []
        for place in places:
            at = ring.at(place)
            if loads[at] >= share or topic_loads[at] >= topic_share:
                at = self._next(place, loads, share, topic_loads, topic_share)
            loads[at] += 1
            topic_loads[at] += 1
            chosen.append(ring.nodes[at])
        self._places[topic_id] = places
        self._chosen[topic_id] = array("i", chosen)

    def _next(
        self, place: int, loads: list[int], share: int, topic_loads: list[int], topic_share: int
    ) -> int:
        """Return the first node clockwise that has room.

        A node that also has room for this topic is preferred.
        """
        index = {node: at for at, node in enumerate(self._ring.nodes)}
        order = [index[node] for node in self._ring.successors(place)]
        free = [at for at in order if loads[at] < share]
        assert free, "the shares of all together are more than there is"
        return next((at for at in free if topic_loads[at] < topic_share), free[0])


def _share(streams: int, nodes: int) -> int:
    """Return the largest share of one node. Shares of a few streams differ by one at most."""
    mean = -(-streams // nodes)
    return max(mean, streams * (100 + SLACK_PERCENT) // (100 * nodes))
