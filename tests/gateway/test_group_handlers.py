"""Goal: each group API answers in Kafka's words, in every version, and refuses what it must.
Method: request bytes in, reply bytes out, through the dispatcher's rows, on virtual time.
"""

import asyncio
from contextlib import asynccontextmanager
from uuid import UUID

import pytest
from kio.schema.errors import ErrorCode

from gateway.handlers.table import rows
from tests.gateway.group_world import World

GROUP_KEYS = {8: 2, 9: 1, 10: 0, 11: 0, 12: 0, 13: 0, 14: 0, 15: 0, 16: 0, 42: 0, 47: 0}


def versions(key):
    return list(rows()[key].versions)


@asynccontextmanager
async def new_world(**settings):
    async with World(**settings) as world:
        yield world


def join_body(member="", **more):
    return {
        "group_id": "g",
        "session_timeout": 10_000,
        "rebalance_timeout": 60_000,
        "member_id": member,
        "group_instance_id": None,
        "protocol_type": "consumer",
        "protocols": [{"name": "range", "metadata": b"meta"}],
        "reason": None,
    } | more


async def member(world, version=9, **more):
    """A member of a stable group `g` of its own; its id. The assignment is b"all"."""
    joined = await world.ask(11, version, join_body(**more))
    if joined.error_code is ErrorCode.member_id_required:
        joined = await world.ask(11, version, join_body(joined.member_id, **more))
    assert joined.error_code is ErrorCode.none
    synced = await world.ask(14, min(version, 5), sync_body(joined.member_id, **more))
    assert synced.assignment == b"all"
    return joined.member_id


def sync_body(member_id, generation=1, **more):
    return {
        "group_id": "g",
        "generation_id": generation,
        "member_id": member_id,
        "group_instance_id": None,
        "protocol_type": "consumer",
        "protocol_name": "range",
        "assignments": [{"member_id": member_id, "assignment": b"all"}],
    } | more


def commit_body(world, version, offset=5, *, name="t", partition=0, topic_id=None, **more):
    topic = world.catalog.by_name(name)
    found = topic_id or (topic.topic_id if topic else None)
    return {
        "group_id": "g",
        "generation_id_or_member_epoch": -1,
        "member_id": "",
        "group_instance_id": None,
        "retention_time": -1,
        "topics": [
            {
                "name": name,
                "topic_id": found,
                "partitions": [
                    {
                        "partition_index": partition,
                        "committed_offset": offset,
                        "committed_leader_epoch": 3,
                        "committed_metadata": "note",
                    }
                ],
            }
        ],
    } | more


def fetch_body(world, version, *, group="g", name="t", partitions=(0, 1), topics=()):
    topic = world.catalog.by_name(name)
    if topics is not None:
        topics = [
            {
                "name": name,
                "topic_id": topic.topic_id if topic else UUID(int=9),
                "partition_indexes": partitions,
            }
        ]
    one = {"group_id": group, "topics": topics}
    return one | {"require_stable": True, "groups": [one]}


def only(items):
    (item,) = items
    return item


def committed(reply, version):
    """(partition, offset, metadata, error) of the only group and topic."""
    group = only(reply.groups) if version >= 8 else reply
    return [
        (p.partition_index, p.committed_offset, p.metadata, p.error_code.name)
        for p in only(group.topics).partitions
    ]


def test_every_group_api_is_served_from_its_oldest_version():
    assert {key: rows()[key].versions.start for key in GROUP_KEYS} == GROUP_KEYS


@pytest.mark.parametrize("version", versions(11))
@pytest.mark.parametrize("name", ["c" * 32_767, "c" + "\u20ac" * 10_922])
async def test_the_longest_client_id_joins(version, name):
    """A member id has the client id and 37 characters more, and is a string of 32,767 bytes."""
    async with new_world() as world:
        reply = await world.ask(11, version, join_body(), client=name)
        assert len(reply.member_id.encode()) in range(32_765, 32_768)
        assert reply.member_id[:10_000] == name[:10_000]
        assert reply.error_code is (
            ErrorCode.member_id_required if version >= 4 else ErrorCode.none
        )
        again = await world.ask(11, version, join_body(reply.member_id), client=name)
        assert (again.error_code, again.member_id) == (ErrorCode.none, reply.member_id)


@pytest.mark.parametrize("version", versions(8))
@pytest.mark.parametrize("fetch_version", [1, 2, 5, 7, 8, 10])
async def test_what_was_committed_is_fetched_in_any_version(version, fetch_version):
    async with new_world() as world:
        reply = await world.ask(8, version, commit_body(world, version))
        assert only(only(reply.topics).partitions).error_code is ErrorCode.none
        reply = await world.ask(9, fetch_version, fetch_body(world, fetch_version))
        assert committed(reply, fetch_version) == [(0, 5, "note", "none"), (1, -1, "", "none")]


async def test_the_leader_epoch_comes_back():
    async with new_world() as world:
        await world.ask(8, 9, commit_body(world, 9))
        reply = await world.ask(9, 9, fetch_body(world, 9))
        assert [p.committed_leader_epoch for p in only(only(reply.groups).topics).partitions] == [
            3,
            -1,
        ]


@pytest.mark.parametrize("version", range(2, 11))
async def test_null_topics_fetch_everything_that_is_committed(version):
    async with new_world() as world:
        await world.ask(8, 9, commit_body(world, 9, 5))
        await world.ask(8, 9, commit_body(world, 9, 6, name="u"))
        await world.catalog.delete("u")
        reply = await world.ask(9, version, fetch_body(world, version, topics=None))
        assert committed(reply, version) == [(0, 5, "note", "none")]


async def test_many_groups_are_fetched_at_once():
    async with new_world() as world:
        for group in ("a", "b"):
            await world.ask(8, 8, commit_body(world, 8, ord(group), group_id=group))
        asked = [{"group_id": group, "topics": None} for group in ("a", "b", "none")]
        reply = await world.ask(9, 8, {"groups": asked, "require_stable": False})
        assert [
            (group.group_id, [t.partitions[0].committed_offset for t in group.topics])
            for group in reply.groups
        ] == [("a", [97]), ("b", [98]), ("none", [])]


@pytest.mark.parametrize(
    ("version", "change", "error"),
    [
        (9, {"name": "nope"}, "unknown_topic_or_partition"),
        (9, {"partition": 4}, "unknown_topic_or_partition"),
        (9, {"partition": -1}, "unknown_topic_or_partition"),
        (10, {"topic_id": UUID(int=7)}, "unknown_topic_id"),
        (10, {"partition": 4}, "unknown_topic_or_partition"),
        (9, {"generation_id_or_member_epoch": 1, "member_id": "m"}, "group_id_not_found"),
        (8, {"generation_id_or_member_epoch": 1, "member_id": "m"}, "illegal_generation"),
    ],
)
async def test_a_commit_that_cannot_be_is_refused(version, change, error):
    async with new_world() as world:
        reply = await world.ask(8, version, commit_body(world, version, **change))
        assert only(only(reply.topics).partitions).error_code.name == error


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({}, "none"),
        ({"generation_id_or_member_epoch": 2}, "illegal_generation"),
        ({"generation_id_or_member_epoch": 0}, "illegal_generation"),
        ({"member_id": "stranger"}, "unknown_member_id"),
        ({"group_instance_id": "stranger"}, "unknown_member_id"),
        ({"generation_id_or_member_epoch": -1, "member_id": ""}, "unknown_member_id"),
    ],
)
async def test_only_members_of_this_generation_commit(change, error):
    async with new_world() as world:
        member_id = await member(world)
        body = {"generation_id_or_member_epoch": 1, "member_id": member_id} | change
        reply = await world.ask(8, 9, commit_body(world, 9, **body))
        assert only(only(reply.topics).partitions).error_code.name == error


async def test_a_fenced_instance_does_not_commit():
    async with new_world() as world:
        old = await member(world, group_instance_id="i")
        joined = await world.ask(11, 9, join_body(group_instance_id="i"))
        assert joined.error_code is ErrorCode.none
        who = {"generation_id_or_member_epoch": 1, "member_id": old, "group_instance_id": "i"}
        reply = await world.ask(8, 9, commit_body(world, 9, **who))
        assert only(only(reply.topics).partitions).error_code.name == "fenced_instance_id"


async def test_one_bad_partition_does_not_spoil_the_others():
    async with new_world() as world:
        body = commit_body(world, 9)
        good = body["topics"][0]["partitions"][0]
        body["topics"][0]["partitions"] += [
            good | {"partition_index": 1, "committed_metadata": "x" * 4_097},
            good | {"partition_index": 2, "committed_metadata": "x" * 4_096},
            good | {"partition_index": 99},
            good | {"partition_index": 3, "committed_metadata": None},
        ]
        reply = await world.ask(8, 9, body)
        assert [p.error_code.name for p in only(reply.topics).partitions] == [
            "none",
            "offset_metadata_too_large",
            "none",
            "unknown_topic_or_partition",
            "none",
        ]
        reply = await world.ask(9, 9, fetch_body(world, 9, partitions=(0, 1, 2, 3, 99)))
        assert [each[1] for each in committed(reply, 9)] == [5, -1, 5, 5, -1]
        assert committed(reply, 9)[3][2] == ""


async def test_an_old_commit_may_bring_its_own_retention():
    async with new_world() as world:
        await world.ask(8, 4, commit_body(world, 4, retention_time=60_000))
        await asyncio.sleep(1_300)
        assert committed(await world.ask(9, 5, fetch_body(world, 5)), 5)[0][1] == -1


@pytest.mark.parametrize("version", versions(9))
async def test_fetching_an_unknown_group_or_topic_is_no_error(version):
    error = "unknown_topic_id" if version >= 10 else "none"
    async with new_world() as world:
        body = fetch_body(world, version, group="none", name="nope")
        assert committed(await world.ask(9, version, body), version) == [
            (0, -1, "", error),
            (1, -1, "", error),
        ]


@pytest.mark.parametrize("version", versions(9))
async def test_while_the_store_is_away_a_fetch_is_an_error(version):
    async with new_world() as world:
        world.metadata.closed = True
        reply = await world.ask(9, version, fetch_body(world, version))
    if version >= 8:
        assert only(reply.groups).error_code is ErrorCode.coordinator_not_available
    elif version >= 2:
        assert reply.error_code is ErrorCode.coordinator_not_available
    else:
        assert {each[1:] for each in committed(reply, 1)} == {(-1, "", "coordinator_not_available")}


async def test_the_empty_group_id_is_a_group_for_offsets_only():
    async with new_world() as world:
        await world.ask(8, 9, commit_body(world, 9, group_id=""))
        assert committed(await world.ask(9, 9, fetch_body(world, 9, group="")), 9)[0][1] == 5
        replies = [
            await world.ask(11, 9, join_body(group_id="")),
            await world.ask(14, 5, sync_body("m", group_id="")),
            await world.ask(12, 4, heartbeat_body("m", group_id="")),
            await world.ask(13, 5, {"group_id": "", "members": []}),
        ]
        assert {reply.error_code.name for reply in replies} == {"invalid_group_id"}


def heartbeat_body(member_id, generation=1, **more):
    return {
        "group_id": "g",
        "generation_id": generation,
        "member_id": member_id,
        "group_instance_id": None,
    } | more


@pytest.mark.parametrize("version", versions(11))
async def test_a_member_joins_and_syncs_in_any_version(version):
    async with new_world() as world:
        await member(world, version)
        described = only((await world.ask(15, 5, {"groups": ["g"]})).groups)
        assert (described.group_state, described.protocol_data) == ("Stable", "range")
        view = only(described.members)
        assert (view.client_id, view.client_host) == ("c", "/127.0.0.1")
        assert (view.member_metadata, view.member_assignment) == (b"meta", b"all")


@pytest.mark.parametrize("version", versions(11))
async def test_from_version_4_a_new_member_must_come_back_with_its_id(version):
    async with new_world() as world:
        joined = await world.ask(11, version, join_body())
        assert (joined.error_code.name, joined.member_id.startswith("c-")) == (
            "member_id_required" if version >= 4 else "none",
            True,
        )


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"session_timeout": 5_999}, "invalid_session_timeout"),
        ({"session_timeout": 1_800_001}, "invalid_session_timeout"),
        ({"session_timeout": 0}, "invalid_session_timeout"),
        ({"protocols": []}, "inconsistent_group_protocol"),
        ({"protocol_type": ""}, "inconsistent_group_protocol"),
        ({"member_id": "stranger"}, "unknown_member_id"),
        ({"protocols": [{"name": "r", "metadata": bytes(1_048_577)}]}, "invalid_request"),
    ],
)
async def test_a_join_that_cannot_be_is_refused(change, error):
    async with new_world() as world:
        assert (await world.ask(11, 9, join_body(**change))).error_code.name == error


@pytest.mark.parametrize(
    ("timeout", "error"),
    [
        (99, "invalid_session_timeout"),
        (100, "none"),
        (200, "none"),
        (201, "invalid_session_timeout"),
    ],
)
async def test_the_bounds_of_a_session_timeout_are_configured(timeout, error):
    async with new_world(session_timeout_ms_min=100, session_timeout_ms_max=200) as world:
        joined = await world.ask(11, 3, join_body(session_timeout=timeout))
        assert joined.error_code.name == error


async def test_a_static_leader_skips_the_assignment_from_version_9():
    async with new_world() as world:
        old = await member(world, group_instance_id="i")
        new = await world.ask(11, 9, join_body(group_instance_id="i"))
        assert (new.skip_assignment, new.leader) == (True, new.member_id)
        older = await world.ask(11, 8, join_body(group_instance_id="i"))
        assert (older.leader, older.members) == (new.member_id, ())
        assert len({old, new.member_id, older.member_id}) == 3


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({}, "none"),
        ({"generation_id": 2}, "illegal_generation"),
        ({"member_id": "stranger"}, "unknown_member_id"),
        ({"protocol_name": "sticky"}, "inconsistent_group_protocol"),
        ({"protocol_type": "connect"}, "inconsistent_group_protocol"),
        ({"protocol_name": None, "protocol_type": None}, "inconsistent_group_protocol"),
        ({"group_id": "none"}, "unknown_member_id"),
        ({"assignments": [{"member_id": "m", "assignment": bytes(1_048_577)}]}, "invalid_request"),
    ],
)
async def test_only_members_of_this_generation_sync(change, error):
    async with new_world() as world:
        member_id = await member(world)
        assert (await world.ask(14, 5, sync_body(member_id) | change)).error_code.name == error


@pytest.mark.parametrize("version", versions(12))
async def test_heartbeats_answer_in_every_version(version):
    async with new_world() as world:
        member_id = await member(world)
        replies = [
            await world.ask(12, version, heartbeat_body(member_id)),
            await world.ask(12, version, heartbeat_body(member_id, 2)),
            await world.ask(12, version, heartbeat_body("stranger")),
            await world.ask(12, version, heartbeat_body(member_id, group_id="none")),
        ]
        assert [reply.error_code.name for reply in replies] == [
            "none",
            "illegal_generation",
            "unknown_member_id",
            "unknown_member_id",
        ]


async def test_a_heartbeat_of_a_loaded_group_is_answered_at_once():
    async with new_world() as world:
        from gateway.handlers.api import Reply, Request
        from gateway.handlers.k12_heartbeat import handle
        from tests.gateway.group_world import PEER

        await member(world)

        class Body:
            group_id, member_id, generation_id = "g", "m", 1

        ctx = world.dispatcher._ctx
        assert isinstance(handle(Request(12, 4, 1, "c", PEER, Body()), ctx), Reply)


@pytest.mark.parametrize("version", versions(13))
async def test_members_leave_in_every_version(version):
    async with new_world() as world:
        member_id = await member(world)
        body = {
            "group_id": "g",
            "member_id": member_id,
            "members": [
                {"member_id": member_id, "group_instance_id": None, "reason": "done"},
                {"member_id": "stranger", "group_instance_id": None, "reason": None},
            ],
        }
        reply = await world.ask(13, version, body)
        assert reply.error_code is ErrorCode.none
        if version >= 3:
            codes = [each.error_code.name for each in reply.members]
            assert codes == ["none", "unknown_member_id"]
        again = await world.ask(13, version, body)
        assert version >= 3 or again.error_code is ErrorCode.unknown_member_id
        assert only(await world.groups.list()).state.value == "Empty"


@pytest.mark.parametrize("version", versions(10))
async def test_every_group_is_coordinated_here(version):
    async with new_world() as world:
        body = {"key": "g", "key_type": 0, "coordinator_keys": ["g", "h"]}
        reply = await world.ask(10, version, body)
        found = reply.coordinators if version >= 4 else [reply]
        assert {(each.node_id, each.host, each.port) for each in found} == {(0, "127.0.0.1", 9_092)}
        assert {each.error_code.name for each in found} == {"none"}
        if version >= 4:
            assert [each.key for each in found] == ["g", "h"]


@pytest.mark.parametrize("version", range(1, 7))
@pytest.mark.parametrize("key_type", [2, 9])
async def test_other_coordinators_are_refused_in_kafkas_words(version, key_type):
    async with new_world() as world:
        body = {"key": "x", "key_type": key_type, "coordinator_keys": ["x"]}
        reply = await world.ask(10, version, body)
        found = only(reply.coordinators) if version >= 4 else reply
        assert found.error_code is ErrorCode.invalid_request
        in_words = key_type != 2 or version < 4  # as Kafka
        assert bool(found.error_message) == in_words


@pytest.mark.parametrize("version", versions(15))
async def test_unknown_groups_are_described_as_dead(version):
    async with new_world() as world:
        found = only((await world.ask(15, version, {"groups": ["none"]})).groups)
        assert (found.group_id, found.group_state, found.members) == ("none", "Dead", ())
        found = found
    if version >= 6:
        assert found.error_code is ErrorCode.group_id_not_found
        assert found.error_message == "Group none not found."
    else:
        assert found.error_code is ErrorCode.none


async def test_authorized_operations_are_told_when_asked_for():
    async with new_world() as world:
        await world.commit("g", 1)
        assert [
            only((await world.ask(15, 5, body)).groups).authorized_operations
            for body in (
                {"groups": ["g"], "include_authorized_operations": True},
                {"groups": ["g"], "include_authorized_operations": False},
            )
        ] == [3_400, -(2**31)]


async def test_a_group_in_a_rebalance_shows_no_assignments():
    async with new_world() as world:
        await member(world)
        joined = await world.ask(11, 9, join_body())
        joining = asyncio.ensure_future(world.ask(11, 9, join_body(joined.member_id)))
        await asyncio.sleep(0.1)
        found = only((await world.ask(15, 5, {"groups": ["g"]})).groups)
        assert (found.group_state, found.protocol_data) == ("PreparingRebalance", "")
        assert {each.member_assignment for each in found.members} == {b""}
        await joining


@pytest.mark.parametrize("version", versions(16))
async def test_groups_are_listed_in_every_version(version):
    async with new_world() as world:
        await member(world)
        await world.commit("simple", 1)
        reply = await world.ask(16, version, {"states_filter": [], "types_filter": []})
        assert reply.error_code is ErrorCode.none
        assert sorted((each.group_id, each.protocol_type) for each in reply.groups) == [
            ("g", "consumer"),
            ("simple", ""),
        ]


@pytest.mark.parametrize(
    ("states", "types", "found"),
    [
        (["stable"], [], ["g"]),
        (["Empty"], [], ["simple"]),
        (["Empty", "STABLE"], ["Classic"], ["g", "simple"]),
        (["Dead"], [], []),
        ([], ["consumer"], []),
    ],
)
async def test_groups_are_listed_by_state_and_type(states, types, found):
    async with new_world() as world:
        await member(world)
        await world.commit("simple", 1)
        reply = await world.ask(16, 5, {"states_filter": states, "types_filter": types})
        assert {each.group_type for each in reply.groups} <= {"classic"}
        assert sorted(each.group_id for each in reply.groups) == found


@pytest.mark.parametrize("version", versions(42))
async def test_groups_are_deleted_when_empty(version):
    async with new_world() as world:
        await member(world)
        await world.commit("simple", 1)
        reply = await world.ask(42, version, {"groups_names": ["g", "simple", "none", "simple"]})
        assert [(each.group_id, each.error_code.name) for each in reply.results] == [
            ("g", "non_empty_group"),
            ("simple", "none"),
            ("none", "group_id_not_found"),
        ]


async def test_offsets_are_deleted_one_by_one():
    async with new_world() as world:
        await world.commit("g", 1, 0)
        await world.commit("g", 2, 1)
        asked = [{"partition_index": 0}, {"partition_index": 2}, {"partition_index": 9}]
        body = {"group_id": "g", "topics": [{"name": "t", "partitions": asked}]}
        reply = await world.ask(47, 0, body)
        codes = [each.error_code.name for each in only(reply.topics).partitions]
        assert codes == ["none", "none", "unknown_topic_or_partition"]
        assert [await world.committed("g", n) for n in (0, 1)] == [None, 2]
        none = await world.ask(47, 0, body | {"group_id": "none"})
        assert none.error_code is ErrorCode.group_id_not_found


async def test_offsets_of_a_subscribed_topic_are_not_deleted():
    async with new_world() as world:
        subscription = b"\0\0" + b"\0\0\0\1" + b"\0\1t" + b"\xff\xff\xff\xff"
        await member(world, protocols=[{"name": "range", "metadata": subscription}])
        topics = [{"name": name, "partitions": [{"partition_index": 0}]} for name in ("t", "u")]
        reply = await world.ask(47, 0, {"group_id": "g", "topics": topics})
        assert [only(topic.partitions).error_code.name for topic in reply.topics] == [
            "group_subscribed_to_topic",
            "none",
        ]


@pytest.mark.parametrize("group", ["ü", "a/b", "..", "x" * 300, "\0", "a b%", "\N{SNOWMAN}"])
async def test_any_group_id_works(group):
    async with new_world() as world:
        await world.ask(8, 9, commit_body(world, 9, group_id=group))
        async with world.crashed() as again:
            reply = await again.ask(9, 9, fetch_body(again, 9, group=group))
            assert committed(reply, 9)[0][1] == 5
            assert [each.group_id for each in (await again.groups.list())] == [group]
