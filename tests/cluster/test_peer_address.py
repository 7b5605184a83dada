"""Goal: gateways reach each other where clients cannot send them, as between containers.

Method: two real gateways that name an address to clients at which nobody is found. The metrics page
of the coordinator of a group needs the end offsets of the partitions that the other one leads.
"""

from __future__ import annotations

import re
import urllib.request

import pytest
from confluent_kafka import TopicPartition
from prometheus_client.parser import text_string_to_metric_families

from tests.cluster.world import World
from tests.gateway.admin_commands import consumer, invoke, produced
from tests.peers.gateway import Gateways
from tests.peers.processes import wait_until

GROUP = "readers"
RECORDS = 10
PARTITIONS = range(6)
METRICS = ["--metrics-port", "0"]
NOWHERE = ["--advertised-host", "gateway.invalid"]
LAGS = {index: RECORDS - index for index in PARTITIONS}


@pytest.fixture(scope="module")
def gateways(tmp_path_factory):
    """Two gateways, stopped; the group has read a part of each partition."""
    directory = tmp_path_factory.mktemp("cluster")
    with World(directory, 3, proxied=False) as world:
        servers = world.zookeeper.servers
        stopped = Gateways(directory, servers, 2, METRICS, session_ms=20_000).start()
        try:
            create = ("topic", "create", "t", "-p", str(len(PARTITIONS)))
            assert invoke(*create, bootstrap=stopped.bootstrap)[0] == 0
            for index in PARTITIONS:
                produced(stopped[0], "t", RECORDS, index)
            reader = consumer(stopped[0], GROUP)
            at = [TopicPartition("t", index, index) for index in PARTITIONS]
            reader.commit(offsets=at, asynchronous=False)
            reader.close()
            stopped.stop()
            yield stopped
        finally:
            stopped.kill()


def lags(gateways):
    """What the page of the group's coordinator says."""
    found = {}
    for gateway in gateways:
        url = re.search(r"metrics: (\S+)", gateway.output())[1]
        text = urllib.request.urlopen(url, timeout=60).read().decode()
        found |= {
            int(each.labels["partition"]): int(each.value)
            for family in text_string_to_metric_families(text)
            if family.name == "kafka_consumergroup_lag"
            for each in family.samples
            if each.labels["consumergroup"] == GROUP
        }
    return found


def known(gateways):
    """Whether there are known lags, and whether there are unknown ones."""
    return {lag >= 0 for lag in lags(gateways).values()}


@pytest.mark.parametrize("reachable", [False, True])
def test_the_address_for_gateways_is_used_between_gateways(gateways, reachable):
    peer = ["--peer-host", "127.0.0.1"] if reachable else []
    for gateway in gateways:
        gateway.options = [*METRICS, *NOWHERE, *peer]
    gateways.start()
    try:
        if reachable:
            wait_until(lambda: len(lags(gateways)) == len(LAGS), "the page", 60.0, pause_s=0.2)
            wait_until(lambda: known(gateways) == {True}, "all lags", 60.0, pause_s=0.2)
            wait_until(lambda: lags(gateways) == LAGS, "the right lags", 60.0, pause_s=0.2)
        else:  # the coordinator knows only the end offsets of what it leads itself
            wait_until(lambda: known(gateways) == {False, True}, "lags", 60.0, pause_s=0.2)
            assert lags(gateways) != LAGS
    finally:
        gateways.stop()
