"""Goal: commands on topics, settings, clusters and lag work at a gateway and at Apache Kafka.

Method: the commands in this process, against one server of each kind, written to by librdkafka.
Columns that only a gateway can fill are null at Kafka. Every output keeps to its declared schema.
"""

from __future__ import annotations

import json
import time

import jsonschema
import pytest
from click.testing import CliRunner
from confluent_kafka import Consumer, Producer, TopicPartition

from gateway.admin import cluster_shapes, config_shapes, group_lag_cli, topic_shapes
from tests.gateway.admin_commands import invoke
from tests.peers.gateway import Gateway
from tests.peers.kafka import ApacheKafka
from tests.peers.processes import wait_until

pytestmark = pytest.mark.compat
VALUE = b"x" * 1000


@pytest.fixture(scope="module", params=["gateway", pytest.param("kafka", marks=pytest.mark.proof)])
def server(request, tmp_path_factory):
    data = tmp_path_factory.mktemp(request.param) / "data"
    kind = {"gateway": Gateway, "kafka": ApacheKafka}[request.param]
    with kind(data) as broker:
        broker.ours = request.param == "gateway"
        yield broker


@pytest.fixture
def cli(server):
    return lambda *words: invoke(*words, bootstrap=server.bootstrap)


@pytest.fixture
def rows(cli):
    def ask(shape, *words):
        code, out, errors = cli(*words, "-o", "json")
        assert code == 0, errors
        return conforming(out, shape)

    return ask


def conforming(out, shape):
    found = json.loads(out)
    jsonschema.validate(found, shape.schema())
    return found


def write(server, topic, count, first_ms=None, partition=0):
    producer = Producer({"bootstrap.servers": server.bootstrap})
    for number in range(count):
        when = {} if first_ms is None else {"timestamp": first_ms + 1000 * number}
        producer.produce(topic, VALUE, partition=partition, **when)
    assert producer.flush(60) == 0


def now_ms():
    return time.time_ns() // 1_000_000


# topics


def test_several_topics_have_a_row_each_and_one_that_fails_stops_no_other(cli):
    code, out, errors = cli("topic", "create", "s1", "s2", "s1", "-p", "2")
    assert (code, errors) == (0, "")
    assert [line.split() for line in out.splitlines()] == [
        ["NAME", "OUTCOME", "PARTITIONS", "REPLICATION-FACTOR"],
        ["s1", "created", "2", "1"],
        ["s2", "created", "2", "1"],
    ]
    code, out, errors = cli("topic", "create", "s2", "s3", "-o", "json")
    assert code == 1
    assert json.loads(errors)["code"] == "TOPIC_ALREADY_EXISTS"
    assert "1 of 2 topics were not created: " in json.loads(errors)["error"]
    found = conforming(out, topic_shapes.CREATED_SEVERAL)
    assert [(row["name"], row["outcome"], row["error"]) for row in found] == [
        ("s2", "failed", "TOPIC_ALREADY_EXISTS"),
        ("s3", "created", None),
    ]


def test_a_topic_that_exists_is_left_as_it_is(cli, rows):
    assert cli("topic", "create", "e1", "-p", "3")[0] == 0
    found = rows(topic_shapes.CREATED_SEVERAL, "topic", "create", "e1", "e2", "--if-not-exists")
    assert [(row["outcome"], row["partitions"]) for row in found] == [("exists", 3), ("created", 1)]
    one = rows(topic_shapes.CREATED, "topic", "create", "e1", "--if-not-exists")
    assert (one["outcome"], one["partitions"]) == ("exists", 3)
    assert cli("topic", "create", "e1", "--if-not-exists")[1] == "Topic e1 exists already.\n"
    assert cli("topic", "create", "e1")[::2] == (
        1,
        "gateway: Topic 'e1' already exists; pass --if-not-exists to leave it as it is\n",
    )


def test_partitions_are_added_to_those_there_are(cli, rows):
    cli("topic", "create", "p1", "-p", "2")
    found = cli("topic", "add-partitions", "p1", "3")
    assert found == (0, "Added 3 partitions to topic p1: it has 5 now.\n", "")
    assert rows(topic_shapes.GROWN, "topic", "add-partitions", "p1", "1") == {
        "name": "p1",
        "added": 1,
        "partitions": 6,
    }
    code, _, errors = cli("topic", "add-partitions", "nope", "1")
    assert (code, errors) == (1, "gateway: Topic 'nope' does not exist; see `gateway topic list`\n")
    assert cli("topic", "add-partitions", "p1", "0")[0] == 2
    code, _, errors = cli("topic", "add-partitions", "p1", "2147483647")
    assert (code, "cannot have" in errors) == (1, True)


def test_topics_are_listed_by_pattern_size_and_rate(server, cli, rows):
    cli("topic", "create", "list-a", "list-b", "list-c")
    write(server, "list-a", 10)
    write(server, "list-b", 30, now_ms() - 3_600_000)
    by_size = rows(topic_shapes.MEASURED, "topic", "list", "list-*", "--sort", "size")
    assert [row["name"] for row in by_size] == ["list-b", "list-a", "list-c"]
    assert by_size[0]["size_bytes"] > by_size[1]["size_bytes"] > 5_000
    by_rate = rows(topic_shapes.MEASURED, "topic", "list", "list-?", "--sort", "rate")
    assert [row["name"] for row in by_rate] == ["list-a", "list-b", "list-c"]
    assert by_rate[0]["records_per_s"] == round(10 / 60, 3)
    assert [row["records"] for row in by_rate] == [10, 30, 0]
    plain = rows(topic_shapes.LISTED, "topic", "list", "list-[ab]")
    assert [row["name"] for row in plain] == ["list-a", "list-b"]
    assert cli("topic", "list", "list-c", "--columns", "name,records", "--no-header") == (
        *(0, "list-c 0\n"),
        "",
    )
    assert rows(topic_shapes.LISTED, "topic", "list", "none-*") == []
    assert cli("topic", "list", "none")[::2] == (
        1,
        "gateway: Topic 'none' does not exist; see `gateway topic list`\n",
    )


def test_a_description_has_the_figures(server, cli, rows):
    cli("topic", "create", "figures", "-p", "2")
    write(server, "figures", 20, partition=1)
    found = rows(topic_shapes.DESCRIBED, "topic", "describe", "figures")
    assert (found["records"], found["records_per_s"]) == (20, round(20 / 60, 3))
    assert [row["records"] for row in found["partitions"]] == [0, 20]
    assert found["size_bytes"] == found["partitions"][1]["size_bytes"] > 5_000
    segments = [row["segments"] for row in found["partitions"]]
    assert segments == ([0, 1] if server.ours else [None, None])
    assert found["segments"] == (1 if server.ours else None)


# settings


def test_a_setting_is_set_shown_and_unset(server, cli, rows):
    cli("topic", "create", "conf")
    set_words = ("topic", "config", "set", "conf", "retention.ms=1000", "segment.ms=60000")
    (first, _) = rows(config_shapes.CHANGED, *set_words)
    assert first == {
        "key": "retention.ms",
        "before": "604800000",
        "before_origin": "default",
        "after": "1000",
        "origin": "topic",
    }
    shown = rows(config_shapes.SHOWN, "topic", "config", "show", "conf")
    values = {row["key"]: row["value"] for row in shown if row["origin"] == "topic"}
    assert values == {"retention.ms": "1000", "segment.ms": "60000"}
    (back,) = rows(config_shapes.CHANGED, "topic", "config", "unset", "conf", "retention.ms")
    assert (back["before"], back["after"], back["origin"]) == ("1000", "604800000", "default")


def test_a_wrong_setting_is_refused_with_the_nearest_and_nothing_is_changed(cli, rows):
    cli("topic", "create", "wrong")
    for words in (
        ("set", "wrong", "segment.ms=1000", "retnetion.ms=1"),
        ("unset", "wrong", "segment.ms", "retnetion.ms"),
        ("explain", "wrong", "retnetion.ms"),
    ):
        code, out, errors = cli("topic", "config", *words)
        assert (code, out) == (1, "")
        assert errors == (
            "gateway: topic wrong has no setting 'retnetion.ms': did you mean retention.ms?\n"
        )
    assert rows(config_shapes.SHOWN, "topic", "config", "show", "wrong", "--all")
    code, _, errors = cli("topic", "config", "set", "wrong", "segment.ms")
    assert (code, "is not key=value" in errors) == (2, True)
    code, _, errors = cli("topic", "config", "show", "nowhere")
    assert (code, errors) == (
        1,
        "gateway: Topic 'nowhere' does not exist; see `gateway topic list`\n",
    )


def holds_a_few(server, rows):
    """Whether the newest segment has records and no roll is due; if it has none, it gets one.

    A roll that was under way may have completed the segment that took the last records.
    """
    found = rows(config_shapes.EXPLAINED, "topic", "config", "explain", "old", "retention.ms")
    newest = found["segments"][-1]
    if newest["end_offset"] == newest["first_offset"]:
        write(server, "old", 1)
        return False
    return newest["size_bytes"] < 2**20


def test_a_setting_is_explained_with_its_segments(server, cli, rows):
    cli("topic", "create", "old", "-c", "retention.ms=-1", "-c", "segment.bytes=1048576")
    for _ in range(3):
        write(server, "old", 1100)
    write(server, "old", 5)
    cli("topic", "config", "set", "old", "retention.ms=3600000")
    if server.ours:
        wait_until(lambda: holds_a_few(server, rows), "a segment in progress with a few records")
    found = rows(config_shapes.EXPLAINED, "topic", "config", "explain", "old", "retention.ms")
    assert (found["value"], found["origin"]) == ("3600000", "topic")
    assert found["meaning"]
    assert found["values"][0]["origin"] == "topic"
    if not server.ours:
        assert (found["has_effect"], found["effect"], found["segments"]) == (None, [], [])
        return
    assert found["has_effect"] is True
    fates = [row["fate"] for row in found["segments"]]
    assert fates[0].startswith("goes in 59 min")
    assert fates[-2:] == ["stays: newest completed", "in progress"]
    assert found["segments"][0]["first_offset"] == 0
    (effect,) = found["effect"]
    assert effect["text"].startswith("segment 1 is the next: it goes in 59 min")
    code, out, _ = cli("topic", "config", "explain", "old", "segment.bytes")
    assert code == 0
    assert "origin:     topic; otherwise log.segment.bytes=1073741824 (default)" in out
    assert "more bytes (segment.bytes)" in out
    assert (
        "cleanup.policy has no compact"
        in cli("topic", "config", "explain", "old", "min.cleanable.dirty.ratio")[1]
    )
    assert "stores it and shows it only" in cli("topic", "config", "explain", "old", "flush.ms")[1]


def test_a_default_of_the_cluster_is_set_explained_and_unset(server, cli, rows):
    key = "log.cleaner.backoff.ms"
    (change,) = rows(config_shapes.CHANGED, "cluster", "config", "set", f"{key}=9000")
    assert (change["after"], change["origin"]) == ("9000", "cluster")
    found = rows(config_shapes.EXPLAINED_AT_BROKERS, "cluster", "config", "explain", key)
    assert [each["value"] for each in found["brokers"]] == ["9000"]
    assert found["origin"] == "cluster"
    assert found["has_effect"] is (True if server.ours else None)
    node = str(found["brokers"][0]["node"])
    (own,) = rows(config_shapes.CHANGED, "cluster", "config", "set", "-n", node, f"{key}=8000")
    assert (own["before"], own["after"], own["origin"]) == ("9000", "8000", "broker")
    (own,) = rows(config_shapes.CHANGED, "cluster", "config", "unset", "-n", node, key)
    assert (own["after"], own["origin"]) == ("9000", "cluster")
    rows(config_shapes.CHANGED, "cluster", "config", "unset", key)
    shown = rows(config_shapes.SHOWN, "cluster", "config", "show", "--all")
    assert {row["key"]: row["value"] for row in shown}[key] == "15000"
    code, _, errors = cli("cluster", "config", "set", "node.id=7")
    assert (code, errors.count("\n")) == (1, 1)
    code, _, errors = cli("cluster", "config", "show", "-n", "99")
    assert (code, errors) == (1, f"gateway: there is no broker 99; there are {node}\n")


# the cluster


def test_a_cluster_shows_itself_and_is_healthy(server, cli, rows):
    cli("topic", "create", "seen")
    found = rows(cluster_shapes.INFO, "cluster", "info")
    assert found["server"] == ("ledger gateway" if server.ours else "other")
    (only,) = found["gateways"]
    assert only["address"] == server.bootstrap
    assert only["leads"] == found["partitions"] > 0
    assert found["features"]["metadata.version"] == "4.3-IV0"
    assert (found["bookies"] is not None) == (found["metadata"] is not None) == server.ours
    assert "Bookies: -" in cli("cluster", "info")[1] or server.ours
    health = rows(cluster_shapes.HEALTH, "cluster", "health")
    results = {row["check"]: row["result"] for row in health["checks"]}
    unknown = {name for name, result in results.items() if result == "unknown"}
    assert health["healthy"]
    assert unknown == (set() if server.ours else {"copies", "repair", "bookies"})


# groups


def lag(server, *words):
    done = CliRunner().invoke(
        group_lag_cli.lag,
        [*words, "-o", "json"],
        prog_name="gateway",
        env={"GATEWAY_BOOTSTRAP": server.bootstrap},
    )
    out = done.stdout
    found = conforming(out, group_lag_cli.LAG) if out else []
    return done.exit_code, found, done.stderr


def commit(server, group, *places):
    consumer = Consumer({"bootstrap.servers": server.bootstrap, "group.id": group})
    offsets = [TopicPartition(*place) for place in places]
    consumer.commit(offsets=offsets, asynchronous=False)
    consumer.close()


def test_lag_is_in_records_and_in_the_age_of_the_first_unread(server, cli):
    cli("topic", "create", "lag", "-p", "3")
    first_ms = now_ms() - 1_000_000
    write(server, "lag", 100, first_ms)
    write(server, "lag", 5, partition=1)
    commit(server, "slow", ("lag", 0, 40), ("lag", 1, 5), ("lag", 2, 0))
    commit(server, "fast", ("lag", 0, 100))
    code, found, _ = lag(server, "slow")
    assert code == 0
    assert [(row["partition"], row["lag"]) for row in found] == [(0, 60), (1, 0), (2, 0)]
    assert 959 < found[0]["lag_s"] < 1100
    assert [row["lag_s"] for row in found[1:]] == [0, 0]
    everyone = lag(server)[1]
    assert {row["group"] for row in everyone} >= {"slow", "fast"}
    assert lag(server, "fast", "--max", "1s")[0] == 0
    code, found, errors = lag(server, "slow", "--max-s", "60")
    assert (code, len(found)) == (1, 3)
    assert json.loads(errors)["code"] == "LAG"
    assert "the worst: group slow, lag/0, 9" in json.loads(errors)["error"]


def test_a_committed_offset_below_the_start_counts_from_the_start(server, cli):
    cli("topic", "create", "cut")
    write(server, "cut", 10, now_ms() - 500_000)
    commit(server, "behind", ("cut", 0, 1))
    assert cli("topic", "truncate", "cut", "--to", "7", "--yes")[0] == 0
    code, (row,), _ = lag(server, "behind")
    assert (code, row["current_offset"], row["lag"]) == (0, 1, 3)
    assert 490 < row["lag_s"] < 600


def test_a_group_that_does_not_exist_is_named(server):
    code, found, errors = lag(server, "nobody")
    assert (code, found) == (1, [])
    assert json.loads(errors)["code"] == "GROUP_ID_NOT_FOUND"
