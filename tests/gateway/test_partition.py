"""Goal: a partition answers each batch once, in order, and acknowledges only durable ones, whatever
happens to its stream.

Method: the real partition over streams, ledgers and a bookie on virtual time; the bookie's
responses are held or replaced by refusals at the relevant moment.
"""

import asyncio
import struct

import pytest
from kio.schema.errors import ErrorCode

from gateway.topics.produced import Produced
from gateway.wire.batches import read_header, with_records
from ledger.client.config import LedgerClientConfig
from ledger.errors import NotOwner
from ledger.ports.bookies import Status
from ledger.streams.segment_store import list_streams
from tests.batches import blank_batch, built_batch, plain_batch, raw_batch
from tests.gateway.stream_cluster import base_offsets, batch, started_cluster

OK = ErrorCode.none
NOT_LEADER = ErrorCode.not_leader_or_follower
NEWEST_MS = 1000  # the timestamp of the records of `batch`


# -- accepted, then durable -----------------------------------------------------------------------


async def test_batches_get_dense_offsets_in_call_order_also_while_the_stream_opens():
    async with started_cluster() as cluster:
        await cluster.catalog.create("t", 1, 1, {})
        partition = cluster.partitions.find("t", 0)
        assert not partition.readable
        early = [cluster.send(partition, batch(records=3)) for _ in range(4)]
        await partition.ensure_readable()
        late = [cluster.send(partition, batch(records=1)) for _ in range(2)]
        await asyncio.sleep(1)
        assert [a for [a] in early + late] == [
            Produced(OK, offset) for offset in (0, 3, 6, 9, 12, 13)
        ]
        assert partition.high_watermark == 14


async def test_nothing_is_shown_or_answered_before_it_is_durable():
    async with started_cluster() as cluster:
        partition = await cluster.topic()
        await cluster.sent(partition, batch())
        cluster.port.hold()
        answers = cluster.send(partition, batch())
        await asyncio.sleep(1)
        assert (answers, partition.high_watermark) == ([], 2)
        assert await partition.read(2, 1000) == []
        cluster.port.release()
        assert answers == [Produced(OK, 2)]
        assert partition.high_watermark == 4


async def test_a_refused_batch_takes_no_offset_and_the_next_is_accepted():
    async with started_cluster() as cluster:
        partition = await cluster.topic()
        damaged = batch()[:-1] + b"\xff"
        answers = await cluster.sent(partition, batch(), damaged, batch())
        assert [answer.base_offset for answer in answers] == [0, -1, 2]
        assert answers[1].error is ErrorCode.corrupt_message
        assert answers[1].message


async def test_what_is_stored_is_what_came_but_for_offset_and_epoch():
    async with started_cluster() as cluster:
        partition = await cluster.topic()
        came = [built_batch([5, 6], codec=codec, size=100) for codec in range(5)]
        await cluster.sent(partition, *came)
        stored = await cluster.read_all(partition)
        assert [each[16:] for each in stored] == [each[16:] for each in came]
        assert base_offsets(stored) == [0, 2, 4, 6, 8]
        epochs = {struct.unpack_from(">i", each, 12)[0] for each in stored}
        assert epochs == {partition.leader_epoch}


async def test_more_than_ten_thousand_batches_do_not_wait_for_a_stream_that_does_not_open():
    async with started_cluster() as cluster:
        await cluster.catalog.create("t", 1, 1, {})
        partition = cluster.partitions.find("t", 0)
        answers = [cluster.send(partition, b"") for _ in range(10_001)]
        assert answers[-1] and answers[-1][0].error is ErrorCode.request_timed_out
        await asyncio.sleep(1)
        assert {a.error for [a] in answers[:-1]} == {ErrorCode.invalid_record}


# -- repeats --------------------------------------------------------------------------------------


async def test_a_repeat_of_a_durable_batch_gets_its_offset_at_once():
    async with started_cluster() as cluster:
        partition = await cluster.topic()
        await cluster.sent(partition, batch(), batch(0), batch(2))
        assert cluster.send(partition, batch(0)) == [Produced(OK, 2, NEWEST_MS)]
        assert partition.high_watermark == 6


async def test_a_repeat_of_a_pending_batch_is_answered_with_the_first():
    async with started_cluster() as cluster:
        partition = await cluster.topic()
        await cluster.sent(partition, batch())
        cluster.port.hold()
        first, second = cluster.send(partition, batch(0)), cluster.send(partition, batch(2))
        again = [cluster.send(partition, batch(0)), cluster.send(partition, batch(2))]
        await asyncio.sleep(1)
        assert [first, second, *again] == [[], [], [], []]
        cluster.port.release()
        assert (first, second) == ([Produced(OK, 2)], [Produced(OK, 4)])
        assert again == [[Produced(OK, 2, NEWEST_MS)], [Produced(OK, 4, NEWEST_MS)]]
        assert partition.high_watermark == 6


async def test_a_repeat_of_a_batch_that_fails_fails_with_it_and_may_be_sent_again():
    async with started_cluster() as cluster:
        partition = await cluster.topic()
        await cluster.sent(partition, batch(0))
        cluster.port.refuse()
        first, again = cluster.send(partition, batch(2)), cluster.send(partition, batch(2))
        await asyncio.sleep(0.01)
        assert [a.error for [a] in (first, again)] == [NOT_LEADER, NOT_LEADER]
        cluster.port.accept()
        answers = await cluster.sent(partition, batch(2), batch(2), batch(4))
        assert answers == [Produced(OK, 2), Produced(OK, 2, NEWEST_MS), Produced(OK, 4)]
        assert base_offsets(await cluster.read_all(partition)) == [0, 2, 4]


async def test_wrong_sequences_and_epochs_are_refused_as_kafka_refuses_them():
    async with started_cluster() as cluster:
        partition = await cluster.topic()
        await cluster.sent(partition, batch(0, epoch=3))
        asked = (batch(4, epoch=3), batch(2, epoch=2), batch(1, epoch=4), batch(0, epoch=4))
        answers = await cluster.sent(partition, *asked)
        assert [answer.error for answer in answers] == [
            ErrorCode.out_of_order_sequence_number,
            ErrorCode.invalid_producer_epoch,
            ErrorCode.out_of_order_sequence_number,
            OK,
        ]


@pytest.mark.parametrize("stop", ["restart", "crash"])
async def test_a_retry_after_a_restart_gets_its_first_offset(stop):
    async with started_cluster() as cluster:
        partition = await cluster.topic()
        await cluster.sent(partition, *(batch(n * 2) for n in range(7)))
        await getattr(cluster, stop)()
        partition = await cluster.partition()
        answers = await cluster.sent(partition, *(batch(n * 2) for n in range(2, 8)))
        assert answers == [Produced(OK, n * 2) for n in range(2, 8)]


async def test_a_retry_after_a_restart_has_no_append_time_where_there_is_none():
    async with started_cluster() as cluster:
        partition = await cluster.topic()
        await cluster.sent(partition, batch(0))
        await cluster.crash()
        (answer,) = await cluster.sent(await cluster.partition(), batch(0))
        assert answer == Produced(OK, 0, append_time_ms=-1)


async def test_a_hundred_batches_in_flight_are_all_remembered_across_a_snapshot():
    """Clients may have five in flight; a client with more must not get duplicates either."""
    async with started_cluster() as cluster:
        partition = await cluster.topic()
        await cluster.sent(partition, batch(0))
        cluster.port.hold()
        waiting = [cluster.send(partition, batch(n * 2)) for n in range(1, 100)]
        await asyncio.sleep(0.1)
        partition.stream.roll_soon()
        await asyncio.sleep(0.1)
        late = [cluster.send(partition, batch(n * 2)) for n in range(100, 150)]
        await asyncio.sleep(0.1)
        cluster.port.lose_after(1)  # the snapshot of the next segment, without its batches
        cluster.port.release()
        await asyncio.sleep(1)
        assert [answer.base_offset for [answer] in waiting] == [n * 2 for n in range(1, 100)]
        assert late == [[]] * 50
        await cluster.crash()
        partition = await cluster.partition()
        answers = await cluster.sent(partition, batch(298), batch(198), batch(200))
        assert [(a.error, a.base_offset) for a in answers] == [
            (ErrorCode.out_of_order_sequence_number, -1),
            (OK, 198),
            (OK, 200),
        ]


# -- failure --------------------------------------------------------------------------------------


async def test_a_failed_add_fails_all_that_was_accepted_after_it_once_and_the_next_epoch_serves():
    async with started_cluster() as cluster:
        partition = await cluster.topic()
        await cluster.sent(partition, batch())
        epoch = partition.leader_epoch
        cluster.port.refuse(Status.FENCED)
        waiting = [cluster.send(partition, batch()) for _ in range(5)]
        await asyncio.sleep(0)
        waiting += [cluster.send(partition, batch()) for _ in range(5)]
        await asyncio.sleep(0.002)
        cluster.port.accept()
        await asyncio.sleep(1)
        assert {tuple(a.error for a in answers) for answers in waiting[:5]} == {(NOT_LEADER,)}
        assert all(len(answers) == 1 for answers in waiting)
        (after,) = await cluster.sent(partition, batch())
        assert after.error is OK
        assert partition.leader_epoch > epoch
        stored = base_offsets(await cluster.read_all(partition))
        assert stored == list(range(0, partition.high_watermark, 2))


async def test_a_batch_that_comes_in_the_turn_of_the_failure_waits_for_the_next_epoch():
    async with started_cluster() as cluster:
        partition = await cluster.topic()
        await cluster.sent(partition, batch())
        late = []
        cluster.port.refuse()

        def on_produced(produced):
            late.append(cluster.send(partition, batch()))
            cluster.port.accept()

        partition.append(memoryview(batch()), 13, on_produced)
        await asyncio.sleep(1)
        assert [a.error for [a] in late] == [OK]


async def test_a_stream_that_cannot_be_written_is_not_given_a_new_segment_at_every_try():
    async with started_cluster() as cluster:
        partition = await cluster.topic()
        cluster.port.refuse()
        for _ in range(100):
            cluster.send(partition, batch())
            await asyncio.sleep(0.1)
        assert len(partition.stream.segments) < 15
        cluster.port.accept()
        (answer,) = await cluster.sent(partition, batch())
        assert answer.error is OK


async def test_a_durable_batch_ends_the_long_pauses_between_openings():
    async with started_cluster() as cluster:
        partition = await cluster.topic()
        for batches in (100, 5):
            cluster.port.refuse()
            for _ in range(batches):
                cluster.send(partition, batch())
                await asyncio.sleep(0.1)
            cluster.port.accept()
            began_s = asyncio.get_running_loop().time()
            await cluster.sent(partition, batch())
        assert asyncio.get_running_loop().time() - began_s < 1


async def test_the_high_watermark_does_not_fall_while_a_failed_stream_is_opened_again():
    async with started_cluster() as cluster:
        partition = await cluster.topic()
        await cluster.sent(partition, batch(), batch())
        cluster.port.refuse()
        cluster.send(partition, batch())
        seen = []
        while partition.readable or len(seen) < 2:
            await asyncio.sleep(1e-6)
            seen.append(partition.high_watermark)
        while not partition.readable:
            await asyncio.sleep(1e-6)
            seen.append(partition.high_watermark)
        assert seen == sorted(seen)
        assert seen[0] == 4


async def test_readers_of_a_failed_stream_wait_until_it_is_open_again():
    async with started_cluster() as cluster:
        partition = await cluster.topic()
        await cluster.sent(partition, batch())
        cluster.port.refuse()
        cluster.send(partition, batch())
        while partition.readable:
            await asyncio.sleep(0.00001)
        await partition.ensure_readable()
        assert base_offsets(await cluster.read_all(partition))[0] == 0


# -- closing and deleting -------------------------------------------------------------------------


async def test_after_an_orderly_stop_everything_is_durable_and_nothing_needs_recovery():
    async with started_cluster() as cluster:
        partition = await cluster.topic()
        await cluster.sent(partition, batch())
        waiting = [cluster.send(partition, batch()) for _ in range(50)]
        await cluster.restart()
        assert [a.error for [a] in waiting] == [OK] * 50
        assert all(segment.completed for segment in partition.stream.segments)
        assert (await cluster.partition()).high_watermark == 102


async def test_an_orderly_stop_also_writes_what_the_ledger_has_no_room_for_yet():
    async with started_cluster() as cluster:
        partition = await cluster.topic()
        cluster.services.client._config = LedgerClientConfig(pending_entries_max=1)
        await cluster.sent(partition, batch())
        waiting = [cluster.send(partition, blank_batch(1, 700_000)) for _ in range(5)]
        await cluster.restart()
        assert [a.error for [a] in waiting] == [OK] * 5


async def test_a_stop_while_the_first_snapshot_is_under_way_does_not_hang():
    async with started_cluster() as cluster:
        partition = await cluster.topic()
        await partition.stream.begin()
        async with asyncio.timeout(5):
            await cluster.restart()
        assert (await cluster.partition()).high_watermark == 0


async def test_a_roll_while_only_a_snapshot_is_under_way_does_not_hang():
    async with started_cluster() as cluster:
        partition = await cluster.topic()
        await partition.stream.begin()
        partition.stream.roll_soon()
        (answer,) = await cluster.sent(partition, batch())
        assert answer == Produced(OK, 0)


async def test_a_stop_during_a_roll_waits_for_it():
    async with started_cluster() as cluster:
        partition = await cluster.topic()
        await cluster.sent(partition, batch())
        partition.stream.roll_soon()
        await asyncio.sleep(0)
        waiting = [cluster.send(partition, batch()) for _ in range(5)]
        await cluster.restart()
        assert [a.error for [a] in waiting] == [OK] * 5
        assert (await cluster.partition()).high_watermark == 12


async def test_a_closed_partition_takes_nothing():
    async with started_cluster() as cluster:
        partition = await cluster.topic()
        await cluster.sent(partition, batch())
        await partition.close()
        assert cluster.send(partition, batch()) == [Produced(NOT_LEADER)]
        with pytest.raises(NotOwner):
            await partition.ensure_readable()


async def test_batches_that_wait_for_a_stream_to_open_are_refused_when_it_is_closed():
    async with started_cluster() as cluster:
        await cluster.catalog.create("t", 1, 1, {})
        partition = cluster.partitions.find("t", 0)
        answers = cluster.send(partition, batch())
        await partition.close()
        assert [answer.error for answer in answers] == [NOT_LEADER]


async def test_while_the_process_stops_no_partition_is_opened_again():
    async with started_cluster() as cluster:
        partition = await cluster.topic(partitions=2)
        await cluster.sent(partition, batch())
        waiting = [cluster.send(partition, batch()) for _ in range(3)]
        stopping = asyncio.create_task(cluster.partitions.stop())
        while not partition.closed:
            await asyncio.sleep(0)
        for index in range(2):
            late = cluster.partitions.find("t", index)
            assert cluster.send(late, batch()) == [Produced(NOT_LEADER)]
            assert not late.readable
        await stopping
        assert [a.error for [a] in waiting] == [OK] * 3


async def test_a_deleted_topic_leaves_no_stream_and_no_ledger():
    async with started_cluster() as cluster:
        partition = await cluster.topic()
        await cluster.sent(partition, batch(), batch())
        waiting = [cluster.send(partition, batch()) for _ in range(3)]
        partition.stream.roll_soon()
        await cluster.catalog.delete("t")
        await asyncio.sleep(5)
        assert all(len(answers) == 1 for answers in waiting)
        assert cluster.send(partition, batch()) == [Produced(NOT_LEADER)]
        assert await list_streams(cluster.metadata) == []
        assert await cluster.services.client.list_ledgers() == []
        assert cluster.freed == 1


async def test_a_topic_deleted_while_it_opens_stays_deleted():
    async with started_cluster() as cluster:
        await cluster.catalog.create("t", 1, 1, {})
        partition = cluster.partitions.find("t", 0)
        answers = cluster.send(partition, batch())
        await cluster.catalog.delete("t")
        await asyncio.sleep(5)
        assert [answer.error for answer in answers] == [NOT_LEADER]
        assert await list_streams(cluster.metadata) == []
        assert await cluster.services.client.list_ledgers() == []


async def test_a_deletion_that_a_crash_cut_short_is_finished_at_the_next_start():
    async with started_cluster() as cluster:
        partition = await cluster.topic()
        await cluster.sent(partition, batch())
        partition.stream.roll_soon()
        await cluster.sent(partition, batch())
        await cluster.catalog.create("other", 1, 1, {})
        await cluster.services.client.delete(partition.stream.segments[0].ledger)
        cluster.catalog.on_deleted.clear()
        await cluster.catalog.delete("t")
        await cluster.crash()
        await cluster.partitions.start()
        await asyncio.sleep(1)
        assert len(await list_streams(cluster.metadata)) == 1
        await cluster.partitions.stop()


# -- what the topic demands -----------------------------------------------------------------------


async def test_a_timestamp_of_more_than_64_bits_is_refused_and_does_not_end_the_log():
    async with started_cluster() as cluster:
        partition = await cluster.topic(message_timestamp_after_max_ms=2**63 - 1)
        late = batch(records=1, at=2**63 - 1)
        header = read_header(late)
        body = late[61:63] + b"\2" + late[64:]  # the delta is 1 in place of 0
        refused, accepted = await cluster.sent(partition, with_records(header, 0, body), late)
        assert refused.error is ErrorCode.invalid_timestamp
        assert (accepted.error, accepted.base_offset) == (OK, 0)


async def test_log_append_time_is_returned_and_stored_and_never_falls():
    async with started_cluster() as cluster:
        partition = await cluster.topic(message_timestamp_type="LogAppendTime")
        (first,) = await cluster.sent(partition, batch(0))
        cluster.clock.epoch_ms -= 3_600_000
        (second,) = await cluster.sent(partition, batch(2))
        assert first.append_time_ms > 1_600_000_000_000
        assert second.append_time_ms == first.append_time_ms
        await cluster.crash()
        partition = await cluster.partition()
        assert await cluster.sent(partition, batch(0), batch(2)) == [first, second]
        found = await cluster.at_time(partition, first.append_time_ms)
        assert found == (first.append_time_ms, 0)


@pytest.mark.parametrize(
    ("at", "error"),
    [
        (-1, OK),
        (-2, ErrorCode.invalid_timestamp),
        (0, ErrorCode.invalid_timestamp),
        (1_700_000_000_000, OK),
        (1_700_000_000_000 + 7_000_000, ErrorCode.invalid_timestamp),
        (2**63 - 1, ErrorCode.invalid_timestamp),
    ],
)
async def test_timestamps_outside_the_topics_bounds_are_refused(at, error):
    async with started_cluster() as cluster:
        partition = await cluster.topic(message_timestamp_before_max_ms=1_000_000)
        sent = blank_batch(base_timestamp=at)
        (answer,) = await cluster.sent(partition, sent)
        assert answer.error is error


async def test_a_compacted_topic_takes_only_keys_that_it_can_read():
    async with started_cluster() as cluster:
        partition = await cluster.topic(cleanup_policy="compact")
        answers = await cluster.sent(
            partition,
            plain_batch([1, 2], key=b"k"),
            plain_batch([1, 2]),
            built_batch([1], codec=4),
            built_batch([1], codec=4, key=None),
            raw_batch(b"\xff" * 30),
            raw_batch(b"\xff" * 30, attributes=1),
        )
        assert [answer.error for answer in answers] == [
            OK,
            ErrorCode.invalid_record,
            OK,
            ErrorCode.invalid_record,
            ErrorCode.invalid_record,
            ErrorCode.corrupt_message,
        ]


async def test_a_batch_over_max_message_bytes_is_refused_and_the_limit_may_be_raised():
    async with started_cluster() as cluster:
        partition = await cluster.topic(max_message_bytes=70)
        (refused,) = await cluster.sent(partition, batch())
        assert refused.error is ErrorCode.message_too_large
