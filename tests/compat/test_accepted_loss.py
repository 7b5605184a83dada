"""Goal: stock clients read across a loss, as their topic sets it: on to the end, with right offsets
committed and without a reset.

Method: entries in the middle and at the very end of logs are taken from a real gateway's bookie;
the stock clients read each log as members of a group, stop, and go on with new records.
"""

from __future__ import annotations

import itertools
import json
import re
import subprocess
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import ClassVar, NamedTuple, Self

import pytest
from confluent_kafka import Producer
from prometheus_client.parser import text_string_to_metric_families

from tests.compat.clients.base import Client, Member, Stored
from tests.compat.clients.suite import commit
from tests.compat.clients.with_aiokafka import Aiokafka
from tests.compat.clients.with_confluent import Confluent
from tests.compat.clients.with_kafka_python import KafkaPython
from tests.compat.conftest import AT_ONCE
from tests.gateway.admin_commands import invoke
from tests.peers import install, java_tools
from tests.peers.gateway import Gateway
from tests.peers.losses import ACCEPTED_AT, Loss, lose
from tests.peers.processes import wait_until

pytestmark = [pytest.mark.compat, pytest.mark.proof]

RECORDS = 10
READERS = ("aiokafka", "confluent", "kafka-python", "java", "kcat")
READ_S_MAX = 60.0
KCAT_S_MAX = 120.0


class Log(NamedTuple):
    """A topic with ten records, of which three are lost."""

    mode: str  # gateway.loss.delivery, or "none" if the loss is not accepted
    place: str

    @property
    def lost(self) -> range:
        return range(3, 6) if self.place == "middle" else range(7, 10)

    def topic(self, reader: str) -> str:
        return f"{self.mode}-{self.place}-{reader}"

    @property
    def offsets(self) -> list[int]:
        """The offsets that a consumer receives."""
        marker = self.lost[-1] if self.mode == "marker" else None
        return [at for at in range(RECORDS) if at not in self.lost or at == marker]


PASSED = [Log(*each) for each in itertools.product(("skip", "marker"), ("middle", "end"))]
SKIP_END = Log("skip", "end")
STOPPED = [Log("stop", "middle"), Log("none", "middle")]


def _name(log: Log) -> str:
    return f"{log.mode}-{log.place}"


def send(gateway: Gateway, topic: str, numbers: range) -> None:
    """Send records one by one, so that each is a batch."""
    producer = Producer({"bootstrap.servers": gateway.bootstrap, "linger.ms": 0})
    for number in numbers:
        producer.produce(topic, b"%d" % number, partition=0)
        assert producer.flush(60) == 0


@pytest.fixture(scope="module")
def lossy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    options = (*AT_ONCE, "--metrics-port", "0")
    with Gateway(tmp_path_factory.mktemp("lossy") / "data", options) as gateway:
        losses = []
        for log, reader in itertools.product([*PASSED, *STOPPED], READERS):
            topic = log.topic(reader)
            config = () if log.mode == "none" else ("-c", f"gateway.loss.delivery={log.mode}")
            code, _, errors = invoke("topic", "create", topic, *config, bootstrap=gateway.bootstrap)
            assert code == 0, errors
            send(gateway, topic, range(RECORDS))
            losses.append(Loss(topic, log.lost[0], log.lost[-1], log.mode != "none"))
        lose(gateway, losses)
        yield gateway


def is_marker(stored: Stored) -> bool:
    """Whether a record is a marker, which must then be whole."""
    key, value, headers, timestamp_ms = stored.record
    if not headers:
        return False
    ((name, text),) = headers
    assert (name, key, value, timestamp_ms) == ("gateway.loss", None, None, 0)
    described = json.loads(text or b"")
    assert described["type"] == "DATALOSS"
    assert (described["last"], described["accepted_at"]) == (stored.offset, ACCEPTED_AT)
    return True


def consume(member: Member, count: int) -> list[Stored]:
    """Poll until there are `count` records."""
    found: list[Stored] = []

    def enough() -> bool:
        found.extend(member.poll())
        return len(found) >= count

    wait_until(enough, f"{count} records", READ_S_MAX)
    return found


def blocked(gateway: Gateway, group: str) -> str | None:
    """What `group describe` shows of the group's only partition."""
    words = ("group", "describe", group, "-o", "json")
    code, printed, errors = invoke(*words, bootstrap=gateway.bootstrap)
    assert code == 0, errors
    (row,) = json.loads(printed)
    return row["blocked"]


@pytest.fixture(scope="class")
def client(request: pytest.FixtureRequest, lossy: Gateway) -> Iterator[Client]:
    """The client of the test class, connected to the gateway that lost entries."""
    client = request.cls.connect(lossy.bootstrap)
    yield client
    client.close()


class Reading:
    """What each stock client of Python must do."""

    connect: ClassVar[Callable[[str], Client]]
    reader: ClassVar[str]
    # True if a commit is the position, False if it follows the last record that was returned.
    commits_position: ClassVar[bool] = True
    no_reset: ClassVar[str] = "none"

    @pytest.mark.parametrize("log", PASSED, ids=_name)
    def test_reads_across_an_accepted_loss_and_goes_on(
        self, lossy: Gateway, client: Client, log: Log
    ):
        topic, group = log.topic(self.reader), f"group-{_name(log)}-{self.reader}"
        member = client.member(group, topic)
        found = consume(member, len(log.offsets))
        assert [each.offset for each in found] == log.offsets
        assert [each.offset for each in found if is_marker(each)] == [
            at for at in log.offsets if at in log.lost
        ]
        end = RECORDS if self.commits_position or log != SKIP_END else log.lost[0]

        def committed() -> bool:
            commit([member], [])
            return client.committed(group, topic, 1) == [end]

        wait_until(committed, f"a commit of offset {end}", READ_S_MAX)
        member.close()
        assert client.bounds(topic) == (0, RECORDS)

        send(lossy, topic, range(RECORDS, RECORDS + 2))
        again = client.member(group, topic, reset=self.no_reset)
        assert [each.offset for each in consume(again, 2)] == [RECORDS, RECORDS + 1]
        again.close()

    @pytest.mark.parametrize("log", [log for log in PASSED if log != SKIP_END], ids=_name)
    def test_reads_from_inside_a_loss(self, client: Client, log: Log):
        expected = [at for at in log.offsets if at > log.lost[0]]
        found = client.read(log.topic(self.reader), log.lost[1], len(expected))
        assert [each.offset for each in found] == expected

    @pytest.mark.parametrize("log", STOPPED, ids=_name)
    def test_stops_at_a_loss_that_it_may_not_pass(self, lossy: Gateway, client: Client, log: Log):
        topic, group = log.topic(self.reader), f"group-{_name(log)}-{self.reader}"
        member = client.member(group, topic)
        found = consume(member, log.lost[0])
        commit([member], found)

        def shown() -> bool:
            found.extend(member.poll())
            return blocked(lossy, group) is not None

        wait_until(shown, "the group to be blocked", READ_S_MAX)
        more = " (gateway.loss.delivery=stop)" if log.mode == "stop" else ""
        assert blocked(lossy, group) == f"blocked at offset 3: lost{more}"
        member.close()
        assert [each.offset for each in found] == list(range(log.lost[0]))
        behind = client.read(topic, log.lost[-1] + 1, RECORDS - log.lost[-1] - 1)
        assert [each.offset for each in behind] == list(range(log.lost[-1] + 1, RECORDS))


class TestAiokafka(Reading):
    connect = Aiokafka
    reader = "aiokafka"


class TestConfluent(Reading):
    """librdkafka commits behind the last record that it returned: an empty batch at the very end of
    a log stays uncommitted, and the group lags by its offsets until the next record.
    """

    connect = Confluent
    reader = "confluent"
    commits_position = False
    no_reset = "error"


class TestKafkaPython(Reading):
    connect = KafkaPython
    reader = "kafka-python"


# -- programs -------------------------------------------------------------------------------------


class JavaConsumer:
    """Kafka's console consumer in a group, which commits its position all the time."""

    def __init__(self, gateway: Gateway, log: Log, directory: Path, *words: str) -> None:
        self.group = f"group-{_name(log)}-java"
        self._process = java_tools.start(
            directory / "consumer.log",
            java_tools.CONSOLE_CONSUMER,
            *("--bootstrap-server", gateway.bootstrap, "--topic", log.topic("java")),
            *("--group", self.group, "--command-property", "auto.commit.interval.ms=200"),
            *("--formatter-property", "print.offset=true"),
            *("--formatter-property", "print.headers=true", *words),
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.stop()

    def read(self) -> dict[int, str]:
        """What it has printed in whole lines: headers and value by offset."""
        lines = self._process.output().rpartition("\n")[0].splitlines()
        rows = [line.removeprefix("Offset:").split("\t", 1) for line in lines if "Offset:" in line]
        return {int(offset): text for offset, text in rows}


@pytest.fixture(scope="module")
def admin(lossy: Gateway) -> Iterator[Client]:
    client = Aiokafka(lossy.bootstrap)
    yield client
    client.close()


@pytest.mark.parametrize("log", PASSED, ids=_name)
def test_the_java_consumer_reads_across_an_accepted_loss_and_goes_on(
    lossy: Gateway, admin: Client, log: Log, tmp_path: Path
):
    topic = log.topic("java")
    with JavaConsumer(lossy, log, tmp_path, "--from-beginning") as consumer:

        def committed() -> bool:
            return admin.committed(consumer.group, topic, 1) == [RECORDS]

        wait_until(committed, "a commit of the end", READ_S_MAX)
        wait_until(lambda: list(consumer.read()) == log.offsets, "all records", READ_S_MAX)
        markers = [text for offset, text in consumer.read().items() if offset in log.lost]
        assert all(text.startswith("gateway.loss:{") for text in markers)
    send(lossy, topic, range(RECORDS, RECORDS + 2))
    no_reset = ("--command-property", "auto.offset.reset=none")
    more = tmp_path / "more"
    more.mkdir()
    with JavaConsumer(lossy, log, more, *no_reset) as consumer:
        expected = [RECORDS, RECORDS + 1]
        wait_until(lambda: list(consumer.read()) == expected, "the new records", READ_S_MAX)


@pytest.mark.parametrize("log", STOPPED, ids=_name)
def test_the_java_consumer_stops_at_a_loss_that_it_may_not_pass(
    lossy: Gateway, admin: Client, log: Log, tmp_path: Path
):
    with JavaConsumer(lossy, log, tmp_path, "--from-beginning") as consumer:

        def stopped() -> bool:
            position = admin.committed(consumer.group, log.topic("java"), 1)
            return position == [log.lost[0]] and blocked(lossy, consumer.group) is not None

        wait_until(stopped, "the group to be blocked", READ_S_MAX)
        before = list(range(log.lost[0]))
        wait_until(lambda: list(consumer.read()) == before, "the records before", READ_S_MAX)
    assert admin.committed(consumer.group, log.topic("java"), 1) == [log.lost[0]]


@pytest.mark.parametrize("start", ["beginning", "8"])
@pytest.mark.parametrize("log", PASSED, ids=_name)
def test_kcat_reads_across_an_accepted_loss_to_the_end(lossy: Gateway, log: Log, start: str):
    words = ("-C", "-e", "-q", "-p", "0", "-o", start, "-f", "%o %h\n", "-t", log.topic("kcat"))
    done = subprocess.run(
        [install.kcat(), "-b", lossy.bootstrap, "-m", "60", *words],
        capture_output=True,
        timeout=KCAT_S_MAX,
    )
    assert done.returncode == 0, done.stderr.decode()
    rows = [line.split(b" ", 1) for line in done.stdout.splitlines()]
    first = 0 if start == "beginning" else int(start)
    assert [int(row[0]) for row in rows] == [at for at in log.offsets if at >= first]
    assert all((b"gateway.loss=" in row[1]) == (int(row[0]) in log.lost) for row in rows)


# -- operators ------------------------------------------------------------------------------------


def samples(gateway: Gateway, name: str, label: str) -> dict[tuple[str, str], float]:
    """The samples of a metric by topic and another label."""
    url = re.findall(r"metrics: (\S+)", gateway.process.output())[-1]
    with urllib.request.urlopen(url, timeout=60) as answer:
        families = list(text_string_to_metric_families(answer.read().decode()))
    return {
        (sample.labels["topic"], sample.labels[label]): sample.value
        for family in families
        for sample in family.samples
        if family.name == name
    }


def test_group_describe_and_the_metrics_show_where_readers_are_blocked(lossy: Gateway):
    topic, group = Log("none", "middle").topic("kcat"), "watched"
    accepted = Log("skip", "middle").topic("kcat")
    client = Confluent(lossy.bootstrap)
    client.read(accepted, RECORDS - 1, 1)  # so that the partition is open
    member = client.member(group, topic)
    consume(member, 3)
    commit([member], [])

    def shown() -> bool:
        member.poll()
        return blocked(lossy, group) is not None

    wait_until(shown, "the group to be blocked", READ_S_MAX)
    code, printed, _ = invoke("group", "describe", group, bootstrap=lossy.bootstrap)
    heading, row = printed.splitlines()[1:]
    assert code == 0
    assert heading.split()[-1] == "BLOCKED"
    assert row.rstrip().endswith(" blocked at offset 3: lost")
    places = samples(lossy, "gateway_topic_partition_blocked", "reason")
    assert places[topic, "blocked at offset 3: lost"] == 1
    lost = samples(lossy, "gateway_topic_partition_lost_records", "accepted")
    assert lost[topic, "false"] == 3
    assert lost[accepted, "true"] == 3
    member.close()
    client.close()


def test_topic_alter_changes_the_setting_and_refuses_other_values(lossy: Gateway):
    topic = Log("skip", "middle").topic("java")
    words = ("topic", "alter", topic, "-c")
    code, _, errors = invoke(*words, "gateway.loss.delivery=drop", bootstrap=lossy.bootstrap)
    assert code == 1
    assert "gateway.loss.delivery: String must be one of: skip, marker, stop" in errors
    for value in ("marker", "skip"):
        setting = f"gateway.loss.delivery={value}"
        assert invoke(*words, setting, bootstrap=lossy.bootstrap)[0] == 0
