"""Goal: a client gets the addresses of the listener by which it connected, in every answer.

Method: the handlers with real requests in a cluster that the test sets up, of which this broker is
3; membership on the simulated metadata; servers on loopback; `gateway dev` as a process with two
listeners at two loopback addresses. A listener that advertises the address of another one is
planted, and the same check finds it.
"""

from __future__ import annotations

import asyncio
import re
import struct
import sys
from contextlib import asynccontextmanager
from types import SimpleNamespace

import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient
from kio.schema.errors import ErrorCode

from gateway.cluster.membership import BROKERS, ClusterMembership
from gateway.cluster.peers import peer_address
from gateway.cluster.port import ClusterMember, Leader, ListenerAddress, StreamKey
from gateway.config import ConnectionLimits, GatewayConfig, Listener
from gateway.handlers import (
    k03_metadata,
    k10_find_coordinator,
    k32_describe_configs,
    k55_describe_quorum,
    k60_describe_cluster,
    k75_describe_topic_partitions,
)
from gateway.handlers.api import Api, Context, Peer, Reply
from gateway.handlers.broker_endpoints import LeaderHints
from gateway.process.assemble import _own_bootstrap
from gateway.process.embedded import start_embedded
from gateway.server.dispatch import Dispatcher
from gateway.server.listener import CannotListen, Server
from gateway.server.registry import REACH_S_MAX
from gateway.topics.followers import preferred_read_replica
from gateway.wire.messages import encode_request
from ledger.sealed import seal
from tests.gateway.handler_cluster import loaded_cluster
from tests.gateway.paper_cluster import PaperCluster, member
from tests.peers.processes import Process, ports_in_a_row, until, wait_until
from tests.sim.loop import SimClock
from tests.sim.metadata import SimMetadata

HERE, THERE, OLD, OTHER = 3, 5, 7, 9
START_S_MAX = 60.0
OURS = {
    "OUT": Listener("OUT", "0.0.0.0", 9092, "localhost", 9092),
    "IN": Listener("IN", "0.0.0.0", 29092, "gateway-3", 29092),
}
BOTH = (ListenerAddress("OUT", "there", 9092), ListenerAddress("IN", "gateway-5", 29092))
# Where a client of each listener finds each broker. 7 is of an earlier release.
EXPECTED = {
    "OUT": {HERE: ("localhost", 9092), THERE: ("there", 9092), OLD: ("host7", 9007)},
    "IN": {
        HERE: ("gateway-3", 29092),
        THERE: ("gateway-5", 29092),
        OLD: ("host7", 9007),
        OTHER: ("only-in", 29092),
    },
}


@asynccontextmanager
async def cluster_of_two_listeners():
    async with loaded_cluster() as cluster:
        cluster.brokers = PaperCluster(
            HERE,
            [
                member(HERE),
                member(THERE, "r5", listeners=BOTH),
                member(OLD),
                member(OTHER, "r9", listeners=(ListenerAddress("IN", "only-in", 29092),)),
            ],
            leader_of_others=Leader(THERE, 4),
        )
        cluster.context.cluster = cluster.brokers
        cluster.context.listeners = OURS
        cluster.catalog._bookies = lambda: 3
        await cluster.catalog.create("orders", 2, 3, {})
        cluster.brokers.leaders[1] = Leader(OTHER, 6)
        cluster.brokers.ring = [HERE, THERE, OLD, OTHER]
        yield cluster


def came_by(listener):
    return Peer("10.0.0.9", 50_000, "10.0.0.1", OURS[listener].port, listener)


async def found_by(cluster, listener):
    """The addresses of all brokers, by the answer that named them."""
    cluster.peer = came_by(listener)
    found = {}
    metadata = await cluster.ask(k03_metadata, 12, topics=[])
    found["Metadata"] = {each.node_id: (each.host, each.port) for each in metadata.brokers}
    described = await cluster.ask(k60_describe_cluster, 1)
    found["DescribeCluster"] = {
        each.broker_id: (each.host, each.port) for each in described.brokers
    }
    asked = [{"topic_name": "__cluster_metadata", "partitions": [{"partition_index": 0}]}]
    quorum = await cluster.ask(k55_describe_quorum, 2, topics=asked)
    found["DescribeQuorum"] = {
        node.node_id: (node.listeners[0].host, node.listeners[0].port) for node in quorum.nodes
    }
    assert {node.listeners[0].name for node in quorum.nodes} == {listener}
    found["FindCoordinator"] = {}
    for each in cluster.brokers.members():
        cluster.brokers.coordinators["g"] = each
        answer = await cluster.ask(k10_find_coordinator, 2, key="g", key_type=0)
        if answer.error_code is ErrorCode.none:
            found["FindCoordinator"][answer.node_id] = (answer.host, answer.port)
        else:
            assert answer.error_code is ErrorCode.coordinator_not_available
    found["LeaderHints"] = hinted(cluster, listener)
    return found


def hinted(cluster, listener):
    topic = cluster.catalog.by_name("orders")
    found = {}
    for each in cluster.brokers.members():
        cluster.brokers.leaders[0] = Leader(each.node_id, 4)
        hints = LeaderHints(cluster.context, came_by(listener))
        if hints.leader(topic.topic_id, 0) is not None:
            (node,) = hints.nodes()
            found[node.node_id] = (node.host, node.port)
    return found


async def wrong_addresses(cluster):
    """Every answer that names another address than a client of that listener can use."""
    return [
        (listener, answer, found)
        for listener, expected in EXPECTED.items()
        for answer, found in (await found_by(cluster, listener)).items()
        if found != expected
    ]


async def test_every_answer_names_the_addresses_of_the_listener_of_the_client():
    async with cluster_of_two_listeners() as cluster:
        assert await wrong_addresses(cluster) == []


@pytest.mark.parametrize("place", ["own", "others"])
async def test_a_listener_that_advertises_the_address_of_another_is_found(place, monkeypatch):
    if place == "own":
        monkeypatch.setattr(Context, "address_for", lambda *_: ("localhost", 9092))
    else:
        monkeypatch.setattr(ClusterMember, "address_of", lambda self, _: (self.host, self.port))
    async with cluster_of_two_listeners() as cluster:
        names = {answer for _, answer, _ in await wrong_addresses(cluster)}
    assert names == {
        *("Metadata", "DescribeCluster", "DescribeQuorum", "FindCoordinator", "LeaderHints")
    }


@pytest.mark.parametrize("version", k03_metadata.API.versions)
async def test_a_partition_whose_leader_lacks_the_listener_has_none_as_in_kafka(version):
    async with cluster_of_two_listeners() as cluster:
        rows = {}
        for listener in OURS:
            cluster.peer = came_by(listener)
            answer = await cluster.ask(k03_metadata, version, topics=[{"name": "orders"}])
            rows[listener] = answer.topics[0].partitions
        assert [(each.error_code, each.leader_id) for each in rows["IN"]] == [
            (ErrorCode.none, THERE),
            (ErrorCode.none, OTHER),
        ]
        missing = ErrorCode.listener_not_found if version >= 6 else ErrorCode.leader_not_available
        assert [(each.error_code, each.leader_id) for each in rows["OUT"]] == [
            (ErrorCode.none, THERE),
            (missing, -1),
        ]
        if version >= 5:
            assert [each.offline_replicas for each in rows["OUT"]] == [(), (OTHER,)]
            assert [each.offline_replicas for each in rows["IN"]] == [(), ()]
        if version >= 7:
            assert [each.leader_epoch for each in rows["OUT"]] == [4, 6]


async def test_a_described_partition_whose_leader_lacks_the_listener_has_no_error_as_in_kafka():
    async with cluster_of_two_listeners() as cluster:
        cluster.peer = came_by("OUT")
        asked = {"topics": [{"name": "orders"}], "response_partition_limit": 10, "cursor": None}
        answer = await cluster.ask(k75_describe_topic_partitions, 0, **asked)
        rows = answer.topics[0].partitions
        assert [(each.error_code, each.leader_id) for each in rows] == [
            (ErrorCode.none, THERE),
            (ErrorCode.none, -1),
        ]


async def test_the_controller_is_one_that_the_client_can_reach():
    async with cluster_of_two_listeners() as cluster:
        only_in = (ListenerAddress("IN", "only-in", 29092),)
        cluster.brokers.alive = [member(1, listeners=only_in), *cluster.brokers.alive]
        cluster.peer = came_by("OUT")
        assert (await cluster.ask(k03_metadata, 12, topics=[])).controller_id == HERE
        cluster.peer = came_by("IN")
        assert (await cluster.ask(k60_describe_cluster, 1)).controller_id == 1


async def test_a_client_is_sent_to_no_replica_that_lacks_its_listener():
    async with cluster_of_two_listeners() as cluster:
        key = StreamKey(cluster.catalog.by_name("orders").topic_id, 0)
        cluster.brokers.leaders[0] = Leader(HERE, 1)
        chosen = {
            (rack, listener): preferred_read_replica(cluster.brokers, key, 4, rack, listener)
            for rack in ("r5", "r9")
            for listener in OURS
        }
        assert chosen == {
            ("r5", "OUT"): THERE,
            ("r5", "IN"): THERE,
            ("r9", "OUT"): -1,
            ("r9", "IN"): OTHER,
        }


async def test_the_configs_of_a_broker_list_all_listeners():
    async with loaded_cluster(listeners=tuple(OURS.values())) as cluster:
        cluster.context.listeners = {**OURS, "IN": Listener("IN", "::1", 29092)}
        cluster.peer = came_by("OUT")
        asked = [{"resource_type": 4, "resource_name": "3", "configuration_keys": None}]
        answer = await cluster.ask(k32_describe_configs, 2, resources=asked)
        values = {each.name: each.value for each in answer.results[0].configs}
        assert values["listeners"] == "OUT://0.0.0.0:9092,IN://0.0.0.0:29092"
        assert values["advertised.listeners"] == "OUT://localhost:9092,IN://[::1]:29092"


# -- registrations ---------------------------------------------------------------------------------

# As the release before listeners wrote it.
EARLIER = (
    b'1 eae408a7 {"features":{},"host":"host7","leaving":false,"peer_host":"","peer_port":0,'
    b'"port":9007,"rack":"","token":"token7"}'
)


def membership(store, node_id):
    return ClusterMembership(
        *(store, SimClock()),
        node_id=node_id,
        host="",
        port=0,
        rack="r1",
        session_ms=10_000,
        new_token=lambda: f"token{node_id}",
    )


async def test_a_registration_carries_all_listeners_and_the_fields_of_earlier_releases():
    store = SimMetadata()
    ours = membership(store, THERE)
    await ours.register()
    await ours.set_address("there", 9092, ("gateway-5", 29092), BOTH)
    await ours.refresh()
    (found,) = ours.members()
    assert found == ours.self_member
    assert [found.address_of(name) for name in ("OUT", "IN", "X")] == [
        ("there", 9092),
        ("gateway-5", 29092),
        None,
    ]
    document = (await store.get(f"{BROKERS}/{THERE}")).data
    earlier = {"host": "there", "port": 9092, "rack": "r1", "token": "token5", "leaving": False}
    earlier |= {"peer_host": "gateway-5", "peer_port": 29092, "features": {}}
    earlier["authorizes"] = False
    listeners = [["OUT", "there", 9092], ["IN", "gateway-5", 29092]]
    assert document == seal({**earlier, "listeners": listeners})
    await ours.close()


async def test_a_gateway_of_an_earlier_release_is_reached_at_its_single_address():
    store = SimMetadata()
    ours = membership(store, THERE)
    await ours.register()
    await store.create(f"{BROKERS}/{OLD}", EARLIER)
    await ours.refresh()
    old = ours.members()[1]
    assert (old.node_id, old.listeners) == (OLD, ())
    assert old.address_of("OUT") == old.address_of("ANY") == old.peer_address == ("host7", 9007)
    await ours.close()


@pytest.mark.parametrize(
    ("peer", "ours", "address"),
    [
        (("in", 2), "IN", ("in", 2)),
        (("in", 2), "OUT", ("out", 1)),  # ours is another one, until both have restarted
        (("in", 2), "NEW", ("in", 2)),  # it has no such listener yet
        (("host", 3), "OUT", ("host", 3)),  # it has --peer-host
        (("", 0), "OUT", ("out", 1)),  # the first listener, or the only one
    ],
)
def test_the_gateway_that_connects_chooses_the_listener(peer, ours, address):
    listeners = (ListenerAddress("OUT", "out", 1), ListenerAddress("IN", "in", 2))
    there = ClusterMember(THERE, "out", 1, "", "t", False, *peer, listeners)
    assert there.peer_address_by(ours) == address
    assert peer_address(SimpleNamespace(peer_listener=ours), there) == address


@pytest.mark.parametrize("listeners", [[["A", "h"]], [1], [["A", "h", "x"]], 7, [["A", "h", None]]])
async def test_a_registration_with_damaged_listeners_is_left_out(listeners):
    store = SimMetadata()
    ours = membership(store, THERE)
    await ours.register()
    fields = {"host": "h", "port": 1, "rack": "", "token": "t", "leaving": False}
    await store.create(f"{BROKERS}/{OLD}", seal({**fields, "listeners": listeners}))
    await ours.refresh()
    assert [each.node_id for each in ours.members()] == [THERE]
    await ours.close()


# -- servers ---------------------------------------------------------------------------------------


def metadata(handle):
    def counted(request, _):
        request.peer.looked_up += 1
        request.peer.sent_here = True
        return handle(request)

    return Api(key=3, name="Metadata", versions=range(13), handle=counted)


def heartbeat():
    return Api(key=12, name="Heartbeat", versions=range(5), handle=lambda *_: Reply(error_code=0))


BEAT = {"group_id": "g", "generation_id": 1, "member_id": "m"}


async def asked(port, key, body):
    """A connection by which one request was answered."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    frame = encode_request(key, 0, 1, "test", body)
    writer.write(struct.pack(">i", len(frame)) + frame)
    await reader.readexactly(struct.unpack(">i", await reader.readexactly(4))[0])
    return writer


@asynccontextmanager
async def served(listeners, **limits):
    seen = []

    def handle(request):
        seen.append(request.peer.listener)
        return Reply(brokers=[], topics=[])

    apis = {api.key: api for api in (metadata(handle), heartbeat())}
    server = Server(Dispatcher(apis, None), ConnectionLimits(**limits))
    await server.start_all(listeners)
    try:
        yield SimpleNamespace(server=server, seen=seen, ports=[x.port for x in server.listeners])
    finally:
        await server.stop(0.1)


FREE = [
    Listener("OUT", "127.0.0.1", 0, "out.example", 9092),
    Listener("IN", "127.0.0.1", 0, "in.example", 9092),
    Listener("PLAIN", "127.0.0.1", 0),
]


@pytest.mark.real_loop
async def test_a_connection_has_the_name_of_its_listener_and_limits_hold_over_all():
    async with served(FREE, connections_max=3) as one:
        writers = [await asked(port, 3, {"topics": []}) for port in one.ports]
        assert one.seen == ["OUT", "IN", "PLAIN"]
        assert len(one.server.registry.connections) == 3
        with pytest.raises(asyncio.IncompleteReadError):
            await asked(one.ports[0], 3, {"topics": []})
        for writer in writers:
            writer.close()


@pytest.mark.real_loop
async def test_a_port_in_use_names_its_listener_and_leaves_no_other_open():
    async with served(FREE[:1]) as one:
        server = Server(Dispatcher({}, None), ConnectionLimits())
        taken = Listener("IN", "127.0.0.1", one.ports[0])
        (free,) = ports_in_a_row(1)
        with pytest.raises(CannotListen) as caught:
            await server.start_all([Listener("OUT", "127.0.0.1", free), taken])
        assert caught.value.listener == taken
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection("127.0.0.1", free)


@pytest.mark.parametrize(
    ("chosen", "address"),
    [("IN", "[::1]:29092"), ("", "127.0.0.1:9092"), ("OUT", "127.0.0.1:9092")],
)
def test_the_page_asks_its_gateway_by_the_listener_for_brokers(chosen, address):
    """What is advertised for clients outside may be out of reach from the machine of a gateway."""
    listeners = (Listener("OUT", "0.0.0.0", 9092, "out.example"), Listener("IN", "::", 29092))
    config = GatewayConfig(listeners=listeners, inter_broker_listener=chosen)
    assert _own_bootstrap(config, listeners) == address


@pytest.mark.real_loop
async def test_a_client_that_comes_before_the_last_port_is_bound_gets_the_advertised_address(
    tmp_path, monkeypatch
):
    start_all, found = Server.start_all, []

    async def watched(server, listeners):
        ctx = server._dispatcher._ctx
        found.append(ctx.address_for(Peer("10.0.0.9", 50_000, "10.0.0.1", 9_092, "OUT")))
        await start_all(server, listeners)

    monkeypatch.setattr(Server, "start_all", watched)
    usual = {"ledger_port": None, "journal_sync": "never"}
    running = await start_embedded(GatewayConfig(data=tmp_path / "d", listeners=FREE, **usual))
    await running.stop()
    assert found == [("out.example", 9092)]


def check(registry, now_s, *, is_open=True):
    for connection, share in list(registry.connections.items()):
        registry._check_reached(connection, share, now_s, is_open=is_open)


@pytest.mark.real_loop
async def test_a_client_that_never_comes_to_the_advertised_address_is_one_warning(capsys):
    async with served(FREE) as one:
        registry = one.server.registry
        now_s = registry.loop.time()
        assert registry.unreached == {"OUT": "out.example:9092", "IN": "in.example:9092"}
        first = await asked(one.ports[0], 3, {"topics": []})
        check(registry, now_s)
        check(registry, now_s + REACH_S_MAX - 1)
        assert capsys.readouterr().err == ""
        for later_s in (0, 1, 1000):
            check(registry, now_s + REACH_S_MAX + later_s)
        (line,) = capsys.readouterr().err.splitlines()
        assert "a client was sent to the advertised address, and has not come there" in line
        assert "listener=OUT advertised=out.example:9092 peer=127.0.0.1" in line
        assert list(registry.unreached) == ["IN"]
        first.close()


@pytest.mark.real_loop
@pytest.mark.parametrize(
    ("times_s", "is_warned"),
    [
        ((0, 10, 20, 30), True),
        ((0, 30), False),  # two looks at a topic
        ((0, 1, 2), False),
        ((0, 10, 20, 51, 60, 70), False),  # it was away
        ((0, 10, 20, 51, 60, 70, 81), True),
    ],
)
async def test_a_client_that_asks_again_and_again_by_connections_of_its_own_waits_too(
    capsys, times_s, is_warned
):
    async with served(FREE) as one:
        registry = one.server.registry
        writer = await asked(one.ports[1], 3, {"topics": []})
        for time_s in times_s:
            check(registry, time_s, is_open=False)
        assert ("listener=IN" in capsys.readouterr().err) == is_warned
        writer.close()


@pytest.mark.real_loop
async def test_clients_that_left_long_ago_make_room_for_one_that_waits(capsys, monkeypatch):
    monkeypatch.setattr("gateway.server.registry._WAITING_MAX", 1)
    async with served(FREE) as one:
        registry = one.server.registry
        now_s = registry.loop.time()
        registry._waits("OUT", "10.0.0.7", now_s, is_open=True)
        came = await asked(one.ports[0], 3, {"topics": []})
        later_s = now_s + 2 * REACH_S_MAX
        for more_s in (0, 1, REACH_S_MAX + 1):
            check(registry, later_s + more_s)
        assert "has not come there" in capsys.readouterr().err
        came.close()


@pytest.mark.real_loop
async def test_a_listener_by_which_one_client_sent_more_than_look_ups_has_no_warning(capsys):
    async with served(FREE) as one:
        registry = one.server.registry
        waiting = await asked(one.ports[0], 3, {"topics": []})
        user = await asked(one.ports[0], 12, BEAT)
        user.close()
        await until(lambda: len(registry.connections) == 1, "the user to be gone")
        assert list(registry.unreached) == ["IN"]
        for later_s in (0.0, 2 * REACH_S_MAX):
            check(registry, registry.loop.time() + later_s)
        assert capsys.readouterr().err == ""
        waiting.close()


@pytest.mark.real_loop
async def test_a_listener_without_an_advertised_address_is_not_checked(capsys):
    async with served(FREE[2:]) as one:
        assert one.server.registry.unreached == {}


# -- a process -------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def gateway(tmp_path_factory):
    """A gateway that clients find at 127.0.0.1 from outside and at 127.0.0.2 from inside."""
    directory = tmp_path_factory.mktemp("listeners")
    outside, inside = ports_in_a_row(2)
    words = [f"--listener=OUT=127.0.0.1:{outside}", f"--advertise=OUT=localhost:{outside}"]
    words += [f"--listener=IN=127.0.0.2:{inside}"]
    argv = [sys.executable, "-m", "gateway", "dev", *words]
    argv += ["--ledger-port", "0", "--no-http-port", "--data", str(directory / "data")]
    argv += ["--group-initial-rebalance-delay", "0"]
    process = Process(argv, directory / "log", errors=directory / "errors")
    try:
        process.wait_output("KafkaServer", START_S_MAX)
        yield SimpleNamespace(
            process=process,
            errors=directory / "errors",
            inside=("127.0.0.2", inside),
            outside=("localhost", outside),
        )
    finally:
        process.stop(START_S_MAX)


def test_each_listener_is_printed(gateway):
    wait_until(lambda: "listener: IN" in gateway.process.output(), "its lines")
    lines = gateway.process.output().splitlines()
    assert lines[0].startswith(
        f"gateway started: bootstrap.servers=127.0.0.1:{gateway.outside[1]} "
    )
    outside, inside = gateway.outside[1], gateway.inside[1]
    assert [line for line in lines if line.startswith("listener: ")] == [
        f"listener: OUT=127.0.0.1:{outside} advertised=localhost:{outside}",
        f"listener: IN=127.0.0.2:{inside}",
    ]


@pytest.mark.parametrize("place", ["outside", "inside"])
def test_a_client_writes_and_reads_by_its_own_listener(gateway, place):
    host, port = getattr(gateway, place)
    settings = {"bootstrap.servers": f"{host}:{port}", "log_level": 0}
    (broker,) = AdminClient(settings).list_topics(timeout=START_S_MAX).brokers.values()
    assert (broker.host, broker.port) == (host, port)
    producer = Producer(settings)
    producer.produce(place, b"value")
    assert producer.flush(START_S_MAX) == 0
    consumer = Consumer({**settings, "group.id": place, "auto.offset.reset": "earliest"})
    consumer.subscribe([place])
    (message,) = consumer.consume(1, START_S_MAX)
    assert (message.error(), message.value()) == (None, b"value")
    consumer.close()
    assert gateway.errors.read_text() == ""


@pytest.mark.proof
def test_a_producer_that_cannot_reach_the_advertised_address_is_one_warning(tmp_path):
    port, closed = ports_in_a_row(2)
    words = [f"--listener=OUT=127.0.0.1:{port}", f"--advertise=OUT=127.0.0.1:{closed}"]
    argv = [sys.executable, "-m", "gateway", "dev", *words, "--no-ledger-port"]
    argv += ["--no-http-port", "--data", str(tmp_path / "data")]
    process = Process(argv, tmp_path / "log", errors=tmp_path / "errors")
    try:
        process.wait_output("KafkaServer", START_S_MAX)
        producer = Producer({"bootstrap.servers": f"127.0.0.1:{port}", "log_level": 0})
        producer.produce("t", b"value")
        assert producer.flush(2 * REACH_S_MAX) == 1
        (line,) = (tmp_path / "errors").read_text().splitlines()
        assert f"listener=OUT advertised=127.0.0.1:{closed} peer=127.0.0.1" in line
        producer.purge()
    finally:
        process.stop(START_S_MAX)


def test_a_port_in_use_is_a_fault_of_that_listener(gateway, tmp_path):
    host, port = gateway.inside
    words = ["dev", "--listener", "A=127.0.0.1:0", "--listener", f"B={host}:{port}"]
    argv = [sys.executable, "-m", "gateway", *words, "--data", str(tmp_path / "data")]
    process = Process(argv, tmp_path / "log", errors=tmp_path / "errors")
    try:
        assert process.wait_exit(START_S_MAX) == 78
    finally:
        process.kill()
    errors = (tmp_path / "errors").read_text()
    assert re.fullmatch(
        rf"gateway: --listener B={host}:{port}: the port is in use; pass another one\n", errors
    )
