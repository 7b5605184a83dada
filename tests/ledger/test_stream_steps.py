"""Goal: an owner may die between any two steps of taking over, rolling, truncating, expiring or
closing: the next owner finds every acknowledged record and can write.

Method: exhaustive. The owner's process dies at its n-th metadata call, before it or after it with
the reply lost. Then the next owner takes over and the log is checked.
"""

import asyncio
from dataclasses import replace

import pytest

from ledger.client import metadata_format
from ledger.core.segments import Truncation, decode_segment
from ledger.streams.segment_store import log_root
from tests.ledger.calm_cluster import cluster
from tests.ledger.follow_rig import NAME, FollowRig, Owner
from tests.sim.loop import simulate

LEDGERS = f"{log_root(NAME)}/ledgers"
CALLS_MAX = 60


class Dying:
    """A fault: the owner's metadata call number `calls` is the last that reaches the store."""

    def __init__(self, rig, owner, calls, *, heard):
        self.rig = rig
        self.owner = owner
        self.calls = calls
        self.heard = heard
        self.reached = 0
        self.real = owner.session._call
        owner.session._call = self.call

    async def call(self, step, *args):
        self.reached += 1
        if self.reached > self.calls:
            await self.die()
        result = await self.real(step, *args)
        if self.reached == self.calls and not self.heard:
            await self.die()
        return result

    async def die(self):
        self.owner.kill()
        await asyncio.Event().wait()


async def owner_of(rig, host):
    owner = Owner(rig, host)
    await owner.stream.open(begin=True)
    if not owner.stream.writable:  # there was no segment in progress
        await owner.stream.begin()
    return owner


# The changes. Each begins with two segments completed and one in progress, six records in each.


async def take_over(rig, owner):
    """The process that takes over dies."""
    await owner.stream.open(begin=True)
    owner.append()
    await asyncio.sleep(1)


async def roll(rig, owner):
    owner.stream.roll_soon()
    owner.append()
    await asyncio.sleep(1)
    owner.append()


async def truncate(rig, owner):
    await owner.stream.truncate(8)
    rig.promised_start = 8


async def expire(rig, owner):
    """The truncated segment is removed after its grace period, the other one by TTL."""
    await owner.stream.expire()


async def close(rig, owner):
    owner.append()
    await owner.stream.close()


CHANGES = [take_over, roll, truncate, expire, close]


async def story(change, calls, *, heard):
    """Return how many calls the change made, at most `calls` + 1."""
    rig = await FollowRig(cluster()).start()
    rig.promised_start = 0
    first = await owner_of(rig, "first")
    for number in range(3):
        await first.add(6)
        if number < 2:
            await first.roll()
    if change is expire:
        await first.stream.truncate(6)
        rig.promised_start = 6
        rig.config = replace(rig.config, truncated_keep_ms=0, retention_bytes=0)
    dying = Owner(rig, "dying") if change is take_over else first
    if change is take_over:
        first.kill()
    cut = Dying(rig, dying, calls, heard=heard)
    work = asyncio.create_task(change(rig, dying))
    await asyncio.wait([work], timeout=20)
    if work.done():
        work.result()
    dying.kill()
    await judge(rig, change, [first, dying])
    work.cancel()
    return cut.reached


async def judge(rig, change, owners):
    check_list(rig)
    rig.config = replace(rig.config, retention_bytes=-1)
    last = await owner_of(rig, "last")
    await last.add(2)
    await last.roll()
    await last.stream.expire()
    await last.add(2)
    check_list(rig)
    start = last.stream.start_sequence_id
    allowed = {truncate: (0, 8), expire: (6, 12)}.get(change, (0,))
    assert start >= rig.promised_start
    assert start in allowed
    found, at = {}, start
    while at < last.stream.end_sequence_id:
        for record in await last.stream.read(at, 1 << 20):
            assert record.sequence_id == at
            found[at] = b"".join(record.data)
            at = record.end_sequence_id
    for owner in [*owners, last]:
        for data, sequence_id in owner.answers.items():
            assert sequence_id < start or found[sequence_id] == data
    for segment in segments_of(rig):
        whole = segment.completed and segment.end_sequence_id <= start
        below = segment.completed and segment.start_sequence_id < start
        due = Truncation.TRUNCATED if whole and below else Truncation.PARTIALLY_TRUNCATED
        assert segment.truncation is (due if below else Truncation.ACTIVE)


def segments_of(rig):
    nodes = rig.world.tree.nodes
    found = [
        decode_segment(r.data, where=p) for p, r in nodes.items() if p.startswith(LEDGERS + "/")
    ]
    return sorted(found, key=lambda segment: segment.number)


def check_list(rig):
    """Check that the listed numbers have no gap and that every named ledger exists."""
    segments = segments_of(rig)
    numbers = [segment.number for segment in segments]
    assert numbers == list(range(numbers[0], numbers[0] + len(numbers)))
    assert sum(not segment.completed for segment in segments) <= 2
    assert int(rig.world.tree.nodes[LEDGERS].data) == numbers[-1]
    for segment in segments:
        assert metadata_format.ledger_path(segment.ledger) in rig.world.tree.nodes


@pytest.mark.parametrize("heard", [True, False], ids=["not done", "not heard"])
@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
def test_whichever_step_is_the_last_of_an_owner_the_next_one_finds_every_promise_kept(
    change, heard
):
    for calls in range(CALLS_MAX):
        if simulate(story(change, calls, heard=heard)) <= calls:
            return
    raise AssertionError("the story has more calls than this test tries")
