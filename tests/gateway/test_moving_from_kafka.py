"""Goal: topics and groups move from Apache Kafka to the gateway and back, and no record is lost or
processed twice.

Method: the blocks of docs/moving-from-kafka.md run in order, as written but for the two addresses.
librdkafka writes in transactions, some of which it aborts, and reads as a group, up to the move and
on from there. This is a proof, and so is every test with Apache Kafka 4.3 as the source. A commit
runs the others, with a gateway in its place: offsets behind gaps, and copies that are not what they
should be.
"""

from __future__ import annotations

import asyncio
import json

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, ConfigResource, NewTopic, ResourceType

from gateway.admin.client import AdminClient as AsyncAdminClient
from gateway.admin.client import AdminError
from gateway.admin.client_settings import ClientSettings
from gateway.admin.consume_batches import PlainRecord
from gateway.admin.group_copy import Digest, read_source
from gateway.admin.group_seek import Scope
from tests.compat.committed import wait_ended
from tests.documents import code_blocks
from tests.gateway.admin_commands import invoke
from tests.gateway.test_readme import check_printed, run_text
from tests.house import read_sources
from tests.peers.gateway import Gateway
from tests.peers.kafka import ApacheKafka
from tests.peers.processes import wait_until

pytestmark = pytest.mark.process
HERE = "tests/gateway/test_moving_from_kafka.py runs it"
SHOWN_KAFKA, SHOWN_GATEWAY = "broker-1:9092", "127.0.0.1:9092"
GROUP, TOPIC = "readers", "orders"
KEPT_MS = "86400123000"
FIRST_MS = 1_700_000_000_000
PARTITIONS = 2
FORWARD, BACK = 4, 1  # blocks


@pytest.fixture(scope="module", params=["gateway", pytest.param("kafka", marks=pytest.mark.proof)])
def sides(request, tmp_path_factory):
    """The server that is left, and the gateway."""
    kind = {"gateway": Gateway, "kafka": ApacheKafka}[request.param]
    with (
        kind(tmp_path_factory.mktemp("source") / "data") as source,
        Gateway(tmp_path_factory.mktemp("target") / "data") as target,
    ):
        yield source.bootstrap, target.bootstrap


def create(bootstrap, topic, **config):
    admin = AdminClient({"bootstrap.servers": bootstrap})
    for made in admin.create_topics([NewTopic(topic, PARTITIONS, 1, config=config)]).values():
        made.result(60)


def delete_all(bootstrap):
    """Delete all topics: the script of the page copies each of them."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    names = [name for name in admin.list_topics(timeout=60).topics if not name.startswith("_")]
    for deleted in admin.delete_topics(names).values() if names else ():
        deleted.result(60)
    groups = [each.group_id for each in admin.list_consumer_groups().result(60).valid]
    for gone in admin.delete_consumer_groups(groups).values() if groups else ():
        gone.result(60)


def setting(bootstrap, topic, key):
    resource = ConfigResource(ResourceType.TOPIC, topic)
    admin = AdminClient({"bootstrap.servers": bootstrap})  # kept until the answer is there
    (found,) = admin.describe_configs([resource]).values()
    return found.result(60)[key].value


class Writer:
    """Writes numbered records, plain or in transactions, and keeps those that are committed."""

    def __init__(self):
        self.number = 0
        self.committed = []

    def _send(self, producer, counts):
        values = []
        for partition, count in enumerate(counts):
            for _ in range(count):
                self.number += 1
                key, headers = f"k{self.number}", [("h", b"\xff"), ("h", None)]
                value = None if self.number % 5 == 0 else str(self.number)
                producer.produce(TOPIC, value, key, partition, headers=headers)
                values.append(key)
        return values

    def plain(self, bootstrap, *counts):
        producer = Producer({"bootstrap.servers": bootstrap})
        self.committed += self._send(producer, counts)
        assert producer.flush(60) == 0

    def transaction(self, bootstrap, *counts, commit=True):
        settings = {"bootstrap.servers": bootstrap, "transactional.id": f"t{self.number}"}
        producer = Producer(settings)
        producer.init_transactions(30)
        producer.begin_transaction()
        sent = self._send(producer, counts)
        if commit:
            producer.commit_transaction(30)
            self.committed += sent
        else:
            assert producer.flush(60) == 0
            producer.abort_transaction(30)
        wait_ended(bootstrap, TOPIC, PARTITIONS)  # before its markers others may write


def read(bootstrap, count, stop_at=None):
    """Read `count` records as the group does, from its committed offsets on.

    Commits the offsets of `stop_at`, by partition, and returns the keys of the records before them.
    """
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": GROUP,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
        }
    )
    found, ended = [], set()
    places = [TopicPartition(TOPIC, index) for index in range(PARTITIONS)]
    consumer.assign(consumer.committed(places, 30))

    def all_read():
        for message in consumer.consume(1_000, 0.2):
            if message.error() is None:
                found.append(message)
            else:
                ended.add(message.partition())
        return len(ended) == PARTITIONS

    wait_until(all_read, f"the end of {TOPIC}")
    assert len(found) == count
    if stop_at is not None:
        at = [TopicPartition(TOPIC, index, offset) for index, offset in enumerate(stop_at)]
        consumer.commit(offsets=at, asynchronous=False)
        found = [each for each in found if each.offset() < stop_at[each.partition()]]
    consumer.close()
    return [each.key().decode() for each in found]


def run_blocks(blocks, sides, work):
    """Run these blocks of the page, and compare what they print with the page."""
    for block, shown in blocks:
        text = block.text
        for name, address in zip((SHOWN_KAFKA, SHOWN_GATEWAY), sides, strict=True):
            text = text.replace(name, address)
        printed = run_text(text.replace("/tmp/", f"{work}/"), block, work, {})
        check_printed(printed, shown, block)


def steps():
    """The blocks of the page, each with what it must print."""
    (page,) = read_sources(["docs/moving-from-kafka.md"])
    blocks = code_blocks(page)
    return [
        (block, after.text if after.info == "text" else None)
        for block, after in zip(blocks, [*blocks[1:], blocks[0]], strict=True)
        if HERE in block.info
    ]


@pytest.mark.proof
def test_a_group_reads_each_record_once_though_it_moves_there_and_back(sides, tmp_path):
    source, target = sides
    for side in sides:
        delete_all(side)
    create(source, TOPIC, **{"retention.ms": KEPT_MS})
    writer = Writer()
    writer.transaction(source, 3, 2)
    writer.transaction(source, 2, 0, commit=False)
    writer.transaction(source, 2, 1)
    writer.plain(source, 1, 1)
    processed = read(source, 10, stop_at=(8, 6))
    assert len(processed) == 8
    there_and_back = steps()
    assert len(there_and_back) == FORWARD + BACK
    run_blocks(there_and_back[:FORWARD], sides, tmp_path)
    assert setting(target, TOPIC, "retention.ms") == KEPT_MS

    writer.transaction(target, 2, 1)
    writer.plain(target, 2, 1)
    processed += read(target, 8, stop_at=(10, 6))
    assert len(processed) == 14
    run_blocks(there_and_back[FORWARD:], sides, tmp_path)
    assert setting(source, TOPIC, "retention.ms") == KEPT_MS

    writer.plain(source, 1, 0)
    processed += read(source, 3)
    assert sorted(processed) == sorted(writer.committed)


# --- copies that are not what they should be ----------------------------------------------------


def write(bootstrap, topic, keys, first_ms=FIRST_MS):
    """Write a record for each key, with times from `first_ms` on."""
    producer = Producer({"bootstrap.servers": bootstrap})
    for number, key in enumerate(keys):
        producer.produce(topic, b"value", key, 0, timestamp=first_ms + number)
    assert producer.flush(60) == 0


def commit(bootstrap, group, topic, offset, metadata=""):
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": group})
    at = (
        TopicPartition(topic, 0, offset, metadata) if metadata else TopicPartition(topic, 0, offset)
    )
    consumer.commit(offsets=[at], asynchronous=False)
    consumer.close()


def committed(bootstrap, group, topic):
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": group})
    (found,) = consumer.committed([TopicPartition(topic, 0)], 30)
    consumer.close()
    return found.offset, found.metadata or ""


def copy(sides, group, *words):
    source, target = sides
    return invoke("group", "copy", group, "--from", source, *words, bootstrap=target)


def test_an_offset_follows_its_record_with_its_metadata_and_a_plan_changes_nothing(sides):
    source, target = sides
    topic, group = "kept", "kept-readers"
    for side in sides:
        create(side, topic, **{"retention.ms": "-1"})
    write(source, topic, ["gone", "a", "b", "c"])
    code, _, errors = invoke(
        "topic", "truncate", topic, "-p", "0", "--to", "1", "--yes", bootstrap=source
    )
    assert code == 0, errors
    write(target, topic, ["a", "b", "c"])
    commit(source, group, topic, 2, "where")
    code, out, errors = copy(sides, group, "-o", "json")
    assert (code, out) == (1, "")  # each record has another time
    assert json.loads(errors)["code"] == "COPY_DIFFERS"
    invoke("topic", "delete", topic, "--yes", bootstrap=target)
    create(target, topic, **{"retention.ms": "-1"})
    write(target, topic, ["a", "b", "c"], FIRST_MS + 1)
    code, out, errors = copy(sides, group, "-o", "json")
    assert code == 0, errors
    (row,) = json.loads(out)["offsets"]
    assert (row["source_offset"], row["unread"], row["new_offset"]) == (2, 2, 1)
    assert committed(target, group, topic)[0] < 0
    code, _, errors = copy(sides, group, "--execute")
    assert (code, errors) == (0, "")
    assert committed(target, group, topic) == (1, "where")


@pytest.mark.parametrize("keys", ["", "a b c new", "a b", "b c", "a x c"])
def test_a_copy_with_other_records_gets_no_offsets(sides, keys):
    source, target = sides
    more = keys.split()
    topic = f"other-{'-'.join(more) or 'none'}"
    for side in sides:
        create(side, topic, **{"retention.ms": "-1"})
    write(source, topic, ["a", "b", "c"])
    write(target, topic, more)
    for offset in (3, 1):
        group = f"{topic}-{offset}"
        commit(source, group, topic, offset)
        code, out, errors = copy(sides, group, "--execute")
        assert (code, out) == (1, ""), more
        assert errors.startswith(f"gateway: {topic}/0"), errors
        assert committed(target, group, topic)[0] < 0


def test_an_open_transaction_is_refused_and_an_aborted_one_is_a_gap(sides):
    source, target = sides
    topic, group = "open", "open-readers"
    for side in sides:
        create(side, topic, **{"retention.ms": "-1"})
        write(side, topic, ["a", "b"])
    commit(source, group, topic, 1)
    producer = Producer({"bootstrap.servers": source, "transactional.id": topic})
    producer.init_transactions(30)
    producer.begin_transaction()
    producer.produce(topic, b"value", "c", 0)
    assert producer.flush(60) == 0
    code, out, errors = copy(sides, group, "--execute", "-o", "json")
    assert (code, out) == (1, "")
    assert json.loads(errors)["code"] == "OPEN_TRANSACTION"
    assert committed(target, group, topic)[0] < 0
    producer.abort_transaction(30)
    wait_ended(source, topic, PARTITIONS)
    for side in sides:
        write(side, topic, ["d"])
    commit(source, group, topic, 4)  # behind the aborted record and the marker
    code, _, errors = copy(sides, group, "--execute")
    assert (code, errors) == (0, "")
    assert committed(target, group, topic)[0] == 2


def test_an_offset_that_a_transaction_may_still_commit_is_not_passed_over(sides):
    """Its output would be in the copy, and the group there would make it again."""
    source, target = sides
    topic, group = "pending", "pending-readers"
    for side in sides:
        create(side, topic, **{"retention.ms": "-1"})
        write(side, topic, ["a", "b", "c"])
    commit(source, group, topic, 1)
    producer = Producer({"bootstrap.servers": source, "transactional.id": topic})
    producer.init_transactions(30)
    producer.begin_transaction()
    consumer = Consumer({"bootstrap.servers": source, "group.id": group})
    at = [TopicPartition(topic, 0, 2)]
    producer.send_offsets_to_transaction(at, consumer.consumer_group_metadata(), 30)
    code, out, errors = copy(sides, group, "--execute", "-o", "json")
    assert (code, out) == (1, "")
    assert json.loads(errors)["code"] == "OPEN_TRANSACTION"
    assert committed(target, group, topic)[0] < 0
    assert copy(sides, group, "--topic", f"{topic}:1")[0] == 1  # it has no offset there
    producer.commit_transaction(30)
    consumer.close()

    def copied():
        return copy(sides, group, "--execute")[0] == 0

    wait_until(copied, "the end of the transaction")
    assert committed(target, group, topic)[0] == 2


@pytest.mark.proof
@pytest.mark.parametrize("sides", ["kafka"], indirect=True)
def test_a_group_of_the_new_protocol_of_kafka_is_carried_once_it_has_no_members(sides):
    source, target = sides
    topic, group = "new", "new-readers"
    for side in sides:
        create(side, topic, **{"retention.ms": "-1"})
        write(side, topic, ["a", "b", "c"])
    settings = {"bootstrap.servers": source, "group.id": group, "group.protocol": "consumer"}
    consumer = Consumer({**settings, "auto.offset.reset": "earliest", "enable.auto.commit": False})
    consumer.subscribe([topic])
    found = []

    def reads():
        found.extend(consumer.consume(1, 0.5))
        return found

    wait_until(reads, "the first record")
    consumer.commit(found[0], asynchronous=False)
    code, _, errors = copy(sides, group, "--execute", "-o", "json")
    assert (code, json.loads(errors)["code"]) == (1, "NON_EMPTY_GROUP")
    consumer.close()
    code, _, errors = copy(sides, group, "--execute")
    assert (code, errors) == (0, "")
    assert committed(target, group, topic)[0] == 1


class Meanwhile(AsyncAdminClient):
    """A client of the source. Something else happens there after its first look at the offsets."""

    def __init__(self, bootstrap, happens):
        super().__init__(ClientSettings(bootstrap))
        self._happens = happens
        self._looks = 0

    async def at_leaders_or_errors(self, *request, **more):
        found = await super().at_leaders_or_errors(*request, **more)
        self._looks += 1
        if self._looks == 2:  # the starts, then the ends
            self._happens()
        return found


def unread_while(bootstrap, group, happens):
    async def work():
        async with Meanwhile(bootstrap, happens) as client:
            return await read_source(client, group, Scope({}), None)

    return asyncio.run(work())


def test_records_that_come_meanwhile_are_no_open_transaction(sides):
    source, _ = sides
    topic, group = "growing", "growing-readers"
    create(source, topic, **{"retention.ms": "-1"})
    write(source, topic, ["a", "b"])
    commit(source, group, topic, 1)
    found = unread_while(source, group, lambda: write(source, topic, ["c"]))
    assert found[topic, 0].after.count == 2


def test_a_group_that_goes_on_while_its_records_are_read_is_not_copied(sides):
    source, _ = sides
    topic, group = "moving", "moving-readers"
    create(source, topic, **{"retention.ms": "-1"})
    write(source, topic, ["a", "b", "c"])
    commit(source, group, topic, 1)
    with pytest.raises(AdminError, match="committed other offsets while"):
        unread_while(source, group, lambda: commit(source, group, topic, 2))


def test_what_cannot_be_copied_is_one_line(sides):
    source, target = sides
    assert copy(sides, "absent") == (
        1,
        "",
        "gateway: Consumer group 'absent' does not exist at the source; "
        f"see `gateway group list --bootstrap {source}`\n",
    )
    create(source, "only-there")
    commit(source, "left", "only-there", 0)
    code, _, errors = copy(sides, "left")
    assert code == 1
    assert errors.startswith("gateway: topic 'only-there' does not exist; there ")
    assert errors.endswith("; the copy needs all partitions of the source\n")
    for word in ("none", "only-there:1"):
        code, out, errors = copy(sides, "left", "-t", word, "-t", "only-there:0")
        assert (code, out) == (1, "")
        assert errors == f"gateway: --topic {word}: group 'left' has no offset of it\n"
    code, _, errors = copy(sides, "left", "--execute", "--dry-run")
    assert (code, errors) == (2, "gateway: --execute and --dry-run: pass only one of them\n")
    code, _, errors = invoke("group", "copy", "left", "--from", "a:b", bootstrap=target)
    assert code == 2
    assert errors.startswith("gateway: --from: ")
    code, _, errors = invoke("group", "copy", "left", "--from", "127.0.0.1:1", bootstrap=target)
    assert code == 69
    assert errors.endswith("name the servers that the group comes from with --from host:port\n")


def test_the_side_of_the_copy_is_looked_at_before_the_source_is_read(sides):
    source, _ = sides
    away = ("group", "copy", "left", "--from", "127.0.0.1:1")
    code, _, errors = invoke(*away, "--bootstrap", "here")
    assert (code, errors.partition(": ")[2].partition(":")[0]) == (2, "--bootstrap"), errors
    code, _, errors = invoke(*away, "--bootstrap", "127.0.0.1:2")
    assert (code, "127.0.0.1:2" in errors) == (69, True), errors
    code, out, errors = copy((source, source), "left", "--execute", "-o", "json")
    assert (code, out, json.loads(errors)["code"]) == (1, "", "SAME_CLUSTER")


def record(key=b"k", value=b"v", headers=(), timestamp=1, timestamp_type=0):
    return PlainRecord(0, timestamp, timestamp_type, key, value, headers)


def digest(*records):
    found = Digest()
    for each in records:
        found.add(each)
    return found


def test_a_digest_tells_records_apart_by_all_that_is_copied():
    one = record(headers=[("h", b"1"), ("h", None)])
    assert digest(one, record()).same(digest(one, record()))
    others = [
        record(),
        record(headers=[("h", None), ("h", b"1")]),
        record(headers=[("h", b"1"), ("h", b"")]),
        record(headers=[("h", b"1")]),
        one._replace(key=None),
        one._replace(key=b""),
        one._replace(value=None),
        one._replace(key=b"kv", value=b""),
        one._replace(timestamp=2),
    ]
    assert not any(digest(one).same(digest(other)) for other in others)
    assert not digest(one).same(digest(one, one))
    # A broker that sets the times itself has others than the source.
    assert digest(one).same(digest(one._replace(timestamp=2, timestamp_type=1)))
