"""Goal: a gateway cleans its compacted partitions by Kafka's rules, and no accident loses a record.

Method: real streams and ledgers on virtual time, and the code of the cleaner process without its
pipe. A reader checks the last value of each key after each accident.
"""

from __future__ import annotations

import asyncio

import pytest

from gateway.cleaning import round as cleaning_round
from gateway.cleaning.frames import Kind
from gateway.core.cleaning_keys import KEY_BYTES
from ledger.errors import LedgerError, StreamUnavailable
from ledger.ports.metadata import Delete
from tests.gateway.cleaning_log import keyed_batch
from tests.gateway.cleaning_rig import started_cleaning
from tests.gateway.stream_cluster import StreamCluster


async def test_the_dirty_part_is_cleaned_and_new_records_stay():
    async with started_cleaning() as cluster:
        partition = await cluster.compacted()
        await cluster.fill(partition, b"one", b"two", b"three")
        await cluster.write(partition, (b"0", b"four"))
        await cluster.clean()
        found = await cluster.check(partition)
        # The newest completed segment and the present one overlap: only the first is cleaned.
        assert list(found) == [6, 7, 8, 9]
        assert all(segment.cleaned for segment in partition.stream.cleanable_segments())
        report = cluster.report()
        assert (report.state, report.error, report.cleanable.first_dirty) == ("idle", None, 9)


async def test_a_reader_may_ask_for_any_offset_of_a_cleaned_log():
    async with started_cleaning() as cluster:
        partition = await cluster.compacted()
        for key in (b"a", b"a", b"b", b"a", b"c", b"a"):
            await cluster.write(partition, (key, b"one"))
        await cluster.roll(partition)
        await cluster.write(partition, (b"c", b"two"))
        await cluster.roll(partition)
        await cluster.clean()
        for offset in range(8):
            left = [at for at in (2, 5, 6) if at >= offset]
            assert list(await cluster.read_records(partition, offset)) == left


async def test_the_process_serves_the_rounds_of_a_minute_and_ends_when_none_is_due():
    async with started_cleaning() as cluster:
        cluster.settings = cluster.settings._replace(backoff_ms=100)
        partition = await cluster.compacted()
        cluster.cleaner.start()
        for value in (b"one", b"two"):
            await cluster.fill(partition, value)
            await asyncio.sleep(20)
        assert (cluster.report().state, cluster.process.starts) == ("idle", 1)
        assert cluster.process.cleaning is not None
        await asyncio.sleep(60)
        assert cluster.process.cleaning is None
        await cluster.cleaner.stop()


async def test_a_second_round_begins_behind_the_first_and_rewrites_what_it_must():
    async with started_cleaning() as cluster:
        partition = await cluster.compacted()
        await cluster.fill(partition, b"one")
        await cluster.clean()
        await cluster.fill(partition, b"two", b"three")
        before = [segment.ledger for segment in partition.stream.segments]
        await cluster.clean()
        assert list(await cluster.check(partition)) == [6, 7, 8]
        after = [segment.ledger for segment in partition.stream.segments]
        assert before[0] != after[0]


async def test_a_clean_segment_that_loses_nothing_keeps_its_ledger():
    async with started_cleaning() as cluster:
        partition = await cluster.compacted()
        await cluster.fill(partition, b"one")
        await cluster.clean()
        before = partition.stream.segments[0].ledger
        await cluster.write(partition, (b"new", b"one"))
        await cluster.roll(partition)
        await cluster.clean()
        assert partition.stream.segments[0].ledger == before
        assert partition.stream.segments[1].cleaned


async def test_a_topic_that_does_not_compact_is_left_alone():
    async with started_cleaning() as cluster:
        partition = await cluster.topic("plain", min_cleanable_dirty_ratio=0)
        await cluster.fill(partition, b"one", b"two")
        await cluster.clean()
        assert not any(segment.cleaned for segment in partition.stream.segments)
        assert list(cluster.cleaner.reports()) == []


async def test_a_log_waits_until_the_dirty_share_is_large_enough():
    async with started_cleaning() as cluster:
        partition = await cluster.compacted(min_cleanable_dirty_ratio=0.6)
        await cluster.fill(partition, b"one" * 100)
        await cluster.clean()
        assert partition.stream.segments[0].cleaned
        await cluster.fill(partition, b"two" * 100)
        await cluster.clean()
        assert not partition.stream.segments[1].cleaned
        await cluster.fill(partition, b"three" * 100)
        await cluster.clean()
        assert partition.stream.segments[1].cleaned


async def test_min_compaction_lag_keeps_young_records_and_max_lag_cleans_old_ones():
    async with started_cleaning() as cluster:
        young = await cluster.compacted("young", min_compaction_lag_ms=60_000)
        overdue = await cluster.compacted(
            "overdue", min_cleanable_dirty_ratio=1, max_compaction_lag_ms=600_000
        )
        for partition in (young, overdue):
            await cluster.fill(partition, b"one", b"two")
        await cluster.clean()
        assert not young.stream.segments[0].cleaned
        await asyncio.sleep(61)
        await cluster.clean()
        assert young.stream.segments[0].cleaned
        assert not overdue.stream.segments[0].cleaned
        await asyncio.sleep(600)
        await cluster.clean()
        assert overdue.stream.segments[0].cleaned


async def test_max_compaction_lag_completes_the_segment_in_progress():
    async with started_cleaning() as cluster:
        partition = await cluster.compacted(max_compaction_lag_ms=60_000)
        await cluster.write(partition, (b"0", b"one"))
        assert not partition.stream.roll_if_old()
        await asyncio.sleep(64)
        assert partition.stream.roll_if_old()


async def test_max_compaction_lag_completes_no_segment_where_nothing_is_compacted():
    cluster = StreamCluster()
    await cluster.start()
    partition = await cluster.topic("t", cleanup_policy="compact", max_compaction_lag_ms=60_000)
    assert await cluster.sent(partition, keyed_batch([(b"a", b"one")]))
    await asyncio.sleep(64)
    assert not partition.stream.roll_if_old()


async def test_more_keys_than_the_map_holds_take_more_rounds_and_lose_nothing():
    for keys in (1, 4, 7, 50):
        async with started_cleaning() as cluster:
            cluster.settings = cluster.settings._replace(map_bytes=keys * KEY_BYTES)
            partition = await cluster.compacted()
            await cluster.fill(partition, b"one", b"two", b"three", keys=10)
            await cluster.clean()
            await cluster.check(partition)
            assert all(segment.cleaned for segment in partition.stream.cleanable_segments())


async def test_a_map_that_is_full_while_the_next_batches_are_asked_about_loses_nothing(
    monkeypatch,
):
    monkeypatch.setattr(cleaning_round, "_ASKED_BYTES", 1)  # a request for each batch
    async with started_cleaning() as cluster:
        cluster.settings = cluster.settings._replace(map_bytes=2 * KEY_BYTES)
        partition = await cluster.compacted()
        for at in range(12):
            await cluster.write(partition, (b"%d" % (at % 8), b"%d" % at))
        await cluster.roll(partition)
        await cluster.cleaner.clean_once()  # the first look opens the gate of new forms
        await asyncio.sleep(1)
        await cluster.cleaner.clean_once()
        assert Kind.MARK_BATCHES in cluster.process.asked
        assert cluster.report().error is None
        assert len(await cluster.check(partition)) == 8


async def test_a_round_that_failed_marks_no_record_of_another_log():
    async with started_cleaning() as cluster:
        cluster.settings = cluster.settings._replace(map_bytes=2 * KEY_BYTES)
        first = await cluster.compacted("first")
        await cluster.write(first, *((b"same", b"%d" % at) for at in range(10)), (b"a", b"a"))
        await cluster.write(first, (b"b", b"b"), (b"c", b"c"))
        await cluster.roll(first)
        await cluster.cleaner.clean_once()
        await asyncio.sleep(1)

        async def fail(kind):
            if kind is Kind.BEGIN_FILTER:
                raise StreamUnavailable("the ledger cannot be read now")

        cluster.process.before_answer = fail
        assert await cluster.cleaner.clean_once()
        assert cluster.report("first").state == "failed"
        assert Kind.MARK_BATCHES in cluster.process.asked
        cluster.process.before_answer = None
        second = await cluster.compacted("second")
        await cluster.write(second, *((b"%d" % at, b"one") for at in range(20)))
        await cluster.roll(second)
        await cluster.clean()
        assert len(await cluster.check(second)) == 20
        await asyncio.sleep(60)
        await cluster.clean()
        await cluster.check(first)


async def test_compact_and_delete_does_both():
    async with started_cleaning() as cluster:
        partition = await cluster.compacted(cleanup_policy="compact,delete", retention_ms=60_000)
        await cluster.fill(partition, b"one", b"two")
        await cluster.clean()
        assert list(await cluster.check(partition)) == [3, 4, 5]
        await asyncio.sleep(61)
        await cluster.fill(partition, b"three", b"four")
        assert await partition.expire() == 2
        assert partition.log_start_offset == 6
        await cluster.clean()
        assert list(await cluster.check(partition)) == [9, 10, 11]


async def test_retention_does_not_apply_to_a_topic_that_only_compacts():
    async with started_cleaning() as cluster:
        partition = await cluster.compacted(retention_ms=60_000, retention_bytes=1)
        await cluster.fill(partition, b"one", b"two")
        await cluster.clean()
        await asyncio.sleep(61)
        assert await partition.expire() == 0
        await cluster.check(partition)


async def test_a_tombstone_that_stays_too_long_goes_in_a_later_round():
    async with started_cleaning() as cluster:
        partition = await cluster.compacted(delete_retention_ms=60_000)
        await cluster.fill(partition, b"one", None)
        await cluster.clean()
        assert [value for _, value in (await cluster.check(partition)).values()] == [None] * 3
        await asyncio.sleep(50)
        await cluster.write(partition, (b"more", b"one"))
        await cluster.roll(partition)
        await cluster.clean()
        assert len(await cluster.check(partition)) == 4
        await asyncio.sleep(20)
        await cluster.write(partition, (b"more", b"two"))
        await cluster.roll(partition)
        await cluster.clean()
        assert list((await cluster.check(partition)).values()) == [(b"more", b"two")]


async def test_the_dirtiest_log_comes_first():
    async with started_cleaning() as cluster:
        first = await cluster.compacted("first")
        second = await cluster.compacted("second")
        await cluster.fill(first, b"one")
        await cluster.clean()
        await cluster.fill(first, b"two")  # half of it is dirty
        await cluster.fill(second, b"one")  # all of it is dirty
        assert await cluster.cleaner.clean_once()
        assert second.stream.segments[0].cleaned
        assert not first.stream.segments[1].cleaned


async def test_an_open_transaction_is_not_cleaned_and_its_abort_loses_nothing():
    async with started_cleaning() as cluster:
        partition = await cluster.compacted()
        await cluster.fill(partition, b"one")
        await cluster.write_in_transaction(partition, (b"0", b"aborted"), (b"new", b"aborted"))
        await cluster.roll(partition)
        await cluster.fill(partition, b"two")
        await cluster.clean()
        # The segment before the transaction is clean, and nothing behind it.
        assert [s.cleaned for s in partition.stream.segments[:3]] == [True, False, False]
        await cluster.abort(partition)
        await cluster.roll(partition)
        await cluster.write(partition, (b"last", b"one"))
        await cluster.roll(partition)
        await cluster.clean()
        assert cluster.report().dirty_bytes == 0
        assert list(await cluster.check(partition)) == [5, 6, 7, 9]


# -- accidents ------------------------------------------------------------------------------------


async def test_an_empty_segment_of_a_dead_owner_is_not_dirty():
    async with started_cleaning() as cluster:
        partition = await cluster.compacted()
        await cluster.fill(partition, b"one", b"two")
        await cluster.clean()
        await cluster.crash()  # the segment in progress has no record
        partition = await cluster.partition()
        await cluster.write(partition, (b"0", b"three"))
        empty = partition.stream.segments[-2]
        assert empty.completed and empty.start_sequence_id == empty.end_sequence_id
        assert not await cluster.cleaner.clean_once(), "a round that cleans nothing is due for ever"
        assert cluster.report().dirty_bytes == 0
        await cluster.roll(partition)
        await cluster.clean()
        assert all(segment.cleaned for segment in partition.stream.segments[:-1])
        await cluster.check(partition)


@pytest.mark.parametrize(
    ("kind", "count"),
    [
        (Kind.BEGIN_MAP, 1),
        (Kind.MAP_BATCHES, 2),
        (Kind.FILTER_BATCHES, 1),
        (Kind.END_SEGMENT, 1),
        (Kind.FILTER_BATCHES, 3),
        (Kind.END_SEGMENT, 3),
    ],
)
async def test_a_killed_cleaner_process_loses_nothing_and_is_started_again(kind, count):
    async with started_cleaning() as cluster:
        partition = await cluster.compacted()
        await cluster.fill(partition, b"one", b"two", b"three")
        cluster.process.dies_at = kind, count
        await cluster.clean()
        await cluster.check(partition)
        assert cluster.report().state == "failed"
        assert "killed" in cluster.report().error
        await asyncio.sleep(60)
        await cluster.clean()
        assert list(await cluster.check(partition)) == [6, 7, 8]
        assert (cluster.report().state, cluster.process.starts) == ("idle", 2)


async def test_a_restart_of_the_gateway_at_any_request_loses_nothing():
    for at in range(1, 16, 2):
        async with started_cleaning() as cluster:
            partition = await cluster.compacted()
            await cluster.fill(partition, b"one", b"two", b"three")
            reached = asyncio.Event()
            hold = asyncio.Event()

            async def stop_at(kind, at=at, reached=reached, hold=hold):
                if len(cluster.process.asked) == at:
                    reached.set()
                    await hold.wait()

            await cluster.cleaner.clean_once()  # opens the gate of new forms
            await asyncio.sleep(1)
            cluster.process.before_answer = stop_at
            cleaning = asyncio.ensure_future(cluster.cleaner.clean_once())
            await reached.wait()
            cleaning.cancel()
            await asyncio.gather(cleaning, return_exceptions=True)
            await cluster.crash()
            partition = await cluster.partition()
            await cluster.check(partition)
            await cluster.write(partition, (b"0", b"four"))
            await cluster.clean()
            assert list(await cluster.check(partition))[-4:] == [6, 7, 8, 9]


async def test_a_segment_without_a_record_before_an_open_transaction_is_not_due():
    """An owner that ends before its first record is durable leaves such a segment."""
    async with started_cleaning() as cluster:
        partition = await cluster.compacted()
        await cluster.fill(partition, b"one", b"two")
        await cluster.clean()
        await cluster.crash()
        partition = await cluster.partition()
        cluster.port.lose_after(1)  # the next segment has a head, and no record
        lost = asyncio.ensure_future(cluster.write(partition, (b"0", b"lost")))
        await asyncio.sleep(1)
        await cluster.crash()
        lost.cancel()
        partition = await cluster.partition()
        await cluster.write_in_transaction(partition, (b"0", b"open"))
        await cluster.roll(partition)
        await cluster.clean()
        segments = partition.stream.cleanable_segments()
        assert not all(segment.record_count for segment in segments)
        for each in segments:
            assert each.cleaned == (each.end_sequence_id <= 6 and each.record_count > 0)
        assert list(await cluster.read_records(partition)) == [3, 4, 5, 6]


async def test_a_gateway_that_stops_during_a_swap_still_closes_its_partitions():
    async with started_cleaning() as cluster:
        partition = await cluster.compacted()
        await cluster.fill(partition, b"one", b"two")
        await cluster.cleaner.clean_once()  # opens the gate of new forms
        await asyncio.sleep(1)
        swapped = asyncio.Event()
        multi = cluster.metadata.multi

        async def multi_with_a_late_reply(ops):
            await multi(ops)
            if any(isinstance(op, Delete) for op in ops):
                swapped.set()
                await asyncio.sleep(1)

        cluster.metadata.multi = multi_with_a_late_reply
        cleaning = asyncio.ensure_future(cluster.cleaner.clean_once())
        await swapped.wait()
        cleaning.cancel()
        await asyncio.gather(cleaning, return_exceptions=True)
        await partition.stream.close()
        assert partition.stream.segments[0].cleaned


async def test_a_partition_that_cannot_be_judged_does_not_stop_others():
    async with started_cleaning() as cluster:
        reported = []
        asyncio.get_running_loop().set_exception_handler(lambda _, each: reported.append(each))
        broken = await cluster.compacted("broken")
        other = await cluster.compacted("other")
        await cluster.fill(broken, b"one", b"two")
        await cluster.fill(other, b"one", b"two")

        def fail():
            raise AssertionError("a mistake")

        broken.stream.cleanable_segments = fail
        await cluster.clean()
        assert "a mistake" in cluster.report("broken").look_error
        assert list(await cluster.check(other)) == [3, 4, 5]
        assert "a mistake" in str(reported[0]["exception"])


async def test_a_deleted_topic_ends_its_round_and_others_go_on():
    async with started_cleaning() as cluster:
        partition = await cluster.compacted("gone")
        other = await cluster.compacted("other")
        await cluster.fill(partition, b"one", b"two", b"three")
        await cluster.fill(other, b"one")
        await cluster.fill(other, b"two")

        async def delete(kind):
            if kind is Kind.FILTER_BATCHES and cluster.catalog.by_name("gone") is not None:
                cluster.process.before_answer = None
                await cluster.catalog.delete("gone")

        cluster.process.before_answer = delete
        await cluster.clean()
        assert [each.topic for each in cluster.cleaner.reports()] == ["other"]
        assert list(await cluster.check(other)) == [3, 4, 5]


async def test_a_full_disk_leaves_the_log_as_it_was():
    async with started_cleaning() as cluster:
        partition = await cluster.compacted()
        await cluster.fill(partition, b"one", b"two")
        await cluster.cleaner.clean_once()
        await asyncio.sleep(1)

        async def refuse(kind):
            if kind is Kind.FILTER_BATCHES:
                cluster.port.refuse()

        cluster.process.before_answer = refuse
        assert await cluster.cleaner.clean_once()
        report = cluster.report()
        assert report.state == "failed" and report.error
        assert not partition.stream.segments[0].cleaned
        await cluster.check(partition)
        cluster.process.before_answer = None
        cluster.port.accept()
        await asyncio.sleep(60)
        await cluster.clean()
        assert cluster.report().state == "idle"


async def test_a_look_that_could_not_read_the_log_is_forgotten_after_one_that_could():
    async with started_cleaning() as cluster:
        partition = await cluster.compacted(min_cleanable_dirty_ratio=1)
        await cluster.fill(partition, b"one", b"two")
        real = partition.stream.read

        async def refuse(*words):
            raise StreamUnavailable("no bookie answers")

        partition.stream.read = refuse
        await cluster.cleaner.clean_once()
        assert (cluster.report().state, cluster.report().error) == ("failed", "no bookie answers")
        partition.stream.read = real
        await cluster.cleaner.clean_once()
        assert (cluster.report().state, cluster.report().error) == ("idle", None)


async def test_a_damaged_batch_makes_one_partition_uncleanable():
    async with started_cleaning() as cluster:
        partition = await cluster.compacted("bad")
        other = await cluster.compacted("good")
        await cluster.fill(partition, b"one", b"two")
        await cluster.fill(other, b"one", b"two")
        real = cluster.process.ask

        async def damaged(kind, *payload):
            if kind is Kind.MAP_BATCHES and cluster.report("bad").progress is not None:
                last = bytes(payload[-1])
                payload = *payload[:-1], last[:-1] + bytes([last[-1] ^ 1])
            return await real(kind, *payload)

        cluster.process.ask = damaged
        await cluster.clean()
        assert cluster.report("bad").state == "uncleanable"
        assert "CRC" in cluster.report("bad").error
        assert list(await cluster.check(other)) == [3, 4, 5]
        assert cluster.report("good").state == "idle"


async def test_a_lost_partition_is_not_replaced_any_more():
    async with started_cleaning() as cluster:
        partition = await cluster.compacted()
        await cluster.fill(partition, b"one", b"two")
        await cluster.cleaner.clean_once()
        await asyncio.sleep(1)

        async def lose(kind):
            if kind is Kind.END_SEGMENT:
                partition.abandon()

        cluster.process.before_answer = lose
        await cluster.cleaner.clean_once()
        assert not any(segment.cleaned for segment in partition.stream.segments)
        with pytest.raises(LedgerError):
            await partition.ensure_readable()


async def test_a_policy_that_changes_ends_the_round():
    async with started_cleaning() as cluster:
        partition = await cluster.compacted()
        await cluster.fill(partition, b"one", b"two", b"three")
        await cluster.cleaner.clean_once()
        await asyncio.sleep(1)

        async def change(kind, policy="delete"):
            if kind is Kind.END_SEGMENT:
                cluster.process.before_answer = None
                await cluster.catalog.change_configs(
                    "t", lambda configs: {**configs, "cleanup.policy": policy}
                )

        cluster.process.before_answer = change
        await cluster.cleaner.clean_once()
        assert not any(segment.cleaned for segment in partition.stream.segments)
        assert cluster.report().error is None
        await cluster.clean()
        assert list(cluster.cleaner.reports()) == []
        await change(Kind.END_SEGMENT, "compact")
        await cluster.clean()
        assert list(await cluster.check(partition)) == [6, 7, 8]


async def test_the_limit_of_reads_and_writes_holds():
    async with started_cleaning() as cluster:
        partition = await cluster.compacted()
        await cluster.fill(partition, b"x" * 10_000, b"y" * 10_000)
        await cluster.cleaner.clean_once()
        await asyncio.sleep(1)
        cluster.settings = cluster.settings._replace(io_bytes_per_s=1_000.0)
        began = cluster.clock.monotonic_s()
        await cluster.cleaner.clean_once()
        # Both passes read 60 kB, and 30 kB are written.
        assert 145 < cluster.clock.monotonic_s() - began < 160


async def test_nothing_is_cleaned_before_the_gate_of_new_forms_is_open():
    async with started_cleaning() as cluster:
        partition = await cluster.compacted()
        await cluster.fill(partition, b"one", b"two")
        assert not cluster.context.features.writes_new_forms
        assert not await cluster.cleaner.clean_once()
        assert not partition.stream.segments[0].cleaned


async def test_a_report_has_progress_and_the_age_of_the_oldest_dirty_record():
    async with started_cleaning() as cluster:
        partition = await cluster.compacted()
        await cluster.fill(partition, b"one", b"two")
        written_ms = cluster.clock.now_ms()
        await cluster.cleaner.clean_once()
        await asyncio.sleep(10)
        shares = []

        async def note(kind):
            shares.append(cluster.report().row(0)["progress"])

        cluster.process.before_answer = note
        row = cluster.report().row(written_ms + 10_000)
        assert row["oldest_dirty_age_ms"] >= 10_000
        await cluster.clean()
        assert shares == sorted(shares) and shares[-1] > 0.9
        row = cluster.report().row(cluster.clock.now_ms())
        assert (row["state"], row["progress"], row["oldest_dirty_age_ms"]) == ("idle", None, None)
        assert (row["last_records_read"], row["last_records_kept"]) == (6, 3)
