"""Goal: a request for which producers wait never stands behind a marker that is not durable yet.

Method: the assembly of a process on virtual time. Its connections are the test's: they note each
request, and answer none.
"""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager

from gateway.cluster.port import Leader
from gateway.core.topic_names import TRANSACTION_STATE
from gateway.core.transaction_effects import Marker
from gateway.core.transaction_states import TopicPartition
from gateway.groups.coordinator import Coordinator
from gateway.process.transactions import add_transactions
from tests.gateway.paper_cluster import PaperCluster, member
from tests.gateway.stream_cluster import StreamCluster
from tests.subscriptions.log_world import LogWorld

ONE, TWO = 1, 2
ADD_PARTITIONS_TO_TXN, WRITE_TXN_MARKERS = 24, 27


class Links:
    """Connections to other gateways on which no answer comes."""

    def __init__(self):
        self.keys = []  # of the requests
        self.changes, self.closed = 0, False

    def ask(self, node_id, key, encode, on_answer):
        assert node_id == TWO
        self.keys.append(key)

    def on_members_changed(self):
        self.changes += 1

    async def close(self):
        self.closed = True


class Shared:
    """Takes the callbacks for changes of the members."""

    def __init__(self):
        self.changed = []

    def on_members_changed(self, changed):
        self.changed.append(changed)


class Gateway(StreamCluster):
    """Gateway 1. Gateway 2 leads all partitions and coordinates all ids."""

    def __init__(self):
        members = [member(ONE), member(TWO)]
        super().__init__(cluster=PaperCluster(ONE, members, leader_of_others=Leader(TWO, 1)))
        self.shared, self.links = Shared(), []

    def new_links(self):
        self.links.append(Links())
        return self.links[-1]

    async def start(self):
        await super().start()
        self.context.groups = Coordinator(
            self.metadata,
            self.catalog,
            self.clock,
            self.config.groups,
            store=LogWorld().process().store(),
        )
        self.end = add_transactions(self.context, self.shared, self.new_links)
        for name in ("t", TRANSACTION_STATE):
            await self.catalog.create(name, 1, 1, {})
        self.context.features.begin_new_forms()
        while not self.context.features.writes_new_forms:
            await asyncio.sleep(0.01)


@asynccontextmanager
async def gateway():
    made = Gateway()
    await made.start()
    yield made
    await made.end()
    await made.catalog.close()


async def test_a_verification_has_another_connection_than_markers():
    async with gateway() as g:
        marker = Marker("id", 7, 0, 3, True, frozenset((TopicPartition("t", 0),)), 2, 1)
        g.context.transactions._services.markers.send(marker, lambda *_: None)
        g.context.partitions.verifier.verify("other", 8, 0, "t", 0, adds=True)
        await asyncio.sleep(1)
        assert sorted(links.keys for links in g.links) == [
            [ADD_PARTITIONS_TO_TXN],
            [WRITE_TXN_MARKERS],
        ]


async def test_all_connections_learn_of_members_that_left_and_are_closed_at_the_end():
    async with gateway() as g:
        for changed in g.shared.changed:
            changed()
        assert [links.changes for links in g.links] == [1, 1]
    assert all(links.closed for links in g.links)
