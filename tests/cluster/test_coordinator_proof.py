"""Goal: a coordinator that takes over sends its markers again, and one gateway coordinates 100,000
ids within 200 MB. The time until the first marker is printed beside that of the next plain write.

Method: ZooKeeper, a bookie and three gateways as processes. 1,000 transactions of one coordinator
cannot end, because a gateway with one of their partitions stands still. The coordinator is killed.
A second marker then arrives in a partition of the third gateway. For the memory, 100,000 ids of an
embedded gateway have an open transaction each. It is killed, so that its caches are empty, and
compared with a fresh gateway once it has loaded all ids.
"""

from __future__ import annotations

import os
import re
import signal
import threading
import time
from collections import deque
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
OPTIONS = ("--replication-factor", "1")
TRANSACTIONS, IDS = 1_000, 100_000
PARTITIONS, PLAIN_PARTITIONS = 12, 24
AT_ONCE = 200  # requests without an answer
WAIT_S_MAX = 120.0
SESSION_MS = 60_000  # so that the gateway that stands still keeps its partitions
MEMORY_BYTES_MAX = 200_000_000


class Client:
    """Many connections, each with one request at a time, because a broker answers in order."""

    def __init__(self, port):
        self.connections = [Connection(("127.0.0.1", port)) for _ in range(AT_ONCE)]

    def each(self, key, version, bodies):
        """Send all requests, and yield their answers in order."""
        waiting = deque()
        free = deque(self.connections)
        for body in bodies:
            if not free:
                yield self.answer(key, version, waiting, free)
            waiting.append(free.popleft())
            waiting[-1].send(encode_request(key, version, 7, None, body))
        while waiting:
            yield self.answer(key, version, waiting, free)

    def answer(self, key, version, waiting, free):
        free.append(waiting.popleft())
        return decode_response(key, version, free[-1].receive()).body

    def close(self):
        for each in self.connections:
            each.close()


def coordinated_by(gateways, node) -> Iterator[str]:
    """Yield names of ids whose coordinator is this gateway."""
    for first in range(0, 1_000_000, 1_000):
        names = [f"id-{first + number}" for number in range(1_000)]
        body = {"key_type": 1, "coordinator_keys": names}
        for found in ask(gateways[node].port, FIND_COORDINATOR, 4, body).coordinators:
            if not found.error_code and found.node_id == node:
                yield found.key


def all_coordinated(gateway):
    """Return whether every partition of the log has a coordinator that answers."""
    body = {"key_type": 1, "coordinator_keys": [f"id-{number}" for number in range(1_000)]}
    return not any(
        found.error_code for found in ask(gateway.port, FIND_COORDINATOR, 4, body).coordinators
    )


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
    """Asks one gateway in a loop whether something happened, and notes when it did."""

    def __init__(self, port, key, version, body, happened):
        super().__init__(daemon=True)
        self.at_s = None
        self.ended = False
        self._asked = (key, version)
        self._frame = encode_request(key, version, 7, None, body)
        self._happened = happened
        self._connection = Connection(("127.0.0.1", port))

    def run(self):
        while self.at_s is None and not self.ended:
            self._connection.send(self._frame)
            reply = decode_response(*self._asked, self._connection.receive()).body
            if self._happened(reply):
                self.at_s = time.monotonic()
        self._connection.close()


def write_probe(port, index):
    """Return a probe for the first write that a partition of `plain` takes."""
    rows = [{"index": index, "records": plain_batch([1])}]
    body = {"transactional_id": None, "acks": -1, "timeout": 1_000}
    body |= {"topic_data": [{"name": "plain", "partition_data": rows}]}
    return Probe(port, PRODUCE, 9, body, lambda reply: not produced(reply))


def end_probe(port, index, end):
    """Return a probe for the first record of a partition of `t` behind this offset."""

    def is_longer(reply):
        (row,) = reply.topics[0].partitions
        return not row.error_code and row.offset > end

    return Probe(port, LIST_OFFSETS, 6, end_of(index), is_longer)


def end_of(index):
    rows = [{"partition_index": index, "timestamp": -1, "current_leader_epoch": -1}]
    body = {"replica_id": -1, "isolation_level": 0}
    return body | {"topics": [{"name": "t", "partitions": rows}]}


def end_at(gateway, index):
    """Return the high watermark of a partition of `t`, or -1 if this gateway does not answer."""
    (row,) = ask(gateway.port, LIST_OFFSETS, 6, end_of(index)).topics[0].partitions
    return -1 if row.error_code else row.offset


@pytest.fixture
def three(tmp_path):
    world = World(tmp_path / "world", bookies=1, proxied=False)
    world.start()
    gateways = Gateways(tmp_path, world.zookeeper.servers, 3, OPTIONS, session_ms=SESSION_MS)
    try:
        gateways.start()
        create(gateways[0], "t", PARTITIONS)
        create(gateways[0], "plain", PLAIN_PARTITIONS)
        wait_until(lambda: all(map(all_coordinated, gateways)), "all coordinators", WAIT_S_MAX)
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


def test_a_takeover_ends_all_prepared_transactions_of_the_dead_coordinator(three):
    dead, heir, still = three
    heard, unheard = led_by(three, "t", 1)[0], led_by(three, "t", 2)[0]
    names = [name for name, _ in zip(coordinated_by(three, 0), range(TRANSACTIONS), strict=False)]
    client = Client(dead.port)
    refs = begin(client, names, [("t", heard), ("t", unheard)])
    still.pause()
    ends = client.each(END_TXN, 3, ({**ref, "committed": True} for ref in refs))
    assert not any(found.error_code for found in ends)
    client.close()
    wait_until(lambda: end_at(heir, heard) == TRANSACTIONS, "the markers", WAIT_S_MAX)
    plain = led_by(three, "plain", 0)
    for index in plain:  # an open segment, which the next owner has to recover
        before = write_probe(dead.port, index)
        before.start()
        before.join(WAIT_S_MAX)
    writes = [write_probe(heir.port, index) for index in plain]
    marker = end_probe(heir.port, heard, TRANSACTIONS)
    for probe in (marker, *writes):
        probe.start()
    killed_s = time.monotonic()
    os.kill(dead.process.pid, signal.SIGKILL)  # its child closes its session at once
    marker.join(WAIT_S_MAX)
    wait_until(lambda: any(each.at_s for each in writes), "a write", WAIT_S_MAX)
    taken = sorted(round(each.at_s - killed_s, 3) for each in writes if each.at_s)
    still.resume()
    wait_until(lambda: prepared(heir) + prepared(still) == 0, "the last marker", WAIT_S_MAX)
    for each in writes:
        each.ended = True
    # The gateway that stands still takes some of the partitions over; they are not compared.
    loads = [float(each) for each in re.findall(r"load_ms=([\d.]+)", heir.output())]
    assert marker.at_s is not None, "no marker was sent again"
    first = round(marker.at_s - killed_s, 3)
    print(
        f"takeover of {TRANSACTIONS} prepared transactions: first marker {first} s, "
        f"plain partitions {taken} s, loads of {len(loads)} maps {sum(loads):.0f} ms"
    )


def test_one_gateway_coordinates_100_000_ids_within_200_mb(tmp_path):
    with Gateway(tmp_path / "data") as gateway:
        create(gateway, "t", 1)
        wait_until(lambda: all_coordinated(gateway), "all coordinators", WAIT_S_MAX)
        client = Client(gateway.port)
        begin(client, ["first"], [("t", 0)])
        before = gateway.process.memory_bytes()
        begun_s = time.monotonic()
        for first in range(0, IDS, 10_000):
            begin(client, [f"id-{first + number}" for number in range(10_000)], [("t", 0)])
        took_s = time.monotonic() - begun_s
        written = gateway.process.memory_bytes() - before
        client.close()
        gateway.restart(kill=True)
        wait_until(lambda: all_coordinated(gateway), "all coordinators", WAIT_S_MAX)
        loaded = gateway.process.memory_bytes() - before
        print(
            f"{IDS} ids with an open transaction: {loaded / 1e6:.0f} MB more than the "
            f"{before / 1e6:.0f} MB of a fresh gateway after a restart, and {written / 1e6:.0f} MB "
            f"more before it, with caches of all that was written in {took_s:.0f} s"
        )
        assert loaded <= MEMORY_BYTES_MAX
