"""Goal: a sample reads only what changed, and no kind of change is missed by the next sample.

Method: a broker with real streams and a coordinator on virtual time. Its partitions and groups come
to rest, then one of them changes.
"""

from __future__ import annotations

import asyncio
from itertools import pairwise
from types import SimpleNamespace

import pytest

from gateway.cluster.port import StreamKey
from gateway.cluster.single_broker import SingleBroker
from gateway.core.group_members import Joining
from gateway.figures import group_samples, slices, topic_samples
from gateway.figures.group_samples import GroupSamples
from gateway.figures.partition_samples import PartitionSamples
from gateway.figures.parts import share_of
from gateway.figures.rows import group_bytes
from gateway.figures.slices import Slices
from gateway.figures.topic_samples import Rates
from gateway.figures.versions import VersionedRows
from gateway.groups.every_group import HOLD_S
from subscriptions.committed_offset import CommittedOffset, TopicIdPartition
from tests.gateway.figures_rig import sharing_gateway
from tests.gateway.stream_cluster import batch

REST_S = 30  # rates are 0, and will stay so
COPIES = 1


async def passed(gateway, seconds):
    """Let time pass while figures are asked for each second."""
    share = share_of(gateway.context)
    for _ in range(seconds):
        share.ask()
        await asyncio.sleep(1.0)
    return share


def keys(gateway, **offsets):
    topic = gateway.catalog.by_name("t")
    return {TopicIdPartition(topic.topic_id, int(name[1:])): at for name, at in offsets.items()}


async def commit(gateway, group, **offsets):
    positions = {
        key: CommittedOffset(offset=offset, commit_time_ms=gateway.clock.now_ms())
        for key, offset in keys(gateway, **offsets).items()
    }
    assert (await gateway.context.groups.commit(group, "", -1, None, positions)).name == "none"


def counted(monkeypatch, owner, name):
    """Count the calls of a function, which does as before."""
    calls = []
    before = getattr(owner, name)

    def call(*given, **named):
        calls.append(given)
        return before(*given, **named)

    monkeypatch.setattr(owner, name, call)
    return calls


async def test_a_sample_of_what_did_not_change_reads_no_partition_and_no_group(monkeypatch):
    async with sharing_gateway() as gateway:
        for name in ("t", "u", "v"):
            await gateway.sent(await gateway.topic(name, partitions=2), batch())
        for number in range(5):
            await commit(gateway, f"g{number}", p0=number)
        await passed(gateway, REST_S)
        parts = counted(monkeypatch, PartitionSamples, "_look")
        sizes = counted(monkeypatch, topic_samples, "held_bytes")
        groups = counted(monkeypatch, GroupSamples, "_take")
        share = await passed(gateway, 10)
        assert (parts, sizes, groups) == ([], [], [])
        assert (len(share.topics), len(share.groups)) == (3, 5)
        await gateway.sent(await gateway.partition("u"), batch())
        await commit(gateway, "g3", p0=9)
        await passed(gateway, 3)
        assert {part.topic.name for _, part, *_ in parts} == {"u"}
        assert {standing.name for _, standing, _ in groups} == {"g3"}
        # The other partition of the topic is as it was.
        assert {stream for stream, _ in sizes} == {(await gateway.partition("u")).stream}


# --- partitions ----------------------------------------------------------------------------------


async def changed(gateway, change):
    """Return the partitions of topic t before a change and at the sample after it."""
    share = await passed(gateway, REST_S)
    before = share.topics.rows.get(("t", 0))
    await change()
    await passed(gateway, 3)  # one sample opens partitions, and the next one shows them
    after = share.topics.rows.get(("t", 0))
    return (
        None if before is None else before.partitions,
        None if after is None else after.partitions,
    )


async def test_an_append_shows():
    async with sharing_gateway() as gateway:
        partition = await gateway.topic("t")
        before, after = await changed(gateway, lambda: gateway.sent(partition, batch(records=7)))
        assert (before[0].end, after[0].end) == (0, 7)
        assert after[0].size_bytes > before[0].size_bytes


async def test_a_corrected_size_of_a_segment_shows():
    """Retention reads the sizes of cleaned segments again, and the list of them is as before."""
    async with sharing_gateway() as gateway:
        partition = await gateway.topic("t")
        await gateway.sent(partition, batch(records=7))
        partition.stream.roll_soon()
        await asyncio.sleep(1.0)
        stream = partition.stream
        first, listed = stream.segments[0], stream.segments
        smaller = stream.segment_bytes(first) - 10

        async def correct():
            stream._table.measure(first.number, smaller)

        before, after = await changed(gateway, correct)
        assert stream.segments is listed
        assert before[0].size_bytes - after[0].size_bytes == 10 * COPIES


async def test_bytes_that_hold_no_record_show():
    async with sharing_gateway() as gateway:
        partition = await gateway.topic("t")
        await gateway.sent(partition, batch(records=7))
        stream = partition.stream

        async def write():
            stream._writer._write_control_record()
            await asyncio.sleep(0.1)

        before, after = await changed(gateway, write)
        assert before[0].end == after[0].end == 7
        written = stream.services.client.written_bytes(stream.segments[-1].ledger)
        assert before[0].size_bytes < after[0].size_bytes == written * COPIES


async def test_deleted_records_show():
    async with sharing_gateway() as gateway:
        partition = await gateway.topic("t")
        await gateway.sent(partition, batch(records=7))
        before, after = await changed(gateway, lambda: partition.truncate(5))
        assert (before[0].start, after[0].start) == (0, 5)


async def test_a_new_segment_shows():
    async with sharing_gateway() as gateway:
        partition = await gateway.topic("t")
        await gateway.sent(partition, batch(records=7))

        async def roll():
            partition.stream.roll_soon()
            await asyncio.sleep(1.0)

        before, after = await changed(gateway, roll)
        assert (before[0].segments, after[0].segments) == (1, 2)


async def test_added_partitions_show():
    async with sharing_gateway() as gateway:
        await gateway.topic("t")
        before, after = await changed(gateway, lambda: gateway.catalog.add_partitions("t", 3))
        assert (len(before), len(after)) == (1, 3)


async def test_a_new_topic_shows_and_a_deleted_one_is_gone():
    async with sharing_gateway() as gateway:
        await gateway.topic("other")
        before, after = await changed(gateway, lambda: gateway.topic("t"))
        assert before is None
        assert after[0].end == 0
        _, gone = await changed(gateway, lambda: gateway.catalog.delete("t"))
        assert gone is None


async def test_a_topic_that_is_created_again_shows_as_it_is_now():
    async with sharing_gateway() as gateway:
        await gateway.sent(await gateway.topic("t", partitions=2), batch(records=7))

        async def again():
            await gateway.catalog.delete("t")
            await gateway.sent(await gateway.topic("t"), batch(records=3))

        before, after = await changed(gateway, again)
        assert [each.end for each in before] == [7, 0]
        assert [each.end for each in after] == [3]


async def test_a_partition_that_is_handed_over_is_gone_and_comes_back():
    async with sharing_gateway() as gateway:
        await gateway.topic("t", partitions=2)
        key = StreamKey(gateway.catalog.by_name("t").topic_id, 1)
        before, after = await changed(gateway, lambda: gateway.partitions.hand_over(key))
        assert ([each.partition for each in before], len(after)) == ([0, 1], 1)

        async def gain():
            gateway.partitions.gained(key)

        _, again = await changed(gateway, gain)
        assert [each.partition for each in again] == [0, 1]


async def test_a_partition_that_is_opened_again_is_gone_meanwhile():
    async with sharing_gateway() as gateway:
        partition = await gateway.topic("t")
        share = await passed(gateway, REST_S)
        opened = asyncio.Event()
        once = partition._open_once

        async def later(*, whole):
            await opened.wait()
            await once(whole=whole)

        partition._open_once = later
        partition.reopen()
        await passed(gateway, 2)
        assert share.topics.rows == {}
        opened.set()
        await passed(gateway, 2)
        assert len(share.topics.rows["t", 0].partitions) == 1


class Lapsing(SingleBroker):
    """One broker whose lease the test takes."""

    held = True

    def lease_held(self):
        return self.held


async def test_a_gateway_whose_lease_lapsed_shows_nothing_until_it_has_it_again():
    cluster = Lapsing(1)
    async with sharing_gateway(cluster=cluster) as gateway:
        await gateway.topic("t")
        share = await passed(gateway, REST_S)
        cluster.held = False
        await passed(gateway, 2)
        assert share.topics.rows == {}
        cluster.held = True
        await passed(gateway, 2)
        assert len(share.topics.rows["t", 0].partitions) == 1


async def test_a_reader_that_waits_shows_and_one_that_goes_on_does_not():
    async with sharing_gateway() as gateway:
        partition = await gateway.topic("t")
        await gateway.sent(partition, batch(records=7))
        blocked, clock = partition.losses.blocked, gateway.clock

        async def wait():
            blocked.on_failed(3, clock.monotonic_s(), lost=True)

        before, after = await changed(gateway, wait)
        assert (before[0].blocked, after[0].blocked, after[0].lost_records) == (0, 1, 1)
        blocked.on_read(3, 4)
        share = await passed(gateway, 2)
        assert share.topics.rows["t", 0].partitions[0].blocked == 0


async def test_the_rate_after_a_rest_is_that_of_the_last_seconds():
    async with sharing_gateway() as gateway:
        partition = await gateway.topic("t")
        await commit(gateway, "g", p0=0)
        share = await passed(gateway, 50)
        await gateway.sent(partition, batch(records=120))
        await commit(gateway, "g", p0=120)
        await passed(gateway, 2)
        assert 120 / 10 <= share.topics.rows["t", 0].partitions[0].records_per_s <= 120
        assert 120 / 10 <= share.groups.rows["g"].read_per_s <= 120


def test_a_rest_is_no_time_in_which_something_could_have_grown():
    rates = Rates(0.0, 5, 50)
    assert rates.look(6.0, 5, 50) == (0.0, 0.0)
    assert rates.still
    rates.rested(1_000.0)
    assert rates.look(1_001.0, 65, 650) == (10.0, 100.0)


# --- groups --------------------------------------------------------------------------------------


async def group_after(gateway, change, group="g"):
    """Return the row of a group at the sample after a change."""
    share = await passed(gateway, REST_S)
    assert group in share.groups.rows
    await change()
    await passed(gateway, 2)
    return share.groups.rows.get(group)


async def test_a_commit_shows_and_deleted_offsets_do_not():
    async with sharing_gateway() as gateway:
        await gateway.topic("t", partitions=2)
        await commit(gateway, "g", p0=3, p1=4)
        row = await group_after(gateway, lambda: commit(gateway, "g", p0=8))
        assert row.positions == {"t": ((0, 8), (1, 4))}
        named = dict.fromkeys(keys(gateway, p1=0), "t")
        row = await group_after(gateway, lambda: gateway.context.groups.delete_offsets("g", named))
        assert row.positions == {"t": ((0, 8),)}


async def test_a_commit_of_the_same_offset_changes_nothing():
    async with sharing_gateway() as gateway:
        await gateway.topic("t")
        await commit(gateway, "g", p0=3)
        share = await passed(gateway, REST_S)
        version = share.groups.version
        await commit(gateway, "g", p0=3)
        await passed(gateway, 10)
        assert share.groups.version == version


async def test_a_member_shows_from_the_begin_of_its_join():
    async with sharing_gateway() as gateway:
        await gateway.topic("t")
        await commit(gateway, "g", p0=3)
        joining = Joining(
            member_id="",
            protocol_type="consumer",
            protocols=(("range", b"t"),),
            session_timeout_ms=10_000,
            rebalance_timeout_ms=60_000,
            fresh_id="fresh",
            id_required=False,
        )
        tasks = []

        async def join():
            tasks.append(asyncio.ensure_future(gateway.context.groups.join("g", joining)))

        row = await group_after(gateway, join)
        assert (row.members, row.protocol) == (1, "consumer")
        assert row.state != "Empty"
        await tasks[0]


async def test_a_deleted_topic_is_in_no_group_and_a_new_one_of_its_name_neither():
    async with sharing_gateway() as gateway:
        await gateway.topic("t")
        await commit(gateway, "g", p0=3)
        await passed(gateway, REST_S)

        async def again():
            await gateway.catalog.delete("t")
            await gateway.topic("t")

        row = await group_after(gateway, again)
        assert row.positions == {}


async def test_a_deleted_group_is_gone_and_a_new_one_of_its_name_shows():
    async with sharing_gateway() as gateway:
        await gateway.topic("t")
        await commit(gateway, "g", p0=3)
        assert await group_after(gateway, lambda: gateway.context.groups.delete("g")) is None
        await commit(gateway, "g", p0=1)
        share = await passed(gateway, 2)
        assert share.groups.rows["g"].positions == {"t": ((0, 1),)}


async def test_a_group_that_is_unloaded_and_loaded_again_shows_its_commits():
    async with sharing_gateway() as gateway:
        await gateway.topic("t")
        await commit(gateway, "g", p0=3)
        share = await passed(gateway, 100)
        assert share.groups.rows["g"].claimed is False
        row = await group_after(gateway, lambda: commit(gateway, "g", p0=5))
        assert (row.claimed, row.positions) == (True, {"t": ((0, 5),)})


async def test_a_group_at_rest_that_is_read_again_unchanged_is_kept_once_and_not_compared():
    compared = []

    class Offsets(dict):
        __hash__ = None

        def __eq__(self, other):
            compared.append(other)
            return super().__eq__(other)

    async with sharing_gateway() as gateway:
        await gateway.topic("t")
        await commit(gateway, "g", p0=3)
        share = await passed(gateway, 100)
        store = gateway.context.groups._store
        read = store.read

        async def again(name):
            return SimpleNamespace(offsets=Offsets((await read(name)).offsets))

        store.read = again
        samples, scanned = share.group_samples, gateway.context.groups._scanner.idle
        marks = []
        for _ in range(2):
            await passed(gateway, int(HOLD_S) + REST_S)
            marks.append(samples._seen["g"].mark)
            assert marks[-1][1] is samples._every._read["g"]
        scanned["g"] = scanned["g"]._replace()  # as the next scan does
        await passed(gateway, 2)
        assert samples._seen["g"].mark[0] is scanned["g"]
        assert marks[0][1] is not marks[1][1]
        assert share.groups.rows["g"].positions == {"t": ((0, 3),)}
        assert compared == []


async def test_a_group_with_too_many_offsets_is_not_looked_at_again(monkeypatch):
    monkeypatch.setattr(group_samples, "OF_ONE_MAX", 3)
    async with sharing_gateway() as gateway:
        await gateway.topic("t", partitions=4)
        await commit(gateway, "g", p0=3, p2=3, p3=3)
        share = await passed(gateway, REST_S)
        assert share.groups.rows["g"].read_per_s == 0.0
        await commit(gateway, "g", p0=1_000_000, p1=3)
        await passed(gateway, 5)
        taken = counted(monkeypatch, GroupSamples, "_take")
        found = counted(monkeypatch, GroupSamples, "_found")
        await passed(gateway, 10)
        assert (taken, found) == ([], [])
        assert share.groups.rows["g"].positions is None
        named = dict.fromkeys(keys(gateway, p1=0), "t")
        await gateway.context.groups.delete_offsets("g", named)
        await passed(gateway, 2)
        row = share.groups.rows["g"]
        assert row.positions == {"t": ((0, 1_000_000), (2, 3), (3, 3))}
        assert row.read_per_s in (None, 0.0)


# --- turns ---------------------------------------------------------------------------------------


class Turned(Slices):
    """Slices that are over whenever the time is looked at. `turns` are the steps of each."""

    def __init__(self, monkeypatch, **how):
        super().__init__(**how)
        monkeypatch.setattr(slices, "SLICE_S", -1.0)
        self.steps = 0
        self.turns = []

        self.at_rest = None  # called once, in the first rest of which it returns True

    def spent(self, steps):
        self.steps += steps
        return super().spent(steps)

    async def rest(self):
        self.turns.append(self.steps)
        self.steps = 0
        await super().rest()
        if self.at_rest is not None and await self.at_rest():
            self.at_rest = None


@pytest.mark.parametrize(("how", "most"), [({}, 16), ({"long_steps": True}, 1)])
async def test_a_slice_has_few_steps_between_two_looks_at_the_time(monkeypatch, how, most):
    turned = Turned(monkeypatch, **how)
    for _ in range(100):
        await turned.pause()
    assert turned.turns == [most] * (100 // most)


async def test_a_sample_lets_others_run_after_few_partitions_and_groups(monkeypatch):
    async with sharing_gateway() as gateway:
        await gateway.topic("t", partitions=40)
        for number in range(40):
            await commit(gateway, f"g{number}", p0=number)
        share = await passed(gateway, 5)
        turned = Turned(monkeypatch)
        share.partition_samples._changes = -1  # all of them are due
        await share.partition_samples.take(turned, opens=False)
        assert len(turned.turns) >= 40 // 16
        await share.group_samples.take(turned)
        assert len(turned.turns) >= 2 * (40 // 16)
        assert max(turned.turns) <= 41  # a part that did not change is one step of 40 partitions


async def commit_many(gateway, group, count, offset):
    await commit(gateway, group, **{f"p{index}": offset for index in range(count)})


@pytest.mark.parametrize("count", [200, 600])
async def test_a_sample_lets_others_run_after_few_offsets_of_one_group(monkeypatch, count):
    async with sharing_gateway() as gateway:
        await gateway.topic("t")
        await commit_many(gateway, "g", count, 5)
        samples = GroupSamples(gateway.context, VersionedRows())
        decoded = counted(monkeypatch, gateway.context.catalog, "by_id")
        turned = Turned(monkeypatch)
        at = [0]

        async def note():
            at.append(len(decoded))

        turned.at_rest = note
        await samples.take(turned)
        assert at[-1] <= len(decoded) == count
        assert max(after - before for before, after in pairwise([*at, count])) <= 16
        places = samples._table.rows["g"].positions["t"]
        assert places == tuple((index, 5) for index in range(count))


async def test_a_commit_while_a_group_is_decoded_shows_as_a_whole_at_the_next_sample(monkeypatch):
    async with sharing_gateway() as gateway:
        await gateway.topic("t")
        await commit_many(gateway, "g", 300, 6)
        samples = GroupSamples(gateway.context, VersionedRows())
        turned = Turned(monkeypatch)

        async def go_on():
            await commit_many(gateway, "g", 300, 7)
            return True

        def shown():
            return {offset for _, offset in samples._table.rows["g"].positions["t"]}

        turned.at_rest = go_on
        await samples.take(turned)
        assert turned.at_rest is None
        assert shown() == {6}
        await samples.take(Turned(monkeypatch))
        assert shown() == {7}


async def test_a_group_that_is_loaded_between_two_looks_of_a_sample_stays(monkeypatch):
    async with sharing_gateway() as gateway:
        await gateway.topic("t")
        await commit(gateway, "g", p0=3)
        await asyncio.sleep(700)  # it is out of memory, and the scan found it
        loaded = gateway.context.groups._loaded_groups.groups
        samples = GroupSamples(gateway.context, VersionedRows())
        await samples.take(Slices())
        assert "g" not in loaded
        version = samples._table.version

        async def load():
            await commit(gateway, "g", p0=4)
            return True

        turned = Turned(monkeypatch, long_steps=True)
        turned.at_rest = load
        await samples.take(turned)
        assert "g" in loaded
        assert samples._table.changes(version, group_bytes, 1_000).gone == []
        await samples.take(Turned(monkeypatch))
        assert samples._table.rows["g"].positions == {"t": ((0, 4),)}


async def test_a_rest_lets_callbacks_of_the_loop_run_more_than_once():
    steps = []

    async def other():
        for number in range(5):
            steps.append(number)
            await asyncio.sleep(0)

    task = asyncio.ensure_future(other())
    await slices.page_slices().rest()
    assert steps == [0, 1, 2, 3, 4]
    await task
