"""Goal: a gateway knows the figures of what it leads without a request, in short slices.

Method: a broker with real streams, ledgers, a bookie and a coordinator on virtual time.
"""

from __future__ import annotations

import asyncio
import tracemalloc
from types import SimpleNamespace

import pytest

from gateway.figures.parts import share_of
from gateway.figures.questions import answer
from gateway.figures.rows import group_bytes, part_bytes
from gateway.figures.share import IDLE_PERIOD_S
from gateway.groups.every_group import HOLD_S
from ledger.events import PROCESS
from subscriptions.committed_offset import CommittedOffset, TopicIdPartition
from tests.gateway.figures_rig import PaperCatalog, restarted, sharing_gateway, topic_named
from tests.gateway.stream_cluster import batch


def part(gateway, topic, first=0):
    return share_of(gateway.context).topics.rows[topic, first]


async def rolled(partition):
    """Begin another segment."""
    before = len(partition.stream.segments)
    partition.stream.roll_soon()
    while len(partition.stream.segments) == before:
        await asyncio.sleep(0.001)


async def sampled(gateway):
    share = share_of(gateway.context)
    await asyncio.sleep(1.5)
    await share.fresh(5.0)
    return share


async def commit(gateway, group, **offsets):
    topic = gateway.catalog.by_name("t")
    positions = {
        TopicIdPartition(topic.topic_id, int(index[1:])): CommittedOffset(
            offset=offset, commit_time_ms=gateway.clock.now_ms()
        )
        for index, offset in offsets.items()
    }
    assert (await gateway.context.groups.commit(group, "", -1, None, positions)).name == "none"


async def test_nothing_runs_before_the_first_question():
    async with sharing_gateway() as gateway:
        await gateway.topic("t")
        assert gateway.context.lazy == {}
        names = [task.get_name() for task in asyncio.all_tasks()]
        assert "the samples of figures" not in names
        share_of(gateway.context)
        names = [task.get_name() for task in asyncio.all_tasks()]
        assert "the samples of figures" in names


async def test_a_partition_has_its_offsets_bytes_and_rates():
    async with sharing_gateway() as gateway:
        partition = await gateway.topic("t")
        await sampled(gateway)
        begun = part(gateway, "t").partitions[0]
        assert (begun.start, begun.end, begun.records_per_s) == (0, 0, 0.0)
        for _ in range(10):
            await gateway.sent(partition, batch(records=5))
            await asyncio.sleep(1.0)
        await sampled(gateway)
        row = part(gateway, "t").partitions[0]
        assert (row.start, row.end, row.records) == (0, 50, 50)
        assert row.records_per_s == pytest.approx(5.0, rel=0.5)
        per_record = (row.size_bytes - begun.size_bytes) / 50
        assert row.bytes_per_s == pytest.approx(row.records_per_s * per_record, rel=0.4)
        await asyncio.sleep(60)
        await sampled(gateway)
        assert part(gateway, "t").partitions[0].records_per_s == 0.0


async def test_the_size_is_the_one_that_brokers_report():
    async with sharing_gateway() as gateway:
        partition = await gateway.topic("t")
        for _ in range(5):
            await gateway.sent(partition, *[batch(records=20) for _ in range(8)])
            await rolled(partition)
        await gateway.sent(partition, batch(records=20))
        await sampled(gateway)
        row = part(gateway, "t").partitions[0]
        shares = await gateway.partitions.stored_bytes(gateway.catalog.by_name("t"), 0)
        assert row.segments > 3
        assert row.size_bytes == sum(shares.values())
        await restarted(gateway)
        await gateway.partition("t")
        await sampled(gateway)
        again = part(gateway, "t").partitions[0]
        shares = await gateway.partitions.stored_bytes(gateway.catalog.by_name("t"), 0)
        assert again.size_bytes == sum(shares.values())


async def test_bytes_of_a_second_go_on_over_a_roll_and_do_not_shrink_with_retention():
    async with sharing_gateway() as gateway:
        partition = await gateway.topic("t")
        await sampled(gateway)
        for _ in range(12):
            await gateway.sent(partition, *[batch(records=20) for _ in range(4)])
            await rolled(partition)
            await partition.truncate(partition.high_watermark - 1)
            await asyncio.sleep(0.5)
        await sampled(gateway)
        row = part(gateway, "t").partitions[0]
        written = 4 * len(batch(records=20)) / 0.5  # bytes per second
        assert row.records == 1
        assert row.bytes_per_s == pytest.approx(written, rel=0.5)


async def test_deleted_topics_leave_and_a_topic_that_is_created_anew_begins_anew():
    async with sharing_gateway() as gateway:
        partition = await gateway.topic("t")
        await gateway.sent(partition, batch(records=5))
        share = await sampled(gateway)
        version = share.topics.version
        await gateway.catalog.delete("t")
        await sampled(gateway)
        assert share.topics.rows == {}
        assert share.topics.changes(version, part_bytes, 1_000).gone == [("t", 0)]
        await gateway.topic("t")
        await sampled(gateway)
        assert part(gateway, "t").partitions[0].end == 0


async def test_topics_of_any_size_are_sent_in_parts():
    async with sharing_gateway() as gateway:
        await gateway.topic("t", partitions=250)
        for _ in range(12):
            await sampled(gateway)
        share = share_of(gateway.context)
        assert sorted(share.topics.rows) == [("t", 0), ("t", 100), ("t", 200)]
        assert len(share.topics.rows["t", 200].partitions) == 50


async def test_a_partition_that_is_not_led_is_not_in_the_share():
    async with sharing_gateway() as gateway:
        partition = await gateway.topic("t")
        await sampled(gateway)
        partition.abandon()
        await sampled(gateway)
        assert share_of(gateway.context).topics.rows == {}


async def test_samples_are_taken_every_second_while_asked_and_else_every_ten():
    async with sharing_gateway() as gateway:
        await gateway.topic("t")
        share = share_of(gateway.context)
        times = []
        for _ in range(600):
            await asyncio.sleep(0.1)
            if not times or times[-1] != share.sampled_s:
                times.append(share.sampled_s)
        assert len(times) == pytest.approx(60 / IDLE_PERIOD_S, abs=2)
        share.ask()
        times.clear()
        for _ in range(600):
            await asyncio.sleep(0.1)
            if not times or times[-1] != share.sampled_s:
                times.append(share.sampled_s)
        assert len(times) == pytest.approx(10 + 50 / IDLE_PERIOD_S, abs=3)


# --- groups --------------------------------------------------------------------------------------


async def test_a_group_has_its_state_offsets_and_the_pace_at_which_it_reads():
    async with sharing_gateway() as gateway:
        await gateway.topic("t", partitions=2)
        await commit(gateway, "g", p0=10, p1=7)
        share = await sampled(gateway)
        row = share.groups.rows["g"]
        assert (row.state, row.type, row.members, row.claimed) == ("Empty", "classic", 0, True)
        assert row.positions == {"t": ((0, 10), (1, 7))}
        for offset in range(20, 120, 10):
            await commit(gateway, "g", p0=offset)
            await asyncio.sleep(1.0)
        await sampled(gateway)
        assert share.groups.rows["g"].read_per_s == pytest.approx(10, rel=0.6)


async def test_a_further_partition_is_no_progress():
    async with sharing_gateway() as gateway:
        await gateway.topic("t", partitions=2)
        await commit(gateway, "g", p0=10)
        share = await sampled(gateway)
        await commit(gateway, "g", p1=1_000_000)
        await sampled(gateway)
        assert share.groups.rows["g"].read_per_s in (None, 0.0)


async def test_a_group_at_rest_is_read_once_from_the_store():
    async with sharing_gateway() as gateway:
        await gateway.topic("t")
        await commit(gateway, "g", p0=3)
        await asyncio.sleep(700)  # it is out of memory, and the scan found it
        groups = gateway.context.groups
        assert "g" not in groups._loaded_groups.groups
        reads = []
        store = groups._store
        read = store.read

        async def counted(name):
            reads.append(name)
            return await read(name)

        store.read = counted
        share = await sampled(gateway)
        for _ in range(5):
            await sampled(gateway)
        assert share.groups.rows["g"].positions == {"t": ((0, 3),)}
        assert share.groups.rows["g"].claimed is False
        assert reads.count("g") == 1
        await commit(gateway, "g", p0=9)
        await sampled(gateway)
        assert share.groups.rows["g"].positions == {"t": ((0, 9),)}


async def test_a_group_at_rest_is_read_again_since_another_broker_may_have_had_it():
    async with sharing_gateway() as gateway:
        await gateway.topic("t")
        await commit(gateway, "g", p0=3)
        await asyncio.sleep(700)  # it is out of memory, and the scan found it
        share = await sampled(gateway)
        assert share.groups.rows["g"].positions == {"t": ((0, 3),)}
        groups = gateway.context.groups
        key = TopicIdPartition(gateway.catalog.by_name("t").topic_id, 0)
        later = {key: CommittedOffset(offset=9, commit_time_ms=gateway.clock.now_ms())}
        store = groups._store

        async def written_by_another(name):
            return SimpleNamespace(offsets=later)

        store.read = written_by_another
        await asyncio.sleep(HOLD_S + 1)
        await sampled(gateway)
        assert share.groups.rows["g"].positions == {"t": ((0, 9),)}


async def test_a_group_at_rest_has_no_offsets_of_a_deleted_topic():
    async with sharing_gateway() as gateway:
        await gateway.topic("t")
        await commit(gateway, "g", p0=3)
        await asyncio.sleep(700)
        share = await sampled(gateway)
        for _ in range(5):
            await sampled(gateway)
        assert share.groups.rows["g"].positions == {"t": ((0, 3),)}
        await gateway.catalog.delete("t")
        await sampled(gateway)
        assert share.groups.rows["g"].positions == {}


async def test_a_deleted_group_leaves():
    async with sharing_gateway() as gateway:
        await gateway.topic("t")
        await commit(gateway, "g", p0=3)
        share = await sampled(gateway)
        assert (await gateway.context.groups.delete("g")).name == "none"
        await sampled(gateway)
        assert "g" not in share.groups.rows


# --- the private questions -----------------------------------------------------------------------


async def test_questions_return_what_changed_and_all_of_it_to_a_reader_of_another_process():
    async with sharing_gateway() as gateway:
        partition = await gateway.topic("t")
        first = await answer({"ask": "topics"}, gateway.context)
        assert [row.topic for row in first["rows"]] == ["t"]
        assert first["whole"]
        assert first["process"] == PROCESS
        asked = {"ask": "topics", "after": first["version"], "process": PROCESS}
        await asyncio.sleep(30)
        quiet = await answer(asked, gateway.context)
        asked["after"] = quiet["version"]
        await gateway.sent(partition, batch(records=5))
        await asyncio.sleep(2)
        changed = await answer(asked, gateway.context)
        assert [row.partitions[0].end for row in changed["rows"]] == [5]
        assert not changed["whole"]
        other = await answer({**asked, "process": "another"}, gateway.context)
        assert other["whole"]


@pytest.mark.parametrize("after", [-1, True, "7", 1.5, None])
async def test_a_version_that_is_no_number_is_refused(after):
    found = await answer({"ask": "topics", "after": after}, SimpleNamespace())
    assert found["error"] == "INVALID_REQUEST"


async def test_answers_are_small_and_continue():
    async with sharing_gateway() as gateway:
        await gateway.topic("t")
        share = await sampled(gateway)
        row = share.topics.rows["t", 0]
        many = row._replace(partitions=row.partitions * 100)
        for number in range(200):
            share.topics.put((f"more-{number}", 0), many._replace(topic=f"more-{number}"))
        answers, after = 0, 0
        names = set()
        while True:
            found = share.topics.changes(after, part_bytes, 128 * 1024)
            assert sum(map(part_bytes, found.rows)) <= 256 * 1024
            names |= {each.topic for each in found.rows}
            after, answers = found.version, answers + 1
            if not found.more:
                break
        assert len(names) == 201
        assert answers > 10
        assert max(map(group_bytes, share.groups.rows.values()), default=0) < 128 * 1024


# --- bounds --------------------------------------------------------------------------------------


class Led:
    """A partition that a test counts as led."""

    is_leader = readable = True
    high_watermark = 10
    log_start_offset = 0
    losses = SimpleNamespace(blocked=False)
    stream = SimpleNamespace(
        segments=(),
        accepted_losses=SimpleNamespace(ranges=()),
        summary_changes=0,
        start_sequence_id=0,
        end_sequence_id=10,
    )


async def test_the_memory_of_a_partition_has_a_bound():
    async with sharing_gateway() as gateway:
        names = [f"topic-{number:05d}" for number in range(1_000)]
        gateway.context.catalog = PaperCatalog(*(topic_named(name, 3) for name in names))
        led = {(name, index): Led() for name in names for index in range(3)}
        gateway.context.partitions = SimpleNamespace(
            changes=0, led=lambda name, index: led[name, index]
        )
        tracemalloc.start()
        share = share_of(gateway.context)
        await share.fresh(600.0)
        held, _ = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert len(share.topics) == 1_000
        assert held / len(led) < 800
