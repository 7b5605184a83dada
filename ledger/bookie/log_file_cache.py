"""A cache of open log files, and reads of entries from these files."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from itertools import count, repeat
from operator import eq
from struct import Struct
from typing import Final

from ledger.core.extents import EntryLocation, Extent
from ledger.core.journal_format import (
    RECORD_HEADER,
    RECORD_HEADER_BYTES,
    RecordType,
    file_name,
)
from ledger.errors import CorruptFormat
from ledger.ids import Buffer
from ledger.ports.disk import Disk, LogFile

_IDS = Struct(">qq")
_RUN_BYTES_MAX: Final = 1024 * 1024  # the largest read that covers neighbouring entries


class LogFileCache:
    """A cache of at most `open_max` log files open for reading. Evicts the least recently used."""

    def __init__(self, disk: Disk, open_max: int, gap_bytes_max: int) -> None:
        self._disk = disk
        self._open_max = open_max
        self._gap_bytes_max = gap_bytes_max
        # Open files by id, least recently used first. A file is opened by the first read, and
        # closed when it is evicted or deleted.
        self._open: OrderedDict[int, LogFile] = OrderedDict()

    def get(self, file_id: int) -> LogFile:
        """Return the file, opened if necessary. Raises OSError, also for a deleted file."""
        file = self._open.get(file_id)
        if file is not None:
            self._open.move_to_end(file_id)
            return file
        file = self._disk.open(file_name(file_id))
        self._open[file_id] = file
        if len(self._open) > self._open_max:
            self._open.popitem(last=False)[1].close()
        return file

    def close(self, file_id: int) -> None:
        """Close the file if it is open."""
        file = self._open.pop(file_id, None)
        if file is not None:
            file.close()

    def close_all(self) -> None:
        """Close all files."""
        while self._open:
            self._open.popitem()[1].close()

    def expect_reads(self, file_id: int, position: int, size: int) -> None:
        """Announce reads of a file. Raises OSError, also for a deleted file."""
        self.get(file_id).expect_reads(position, size)

    async def read_entry(self, ledger: int, entry: int, location: EntryLocation) -> bytes:
        """Read one entry. Raises OSError; CorruptFormat if another entry is at that location."""
        file = self.get(location.file_id)
        found = file.read_now(location.position, location.length)
        if found is None:
            found = await file.read(location.position, location.length)
        _check(found, ledger, entry, location)
        return bytes(found)

    async def holds(self, ledger: int, entry: int, location: EntryLocation) -> bool:
        """True if the log file of that name has the record of this entry at that location.

        The file is opened by its name: an open file may have been deleted. Raises OSError.
        """
        head_bytes = RECORD_HEADER_BYTES + _IDS.size
        try:
            file = self._disk.open(file_name(location.file_id))
        except FileNotFoundError:
            return False
        try:
            if location.position + location.length > file.size():
                return False
            head = await file.read(location.position - RECORD_HEADER_BYTES, head_bytes)
        finally:
            file.close()
        if len(head) < head_bytes:
            return False
        kind, length, *ids = RECORD_HEADER.unpack_from(head)
        stored_ids = _IDS.unpack_from(head, RECORD_HEADER_BYTES)
        is_add = kind == RecordType.ADD and length == location.length
        return is_add and tuple(ids) == stored_ids == (ledger, entry)

    async def read_entries(
        self, ledger: int, first: int, extents: Sequence[Extent]
    ) -> list[Buffer]:
        """Read entries with consecutive ids from `first` on; neighbours in a file share one read.

        Stops before an entry that cannot be read. If the first entry cannot be read, raises the
        errors of `read_entry`.
        """
        assert extents[0].first == first
        found: list[Buffer] = []
        for run in self._runs(extents):
            try:
                await self._read_run(found, ledger, run)
            except (OSError, CorruptFormat):
                if not found:
                    raise
                return found
            if len(found) <= run[-1].last - first:
                return found
        return found

    async def _read_run(self, found: list[Buffer], ledger: int, run: Sequence[Extent]) -> None:
        """Append the entries of these extents to `found`, up to one that is not there.

        Raises the errors of `read_entry` if the first entry cannot be read.
        """
        first = run[0]
        base = first.position
        size = run[-1].end - base
        file = self.get(first.file_id)
        data: Buffer | None = file.read_now(base, size)
        if data is None:
            data = await file.read(base, size)
        if size == first.lengths[0]:
            _check(data, ledger, first.first, EntryLocation(first.file_id, base, size))
            found.append(data)
            return
        view = memoryview(data)
        bodies: list[Buffer] = []
        for extent in run:
            if _append_bodies(bodies, view, ledger, extent, base) < len(extent.lengths):
                if not bodies:
                    location = EntryLocation(first.file_id, base, first.lengths[0])
                    _check(view[: location.length], ledger, first.first, location)
                break
        # Views would keep mostly gaps in memory
        sparse = sum([extent.length for extent in run]) * 2 < size
        found += [bytes(body) for body in bodies] if sparse else bodies

    def _runs(self, extents: Sequence[Extent]) -> list[list[Extent]]:
        """Split and join extents into runs, one for each read."""
        runs: list[list[Extent]] = []
        begin = end = file_id = -1
        for extent in extents:
            for part in extent.reads(self._gap_bytes_max, _RUN_BYTES_MAX):
                position, part_end = part.position, part.end
                near = 0 <= position - end <= self._gap_bytes_max
                if near and part.file_id == file_id and part_end - begin <= _RUN_BYTES_MAX:
                    runs[-1].append(part)
                else:
                    runs.append([part])
                    begin, file_id = position, part.file_id
                end = part_end
        return runs


def _append_bodies(
    found: list[Buffer], view: memoryview, ledger: int, extent: Extent, base: int
) -> int:
    """Append the entries of an extent, up to one that is not there. Returns their number.

    `view` holds the file from `base` on.
    """
    shift = extent.anchor - base
    places = extent.offsets
    if shift > 0:
        view = view[shift:]
    elif shift < 0:
        places = [shift + offset for offset in places]
    sound = len(places)
    if places[-1] + extent.lengths[-1] > len(view) or not _has_ids(view, places, ledger, extent):
        sound = _count_sound(view, places, ledger, extent)
    ends = zip(places[:sound], extent.lengths[:sound], strict=True)
    found += [view[at : at + length] for at, length in ends]
    return sound


def _has_ids(view: memoryview, places: Sequence[int], ledger: int, extent: Extent) -> bool:
    """True if the entries of the extent begin at these places. No step of Python per entry."""
    found = map(_IDS.unpack_from, repeat(view), places)
    return all(map(eq, found, zip(repeat(ledger), count(extent.first), strict=False)))


def _count_sound(view: memoryview, places: Sequence[int], ledger: int, extent: Extent) -> int:
    """Return how many entries of the extent, from the first on, are whole and at their places."""
    for index, (at, length) in enumerate(zip(places, extent.lengths, strict=True)):
        if at + length > len(view) or _IDS.unpack_from(view, at) != (ledger, extent.first + index):
            return index
    return len(places)


def _check(body: Buffer, ledger: int, entry: int, location: EntryLocation) -> None:
    if len(body) < location.length or _IDS.unpack_from(body) != (ledger, entry):
        where = f"{file_name(location.file_id)} at {location.position}"
        raise CorruptFormat(f"{where}: not entry {entry} of ledger {ledger}")
