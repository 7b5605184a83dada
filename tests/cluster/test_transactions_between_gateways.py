"""Goal: a transaction over partitions of two gateways ends in all of them, exactly once, while one
of them moves to another gateway, is killed, or loses the topic between Prepare and the markers.

Method: ZooKeeper, a bookie and two gateways as processes. The
requests of a protocol 1 producer are sent one by one. To stop between Prepare and the marker, the
gateway that owns a partition is stopped by SIGSTOP before EndTxn is sent to the coordinator.
"""

from __future__ import annotations

import itertools

import pytest

from tests.batches import plain_batch
from tests.cluster.gateway_pair import create, led, shown
from tests.cluster.world import World
from tests.gateway.test_dev import ask
from tests.peers.gateway import Gateways
from tests.peers.processes import wait_until

pytestmark = pytest.mark.proof

OPTIONS = ("--replication-factor", "1")
PRODUCE, LIST_OFFSETS, FIND_COORDINATOR, DELETE_TOPICS, INIT_PRODUCER_ID = 0, 2, 10, 20, 22
ADD_PARTITIONS, END_TXN, DESCRIBE_TRANSACTIONS = 24, 26, 65
PARTITIONS = 4
WAIT_S_MAX = 90.0
TRANSACTIONAL = 0x10
COMMITTED, UNCOMMITTED = 1, 0
IDS = itertools.count()


@pytest.fixture
def pair(tmp_path):
    """Two gateways that share the partitions of the topic `t` and the transaction log."""
    world = World(tmp_path / "world", bookies=1, proxied=False)
    world.start()
    gateways = Gateways(tmp_path, world.zookeeper.servers, 2, OPTIONS, session_ms=3_000)
    try:
        gateways.start()
        create(gateways[0], "t", PARTITIONS)
        wait_until(lambda: both_lead(gateways, "t"), "both gateways to lead", WAIT_S_MAX)
        yield gateways
    finally:
        gateways.kill()
        world.stop()


def both_lead(gateways, topic):
    return all({node for node, _ in shown(each, topic)} == {0, 1} for each in gateways) and led(
        gateways[0], topic
    )


class Producer:
    """A producer of protocol 1 whose coordinator is gateway `node`."""

    def __init__(self, gateways, node):
        self.gateways, self.node = gateways, node
        self.name = wait_until(self._find, "an id of this coordinator", WAIT_S_MAX)
        self.sequences = {}
        body = {"transactional_id": self.name, "transaction_timeout": 60_000}
        body |= {"producer_id": -1, "producer_epoch": -1}
        begun = self._until_done(INIT_PRODUCER_ID, 4, body, lambda reply: reply.error_code)
        self.producer_id, self.epoch = begun.producer_id, begun.producer_epoch

    def _find(self):
        name = f"id-{next(IDS)}"
        body = {"key_type": 1, "coordinator_keys": [name]}
        (found,) = ask(self.gateways[self.node].port, FIND_COORDINATOR, 4, body).coordinators
        return name if not found.error_code and found.node_id == self.node else None

    def _until_done(self, key, version, body, code_of, node=None):
        """Send a request until its code is none; the codes here are retriable ones."""

        def done():
            port = self.gateways[self.node if node is None else node].port
            reply = ask(port, key, version, body)
            return None if code_of(reply) else (reply,)

        return wait_until(done, f"key {key} to succeed", WAIT_S_MAX, pause_s=0.1)[0]

    def write(self, topic, *indexes):
        topics = [{"name": topic, "partitions": list(indexes)}]
        body = {
            "v3_and_below_transactional_id": self.name,
            "v3_and_below_producer_id": self.producer_id,
            "v3_and_below_producer_epoch": self.epoch,
            "v3_and_below_topics": topics,
        }
        self._until_done(ADD_PARTITIONS, 3, body, added)
        leaders = dict(enumerate(node for node, _ in shown(self.gateways[self.node], topic)))
        for index in indexes:
            sequence = self.sequences.get((topic, index), 0)
            self.sequences[topic, index] = sequence + 1
            batch = plain_batch(
                [1000],
                producer=self.producer_id,
                epoch=self.epoch,
                sequence=sequence,
                attributes=TRANSACTIONAL,
            )
            rows = [{"index": index, "records": batch}]
            body = {"transactional_id": self.name, "acks": -1, "timeout": 10_000}
            body |= {"topic_data": [{"name": topic, "partition_data": rows}]}
            self._until_done(PRODUCE, 9, body, produced, leaders[index])

    def end(self, *, commit=True):
        """End the transaction. The answer follows Prepare, not the markers."""
        body = {"transactional_id": self.name, "producer_id": self.producer_id}
        body |= {"producer_epoch": self.epoch, "committed": commit}
        self._until_done(END_TXN, 3, body, lambda reply: reply.error_code)

    @property
    def state(self):
        body = {"transactional_ids": [self.name]}
        port = self.gateways[self.node].port
        (row,) = ask(port, DESCRIBE_TRANSACTIONS, 0, body).transaction_states
        return row.transaction_state

    def wait_ended(self, state):
        wait_until(lambda: self.state == state, f"the state {state}", WAIT_S_MAX, pause_s=0.1)


def added(reply):
    topics = reply.results_by_topic_v3_and_below
    return next(
        (
            each.partition_error_code
            for topic in topics
            for each in topic.results_by_partition
            if each.partition_error_code
        ),
        0,
    )


def produced(reply):
    return reply.responses[0].partition_responses[0].error_code


def end_of(gateways, topic, index, isolation):
    """The last stable offset or the high watermark, from the leader; None without one."""
    running = next(each for each in gateways if each.running)
    leader = shown(running, topic)[index][0]
    if leader < 0 or not gateways[leader].running:
        return None
    rows = [{"partition_index": index, "timestamp": -1, "current_leader_epoch": -1}]
    body = {"replica_id": -1, "isolation_level": isolation}
    body |= {"topics": [{"name": topic, "partitions": rows}]}
    (row,) = ask(gateways[leader].port, LIST_OFFSETS, 6, body).topics[0].partitions
    return None if row.error_code else row.offset


def wait_ended_at(gateways, topic, offset, indexes=range(PARTITIONS)):
    """Each partition has exactly these records and markers, and all of them are stable."""
    for index in indexes:
        for isolation in (COMMITTED, UNCOMMITTED):
            wait_until(
                lambda at=index, how=isolation: end_of(gateways, topic, at, how) == offset,
                f"partition {index} to end at {offset}",
                WAIT_S_MAX,
                pause_s=0.1,
            )


def test_transactions_end_in_the_partitions_of_both_gateways(pair):
    producer = Producer(pair, 0)
    for number, commit in enumerate((True, False, True), 1):
        producer.write("t", *range(PARTITIONS))
        producer.end(commit=commit)
        producer.wait_ended("CompleteCommit" if commit else "CompleteAbort")
        ends = [end_of(pair, "t", index, COMMITTED) for index in range(PARTITIONS)]
        assert ends == [2 * number] * PARTITIONS


def test_an_owner_is_killed_between_prepare_and_its_marker(pair):
    producer = Producer(pair, 0)
    producer.write("t", *range(PARTITIONS))
    pair[1].pause()
    producer.end()
    assert producer.state == "PrepareCommit"
    pair[1].kill()
    producer.wait_ended("CompleteCommit")
    wait_ended_at(pair, "t", 2)
    producer.write("t", *range(PARTITIONS))
    producer.end(commit=False)
    producer.wait_ended("CompleteAbort")
    wait_ended_at(pair, "t", 4)


def test_an_owner_that_slept_past_its_session_ends_no_later_transaction(pair):
    producer = Producer(pair, 0)
    producer.write("t", *range(PARTITIONS))
    pair[1].pause()
    producer.end()
    producer.wait_ended("CompleteCommit")  # once its session ended and its partitions moved
    producer.write("t", *range(PARTITIONS))
    pair[1].resume()  # it now reads the markers that were sent to it before
    wait_until(lambda: both_lead(pair, "t"), "both gateways to lead", WAIT_S_MAX)
    for index in range(PARTITIONS):
        wait_until(
            lambda at=index: end_of(pair, "t", at, UNCOMMITTED) == 3, "three records", WAIT_S_MAX
        )
        assert end_of(pair, "t", index, COMMITTED) == 2, "the second transaction is still open"
    producer.end(commit=False)
    wait_ended_at(pair, "t", 4)


def test_a_topic_that_is_deleted_before_its_markers_ends_the_transaction(pair):
    create(pair[0], "gone", PARTITIONS)
    wait_until(lambda: both_lead(pair, "gone"), "both gateways to lead", WAIT_S_MAX)
    producer = Producer(pair, 0)
    producer.write("t", 0)
    producer.write("gone", *range(PARTITIONS))
    pair[1].pause()
    producer.end()
    body = {"topic_names": ["gone"], "timeout": 30_000}
    (deleted,) = ask(pair[0].port, DELETE_TOPICS, 5, body).responses
    assert not deleted.error_code
    pair[1].resume()
    producer.wait_ended("CompleteCommit")
    wait_ended_at(pair, "t", 2, [0])
