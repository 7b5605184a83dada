"""Goal: a coordinator answers after its record is durable, and a takeover finds every record.

Method: requests in Kafka's bytes to a broker on real streams, a ledger and a bookie, virtual time.
"""

from __future__ import annotations

import asyncio
from contextlib import contextmanager

import pytest
from kio.schema.errors import ErrorCode as Code

from gateway.cluster.port import Leader, StreamKey
from gateway.config import TransactionLimits
from gateway.core.topic_names import TRANSACTION_STATE
from gateway.core.transaction_log import decode_key, decode_value, encode_key
from gateway.core.transaction_states import EPOCH_LAST
from gateway.wire.own_batches import encode_batch
from ledger.streams.config import StreamLimits
from tests.gateway.paper_cluster import PaperCluster, member
from tests.gateway.transaction_rig import INIT, LIST, transacting

NONE = Code.none
ONE, TWO = 1, 2


async def states(cluster, name="pay"):
    """Return the states of an id in its log, oldest first."""
    return [
        "deleted" if value is None else decode_value(name, value).state.kafka_name
        for key, value in await cluster.log()
        if decode_key(key) == name
    ]


async def test_a_transaction_goes_through_its_states():
    async with transacting() as cluster:
        producer = await cluster.begin()
        assert await cluster.state() == "Ongoing"
        assert await cluster.end(producer) is NONE
        assert await cluster.state() == "PrepareCommit"
        (marker,) = cluster.markers.answer()
        assert (marker.producer_id, marker.epoch, marker.commit) == (*producer, True)
        assert marker.partitions == {("t", 0)}
        await cluster.until(lambda: cluster.shell.describe("pay").state.name == "COMPLETE_COMMIT")
        assert await states(cluster) == ["Empty", "Ongoing", "PrepareCommit", "CompleteCommit"]


async def test_no_request_is_answered_before_its_record_is_durable():
    async with transacting() as cluster:
        producer = await cluster.begin()
        for asks in (
            lambda: cluster.init("other"),
            lambda: cluster.add(producer, 1),
            lambda: cluster.end(producer),
        ):
            cluster.port.hold()
            asked = asyncio.create_task(asks())
            await asyncio.sleep(1)
            assert not asked.done()
            assert not cluster.markers.sent
            cluster.port.release()
            await asked
        assert len(cluster.markers.sent) == 1


async def test_records_that_wait_for_a_write_share_the_next_batch():
    async with transacting() as cluster:
        await cluster.init("first")
        cluster.port.hold()
        asked = [asyncio.create_task(cluster.init(f"id-{number}")) for number in range(50)]
        await asyncio.sleep(1)
        cluster.port.release()
        assert {(await each)[0] for each in asked} == {NONE}
        partition = await cluster.partition(TRANSACTION_STATE)
        assert len(await cluster.read_all(partition)) == 3
        assert len(await cluster.log()) == 51


async def test_a_failed_append_drops_the_map_and_the_retry_finds_what_is_durable():
    async with transacting() as cluster:
        producer = await cluster.begin()
        epoch = cluster.shell._core.coordinator_epoch
        cluster.port.refuse()
        assert await cluster.end(producer) in (Code.coordinator_not_available, Code.not_coordinator)
        assert await cluster.end(producer) in (
            Code.coordinator_load_in_progress,
            Code.not_coordinator,
        )
        cluster.port.accept()
        await cluster.until(lambda: cluster.shell._core is not None)
        assert cluster.shell._core.coordinator_epoch > epoch
        assert await cluster.state() == "Ongoing"
        assert await cluster.end(producer) is NONE


async def test_an_append_whose_answer_was_lost_is_found_by_the_retry():
    async with transacting() as cluster:
        producer = await cluster.begin()
        cluster.port.hold()
        asked = asyncio.create_task(cluster.end(producer))
        await asyncio.sleep(1)
        await cluster.crash()
        await cluster.until(lambda: cluster.shell._core is not None)
        assert await cluster.state() == "PrepareCommit"
        assert (await asked) is Code.not_coordinator
        cluster.markers.answer()
        assert await cluster.end(producer) in (NONE, Code.concurrent_transactions)


async def test_a_takeover_owns_a_segment_before_it_sends_its_first_marker():
    async with transacting() as cluster:
        producer = await cluster.begin()
        assert await cluster.end(producer) is NONE
        (first,) = [marker for marker, _ in cluster.markers.sent]
        epochs = [first.coordinator_epoch]
        for _ in range(3):
            await cluster.restart()
            cluster.port.hold()
            await asyncio.sleep(60)
            assert not cluster.markers.sent
            cluster.port.release()
            await cluster.until(lambda: cluster.markers.sent)
            epochs.append(cluster.markers.sent[0][0].coordinator_epoch)
        assert epochs == sorted(set(epochs))


async def test_a_takeover_without_prepared_transactions_writes_nothing():
    async with transacting() as cluster:
        await cluster.begin()
        before = len(await cluster.log())
        await cluster.restart()
        assert await cluster.until(lambda: cluster.shell._core is not None)
        assert await cluster.state() == "Ongoing"
        assert len(await cluster.log()) == before


async def test_prepared_transactions_end_after_a_start_without_any_request():
    async with transacting() as cluster:
        producer = await cluster.begin()
        assert await cluster.end(producer, commit=False) is NONE
        await cluster.crash()
        await cluster.until(lambda: cluster.markers.sent)
        (marker,) = cluster.markers.answer()
        assert not marker.commit
        await cluster.until(lambda: cluster.shell.describe("pay").state.name == "COMPLETE_ABORT")


async def test_the_markers_of_an_ended_coordinator_are_given_up():
    async with transacting() as cluster:
        producer = await cluster.begin()
        assert await cluster.end(producer) is NONE
        ((marker, on_answers),) = cluster.markers.sent
        partition = await cluster.partition(TRANSACTION_STATE)
        partition.abandon()
        assert cluster.markers.stopped == [on_answers]
        on_answers(marker, {("t", 0): NONE})  # a late answer changes nothing
        assert await cluster.end(producer) is Code.not_coordinator


async def test_a_fenced_coordinator_loads_again_under_a_new_epoch():
    async with transacting() as cluster:
        producer = await cluster.begin()
        assert await cluster.end(producer) is NONE
        (first,) = cluster.markers.answer(Code.transaction_coordinator_fenced)
        assert not cluster.markers.sent
        await cluster.until(lambda: cluster.markers.sent)
        (second,) = cluster.markers.answer()
        assert second.coordinator_epoch > first.coordinator_epoch
        await cluster.until(lambda: cluster.shell.describe("pay").state.name == "COMPLETE_COMMIT")


async def test_markers_that_meet_a_retriable_error_are_sent_again():
    async with transacting() as cluster:
        producer = await cluster.begin()
        assert await cluster.end(producer) is NONE
        for _ in range(3):
            cluster.markers.answer(Code.not_leader_or_follower)
            assert len(cluster.markers.sent) == 1


async def test_without_the_lease_nothing_is_answered_as_coordinator():
    async with transacting() as cluster:
        producer = await cluster.begin()
        cluster.partitions.cluster.lease_held = lambda: False
        partition = cluster.partitions.find(TRANSACTION_STATE, 0)
        partition._lease_held = lambda: False
        assert await cluster.state() is Code.not_coordinator
        assert await cluster.end(producer) is Code.not_coordinator
        assert await cluster.add(producer, 0, verify=True) == {("t", 0): Code.not_coordinator}
        reply = await cluster.answer(INIT, 2, transactional_id="pay", transaction_timeout=60_000)
        assert reply.error_code is Code.not_coordinator


async def test_a_transaction_that_times_out_is_aborted_with_another_epoch():
    async with transacting() as cluster:
        producer = await cluster.begin(timeout_ms=1_000)
        await cluster.until(lambda: cluster.markers.sent)
        (marker,) = cluster.markers.answer()
        assert (marker.commit, marker.epoch) == (False, producer[1] + 1)
        assert await cluster.end(producer) is Code.producer_fenced


async def test_ids_expire():
    limits = TransactionLimits(id_expiration_ms=60_000)
    async with transacting(transaction=limits) as cluster:
        await cluster.init()
        await cluster.until(lambda: not cluster.shell.names)
        assert await cluster.state() is Code.transactional_id_not_found
        assert await states(cluster) == ["Empty", "deleted"]
        await cluster.restart()
        assert (await cluster.init())[2] == 0


@pytest.mark.proof  # 32,766 requests
async def test_an_exhausted_epoch_gets_a_new_producer_id_also_for_a_timeout():
    async with transacting() as cluster:
        _, producer_id, epoch = await cluster.init(timeout_ms=1_000)
        while epoch < EPOCH_LAST:
            known = (producer_id, epoch)
            _, producer_id, epoch = await cluster.init(timeout_ms=1_000, known=known)
        await cluster.add((producer_id, epoch), 0)
        await cluster.until(lambda: cluster.markers.sent)
        cluster.markers.answer()
        await cluster.until(lambda: cluster.shell.describe("pay").state.name == "COMPLETE_ABORT")
        view = cluster.shell.describe("pay")
        assert (view.producer_id != producer_id, view.epoch) == (True, 0)


async def test_the_log_is_truncated_below_the_segment_in_progress():
    limits = StreamLimits(snapshot_bytes=1 << 20)
    async with transacting(limits=limits) as cluster:
        await cluster.init("kept")
        partition = await cluster.partition(TRANSACTION_STATE)
        for _ in range(3):
            partition.stream.roll_soon()
            await cluster.until(lambda: not partition.stream._rolling)
            await cluster.init()
            await asyncio.sleep(11)
            start = partition.stream.segments[-1].start_sequence_id
            assert partition.log_start_offset == start > 0
        await cluster.crash()
        await cluster.until(lambda: cluster.shell._core is not None)
        assert await cluster.state("kept") == "Empty"
        assert (await cluster.init())[2] == 3


async def test_the_ids_of_a_lost_partition_take_no_memory_and_return_with_it():
    limits = TransactionLimits(memory_bytes_max=5_000)
    alone = PaperCluster(ONE, [member(ONE), member(TWO)], leader_of_others=Leader(ONE, 1))
    async with transacting(log_partitions=2, transaction=limits, cluster=alone) as cluster:
        await cluster.init("pay")
        others = [f"id-{number}" for number in range(40)]
        first = [name for name in others if cluster.coordinators.index_of(name) == 0]
        found = [(await cluster.init(name))[0] for name in first]
        assert found[-1] is Code.policy_violation
        assert (await cluster.init("a"))[0] is Code.policy_violation  # of partition 1
        topic = cluster.catalog.by_name(TRANSACTION_STATE)
        key = StreamKey(topic.topic_id, 0)
        for gives_up in (cluster.lost, cluster.partitions.hand_over):
            alone.leaders[0] = Leader(TWO, 2)
            await gives_up(key)
            assert cluster.coordinators.memory_bytes == 0
            assert set(cluster.coordinators._by_index) <= {1}
            alone.leaders[0] = Leader(ONE, 3)
            cluster.partitions.gained(key)
            await cluster.until(lambda: cluster.shell._core is not None)
            assert await cluster.state() == "Empty"
            assert cluster.coordinators.memory_bytes > 0
        alone.leaders[0] = Leader(TWO, 4)
        await cluster.lost(key)
        assert (await cluster.init("a"))[0] is NONE


@contextmanager
def no_bookies(port):
    """No bookie takes a new segment meanwhile. Those in use go on."""
    port.available, port.registered = tuple, dict
    yield
    del port.available, port.registered


async def test_a_coordinator_without_a_segment_serves_soon_after_a_long_failure():
    async with transacting() as cluster:
        await cluster.begin()
        await cluster.restart()  # the log has no segment of this broker
        loop = asyncio.get_running_loop()
        with no_bookies(cluster.port):
            for _ in range(8):
                await cluster.until(lambda: cluster.shell._core is not None)
                fields = {"transactional_id": "pay", "transaction_timeout": 60_000}
                reply = await cluster.answer(INIT, 2, **fields)
                assert reply.error_code is Code.coordinator_not_available
        begun_s = loop.time()
        await cluster.until(lambda: cluster.shell._core is not None)
        assert loop.time() - begun_s <= 6


async def test_a_takeover_that_found_no_bookies_sends_its_markers_soon_after():
    async with transacting() as cluster:
        assert await cluster.end(await cluster.begin()) is NONE
        loop = asyncio.get_running_loop()
        await cluster.stop_gateway()
        with no_bookies(cluster.port):
            await cluster.start_gateway()
            await asyncio.sleep(565)  # pauses that doubled up to 60 s would end at 603 s
            assert not cluster.markers.sent
        begun_s = loop.time()
        await cluster.until(lambda: cluster.markers.sent)
        assert loop.time() - begun_s <= 6


async def test_a_durable_record_shortens_the_pause_before_a_fenced_coordinator_loads_again():
    async with transacting() as cluster:
        loop, pauses = asyncio.get_running_loop(), []
        for number in range(6):
            name = f"id-{number}"
            producer = await cluster.begin(name)
            assert await cluster.end(producer, name=name) is NONE
            begun_s = loop.time()
            cluster.markers.answer(Code.transaction_coordinator_fenced)
            await cluster.until(lambda: cluster.markers.sent)
            pauses.append(loop.time() - begun_s)
            cluster.markers.answer()
        assert max(pauses) < 2


async def damaged(cluster, key, value):
    """Restart a broker with two coordinators, one of them behind a record that it cannot read."""
    assert [cluster.coordinators.index_of(name) for name in ("pay", "a")] == [0, 1]
    for name in ("pay", "a"):
        await cluster.init(name)
    log = await cluster.partition(TRANSACTION_STATE)
    done = []
    log.append_own(encode_batch([(key, value)], 1), 1, done.append)
    await cluster.until(lambda: done)
    await cluster.restart()
    await asyncio.sleep(60)
    assert await cluster.state("a") == "Empty"
    assert (await cluster.init("a"))[2] == 1


async def test_a_damaged_record_takes_only_its_partition_offline_and_is_named(capfd):
    async with transacting(log_partitions=2) as cluster:
        await damaged(cluster, encode_key("pay"), b"\0\7")
        assert await cluster.state("pay") is Code.coordinator_load_in_progress
        reply = await cluster.answer(LIST, 0, state_filters=[], producer_id_filters=[])
        assert reply.error_code is Code.coordinator_load_in_progress
        lines = capfd.readouterr().err.splitlines()
        (line,) = [each for each in lines if "stays offline" in each]
        assert f"{TRANSACTION_STATE}-0" in line
        assert "pay" in line


async def test_a_key_of_a_later_version_takes_only_its_partition_offline_and_is_named(capfd):
    async with transacting(log_partitions=2) as cluster:
        await damaged(cluster, b"\0\7pay", b"")
        assert await cluster.state("pay") is Code.coordinator_load_in_progress
        lines = capfd.readouterr().err.splitlines()
        (line,) = {each.partition("event=")[2] for each in lines if "key has version 7" in each}
        assert f"topic={TRANSACTION_STATE} partition=0" in line
