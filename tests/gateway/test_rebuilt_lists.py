"""Goal: after the loss of a segment's head, readers of committed records still get the segment
before it: all committed records, none that was aborted, and an error where an outcome is hidden.

Method: Fetch in Kafka's bytes over real streams on virtual time, at the leader and at a replica.
The bookie lacks snapshots. Rebuilt lists are compared with those of the heads, over random
histories.
"""

import asyncio
from random import Random

import pytest
from kio.schema.errors import ErrorCode

from gateway.core.followed_transactions import FollowedState, LogTransactions
from gateway.topics import rebuilt_lists
from gateway.topics.aborted_reader import AbortedReader
from gateway.topics.rebuilt_lists import ListRebuilder
from gateway.wire.batches import CONTROL, TRANSACTIONAL, read_header
from ledger.core.loss import EntryLost
from ledger.core.records import parse_entry
from ledger.errors import StreamUnavailable
from ledger.ids import EntryId
from ledger.ports.bookies import Status
from tests.gateway.lossy_cluster import lossy_cluster
from tests.gateway.lossy_cluster import lost_range as of_entries
from tests.gateway.replica_pair import replica_pair
from tests.gateway.stream_cluster import batch
from tests.gateway.test_cleaned_partitions import clean
from tests.gateway.test_read_committed import (
    COLD,
    Producers,
    aborted,
    committed,
    consumed,
    delivered,
    stored,
)
from tests.gateway.test_transaction_path import Coordinator, marked, opened, part, sent
from tests.ledger.lost_stream_rig import lost_range
from tests.sim.seeds import first_at_commit

OK, STORAGE = ErrorCode.none, ErrorCode.kafka_storage_error
BOTH = pytest.mark.parametrize("limits", [None, COLD], ids=["warm", "cold"])


async def rolled(cluster, partition, count=1):
    """Begin segments, with a record in each."""
    for _ in range(count):
        partition.stream.roll_soon()
        await asyncio.sleep(1)
        await cluster.sent(partition, batch(records=1))


async def restarted(cluster):
    await cluster.restart()
    cluster.partitions.verifier = Coordinator()
    return await cluster.partition()


async def snapshot_entries(cluster, segment):
    """Return the entries of a segment that hold no batch."""
    reader = await cluster.services.client.open(segment.ledger)
    found = []
    for entry in range(segment.last_entry + 1):
        ((_, body),) = await reader.read(EntryId(entry), EntryId(entry), 1)
        if all(record.control for record in parse_entry(body)):
            found.append(entry)
    return found


async def lose_head(cluster, partition, number, *, accepted=True, status=Status.NO_ENTRY):
    """Lose the first entry of a completed segment. Returns the segment."""
    segment = next(each for each in partition.stream.segments if each.number == number)
    cluster.port.missing[segment.ledger, 0] = status
    if accepted:
        at = segment.start_sequence_id
        await cluster.store(partition, lost_range(segment, 0, 0, at, at - 1))
        await asyncio.sleep(1)
    return segment


async def without_head(cluster, partition, number=2, **how):
    """Begin segments, and lose the head of an old one. Returns the partition, opened again."""
    await rolled(cluster, partition, 3)
    partition = await restarted(cluster)
    await lose_head(cluster, partition, number, **how)
    return await restarted(cluster)


async def with_aborted(cluster):
    """Write an aborted record at 0, a committed one at 1, and one without a transaction."""
    partition, _ = await opened(cluster)
    await sent(partition, part(0), part(0, producer=6))
    await marked(partition, commit=False)
    await marked(partition, producer=6)
    await cluster.sent(partition, batch(records=1))
    return partition


@BOTH
async def test_a_log_without_transactions_is_read_to_its_end(limits):
    async with lossy_cluster(limits=limits) as cluster:
        partition = await cluster.topic()
        await cluster.sent(partition, *(batch(records=1) for _ in range(5)))
        partition = await without_head(cluster, partition)
        end = partition.high_watermark
        assert await consumed(cluster, partition, Random(1), 0) == [*range(end)]


@BOTH
@pytest.mark.parametrize("accepted", [True, False], ids=["accepted", "not yet"])
async def test_aborted_records_are_named_from_the_segment_itself(limits, accepted):
    async with lossy_cluster(limits=limits) as cluster:
        partition = await with_aborted(cluster)
        partition = await without_head(cluster, partition, accepted=accepted)
        found = await committed(cluster, 0)
        assert aborted(found) == [(5, 0)]
        end = partition.high_watermark
        assert await consumed(cluster, partition, Random(1), 0) == [1, *range(4, end)]


@BOTH
async def test_a_transaction_that_goes_over_the_lost_head_is_named_on_both_sides(limits):
    async with lossy_cluster(limits=limits) as cluster:
        partition, _ = await opened(cluster)
        await sent(partition, part(0))
        partition.stream.roll_soon()
        await asyncio.sleep(1)
        await sent(partition, part(1))
        await marked(partition, commit=False)
        partition = await without_head(cluster, partition)
        assert [aborted(await committed(cluster, at)) for at in (0, 1, 2)] == [[(5, 0)]] * 3
        assert await consumed(cluster, partition, Random(1), 0) == [3, 4, 5]


async def test_an_accepted_head_is_not_asked_for_again():
    async with lossy_cluster() as cluster:
        partition = await with_aborted(cluster)
        partition = await without_head(cluster, partition, status=Status.UNREACHABLE)
        assert delivered(await committed(cluster, 0))[0] == 1


async def test_a_head_that_may_come_back_is_waited_for():
    async with lossy_cluster() as cluster:
        partition = await with_aborted(cluster)
        await without_head(cluster, partition, accepted=False, status=Status.UNREACHABLE)
        assert (await committed(cluster, 0)).error_code is STORAGE
        cluster.port.missing.clear()
        assert aborted(await committed(cluster, 0)) == [(5, 0)]


@BOTH
@pytest.mark.parametrize("transactional", [True, False])
async def test_a_replica_rebuilds_the_list_too(limits, transactional):
    async with replica_pair(limits) as pair:
        if transactional:
            await sent(pair.partition, part(0))
            await marked(pair.partition, commit=False)
        await pair.leader.sent(pair.partition, batch(records=1))
        await rolled(pair.leader, pair.partition, 3)
        await pair.again(pair.leader.restart)
        await lose_head(pair.leader, pair.partition, 2)
        await rolled(pair.leader, pair.partition, 1)
        end = pair.partition.high_watermark
        await pair.until(end)
        found = await pair.fetch(0)
        assert aborted(found) == ([(5, 0)] if transactional else [])
        assert await pair.delivered(0, end) == [*range(2 if transactional else 0, end)]


async def test_a_truncation_within_the_segment_hides_no_list():
    async with lossy_cluster(limits=COLD) as cluster:
        partition, _ = await opened(cluster)
        await sent(partition, part(0))
        await cluster.sent(partition, *(batch(records=1) for _ in range(4)))
        await sent(partition, part(1))
        await marked(partition, commit=False)
        partition = await without_head(cluster, partition)
        await partition.truncate(3)
        assert aborted(await committed(cluster, 3)) == [(5, 0)]
        assert await consumed(cluster, partition, Random(1), 3) == [3, 4, 7, 8, 9]


async def test_a_cancelled_fetch_leaves_the_next_one_its_turn():
    async with lossy_cluster() as cluster:
        partition = await with_aborted(cluster)
        partition = await without_head(cluster, partition)
        cluster.port.read_delay_s = 1.0
        reading = [asyncio.ensure_future(partition.aborted(0, 4)) for _ in range(3)]
        await asyncio.sleep(0.5)
        reading[0].cancel()
        found = await asyncio.gather(*reading, return_exceptions=True)
        assert isinstance(found[0], asyncio.CancelledError)
        assert [[one[:3] for one in each] for each in found[1:]] == [[(5, 0, 2)]] * 2


async def test_fetches_at_the_same_time_share_one_rebuild():
    async with lossy_cluster() as cluster:
        partition = await with_aborted(cluster)
        partition = await without_head(cluster, partition)
        rebuilds = []
        state_within = partition.stream.state_within

        async def counted(sequence_id):
            rebuilds.append(sequence_id)
            return await state_within(sequence_id)

        partition.stream.state_within = counted
        await asyncio.gather(*(partition.aborted(at, 4) for at in (0, 1, 2, 3)))
        assert len(rebuilds) == 1


async def test_a_segment_that_is_cleaned_meanwhile_has_the_list_of_its_footer():
    async with lossy_cluster(limits=COLD) as cluster:
        partition = await with_aborted(cluster)
        partition = await without_head(cluster, partition)
        read_any, cleaned = partition.stream.read_any, []

        async def slow(sequence_id, bytes_max):
            records = await read_any(sequence_id, bytes_max)
            if not cleaned:
                cleaned.append(await clean(partition, 1, lambda header: header.producer_id != 5))
            return records

        partition.stream.read_any = slow
        assert await partition.aborted(0, 4) == []
        assert cleaned


# -- what is hidden --------------------------------------------------------------------------------


async def with_lost_record(cluster, lost, *, transactional):
    """Lose the head behind segment 1, its later snapshots, and one of its records."""
    partition, _ = await opened(cluster)
    await cluster.sent(partition, batch(records=1))
    await sent(partition, part(0) if transactional else batch(0, producer=5, records=1))
    for _ in range(2):
        await cluster.sent(partition, batch(records=1))
    if transactional:
        await marked(partition, commit=False)
    await rolled(cluster, partition, 3)
    partition = await cluster.accept(partition, lost, lost)
    cluster.partitions.verifier = Coordinator()
    await lose_head(cluster, partition, 2)
    return await restarted(cluster)


async def test_a_loss_while_a_transaction_was_open_hides_its_outcome():
    async with lossy_cluster() as cluster:
        await with_lost_record(cluster, 2, transactional=True)
        for at in (0, 1, 3):
            assert (await committed(cluster, at)).error_code is STORAGE
        assert (await committed(cluster, 5)).error_code is OK


@pytest.mark.parametrize(("lost", "kept"), [(0, [0, 2, 3]), (4, [0, 2, 3])])
async def test_a_loss_without_an_open_transaction_hides_nothing(lost, kept):
    """Offset 4 has the marker, so a loss there hides the outcome, and one at 0 does not."""
    async with lossy_cluster() as cluster:
        await with_lost_record(cluster, lost, transactional=True)
        found = await committed(cluster, 0)
        if lost == 4:
            assert found.error_code is STORAGE
        else:
            assert aborted(found) == [(5, 1)]
            assert [at for at in delivered(found) if at < 4] == kept


async def test_a_loss_in_a_log_without_transactions_hides_nothing():
    async with lossy_cluster() as cluster:
        partition = await with_lost_record(cluster, 2, transactional=False)
        found = await committed(cluster, 0)
        assert delivered(found) == [*range(partition.high_watermark)]


async def test_a_hidden_outcome_is_not_looked_for_by_every_fetch():
    async with lossy_cluster() as cluster:
        partition = await with_lost_record(cluster, 2, transactional=True)
        assert (await committed(cluster, 0)).error_code is STORAGE
        looked = []

        async def none(sequence_id):
            looked.append(sequence_id)

        partition.stream.state_within = none
        assert (await committed(cluster, 1)).error_code is STORAGE
        assert looked == []
        await asyncio.sleep(rebuilt_lists.FAILED_S)
        assert (await committed(cluster, 1)).error_code is STORAGE
        assert looked == [1]


async def test_a_removed_segment_before_may_have_had_open_transactions():
    async with lossy_cluster() as cluster:
        partition = await with_aborted(cluster)
        await rolled(cluster, partition, 4)
        partition = await restarted(cluster)
        start = partition.stream.segments[1].start_sequence_id
        for number in (2, 3):
            await lose_head(cluster, partition, number)
        partition = await restarted(cluster)
        assert (await committed(cluster, start)).error_code is OK
        await partition.truncate(start)
        await asyncio.sleep(120)
        await partition.stream.expire()
        assert partition.stream.segments[0].number == 2
        partition = await restarted(cluster)
        assert (await committed(cluster, start)).error_code is STORAGE


async def test_a_marker_in_the_loss_behind_the_segment_keeps_its_transaction_open():
    async with lossy_cluster() as cluster:
        partition, _ = await opened(cluster)
        await cluster.sent(partition, batch(records=1))
        await sent(partition, part(0))
        partition.stream.roll_soon()
        await asyncio.sleep(1)
        await marked(partition)
        await cluster.sent(partition, batch(records=1))
        partition = await cluster.accept(partition, 2, 2)
        await lose_head(cluster, partition, 2)
        partition = await restarted(cluster)
        await rolled(cluster, partition, 2)
        partition = await restarted(cluster)
        assert partition.stable_offset == 1
        assert delivered(await committed(cluster, 0)) == [0]
        await marked(partition, 2, commit=False)
        assert partition.stable_offset == partition.high_watermark
        found = await committed(cluster, 0)
        assert (aborted(found), delivered(found)[:2]) == ([(5, 1)], [0, 2])


# -- at random -------------------------------------------------------------------------------------


async def written(cluster, seed):
    """Write random transactions over segments and openings. Returns the partition, and them."""
    partition, _ = await opened(cluster)
    producers = Producers(seed)
    for _ in range(4):
        for _ in range(producers.draw.randrange(10, 30)):
            await producers.step(partition)
        how = producers.draw.choice(["restart", "crash"])
        await getattr(cluster, how)()
        cluster.partitions.verifier = Coordinator()
        partition = await cluster.partition()
    await partition.stream.begin()
    return await restarted(cluster), producers


async def lose_snapshots(cluster, segments, draw):
    """Lose most entries with snapshots."""
    for segment in segments:
        for entry in await snapshot_entries(cluster, segment):
            if draw.random() < 0.6:
                cluster.port.missing[segment.ledger, entry] = Status.NO_ENTRY


async def lists_of_heads(partition):
    """Return the list of each segment that has one in a head, by segment number."""
    stream, lists = partition.stream, {}
    reader = AbortedReader(partition._state, stream)
    for segment in stream.segments:
        if segment.record_count and await stream.state_behind(segment.start_sequence_id):
            lists[segment.number] = await reader._list_of(segment.start_sequence_id)
    assert lists
    return lists


async def compared(seed):
    """Compare the list that each head has with the rebuilt one, without random snapshots."""
    async with lossy_cluster(limits=COLD if seed % 2 else None) as cluster:
        partition, producers = await written(cluster, seed)
        stream, draw = partition.stream, producers.draw
        lists = await lists_of_heads(partition)
        await lose_snapshots(cluster, stream.segments, draw)
        lost = EntryLost("a head", 0, EntryId(0), ())
        for segment in stream.segments:
            if segment.number in lists:
                at = draw.randrange(segment.start_sequence_id, segment.end_sequence_id)
                rebuilt = await ListRebuilder(stream).rebuild(at, lost)
                assert rebuilt == lists[segment.number], "a rebuilt list differs"


async def read_without_heads(seed):
    """Read all from a random place after the loss of random heads was accepted."""
    async with lossy_cluster(limits=COLD if seed % 2 else None) as cluster:
        partition, producers = await written(cluster, seed)
        draw = producers.draw
        listed = partition.stream.segments
        for segment in listed[:-1]:
            if segment.last_entry >= 0 and draw.random() < 0.5:
                await lose_head(cluster, partition, segment.number)
        partition = await restarted(cluster)
        stable = partition.stable_offset
        for _ in range(3):
            start = draw.randrange(stable + 1)
            found = await consumed(cluster, partition, draw, start)
            ended = producers.outcomes.items()
            expected = sorted(at for at, kept in ended if kept and start <= at < stable)
            assert found == expected, "a reader got other records"
            named = await partition.aborted(start, stable)
            assert len(named) == len(set(named)), "a transaction is named twice"


async def written_batches(partition):
    """Return the offset and the header of each batch."""
    found, at = [], 0
    while at < partition.high_watermark:
        for record in await partition.stream.read(at, 10_000):
            found.append((record.sequence_id, read_header(b"".join(record.data))))
            at = record.end_sequence_id
    return found


async def compared_past_losses(seed):
    """Compare what both lists have of the records that are left, after losses of batches."""
    async with lossy_cluster(limits=COLD if seed % 2 else None) as cluster:
        partition, producers = await written(cluster, seed)
        stream, draw = partition.stream, producers.draw
        lists = await lists_of_heads(partition)
        entries = [each for each in await cluster.entries(partition) if draw.random() < 0.1]
        lost = {at for each in entries for at in range(each.first, each.last + 1)}
        batches = await written_batches(partition)
        left = {(header.producer_id, at) for at, header in batches if at not in lost}
        await lose_snapshots(cluster, stream.segments, draw)
        await cluster.store(partition, *(of_entries([e], e.first, e.last) for e in entries))
        await asyncio.sleep(1)
        segments = {each.number: each for each in stream.segments}
        for number, known in lists.items():
            at = segments[number].start_sequence_id
            try:
                rebuilt = await ListRebuilder(stream).rebuild(at, EntryLost("", 0, EntryId(0), ()))
            except EntryLost:
                continue
            expect_same(known.aborted, rebuilt.aborted, left)


def expect_same(known, rebuilt, left):
    """Compare two lists. A transaction may begin with the first of its batches that are `left`."""
    named = {(one.producer_id, one.last_offset): one.first_offset for one in rebuilt}
    for producer, first, marker, _ in known:
        begins = named.pop((producer, marker), marker)
        assert not left & {(producer, at) for at in range(first, begins)}, "records are not named"
    assert not named, "a transaction that was not aborted is named"


async def known_outcomes(partition, producers, lost):
    """Return the outcomes of batches that are left, and whose marker is left if they had one."""
    open_of, hidden = {}, set()
    for at, header in await written_batches(partition):
        if header.attributes & CONTROL:
            hidden.update(open_of.pop(header.producer_id, ()) if at in lost else ())
            open_of.pop(header.producer_id, None)
        elif header.attributes & TRANSACTIONAL:
            open_of.setdefault(header.producer_id, []).append(at)
    return {at: kept for at, kept in producers.outcomes.items() if at not in lost | hidden}


async def read_past_losses(seed):
    """Read all after random losses of heads and batches were accepted. Returns what was hidden."""
    async with lossy_cluster(limits=COLD if seed % 2 else None) as cluster:
        partition, producers = await written(cluster, seed)
        draw, ranges = producers.draw, []
        for each in await cluster.entries(partition):
            if draw.random() < 0.05:
                ranges.append(of_entries([each], each.first, each.last))
        for segment in partition.stream.segments:
            if segment.last_entry >= 0 and draw.random() < 0.5:
                at = segment.start_sequence_id
                ranges.append(lost_range(segment, 0, 0, at, at - 1))
        lost = {at for each in ranges for at in range(each.offsets.first, each.offsets.last + 1)}
        known = await known_outcomes(partition, producers, lost)
        for each in ranges:
            cluster.port.missing[each.evidence.ledger, each.first] = Status.NO_ENTRY
        await cluster.store(partition, *ranges)
        partition = await restarted(cluster)
        at, refused = 0, 0
        while at < partition.stable_offset:
            found = await committed(cluster, at, settings={"partition_max_bytes": 400})
            if found.error_code is STORAGE:
                at, refused = at + 1, refused + 1
                continue
            end = max(h.base_offset + h.last_offset_delta for h, _ in stored(found)) + 1
            expected = [each for each, kept in known.items() if kept and at <= each < end]
            dropped = [each for each, kept in known.items() if not kept and at <= each < end]
            shown = delivered(found)
            assert set(expected) <= set(shown), "a committed record is left out"
            assert not set(dropped) & set(shown), "an aborted record is returned"
            at = end
        return refused


@pytest.mark.parametrize("seed", first_at_commit(range(12), 6))
async def test_past_random_losses_no_outcome_is_guessed(seed):
    await read_past_losses(seed)


@pytest.mark.parametrize("seed", first_at_commit(range(20), 8))
async def test_past_random_losses_a_rebuilt_list_names_no_other_transaction(seed):
    await compared_past_losses(seed)


@pytest.mark.parametrize("seed", first_at_commit(range(20), 8))
async def test_a_rebuilt_list_is_that_of_the_head(seed):
    await compared(seed)


@pytest.mark.parametrize("seed", first_at_commit(range(12), 6))
async def test_random_transactions_are_read_without_their_heads(seed):
    await read_without_heads(seed)


def no_transaction_is_open_before(patch):
    real = rebuilt_lists.load_followed

    async def load(stored):
        state = await real(stored)
        return FollowedState(state.end, state.since)

    patch.setattr(rebuilt_lists, "load_followed", load)


def the_borders_of_segments_are_passed(patch):
    def begin(self, start, real=FollowedState.begin_segment):
        since, listed = self.since, self.transactions.aborted
        real(self, start)
        self.since, self.transactions.aborted = since, listed

    patch.setattr(FollowedState, "begin_segment", begin)


def the_end_of_the_segment_is_passed(patch):
    real = rebuilt_lists._apply

    async def apply(state, records, end):
        await real(state, records, records[-1].end_sequence_id)
        state.end = min(state.end, end)

    patch.setattr(rebuilt_lists, "_apply", apply)


def the_batches_behind_the_state_are_not_read(patch):
    async def apply(state, records, end):
        state.end = end

    patch.setattr(rebuilt_lists, "_apply", apply)


@pytest.mark.parametrize(
    "mistake",
    [
        no_transaction_is_open_before,
        the_borders_of_segments_are_passed,
        the_end_of_the_segment_is_passed,
        the_batches_behind_the_state_are_not_read,
    ],
)
async def test_a_planted_mistake_is_found(mistake, monkeypatch):
    mistake(monkeypatch)
    with pytest.raises(AssertionError):
        for seed in range(20):
            await compared(seed)


async def test_a_loss_that_is_passed_within_a_transaction_is_found(monkeypatch):
    monkeypatch.setattr(LogTransactions, "__len__", lambda self: 0)
    with pytest.raises(AssertionError):
        for seed in range(20):
            await compared_past_losses(seed)


async def test_a_list_that_is_read_twice_is_found(monkeypatch):
    real = AbortedReader._collect

    def collect(self, at, end, found):
        again = []
        real(self, 0, end, again)
        return real(self, at, end, found) or found.extend(again)

    monkeypatch.setattr(AbortedReader, "_collect", collect)
    with pytest.raises(AssertionError):
        for seed in range(12):
            await read_without_heads(seed)


async def test_a_stream_that_lost_its_ledgers_is_unavailable():
    async with lossy_cluster() as cluster:
        partition = await with_aborted(cluster)
        partition = await without_head(cluster, partition)
        partition.stream._reads.clear()
        await cluster.services.client.delete(partition.stream.segments[0].ledger)
        with pytest.raises(StreamUnavailable):
            await partition.aborted(0, 4)
