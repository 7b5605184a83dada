"""Goal: each record is answered once, in order, with its own outcome, however the ledger fails.

Method: the segment writer on a scripted ledger: entries are confirmed, failed or refused by hand.
"""

import asyncio
from contextlib import asynccontextmanager

from hypothesis import given
from hypothesis import strategies as st

from ledger.core import records as log_records
from ledger.core.snapshot_format import StateSnapshot, decode_snapshot, is_part, join
from ledger.errors import AddFailed, LedgerClosed, NotOwner
from ledger.ids import LedgerId
from ledger.streams.config import StreamLimits
from ledger.streams.tail_cache import StreamTail, TailCache
from ledger.streams.writer import SEGMENT_RECORDS_MAX, SegmentWriter

LIMITS = StreamLimits(entry_bytes_max=64 * 1024, snapshot_bytes=4000, index_stride_bytes=1000)


class Ledger:
    """A ledger that accepts entries; the test confirms or fails each of them."""

    ledger = LedgerId(1)

    def __init__(self, room=1000):
        self.room = room
        self.entries = []
        self.pending = []
        self.refusal = None

    @property
    def full(self):
        return self.refusal is None and len(self.pending) >= self.room

    def add(self, payload, on_confirmed):
        assert not self.full
        if self.refusal is not None:
            raise self.refusal
        self.entries.append(b"".join(payload))
        self.pending.append(on_confirmed)
        return len(self.entries) - 1

    def confirm(self, count=None):
        for _ in range(len(self.pending) if count is None else count):
            self.pending.pop(0)(None)

    def fail(self, error):
        """Fail all pending entries in one turn, as a ledger writer does."""
        pending, self.pending = self.pending, []
        for on_confirmed in pending:
            on_confirmed(error)


class World:
    def __init__(self, ledger=None, state=b"state"):
        self.ledger = ledger or Ledger()
        self.answers = []
        self.ends = []
        self.failures = []
        self.snapshots = []
        self.state = state
        self.tail = StreamTail(TailCache(1 << 20))
        self.writer = self.new_writer(self.ledger, 1, 0)

    def new_writer(self, ledger, number, start):
        return SegmentWriter(
            ledger,
            number=number,
            start_sequence_id=start,
            tail=self.tail,
            limits=LIMITS,
            take_snapshot=self.take_snapshot,
            on_advanced=self.ends.append,
            on_failed=self.failures.append,
        )

    def take_snapshot(self, index, end_sequence_id):
        self.snapshots.append(end_sequence_id)
        return StateSnapshot(index=index, owner_state=self.state)

    def append(self, name, count=1, size=10):
        def on_durable(error):
            self.answers.append((name, error))

        self.writer.append((b"x" * size,), size, count, -1, on_durable)


@asynccontextmanager
async def new_world(**settings):
    world = World(**settings)
    yield world


def parsed(payload):
    return list(log_records.parse_entry(payload))


async def test_what_waits_in_one_turn_is_one_entry():
    async with new_world() as world:
        for name in "abc":
            world.append(name, count=2)
        assert world.ledger.entries == []
        await asyncio.sleep(0)
        (entry,) = world.ledger.entries
        assert [(r.position, r.records, r.txid) for r in parsed(entry)] == [
            (1, 2, 1),
            (3, 2, 3),
            (5, 2, 5),
        ]
        assert world.answers == []
        world.ledger.confirm()
        assert world.answers == [("a", None), ("b", None), ("c", None)]
        assert world.ends == [6]


async def test_an_entry_is_no_larger_than_its_limit_unless_one_record_is():
    async with new_world() as world:
        for name, size in [("a", 40_000), ("b", 30_000), ("c", 200_000), ("d", 1)]:
            world.append(name, size=size)
        await asyncio.sleep(0)
        world.ledger.confirm()
        user = [e for e in world.ledger.entries if not parsed(e)[0].control]
        assert [[len(r.data) for r in parsed(entry)] for entry in user] == [
            [40_000],
            [30_000],
            [200_000],
            [1],
        ]


@given(st.lists(st.integers(1, 30_000), min_size=1, max_size=30))
async def test_entries_hold_all_records_in_order_within_their_limit(sizes):
    async with new_world() as world:
        for number, size in enumerate(sizes):
            world.append(number, size=size)
        await asyncio.sleep(0)
        while world.ledger.pending:
            world.ledger.confirm(1)
        found = [r for e in world.ledger.entries for r in parsed(e) if not r.control]
        assert [len(r.data) for r in found] == sizes
        assert max(map(len, world.ledger.entries)) <= LIMITS.entry_bytes_max


async def test_small_records_behind_two_entries_under_way_share_the_next_entry():
    async with new_world() as world:
        for name in "abcde":
            world.append(name)
            await asyncio.sleep(0)
        assert [len(parsed(entry)) for entry in world.ledger.entries] == [1, 1]
        world.ledger.confirm(1)
        assert [len(parsed(entry)) for entry in world.ledger.entries] == [1, 1, 3]
        world.ledger.confirm()
        assert world.answers == [(name, None) for name in "abcde"]


async def test_a_full_entry_waits_for_no_other():
    async with new_world() as world:
        for name in "abcd":
            world.append(name, size=64 * 1024)
            await asyncio.sleep(0)
        assert len([e for e in world.ledger.entries if not parsed(e)[0].control]) == 4


async def test_a_full_ledger_is_not_asked_and_goes_on_when_it_has_room():
    async with new_world(ledger=Ledger(room=1)) as world:
        for name, size in [("a", 60_000), ("b", 60_000), ("c", 60_000)]:
            world.append(name, size=size)
        await asyncio.sleep(0)
        assert len(world.ledger.entries) == 1
        world.ledger.confirm(1)
        assert world.answers == [("a", None)]
        while world.ledger.pending:
            world.ledger.confirm(1)
        assert [name for name, _ in world.answers] == ["a", "b", "c"]


async def test_an_entry_refused_while_an_older_one_is_under_way_does_not_take_its_answer():
    """The older entry may still succeed. The refused records are answered after it."""
    async with new_world() as world:
        world.append("older")
        await asyncio.sleep(0)
        world.ledger.refusal = AddFailed("the ledger has failed")
        world.append("refused")
        await asyncio.sleep(0.1)
        assert world.answers == []
        world.append("waits")
        world.ledger.confirm()
        assert world.answers[0] == ("older", None)
        assert [(n, type(e)) for n, e in world.answers[1:]] == [
            ("refused", AddFailed),
            ("waits", AddFailed),
        ]
        assert len(world.failures) == 1
        assert world.writer.end_sequence_id == 1


async def test_a_refusal_with_nothing_under_way_is_told_in_a_later_turn():
    async with new_world() as world:
        world.ledger.refusal = LedgerClosed("closed")
        world.append("a")
        world.writer.pack()
        assert world.answers == []
        world.append("b")
        await asyncio.sleep(0)
        assert [(n, type(e)) for n, e in world.answers] == [
            ("a", LedgerClosed),
            ("b", LedgerClosed),
        ]
        assert len(world.failures) == 1


async def test_a_failed_entry_fails_all_after_it_once_and_in_order():
    async with new_world(ledger=Ledger(room=2)) as world:
        for name in "ab":
            world.append(name, size=60_000)
        await asyncio.sleep(0)
        world.append("c")
        world.ledger.confirm(1)
        world.ledger.fail(AddFailed("gone"))
        assert [(n, e is None) for n, e in world.answers] == [
            ("a", True),
            ("b", False),
            ("c", False),
        ]
        assert len(world.failures) == 1
        await asyncio.sleep(1)
        assert len(world.answers) == 3


async def test_it_has_failed_before_anybody_is_told():
    async with new_world() as world:
        seen = []
        world.writer.append((b"x",), 1, 1, -1, lambda error: seen.append(world.writer.failed))
        await asyncio.sleep(0)
        world.ledger.fail(AddFailed("gone"))
        assert [type(error) for error in seen] == [AddFailed]


async def test_waiting_for_quiet_ends_also_when_the_last_entry_is_a_snapshot():
    async with new_world() as world:
        world.writer.write_snapshot()
        waiting = asyncio.create_task(world.writer.wait_until_idle())
        await asyncio.sleep(0)
        assert not waiting.done()
        world.ledger.confirm()
        await asyncio.wait_for(waiting, 1)


async def test_waiting_for_quiet_ends_when_the_writer_fails():
    async with new_world() as world:
        world.append("a")
        await asyncio.sleep(0)
        waiting = asyncio.create_task(world.writer.wait_until_idle())
        await asyncio.sleep(0)
        assert not waiting.done()
        world.ledger.fail(AddFailed("gone"))
        await asyncio.wait_for(waiting, 1)
        assert isinstance(world.writer.failed, AddFailed)


async def test_while_held_nothing_is_packed_and_the_next_segment_takes_it_in_order():
    async with new_world() as world:
        world.append("a", count=3)
        await asyncio.sleep(0)
        world.writer.paused = True
        world.append("b", count=2)
        world.append("c")
        world.ledger.confirm()
        await asyncio.sleep(1)
        assert world.answers == [("a", None)]
        following = Ledger()
        after = world.new_writer(following, 2, world.writer.end_sequence_id)
        after.adopt(world.writer.take_waiting())
        following.confirm()
        assert world.answers == [("a", None), ("b", None), ("c", None)]
        assert (after.next_sequence_id, after.end_sequence_id) == (6, 6)
        assert parsed(following.entries[0])[0].position == 1


# -- snapshots ------------------------------------------------------------------------------------


async def test_a_snapshot_holds_what_is_packed_before_it_and_not_what_waits():
    async with new_world() as world:
        world.append("packed", count=5)
        world.writer.pack()
        world.append("waits")
        world.writer._begin_snapshot()
        assert world.snapshots == [5]


async def test_between_the_parts_of_a_snapshot_no_record_comes_however_little_room_there_is():
    async with new_world(ledger=Ledger(room=1), state=bytes(1_200_000)) as world:
        world.writer.write_snapshot()
        for number in range(3):
            world.append(number)
        for _ in range(20):
            world.ledger.confirm(len(world.ledger.pending))
            await asyncio.sleep(0)
        kinds = [parsed(entry)[0].control for entry in world.ledger.entries]
        assert kinds == [True, True, True, False]
        assert log_records.snapshot_distance(world.ledger.entries[3]) == 3  # to its first part
        parts = [parsed(entry)[0].data for entry in world.ledger.entries[:3]]
        assert decode_snapshot(join(parts)).owner_state == world.state
        assert world.answers == [(0, None), (1, None), (2, None)]


async def test_the_parts_of_a_snapshot_are_sent_also_when_no_record_waits():
    async with new_world(ledger=Ledger(room=1), state=bytes(1_200_000)) as world:
        world.writer.write_snapshot()
        for _ in range(5):
            world.ledger.confirm()
        assert len(world.ledger.entries) == 3


async def test_each_entry_says_how_far_back_the_last_complete_snapshot_begins():
    async with new_world() as world:
        world.writer.write_snapshot()
        for number in range(40):
            world.append(number, size=500)
            await asyncio.sleep(0)
            world.ledger.confirm()
        begun, complete = [], []
        for at, entry in enumerate(world.ledger.entries):
            distance = log_records.snapshot_distance(entry)
            assert (at - distance if distance else None) == (complete[-1] if complete else None)
            (first, *_) = parsed(entry)
            if first.control:
                assert is_part(first.data)
                begun.append(at)
                complete.append(at)
        assert len(begun) > 3


async def test_a_large_snapshot_is_not_written_again_before_eight_times_its_size():
    async with new_world(state=bytes(10_000)) as world:
        world.writer.write_snapshot()
        for number in range(120):
            world.append(number, size=1000)
            await asyncio.sleep(0)
            world.ledger.confirm()
        assert len(world.snapshots) == 2


# -- bounds ---------------------------------------------------------------------------------------


async def test_a_segment_never_counts_beyond_what_its_positions_can_hold():
    """Batches may claim millions of records each; the rest waits for the next segment."""
    async with new_world() as world:
        claim = SEGMENT_RECORDS_MAX // 3
        for number in range(8):
            world.append(number, count=claim)
        await asyncio.sleep(0)
        world.ledger.confirm()
        assert len(world.answers) == 4
        assert world.writer.durable_count >= SEGMENT_RECORDS_MAX
        positions = [r.position for e in world.ledger.entries for r in parsed(e) if not r.control]
        assert positions == [1 + number * claim for number in range(4)]
        assert len(world.writer.take_waiting()) == 4


async def test_waiting_bytes_are_counted():
    async with new_world() as world:
        world.append("a", size=100)
        world.append("b", size=50)
        assert world.writer.waiting_bytes == 150
        await asyncio.sleep(0)
        assert world.writer.waiting_bytes == 0


# Control records


def controls(world):
    """Return the numbers of entries that hold only a control record, not a snapshot."""
    entries = enumerate(map(parsed, world.ledger.entries))
    return [at for at, [first, *_] in entries if first.control and not is_part(first.data)]


@asynccontextmanager
async def owing_world(control_ms=100):
    world = World()
    world.writer.control_ms = control_ms
    yield world


async def test_the_last_record_of_a_burst_is_followed_by_a_control_record():
    async with owing_world() as world:
        for name in "abc":
            world.append(name)
            await asyncio.sleep(0.01)
            world.ledger.confirm()
        await asyncio.sleep(0.04)
        assert controls(world) == []
        await asyncio.sleep(0.06)
        assert controls(world) == [3]
        (record,) = parsed(world.ledger.entries[3])
        assert (record.position, record.txid) == (3, 2)
        world.ledger.confirm()
        await asyncio.sleep(10)
        assert controls(world) == [3]
        assert world.ends == [1, 2, 3]


async def test_what_is_newer_and_under_way_needs_no_control_record():
    async with owing_world() as world:
        world.append("a")
        await asyncio.sleep(0.01)
        world.ledger.confirm()
        world.append("b")
        await asyncio.sleep(10)
        assert controls(world) == []


async def test_at_once_means_when_nothing_else_is_under_way():
    async with owing_world(control_ms=0) as world:
        world.append("a")
        await asyncio.sleep(0)
        world.append("b")
        await asyncio.sleep(0)
        world.ledger.confirm(1)
        assert controls(world) == []
        world.ledger.confirm(1)
        assert controls(world) == [2]


async def test_a_snapshot_that_was_sent_too_early_to_tell_does_not_pay_for_the_record():
    async with owing_world() as world:
        world.append("a", size=5000)  # a snapshot is due behind it
        await asyncio.sleep(0.01)
        assert len(world.ledger.entries) == 2
        world.ledger.confirm()
        await asyncio.sleep(0.2)
        assert controls(world) == [2]


async def test_a_snapshot_sent_after_the_record_was_durable_tells_as_well():
    async with owing_world() as world:
        world.append("a")
        await asyncio.sleep(0.01)
        world.ledger.confirm()
        world.writer.write_snapshot()
        world.ledger.confirm()
        await asyncio.sleep(10)
        assert controls(world) == []


async def test_no_control_record_disturbs_a_roll_or_follows_a_retirement():
    async with owing_world() as world:
        world.append("a")
        await asyncio.sleep(0.01)
        world.writer.paused = True
        world.ledger.confirm()
        await asyncio.sleep(1)
        assert controls(world) == []
        world.writer.paused = False
        world.append("b")
        await asyncio.sleep(0.01)
        world.ledger.confirm()
        world.writer.retire()
        world.ledger.refusal = LedgerClosed("closed")
        await asyncio.sleep(1)
        assert controls(world) == []
        assert world.failures == []


async def test_a_control_record_that_is_refused_fails_the_writer():
    async with owing_world() as world:
        world.append("a")
        await asyncio.sleep(0.01)
        world.ledger.confirm()
        world.ledger.refusal = AddFailed("fenced")
        await asyncio.sleep(1)
        assert world.answers == [("a", None)]
        assert [type(error) for error in world.failures] == [AddFailed]


async def test_without_a_policy_nothing_follows():
    async with owing_world(control_ms=-1) as world:
        world.append("a")
        await asyncio.sleep(0.01)
        world.ledger.confirm()
        await asyncio.sleep(10)
        assert len(world.ledger.entries) == 1


async def test_a_caller_that_raises_takes_no_answer_from_the_others():
    reported = []
    asyncio.get_running_loop().set_exception_handler(lambda _, each: reported.append(each))

    def raises(_):
        raise RuntimeError("a mistake")

    async with new_world() as world:
        for name in "abcd":
            if name == "b":
                world.writer.append((b"x",), 1, 1, -1, raises)
            else:
                world.append(name)
        await asyncio.sleep(0)
        world.ledger.confirm()
        assert world.answers == [("a", None), ("c", None), ("d", None)]
        assert world.ends == [4]
        world.writer.append((b"x",), 1, 1, -1, raises)
        world.append("e")
        await asyncio.sleep(0)
        error = AddFailed("ledger 1")
        world.ledger.fail(error)
        assert world.answers[3:] == [("e", error)]
        assert [str(each["exception"]) for each in reported] == ["a mistake"] * 2


async def test_what_is_in_flight_is_not_acknowledged_once_its_place_is_given_up():
    async with new_world() as world:
        world.append("durable")
        await asyncio.sleep(0)
        world.ledger.confirm()
        world.append("in flight")
        await asyncio.sleep(0)
        world.append("waits")
        error = NotOwner("closed by force")
        world.writer.give_up(error)
        world.ledger.confirm()
        assert world.answers == [("durable", None), ("in flight", error), ("waits", error)]
        assert (world.ends, world.writer.end_sequence_id) == ([1], 1)
        assert world.failures == [error]
