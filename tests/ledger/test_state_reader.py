"""Goal: a reader finds the state that the owner has at the end which the reader knows.

Method: real streams over a simulated cluster on virtual time, with a snapshot after every few
records. The state is the list of all sequence ids, so one that is missing or applied twice shows.
"""

import asyncio
from types import SimpleNamespace

import pytest

from ledger.client.client import LedgerClient
from ledger.errors import StreamUnavailable
from ledger.streams.config import StreamLimits
from ledger.streams.scan import StreamScan
from tests.ledger.follow_rig import NAME, NoState, started_rig, timestamp_of
from tests.ledger.reader_rig import ReaderPort
from tests.sim.loop import SimClock
from tests.sim.metadata import SimMetadata
from tests.sim.network import SimBookies

DENSE = StreamLimits(
    entry_bytes_max=64 * 1024, index_stride_bytes=2000, snapshot_bytes=2000, read_chunk_bytes=1000
)
PER_SNAPSHOT = 2000 // 24
"""Records between two snapshots. There are more of them if the snapshots are large."""


class Ids(NoState):
    """Every sequence id below the end. `replayed` counts those that no snapshot held."""

    def __init__(self):
        self.ids = []
        self.replayed = 0

    def encode(self, end_sequence_id):
        below = [each for each in self.ids if each < end_sequence_id]
        assert below == list(range(len(below)))
        return b"%d" % len(below)

    def load(self, data):
        self.ids = list(range(int(data or b"0")))
        self.replayed = 0
        return iter(())

    def replay(self, sequence_id, data):
        self.ids.append(sequence_id)
        self.replayed += 1


async def add(owner, state, count):
    for _ in range(count):
        state.ids.append(owner.stream.next_sequence_id)
        owner.append()
        await owner.settle()
    await asyncio.sleep(1)  # the last entry becomes known to readers


async def opened(rig, state):
    """Return a scan of the stream, and a reader of its state."""
    store = SimMetadata(rig.world.tree, rig.world.metadata_faults)
    client = LedgerClient(
        store, ReaderPort(SimBookies(rig.world.network, "reader")), SimClock(), rig.world.config
    )
    scan = await StreamScan.open(NAME, store, client, timestamp_of, rig.limits)
    return SimpleNamespace(scan=scan, states=scan.read_state(state))


async def owned(rig):
    state = Ids()
    return await rig.owner(state=state), state


async def test_a_reader_has_the_state_of_all_records_from_one_snapshot_on():
    async with started_rig(limits=DENSE, control_ms=100) as rig:
        owner, written = await owned(rig)
        await add(owner, written, 10 * PER_SNAPSHOT)
        found = Ids()
        reader = await opened(rig, found)
        end = await reader.states.advance()
        assert end == reader.scan.end_sequence_id == 10 * PER_SNAPSHOT
        assert found.ids == list(range(end))
        assert found.replayed < 3 * PER_SNAPSHOT


async def test_a_reader_replays_only_what_is_new_until_a_newer_snapshot():
    async with started_rig(limits=DENSE, control_ms=100) as rig:
        owner, written = await owned(rig)
        found, before = Ids(), 0
        reader = None
        for count in (3, 0, 4, 9 * PER_SNAPSHOT, 2):
            await add(owner, written, count)
            reader = reader or await opened(rig, found)
            await reader.scan.refresh()
            end = await reader.states.advance()
            assert found.ids == list(range(end))
            assert end == before + count
            before = end
        assert found.replayed < 3 * PER_SNAPSHOT


async def test_a_state_goes_over_the_border_of_segments_and_a_takeover():
    async with started_rig(limits=DENSE, control_ms=100) as rig:
        owner, written = await owned(rig)
        await add(owner, written, 7)
        found = Ids()
        reader = await opened(rig, found)
        await reader.states.advance()
        await owner.roll()
        await add(owner, written, 9)
        owner.kill()
        after = Ids()
        second = await rig.owner("second", after)
        await add(second, after, 5)
        await reader.scan.refresh()
        assert await reader.states.advance() == 21
        assert found.ids == list(range(21)) == after.ids
        first, end, state = await reader.states.state_behind(3)
        assert (first, end, state) == (0, 7, b"7")


async def test_an_empty_stream_has_the_empty_state():
    async with started_rig(limits=DENSE, control_ms=100) as rig:
        await owned(rig)
        found = Ids()
        found.ids = [17]
        reader = await opened(rig, found)
        assert await reader.states.advance() == 0
        assert found.ids == []


async def test_a_state_that_cannot_be_read_now_is_read_whole_later():
    async with started_rig(limits=DENSE, control_ms=100) as rig:
        owner, written = await owned(rig)
        await add(owner, written, 5)
        found = Ids()
        reader = await opened(rig, found)
        await reader.states.advance()
        await add(owner, written, 5)
        await reader.scan.refresh()
        read, reader.scan._reads.read = reader.scan._reads.read, _nothing
        with pytest.raises(StreamUnavailable):
            await reader.states.advance()
        reader.scan._reads.read = read
        assert await reader.states.advance() == 10
        assert found.ids == list(range(10))


async def _nothing(*_):
    return []
