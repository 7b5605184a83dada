"""Goal: whatever is lost, damaged or away, only entries that nobody can hold are given up, exactly.

Method: seeded copies of a simulated partition disappear or rot, and bookies go away; an oracle that
sees every copy judges what the commands list and accept.
"""

import asyncio

import pytest

from gateway.admin.client import AdminError
from ledger.core.records import parse_entry
from ledger.ids import EntryId
from tests.losses.rig import drawn, loss_rig

SEEDS = 40


class Oracle:
    """Every copy of the closed segments, as it was before anything was lost."""

    def __init__(self, rig):
        self.rig = rig
        self.spoilt = set()
        # The offsets of each entry, and where each is in its ledger.
        self.offsets = {}

    async def learn(self):
        for segment in self.rig.listed():
            if not segment.completed:
                continue
            reader = await self.rig.world.client("oracle").open(segment.ledger)
            end = segment.start_sequence_id
            for entry, payload in await reader.read(EntryId(0), segment.last_entry, 1 << 30):
                first, count = end, sum(record.records for record in parse_entry(payload))
                end += count
                self.offsets[segment.ledger, entry] = first, end

    def harm(self, draw):
        """Copies disappear or rot. Returns the bookies that are away."""
        rate = draw.choice((0.2, 0.5, 0.8))
        for ledger, entry in self.offsets:
            for name in self.rig.world.metadata_of(ledger).bookies_of(entry):
                if draw.random() >= rate:
                    continue
                if draw.random() < 0.3:
                    self.rig.spoil(ledger, entry, on=[name])
                    self.spoilt.add((ledger, entry, name))
                else:
                    self.rig.forget(ledger, entry, on=[name])
        away = [name for name in self.rig.world.bookies if draw.random() < 0.15]
        self.rig.lose(*away)
        return away

    def sound_on(self, ledger, entry):
        """The bookies that hold a sound copy, reachable or not."""
        held = self.held_on(ledger, entry)
        return {name for name in held if (ledger, entry, name) not in self.spoilt}

    def held_on(self, ledger, entry):
        """The bookies that hold any copy, damaged ones too."""
        bookies = self.rig.world.metadata_of(ledger).bookies_of(entry)
        return {n for n in bookies if entry in self.rig.world.bookies[n].durable_entries(ledger)}

    def check(self, row, away):
        """Nothing in the row can be read, and nobody can hold what it calls lost."""
        self.check_offsets(row)
        ledger = row["ledger"]
        for entry in range(row["entries"][0], row["entries"][1] + 1):
            assert not self.sound_on(ledger, entry) - away
            if row["state"] == "lost":
                bookies = set(self.rig.world.metadata_of(ledger).bookies_of(entry))
                assert not bookies & away, "a bookie that is away may have it"
                assert not self.held_on(ledger, entry), "a damaged copy is no denial"

    def check_offsets(self, row):
        """The exact offsets of a row are those of its entries."""
        first, last = row["entries"]
        spans = [self.offsets[row["ledger"], entry] for entry in range(first, last + 1)]
        low, high = spans[0][0], spans[-1][1] - 1
        if row["exact"]:
            assert row["offsets"] == [low, high]
        else:
            assert row["offsets"][0] <= low
            assert row["offsets"][1] >= high


@pytest.mark.parametrize("seed", range(SEEDS))
async def test_only_what_nobody_can_hold_is_listed_as_lost_and_given_up(monkeypatch, seed):
    draw = drawn(seed)
    shape = {"ensemble_size": draw.choice((3, 5)), "write_quorum": 3, "ack_quorum": 2}
    async with loss_rig(monkeypatch, bookies=5, **shape) as rig:
        await rig.written(*[[batches(draw) for _ in range(6)] for _ in range(2)], [1])
        await asyncio.sleep(1)
        oracle = Oracle(rig)
        await oracle.learn()
        away = set(oracle.harm(draw))
        rows = await rig.gaps(deep=True)
        for row in rows:
            oracle.check(row, away)
        give_up = [name for name in away if draw.random() < 0.5]
        await accept_all(rig, rows, give_up)
        check_accepted(rig, oracle, away - set(give_up))
        after = await rig.gaps(deep=True)
        if away == set(give_up):
            left = [row for row in after if row["state"] in ("lost", "waiting")]
            assert all(row["offsets"][1] < row["offsets"][0] for row in left), "all could be"
        accepted = [row for row in after if row["state"] == "accepted"]
        assert len(accepted) == len(rig.losses().ranges)


def batches(draw):
    """The sizes of the batches of an entry."""
    return tuple(draw.randint(1, 4) for _ in range(draw.randint(1, 3)))


def follows(before, row):
    return before["ledger"] == row["ledger"] and before["entries"][1] + 1 == row["entries"][0]


def joined(rows):
    """Runs of rows whose entries are neighbours: damaged copies count as lost in an acceptance."""
    runs = []
    for row in rows:
        if runs and follows(runs[-1][-1], row):
            runs[-1].append(row)
            continue
        runs.append([row])
    return runs


async def accept_all(rig, rows, give_up):
    """Try to accept all that the rows show. Each refusal is an AdminError."""
    for run in joined(rows):
        first, last = run[0]["offsets"][0], run[-1]["offsets"][1]
        if first > last:
            continue
        named = [name for name in give_up if name in rig.members(run[0]["ledger"])]
        try:
            await rig.accept(first, last, give_up=named)
        except AdminError:
            continue


def check_accepted(rig, oracle, away):
    """No sound copy of an accepted entry is, or may be, on a bookie that was not given up."""
    for loss in rig.losses().ranges:
        ledger = loss.evidence.ledger
        spans = [oracle.offsets[ledger, entry] for entry in range(loss.first, loss.last + 1)]
        assert loss.offsets == (spans[0][0], spans[-1][1] - 1, True)
        for entry in range(loss.first, loss.last + 1):
            bookies = set(rig.world.metadata_of(ledger).bookies_of(entry))
            assert not bookies & away
            assert all(not rig.world.bookies[n].up for n in oracle.sound_on(ledger, entry))
