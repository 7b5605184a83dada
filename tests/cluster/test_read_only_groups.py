"""Goal: over several gateways a query of Spark is one group, and each position and each lag is told
once.

Method: two real gateways, ZooKeeper and three bookies; a consumer that calls itself as Spark's
executors do reads partitions of both, another one commits; commands and metrics pages are compared
with what was written.
"""

from __future__ import annotations

import contextlib
import json
import re
import urllib.request
from collections import Counter

import pytest
from confluent_kafka import TopicPartition
from prometheus_client.parser import text_string_to_metric_families

from tests.cluster.world import World
from tests.gateway.admin_commands import consumer, invoke, produced
from tests.peers.gateway import Gateways
from tests.peers.processes import TookTooLong, wait_until

QUERY = "spark-kafka-source-0f8fad5b-d9cb-469f-a165-70867728950e--12345-executor"
COMMITTED = "committed"
PARTITIONS = range(6)
RECORDS = 10


@pytest.fixture(scope="module")
def gateways(tmp_path_factory):
    """Both lead partitions of topic `t`; the query has read all, and the group a part of each."""
    directory = tmp_path_factory.mktemp("cluster")
    with World(directory, 3, proxied=False) as world:
        servers, options = world.zookeeper.servers, ["--metrics-port", "0"]
        started = Gateways(directory, servers, 2, options, session_ms=20_000).start()
        try:
            create = ("topic", "create", "t", "-p", str(len(PARTITIONS)))
            assert invoke(*create, bootstrap=started.bootstrap)[0] == 0
            for index in PARTITIONS:
                produced(started[0], "t", RECORDS, index)
            read_all(started)
            reader = consumer(started[0], COMMITTED)
            at = [TopicPartition("t", index, index) for index in PARTITIONS]
            reader.commit(offsets=at, asynchronous=False)
            reader.close()
            yield started
        finally:
            started.kill()


def read_all(gateways):
    """The consumer has asked for what comes after the last record of each partition."""
    reader = consumer(gateways[1], QUERY, f"consumer-{QUERY}-1")
    reader.assign([TopicPartition("t", index, 0) for index in PARTITIONS])
    left = Counter(dict.fromkeys(PARTITIONS, RECORDS))

    def all_is_read():
        for record in reader.consume(100, 0.1):
            left[record.partition()] -= 1
        return left.total() == 0 and set(described(gateways, QUERY).values()) == {(RECORDS, 0)}

    wait_until(all_is_read, "the query to read all", 60.0)
    reader.close()


def described(gateways, group):
    """{partition: (offset, lag)}; nothing while there is no such group."""
    words = ("group", "describe", group, "-o", "json")
    code, out, _ = invoke(*words, bootstrap=gateways.bootstrap)
    rows = json.loads(out) if code == 0 else []
    return {row["partition"]: (row["current_offset"], row["lag"]) for row in rows}


def told(gateways, name, group):
    """What each gateway's page says of the group: [{partition: value}]."""
    found = []
    for gateway in gateways:
        url = re.search(r"metrics: (\S+)", gateway.output())[1]
        text = urllib.request.urlopen(url, timeout=60).read().decode()
        samples = [
            each
            for family in text_string_to_metric_families(text)
            if family.name == name
            for each in family.samples
            if each.labels["consumergroup"] == group
        ]
        found.append({int(each.labels["partition"]): each.value for each in samples})
    return found


def assert_soon(look, wanted):
    """Look until that is found, at most a minute: a gateway that stood still may answer late."""
    looks = []

    def found():
        with contextlib.suppress(OSError):
            looks.append(look())
        return looks[-1:] == [wanted]

    with contextlib.suppress(TookTooLong):
        wait_until(found, "the wanted", 60.0, pause_s=0.2)
    assert looks[-1] == wanted


@pytest.mark.parametrize("node_id", [0, 1])
def test_whichever_gateway_is_asked_the_query_is_told_whole(gateways, node_id):
    wanted = dict.fromkeys(PARTITIONS, (RECORDS, 0))
    assert_soon(lambda: described(gateways[node_id], QUERY), wanted)


def test_the_query_is_listed_once(gateways):
    def types():
        _, out, _ = invoke("group", "list", "-o", "json", bootstrap=gateways.bootstrap)
        return {row["group"]: row["type"] for row in json.loads(out or "[]")}

    assert_soon(types, {QUERY: "read-only", COMMITTED: "classic"})


def test_each_gateway_tells_of_the_query_what_it_serves(gateways):
    def parted():
        first, second = told(gateways, "kafka_consumergroup_lag", QUERY)
        both = first.keys() & second.keys()
        return bool(first), bool(second), both, first | second

    assert_soon(parted, (True, True, set(), dict.fromkeys(PARTITIONS, 0)))


def test_whoever_coordinates_a_group_tells_its_lag_also_where_others_lead(gateways):
    def pages():
        return sorted(told(gateways, "kafka_consumergroup_lag", COMMITTED), key=len)

    assert_soon(pages, [{}, {index: RECORDS - index for index in PARTITIONS}])
