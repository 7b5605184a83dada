"""Goal: the metrics page tells where partitions and groups stand, in kafka_exporter's names and
labels, at a bounded cost; its port serves that page, health and nothing else.

Method: the page of a real gateway, read by prometheus_client's parser and compared with what was
done; groups beyond the bounds on virtual time; the port by plain requests. The limits of a port
are those of the web page, in test_page_limits.py.
"""

from __future__ import annotations

import asyncio
import http.client
import json
import re
import subprocess
import sys
import time
import urllib.error
import urllib.request
from contextlib import asynccontextmanager
from urllib.parse import urlsplit

import pytest
from confluent_kafka import TopicPartition
from prometheus_client.parser import text_string_to_metric_families

from gateway.cluster.single_broker import SingleBroker
from gateway.config import MetricsLimits
from gateway.metrics.process_samples import DECLARED
from gateway.metrics.samples import Samples
from ledger.exposition import Family, family_text
from tests.gateway.admin_commands import consumer, invoke, produced
from tests.gateway.group_world import World
from tests.gateway.stream_cluster import batch, started_cluster
from tests.peers.gateway import Gateway
from tests.peers.processes import wait_until
from tests.steps import counted

RECORDS = 10
STEPS_MAX = 100_000  # about 5 ms
QUERY = "spark-kafka-relation-0f8fad5b-d9cb-469f-a165-70867728950e-executor"


@pytest.fixture(scope="module")
def gateway(tmp_path_factory):
    options = ["--metrics-port", "0", "--http-port", "0", "--group-initial-rebalance-delay-ms", "0"]
    with Gateway(tmp_path_factory.mktemp("data"), options) as broker:
        assert invoke("topic", "create", "t", "-p", "2", bootstrap=broker.bootstrap)[0] == 0
        for partition in range(2):
            produced(broker, "t", RECORDS, partition)
        yield broker


def url_of(gateway):
    return re.search(r"metrics: (\S+)", gateway.process.output())[1]


def page(gateway):
    with urllib.request.urlopen(url_of(gateway), timeout=60) as answer:
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


# --- its own work ----------------------------------------------------------------------------


def test_requests_topics_and_connections_are_counted(gateway):
    def now():
        produces = values(gateway, "gateway_requests", api="Produce", error="NONE")[()]
        written = values(gateway, "gateway_topic_records", topic="t", direction="in")[()]
        received = values(gateway, "gateway_network_bytes", direction="in")[()]
        return produces, written, received

    before = now()
    produced(gateway, "t", 0)
    produced(gateway, "work", RECORDS)
    after = now()
    assert after[0] > before[0]
    assert after[1] == before[1] == 2 * RECORDS
    assert after[2] > before[2]
    assert values(gateway, "gateway_topic_records", topic="work", direction="in") == {(): RECORDS}
    assert values(gateway, "gateway_connections")[()] >= 0
    assert values(gateway, "gateway_connections_refused")[("not-kafka",)] == 0
    assert values(gateway, "gateway_ready") == {(): 1}
    assert values(gateway, "gateway_segments")[()] >= 1


def test_times_are_histograms_with_a_bucket_for_each_bound(gateway):
    produced(gateway, "t", 0)
    families = {family.name: family for family in page(gateway)}
    for name in ("gateway_request_seconds", "gateway_add_seconds", "gateway_takeover_seconds"):
        assert families[name].type == "histogram"
        counts = [each for each in families[name].samples if each.name == f"{name}_count"]
        assert sum(each.value for each in counts) > 0
    buckets = [
        each.labels["le"]
        for each in families["gateway_request_seconds"].samples
        if each.labels.get("api") == "Produce" and "le" in each.labels
    ]
    assert (len(buckets), buckets[0], buckets[-1]) == (15, "0.0005", "+Inf")


def test_the_errors_of_requests_have_kafkas_names(gateway):
    reader = consumer(gateway, "beyond")
    reader.assign([TopicPartition("t", 0, 10_000)])
    reader.poll(1.0)
    reader.close()
    errors = values(gateway, "gateway_requests", api="Fetch")
    assert errors[("OFFSET_OUT_OF_RANGE",)] >= 1


def test_a_group_lags_by_the_age_of_the_first_record_that_it_has_not_read(gateway):
    now_ms = time.time_ns() // 1_000_000
    for number in range(3):  # a batch for each
        produced(gateway, "aged", 1, timestamp=now_ms - 1000 * (300 - 100 * number))
    for group, offset in (("first", 0), ("second", 1), ("done", 3)):
        reader = consumer(gateway, group)
        reader.commit(offsets=[TopicPartition("aged", 0, offset)], asynchronous=False)
        reader.close()

    def lag(group):
        return values(gateway, "gateway_consumergroup_lag_seconds", consumergroup=group)

    assert lag("first") == {("0", "aged"): pytest.approx(300, abs=30)}
    assert lag("second") == {("0", "aged"): pytest.approx(200, abs=30)}
    assert lag("done") == {("0", "aged"): 0}


def test_the_new_families_have_few_samples(gateway):
    new = [
        each
        for family in page(gateway)
        for each in family.samples
        if family.name in {name.removesuffix("_total") for name in DECLARED}
    ]
    assert 500 < len(new) < 2_500  # up to 500 topics and 10,000 lags come on top


def test_the_slowest_requests_have_their_stages(gateway):
    produced(gateway, "t", 0)
    code, out, errors = invoke(
        "slow", "--api", "Produce", "-o", "json", bootstrap=gateway.bootstrap
    )
    assert (code, errors) == (0, "")
    rows = json.loads(out)
    assert 1 <= len(rows) <= 20
    assert [row["total_ms"] for row in rows] == sorted(
        (row["total_ms"] for row in rows), reverse=True
    )
    first = rows[0]
    assert (first["api"], first["error"], first["node_id"]) == ("Produce", "NONE", 0)
    assert first["topic"] in {"t", "work", "aged", "cut", "more"}
    assert first["quorum_ms"] >= 0 <= first["append_ms"]
    assert any(row["journal_ms"] is not None for row in rows)  # its bookies are in the process
    assert first["bytes"] > 0
    stages = ("decode_ms", "append_ms", "journal_ms", "quorum_ms")
    assert sum(first[stage] or 0 for stage in stages) == pytest.approx(first["total_ms"], abs=0.1)
    table = invoke("slow", "-n", "5", bootstrap=gateway.bootstrap)[1].splitlines()
    assert table[0].split()[:4] == ["AT", "GATEWAY", "API", "MS"]
    assert len(table) == 6


def test_a_view_of_top_has_requests_of_half_a_second(gateway):
    reader = consumer(gateway, "slowly")  # its JoinGroup waits for a second member
    reader.subscribe(["t"])
    wait_until(lambda: reader.poll(0.1) is not None, "the member to read")
    code, out, _ = invoke("top", "--once", "-o", "json", bootstrap=gateway.bootstrap)
    reader.close()
    assert code == 0
    (look,) = json.loads(out) if out.startswith("[") else [json.loads(out)]
    assert all(each["total_ms"] >= 500 for each in look["slow"])
    assert len(look["slow"]) <= 10


def test_a_gateway_that_takes_requests_is_healthy(gateway):
    code, out, errors = invoke("health", bootstrap=gateway.bootstrap)
    assert (code, out, errors) == (0, "gateway 0 is ready\n", "")
    code, out, _ = invoke("health", "-o", "json", bootstrap=gateway.bootstrap)
    assert json.loads(out) == {"node_id": 0, "ready": True, "reasons": []}


@pytest.mark.parametrize("command", ["health", "slow"])
def test_without_a_server_there_is_one_line(command):
    code, out, errors = invoke(command)
    assert (code, out, errors.count("\n")) == (69, "", 1)


def test_an_api_that_no_request_has_shows_nothing_and_names_those_that_there_are(gateway):
    produced(gateway, "t", 0)
    code, out, errors = invoke(
        "slow", "--api", "Nonsense", "-o", "json", bootstrap=gateway.bootstrap
    )
    assert (code, json.loads(out)) == (0, [])
    said = re.fullmatch(r".*no request of Nonsense is kept; there are some of (.*)\n", errors)
    assert "Produce" in said[1].split(", ")


def api(gateway, path):
    """Status and object of the API of the page."""
    place = re.search(r"page: (\S+)/", gateway.process.output())[1]
    try:
        with urllib.request.urlopen(f"{place}/api/v1{path}", timeout=60) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as error:
        return error.code, json.load(error)


def test_the_api_has_the_slow_requests_of_the_command(gateway):
    produced(gateway, "more", 1)
    status, found = api(gateway, "/slow?api=Produce&limit=5")
    assert status == 200
    words = ("slow", "--api", "Produce", "-n", "5", "-o", "json")
    assert found["rows"] == json.loads(invoke(*words, bootstrap=gateway.bootstrap)[1])
    assert found["total"] == len(found["rows"]) <= 5
    assert (found["next"], found["silent"]) == (None, [])


def test_each_plot_has_its_history(gateway):
    status, found = api(gateway, "/plots?span=24h")
    assert (status, len(found["plots"])) == (200, 11)
    for plot in found["plots"]:
        status, history = api(gateway, plot["href"].removeprefix("/api/v1"))
        assert (status, history["unit"], history["step_s"]) == (200, plot["unit"], 60)
        assert f"series={history['series']}&" in plot["href"] + "&"


@pytest.mark.parametrize(
    "path",
    [
        "/slow?api=%3Cscript%3E",
        "/slow?cursor=x",
        "/slow?limit=0",
        "/plots?span=2h",
        "/history",
        "/history?series=x",
        "/history?series=bytes_in&span=",
        "/history?series=request_ms&of=Nonsense",
        f"/history?series=lag_records&of={'g' * 501}",
    ],
)
def test_what_the_api_cannot_show_is_refused(gateway, path):
    status, found = api(gateway, path)
    assert (status, found["error"]["code"]) == (400, "INVALID_REQUEST")


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
    connection = http.client.HTTPConnection(place.hostname, place.port, timeout=60)
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


def test_its_port_has_health_and_no_page_of_people(gateway):
    status, headers, body = asked(gateway, "GET", "/health/ready")
    assert (status, json.loads(body)) == (200, {"status": "ok", "reasons": []})
    assert "default-src 'none'" in headers["Content-Security-Policy"]
    for path in ("/static/site.css", "/api/v1/overview", "/topics"):
        assert asked(gateway, "GET", path)[0] == 404


def test_a_scraper_may_know_the_gateway_by_any_name(gateway):
    place = urlsplit(url_of(gateway))
    connection = http.client.HTTPConnection(place.hostname, place.port, timeout=60)
    connection.request("HEAD", "/metrics", headers={"Host": "gateway-1.example.com:9308"})
    assert connection.getresponse().status == 200
    connection.close()


def test_a_port_that_is_taken_is_a_fault_of_the_configuration(gateway, tmp_path):
    taken = str(urlsplit(url_of(gateway)).port)
    words = ("--port", "0", "--data", str(tmp_path / "data"), "--metrics-port", taken)
    words += ("--ledger-port", "0", "--no-http-port")
    done = subprocess.run(
        [sys.executable, "-m", "gateway", "dev", *words], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 78
    assert f"metrics-port {taken}: cannot listen there" in done.stderr


async def test_lags_of_many_positions_are_computed_in_short_slices():
    """Steps of the interpreter between two turns stand for time, which other processes disturb."""
    async with started_cluster() as cluster:
        partition = await cluster.topic("t")
        await cluster.sent(partition, batch())
        samples = Samples(cluster.context)
        for number in range(MetricsLimits().positions_max):
            samples._stand("g", ("t" if number % 2 else f"gone{number}", 0), number % 3)
        task = asyncio.ensure_future(samples._lags())
        longest = 0
        while not task.done():
            with counted() as steps:
                await asyncio.sleep(0)
            longest = max(longest, steps.count)
        task.result()
        assert longest < STEPS_MAX


async def test_the_lag_of_a_group_whose_offsets_do_not_all_fit_is_unknown():
    async with started_cluster() as cluster:
        samples = Samples(cluster.context)
        samples._limits = MetricsLimits(positions_max=3)
        samples._stands = []
        for group, count in (("all", 2), ("some", 2), ("none", 2)):
            for index, _ in samples._fitting(group, dict.fromkeys(range(count))):
                samples._stand(group, ("t", index), 0)
        ends = {("t", index): 5 for index in range(2)}

        async def offsets_at(places, which):
            return ends if which == -1 else {}

        samples._offsets_at = offsets_at
        assert await samples.group_lags([]) == {
            "all": (10, None),
            "some": (None, None),
            "none": (None, None),
        }
        assert samples._left_out["positions"] == 3
