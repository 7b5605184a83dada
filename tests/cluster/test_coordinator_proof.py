"""Goal: a coordinator that takes over sends its markers about as soon as a plain partition of the
dead owner takes a write, and one gateway coordinates 100,000 ids within 200 MB.

Method: ZooKeeper, a bookie and three gateways as processes. 1,000 transactions of one coordinator
cannot end, because a gateway with one of their partitions stands still. The coordinator is killed.
A second marker then arrives in a partition of the third gateway. For the memory, 100,000 ids of an
embedded gateway have an open transaction each, and a fresh gateway is compared with it.
"""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Iterator

import pytest

from gateway.core.topic_names import TRANSACTION_STATE
from gateway.wire.messages import decode_response, encode_request
from tests.batches import plain_batch
from tests.cluster.gateway_pair import create, shown
from tests.cluster.test_transactions_between_gateways import added, produced
from tests.cluster.world import World
from tests.compat.differential.connection import Connection
from tests.gateway.test_dev import ask
from tests.peers.gateway import Gateway, Gateways
from tests.peers.processes import wait_until

pytestmark = [pytest.mark.proof, pytest.mark.timeout(900)]

PRODUCE, LIST_OFFSETS, FIND_COORDINATOR, INIT_PRODUCER_ID = 0, 2, 10, 22
ADD_PARTITIONS, END_TXN, LIST = 24, 26, 66
OPTIONS = ("--preview-transactions", "--replication-factor", "1")
TRANSACTIONS, IDS = 1_000, 100_000
PARTITIONS, PLAIN_PARTITIONS = 12, 24
AT_ONCE = 200  # requests without an answer on one connection
WAIT_S_MAX = 120.0
SESSION_MS = 60_000  # so that the gateway that stands still keeps its partitions
MEMORY_BYTES_MAX = 200_000_000


class Client:
    """One connection with many requests without an answer."""

    def __init__(self, port):
        self.connection = Connection(("127.0.0.1", port))

    def each(self, key, version, bodies):
        """Send all requests, and yield their answers in order."""
        waiting = 0
        for body in bodies:
            self.connection.send(encode_request(key, version, 7, None, body))
            waiting += 1
            if waiting == AT_ONCE:
                yield self.answer(key, version)
                waiting -= 1
        for _ in range(waiting):
            yield self.answer(key, version)

    def answer(self, key, version):
        return decode_response(key, version, self.connection.receive()).body


def coordinated_by(gateways, node) -> Iterator[str]:
    """Yield names of ids whose coordinator is this gateway."""
    for first in range(0, 1_000_000, 1_000):
        names = [f"id-{first + number}" for number in range(1_000)]
        body = {"key_type": 1, "coordinator_keys": names}
        for found in ask(gateways[node].port, FIND_COORDINATOR, 4, body).coordinators:
            if not found.error_code and found.node_id == node:
                yield found.key


def begin(client, names, places):
    """Begin a transaction of each id with these partitions. Returns the fields of its end."""
    bodies = (
        {"transactional_id": name, "transaction_timeout": 600_000, "producer_id": -1}
        | {"producer_epoch": -1}
        for name in names
    )
    refs = []
    for name, found in zip(names, client.each(INIT_PRODUCER_ID, 4, bodies), strict=True):
        assert not found.error_code, found
        ref = {"transactional_id": name, "producer_id": found.producer_id}
        refs.append({**ref, "producer_epoch": found.producer_epoch})
    topics = [{"name": topic, "partitions": [index]} for topic, index in places]
    bodies = (
        {f"v3_and_below_{field}": value for field, value in ref.items()}
        | {"v3_and_below_topics": topics}
        for ref in refs
    )
    assert not any(map(added, client.each(ADD_PARTITIONS, 3, bodies)))
    return refs


class Probe(threading.Thread):
    """Asks in a loop whether something happened, and notes when it did."""

    def __init__(self, happened):
        super().__init__(daemon=True)
        self.happened, self.at_s, self.ended = happened, None, False

    def run(self):
        while not self.ended:
            if self.happened():
                self.at_s = time.monotonic()
                return


def takes_write(port, index):
    batch = plain_batch([1])
    rows = [{"index": index, "records": batch}]
    body = {"transactional_id": None, "acks": -1, "timeout": 1_000}
    body |= {"topic_data": [{"name": "plain", "partition_data": rows}]}
    return lambda: not produced(ask(port, PRODUCE, 9, body))


def end_at(gateway, index):
    """Return the high watermark of a partition of `t` that this gateway leads."""
    rows = [{"partition_index": index, "timestamp": -1, "current_leader_epoch": -1}]
    body = {"replica_id": -1, "isolation_level": 0}
    body |= {"topics": [{"name": "t", "partitions": rows}]}
    (row,) = ask(gateway.port, LIST_OFFSETS, 6, body).topics[0].partitions
    assert not row.error_code, row
    return row.offset


@pytest.fixture
def three(tmp_path):
    world = World(tmp_path / "world", bookies=1, proxied=False)
    world.start()
    gateways = Gateways(tmp_path, world.zookeeper.servers, 3, OPTIONS, session_ms=SESSION_MS)
    try:
        gateways.start()
        create(gateways[0], "t", PARTITIONS)
        create(gateways[0], "plain", PLAIN_PARTITIONS)
        next(coordinated_by(gateways, 0), None)
        for topic in ("t", "plain", TRANSACTION_STATE):
            wait_until(lambda name=topic: all_lead(gateways, name), "three leaders", WAIT_S_MAX)
        yield gateways
    finally:
        gateways.kill()
        world.stop()


def all_lead(gateways, topic):
    return all({node for node, _ in shown(each, topic)} == {0, 1, 2} for each in gateways)


def led_by(gateways, topic, node):
    return [at for at, (leader, _) in enumerate(shown(gateways[1], topic)) if leader == node]


def prepared(gateway):
    """Return the prepared transactions of a gateway, or all if it cannot tell."""
    filters = {"state_filters": ["PrepareCommit"], "producer_id_filters": [], "duration_filter": -1}
    reply = ask(gateway.port, LIST, 1, filters)
    return TRANSACTIONS if reply.error_code else len(reply.transaction_states)


def test_a_takeover_sends_its_first_marker_about_when_a_plain_partition_takes_a_write(three):
    dead, heir, still = three
    heard, unheard = led_by(three, "t", 1)[0], led_by(three, "t", 2)[0]
    names = [name for name, _ in zip(coordinated_by(three, 0), range(TRANSACTIONS), strict=False)]
    client = Client(dead.port)
    refs = begin(client, names, [("t", heard), ("t", unheard)])
    still.pause()
    ends = client.each(END_TXN, 3, ({**ref, "committed": True} for ref in refs))
    assert not any(found.error_code for found in ends)
    client.connection.close()
    wait_until(lambda: end_at(heir, heard) == TRANSACTIONS, "the markers", WAIT_S_MAX)
    plain = led_by(three, "plain", 0)
    assert len(plain) > 1
    writes = [Probe(takes_write(heir.port, index)) for index in plain]
    marker = Probe(lambda: end_at(heir, heard) > TRANSACTIONS)
    for probe in (marker, *writes):
        probe.start()
    killed_s = time.monotonic()
    dead.kill()
    marker.join(WAIT_S_MAX)
    wait_until(lambda: any(each.at_s for each in writes), "a write", WAIT_S_MAX)
    still.resume()
    for probe in writes:
        probe.join(WAIT_S_MAX)
    wait_until(lambda: prepared(heir) + prepared(still) == 0, "the last marker", WAIT_S_MAX)
    loads = [float(each) for each in re.findall(r"load_ms=([\d.]+)", heir.output())]
    taken = sorted(round(each.at_s - killed_s, 3) for each in writes)
    assert marker.at_s is not None, "no marker was sent again"
    first = round(marker.at_s - killed_s, 3)
    print(
        f"takeover of {TRANSACTIONS} prepared transactions: first marker {first} s, "
        f"plain partitions {taken} s, loads of {len(loads)} maps {sum(loads)} ms"
    )
    assert first <= taken[-1] + sum(loads) / 1000


def test_one_gateway_coordinates_100_000_ids_within_200_mb(tmp_path):
    with Gateway(tmp_path / "data", ["--preview-transactions"]) as gateway:
        create(gateway, "t", 1)
        body = {"key_type": 1, "coordinator_keys": ["id"]}
        wait_until(
            lambda: not ask(gateway.port, FIND_COORDINATOR, 4, body).coordinators[0].error_code,
            "the log of transactions",
            WAIT_S_MAX,
        )
        client = Client(gateway.port)
        begin(client, ["first"], [("t", 0)])
        before = gateway.memory_bytes()
        begun_s = time.monotonic()
        for first in range(0, IDS, 10_000):
            begin(client, [f"id-{first + number}" for number in range(10_000)], [("t", 0)])
        took_s = time.monotonic() - begun_s
        more = gateway.memory_bytes() - before
        client.connection.close()
        print(
            f"{IDS} ids with an open transaction: {more / 1e6:.0f} MB more than the "
            f"{before / 1e6:.0f} MB of a fresh gateway, in {took_s:.0f} s"
        )
        assert more <= MEMORY_BYTES_MAX
