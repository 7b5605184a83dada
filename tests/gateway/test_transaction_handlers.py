"""Goal: the requests of transactional producers get Kafka's answers, in every version.

Method: requests in Kafka's bytes to a broker on real streams, virtual time. The codes are those of
Kafka 4.3's KafkaApis; tests/compat compares the core with a broker.
"""

from __future__ import annotations

import asyncio

import pytest
from kio.schema.errors import ErrorCode as Code

from gateway.config import TransactionLimits
from gateway.core.topic_names import CONSUMER_OFFSETS, TRANSACTION_STATE
from gateway.core.transaction_states import TransactionState
from gateway.handlers.table import rows
from gateway.server.dispatch import RequestRefused
from tests.gateway.transaction_rig import (
    ADD,
    DESCRIBE,
    END,
    FIND,
    INIT,
    LIST,
    OFFSETS,
    transacting,
)

NONE = Code.none
ID_BYTES = 32_768


def versions(key):
    return list(rows()[key].versions)


def listing(**filters):
    return {"state_filters": [], "producer_id_filters": [], **filters}


@pytest.mark.parametrize("version", versions(INIT))
async def test_init_producer_id_fences_the_producer_before(version):
    async with transacting() as cluster:
        found = [await cluster.init(version=version) for _ in range(3)]
        assert [(error, epoch) for error, _, epoch in found] == [(NONE, 0), (NONE, 1), (NONE, 2)]
        assert len({producer_id for _, producer_id, _ in found}) == 1
        if version >= 3:
            fenced = await cluster.init(version=version, known=(found[0][1], 0))
            expected = Code.producer_fenced if version >= 4 else Code.invalid_producer_epoch
            assert fenced == (expected, -1, -1)


@pytest.mark.parametrize("version", versions(ADD))
async def test_partitions_are_added_in_every_version(version):
    async with transacting() as cluster:
        producer = (await cluster.init())[1:]
        both = {("t", 0): NONE, ("t", 1): NONE}
        assert await cluster.add(producer, 0, 1, version=version) == both
        older = (producer[0], producer[1] - 1)
        expected = Code.producer_fenced if version >= 2 else Code.invalid_producer_epoch
        assert await cluster.add(older, 0, version=version) == {("t", 0): expected}


@pytest.mark.parametrize("version", versions(OFFSETS))
async def test_the_offsets_of_a_group_are_added_in_every_version(version):
    async with transacting() as cluster:
        producer = (await cluster.init())[1:]
        fields = {"transactional_id": "pay", "producer_id": producer[0], "group_id": "g"}
        assert cluster.catalog.by_name(CONSUMER_OFFSETS) is None
        reply = await cluster.answer(OFFSETS, version, **fields, producer_epoch=0)
        assert reply.error_code is NONE
        assert cluster.catalog.by_name(CONSUMER_OFFSETS) is not None
        (added,) = cluster.shell.describe("pay").partitions
        assert added == (CONSUMER_OFFSETS, ord("g") % 50)
        reply = await cluster.answer(OFFSETS, version, **fields, producer_epoch=1)
        expected = Code.producer_fenced if version >= 2 else Code.invalid_producer_epoch
        assert reply.error_code is expected


async def test_requests_that_need_the_topic_of_offsets_at_once_all_wait_for_it():
    async with transacting() as cluster:
        producer = (await cluster.init())[1:]
        fields = {"transactional_id": "pay", "producer_id": producer[0], "producer_epoch": 0}
        replies = await asyncio.gather(
            *(cluster.answer(OFFSETS, 3, **fields, group_id=name) for name in "ab")
        )
        assert {reply.error_code for reply in replies} <= {NONE, Code.concurrent_transactions}
        assert NONE in {reply.error_code for reply in replies}


async def test_without_the_topic_of_offsets_no_offsets_are_added():
    async with transacting() as cluster:
        producer = (await cluster.init())[1:]
        await cluster.catalog.create("_.consumer.offsets", 1, 1, {})  # its name collides
        fields = {"transactional_id": "pay", "producer_id": producer[0], "producer_epoch": 0}
        reply = await cluster.answer(OFFSETS, 3, **fields, group_id="g")
        assert reply.error_code is Code.coordinator_not_available
        assert not cluster.shell.describe("pay").partitions


@pytest.mark.parametrize("version", versions(END))
@pytest.mark.parametrize("commit", [True, False])
async def test_transactions_end_in_every_version(version, commit):
    async with transacting() as cluster:
        producer = await cluster.begin()
        older = (producer[0], producer[1] - 1)
        refused = await cluster.end(older, commit=commit, version=version)
        fenced = Code.producer_fenced if version >= 2 else Code.invalid_producer_epoch
        assert refused == ((fenced, -1, -1) if version >= 5 else fenced)
        ended = await cluster.end(producer, commit=commit, version=version)
        assert ended == ((NONE, producer[0], producer[1] + 1) if version >= 5 else NONE)
        (marker,) = cluster.markers.answer()
        assert (marker.commit, marker.version) == (commit, 2 if version >= 5 else 0)


async def test_end_txn_is_refused_in_the_states_in_which_kafka_refuses_it():
    async with transacting() as cluster:
        _, *producer = await cluster.init()
        assert await cluster.end(producer) is Code.invalid_txn_state
        await cluster.add(producer, 0)
        assert await cluster.end(producer) is NONE
        assert await cluster.end(producer) is Code.concurrent_transactions
        assert await cluster.add(producer, 1) == {("t", 1): Code.concurrent_transactions}
        assert (await cluster.init())[0] is Code.concurrent_transactions
        cluster.markers.answer()
        await cluster.until(lambda: cluster.shell.describe("pay").state.name == "COMPLETE_COMMIT")
        assert await cluster.end(producer) is NONE  # a retry
        assert await cluster.end(producer, commit=False) is Code.invalid_txn_state


async def test_verify_only_reports_which_partitions_were_added_and_adds_none():
    async with transacting() as cluster:
        producer = await cluster.begin()
        verified = await cluster.add(producer, 0, 1, verify=True)
        assert verified == {("t", 0): NONE, ("t", 1): Code.transaction_abortable}
        assert cluster.shell.describe("pay").partitions == {("t", 0)}


async def test_one_request_of_a_broker_has_many_transactions():
    async with transacting() as cluster:
        asked = []
        for name in ("pay", "a"):
            _, producer_id, epoch = await cluster.init(name)
            one = {"transactional_id": name, "producer_id": producer_id, "producer_epoch": epoch}
            asked.append(
                {**one, "verify_only": False, "topics": [{"name": "t", "partitions": [2]}]}
            )
        asked.append({**asked[0], "transactional_id": "unknown"})
        reply = await cluster.answer(ADD, 5, transactions=asked)
        found = {
            each.transactional_id: each.topic_results[0].results_by_partition[0]
            for each in reply.results_by_transaction
        }
        codes = {name: row.partition_error_code for name, row in found.items()}
        assert codes == {"pay": NONE, "a": NONE, "unknown": Code.invalid_producer_id_mapping}


async def test_a_repeated_id_gets_the_answer_of_its_first_row_in_a_bounded_answer(monkeypatch):
    monkeypatch.setattr("gateway.handlers.many_rows.REPLY_BYTES_MAX", 30)
    async with transacting() as cluster:
        _, producer_id, epoch = await cluster.init()
        one = {"transactional_id": "pay", "producer_id": producer_id, "producer_epoch": epoch}
        asked = [
            {**one, "verify_only": False, "topics": [{"name": "t", "partitions": [index]}]}
            for index in (0, 1, 2)
        ]
        reply = await cluster.answer(ADD, 4, transactions=asked)
        rows = [
            [(each.partition_index, each.partition_error_code) for each in t.results_by_partition]
            for row in reply.results_by_transaction
            for t in row.topic_results
        ]
        assert rows == [[(0, NONE)], [(0, NONE)]]
        assert len(reply.results_by_transaction) == 3
        assert cluster.shell.describe("pay").partitions == {("t", 0)}


async def test_clients_may_not_add_internal_topics_and_brokers_may():
    async with transacting() as cluster:
        producer = (await cluster.init())[1:]
        log = {(TRANSACTION_STATE, 0): Code.topic_authorization_failed}
        assert await cluster.add(producer, 0, topic=TRANSACTION_STATE, version=3) == log
        assert cluster.shell.describe("pay").state is TransactionState.EMPTY
        log = {(TRANSACTION_STATE, 0): NONE}
        assert await cluster.add(producer, 0, topic=TRANSACTION_STATE, version=4) == log


@pytest.mark.parametrize("version", [3, 4])
async def test_an_unknown_topic_keeps_the_other_partitions_out(version):
    async with transacting() as cluster:
        producer = (await cluster.init())[1:]
        found = await cluster.add(producer, 0, 7, version=version)
        assert found == {
            ("t", 0): Code.operation_not_attempted,
            ("t", 7): Code.unknown_topic_or_partition,
        }
        unknown = {("nowhere", 0): Code.unknown_topic_or_partition}
        assert await cluster.add(producer, 0, topic="nowhere", version=version) == unknown
        assert cluster.shell.describe("pay").state is TransactionState.EMPTY


async def test_bad_input_is_refused_with_kafkas_codes():
    async with transacting() as cluster:
        assert (await cluster.init("known"))[0] is NONE
        assert (await cluster.init(""))[0] is Code.invalid_request
        assert (await cluster.init(known=(7, -1)))[0] is Code.invalid_request
        for timeout_ms in (0, -1, 900_001):
            error, *_ = await cluster.init(timeout_ms=timeout_ms)
            assert error is Code.invalid_transaction_timeout
        assert await cluster.add((1, 0), 0, name="") == {("t", 0): Code.invalid_request}
        assert await cluster.end((1, 0), name="") is Code.invalid_request
        assert await cluster.state("") is Code.invalid_request
        mapping = Code.invalid_producer_id_mapping
        assert await cluster.add((1, 0), 0, name="unknown") == {("t", 0): mapping}
        assert await cluster.end((1, 0), name="unknown") is mapping
        assert await cluster.state("unknown") is Code.transactional_id_not_found


@pytest.mark.parametrize("too_long", ["x" * ID_BYTES, "ä" * (ID_BYTES // 2)], ids=["x", "ä"])
async def test_an_id_that_the_log_cannot_store_is_refused_and_the_longest_one_is_not(too_long):
    async with transacting() as cluster:
        with pytest.raises(RequestRefused, match="a string of more than 32767 bytes"):
            await cluster.init(too_long)  # Kafka ends the connection as well
        longest = "x" * (ID_BYTES - 1)
        assert (await cluster.init(longest))[0] is NONE
        assert await cluster.state(longest) == "Empty"


async def test_ids_and_partitions_beyond_the_memory_of_transactions_are_refused(capfd):
    limits = TransactionLimits(memory_bytes_max=5_000)
    async with transacting(transaction=limits) as cluster:
        found = [(await cluster.init(f"id-{number}"))[0] for number in range(10)]
        fit = found.count(NONE)
        assert 0 < fit < 10
        assert found == [NONE] * fit + [Code.policy_violation] * (10 - fit)
        assert (await cluster.init("id-0"))[0] is NONE  # a known id
        assert cluster.coordinators.memory_bytes <= limits.memory_bytes_max
        lines = [line for line in capfd.readouterr().err.splitlines() if "memory of" in line]
        assert len(lines) == 1


async def test_known_ids_go_on_when_new_ones_have_used_their_memory(capfd):
    """A client that creates ids without end must not stop the producers of others."""
    limits = TransactionLimits(memory_bytes_max=20_000)
    async with transacting(transaction=limits) as cluster:
        pay = (await cluster.init("pay"))[1:]
        number = 0
        while (await cluster.init(f"id-{number}"))[0] is NONE:
            number += 1
        assert number > 5
        for index, version in enumerate((3, 4)):  # of a client, and of a gateway with Produce v12
            added = await cluster.add(pay, index, version=version)
            assert added == {("t", index): NONE}
        (line,) = [each for each in capfd.readouterr().err.splitlines() if "memory of" in each]
        assert "new transactional ids are refused" in line
        assert str(limits.ids_bytes_max) in line


@pytest.mark.parametrize("topics_count", [1, pytest.param(10, marks=pytest.mark.proof)])
async def test_a_transaction_of_very_many_partitions_gets_a_typed_answer(topics_count):
    async with transacting() as cluster:
        for number in range(topics_count):
            await cluster.create(f"wide-{number}", 10_000, {})
        producer = (await cluster.init())[1:]
        one = {"transactional_id": "pay", "producer_id": producer[0], "producer_epoch": 0}
        topics = [
            {"name": f"wide-{number}", "partitions": list(range(10_000))}
            for number in range(topics_count)
        ]
        asked = [{**one, "verify_only": False, "topics": topics}]
        reply = await cluster.answer(ADD, 4, transactions=asked)
        (result,) = reply.results_by_transaction
        codes = {
            row.partition_error_code
            for topic in result.topic_results
            for row in topic.results_by_partition
        }
        assert codes == {NONE}
        assert len(cluster.shell.describe("pay").partitions) == 10_000 * topics_count


async def found(cluster, *names):
    """Return the codes and nodes of a FindCoordinator for these transactional ids."""
    reply = await cluster.answer(FIND, 4, key_type=1, coordinator_keys=names)
    return [(each.error_code, each.node_id) for each in reply.coordinators]


async def test_find_coordinator_creates_the_log_and_then_names_its_leader():
    async with transacting(log_partitions=0) as cluster:
        assert await found(cluster, "pay") == [(Code.coordinator_not_available, -1)]
        await cluster.until(lambda: cluster.catalog.by_name(TRANSACTION_STATE))
        assert cluster.catalog.by_name(TRANSACTION_STATE).partitions == 50
        for name in ("pay", "a"):  # its partition is opened
            assert await found(cluster, name) == [(Code.coordinator_not_available, -1)]
        await asyncio.sleep(1)
        assert await found(cluster, "pay", "a") == [(NONE, 0), (NONE, 0)]
        assert (await cluster.init())[0] is NONE


async def test_below_the_gate_of_new_forms_nothing_is_coordinated():
    async with transacting(log_partitions=0) as cluster:
        cluster.writes_new_forms = False
        assert await found(cluster, "pay") == [(Code.coordinator_not_available, -1)]
        assert (await cluster.init())[0] is Code.coordinator_not_available
        assert cluster.gate_openings == 2
        await asyncio.sleep(60)
        assert cluster.catalog.by_name(TRANSACTION_STATE) is None


async def test_below_level_2_a_transaction_keeps_its_epoch_at_its_end():
    async with transacting() as cluster:
        cluster.level_of_transactions = 0
        await cluster.restart()
        producer = await cluster.begin()
        assert await cluster.end(producer) is NONE
        cluster.markers.answer()
        assert cluster.shell._core.value_version == 0


async def test_transactions_are_described():
    async with transacting() as cluster:
        producer = await cluster.begin()
        await cluster.add(producer, 2)
        ids = ["pay", "unknown"]
        first, second = (
            await cluster.answer(DESCRIBE, 0, transactional_ids=ids)
        ).transaction_states
        assert first.transaction_state == "Ongoing"
        assert (first.producer_id, first.producer_epoch) == tuple(producer)
        assert first.transaction_start_time > 0
        assert first.transaction_timeout.total_seconds() == 60
        assert [(each.topic, each.partitions) for each in first.topics] == [("t", (0, 2))]
        assert second.error_code is Code.transactional_id_not_found


async def test_a_description_has_a_bounded_size(monkeypatch):
    monkeypatch.setattr("gateway.handlers.k65_describe_transactions._PARTITIONS_MAX", 5)
    async with transacting() as cluster:
        producer = await cluster.begin()
        await cluster.add(producer, 1)
        reply = await cluster.answer(DESCRIBE, 0, transactional_ids=["pay"] * 4)
        codes = [each.error_code for each in reply.transaction_states]
        assert codes == [NONE, NONE] + [Code.coordinator_not_available] * 2


async def test_transactions_are_listed_by_state_producer_and_duration():
    async with transacting(log_partitions=2) as cluster:
        producer = await cluster.begin()
        _, other, _ = await cluster.init("a")
        await asyncio.sleep(5)

        async def listed(version=1, **filters):
            reply = await cluster.answer(LIST, version, **listing(**filters))
            assert reply.error_code is NONE
            found = {each.transactional_id for each in reply.transaction_states}
            return found, list(reply.unknown_state_filters)

        everything = {"pay", "a"}
        for version in versions(LIST):
            assert await listed(version) == (everything, [])
        assert await listed(state_filters=["Ongoing"]) == ({"pay"}, [])
        assert await listed(state_filters=["Ongoing", "Odd"]) == ({"pay"}, ["Odd"])
        assert await listed(state_filters=["Odd"]) == (set(), ["Odd"])
        assert await listed(producer_id_filters=[producer[0]]) == ({"pay"}, [])
        assert await listed(producer_id_filters=[other, producer[0]]) == (everything, [])
        assert await listed(duration_filter=60_000, state_filters=["Ongoing"]) == (set(), [])
        assert await listed(duration_filter=1_000, state_filters=["Ongoing"]) == ({"pay"}, [])
