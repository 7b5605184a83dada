"""A broker with coordinators of transactions, on real streams and virtual time.

The sender of markers only notes them, until a test answers.
"""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager

from kio.schema.errors import ErrorCode

from gateway.core.topic_names import TRANSACTION_STATE
from gateway.groups.coordinator import Coordinator
from gateway.topics.producer_ids import ProducerIds
from gateway.transactions.coordinators import TRANSACTION_VERSION, TransactionCoordinators
from gateway.wire.own_batches import decode_batch
from tests.gateway.stream_cluster import StreamCluster
from tests.subscriptions.log_world import LogWorld

FIND, INIT, ADD, OFFSETS, END, DESCRIBE, LIST = 10, 22, 24, 25, 26, 65, 66


class NotedMarkers:
    """A `MarkerSender` that keeps what it should send."""

    def __init__(self):
        self.sent = []  # (marker, on_answers), not answered yet
        self.stopped = []  # the `on_answers` of coordinators that ended

    def send(self, marker, on_answers):
        self.sent.append((marker, on_answers))

    def stop(self, on_answers):
        self.stopped.append(on_answers)
        self.sent = [each for each in self.sent if each[1] != on_answers]

    def answer(self, error=ErrorCode.none):
        """Answer all markers for all of their partitions. Returns the markers."""
        sent, self.sent = self.sent, []
        for marker, on_answers in sent:
            on_answers(marker, dict.fromkeys(marker.partitions, error))
        return [marker for marker, _ in sent]


class TransactionCluster(StreamCluster):
    """One broker with a log of transactions, and a topic `t`."""

    def __init__(self, *, log_partitions=1, **settings):
        super().__init__(**settings)
        self.log_partitions = log_partitions
        self.level_of_transactions = 2
        self.writes_new_forms = True
        self.gate_openings = 0

    def level(self, name):
        assert name == TRANSACTION_VERSION
        return self.level_of_transactions

    def begin_new_forms(self):
        self.gate_openings += 1

    async def start_gateway(self):
        await super().start_gateway()
        self.markers = NotedMarkers()
        self.coordinators = TransactionCoordinators(
            self.catalog,
            self.partitions,
            self.clock,
            ProducerIds(self.metadata),
            self.markers,
            self.config.transaction,
            self,  # the gate of new forms
        )
        self.partitions.hosts[TRANSACTION_STATE] = self.coordinators
        self.context.transactions = self.coordinators
        store = LogWorld().process().store()
        self.context.groups = Coordinator(
            self.metadata, self.catalog, self.clock, self.config.groups, store=store
        )
        if self.log_partitions and self.catalog.by_name(TRANSACTION_STATE) is None:
            await self.create(TRANSACTION_STATE, self.log_partitions, {})
            await self.create("t", 3, {})
        await self.coordinators.start()

    async def create(self, name, partitions, configs):
        await self.catalog.create(name, partitions, 1, configs)

    async def stop_gateway(self):
        await self.coordinators.stop()
        await self.partitions.stop()

    async def restart(self):
        await self.stop_gateway()
        await self.start_gateway()

    async def crash(self):
        await self.coordinators.stop()
        await super().crash()

    async def lost(self, key):
        """Let another broker take a partition over."""
        self.partitions.lost(key)

    @property
    def shell(self):
        return self.coordinators._by_index[0]

    async def until(self, holds):
        """Return the result of `holds` once it is true."""
        async with asyncio.timeout(3_600):
            while not (found := holds()):
                await asyncio.sleep(0.01)
        return found

    async def log(self):
        """Return (transactional id, value) of all records in the log, oldest first."""
        partition = await self.partition(TRANSACTION_STATE)
        found = await self.read_all(partition)
        return [each for data in found for each in decode_batch(data, "log")]

    # -- requests -----------------------------------------------------------------------------

    async def retried(self, key, version, **fields):
        """Return the reply, asking again while the coordinator is loading."""
        async with asyncio.timeout(600):
            while True:
                reply = await self.answer(key, version, **fields)
                if reply.error_code not in (
                    ErrorCode.coordinator_load_in_progress,
                    ErrorCode.not_coordinator,
                ):
                    return reply
                await asyncio.sleep(0.1)

    async def init(self, name="pay", *, version=5, timeout_ms=60_000, known=(-1, -1)):
        fields = {"transactional_id": name, "transaction_timeout": timeout_ms}
        if version >= 3:
            fields |= {"producer_id": known[0], "producer_epoch": known[1]}
        found = await self.retried(INIT, version, **fields)
        return found.error_code, found.producer_id, found.producer_epoch

    async def begin(self, name="pay", **settings):
        """Return the id and epoch of a producer whose transaction has partition 0 of `t`."""
        error, *producer = await self.init(name, **settings)
        assert error is ErrorCode.none
        assert await self.add(producer, 0, name=name) == {("t", 0): ErrorCode.none}
        return producer

    async def add(self, producer, *indexes, name="pay", version=4, topic="t", verify=False):
        topics = [{"name": topic, "partitions": list(indexes)}]
        if version < 4:
            fields = {
                "v3_and_below_transactional_id": name,
                "v3_and_below_producer_id": producer[0],
                "v3_and_below_producer_epoch": producer[1],
                "v3_and_below_topics": topics,
            }
            results = (await self.answer(ADD, version, **fields)).results_by_topic_v3_and_below
        else:
            one = {"transactional_id": name, "producer_id": producer[0], "topics": topics}
            one |= {"producer_epoch": producer[1], "verify_only": verify}
            reply = await self.answer(ADD, version, transactions=[one])
            (result,) = reply.results_by_transaction
            assert result.transactional_id == name
            results = result.topic_results
        return {
            (topic.name, each.partition_index): each.partition_error_code
            for topic in results
            for each in topic.results_by_partition
        }

    async def end(self, producer, *, commit=True, version=4, name="pay"):
        reply = await self.answer(
            END,
            version,
            transactional_id=name,
            producer_id=producer[0],
            producer_epoch=producer[1],
            committed=commit,
        )
        if version < 5:
            return reply.error_code
        return reply.error_code, reply.producer_id, reply.producer_epoch

    async def state(self, name="pay"):
        """Return the name of the id's state, or the error."""
        reply = await self.answer(DESCRIBE, 0, transactional_ids=[name])
        (row,) = reply.transaction_states
        return row.transaction_state or row.error_code


@asynccontextmanager
async def transacting(**settings):
    cluster = TransactionCluster(**settings)
    await cluster.start()
    yield cluster
    await cluster.stop_gateway()
