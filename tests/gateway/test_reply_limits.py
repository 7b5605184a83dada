"""Goal: the work for a request and the bytes of its reply stay in proportion to the request.
Method: requests that repeat or nest what is cheap to send, at the handlers in Kafka's bytes on
virtual time; turns of the event loop, bytes of the reply, rows and comparisons are counted.
"""

import asyncio

import pytest
from kio.schema.errors import ErrorCode

from gateway.cluster.single_broker import SingleBroker
from gateway.handlers.assigned_replicas import check_assigned_replicas
from gateway.handlers.many_rows import ANSWER_S_MAX, REPLY_BYTES_MAX, TEXT_BYTES_MAX
from gateway.handlers.topic_replies import AdminRefusal
from gateway.wire.messages import decode_response
from subscriptions.committed_offset import CommittedOffset
from tests.gateway.group_world import World
from tests.gateway.stream_cluster import batch, started_cluster
from tests.gateway.transaction_rig import ADD, transacting
from tests.sim.turns import more_tasks_during, turns_during


async def test_nested_arrays_are_answered_with_pauses_though_each_is_short():
    async with started_cluster() as cluster:
        await cluster.topic()
        row = {"current_leader_epoch": -1, "leader_epoch": 0}
        partitions = [row | {"partition": index} for index in range(100)]
        topics = [{"topic": f"nosuch-{n}", "partitions": partitions} for n in range(100)]
        reply, turns = await turns_during(cluster.answer(23, 4, replica_id=-1, topics=topics))
        assert [len(topic.partitions) for topic in reply.topics] == [100] * 100
        assert turns >= 40  # 20 while partitions are looked for, and 20 while they are answered


# AddPartitionsToTxn


def transaction(transactional_id, topics):
    row = {"transactional_id": transactional_id, "producer_id": 1, "producer_epoch": 0}
    return row | {"verify_only": False, "topics": topics}


def empty_topics(count):
    return [{"name": "t", "partitions": []}] * count


REPEATED = [
    pytest.param(empty_topics(5_000), 5_000, id="topics-without-partitions"),
    pytest.param([{"name": "n" * 32_767, "partitions": [0]}], 10_000, id="a-long-name"),
    pytest.param([{"name": "t", "partitions": [0] * 5_000}], 5_000, id="partitions"),
]


@pytest.mark.parametrize("version", [4, 5])
@pytest.mark.parametrize(("topics", "repeats"), REPEATED)
async def test_the_answer_of_a_transactional_id_is_repeated_only_while_the_reply_has_room(
    version, topics, repeats, monkeypatch
):
    room_bytes = REPLY_BYTES_MAX // 10
    monkeypatch.setattr("gateway.handlers.many_rows.REPLY_BYTES_MAX", room_bytes)
    async with transacting() as cluster:
        asked = [transaction("", topics), *[transaction("", [])] * repeats]
        encoded = await cluster.encoded(ADD, version, transactions=asked)
        one = await cluster.encoded(ADD, version, transactions=asked[:1])
        least = 4 * repeats  # the rows of an empty id without topics
        assert room_bytes < len(encoded) < room_bytes + len(one) + least
        assert encoded.count(one[16:-1]) > 1


async def test_each_transactional_id_is_answered_in_a_reply_without_room(monkeypatch):
    monkeypatch.setattr("gateway.handlers.many_rows.REPLY_BYTES_MAX", 1_000)
    async with transacting() as cluster:
        asked = [transaction(f"id-{n}", empty_topics(3)) for n in range(500)]
        reply = await cluster.answer(ADD, 4, transactions=[*asked, *asked])
        rows = [
            (each.transactional_id, each.topic_results) for each in reply.results_by_transaction
        ]
        assert [name for name, _ in rows] == [each["transactional_id"] for each in asked * 2]
        assert {len(topics) for _, topics in rows[:500]} == {3}
        assert {len(topics) for _, topics in rows[500:]} == {0}


@pytest.mark.parametrize("version", [3, 4])
async def test_partitions_of_many_topics_are_added_with_pauses(version):
    async with transacting() as cluster:
        asked = transaction("pay", [{"name": f"n-{n}", "partitions": [0]} for n in range(5_000)])
        if version < 4:
            del asked["verify_only"]
            asked = {f"v3_and_below_{name}": value for name, value in asked.items()}
        else:
            asked = {"transactions": [asked]}
        _, turns = await turns_during(cluster.answer(ADD, version, **asked))
        assert turns >= 40  # for 20,000 elements of the request and rows of the reply


# CreateTopics and CreatePartitions


class Counted(int):
    """A broker id that counts comparisons of all ids."""

    compared = 0

    def __eq__(self, other):
        Counted.compared += 1
        return isinstance(other, int) and int(self) == int(other)

    def __lt__(self, other):
        Counted.compared += 1
        return int(self) < int(other)

    __hash__ = int.__hash__


@pytest.mark.parametrize("others", [range(0), range(2_500)], ids=["one-id", "many-ids"])
def test_assigned_replicas_are_checked_in_a_few_comparisons_each(others):
    replicas = [Counted(1) for _ in range(5_000 - len(others))]
    replicas += [Counted(1 + each) for each in others]
    before = Counted.compared
    with pytest.raises(AdminRefusal, match="includes the broker 1 more than once"):
        check_assigned_replicas(replicas, frozenset((1, *others)))
    assert Counted.compared - before < 40 * len(replicas)


def test_a_bounded_number_of_assigned_replicas_is_compared():
    """No cluster has so many brokers, so that one of the first replicas is at fault."""
    replicas = [Counted(each) for each in range(99_990)]
    before = Counted.compared
    with pytest.raises(AdminRefusal, match="no such broker is registered"):
        check_assigned_replicas(replicas, frozenset((0, 1, 2)))
    assert Counted.compared - before < 20_000


class CountedMembers(SingleBroker):
    """A cluster of one broker that counts how often its brokers are listed."""

    listed = 0

    def members(self):
        self.listed += 1
        return super().members()


def assigned(name, rows):
    assignments = [{"partition_index": index, "broker_ids": ids} for index, ids in rows]
    topic = {"name": name, "num_partitions": -1, "replication_factor": -1, "configs": []}
    return topic | {"assignments": assignments}


@pytest.mark.parametrize("version", [2, 7])
async def test_a_live_broker_that_is_assigned_again_and_again_is_refused(version):
    async with World() as world:
        body = {"timeout": 1_000, "validate_only": False}
        body["topics"] = [assigned("wide", [(0, [0] * 99_990)])]
        (row,) = (await world.ask(19, version, body)).topics
        assert row.error_code is ErrorCode.invalid_replica_assignment
        assert row.error_message.endswith("includes the broker 0 more than once.")
        counts = [{"name": "t", "count": 5, "assignments": [{"broker_ids": [0] * 99_990}]}]
        reply = await world.ask(37, min(version, 3), {**body, "topics": counts})
        assert reply.results[0].error_message == row.error_message


async def test_the_live_brokers_are_listed_once_for_all_assignments_of_a_request():
    async with World() as world:
        world.context.cluster = cluster = CountedMembers(0, lambda _: -1)
        body = {"timeout": 1_000, "validate_only": True}
        body["topics"] = [assigned(f"n-{n}", [(at, [0]) for at in range(100)]) for n in range(20)]
        reply = await world.ask(19, 7, body)
        assert {each.error_code.name for each in reply.topics} == {"none"}
        assert cluster.listed == 1


def new_topics(names, *, validate_only=False):
    topic = {"num_partitions": 1, "replication_factor": 1, "assignments": [], "configs": []}
    topics = [topic | {"name": name} for name in names]
    return {"topics": topics, "timeout": 1_000, "validate_only": validate_only}


async def test_many_topics_are_validated_with_pauses_while_the_reply_has_room(monkeypatch):
    monkeypatch.setattr("gateway.handlers.many_rows.REPLY_BYTES_MAX", 1_000_000)
    names = [f"new-{n}" for n in range(3_000)]
    async with World() as world:
        body = new_topics(names, validate_only=True)
        reply, turns = await turns_during(world.encoded(19, 7, body))
        rows = decode_response(19, 7, reply).body.topics
        assert [each.name for each in rows] == names
        codes = [each.error_code.name for each in rows]
        assert set(codes[:150]) == {"none"}
        assert set(codes[1_000:]) == {"request_timed_out"}
        assert len(reply) < 1_000_000 + 200_000 + 200 * len(names)  # one round more, and short rows
        assert turns >= len(names) // 64


async def test_a_bounded_number_of_topics_is_created_at_once():
    async with World() as world:
        names = [f"new-{n}" for n in range(200)]
        reply, more = await more_tasks_during(world.ask(19, 7, new_topics(names)))
        assert [(each.name, each.error_code.name) for each in reply.topics] == [
            (name, "none") for name in names
        ]
        # Each topic has a task, and its operation in the metadata store has another.
        assert 64 < more <= 1 + 2 * 64


async def test_topics_that_are_not_reached_in_time_are_not_created():
    async with World() as world:
        world.metadata.delay_s = ANSWER_S_MAX
        names = [f"new-{n}" for n in range(150)]
        reply = await world.ask(19, 7, new_topics(names))
        codes = [each.error_code.name for each in reply.topics]
        assert (codes[0], codes[-1]) == ("none", "request_timed_out")
        assert world.catalog.by_name(names[0]) is not None
        assert world.catalog.by_name(names[-1]) is None


class SlowLeaders(SingleBroker):
    """A cluster of one broker that opens no partition in time."""

    async def wait_led(self, topic_id, timeout_s):
        await asyncio.sleep(timeout_s)
        return False


@pytest.mark.parametrize("key", [19, 37])
async def test_topics_of_one_request_wait_for_their_leaders_together(key):
    async with World() as world:
        names = [f"new-{n}" for n in range(200)]
        if key == 37:
            await asyncio.gather(*(world.catalog.create(name, 1, 1, {}) for name in names))
        world.context.cluster = SlowLeaders(0, lambda _: -1)
        body = new_topics(names)
        if key == 37:
            topics = [{"name": each, "count": 2, "assignments": None} for each in names]
            body = body | {"topics": topics}
        began_s = world.clock.monotonic_s()
        reply = await world.ask(key, 3, body)
        assert world.clock.monotonic_s() - began_s < 2
        rows = reply.topics if key == 19 else reply.results
        assert [each.error_code.name for each in rows] == ["none"] * len(names)


async def test_deletions_of_many_topics_are_prepared_with_pauses():
    async with World() as world:
        topics = [{"name": "twice", "topic_id": None}] * 20_000
        reply, turns = await turns_during(world.ask(20, 6, {"topics": topics, "timeout": 1_000}))
        assert [each.error_message for each in reply.responses] == ["Duplicate topic name."]
        assert turns >= 3 * 40


# OffsetFetch

METADATA = "m" * 4_096  # the most that a commit may have


async def commit_with_metadata(world, group):
    offsets = {world.key(): CommittedOffset(offset=5, metadata=METADATA)}
    assert await world.groups.commit(group, "", -1, None, offsets) is ErrorCode.none


def offsets_asked(world, version, *groups):
    """The body of a request for the offsets of groups, each given as (name, indexes)."""
    named = {"topic_id": world.key().topic_id} if version >= 10 else {"name": "t"}
    rows = [
        {"group_id": name, "topics": [named | {"partition_indexes": indexes}]}
        for name, indexes in groups
    ]
    if version < 8:
        return rows[0] | {"require_stable": False}
    member = {"member_id": None, "member_epoch": -1}
    return {"groups": [each | member for each in rows], "require_stable": False}


@pytest.mark.parametrize("version", [1, 2, 7, 8, 10])
async def test_offsets_asked_for_again_and_again_are_refused_when_the_reply_has_no_room(version):
    async with World() as world:
        await commit_with_metadata(world, "g")
        body = offsets_asked(world, version, ("g", [0] * 99_990))
        reply = await world.encoded(9, version, body)
        assert len(reply) < 30 * 99_990  # rows without metadata, or none
        decoded = decode_response(9, version, reply).body
        if version < 8:
            codes = {each.error_code.name for each in decoded.topics[0].partitions}
        else:
            codes = {decoded.groups[0].error_code.name}
        assert codes == {"coordinator_not_available"}


@pytest.mark.parametrize("version", [8, 9, 10])
async def test_groups_of_one_reply_share_its_room(version):
    async with World() as world:
        names = [f"g{n}" for n in range(20)]
        for name in names:
            await commit_with_metadata(world, name)
        body = offsets_asked(world, version, *((name, [0] * 900) for name in names))
        reply = await world.encoded(9, version, body)
        assert len(reply) < REPLY_BYTES_MAX + 1_000_000
        groups = decode_response(9, version, reply).body.groups
        assert [each.group_id for each in groups] == names
        found = [each.error_code.name for each in groups]
        assert found == ["none"] * 9 + ["coordinator_not_available"] * 11  # 3.7 MB each
        for each in groups:
            rows = each.topics[0].partitions if each.topics else ()
            answered = each.error_code is ErrorCode.none
            assert [row.metadata for row in rows] == [METADATA] * (900 if answered else 0)


@pytest.mark.parametrize("version", [1, 7, 8, 10])
async def test_offsets_of_a_partition_named_twice_are_returned_twice(version):
    async with World() as world:
        await commit_with_metadata(world, "g")
        reply = await world.ask(9, version, offsets_asked(world, version, ("g", [0, 1, 0])))
        (topic,) = reply.topics if version < 8 else reply.groups[0].topics
        rows = [(each.partition_index, each.committed_offset) for each in topic.partitions]
        assert rows == [(0, 5), (1, -1), (0, 5)]


@pytest.mark.parametrize("version", [7, 10])
async def test_offsets_of_many_topics_are_fetched_with_pauses(version):
    async with World() as world:
        await world.commit("g", 5)
        body = offsets_asked(world, version, ("g", []))
        rows = body if version < 8 else body["groups"][0]
        rows["topics"] *= 20_000
        reply, turns = await turns_during(world.ask(9, version, body))
        assert len((reply if version < 8 else reply.groups[0]).topics) == 20_000
        assert turns >= 40


# texts, configs and producers

ROWS = 60_000


@pytest.mark.parametrize(("key", "name"), [(43, "n" * 500), (43, "t"), (45, "n" * 500), (45, "t")])
async def test_errors_of_very_many_partitions_have_codes_but_no_texts(key, name):
    async with World() as world:
        if key == 43:
            rows = {"topic": name, "partitions": [9] * ROWS}
            body = {"topic_partitions": [rows], "timeout": 1_000, "election_type": 0}
        else:
            one = {"partition_index": 9, "replicas": None}
            body = {"topics": [{"name": name, "partitions": [one] * ROWS}], "timeout": 1_000}
        version = 2 if key == 43 else 0
        reply, turns = await turns_during(world.encoded(key, version, body))
        decoded = decode_response(key, version, reply).body
        (topic,) = decoded.replica_election_results if key == 43 else decoded.responses
        rows = topic.partition_result if key == 43 else topic.partitions
        assert {each.error_code.name for each in rows} == {"unknown_topic_or_partition"}
        texts = [each.error_message for each in rows]
        assert len(texts) == ROWS
        assert len(set(texts[:1_000])) == 1
        assert name in texts[0]
        assert len(reply) < TEXT_BYTES_MAX + 10 * ROWS + 1_000
        assert turns >= 2 * ROWS // 500


async def test_a_quorum_of_very_many_partitions_is_answered_without_texts():
    async with World() as world:
        partitions = [{"partition_index": 9}] * ROWS
        body = {"topics": [{"topic_name": "t", "partitions": partitions}]}
        reply, turns = await turns_during(world.encoded(55, 2, body))
        assert len(reply) < TEXT_BYTES_MAX + 40 * ROWS
        assert turns >= 2 * ROWS // 500


@pytest.mark.parametrize("version", [1, 4])
async def test_configs_of_many_groups_are_described_while_the_reply_has_room(version, monkeypatch):
    monkeypatch.setattr("gateway.handlers.many_rows.REPLY_BYTES_MAX", 1_000_000)
    async with World() as world:
        names = [f"g{n}" for n in range(3_000)]
        resources = [
            {"resource_type": 32, "resource_name": name, "configuration_keys": None}
            for name in names
        ]
        body = {"resources": resources, "include_synonyms": True, "include_documentation": True}
        reply = await world.encoded(32, version, body)
        assert len(reply) < 1_000_000 + 10_000 + 100 * len(names)
        results = decode_response(32, version, reply).body.results
        assert [each.resource_name for each in results] == names
        codes = [each.error_code.name for each in results]
        answered = codes.index("request_timed_out")
        assert codes == ["none"] * answered + ["request_timed_out"] * (len(names) - answered)
        assert all(each.configs for each in results[:answered])
        assert not any(each.configs for each in results[answered:])


async def test_producers_of_a_partition_are_repeated_while_the_reply_has_room(monkeypatch):
    monkeypatch.setattr("gateway.handlers.many_rows.REPLY_BYTES_MAX", 20_000)
    async with started_cluster() as cluster:
        await cluster.topic()
        partition = await cluster.partition()
        await cluster.sent(partition, *(batch(0, producer=each) for each in range(100)))
        topics = [{"name": "t", "partition_indexes": [0] * 5_000}]
        reply, turns = await turns_during(cluster.encoded(61, 0, topics=topics))
        (topic,) = decode_response(61, 0, reply).body.topics
        codes = [each.error_code.name for each in topic.partitions]
        counts = [len(each.active_producers) for each in topic.partitions]
        answered = codes.count("none")
        assert 1 <= answered < 10
        assert counts == [100] * answered + [0] * (5_000 - answered)
        assert set(codes[answered:]) == {"request_timed_out"}
        assert len(reply) < 20_000 + 20 * 5_000
        assert turns >= 10


async def test_an_invalid_topic_of_very_many_partitions_has_few_texts():
    async with started_cluster() as cluster:
        await cluster.topic()
        topics = [{"name": "?" * 249, "partition_indexes": [0] * ROWS}]
        reply = await cluster.encoded(61, 0, topics=topics)
        (topic,) = decode_response(61, 0, reply).body.topics
        assert {each.error_code.name for each in topic.partitions} == {"invalid_topic_exception"}
        assert topic.partitions[0].error_message.startswith("Topic name is invalid: '???")
        assert len(reply) < TEXT_BYTES_MAX + 20 * ROWS


async def test_transactions_are_described_again_while_the_reply_has_room(monkeypatch):
    monkeypatch.setattr("gateway.handlers.many_rows.REPLY_BYTES_MAX", 10_000)
    async with transacting() as cluster:
        await cluster.begin()
        reply = await cluster.encoded(65, 0, transactional_ids=["pay"] * 10_000)
        rows = decode_response(65, 0, reply).body.transaction_states
        codes = [each.error_code.name for each in rows]
        answered = codes.count("none")
        assert codes == ["none"] * answered + ["coordinator_not_available"] * (10_000 - answered)
        assert answered < 1_000


# pauses within requests of one group or one topic


def committed(count, version):
    """The body of a commit of `count` offsets of one partition."""
    row = {"partition_index": 0, "committed_offset": 5, "committed_leader_epoch": -1}
    rows = [row | {"committed_metadata": ""}] * count
    body = {"group_id": "g", "member_id": "", "group_instance_id": None}
    if version is None:  # of a transaction
        body |= {"transactional_id": "pay", "producer_id": 1, "producer_epoch": 0}
        return body | {"generation_id": -1, "topics": [{"name": "t", "partitions": rows}]}
    topics = [{"name": "t", "partitions": rows}]
    return body | {"generation_id_or_member_epoch": -1, "topics": topics}


async def test_many_offsets_are_committed_with_pauses():
    async with World(delay_s=0) as world:
        reply, turns = await turns_during(world.ask(8, 9, committed(10_000, 9)))
        (topic,) = reply.topics
        assert {each.error_code.name for each in topic.partitions} == {"none"}
        assert len(topic.partitions) == 10_000
        assert turns >= 40


async def test_many_offsets_of_a_transaction_are_committed_with_pauses():
    async with transacting() as cluster:
        body = committed(10_000, None) | {"group_id": ""}
        reply, turns = await turns_during(cluster.answer(28, 3, **body))
        (topic,) = reply.topics
        assert {each.error_code.name for each in topic.partitions} == {"invalid_group_id"}
        assert len(topic.partitions) == 10_000
        assert turns >= 40


async def test_many_offsets_are_deleted_with_pauses():
    async with World(delay_s=0) as world:
        await world.commit("g", 5)
        partitions = [{"partition_index": index} for index in range(10_000)]
        body = {"group_id": "g", "topics": [{"name": "t", "partitions": partitions}]}
        reply, turns = await turns_during(world.ask(47, 0, body))
        codes = [each.error_code.name for each in reply.topics[0].partitions]
        assert codes == ["none"] * 4 + ["unknown_topic_or_partition"] * 9_996
        assert turns >= 60


async def test_many_members_leave_with_pauses():
    async with World(delay_s=0) as world:
        await world.commit("g", 5)
        row = {"group_instance_id": None, "reason": None}
        members = [row | {"member_id": f"m{n}"} for n in range(10_000)]
        reply, turns = await turns_during(world.ask(13, 5, {"group_id": "g", "members": members}))
        assert [each.member_id for each in reply.members] == [f"m{n}" for n in range(10_000)]
        assert {each.error_code.name for each in reply.members} == {"unknown_member_id"}
        assert turns >= 40


async def test_many_groups_are_listed_with_pauses(monkeypatch):
    monkeypatch.setattr("gateway.handlers.many_rows._ROWS_PER_TURN", 10)
    async with World(delay_s=0) as world:
        names = {f"g{n}" for n in range(200)}
        for name in names:
            await world.commit(name, 5)
        reply, turns = await turns_during(
            world.ask(16, 5, {"states_filter": [], "types_filter": []})
        )
        assert {each.group_id for each in reply.groups} == names
        assert turns >= 40


def pages_asked(names, cursor=None, limit=2_000):
    body = {"topics": [{"name": name} for name in names], "response_partition_limit": limit}
    return body | {"cursor": cursor}


async def test_many_unknown_topics_are_described_with_pauses():
    async with World(delay_s=0) as world:
        names = [f"n{n}" for n in range(10_000)]
        reply, turns = await turns_during(world.ask(75, 0, pages_asked(["u", *names[::-1], "t"])))
        assert [each.name for each in reply.topics] == sorted(["u", *names, "t"])
        assert {len(each.partitions) for each in reply.topics} == {0, 1, 4}
        assert turns >= 70


async def test_topics_are_described_in_pages_of_a_limit():
    async with World() as world:
        found, cursor = [], None
        for _ in range(3):
            reply = await world.ask(75, 0, pages_asked(["v", "u", "t"], cursor, limit=2))
            found.append([(each.name, len(each.partitions)) for each in reply.topics])
            at = reply.next_cursor
            cursor = at and {"topic_name": at.topic_name, "partition_index": at.partition_index}
        assert found == [[("t", 2)], [("t", 2)], [("u", 1), ("v", 0)]]
        assert cursor is None
