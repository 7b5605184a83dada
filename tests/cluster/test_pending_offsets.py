"""Goal: offsets in a transaction stay pending over the kill of their group's coordinator, and end
with their transaction in every group, exactly once; plain fetches see committed offsets only.

Method: ZooKeeper, a bookie and two gateways as processes. The
coordinator of the transaction is gateway 0. Groups are on both gateways; gateway 1 is killed, or
stopped past its session, at a named point. The requests of protocol 1 are sent one by one.
"""

from __future__ import annotations

import itertools
import socket

import pytest

from gateway.wire.messages import encode_request
from tests.cluster.test_transactions_between_gateways import WAIT_S_MAX, Producer, pair
from tests.gateway.test_dev import ask
from tests.peers.processes import wait_until

__all__ = ["pair"]

pytestmark = pytest.mark.proof

OFFSET_COMMIT, OFFSET_FETCH, FIND_COORDINATOR = 8, 9, 10
ADD_OFFSETS, TXN_OFFSET_COMMIT = 25, 28
UNSTABLE = 88
NAMES = itertools.count()


def group_of(gateways, node):
    """Return the name of a group whose coordinator is this gateway."""

    def found():
        name = f"group-{next(NAMES)}"
        body = {"key_type": 0, "coordinator_keys": [name]}
        (row,) = ask(gateways[node].port, FIND_COORDINATOR, 4, body).coordinators
        return name if not row.error_code and row.node_id == node else None

    return wait_until(found, f"a group of gateway {node}", WAIT_S_MAX)


def until_done(gateway, key, version, body, code_of):
    def done():
        reply = ask(gateway.port, key, version, body)
        return None if code_of(reply) else (reply,)

    return wait_until(done, f"key {key} to succeed", WAIT_S_MAX, pause_s=0.1)[0]


def rows_of(offset):
    row = {"partition_index": 0, "committed_offset": offset, "committed_metadata": ""}
    return [{"name": "t", "partitions": [row]}]


def first_code(reply):
    return reply.topics[0].partitions[0].error_code


def commit(gateway, group, offset):
    body = {"group_id": group, "topics": rows_of(offset)}
    body |= {"generation_id_or_member_epoch": -1, "member_id": ""}
    until_done(gateway, OFFSET_COMMIT, 8, body, first_code)


def begin(producer, group):
    """Add the group to the transaction."""
    body = {"transactional_id": producer.name, "producer_id": producer.producer_id}
    body |= {"producer_epoch": producer.epoch, "group_id": group}
    gateway = producer.gateways[producer.node]
    until_done(gateway, ADD_OFFSETS, 3, body, lambda reply: reply.error_code)


def pending_body(producer, group, offset):
    body = {"transactional_id": producer.name, "producer_id": producer.producer_id}
    body |= {"producer_epoch": producer.epoch, "group_id": group, "topics": rows_of(offset)}
    return body | {"generation_id": -1, "member_id": ""}


def pend(producer, gateway, group, offset):
    begin(producer, group)
    body = pending_body(producer, group, offset)
    until_done(gateway, TXN_OFFSET_COMMIT, 3, body, first_code)


def fetched(gateway, group, *, stable):
    """Return the offset and the code of an OffsetFetch; None while no coordinator answers."""
    body = {"group_id": group, "topics": [{"name": "t", "partition_indexes": [0]}]}
    reply = ask(gateway.port, OFFSET_FETCH, 7, body | {"require_stable": stable})
    row = reply.topics[0].partitions[0]
    return None if reply.error_code else (row.committed_offset, row.error_code)


def expect(gateway, group, committed, *, pending):
    """Wait for the coordinator of the group, whose first answer must be this one."""
    for stable in (True, False):
        answer = wait_until(
            lambda how=stable: fetched(gateway, group, stable=how),
            "the coordinator of the group",
            WAIT_S_MAX,
            pause_s=0.1,
        )
        assert answer == ((-1, UNSTABLE) if stable and pending else (committed, 0))


@pytest.mark.parametrize(("ends", "after"), [(True, 7), (False, 2)])
def test_the_coordinator_of_the_group_is_killed_while_its_offset_is_pending(pair, ends, after):
    producer, group = Producer(pair, 0), group_of(pair, 1)
    commit(pair[1], group, 2)
    pend(producer, pair[1], group, 7)
    expect(pair[1], group, 2, pending=True)
    pair[1].kill()
    expect(pair[0], group, 2, pending=True)
    producer.end(commit=ends)
    producer.wait_ended("CompleteCommit" if ends else "CompleteAbort")
    expect(pair[0], group, after, pending=False)


def test_the_coordinator_of_the_group_is_killed_before_its_reply(pair):
    producer, group = Producer(pair, 0), group_of(pair, 1)
    commit(pair[1], group, 2)
    begin(producer, group)
    body = pending_body(producer, group, 7)
    frame = encode_request(TXN_OFFSET_COMMIT, 3, 1, "test", body)
    with socket.create_connection(("127.0.0.1", pair[1].port), timeout=WAIT_S_MAX) as peer:
        peer.sendall(len(frame).to_bytes(4, "big") + frame)
        pair[1].kill()
    pend(producer, pair[0], group, 7)  # the client tries again
    expect(pair[0], group, 2, pending=True)
    producer.end()
    producer.wait_ended("CompleteCommit")
    expect(pair[0], group, 7, pending=False)


def test_one_of_two_coordinators_is_killed_between_prepare_and_its_marker(pair):
    producer = Producer(pair, 0)
    places = [(0, group_of(pair, 0)), (1, group_of(pair, 1))]
    for node, group in places:
        commit(pair[node], group, 2)
        pend(producer, pair[node], group, 7 + node)
    pair[1].pause()
    producer.end()
    assert producer.state == "PrepareCommit"
    pair[1].kill()
    producer.wait_ended("CompleteCommit")
    for node, group in places:
        expect(pair[0], group, 7 + node, pending=False)


def test_a_coordinator_that_slept_past_its_session_ends_no_later_transaction(pair):
    producer, group = Producer(pair, 0), group_of(pair, 1)
    commit(pair[1], group, 2)
    pend(producer, pair[1], group, 7)
    pair[1].pause()
    producer.end()
    producer.wait_ended("CompleteCommit")  # once its session ended and its group was taken over
    pend(producer, pair[0], group, 9)
    pair[1].resume()  # it now reads the markers that were sent to it before
    group_of(pair, 1)  # it has joined again
    expect(pair[0], group, 7, pending=True)
    producer.end(commit=False)
    producer.wait_ended("CompleteAbort")
    expect(pair[0], group, 7, pending=False)
