"""Gateways for tests of figures: a real one on simulated storage, and others that only answer.

`Remote` answers private questions from tables that a test fills, in the bytes of JSON, and can be
silent. `paper_context` is a gateway that leads nothing itself.
"""

from __future__ import annotations

import json
from contextlib import asynccontextmanager
from types import SimpleNamespace
from uuid import NAMESPACE_DNS, uuid5

from gateway.config import GroupLimits
from gateway.figures.peer_questions import NoAnswer
from gateway.figures.questions import ANSWER_BYTES_MAX, changes_answer
from gateway.figures.rows import (
    PART,
    GroupRow,
    PartitionFigures,
    TopicPart,
    group_bytes,
    part_bytes,
)
from gateway.figures.versions import VersionedRows
from gateway.groups.coordinator import Coordinator
from gateway.process.assemble import _close_lazy_parts
from gateway.topics.stored_topic import Topic
from tests.gateway.paper_cluster import PaperCluster, member
from tests.gateway.stream_cluster import started_cluster
from tests.sim.loop import SimClock


@asynccontextmanager
async def sharing_gateway(**settings):
    """Start a broker with a bookie and a coordinator of groups. Its figures end with it."""
    async with started_cluster(**settings) as gateway:
        coordinator = Coordinator(gateway.metadata, gateway.catalog, gateway.clock, GroupLimits())
        gateway.context.groups = coordinator
        await coordinator.start()
        try:
            yield gateway
        finally:
            await _close_lazy_parts(gateway.context)
            await coordinator.stop()


async def restarted(gateway):
    """Restart the broker of `sharing_gateway`; its coordinator goes on."""
    groups = gateway.context.groups
    await _close_lazy_parts(gateway.context)
    await gateway.restart()
    gateway.context.groups = groups


def topic_named(name, partitions=1):
    return Topic(name, uuid5(NAMESPACE_DNS, name), partitions, 1, {}, False)


class PaperCatalog:
    """Topics that a test sets."""

    def __init__(self, *topics):
        self.set(*topics)

    def set(self, *topics):
        self._topics = sorted(topics, key=lambda each: each.name)

    def all(self):
        return self._topics

    def by_name(self, name):
        return next((each for each in self._topics if each.name == name), None)

    def by_id(self, topic_id):
        return next((each for each in self._topics if each.topic_id == topic_id), None)


def paper_context(catalog, *node_ids):
    """Return the context of gateway 0 among others: it leads no partition and has no group."""
    return SimpleNamespace(
        authorizer=None,
        catalog=catalog,
        cluster=PaperCluster(0, [member(0), *map(member, node_ids)]),
        clock=SimClock(),
        config=SimpleNamespace(zookeeper="paper"),
        groups=SimpleNamespace(every_group=lambda: SimpleNamespace(serves=False)),
        partitions=SimpleNamespace(changes=0, led=lambda name, index: None),
        read_only_groups=SimpleNamespace(names=list),
        lazy={},
    )


class Remote:
    """Another gateway: its rows, and whether it answers."""

    def __init__(self, node_id):
        self.node_id = node_id
        self.process = f"process {node_id}"
        self.topics = VersionedRows()
        self.groups = VersionedRows()
        self.silent = False
        self.questions = []  # names of all that were asked
        self.times = {}  # of the records of what it leads, by topic, partition and offset

    def leads(self, topic, *partitions):
        """Set what it leads of a topic, as PartitionFigures; nothing without any."""
        firsts = {each.partition // PART * PART for each in partitions}
        for key in [key for key in self.topics.rows if key[0] == topic]:
            if key[1] not in firsts:
                self.topics.drop(key)
        for first in firsts:
            some = tuple(each for each in partitions if each.partition // PART * PART == first)
            self.topics.put((topic, first), TopicPart(topic, first, some))

    def has_group(self, name, positions, **more):
        row = GroupRow(
            **{
                "group": name,
                "state": "Stable",
                "type": "classic",
                "protocol": "consumer",
                "members": 1,
                "claimed": True,
                "positions": positions,
                "read_per_s": 0.0,
                **more,
            }
        )
        self.groups.put(name, row)

    async def answer(self, body):
        self.questions.append(body["ask"])
        if self.silent:
            raise NoAnswer("no answer within 1 s")
        if body["ask"] == "record_times":
            return {"times_ms": [self.times.get(tuple(each)) for each in body["of"]]}
        if body["ask"] == "events":
            return {"process": self.process, "events": []}
        after = body["after"] if body["process"] == self.process else 0
        if body["ask"] == "topics":
            found = self.topics.changes(after, part_bytes, ANSWER_BYTES_MAX)
        else:
            found = self.groups.changes(after, group_bytes, ANSWER_BYTES_MAX)
        answer = changes_answer(found, self.node_id, self.process, 0.1)
        return json.loads(json.dumps(answer))


def asking(*remotes):
    """Return the function by which a mirror asks these gateways."""
    by_id = {each.node_id: each for each in remotes}

    async def ask(asked, body):
        return await by_id[asked.node_id].answer(body)

    return ask


def figures(partition, start=0, end=10, size=100, rate=1.0, in_bytes=10.0, segments=1):
    return PartitionFigures(partition, start, end, size, segments, rate, in_bytes)
