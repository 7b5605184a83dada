"""Goal: an unmodified Spark query appears as a read-only group with its lag, in all tools.

Method: a streaming and a batch query of the shared Spark against one gateway. The output of
`gateway group`, Kafka's own tool and Prometheus is compared with the written offsets.
"""

from __future__ import annotations

import json
import re
import urllib.request

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.gateway.admin_commands import invoke, produced
from tests.peers import java_tools
from tests.peers.gateway import Gateway

pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.proof]

RECORDS = 40


@pytest.fixture(scope="module")
def gateway(tmp_path_factory):
    with Gateway(tmp_path_factory.mktemp("data"), ["--metrics-port", "0"]) as started:
        yield started


def ask(gateway, *words):
    code, out, errors = invoke("group", *words, "-o", "json", bootstrap=gateway.bootstrap)
    assert code == 0, errors
    return json.loads(out)


def read_only(gateway, prefix):
    """Return the read-only groups with this prefix."""
    return [
        row["group"]
        for row in ask(gateway, "list")
        if row["type"] == "read-only" and row["group"].startswith(prefix)
    ]


def stands(gateway, group):
    """Return {partition: (offset, lag)}."""
    rows = ask(gateway, "describe", group)
    return {row["partition"]: (row["current_offset"], row["lag"]) for row in rows}


def lags(gateway, group):
    """Return {partition: lag} from the metrics page."""
    url = re.search(r"metrics: (\S+)", gateway.process.output())[1]
    text = urllib.request.urlopen(url, timeout=60).read().decode()
    return {
        int(sample.labels["partition"]): sample.value
        for family in text_string_to_metric_families(text)
        if family.name == "kafka_consumergroup_lag"
        for sample in family.samples
        if sample.labels["consumergroup"] == group
    }


def source(reader, gateway, topic):
    return (
        reader.format("kafka")
        .option("kafka.bootstrap.servers", gateway.bootstrap)
        .option("startingOffsets", "earliest")
        .option("subscribe", topic)
    )


def run_to_the_end(spark, gateway, topic, checkpoint):
    query = (
        source(spark.readStream, gateway, topic)
        .load()
        .writeStream.format("noop")
        .option("checkpointLocation", str(checkpoint))
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(120)


def test_a_streaming_query_is_one_group_across_restarts_and_lags_by_unfetched_records(
    spark, gateway, tmp_path
):
    assert invoke("topic", "create", "s", "-p", "2", bootstrap=gateway.bootstrap)[0] == 0
    produce_to_both(gateway, RECORDS)
    run_to_the_end(spark, gateway, "s", tmp_path)
    (group,) = read_only(gateway, "spark-kafka-source-")
    assert stands(gateway, group) == {0: (RECORDS, 0), 1: (RECORDS, 0)}
    produce_to_both(gateway, 5)
    assert stands(gateway, group) == {0: (RECORDS, 5), 1: (RECORDS, 5)}
    assert lags(gateway, group) == {0: 5, 1: 5}
    assert rows_of_kafkas_tool(gateway, group) == [
        ["s", str(index), str(RECORDS), str(RECORDS + 5), "5"] for index in range(2)
    ]
    run_to_the_end(spark, gateway, "s", tmp_path)
    (restarted,) = read_only(gateway, "spark-kafka-source-")
    assert restarted != group
    assert stands(gateway, restarted) == {0: (RECORDS + 5, 0), 1: (RECORDS + 5, 0)}


def produce_to_both(gateway, records):
    for index in range(2):
        produced(gateway, "s", records, index)


def rows_of_kafkas_tool(gateway, group):
    """Return topic, partition, offset, end and lag, as kafka-consumer-groups.sh prints them."""
    at = ("--bootstrap-server", gateway.bootstrap)
    assert group in java_tools.run(java_tools.GROUPS, *at, "--list").split()
    printed = java_tools.run(java_tools.GROUPS, *at, "--describe", "--group", group)
    rows = [line.split() for line in printed.splitlines() if line.startswith(group)]
    return sorted(row[1:6] for row in rows)


@pytest.mark.parametrize("option", ["kafka.group.id", "kafka.client.id"])
def test_a_query_with_an_ordinary_client_id_is_no_group(spark, gateway, option):
    name = option.replace(".", "-")
    produced(gateway, name, RECORDS)
    read = source(spark.read, gateway, name).option("groupIdPrefix", "mine").option(option, name)
    assert read.load().count() == RECORDS
    assert not [row for row in ask(gateway, "list") if name in row["group"]]
    code, _, errors = invoke("group", "describe", name, bootstrap=gateway.bootstrap)
    assert code == 1, errors


def test_a_batch_query_is_a_group_under_its_given_prefix(spark, gateway):
    produced(gateway, "b", RECORDS)
    read = source(spark.read, gateway, "b").option("groupIdPrefix", "mine").load()
    assert read.count() == RECORDS
    (group,) = read_only(gateway, "mine-")
    assert stands(gateway, group) == {0: (RECORDS, 0)}
