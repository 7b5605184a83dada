"""Goal: a log of the broker's own takes only its batches, in order, and reports each ownership.

Method: a partition with another object's state over a stream, a ledger and a bookie, virtual time.
"""

import asyncio

from kio.schema.errors import ErrorCode

from gateway.topics.configs import topic_config
from gateway.topics.partition import Partition
from ledger.errors import CorruptFormat, NotOwner, StreamUnavailable
from ledger.streams.config import StreamConfig
from ledger.streams.segment_store import create_streams
from tests.gateway.stream_cluster import base_offsets, batch, started_cluster

NAME = "own-0"


class Counted:
    """A state of one number: the records of the log."""

    def __init__(self):
        self.records = 0
        self.fails = False

    def encode(self, end_sequence_id):
        return b"%d" % end_sequence_id

    def load(self, data):
        if self.fails:
            raise CorruptFormat("the state is damaged")
        self.records = int(data or b"0")
        yield

    def replay(self, sequence_id, data):
        self.records += 1

    def pass_loss(self, first, last):
        pass

    def timestamp_max(self, data):
        return -1


class Log:
    """An observer that notes what the state was when an ownership began."""

    def __init__(self, state):
        self.state, self.events = state, []

    def on_opened(self, epoch):
        self.events.append((epoch, self.state.records))

    def on_ended(self):
        self.events.append("ended")


async def own(cluster, lease_held=lambda: True, **settings):
    """Return a partition of the broker's own, open, and its observer."""
    state = Counted()
    log = Log(state)
    config = StreamConfig(ensemble_size=1, write_quorum=1, ack_quorum=1)
    partition = Partition(
        NAME,
        cluster.services,
        lambda: topic_config({}),
        lambda: config,
        lease_held,
        state=state,
        observer=log,
        **settings,
    )
    return partition, log


def append(partition, data, records=1):
    answers = []
    partition.append_own(data, records, answers.append)
    return answers


async def all_of(*waiting):
    async with asyncio.timeout(60):
        while not all(waiting):
            await asyncio.sleep(0.001)
    return [answers[0] for answers in waiting]


async def test_own_batches_become_durable_in_call_order_and_begin_the_stream():
    async with started_cluster() as cluster:
        await create_streams(cluster.metadata, [NAME], 1)
        partition, log = await own(cluster)
        waiting = [append(partition, batch(records=records), records) for records in (1, 2, 1)]
        assert await all_of(*waiting) == [None] * 3
        assert base_offsets(await cluster.read_all(partition)) == [0, 1, 3]
        assert await all_of(append(partition, batch(records=1))) == [None]
        assert log.events == [(0, 0)]
        await partition.close()
        assert log.events == [(0, 0), "ended"]


async def test_a_failure_ends_the_ownership_and_the_next_one_has_the_whole_state():
    async with started_cluster() as cluster:
        await create_streams(cluster.metadata, [NAME], 1)
        partition, log = await own(cluster)
        await all_of(append(partition, batch(records=1)))
        partition.stream.fail(StreamUnavailable("the coordinator gave up"))
        assert log.events == [(0, 0), "ended"]
        await partition.ensure_readable()
        assert log.events == [(0, 0), "ended", (1, 1)]
        await partition.close()


async def test_a_failed_add_answers_with_an_error_and_ends_the_ownership():
    async with started_cluster() as cluster:
        await create_streams(cluster.metadata, [NAME], 1)
        partition, log = await own(cluster)
        await all_of(append(partition, batch(records=1)))
        cluster.port.refuse()
        [error] = await all_of(append(partition, batch(records=1)))
        assert error is not None
        assert log.events[:2] == [(0, 0), "ended"]
        cluster.port.accept()
        await partition.close()


async def test_a_lost_partition_acknowledges_no_own_batch():
    async with started_cluster() as cluster:
        await create_streams(cluster.metadata, [NAME], 1)
        partition, log = await own(cluster)
        await all_of(append(partition, batch(records=1)))
        cluster.port.hold()
        answers = append(partition, batch(records=1))
        await asyncio.sleep(0.1)
        partition.abandon()
        assert log.events == [(0, 0), "ended"]
        cluster.port.release()
        await partition.wait_abandoned()
        assert isinstance(answers[0], NotOwner)
        assert isinstance(append(partition, batch(records=1))[0], NotOwner)


async def test_without_the_lease_a_durable_own_batch_is_not_acknowledged():
    held = [True]
    async with started_cluster() as cluster:
        await create_streams(cluster.metadata, [NAME], 1)
        partition, _ = await own(cluster, lambda: held[0])
        await all_of(append(partition, batch(records=1)))
        cluster.port.hold()
        answers = append(partition, batch(records=1))
        held[0] = False
        cluster.port.release()
        assert isinstance((await all_of(answers))[0], NotOwner)
        held[0] = True
        await partition.close()


async def test_a_state_that_cannot_be_loaded_begins_no_ownership():
    async with started_cluster() as cluster:
        await create_streams(cluster.metadata, [NAME], 1)
        partition, log = await own(cluster)
        log.state.fails = True
        partition.open()
        await asyncio.sleep(60)
        assert (partition.readable, log.events) == (False, [])
        log.state.fails = False
        await partition.ensure_readable()
        assert log.events == [(0, 0)]
        await partition.close()


async def test_clients_append_nothing_to_a_log_of_the_brokers_own():
    async with started_cluster() as cluster:
        await create_streams(cluster.metadata, [NAME], 1)
        partition, _ = await own(cluster)
        [answer] = cluster.send(partition, batch())
        assert answer.error is ErrorCode.invalid_topic_exception
        assert partition.high_watermark == 0
        await partition.close()
