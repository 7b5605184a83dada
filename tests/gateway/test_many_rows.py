"""Goal: a request that names very many groups or topics costs its sender time, and nobody else.
Method: a gateway's groups and topics on virtual time; tasks that run meanwhile are counted, and
long replies are compared with the encoding of short ones.
"""

import asyncio
from contextlib import asynccontextmanager

import pytest

from gateway.handlers import k03_metadata, many_rows
from gateway.handlers.many_rows import ANSWER_S_MAX
from subscriptions.committed_offset import CommittedOffset
from tests.gateway.group_world import World
from tests.sim.turns import more_tasks_during, turns_during

MANY = 3_000


@asynccontextmanager
async def new_world():
    async with World() as world:
        yield world


def fetch_body(version, *group_ids, indexes=None, topic="t"):
    topics = None if indexes is None else [{"name": topic, "partition_indexes": indexes}]
    if version < 8:
        return {"group_id": group_ids[0], "topics": topics, "require_stable": False}
    groups = [
        {"group_id": each, "topics": topics, "member_id": None, "member_epoch": -1}
        for each in group_ids
    ]
    return {"groups": groups, "require_stable": False}


@pytest.mark.parametrize("version", [1, 5, 8, 9])
async def test_many_partitions_of_a_group_are_fetched_with_pauses(version):
    async with new_world() as world:
        await world.commit("g", 5, partition=3)
        body = fetch_body(version, "g", indexes=list(range(MANY)))
        reply, turns = await turns_during(world.ask(9, version, body))
        (topic,) = reply.topics if version < 8 else reply.groups[0].topics
        offsets = {each.partition_index: each.committed_offset for each in topic.partitions}
        assert offsets == {index: 5 if index == 3 else -1 for index in range(MANY)}
        assert turns >= 5


async def test_all_offsets_of_a_group_are_fetched_with_pauses():
    async with new_world() as world:
        await world.catalog.create("wide", MANY, 1, {})
        offsets = {world.key(n, "wide"): CommittedOffset(offset=n) for n in range(MANY)}
        assert (await world.groups.commit("g", "", -1, None, offsets)).name == "none"
        reply, turns = await turns_during(world.ask(9, 8, fetch_body(8, "g")))
        (topic,) = reply.groups[0].topics
        assert sorted(each.committed_offset for each in topic.partitions) == list(range(MANY))
        assert turns >= 5


async def test_a_group_that_is_named_again_is_refused():
    async with new_world() as world:
        await world.commit("g", 5)
        reply, _ = await turns_during(world.ask(9, 8, fetch_body(8, *["g"] * 3)))
        assert [each.error_code.name for each in reply.groups] == [
            "none",
            "invalid_request",
            "invalid_request",
        ]


@pytest.mark.parametrize("version", [0, 3, 5, 6])
async def test_many_groups_are_described_with_pauses(version):
    async with new_world() as world:
        await world.commit("g7", 1)
        names = [f"g{n}" for n in range(MANY)]
        reply, turns = await turns_during(world.ask(15, version, {"groups": names * 2}))
        assert [each.group_id for each in reply.groups] == names
        assert [each.group_id for each in reply.groups if each.group_state == "Empty"] == ["g7"]
        assert turns > 100


@pytest.mark.parametrize("version", [0, 2])
async def test_many_groups_are_deleted_with_pauses(version):
    async with new_world() as world:
        names = [f"g{n}" for n in range(MANY)]
        reply, turns = await turns_during(world.ask(42, version, {"groups_names": names}))
        codes = {each.group_id: each.error_code.name for each in reply.results}
        assert codes == dict.fromkeys(names, "group_id_not_found")
        assert turns > 100


@pytest.mark.parametrize("version", [4, 6])
async def test_many_coordinators_are_found_with_pauses(version):
    async with new_world() as world:
        names = [f"g{n}" for n in range(MANY)]
        body = {"key_type": 0, "coordinator_keys": names}
        reply, turns = await turns_during(world.ask(10, version, body))
        assert [each.key for each in reply.coordinators] == names
        assert {each.error_code.name for each in reply.coordinators} == {"none"}
        assert turns > 100


async def test_groups_that_are_not_reached_in_time_get_an_error_that_clients_retry():
    async with new_world() as world:
        names = [f"g{n}" for n in range(MANY)]
        exists = world.groups._store.exists

        async def slow(name):
            await asyncio.sleep(1.0)
            return await exists(name)

        world.groups._store.exists = slow
        began_s = world.clock.monotonic_s()
        reply = await world.ask(15, 5, {"groups": names})
        assert world.clock.monotonic_s() - began_s < ANSWER_S_MAX + 3
        errors = [each.error_code.name for each in reply.groups]
        assert errors[0] == "none"
        assert errors[-1] == "coordinator_not_available"


async def create_topics(world, names):
    await asyncio.gather(*(world.catalog.create(name, 1, 1, {}) for name in names))


def metadata_body(names):
    return {
        "topics": None if names is None else [{"name": name} for name in names],
        "allow_auto_topic_creation": False,
        "include_topic_authorized_operations": False,
        "include_cluster_authorized_operations": False,
    }


@pytest.mark.parametrize("version", [4, 8, 9])
async def test_many_unknown_topics_are_answered_with_pauses(version):
    async with new_world() as world:
        names = ["t", *(f"nosuch-{n}" for n in range(MANY))]
        body = metadata_body(names)
        reply, turns = await turns_during(world.ask(3, version, body))
        assert [each.name for each in reply.topics] == names
        assert [len(each.partitions) for each in reply.topics] == [4] + [0] * MANY
        assert turns >= 10


async def test_all_topics_are_answered_with_pauses(monkeypatch):
    monkeypatch.setattr(k03_metadata, "_AT_ONCE_MAX", 20)
    monkeypatch.setattr(many_rows, "_ROWS_PER_TURN", 20)
    async with new_world() as world:
        names = [f"new-{n}" for n in range(50)]
        await create_topics(world, names)
        everything, turns = await turns_during(world.ask(3, 8, metadata_body(None)))
        assert {each.name for each in everything.topics} == {*names, "t", "u"}
        assert turns >= 2


def configs_body(*resources):
    return {
        "resources": [
            {"resource_type": kind, "resource_name": name, "configuration_keys": keys}
            for kind, name, keys in resources
        ],
        "include_synonyms": True,
        "include_documentation": True,
    }


@pytest.mark.parametrize("version", [1, 4])
async def test_a_resource_that_is_named_again_is_described_once(version):
    async with new_world() as world:
        broker = str(world.cluster.node_id)
        body = configs_body(*[(4, broker, None)] * MANY, *[(2, "t", None)] * MANY)
        reply, turns = await turns_during(world.ask(32, version, body))
        assert [each.resource_name for each in reply.results] == [broker, "t"]
        assert all(each.configs for each in reply.results)
        assert turns > 10


async def test_a_resource_that_is_named_again_has_the_configs_of_all_mentions():
    async with new_world() as world:
        some = [(2, "t", ["segment.ms"]), (2, "t", ["segment.bytes"])]
        reply = await world.ask(32, 4, configs_body(*some))
        (result,) = reply.results
        assert {each.name for each in result.configs} == {"segment.ms", "segment.bytes"}
        reply = await world.ask(32, 4, configs_body(*some, (2, "t", None), *some))
        (result,) = reply.results
        assert len(result.configs) > 20


@pytest.mark.parametrize("version", [1, 4])
async def test_configs_of_many_unknown_topics_are_answered_with_pauses(version):
    async with new_world() as world:
        names = [f"nosuch-{n}" for n in range(MANY)]
        body = configs_body(*((2, name, None) for name in names))
        reply, turns = await turns_during(world.ask(32, version, body))
        assert [each.resource_name for each in reply.results] == names
        assert {each.error_code.name for each in reply.results} == {"unknown_topic_or_partition"}
        assert turns >= 10


def named_topics(key, names):
    """The body of a request that names topics, and where its replies are."""
    if key == 20:
        return {"topics": [{"name": each, "topic_id": None} for each in names], "timeout": 1_000}
    if key == 37:
        topics = [{"name": each, "count": 9, "assignments": None} for each in names]
        return {"topics": topics, "timeout": 1_000, "validate_only": False}
    change = {"name": "retention.ms", "config_operation": 0, "value": "5"}
    if key == 33:
        del change["config_operation"]
    resources = [{"resource_type": 2, "resource_name": each, "configs": [change]} for each in names]
    return {"resources": resources, "validate_only": False}


CHANGES = [(20, 6), (33, 2), (37, 3), (44, 1)]


def rows_of(reply):
    """Name and error of each topic."""
    rows = reply.results if hasattr(reply, "results") else reply.responses
    names = [each.name if hasattr(each, "name") else each.resource_name for each in rows]
    return list(zip(names, [each.error_code.name for each in rows], strict=True))


@pytest.mark.parametrize(("key", "version"), CHANGES)
async def test_many_unknown_topics_are_changed_with_pauses(key, version):
    async with new_world() as world:
        names = [f"nosuch-{n}" for n in range(MANY)]
        reply, turns = await turns_during(world.ask(key, version, named_topics(key, names)))
        assert rows_of(reply) == [(name, "unknown_topic_or_partition") for name in names]
        assert turns >= MANY // 64


@pytest.mark.parametrize(("key", "version"), CHANGES)
async def test_topics_are_changed_a_bounded_number_at_once(key, version):
    async with new_world() as world:
        names = [f"new-{n}" for n in range(150)]
        await create_topics(world, names)
        asked = world.ask(key, version, named_topics(key, names))
        reply, more = await more_tasks_during(asked)
        assert rows_of(reply) == [(name, "none") for name in names]
        # Each topic in change has a task, and its operation in the metadata store has another.
        assert 64 < more <= 1 + 2 * 64


@pytest.mark.parametrize(("key", "version"), CHANGES)
async def test_topics_that_are_not_reached_in_time_can_be_asked_for_again(key, version):
    async with new_world() as world:
        names = [f"new-{n}" for n in range(150)]
        await create_topics(world, names)
        world.metadata.delay_s = ANSWER_S_MAX
        rows = rows_of(await world.ask(key, version, named_topics(key, names)))
        assert rows[0] == (names[0], "none")
        assert rows[-1] == (names[-1], "request_timed_out")


# one long array in one row, and names that fill a string


def elected(asked, **more):
    return {"timeout": 1_000, "election_type": 0, "topic_partitions": asked} | more


ONE_ROW = [
    (43, 2, elected([{"topic": "t", "partitions": list(range(MANY))}])),
    (43, 2, elected([{"topic": "t", "partitions": list(range(MANY))}], election_type=9)),
    (
        55,
        2,
        {
            "topics": [
                {
                    "topic_name": "t",
                    "partitions": [{"partition_index": index} for index in range(MANY)],
                }
            ]
        },
    ),
]


@pytest.mark.parametrize(("key", "version", "body"), ONE_ROW)
async def test_many_partitions_of_one_topic_are_answered_with_pauses(key, version, body):
    async with new_world() as world:
        reply, turns = await turns_during(world.ask(key, version, body))
        (topic,) = reply.replica_election_results if key == 43 else reply.topics
        rows = topic.partition_result if key == 43 else topic.partitions
        assert len(rows) == MANY
        assert turns >= 5


async def test_many_topics_without_a_name_are_refused_with_pauses():
    async with new_world() as world:
        body = metadata_body(None) | {"topics": [{"name": None}] * MANY}
        del body["include_cluster_authorized_operations"]
        kept = asyncio.ensure_future(turns_during(world.ask(3, 12, body)))
        reply, turns = await kept
        assert [each.error_code.name for each in reply.topics] == ["unknown_server_error"] * MANY
        assert turns >= 11  # 6 while the topics are read, and 5 while they are answered


LONG = "n" * 32_767
LONG_CONFIG = {"name": LONG, "config_operation": 0, "value": "5"}


def long_resources(key, *resources):
    drop = {"config_operation"} if key == 33 else set()
    change = {field: value for field, value in LONG_CONFIG.items() if field not in drop}
    return {
        "resources": [
            {"resource_type": kind, "resource_name": name, "configs": [change]}
            for kind, name in resources
        ],
        "validate_only": False,
    }


@pytest.mark.parametrize("version", [2, 3, 4])
async def test_a_topic_is_created_beside_one_whose_name_fills_a_string(version):
    async with new_world() as world:
        topics = [
            {"name": name, "num_partitions": 1, "replication_factor": 1, "assignments": []}
            | {"configs": configs}
            for name, configs in (
                ("made", []),
                (LONG, []),
                ("bad", [{"name": LONG, "value": "1"}]),
                ("null", [{"name": LONG, "value": None}]),
            )
        ]
        body = {"topics": topics, "timeout": 1_000, "validate_only": False}
        reply = await world.ask(19, version, body)
        assert [each.error_code.name for each in reply.topics] == [
            "none",
            "invalid_topic_exception",
            "invalid_config",
            "invalid_config",
        ]
        assert all(len(each.error_message) < 1_000 for each in reply.topics[1:])


@pytest.mark.parametrize(("key", "version"), [(33, 0), (33, 1), (44, 0)])
async def test_configs_whose_names_fill_a_string_are_refused(key, version):
    async with new_world() as world:
        broker = str(world.cluster.node_id)
        body = long_resources(key, (2, "t"), (2, LONG), (4, broker), (4, LONG))
        reply = await world.ask(key, version, body)
        assert len(reply.responses) == 4
        assert "none" not in [each.error_code.name for each in reply.responses]


@pytest.mark.parametrize("version", [0, 1])
async def test_an_election_of_a_name_that_fills_a_string_is_answered(version):
    async with new_world() as world:
        body = elected([{"topic": LONG, "partitions": [0]}])
        if version == 0:
            del body["election_type"]
        reply = await world.ask(43, version, body)
        (row,) = reply.replica_election_results[0].partition_result
        assert row.error_message == f"No such topic as {'n' * 512}..."


@pytest.mark.parametrize("version", [1, 3])
async def test_a_broker_whose_name_fills_a_string_is_answered(version):
    async with new_world() as world:
        body = configs_body((4, LONG, None), (2, LONG, None))
        reply = await world.ask(32, version, body)
        assert [each.error_code.name for each in reply.results] == [
            "invalid_request",
            "invalid_topic_exception",
        ]
