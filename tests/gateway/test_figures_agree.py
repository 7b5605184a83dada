"""Goal: commands, pages, their JSON and the metrics show the same lag, sizes and segments.

Method: one gateway process with a topic whose start moved and groups behind it; everything is read
from outside and compared.
"""

from __future__ import annotations

import asyncio
import json
import re
import urllib.error
import urllib.request
from urllib.parse import quote

import pytest
from confluent_kafka import TopicPartition
from prometheus_client.parser import text_string_to_metric_families

from gateway.admin.client import AdminClient
from gateway.admin.groups import find_group
from tests.gateway.admin_commands import consumer, invoke, produced
from tests.peers.gateway import Gateway
from tests.peers.processes import wait_until

pytestmark = pytest.mark.process

GROUP = "behind the start"
HOSTILE = "a/b\"<script>alert(1)</script>'%2F"


@pytest.fixture(scope="module")
def gateway(tmp_path_factory):
    options = ["--http-port", "0", "--metrics-port", "0"]
    with Gateway(tmp_path_factory.mktemp("data"), options) as broker:
        create = ("topic", "create", "t", "-p", "2", "-c", "segment.bytes=1048576")
        assert invoke(*create, bootstrap=broker.bootstrap)[0] == 0
        assert invoke("topic", "create", "empty", bootstrap=broker.bootstrap)[0] == 0
        produced(broker, "t", 40, 0)
        produced(broker, "t", 10, 1)
        cut = ("topic", "truncate", "t", "--to", "25", "-p", "0", "--yes")
        assert invoke(*cut, bootstrap=broker.bootstrap)[0] == 0
        for group in (GROUP, HOSTILE):
            reader = consumer(broker, group)
            at = [TopicPartition("t", 0, 4), TopicPartition("t", 1, 7)]
            reader.commit(offsets=at, asynchronous=False)
            reader.close()
        yield broker


def url_of(gateway, what, path):
    return re.search(rf"{what}: (http://[^/\s]+)", gateway.process.output())[1] + path


def get(gateway, path):
    """The status and the body of a page."""
    try:
        with urllib.request.urlopen(url_of(gateway, "page", path), timeout=60) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def api(gateway, path):
    status, text = get(gateway, f"/api/v1{path}")
    assert status == 200, text
    return json.loads(text)


def command(gateway, *words):
    code, out, errors = invoke(*words, "-o", "json", bootstrap=gateway.bootstrap)
    assert code == 0, errors
    return json.loads(out)


def metric(gateway, name, **labels):
    with urllib.request.urlopen(url_of(gateway, "metrics", "/metrics"), timeout=60) as answer:
        families = list(text_string_to_metric_families(answer.read().decode()))
    return sum(
        each.value
        for family in families
        for each in family.samples
        if each.name == name and labels.items() <= each.labels.items()
    )


def row_of(gateway, path, key, value):
    (row,) = [row for row in api(gateway, path)["rows"] if row[key] == value]
    return row


def test_the_lag_is_the_same_everywhere_and_does_not_count_below_the_start(gateway):
    wait_until(lambda: row_of(gateway, "/groups", "group", GROUP)["lag"] is not None, "a lag")
    rows = command(gateway, "group", "lag", GROUP)
    lag = sum(row["lag"] for row in rows)
    assert lag == (40 - 25) + (10 - 7)
    assert row_of(gateway, "/groups", "group", GROUP)["lag"] == lag
    page = api(gateway, f"/groups/{quote(GROUP)}")
    assert [row["lag"] for row in page["rows"]] == [row["lag"] for row in rows]
    assert all(row["lag_s"] is not None for row in page["rows"])
    name = "kafka_consumergroup_lag"
    assert metric(gateway, name, consumergroup=GROUP) == lag
    top = command(gateway, "top", "--once")
    assert [each["lag"] for each in top["groups"] if each["group"] == GROUP] == [lag]


def test_the_lag_in_seconds_of_a_list_is_that_of_the_metrics(gateway):
    wait_until(lambda: row_of(gateway, "/groups", "group", GROUP)["lag_s"] is not None, "a lag")
    name = "gateway_consumergroup_lag_seconds"
    ages = [metric(gateway, name, consumergroup=GROUP, partition=index) for index in ("0", "1")]
    listed = row_of(gateway, "/groups", "group", GROUP)["lag_s"]
    assert 0 < max(ages) <= listed <= max(ages) + 10  # the list was asked for later


def test_sizes_records_and_segments_are_the_same_everywhere(gateway):
    def is_the_same():  # the page is a second or two behind
        size = command(gateway, "topic", "describe", "t")["size_bytes"]
        return row_of(gateway, "/topics", "name", "t")["size_bytes"] == size

    wait_until(is_the_same, "the page to have the size that the command has")
    listed = {row["name"]: row for row in command(gateway, "topic", "list", "--sort", "rate")}
    described = command(gateway, "topic", "describe", "t")
    page = row_of(gateway, "/topics", "name", "t")
    one = api(gateway, "/topics/t")
    for key in ("size_bytes", "records"):
        assert page[key] == listed["t"][key] == described[key] == one[key], key
    assert page["segments"] == described["segments"] == one["segments"]
    for row, other in zip(one["rows"], described["partitions"], strict=True):
        keys = ("partition", "leader", "log_start_offset", "log_end_offset", "size_bytes")
        assert [row[key] for key in keys] == [other[key] for key in keys]
        assert len(row["segment_rows"]) == other["segments"]
    ends = metric(gateway, "kafka_topic_partition_current_offset", topic="t")
    starts = metric(gateway, "kafka_topic_partition_oldest_offset", topic="t")
    assert ends - starts == page["records"]


def test_one_client_serves_several_views_at_once_and_goes_on_after_one_was_cut_short(gateway):
    async def ask():
        async with AdminClient(gateway.bootstrap) as client:
            some = [find_group(client, GROUP) for _ in range(5)]
            groups = await asyncio.gather(*some, *(client.metadata(["t"]) for _ in range(5)))
            cut = asyncio.ensure_future(client.metadata(None))
            await asyncio.sleep(0)
            cut.cancel()
            await asyncio.gather(cut, return_exceptions=True)
            return groups, await client.metadata(["t"])

    found, again = asyncio.run(ask())
    assert [each.group_id for each in found[:5]] == [GROUP] * 5
    assert [each.topics[0].name for each in (*found[5:], again)] == ["t"] * 6


def test_an_empty_topic_has_zeros_and_not_unknown_figures(gateway):
    wait_until(
        lambda: row_of(gateway, "/topics", "name", "empty")["records_per_s"] is not None, "a rate"
    )
    row = row_of(gateway, "/topics", "name", "empty")
    assert (row["records"], row["size_bytes"], row["records_per_s"]) == (0, 0, 0.0)


def test_gateway_top_has_bytes_per_second(gateway):
    # A topic of its own: tests run in any order, and others know what `t` has.
    assert invoke("topic", "create", "busy", bootstrap=gateway.bootstrap)[0] == 0

    def rate():
        produced(gateway, "busy", 100, 0)
        rows = command(gateway, "top", "--once")["topics"]
        return next((row["bytes_per_s"] for row in rows if row["name"] == "busy"), 0)

    wait_until(lambda: (rate() or 0) > 0, "a rate", 120.0)


@pytest.mark.parametrize(
    "path", ["/", "/topics", "/topics/t", "/groups", "/cluster", "/events", "/spark"]
)
def test_every_page_is_html_with_its_command_and_json(gateway, path):
    status, text = get(gateway, path)
    assert status == 200
    assert "gateway " in text.partition("<footer>")[2]
    assert "Traceback" not in text
    api(gateway, "/overview" if path == "/" else path)


def test_the_overview_is_one_sentence_and_its_checks(gateway):
    found = api(gateway, "/overview")
    assert found["healthy"]
    assert found["sentence"].endswith(".")
    assert found["checks"]
    assert (found["gateways"], found["bookies"]) == (1, 1)
    health = command(gateway, "cluster", "health")
    assert {row["check"]: row["result"] for row in found["checks"]} == {
        row["check"]: row["result"] for row in health["checks"]
    }


def test_the_map_has_gateways_bookies_and_disks(gateway):
    found = api(gateway, "/cluster")
    (bookie,) = found["bookies"]
    assert bookie["state"] == "writable"
    assert 0 < bookie["free_bytes"] <= bookie["disk_bytes"]
    assert [each["state"] for each in found["gateways"]] == ["running"]
    assert found["gateways"][0]["partitions"] >= 2  # others open when they are first asked for


def test_a_group_of_any_name_has_a_page_without_its_script(gateway):
    href = row_of(gateway, "/groups?sort=lag", "group", HOSTILE)["group_href"]
    status, text = get(gateway, href)
    assert status == 200
    assert "<script>alert" not in text
    assert "&lt;script&gt;alert(1)" in text
    status, text = get(gateway, "/groups")
    assert "<script>alert" not in text
    assert status == 200


@pytest.mark.parametrize("path", ["/topics/nope", "/groups/nope"])
def test_what_does_not_exist_is_not_found(gateway, path):
    assert get(gateway, path)[0] == 404
    status, text = get(gateway, f"/api/v1{path}")
    assert status == 404
    assert json.loads(text)["error"]["code"] in ("UNKNOWN_TOPIC_OR_PARTITION", "GROUP_ID_NOT_FOUND")


@pytest.mark.parametrize(
    "path", ["/topics?cursor=x", "/topics?limit=501", "/topics?sort=x", "/events?kind=x"]
)
def test_bad_input_is_refused(gateway, path):
    assert get(gateway, path)[0] == 400
