"""Goal: the work for a request and the bytes of its reply stay in proportion to the request.
Method: requests that repeat or nest what is cheap to send, at the handlers in Kafka's bytes on
virtual time; turns of the event loop, bytes of the reply, rows and comparisons are counted.
"""

import pytest

from gateway.handlers.many_rows import REPLY_BYTES_MAX
from tests.gateway.stream_cluster import started_cluster
from tests.gateway.transaction_rig import ADD, transacting
from tests.sim.turns import turns_during


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
    pytest.param(empty_topics(100_000), 100_000, id="topics-without-partitions"),
    pytest.param([{"name": "n" * 32_767, "partitions": [0]}], 100_000, id="a-long-name"),
    pytest.param([{"name": "t", "partitions": [0] * 100_000}], 100_000, id="partitions"),
]


@pytest.mark.parametrize("version", [4, 5])
@pytest.mark.parametrize(("topics", "repeats"), REPEATED)
async def test_the_answer_of_a_transactional_id_is_repeated_only_while_the_reply_has_room(
    version, topics, repeats
):
    async with transacting() as cluster:
        asked = [transaction("", topics), *[transaction("", [])] * repeats]
        encoded = await cluster.encoded(ADD, version, transactions=asked)
        one = await cluster.encoded(ADD, version, transactions=asked[:1])
        least = 4 * repeats  # the rows of an empty id without topics
        assert REPLY_BYTES_MAX < len(encoded) < REPLY_BYTES_MAX + len(one) + least
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
