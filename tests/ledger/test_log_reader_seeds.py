"""Goal: whatever happens to a stream, its native readers cover every position once and in order,
and call nothing lost that is not.

Method: drawn steps of owners (adds, rolls, restarts, takeovers, truncations, retention) on a
simulated cluster, while readers follow at their own pace; then all that was acknowledged must have
been delivered or trimmed. Readers also reach the end with any Qa - 1 bookies of an ensemble down.
"""

import asyncio
import random
from itertools import combinations

import pytest

from ledger.core.gaps import ENTRY_MAX, Gap, GapKind
from tests.ledger.life_rig import taking_over
from tests.ledger.log_reader_rig import Reading, reading_rig
from tests.ledger.test_log_reader import offsets, written

STEPS = 40
SEEDS = 30


class Watched:
    """A reader whose deliveries are checked as they come. `held` is the data by offset."""

    def __init__(self, reading, pace, pauses_s):
        self.reading = reading
        self.pace = pace
        self.pauses_s = pauses_s
        self.at = (1, 0)  # the first position that is not covered
        self.offset = 0  # the next offset
        self.held = {}
        self.trimmed = set()
        self.kinds = []

    async def follow(self):
        while not self.reading.reader.ended:
            records, gap = await self.reading.reader.read(self.pace.randrange(1, 5), 5.0)
            for record in records:
                self._on_record(record)
            if gap is not None:
                self._on_gap(gap)
            await asyncio.sleep(self.pace.choice(self.pauses_s))

    def _on_record(self, record):
        assert record.dlsn[:2] >= self.at, (record.dlsn, self.at)
        assert record.offset == self.offset
        self.at = record.dlsn[:2]
        self.offset += record.records
        self.held[record.offset] = bytes(record.data)

    def _on_gap(self, gap):
        assert isinstance(gap, Gap)
        assert self.at[0] == gap.first.segment
        assert self.at <= (gap.first.segment, gap.first.entry) <= tuple(gap.last)
        if gap.kind is GapKind.BRIDGE:
            assert gap.last == (gap.first.segment, ENTRY_MAX)
            assert gap.offsets == (self.offset, self.offset - 1, True)
        else:
            assert gap.kind is GapKind.TRIM
            assert gap.offsets == (self.offset, gap.offsets.last, True)
            self.trimmed.update(range(self.offset, gap.offsets.last + 1))
            self.offset = gap.offsets.last + 1
        self.kinds.append(gap.kind)
        segment, entry = gap.last
        self.at = (segment + 1, 0) if entry == ENTRY_MAX else (segment, entry + 1)


async def drawn_life(rig, draw, owners):
    """Let owners live through drawn steps. Returns the last of them."""
    owner = await rig.owner("owner-0")
    owners.append(owner)
    for step in range(STEPS):
        kind = draw.choice(["add"] * 6 + ["roll", "restart", "takeover", "truncate", "expire"])
        if kind == "add":
            await owner.add(draw.randrange(1, 4))
        elif kind == "roll":
            await owner.roll()
        elif kind == "restart":
            await owner.stream.close()
            await owner.open()
        elif kind == "takeover":
            owner.kill()
            owner = await taking_over(rig, f"owner-{step + 1}")
            owners.append(owner)
        elif kind == "truncate":
            stream = owner.stream
            await stream.truncate(draw.randint(stream.start_sequence_id, stream.end_sequence_id))
        else:
            await owner.stream.expire()
        await asyncio.sleep(draw.choice([0, 0.05, 1.0]))
    await owner.add()
    return owner


@pytest.mark.parametrize("seed", range(SEEDS))
async def test_readers_cover_every_position_once_through_all_changes(seed):
    """Seed 002 L6, L26: a BRIDGE at each roll, close and takeover, and no DATALOSS."""
    draw = random.Random(seed)
    async with reading_rig(truncated_keep_ms=draw.choice([0, 5_000]), retention_ms=-1) as rig:
        readers = [
            Watched(Reading(rig, "reader-0"), random.Random(0), [0, 0.01, 0.3]),
            Watched(Reading(rig, "reader-1", buffer_bytes=1), random.Random(1), [0.1, 3.0]),
        ]
        for each in readers:
            await each.reading.start()
        following = [asyncio.ensure_future(each.follow()) for each in readers]
        owners = []
        owner = await drawn_life(rig, draw, owners)
        await owner.stream.close()
        acknowledged = {at: data for each in owners for data, at in each.answers.items()}
        end = owner.stream.end_sequence_id
        async with asyncio.timeout(600):
            while any(each.offset < end for each in readers):
                assert not any(task.done() for task in following), following
                await asyncio.sleep(0.1)
        for each, task in zip(readers, following, strict=True):
            task.cancel()
            await each.reading.reader.stop()
            assert set(each.held) | each.trimmed >= set(acknowledged)
            assert all(acknowledged.get(at, data) == data for at, data in each.held.items())
            assert GapKind.BRIDGE in each.kinds or GapKind.TRIM in each.kinds


DOWN = [
    *((5, 5, 5, 3, down) for down in combinations(range(5), 2)),
    *((6, 6, 3, 2, down) for down in combinations(range(6), 1)),
    *((3, 3, 3, 2, down) for down in combinations(range(3), 1)),
]


@pytest.mark.parametrize(("bookies", "e", "qw", "qa", "down"), DOWN)
async def test_reads_reach_the_end_with_any_qa_minus_1_bookies_down(bookies, e, qw, qa, down):
    """Seed 002 L44, seed 001 B9: for 3/3/2, 5/5/3 and striped 6/3/2."""
    shape = {"ensemble_size": e, "write_quorum": qw, "ack_quorum": qa}
    async with reading_rig(bookies, **shape) as rig:
        await written(rig, 8, 8)
        await asyncio.sleep(1)
        reading = Reading(rig)
        names = sorted(rig.world.bookies)
        reading.port.stalled.update(names[at] for at in down)
        await reading.start()
        assert offsets(await reading.take(records=16)) == list(range(16))
        await reading.reader.stop()
