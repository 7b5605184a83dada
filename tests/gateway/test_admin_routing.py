"""Goal: the admin client asks who knows: any server for the map, the coordinator for a group, each
leader for its partitions; and follows those who move, for a bounded time.

Method: small servers on loopback ports that answer from one shared picture of a cluster.
"""

import asyncio
import struct
import time
from contextlib import asynccontextmanager

import pytest

from gateway.admin.client import AdminClient, AdminError, Unreachable
from gateway.admin.groups import committed, find_group, list_groups
from gateway.admin.topics import LATEST, offsets
from gateway.wire.messages import decode_request, encode_response, request_codec

pytestmark = pytest.mark.real_loop

VERSIONS = {2: 5, 3: 8, 9: 7, 10: 2, 15: 4, 16: 4, 32: 3, 61: 0, 66: 0}
NOT_LEADER, NOT_COORDINATOR, LOADING = 6, 16, 14


class Cluster:
    """What all servers answer from. `sulks`: codes that a server says before it answers a key."""

    def __init__(self):
        self.ports = {}
        self.coordinators = {}
        self.leaders = {}
        self.groups = {}  # node id: group ids
        self.sulks = {}  # (node id, key): codes
        self.asked = []  # (node id, key)

    def answer(self, node_id, key, version, body):
        self.asked.append((node_id, key))
        sulks = self.sulks.get((node_id, key), [])
        code = sulks.pop(0) if sulks else 0
        return getattr(self, f"_{key}")(node_id, body, code)

    def _18(self, node_id, body, code):
        rows = [{"api_key": k, "min_version": 0, "max_version": v} for k, v in VERSIONS.items()]
        return {"error_code": 0, "api_keys": rows}

    def _3(self, node_id, body, code):
        names = {topic for topic, _ in self.leaders}
        if body.topics is not None:
            names = [topic.name for topic in body.topics]
        return {
            "brokers": [
                {"node_id": n, "host": "127.0.0.1", "port": port} for n, port in self.ports.items()
            ],
            "controller_id": 0,
            "topics": [
                {
                    "name": name,
                    "error_code": 0,
                    "partitions": [
                        {"partition_index": p, "leader_id": leader, "error_code": 0}
                        for (topic, p), leader in self.leaders.items()
                        if topic == name
                    ],
                }
                for name in names
            ],
        }

    def _10(self, node_id, body, code):
        found = self.coordinators[body.key]
        where = {"node_id": found, "host": "127.0.0.1", "port": self.ports[found]}
        return {"error_code": code, "error_message": None, **where}

    def _15(self, node_id, body, code):
        (group,) = body.groups
        if self.coordinators[group] != node_id:
            code = NOT_COORDINATOR
        return {"groups": [{"group_id": group, "error_code": code, "group_state": "Empty"}]}

    def _16(self, node_id, body, code):
        names = [] if code else self.groups.get(node_id, [])
        return {
            "error_code": code,
            "groups": [{"group_id": n, "protocol_type": "", "group_state": "Empty"} for n in names],
        }

    def _9(self, node_id, body, code):
        here = [{"partition_index": 0, "committed_offset": 5, "metadata": "", "error_code": 0}]
        topics = [] if code else [{"name": "t", "partitions": here}]
        return {"error_code": code, "topics": topics}

    def _2(self, node_id, body, code):
        def said(name, index):
            wrong = self.leaders[name, index] != node_id
            return {
                "partition_index": index,
                "error_code": NOT_LEADER if wrong else code,
                "offset": -1 if wrong else 100 * node_id + index,
                "timestamp": -1,
            }

        return {
            "topics": [
                {
                    "name": topic.name,
                    "partitions": [said(topic.name, p.partition_index) for p in topic.partitions],
                }
                for topic in body.topics
            ]
        }


async def _serve(cluster, node_id, reader, writer):
    try:
        while True:
            size = struct.unpack(">i", await reader.readexactly(4))[0]
            frame = await reader.readexactly(size)
            key, version, correlation_id, name = struct.unpack_from(">hhih", frame)
            at = 10 + max(name, 0) + request_codec(key, version).flexible
            body = decode_request(key, version, frame, at)
            reply = cluster.answer(node_id, key, version, body)
            out = b"".join(encode_response(key, version, correlation_id, reply))
            writer.write(struct.pack(">i", len(out)) + out)
    except (asyncio.IncompleteReadError, ConnectionError):
        pass
    finally:
        writer.close()


@asynccontextmanager
async def three_servers(*, first=0, made=Cluster, **limits):
    """A client of three servers, the cluster and the servers; `first` dead ones lead its list."""
    cluster, servers = made(), {}
    for node_id in (1, 2, 3):
        serve = lambda r, w, n=node_id: _serve(cluster, n, r, w)  # noqa: E731
        servers[node_id] = await asyncio.start_server(serve, "127.0.0.1", 0)
        cluster.ports[node_id] = servers[node_id].sockets[0].getsockname()[1]
    named = ["127.0.0.1:1"] * first + [f"127.0.0.1:{cluster.ports[1]}"]
    try:
        async with AdminClient(",".join(named), **limits) as client:
            yield client, cluster, servers
    finally:
        for server in servers.values():
            server.close()


async def test_the_first_bootstrap_server_that_answers_is_asked():
    async with three_servers(first=2) as (client, _cluster, _servers):
        assert [broker.node_id for broker in await client.brokers()] == [1, 2, 3]


async def test_without_any_bootstrap_server_each_is_named():
    with pytest.raises(Unreachable, match=r"127\.0\.0\.1:1: .*; no server at 127\.0\.0\.1:2: "):
        async with AdminClient("127.0.0.1:1,127.0.0.1:2"):
            pass


async def test_a_group_is_asked_for_at_its_coordinator():
    async with three_servers() as (client, cluster, _servers):
        cluster.coordinators["g"] = 3
        assert (await find_group(client, "g")).group_id == "g"
        assert await committed(client, "g") == {("t", 0): (5, -1, "")}
        assert {node for node, key in cluster.asked if key in (9, 15)} == {3}


async def test_a_coordinator_that_moves_is_followed():
    async with three_servers() as (client, cluster, servers):
        cluster.coordinators["g"] = 2
        cluster.sulks[1, 10] = [15]  # COORDINATOR_NOT_AVAILABLE
        cluster.sulks[2, 15] = [NOT_COORDINATOR, LOADING]
        assert (await find_group(client, "g")).group_id == "g"
        assert cluster.asked.count((2, 15)) == 3
        servers[2].close()
        client_links = list(client._links.values())
        for link in client_links[1:]:
            await link.close()
        asyncio.get_running_loop().call_later(0.3, cluster.coordinators.update, {"g": 3})
        assert (await find_group(client, "g")).group_id == "g"
        assert cluster.asked[-1] == (3, 15)


async def test_a_coordinator_that_is_never_ready_is_given_up_in_time_and_its_code_told():
    async with three_servers(retry_s_max=0.3) as (client, cluster, _servers):
        cluster.coordinators["g"] = 2
        cluster.sulks[2, 15] = [LOADING] * 100
        started_s = time.monotonic()
        with pytest.raises(AdminError) as raised:
            await find_group(client, "g")
        assert raised.value.code == "COORDINATOR_LOAD_IN_PROGRESS"
        assert time.monotonic() - started_s < 15.0


async def test_groups_are_listed_by_every_server_and_one_that_is_loading_is_waited_for():
    async with three_servers() as (client, cluster, _servers):
        cluster.groups = {1: ["a"], 2: ["b", "c"], 3: ["c", "d"]}
        cluster.sulks[3, 16] = [LOADING, LOADING]
        assert [row["group"] for row in await list_groups(client)] == ["a", "b", "c", "d"]


async def test_a_list_that_lacks_a_server_is_no_list():
    async with three_servers(retry_s_max=0.3) as (client, cluster, servers):
        servers[2].close()
        await servers[2].wait_closed()
        with pytest.raises(Unreachable, match=f"127.0.0.1:{cluster.ports[2]}"):
            await list_groups(client)


async def test_a_server_that_left_the_cluster_is_not_waited_for():
    async with three_servers() as (client, cluster, servers):
        cluster.groups = {1: ["a"], 2: ["b"], 3: ["c"]}
        servers[3].close()
        asyncio.get_running_loop().call_later(0.3, cluster.ports.pop, 3)
        assert [row["group"] for row in await list_groups(client)] == ["a", "b"]


async def test_what_a_dead_server_had_is_listed_by_those_that_took_it_over():
    async with three_servers() as (client, cluster, servers):
        cluster.groups = {1: ["a"], 2: ["b"], 3: ["c"]}
        servers[3].close()

        def taken_over():
            cluster.ports.pop(3)
            cluster.groups[1].append("c")  # which had answered before

        asyncio.get_running_loop().call_later(0.3, taken_over)
        assert [row["group"] for row in await list_groups(client)] == ["a", "b", "c"]


async def test_each_partition_is_asked_for_at_its_leader():
    async with three_servers() as (client, cluster, _servers):
        cluster.leaders = {("t", 0): 1, ("t", 1): 2, ("t", 2): 3, ("u", 0): 2}
        found = await offsets(client, {"t": [0, 1, 2], "u": [0]}, LATEST)
        assert found == {("t", 0): 100, ("t", 1): 201, ("t", 2): 302, ("u", 0): 200}
        assert sorted(node for node, key in cluster.asked if key == 2) == [1, 2, 3]


async def test_a_partition_that_moves_is_followed_alone():
    async with three_servers() as (client, cluster, _servers):
        cluster.leaders = {("t", 0): 1, ("t", 1): 2}
        cluster.sulks[2, 2] = [NOT_LEADER]
        asyncio.get_running_loop().call_later(0.05, cluster.leaders.update, {("t", 1): 3})
        found = await offsets(client, {"t": [0, 1]}, LATEST)
        assert found == {("t", 0): 100, ("t", 1): 301}
        assert [node for node, key in cluster.asked if key == 2].count(1) == 1


async def test_partitions_without_a_leader_and_those_that_do_not_exist_are_left_out():
    async with three_servers(retry_s_max=0.3) as (client, cluster, _servers):
        cluster.leaders = {("t", 0): 1, ("t", 1): -1}
        assert await offsets(client, {"t": [0, 1], "none": [0]}, LATEST) == {("t", 0): 100}
