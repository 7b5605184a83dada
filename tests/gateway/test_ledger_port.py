"""Goal: whoever is on the same machine reads what `gateway dev` stores, and can change none of it.

Method: one real gateway with three bookies, records by a stock client, and readers of our own that
reach the bookies through the ledger port alone; a second gateway where one is killed.
"""

import asyncio
import contextlib
import json
import socket
import time
from pathlib import Path

import pytest
from confluent_kafka import Producer, TopicPartition

from gateway.pipelines.direct.options import StorageAddress
from gateway.pipelines.shared.errors import DataLost, JobError
from gateway.pipelines.shared.storage import open_storage, read_topic, read_topics
from gateway.process.server_settings import LEDGER_PORT
from gateway.topics.partitions import stream_name
from gateway.wire import batches
from ledger.adapters.grpc.grpc_bookies import GrpcBookies
from ledger.adapters.grpc.grpc_config import GrpcClientConfig
from ledger.adapters.grpc.grpc_metadata import GrpcMetadata
from ledger.adapters.grpc.grpc_metadata_server import _Watches
from ledger.adapters.sqlite.sqlite_metadata import SqliteMetadata
from ledger.adapters.system.clock import SystemClock
from ledger.errors import Fenced, LedgerError, MetadataUnavailable, NoNode, ReadOnlyStore
from ledger.ids import EntryId, LedgerId
from ledger.node.read_port import ReadPort
from ledger.ports.bookies import Status
from ledger.ports.metadata import ANY_VERSION, Create
from ledger.registry.discovery import Discovery
from ledger.streams.follower import FollowedStream
from ledger.streams.scan import StreamScan
from ledger.streams.slice_read import read_slice
from ledger.streams.stream import StreamServices
from ledger.wire.metadata_pb2 import WatchRequest
from tests.gateway.admin_commands import consumer, invoke
from tests.peers.gateway import Gateway
from tests.peers.processes import free_port

pytestmark = pytest.mark.real_loop

SEEN_S_MAX = 0.2


class Loader:
    """A stock producer whose sends are acknowledged one by one."""

    def __init__(self, gateway, **config):
        self.producer = Producer({"bootstrap.servers": gateway.bootstrap, "linger.ms": 0, **config})

    def send(self, topic, *values, partition=0):
        """Offset of the last one, once all are acknowledged."""
        offsets = []

        def acknowledged(error, message):
            assert error is None, error
            offsets.append(message.offset())

        for value in values:
            self.producer.produce(topic, value, partition=partition, on_delivery=acknowledged)
        assert self.producer.flush(60) == 0
        return max(offsets)


@pytest.fixture(scope="module")
def gateway(tmp_path_factory):
    data = tmp_path_factory.mktemp("ledgers") / "data"
    options = ("--bookies", "3", "--journal-sync", "never", "--host", "0.0.0.0", "--allow-insecure")
    with Gateway(data, options) as started:
        yield started


async def scan_of(storage, topic):
    found = await read_topic(storage.store, topic)
    name = stream_name(found.topic_id, 0)
    return await StreamScan.open(name, storage.store, storage.client, batches.timestamp_max)


async def records_in(storage, scan, first, end, slice_bytes=10_000):
    """How many records the stored batches of that range say that they hold."""
    count = 0
    for piece in await scan.cut(first, end, slice_bytes):
        async for chunk in read_slice(storage.store, storage.client, piece):
            count += sum(record.end_sequence_id - record.sequence_id for record in chunk)
    return count


async def until_past(follower, offset, moved):
    async with asyncio.timeout(60):
        while follower.end_sequence_id <= offset:
            await moved.wait()
            moved.clear()


async def refreshed(scan):
    """Tried again while the gateway is away."""
    async with asyncio.timeout(60):
        while True:
            try:
                return await scan.refresh()
            except LedgerError:
                await asyncio.sleep(0.1)


# What is read


async def test_every_acknowledged_record_is_read_past_the_gateway(gateway):
    loader = Loader(gateway)
    sent = [b"%d" % number * 100 for number in range(2000)]
    loader.send("whole", *sent)

    async with open_storage(gateway.ledgers) as storage:
        scan = await scan_of(storage, "whole")
        assert (scan.start_sequence_id, scan.end_sequence_id) == (0, len(sent))
        assert await records_in(storage, scan, 0, len(sent)) == len(sent)
        scan.close()


async def test_the_last_record_is_seen_as_soon_as_it_is_acknowledged(gateway):
    loader = Loader(gateway)
    loader.send("soon", b"first")

    async with open_storage(gateway.ledgers) as storage:
        scan = await scan_of(storage, "soon")
        waited_s = []
        for _ in range(20):
            offset = loader.send("soon", b"next")
            acknowledged_s = time.monotonic()
            await scan.refresh()
            assert scan.end_sequence_id == offset + 1
            waited_s.append(time.monotonic() - acknowledged_s)
        assert sorted(waited_s)[-3] < 25 * SEEN_S_MAX  # a busy machine, which may stand still
        scan.close()


async def test_who_follows_is_told_of_the_last_record_though_nothing_comes_after_it(gateway):
    loader = Loader(gateway)
    loader.send("followed", b"first")

    async with open_storage(gateway.ledgers) as storage:
        topic = await read_topic(storage.store, "followed")
        services = StreamServices(storage.store, storage.client, SystemClock())
        moved = asyncio.Event()
        follower = FollowedStream(
            stream_name(topic.topic_id, 0),
            services,
            batches.timestamp_max,
            lambda end: moved.set(),
        )
        await follower.open()
        waited_s = []
        for _ in range(10):
            moved.clear()
            offset = await asyncio.to_thread(loader.send, "followed", b"next")
            acknowledged_s = time.monotonic()
            await until_past(follower, offset, moved)
            waited_s.append(time.monotonic() - acknowledged_s)
        await follower.close()
        assert sorted(waited_s)[2] < SEEN_S_MAX


async def test_nothing_is_written_for_readers(gateway):
    loader = Loader(gateway)
    loader.send("lean", b"only")

    async with open_storage(gateway.ledgers) as storage:
        scan = await scan_of(storage, "lean")
        before = await storage.client.open(scan.segments[-1].ledger)
        await asyncio.sleep(0.5)
        await scan.refresh()
        after = await storage.client.open(scan.segments[-1].ledger)
        assert before.last_add_confirmed == after.last_add_confirmed
        scan.close()


async def test_topics_are_listed_with_what_is_set_for_them(gateway):
    Loader(gateway).send("listed", b"x")

    async with open_storage(gateway.ledgers) as storage:
        topics = {topic.name: topic for topic in await read_topics(storage.store)}
        assert topics["listed"] == await read_topic(storage.store, "listed")
        assert topics["listed"].partitions == 1
        with pytest.raises(JobError, match="does not exist") as failed:
            await read_topic(storage.store, "another")
        assert failed.value.code == "UNKNOWN_TOPIC"


async def test_a_gateway_that_dies_before_its_topics_are_read_is_unreachable(tmp_path):
    """Jobs repeat what failed with this code."""
    with Gateway(tmp_path / "data") as dying:
        async with open_storage(dying.ledgers) as storage:
            dying.kill()
            with pytest.raises(JobError, match="topics cannot be read") as all_failed:
                await read_topics(storage.store)
            with pytest.raises(JobError, match="topics cannot be read") as one_failed:
                await read_topic(storage.store, "any")
    assert all_failed.value.code == one_failed.value.code == "UNREACHABLE"


# Nothing is changed


async def test_no_change_of_metadata_is_taken(gateway):
    async with open_storage(gateway.ledgers) as storage:
        store = storage.store
        for change in (
            store.set("/gateway/cluster_id", b"", ANY_VERSION),
            store.create("/mine"),
            store.delete("/gateway/cluster_id"),
            store.multi([Create("/mine")]),
        ):
            with pytest.raises(ReadOnlyStore):
                await change
        assert await store.exists("/gateway/cluster_id")
        assert not await store.exists("/mine")


async def test_the_keys_of_scram_users_are_not_shown(tmp_path):
    async def prepare():
        pass

    store = SqliteMetadata(tmp_path / "metadata.sqlite")
    for path in ("/gateway/scram/ann", "/gateway/scrambled"):
        await store.create(path, b"secret" if path.endswith("ann") else b"", parents=True)
    port = ReadPort(store, [], lambda _: EntryId(-1), prepare, hidden=("/gateway/scram",))
    await port.start(0)
    shown = GrpcMetadata("127.0.0.1", port.port)
    for path in ("/gateway/scram", "/gateway/scram/ann"):
        with pytest.raises(NoNode):
            await shown.get(path)
        with pytest.raises(NoNode):
            await shown.children(path)
    assert await shown.children("/gateway") == ["scrambled"]
    for path in ("/", "/gateway", "/gateway/scram", "/gateway/scram/ann"):
        found = await shown.read_tree(path)
        assert not [each for each in found if each.startswith("/gateway/scram/")]
        assert "/gateway/scram" not in found
        assert b"secret" not in [node.data for node in found.values()]
    await shown.close()
    await port.stop()
    await store.close()


async def test_the_port_of_a_gateway_hides_the_scram_users(gateway):
    async with open_storage(gateway.ledgers) as storage:
        names = await storage.store.children("/gateway")
        assert "quotas" in names
        assert "scram" not in names


async def test_nobody_fences_adds_or_tells_a_lac_through_it(gateway):
    loader = Loader(gateway)
    loader.send("safe", b"before")

    async with open_storage(gateway.ledgers) as storage:
        scan = await scan_of(storage, "safe")
        ledger = scan.segments[-1].ledger
        discovery = Discovery(storage.store)
        await discovery.start()
        bookies = GrpcBookies(discovery.registered, GrpcClientConfig())
        assert len(bookies.registered()) == 3 and bookies.available() == ()
        for bookie in bookies.registered():
            answered = asyncio.get_running_loop().create_future()
            bookies.add(bookie, ledger, EntryId(0), b"", (b"x" * 100,), answered.set_result)
            fenced = await bookies.read(bookie, ledger, EntryId(-1), fence_key=b"")
            refused = [
                await answered,
                fenced.status,
                await bookies.write_lac(bookie, ledger, b"", EntryId(10**6)),
                await bookies.end_limbo(bookie, ledger, b""),
            ]
            assert refused == [Status.READ_ONLY] * 4
            assert (await bookies.read(bookie, LedgerId(10**9), EntryId(0))).status is (
                Status.NO_LEDGER
            )
        with pytest.raises(LedgerError) as failed:
            await storage.client.recover(ledger)
        assert not isinstance(failed.value, Fenced)
        await bookies.close()
        await discovery.stop()
        scan.close()
    assert loader.send("safe", b"after") == 1


async def test_garbage_and_a_crowd_leave_kafka_alone_and_readers_come_back(gateway):
    loader = Loader(gateway)
    loader.send("crowded", b"x")
    address = ("127.0.0.1", gateway.ledger_port)
    with contextlib.ExitStack() as crowd:
        for number in range(300):
            peer = crowd.enter_context(socket.create_connection(address, timeout=60))
            peer.sendall(bytes([number % 256]) * 100)
        assert loader.send("crowded", b"y") == 1

    async with open_storage(gateway.ledgers) as storage:
        scan = await scan_of(storage, "crowded")
        assert scan.end_sequence_id == 2
        scan.close()


# Finding it


def test_the_history_of_a_group_is_read_there(gateway):
    Loader(gateway).send("past", b"x")
    reader = consumer(gateway, "past")
    reader.commit(offsets=[TopicPartition("past", 0, 1)], asynchronous=False)
    reader.close()
    words = ("group", "history", "past", "--zookeeper", gateway.ledgers)
    code, out, errors = invoke(*words, "-o", "json", bootstrap=gateway.bootstrap)
    assert (code, errors) == (0, "")
    (row,) = [row for row in json.loads(out) if row["topic"] == "past"]
    assert row["offset"] == 1


def test_the_commands_of_ledgers_and_bookies_work_there(gateway):
    Loader(gateway).send("commanded", b"x")
    code, out, _ = invoke("ledger", "list", "--zookeeper", gateway.ledgers, "-o", "json")
    assert code == 0 and any(row["state"] == "OPEN" for row in json.loads(out))
    code, out, _ = invoke("bookie", "list", "--zookeeper", gateway.ledgers, "-o", "json")
    assert code == 0 and len(json.loads(out)) == 3
    code, _, err = invoke("ledger", "recover", "0", "--yes", "--zookeeper", gateway.ledgers)
    assert code != 0 and "Traceback" not in err


def test_it_says_where_the_ledgers_are(gateway):
    assert f"ledgers: {gateway.ledgers}\n" in gateway.process.output()


def test_kafka_goes_on_where_the_port_is_taken_and_one_line_says_so(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        with Gateway(tmp_path / "data", ["--ledger-port", port]) as broker:
            assert Loader(broker).send("topic", b"x") == 0
            said = [line for line in broker.process.output().splitlines() if port in line]
            assert len(said) == 1
            assert said[0].startswith(f"gateway: ledger-port {port}: ")
            assert "ledgers:" not in broker.process.output()


class OnAnyLedgerPort(Gateway):
    """A gateway whose command names no ledger port."""

    def argv(self):
        words = super().argv()
        at = words.index("--ledger-port")
        return words[:at] + words[at + 2 :]


def started_beside(path):
    """Start a gateway while its usual ledger port is taken. Returns whether this process took it,
    and the port that the gateway has instead.
    """
    ours = False
    with contextlib.ExitStack() as stack:
        with contextlib.suppress(OSError):  # another process listens there, which is as good
            stack.enter_context(socket.create_server(("127.0.0.1", LEDGER_PORT)))
            ours = True
        broker = stack.enter_context(OnAnyLedgerPort(path))
        assert Loader(broker).send("topic", b"x") == 0
        (line,) = [line for line in broker.process.output().splitlines() if "ledger" in line]
        code, out, _ = invoke("ledger", "list", "-o", "json", bootstrap=broker.bootstrap)
        assert code == 0
        assert "topic" in [row["topic"] for row in json.loads(out)]
    return ours, int(line.removeprefix("ledgers: grpc://127.0.0.1:"))


def test_without_a_choice_a_taken_port_is_replaced_by_any_free_one(tmp_path):
    for turn in range(10):
        ours, port = started_beside(tmp_path / f"data-{turn}")
        if ours or port != LEDGER_PORT:  # else the other process had ended before
            break
    assert port != LEDGER_PORT


def test_without_the_port_nobody_listens(tmp_path):
    with Gateway(tmp_path / "data", ["--no-ledger-port"]) as broker:
        assert "ledgers:" not in broker.process.output()
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", broker.ledger_port)).close()


def test_it_listens_on_loopback_only_wherever_kafka_listens(gateway):
    table = Path(f"/proc/{gateway.process.pid}/net/tcp").read_text()
    rows = [line.split() for line in table.splitlines()[1:]]
    listening = {address for _, address, _, state, *_ in rows if state == "0A"}
    assert f"0100007F:{gateway.ledger_port:04X}" in listening
    assert f"00000000:{gateway.port:04X}" in listening


@pytest.mark.parametrize(
    ("metadata", "code", "said"),
    [
        ("grpc://nowhere", "USAGE", "grpc://127.0.0.1:3181"),
        ("http://127.0.0.1:1", "USAGE", "zk://host:port"),
        ("grpc://127.0.0.1:PORT", "UNREACHABLE", "gateway dev"),
        ("zk://127.0.0.1:PORT", "UNREACHABLE", "ZooKeeper"),
    ],
)
async def test_a_wrong_address_is_said_plainly(metadata, code, said):
    metadata = metadata.replace("PORT", str(free_port()))  # where nobody listens

    with pytest.raises(JobError, match=said) as failed:
        async with open_storage(metadata, connect_s=0.3):
            pass
    assert failed.value.code == code


async def test_a_reader_goes_on_when_the_gateway_was_killed_and_is_back(tmp_path):
    with Gateway(tmp_path / "data") as broker:
        loader = Loader(broker)
        loader.send("survivor", *[b"x"] * 10)

        async with open_storage(broker.ledgers) as storage:
            renewed = asyncio.Event()
            storage.store.watch("/gateway", renewed.set)
            scan = await scan_of(storage, "survivor")
            await asyncio.to_thread(broker.restart, kill=True)
            await asyncio.to_thread(loader.send, "survivor", *[b"y"] * 10)
            async with asyncio.timeout(60):
                await renewed.wait()
            await refreshed(scan)
            assert scan.end_sequence_id == 20
            assert await records_in(storage, scan, 0, 20) == 20
            scan.close()


async def test_after_a_crash_the_last_acknowledged_record_is_seen_though_nobody_speaks_kafka(
    tmp_path,
):
    with Gateway(tmp_path / "data") as broker:
        loader = Loader(broker)
        for value in (b"a", b"b", b"c"):
            loader.send("left", value)
        broker.restart(kill=True)

        async with open_storage(broker.ledgers) as storage:
            scan = await scan_of(storage, "left")
            assert scan.end_sequence_id == 3
            scan.close()


async def test_the_next_reader_is_served_where_the_first_one_could_not_be(tmp_path):
    failures = [MetadataUnavailable("not now")]

    async def prepare():
        if failures:
            raise failures.pop()

    store = SqliteMetadata(tmp_path / "metadata.sqlite")
    port = ReadPort(store, [], lambda _: EntryId(-1), prepare)
    await port.start(0)
    reader, writer = await asyncio.open_connection("127.0.0.1", port.port)
    async with asyncio.timeout(60):
        assert await reader.read() == b""
    writer.close()
    shown = GrpcMetadata("127.0.0.1", port.port)
    assert await shown.exists("/")
    await shown.close()
    await port.stop()
    await store.close()


def test_the_next_task_of_a_worker_reads_on_though_the_gateway_was_killed_in_between(tmp_path):
    from gateway.pipelines.direct.batch import LedgerBatchReader
    from gateway.pipelines.direct.options import parse
    from gateway.pipelines.direct.storage_connection import drop_cached

    with Gateway(tmp_path / "data") as broker:
        reader = LedgerBatchReader(parse({"metadata": broker.ledgers, "path": "between"}))

        def rows():
            return sum(rows.num_rows for each in reader.partitions() for rows in reader.read(each))

        loader = Loader(broker)
        loader.send("between", b"a", b"b")
        try:
            assert rows() == 2
            broker.restart(kill=True)
            loader.send("between", b"c")
            assert rows() == 3
        finally:
            drop_cached(StorageAddress(broker.ledgers))


async def test_who_asks_for_watches_and_never_reads_is_not_heeded_for_ever(tmp_path):
    store = SqliteMetadata(tmp_path / "metadata.sqlite")
    watches = _Watches(store.watch)  # of one client, to which nothing is written
    asked = (WatchRequest(path="/", number=number) for number in range(1, 1_000_000))
    assert not all(map(watches.heed, asked))
    watches.close()
    await store.close()


def test_a_stream_says_that_its_topic_was_made_anew_though_the_new_one_is_longer(gateway):
    from gateway.pipelines.direct.options import parse
    from gateway.pipelines.direct.stream import LedgerStreamReader

    given = {"metadata": gateway.ledgers, "path": "anew", "startingOffsets": "earliest"}
    reader = LedgerStreamReader(parse(given, streaming=True))
    loader = Loader(gateway)
    loader.send("anew", b"a", b"b")
    try:
        first, second = reader.initialOffset(), reader.latestOffset()
        assert (first["anew"], second["anew"]) == ({"0": 0}, {"0": 2})
        assert len(reader.partitions(first, second)) == 1
        assert invoke("topic", "delete", "anew", "--yes", bootstrap=gateway.bootstrap)[0] == 0
        assert invoke("topic", "create", "anew", bootstrap=gateway.bootstrap)[0] == 0
        Loader(gateway).send("anew", b"c", b"d", b"e")
        with pytest.raises(DataLost, match="recreated"):
            reader.latestOffset()
    finally:
        reader.stop()
