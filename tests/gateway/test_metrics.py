"""Goal: the metrics page tells where partitions and groups stand, in kafka_exporter's names and
labels, at a bounded cost; its port serves that page and nothing else.

Method: the page of a real gateway, read by prometheus_client's parser and compared with what was
done; groups beyond the bounds on virtual time; the port by plain sockets.
"""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import re
import subprocess
import sys
import urllib.request
from contextlib import asynccontextmanager
from urllib.parse import urlsplit

import pytest
from confluent_kafka import TopicPartition
from prometheus_client.parser import text_string_to_metric_families

from gateway.cluster.single_broker import SingleBroker
from gateway.config import MetricsLimits
from gateway.metrics.http import CONNECTIONS_MAX, HEAD_BYTES_MAX, MetricsServer
from gateway.metrics.page import Family, family_text
from tests.gateway.admin_commands import consumer, invoke, produced
from tests.gateway.group_world import World
from tests.peers.gateway import Gateway
from tests.peers.processes import until, wait_until

RECORDS = 10
QUERY = "spark-kafka-relation-0f8fad5b-d9cb-469f-a165-70867728950e-executor"


@pytest.fixture(scope="module")
def gateway(tmp_path_factory):
    options = ["--metrics-port", "0", "--group-initial-rebalance-delay-ms", "0"]
    with Gateway(tmp_path_factory.mktemp("data"), options) as broker:
        assert invoke("topic", "create", "t", "-p", "2", bootstrap=broker.bootstrap)[0] == 0
        for partition in range(2):
            produced(broker, "t", RECORDS, partition)
        yield broker


def url_of(gateway):
    return re.search(r"metrics: (\S+)", gateway.process.output())[1]


def page(gateway):
    with urllib.request.urlopen(url_of(gateway), timeout=10) as answer:
        assert answer.headers["Content-Type"].startswith("text/plain; version=")
        return list(text_string_to_metric_families(answer.read().decode()))


def values(gateway, name, **labels):
    """{the other labels' values, in order of their names: value}."""
    (samples,) = [family.samples for family in page(gateway) if family.name == name]
    return {
        tuple(value for key, value in sorted(each.labels.items()) if key not in labels): each.value
        for each in samples
        if labels.items() <= each.labels.items()
    }


# --- what it says --------------------------------------------------------------------------------


def test_names_and_labels_are_those_of_kafka_exporter(gateway):
    reader = consumer(gateway, "named")
    reader.commit(offsets=[TopicPartition("t", 0, 4)], asynchronous=False)
    reader.close()
    place, group = {"partition", "topic"}, {"consumergroup", "topic"}
    wanted = {
        "kafka_brokers": set(),
        "kafka_topic_partitions": {"topic"},
        "kafka_topic_partition_current_offset": place,
        "kafka_topic_partition_oldest_offset": place,
        "kafka_topic_partition_leader": place,
        "kafka_topic_partition_replicas": place,
        "kafka_topic_partition_in_sync_replica": place,
        "kafka_topic_partition_under_replicated_partition": place,
        "kafka_consumergroup_current_offset": group | {"partition"},
        "kafka_consumergroup_current_offset_sum": group,
        "kafka_consumergroup_lag": group | {"partition"},
        "kafka_consumergroup_lag_sum": group,
        "kafka_consumergroup_members": {"consumergroup"},
    }
    found = {
        family.name: set(family.samples[0].labels)
        for family in page(gateway)
        if family.name.startswith("kafka_") and family.name != "kafka_broker_info"
    }
    assert found == wanted


def test_a_topic_tells_its_partitions_and_where_each_begins_and_ends(gateway):
    assert invoke("topic", "create", "cut", "-p", "2", bootstrap=gateway.bootstrap)[0] == 0
    produced(gateway, "cut", RECORDS, 1)
    cut = ("topic", "truncate", "cut", "--to", "4", "-p", "1", "--yes")
    code, _, errors = invoke(*cut, bootstrap=gateway.bootstrap)
    assert code == 0, errors
    of_topic = {"topic": "cut"}
    assert values(gateway, "kafka_topic_partitions", **of_topic) == {(): 2}
    ends = values(gateway, "kafka_topic_partition_current_offset", **of_topic)
    assert ends[("1",)] == RECORDS
    assert values(gateway, "kafka_topic_partition_oldest_offset", **of_topic)[("1",)] == 4


def test_a_group_lags_by_what_it_has_not_committed(gateway):
    reader = consumer(gateway, "lagging")
    at = [TopicPartition("t", 0, 4), TopicPartition("t", 1, RECORDS)]
    reader.commit(offsets=at, asynchronous=False)
    reader.close()
    of_group = {"consumergroup": "lagging"}
    offsets = values(gateway, "kafka_consumergroup_current_offset", **of_group)
    assert offsets == {("0", "t"): 4, ("1", "t"): RECORDS}
    lags = values(gateway, "kafka_consumergroup_lag", **of_group)
    assert lags == {("0", "t"): RECORDS - 4, ("1", "t"): 0}
    assert values(gateway, "kafka_consumergroup_lag_sum", **of_group) == {("t",): RECORDS - 4}
    assert values(gateway, "kafka_consumergroup_members", **of_group) == {(): 0}


def test_a_group_with_a_member_says_so(gateway):
    reader = consumer(gateway, "staffed")
    reader.subscribe(["t"])
    wait_until(lambda: reader.poll(0.1) is not None, "the member to read")
    assert values(gateway, "kafka_consumergroup_members", consumergroup="staffed") == {(): 1}
    info = values(gateway, "gateway_consumergroup_info", consumergroup="staffed")
    assert info == {("Stable", "classic"): 1}
    reader.close()


def test_a_read_only_group_lags_by_what_it_has_not_fetched(gateway):
    reader = consumer(gateway, QUERY, f"consumer-{QUERY}-1")
    reader.assign([TopicPartition("t", 0, 0)])
    wait_until(lambda: reader.poll(0.1) is not None, "the query to read")
    of_group = {"consumergroup": QUERY}
    wait_until(
        lambda: values(gateway, "kafka_consumergroup_lag", **of_group) == {("0", "t"): 0},
        "the query to have fetched all",
    )
    reader.close()
    assert values(gateway, "kafka_consumergroup_current_offset", **of_group) == {
        ("0", "t"): RECORDS
    }
    assert values(gateway, "gateway_consumergroup_info", **of_group) == {("Stable", "read-only"): 1}


def test_a_family_of_many_samples_is_described_once():
    samples = [((str(number),), number) for number in range(1_000)]
    text = b"".join(family_text(Family("many", "So many.", ("label",), samples)))
    (family,) = text_string_to_metric_families(text.decode())
    assert [sample.value for sample in family.samples] == list(range(1_000))
    assert text.count(b"# HELP") == text.count(b"# TYPE") == 1


# --- how many groups there may be ----------------------------------------------------------------

REST_S = 120  # a group that nobody asks for is out of memory by then


@asynccontextmanager
async def new_world():
    async with World() as world:
        yield world


async def look(world, **limits):
    """{group: its offset}, and how many are left out."""
    found, left_out = await world.groups.snapshots(MetricsLimits(**limits))
    return {each.name: each.offsets[world.key()].offset for each in found}, left_out


async def commit_all(world, *groups):
    for offset, group in enumerate(groups, 1):
        assert await world.commit(group, offset) == "none"


async def test_groups_that_rest_are_told_too():
    async with new_world() as world:
        await commit_all(world, "a", "b")
        await asyncio.sleep(REST_S)
        assert not world.loaded
        assert await look(world) == ({"a": 1, "b": 2}, 0)
        assert not world.loaded


async def test_a_group_that_was_away_from_its_rest_is_told_as_it_is_now():
    async with new_world() as world:
        await commit_all(world, "a")
        await asyncio.sleep(REST_S)
        assert await look(world) == ({"a": 1}, 0)
        await world.commit("a", 7)
        await asyncio.sleep(REST_S)
        assert await look(world) == ({"a": 7}, 0)


async def test_groups_beyond_the_bound_are_counted_and_those_in_memory_come_first():
    async with new_world() as world:
        await commit_all(world, "a", "b", "c")
        await asyncio.sleep(REST_S)
        await world.commit("c", 9)
        found, left_out = await look(world, groups_max=2)
        assert found.pop("c") == 9
        assert (len(found), left_out) == (1, 1)
        assert await look(world, groups_max=0) == ({}, 3)


async def test_groups_that_rest_with_another_gateway_are_told_there():
    class Elsewhere(SingleBroker):
        """The ring names another gateway for some groups."""

        def candidate(self, group):
            return group != "b"

    async with World() as world:
        await commit_all(world, "a", "b")
        rival = world.rival()
        rival.claims = Elsewhere(1)
        async with rival:
            await rival.groups.list()
            assert await look(rival) == ({"a": 1}, 0)


async def test_few_groups_are_read_for_one_page_and_the_rest_for_the_next():
    async with new_world() as world:
        await commit_all(world, "a", "b", "c")
        await asyncio.sleep(REST_S)
        seen = [await look(world, reads_max=1) for _ in range(3)]
        assert [(len(found), left_out) for found, left_out in seen] == [(1, 2), (2, 1), (3, 0)]


# --- the port ------------------------------------------------------------------------------------


def asked(gateway, method, path):
    place = urlsplit(url_of(gateway))
    connection = http.client.HTTPConnection(place.hostname, place.port, timeout=10)
    connection.request(method, path)
    answer = connection.getresponse()
    return answer.status, answer.headers, answer.read()


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/metrics", 200),
        ("GET", "/metrics?name[]=kafka_brokers", 200),
        ("GET", "/", 404),
        ("GET", "/metrics/x", 404),
        ("POST", "/metrics", 405),
        ("DELETE", "/metrics", 405),
    ],
)
def test_it_answers_get_of_one_path_only(gateway, method, path, status):
    assert asked(gateway, method, path)[0] == status


def test_head_has_the_length_and_no_page(gateway):
    status, headers, body = asked(gateway, "HEAD", "/metrics")
    assert (status, body) == (200, b"")
    assert int(headers["Content-Length"]) > 1_000


@asynccontextmanager
async def open_port():
    """A port whose page is never asked for."""
    server = MetricsServer(None)
    await server.start("127.0.0.1", 0)
    async with asyncio.timeout(30):
        yield server
        await server.stop()


@pytest.mark.real_loop
@pytest.mark.parametrize("said", [b"\0" * 100, b"x" * (HEAD_BYTES_MAX + 1), b"GET /metrics"])
async def test_who_speaks_no_http_is_cut_off(said):
    async with open_port() as server:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(said)
        writer.write_eof()
        assert b"200" not in await reader.read()
        writer.close()


@pytest.mark.real_loop
async def test_one_connection_too_many_is_closed_and_room_is_made_again():
    async with open_port() as server:
        waiting = [
            await asyncio.open_connection("127.0.0.1", server.port) for _ in range(CONNECTIONS_MAX)
        ]
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        assert await reader.read() == b""
        writer.close()
        for _, writer in waiting:
            writer.write(b"GET / HTTP/1.1\r\n\r\n")
        for reader, writer in waiting:
            assert b" 404 " in await reader.read()
            writer.close()


@pytest.mark.real_loop
async def test_stopping_ends_connections_that_wait():
    async with open_port() as server:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        await asyncio.sleep(0)
        await server.stop()
        assert await reader.read() == b""
        writer.close()


@pytest.mark.real_loop
async def test_who_asks_and_does_not_read_is_cut_off_and_nothing_is_kept_for_it(monkeypatch):
    monkeypatch.setattr("gateway.metrics.http.ANSWER_S_MAX", 0.1)
    size = 32 * 1024 * 1024  # more than sockets hold

    class Large(MetricsServer):
        async def _answer(self, head):
            return bytes(size)

    server = Large(None)
    await server.start("127.0.0.1", 0)
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    await until(lambda: server._serving, "the connection to be served")
    (serving,) = server._serving
    writer.write(b"GET /metrics HTTP/1.1\r\n\r\n")
    await reader.readexactly(1)
    monkeypatch.setattr("gateway.metrics.http.HEAD_S_MAX", 0.1)  # the time to close, too
    async with asyncio.timeout(20):
        await asyncio.wait([serving])
    received = 1
    with contextlib.suppress(ConnectionError):
        while piece := await reader.read(1024 * 1024):
            received += len(piece)
    assert received < size
    writer.close()
    await server.stop()


def test_a_port_that_is_taken_is_a_fault_of_the_configuration(gateway, tmp_path):
    taken = str(urlsplit(url_of(gateway)).port)
    words = ("--port", "0", "--data", str(tmp_path / "data"), "--metrics-port", taken)
    done = subprocess.run(
        [sys.executable, "-m", "gateway", "dev", *words], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 78
    assert f"metrics-port {taken}: cannot listen there" in done.stderr
