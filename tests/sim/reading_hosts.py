"""The processes of a reading world: an owner that writes, and readers of four kinds.

A native reader follows the stream by positions. A follower, a scan and the owner itself read by
offsets, in order and at random. Each tells the oracle of what it gets.
"""

import asyncio

from ledger.client.client import LedgerClient
from ledger.core.gaps import ENTRY_MAX, GapKind
from ledger.core.loss import EntryLost
from ledger.errors import CorruptFormat, InvalidArgument, LedgerError, NoNode, Truncated
from ledger.ids import Dlsn
from ledger.streams.config import StreamLimits
from ledger.streams.follower import FollowedStream
from ledger.streams.log_reader import LogReader
from ledger.streams.scan import StreamScan
from ledger.streams.services import StreamServices
from ledger.streams.slice_read import read_slice
from ledger.streams.stream_seek import After, Edge
from tests.ledger.follow_rig import NAME, Owner, timestamp_of
from tests.sim.loop import SimClock
from tests.sim.reading_oracle import LOST

FATAL = (CorruptFormat, InvalidArgument, NoNode)
READ_S = 5.0
HANGS_S = 60.0  # the process of an owner was killed, and answers no more
TRIMMED = "trimmed"
OFFSETS_NOTED = 1_000  # a world has fewer records, but for offsets that are reserved


class Writing(Owner):
    """An owner of the stream. Its records hold one to five offsets each."""

    def __init__(self, world, number):
        self.world = world
        self.draw = world.draw
        super().__init__(world.rig, f"owner{number}", faults=world.faults_of(f"owner{number}"))
        world.hear_in_order(self.session)

    def append(self):
        world, draw = self.world, self.draw
        count, size = draw.choice([1, 1, 2, 5]), draw.choice([24, 24, 60, 400])
        data = world.rig.new_data(size, 1000 + draw.randint(0, 60))
        at = self.stream.next_sequence_id
        self.pending += 1

        def on_durable(error):
            self.pending -= 1
            if error is None:
                world.oracle.on_acked(at, count, data)

        self.stream.append((data,), len(data), count, timestamp_of(data), on_durable)

    async def serve(self):
        """Open the stream, again after each failure, and write."""
        while not self.world.stopping:
            try:
                await self.stream.open(begin=self.draw.random() < 0.8)
                if not self.stream.writable:
                    await self.stream.begin()
                await self._write()
            except CorruptFormat as error:
                self.world.oracle.report("open", f"{self.host}: {error!r}")
                return
            except LedgerError as error:
                self.world.note(error)
            if self.world.owner is not self:
                return  # it has seen that another one owns the stream
            await asyncio.sleep(self.draw.uniform(0.01, 0.3))

    async def _write(self):
        world, draw, stream = self.world, self.draw, self.stream
        while stream.writable and not world.stopping:
            while self.pending < world.pending_max and draw.random() < 0.7:
                self.append()
            await asyncio.sleep(draw.expovariate(1 / world.pause_s))
            what = draw.random()
            if what < 0.05:
                stream.roll_soon()
            elif what < 0.05 + world.truncates:
                await stream.truncate(draw.randint(stream.start_sequence_id, self._middle()))
            elif what < 0.08 + world.truncates:
                await stream.expire()

    def _middle(self):
        start = self.stream.start_sequence_id
        return start + (self.stream.end_sequence_id - start) // 3


class Native:
    """A native reader whose deliveries are checked as they come."""

    def __init__(self, world, host, first=Edge.EARLIEST, buffer_bytes=1 << 20):
        self.world = world
        self.oracle = world.oracle
        self.draw = world.draw
        self.host = host
        self.first = first
        self.buffer_bytes = buffer_bytes
        self.log = {}  # by offset: the data, or LOST, or "trimmed"
        self.losses = []  # every DATALOSS
        self.at = None  # the first position not covered, or the entry of the last record
        self.inside = False  # True if `at` is the entry of the last record
        self.trimmed = False  # True if the last delivery was a TRIM
        self.offset = None  # the next offset; None if it is unknown
        self.reader = None

    async def follow(self, end=None):
        """Read on, in a new process now and then, up to offset `end` or until cancelled."""
        while end is None or self.offset is None or self.offset < end:
            try:
                await self._start()
                await self._read_on(end)
            except FATAL as error:
                self.oracle.report("order", f"{self.host} failed: {error!r}")
                return
            except LedgerError:
                await asyncio.sleep(self.draw.uniform(0.01, 0.3))
            finally:
                if self.reader is not None:
                    await self.reader.stop()

    async def _start(self):
        port, session = self.world.connect(self.host)
        client = LedgerClient(session, port, SimClock(), self.world.cluster.config)
        self.reader = LogReader(
            NAME,
            session,
            client,
            timestamp_max=timestamp_of,
            buffer_bytes=self.buffer_bytes,
            **self.world.reader_options(session),
        )
        await self.reader.start(self.first)

    async def _read_on(self, end):
        draw = self.draw
        for _ in range(draw.choice([5, 50, 10_000])):
            if end is not None and self.offset is not None and self.offset >= end:
                return
            records, gap = await self.reader.read(draw.randint(1, 6), READ_S)
            for record in records:
                self._on_record(record)
            if gap is not None:
                self._on_gap(gap)
            slow_s = 0.0 if self.world.stopping else self.world.slow_s
            await asyncio.sleep(draw.expovariate(1 / self.world.pause_s) + slow_s)

    def _on_record(self, record):
        position = tuple(record.dlsn[:2])
        self._move_to(position, record)
        if self.offset is not None:
            self._check_offset(record)
        self.oracle.judge_record(self.host, record)
        for each in range(record.offset, record.offset + record.records):
            self.log[each] = bytes(record.data)
        self.at, self.inside = position, True
        self.offset = record.offset + record.records
        self.first = After(record.dlsn._replace(slot=record.dlsn.slot + record.records - 1))

    def _check_offset(self, record):
        """The record is the next one; the start of the stream may lie in its entry."""
        first, end = record.offset, record.offset + record.records
        after_start = self.trimmed and first <= self.offset < end
        before_start = self.offset < first <= self.oracle.start
        if first != self.offset and not after_start and not before_start:
            self.oracle.report("order", f"{self.host} got {record}, next is {self.offset}")
        self.trimmed = False

    def _move_to(self, position, found):
        """What is delivered follows what was; all in between are control records."""
        if self.at is None or (self.inside and position == self.at):
            return
        following = (self.at[0], self.at[1] + self.inside)
        if position < following:
            self.oracle.report("order", f"{self.host} got {found} at {following}")
        else:
            self.oracle.judge_skip(self.host, following, position)

    def _on_gap(self, gap):
        first, last = tuple(gap.first), tuple(gap.last)
        self._move_to(first, gap)
        offsets = gap.offsets
        if last < first:
            self.oracle.report("bounds", f"{self.host} got {gap}")
        counts = offsets.exact and offsets.last >= offsets.first and self.offset is not None
        if counts and self.offset != offsets.first:
            before_start = self.offset < offsets.first <= self.oracle.start  # truncated meanwhile
            trim_again = (
                self.trimmed and gap.kind is GapKind.TRIM and offsets.last + 1 >= self.offset
            )
            if not before_start and not trim_again:  # of offsets in entries behind the first TRIM
                self.oracle.report("bounds", f"{self.host} got {gap}, next is {self.offset}")
        self.oracle.judge_gap(self.host, gap)
        self._note_offsets(gap)
        self.at = (last[0] + 1, 0) if last[1] == ENTRY_MAX else (last[0], last[1] + 1)
        self.inside = False
        if offsets.last >= offsets.first:
            self.trimmed = gap.kind is GapKind.TRIM
        known = offsets.exact or gap.kind is GapKind.TRIM
        self.offset = offsets.last + 1 if known else None
        self.first = Dlsn(*self.at, 0)

    def _note_offsets(self, gap):
        word = TRIMMED if gap.kind is GapKind.TRIM else LOST
        accepted = gap.evidence is not None and gap.evidence.acceptance is not None
        if gap.kind is GapKind.DATALOSS:
            self.losses.append(gap)
        if not (gap.offsets.exact or accepted):
            return
        first, last, _ = gap.offsets
        for each in range(first, min(last, first + OFFSETS_NOTED) + 1):
            if self.log.setdefault(each, word) != word and gap.offsets.exact:
                self.oracle.report("order", f"{self.host} got {gap} after record {each}")


class ByOffset:
    """Reads at offsets, in order and at random."""

    def __init__(self, world, host):
        self.world = world
        self.oracle = world.oracle
        self.draw = world.draw
        self.host = host
        self.at = 0
        self.is_open = False

    async def follow(self):
        """Read until the world stops; then all is left open."""
        while not self.world.stopping:
            try:
                await self.open()
                self.is_open = True
                await self._steps()
            except FATAL as error:
                self.oracle.report("order", f"{self.host} failed: {error!r}")
                return
            except LedgerError:
                await self._close()
                await asyncio.sleep(self.draw.uniform(0.01, 0.3))

    async def _steps(self):
        for _ in range(self.draw.choice([10, 100, 10_000])):
            if self.world.stopping:
                return
            await self._step()
            await asyncio.sleep(self.draw.expovariate(1 / self.world.pause_s))
        await self._close()

    async def _close(self):
        self.is_open = False
        await self.close()

    async def _step(self):
        start, end = await self.bounds()
        if end <= start:
            return
        at = max(self.at, start)
        in_order = self.draw.random() < 0.7
        if not in_order or at >= end:
            known = [each for each in self.oracle.content if start <= each < end]
            at = self.draw.choice(known) if known else start
        found = await self.judged(at, self.draw.choice([1, 100, 2000]))
        if in_order and found:
            self.at = found

    async def judged(self, at, bytes_max):
        """The offset behind what was read, or None if nothing could be read now."""
        try:
            async with asyncio.timeout(HANGS_S):
                records = await self.read(at, bytes_max)
        except TimeoutError:
            return None
        except Truncated:
            if self.oracle.start <= at:
                self.oracle.report("truncated", f"{self.host} read {at}")
            return None
        except EntryLost:
            self.oracle.judge_lost(self.host, at)
            return None
        except FATAL:
            raise
        except LedgerError:
            return None
        self.oracle.judge_stored(self.host, at, records)
        return records[-1].end_sequence_id if records else None

    async def catch_up(self):
        """Learn of all changes that were made before."""

    async def whole(self, start, end):
        """[(first, end, data or "lost")] from `start` to `end`; waits for what cannot be read."""
        found, at, pause_s = [], start, 0.05
        while at < end:
            try:
                records = () if at >= (await self.bounds())[1] else await self.read(at, 1000)
            except FATAL:
                raise
            except LedgerError:
                await asyncio.sleep(pause_s)
                pause_s = min(2 * pause_s, 5.0)
                continue
            if not records:
                await asyncio.sleep(0.5)
            self.oracle.judge_stored(self.host, at, records)
            for record in records:
                lost = getattr(record, "lost", None) is not None
                data = LOST if lost else b"".join(record.data)
                found.append((record.sequence_id, record.end_sequence_id, data))
                at = record.end_sequence_id
        return found


class Following(ByOffset):
    """A follower."""

    def __init__(self, world, host):
        super().__init__(world, host)
        self.stream = None

    async def open(self):
        if self.stream is None or not self.stream.is_open or self.draw.random() < 0.5:
            await self.close()
            self.stream = self._new()
            await self.stream.open()

    def _new(self):
        port, session = self.world.connect(self.host)
        client = LedgerClient(session, port, SimClock(), self.world.cluster.config)
        services = StreamServices(session, client, SimClock(), self.world.rig.limits)
        return FollowedStream(NAME, services, timestamp_of, lambda end: None)

    async def close(self):
        if self.stream is not None:
            await self.stream.close()
            self.stream = None

    async def bounds(self):
        if self.stream.failed is not None:
            raise self.stream.failed
        return self.stream.start_sequence_id, self.stream.end_sequence_id

    async def read(self, at, bytes_max):
        return await self.stream.read(at, bytes_max)


class Scanning(ByOffset):
    """A scan, which also reads slices."""

    scan = None
    refreshes = 0

    async def open(self):
        port, session = self.world.connect(self.host)
        self.client = LedgerClient(session, port, SimClock(), self.world.cluster.config)
        self.session = session
        limits = StreamLimits(index_stride_bytes=300, read_chunk_bytes=500)
        self.scan = await StreamScan.open(NAME, session, self.client, timestamp_of, limits)

    async def close(self):
        if self.scan is not None:
            self.scan.close()
            self.scan = None

    async def catch_up(self):
        await self._refresh()

    async def _refresh(self):
        """Refresh all, or only the end, in turn."""
        self.refreshes += 1
        if self.refreshes % 2:
            await self.scan.refresh()
        else:
            await self.session.sync("/")
            await self.scan.refresh_end()

    async def bounds(self):
        if self.draw.random() < 0.3:
            await self._refresh()
        return self.scan.start_sequence_id, self.scan.end_sequence_id

    async def read(self, at, bytes_max):
        if self.draw.random() < 0.3:
            await self._slices(at)
        return await self.scan.read(at, bytes_max)

    async def _slices(self, at):
        end = min(self.scan.end_sequence_id, at + 20)
        for piece in await self.scan.cut(at, end, 500):
            async for records in read_slice(self.session, self.client, piece):
                for record in records:
                    self._put(record)

    def _put(self, record):
        if record.lost is None:
            count = record.end_sequence_id - record.sequence_id
            self.oracle.put(self.host, record.sequence_id, count, bytes(record.data))


class Owning(ByOffset):
    """The present owner reads its own stream."""

    stream = None

    async def open(self):
        self.stream = self.world.owner.stream
        self.owner = self.world.owner

    async def close(self):
        pass

    async def bounds(self):
        if self.world.owner is not self.owner:
            await self.open()
        return self.stream.start_sequence_id, self.stream.end_sequence_id

    async def read(self, at, bytes_max):
        return await self.stream.read(at, bytes_max)
