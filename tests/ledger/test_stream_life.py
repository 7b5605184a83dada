"""Goal: a stream's segments come, go and change hands as the design says: no owner harms the next
one, none waits longer than it must, and readers elsewhere hear of the end.

Method: real streams over a simulated cluster on virtual time; what reaches the metadata store and
the bookies is watched from outside.
"""

import asyncio
from dataclasses import replace

import pytest

from ledger.client import metadata_format
from ledger.core import records as log_records
from ledger.core.segments import Segment, Truncation, decode_segment
from ledger.errors import BadVersion, Fenced, LedgerError, NoSuchLedger, Truncated
from ledger.ids import EntryId
from ledger.streams.recovery import user_records
from ledger.streams.segment_store import log_root
from tests.ledger.calm_cluster import cluster
from tests.ledger.follow_rig import NAME, FollowRig, Owner
from tests.sim.loop import simulate

LEDGERS = f"{log_root(NAME)}/ledgers"
WHOLE = 1 << 20


def run(scenario, **config):
    async def main():
        rig = await FollowRig(cluster(), **config).start()
        watch_in_progress(rig)
        result = await scenario(rig)
        assert rig.in_progress_max <= 2
        return result

    return simulate(main())


def watch_in_progress(rig):
    """Never more than two segments in progress, whoever does what."""
    rig.in_progress_max = 0

    def on_set(path, data, version):
        names = [p for p in rig.world.tree.nodes if p.startswith(f"{LEDGERS}/inprogress_")]
        rig.in_progress_max = max(rig.in_progress_max, len(names))

    listen(rig.world.tree, "on_set", on_set)


def listen(hub, name, heard):
    """`heard` is told as well as whoever is told already."""
    told = getattr(hub, name)

    def tell(*args):
        told(*args)
        heard(*args)

    setattr(hub, name, tell)


async def taking_over(rig, host):
    """An owner that has just taken the stream over."""
    owner = Owner(rig, host)
    await owner.stream.open(begin=True)
    if not owner.stream.writable:  # nobody was writing
        await owner.stream.begin()
    return owner


def stored(rig):
    nodes = rig.world.tree.nodes
    return {path: (r.data, r.version) for path, r in nodes.items() if path.startswith("/streams")}


def listed(rig):
    """The segments in the store, by number."""
    nodes = rig.world.tree.nodes
    found = [
        decode_segment(r.data, where=p) for p, r in nodes.items() if p.startswith(LEDGERS + "/")
    ]
    return sorted(found, key=lambda segment: segment.number)


def has_ledger(rig, ledger):
    return metadata_format.ledger_path(ledger) in rig.world.tree.nodes


async def everything(owner):
    """Data by sequence id from the start to the end."""
    stream, found = owner.stream, {}
    at = stream.start_sequence_id
    while at < stream.end_sequence_id:
        for record in await stream.read(at, WHOLE):
            found[record.sequence_id] = b"".join(record.data)
            at = record.end_sequence_id
    return found


def answered(*owners, start=0):
    return {at: data for owner in owners for data, at in owner.answers.items() if at >= start}


# Taking over


def test_who_takes_over_can_write_at_once_and_another_one_would_find_its_state():
    async def scenario(rig):
        owner = await taking_over(rig, "a")
        assert owner.stream.writable
        assert owner.stream.epoch == 1
        segment = owner.stream.segments[-1]
        owner.kill()
        reader = await rig.world.client("reader").recover(segment.ledger)
        assert reader.last_add_confirmed >= 0, "the head snapshot is durable"

    run(scenario)


def test_each_ownership_has_a_segment_and_an_epoch_of_its_own():
    async def scenario(rig):
        epochs = []
        for host in "abc":
            owner = await taking_over(rig, host)
            epochs.append(owner.stream.epoch)
            owner.kill()
        assert epochs == [1, 2, 3]
        assert [s.record_count for s in listed(rig)] == [0, 0, 0]
        assert [s.completed for s in listed(rig)] == [True, True, False]

    run(scenario)


def test_completing_and_creating_in_parallel_takes_less_than_the_one_and_then_the_other():
    async def seconds(rig, host, open_it):
        owner = Owner(rig, host)
        began_s = asyncio.get_running_loop().time()
        await open_it(owner.stream)
        taken_s = asyncio.get_running_loop().time() - began_s
        await owner.add(3)
        owner.kill()
        return taken_s

    async def at_once(stream):
        await stream.open(begin=True)

    async def one_after_the_other(stream):
        await stream.open()
        await stream.begin()
        await stream._head_is_durable()

    async def scenario(rig):
        (await taking_over(rig, "first")).kill()
        parallel = [await seconds(rig, f"p{n}", at_once) for n in range(20)]
        serial = [await seconds(rig, f"s{n}", one_after_the_other) for n in range(20)]
        assert sum(parallel) < 0.8 * sum(serial)

    run(scenario)


def test_the_step_that_completes_the_last_segment_begins_the_next():
    async def scenario(rig):
        def version():
            return rig.world.tree.nodes[LEDGERS].version

        owner = await taking_over(rig, "a")
        await owner.add(3)
        before = version()
        await owner.roll()
        assert version() == before + 1
        await owner.add(3)
        owner.kill()
        await taking_over(rig, "b")
        assert version() == before + 2
        assert rig.in_progress_max == 1

    run(scenario)


def test_a_takeover_is_not_over_before_the_head_snapshot_is_durable():
    """Else an epoch could be shown that the next owner does not know of."""

    async def scenario(rig):
        def cut(path, data, version):
            if "/inprogress_" in path:
                for bookie in rig.world.bookies:
                    rig.world.network.cut("a", bookie)

        (await taking_over(rig, "first")).kill()
        listen(rig.world.tree, "on_set", cut)
        await fails(taking_over(rig, "a"))

    run(scenario)


def test_a_stream_that_is_opened_again_is_not_disturbed_by_what_it_was():
    async def scenario(rig):
        owner = await taking_over(rig, "a")
        await owner.add(3)
        await owner.stream.open(begin=True)
        await owner.add(1)
        await asyncio.sleep(5)
        assert not owner.failures
        assert await everything(owner) == answered(owner)

    run(scenario, control_ms=1000)


async def two_left_in_progress(rig):
    """As an owner leaves them that lists the next segment before the last one is completed."""
    owner = await taking_over(rig, "a")
    await owner.add(4)
    first = owner.stream.segments[-1]
    client = rig.world.client("maker")
    writer = await client.create(ensemble_size=3, write_quorum=3, ack_quorum=2)
    second = Segment(number=2, ledger=writer.ledger, first_txid=4, start_sequence_id=-1)
    tree = rig.world.tree
    tree.create(f"{LEDGERS}/{second.node_name}", second.encode())
    tree.set(LEDGERS, b"2", -1)
    owner.kill()
    return owner, first, second


def test_of_two_segments_in_progress_the_lower_is_fenced_and_completed_first():
    async def scenario(rig):
        owner, first, second = await two_left_in_progress(rig)
        seen = {}

        def on_fence_reply(host, bookie, ledger, reply):
            left = [s.number for s in listed(rig) if not s.completed]
            seen.setdefault(ledger, left)

        listen(rig.world.network.observer, "on_fence_reply", on_fence_reply)
        new = await taking_over(rig, "b")
        assert seen == {first.ledger: [1, 2], second.ledger: [2]}
        assert new.stream.epoch == 3
        assert [s.start_sequence_id for s in new.stream.segments] == [0, 4, 4]
        assert await everything(new) == answered(owner)

    run(scenario)


def test_where_nobody_was_writing_nothing_is_begun():
    """So that ten thousand idle streams change hands without a ledger being made."""

    async def scenario(rig):
        owner = await taking_over(rig, "a")
        await owner.add(3)
        await owner.stream.close()
        before = set(rig.world.tree.nodes)
        new = Owner(rig, "b")
        await new.stream.open(begin=True)
        assert set(rig.world.tree.nodes) == before
        assert not new.stream.writable
        assert new.stream.epoch == 2
        await new.stream.begin()
        await new.add(1)
        assert await everything(new) == answered(owner, new)

    run(scenario)


def test_a_takeover_that_fails_leaves_no_further_segment_behind():
    """Each try would otherwise begin one."""

    async def scenario(rig):
        owner = await taking_over(rig, "a")
        await owner.add(2)
        owner.kill()
        new = Owner(rig, "b")
        for bookie in rig.world.bookies:
            rig.world.network.cut("b", bookie)
        for _ in range(3):
            with pytest.raises(LedgerError):
                await new.stream.open(begin=True)
        assert [s.number for s in listed(rig)] == [1]
        rig.world.network.heal()
        await new.stream.open(begin=True)
        assert [s.number for s in listed(rig)] == [1, 2]
        made = [p for p in rig.world.tree.nodes if metadata_format.ledger_of_path(p) is not None]
        assert len(made) == 2, "the ledger of the first try is used by the last"

    run(scenario)


# The old owner


async def fails(work):
    with pytest.raises(LedgerError) as failure:
        await work
    return failure.value


def test_an_old_owner_is_refused_whatever_it_tries():
    async def scenario(rig):
        old = await taking_over(rig, "a")
        for _ in range(2):
            await old.add(3)
            await old.roll()
        await old.add(3)
        new = await taking_over(rig, "b")
        await new.add(2)
        before = stored(rig)
        assert isinstance(await fails(old.stream.truncate(4)), BadVersion)
        rig.config = replace(rig.config, retention_bytes=0)
        assert isinstance(await fails(old.stream.expire()), BadVersion)
        await asyncio.sleep(5)
        assert old.failures, "it noticed that it is not the owner"
        assert not old.stream.writable
        await old.stream.close()
        assert stored(rig) == before
        assert await everything(new) == answered(old, new)

    run(scenario)


def test_an_old_owner_acknowledges_nothing_any_more():
    async def scenario(rig):
        old = await taking_over(rig, "a")
        await old.add(3)
        await taking_over(rig, "b")
        lost = old.append()
        await old.settle()
        assert lost not in old.answers
        assert isinstance(old.failures[0], Fenced)

    run(scenario)


def test_an_idle_old_owner_learns_it_from_its_next_control_record():
    async def scenario(rig):
        old = await taking_over(rig, "a")
        await old.add(1)
        await taking_over(rig, "b")
        assert not old.failures
        await asyncio.sleep(5)
        assert isinstance(old.failures[0], Fenced)

    run(scenario, control_ms=1000)


def test_an_owner_whose_metadata_somebody_else_changed_looks_again():
    async def scenario(rig):
        first = await taking_over(rig, "first")
        await first.add(6)
        await first.stream.close()
        old, new = Owner(rig, "a"), Owner(rig, "b")
        for owner in (old, new):
            await owner.stream.open(begin=True)
        await old.stream.truncate(2)  # nothing was begun since, so nothing could forbid it
        assert isinstance(await fails(new.stream.truncate(4)), BadVersion)
        assert [type(error) for error in new.failures] == [BadVersion]
        await new.stream.open(begin=True)
        assert new.stream.start_sequence_id == 2
        await new.stream.truncate(4)
        assert new.stream.start_sequence_id == 4

    run(scenario)


def test_an_old_owner_that_rolls_leaves_the_list_as_it_is():
    async def scenario(rig):
        old = await taking_over(rig, "a")
        await old.add(3)
        new = await taking_over(rig, "b")
        before = stored(rig)
        old.stream.roll_soon()
        await asyncio.sleep(5)
        assert old.failures
        assert stored(rig) == before
        await new.add(1)
        assert await everything(new) == answered(old, new)

    run(scenario)


# Rolling


def test_records_are_taken_and_acknowledged_while_the_next_ledger_is_being_made():
    async def scenario(rig):
        owner = await taking_over(rig, "a")
        await owner.add(2)
        owner.session.gate = asyncio.Event()  # the store answers nothing for now
        owner.stream.roll_soon()
        await owner.add(5)
        assert len(owner.stream.segments) == 1
        owner.session.gate.set()
        await asyncio.sleep(5)
        assert len(owner.stream.segments) == 2
        await owner.add(1)
        assert await everything(owner) == answered(owner)

    run(scenario)


def test_a_segment_is_kept_on_while_no_ledger_can_be_made():
    async def scenario(rig):
        owner = await taking_over(rig, "a")
        owner.session.faults = replace(owner.session.faults, cut=True)
        await owner.add(40)
        await asyncio.sleep(300)
        assert len(owner.stream.segments) == 1
        assert not owner.failures
        owner.session.faults = replace(owner.session.faults, cut=False)
        await asyncio.sleep(60)
        assert len(owner.stream.segments) == 2
        await owner.add(1)
        assert await everything(owner) == answered(owner)

    run(scenario, segment_bytes=2000)


def test_a_segment_rolls_when_its_time_has_come_and_it_holds_records():
    async def scenario(rig):
        owner = await taking_over(rig, "a")
        await asyncio.sleep(100)
        assert not owner.stream.roll_if_old()
        await owner.add(1)
        assert owner.stream.roll_if_old()
        await asyncio.sleep(1)
        assert [s.completed for s in owner.stream.segments] == [True, False]
        assert not owner.stream.roll_if_old()

    run(scenario, segment_ms=60_000)


def test_a_segment_rolls_at_its_size():
    async def scenario(rig):
        owner = await taking_over(rig, "a")
        for _ in range(20):
            await owner.add(5, size=100)
        await asyncio.sleep(1)
        sizes = [owner.stream._size_of(s) for s in owner.stream.segments[:-1]]
        assert len(sizes) >= 3
        assert all(4000 <= size < 8000 for size in sizes)
        assert await everything(owner) == answered(owner)

    run(scenario, segment_bytes=4000)


@pytest.mark.parametrize("control_ms", [-1, 100])
def test_a_roll_a_close_and_a_recovery_leave_the_same_fields(control_ms):
    async def scenario(rig):
        owner = await taking_over(rig, "a")
        await owner.add(5)
        await asyncio.sleep(1)
        await owner.roll()
        await owner.add(5)
        await asyncio.sleep(1)
        await owner.stream.close()
        owner.kill()
        owner = await taking_over(rig, "b")
        await owner.add(5)
        await asyncio.sleep(1)
        owner.kill()
        await taking_over(rig, "c")
        rolled, closed, recovered, _ = listed(rig)
        for segment in (rolled, closed, recovered):
            assert segment.completed
            assert segment.record_count == 5
            assert segment.last_txid == segment.end_sequence_id - 1
            assert segment.completion_ms > 0
        assert (rolled.last_entry, rolled.last_slot) == (closed.last_entry, closed.last_slot)
        assert (rolled.last_entry, rolled.last_slot) == (recovered.last_entry, recovered.last_slot)

    run(scenario, control_ms=control_ms)


# Control records


@pytest.mark.parametrize(
    ("control_ms", "seconds_min", "seconds_max"),
    [(0, 0.0, 0.05), (400, 0.2, 0.45), (-1, 30.0, 31.0)],
    ids=["immediate", "periodic", "off"],
)
def test_when_a_follower_sees_the_last_record(control_ms, seconds_min, seconds_max):
    """Off: only when the next one, 30 s later, follows it."""

    async def scenario(rig):
        owner = await taking_over(rig, "a")
        follower = await rig.follower()
        await owner.add(3)
        seen = asyncio.create_task(follower.until(3))
        await asyncio.sleep(30)
        await owner.add(1)
        assert seconds_min <= await seen <= seconds_max

    run(scenario, control_ms=control_ms)


async def entries_of(rig, segment):
    reader = await rig.world.client("dump").open(segment.ledger)
    last = reader.last_add_confirmed
    found = []
    while len(found) <= last:
        found += [body for _, body in await reader.read(EntryId(len(found)), last, WHOLE)]
    return [list(log_records.parse_entry(body)) for body in found]


def test_control_records_are_stored_and_spend_no_sequence_id():
    async def scenario(rig):
        owner = await taking_over(rig, "a")
        for _ in range(4):
            await owner.add(1)
            await asyncio.sleep(1)
        assert sorted(answered(owner)) == [0, 1, 2, 3]
        assert await everything(owner) == answered(owner)
        await owner.stream.close()
        (segment,) = listed(rig)
        controls = [r for e in await entries_of(rig, segment) for r in e if r.data == b"control"]
        assert [(r.position, r.txid) for r in controls] == [(1, 0), (2, 1), (3, 2), (4, 3)]
        assert all(r.control for r in controls)

    run(scenario, control_ms=100)


def test_an_idle_stream_writes_one_control_record_and_no_more():
    async def scenario(rig):
        owner = await taking_over(rig, "a")
        await owner.add(3)
        await asyncio.sleep(1)
        entries = owner.stream._ledger_writer.lap
        await asyncio.sleep(60)
        assert owner.stream._ledger_writer.lap == entries

    run(scenario, control_ms=100)


def test_the_policy_may_change_while_the_stream_is_open():
    async def scenario(rig):
        owner = await taking_over(rig, "a")
        follower = await rig.follower()
        await owner.add(3)
        await asyncio.sleep(10)
        assert follower.stream.end_sequence_id == 2
        rig.config = replace(rig.config, control_ms=0)
        owner.stream.roll_if_old()
        await owner.add(1)
        assert await follower.until(4) < 0.1

    run(scenario)


# Truncation


async def three_segments(rig, **config):
    """0-5 and 6-11 completed, 12-17 in progress; in each the records of one turn share an entry."""
    owner = await taking_over(rig, "a")
    for number in range(3):
        for _ in range(2):
            for _ in range(3):
                owner.append()
            await owner.settle()
        if number < 2:
            await owner.roll()
    return owner


def test_segments_below_the_start_are_truncated_and_the_one_around_it_partially():
    async def scenario(rig):
        owner = await three_segments(rig)
        await owner.stream.truncate(10)
        first, second, third = listed(rig)
        assert first.truncation is Truncation.TRUNCATED
        assert second.truncation is Truncation.PARTIALLY_TRUNCATED
        assert third.truncation is Truncation.ACTIVE
        entries = await entries_of(rig, second)
        position = second.min_active_slot
        (record,) = [
            r for r in entries[second.min_active_entry] if not r.control and r.slot == position
        ]
        assert second.start_sequence_id + record.position - 1 == 10
        assert owner.stream.start_sequence_id == 10
        with pytest.raises(Truncated):
            await owner.stream.read(9, WHOLE)
        assert await everything(owner) == answered(owner, start=10)

    run(scenario)


def test_a_start_in_the_middle_of_a_record_set_points_to_its_slot():
    async def scenario(rig):
        owner = await taking_over(rig, "a")
        data = rig.new_data()
        owner.stream.append((data,), len(data), 8, 1000, lambda error: None)
        await owner.add(1)
        await owner.roll()
        await owner.stream.truncate(5)
        segment = listed(rig)[0]
        assert segment.min_active_slot == 5
        first, _ = user_records(await payload(rig, segment, segment.min_active_entry))
        assert (first.slot, first.records) == (0, 8)

    run(scenario)


async def payload(rig, segment, entry):
    reader = await rig.world.client("dump").open(segment.ledger)
    [(_, body)] = await reader.read(entry, entry, WHOLE)
    return body


def test_the_pointer_reaches_the_end_and_the_data_are_still_there_for_a_while():
    async def scenario(rig):
        owner = await three_segments(rig)
        await owner.stream.truncate(8)
        await owner.stream.truncate(12)
        first, second, _ = listed(rig)
        assert first.truncation is second.truncation is Truncation.TRUNCATED
        await asyncio.sleep(50)
        assert await owner.stream.expire() == 0
        assert len(await entries_of(rig, first)) == 3, "who looks at ledgers finds them"
        await asyncio.sleep(10)
        assert await owner.stream.expire() == 1
        assert [s.number for s in listed(rig)] == [2, 3], "the newest completed one stays"
        assert not has_ledger(rig, first.ledger)
        assert has_ledger(rig, second.ledger)

    run(scenario, truncated_keep_ms=60_000)


def test_a_start_in_the_segment_in_progress_is_marked_when_that_is_completed():
    async def scenario(rig):
        owner = await three_segments(rig)
        await owner.stream.truncate(14)
        assert listed(rig)[-1].truncation is Truncation.ACTIVE
        await owner.roll()
        await owner.stream.expire()
        states = [s.truncation for s in listed(rig)]
        assert states == [
            Truncation.TRUNCATED,
            Truncation.TRUNCATED,
            Truncation.PARTIALLY_TRUNCATED,
            Truncation.ACTIVE,
        ]

    run(scenario)


def test_a_truncation_is_durable_at_once_also_when_the_data_cannot_be_read():
    async def scenario(rig):
        owner = await three_segments(rig)
        owner.stream._reads.clear()
        for bookie in rig.world.bookies:
            rig.world.network.cut("a", bookie)
        await owner.stream.truncate(9)
        owner.kill()
        rig.world.network.heal()
        new = await taking_over(rig, "b")
        assert new.stream.start_sequence_id == 9
        await new.stream.expire()
        assert listed(rig)[1].truncation is Truncation.PARTIALLY_TRUNCATED

    run(scenario)


def test_a_grace_period_begins_again_with_a_new_owner():
    async def scenario(rig):
        owner = await three_segments(rig)
        await owner.stream.truncate(12)
        await asyncio.sleep(59)
        owner.kill()
        new = await taking_over(rig, "b")
        await new.stream.expire()
        await asyncio.sleep(59)
        assert await new.stream.expire() == 0
        await asyncio.sleep(2)
        assert await new.stream.expire() == 2

    run(scenario)


def test_what_ttl_removes_leaves_the_list_first_and_its_ledger_after():
    async def scenario(rig):
        owner = await three_segments(rig)
        ledgers = [s.ledger for s in listed(rig)]
        gone = []
        listen(rig.world.tree, "on_delete", gone.append)
        await asyncio.sleep(3600)
        assert await owner.stream.expire() == 1
        node, ledger, *_ = [p for p in gone if p.startswith(LEDGERS) or "L" in p]
        assert node.startswith(LEDGERS)
        assert ledger == metadata_format.ledger_path(ledgers[0])
        assert owner.stream.start_sequence_id == 6
        await asyncio.sleep(100_000)
        assert await owner.stream.expire() == 0, "one in progress never expires"

    run(scenario, retention_ms=3_600_000)


def test_ttl_counts_from_completion():
    async def scenario(rig):
        owner = await taking_over(rig, "a")
        await owner.add(1)
        await asyncio.sleep(10_000)
        await owner.roll()
        await owner.add(1)
        await owner.roll()
        assert await owner.stream.expire() == 0
        await asyncio.sleep(3600)
        assert await owner.stream.expire() == 1

    run(scenario, retention_ms=3_600_000)


def test_a_ledger_that_is_gone_already_does_not_stop_the_round():
    async def scenario(rig):
        owner = await three_segments(rig)
        first = listed(rig)[0]
        await rig.world.client("admin").delete(first.ledger)
        await owner.stream.truncate(6)
        await asyncio.sleep(61)
        assert await owner.stream.expire() == 1
        with pytest.raises(NoSuchLedger):
            await rig.world.client("admin").open(first.ledger)

    run(scenario)
