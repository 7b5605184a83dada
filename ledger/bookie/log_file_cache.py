"""A cache of open log files, and reads of entries from these files."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from itertools import pairwise
from struct import Struct
from typing import Final

from ledger.bookie.ledger_descriptor import EntryLocation
from ledger.core.journal_format import file_name
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

    async def read_entries(
        self, ledger: int, first: int, locations: Sequence[EntryLocation]
    ) -> list[Buffer]:
        """Read entries with consecutive ids; neighbours in a file share one read.

        Stops before an entry that cannot be read. If the first entry cannot be read, raises the
        errors of `read_entry`.
        """
        found: list[Buffer] = []
        for begin, end in self._runs(locations):
            try:
                found += await self._read_run(ledger, first + begin, locations[begin:end])
            except (OSError, CorruptFormat):
                if not found:
                    raise
                return found
        return found

    async def _read_run(
        self, ledger: int, first: int, locations: Sequence[EntryLocation]
    ) -> list[Buffer]:
        base = locations[0].position
        size = locations[-1].position + locations[-1].length - base
        file = self.get(locations[0].file_id)
        data: Buffer | None = file.read_now(base, size)
        if data is None:
            data = await file.read(base, size)
        view = memoryview(data)
        found: list[Buffer] = []
        used = sum([location.length for location in locations])
        sparse = used * 2 < size  # if True, views would keep mostly gaps in memory
        for entry, (_, position, length) in enumerate(locations, first):
            at = position - base
            body = view[at : at + length]
            if len(body) < length or _IDS.unpack_from(body) != (ledger, entry):
                if not found:
                    _check(body, ledger, entry, locations[entry - first])
                return found
            found.append(bytes(body) if sparse else body)
        return found

    def _runs(self, locations: Sequence[EntryLocation]) -> list[tuple[int, int]]:
        """Split `locations` into index ranges that one read each should cover."""
        cuts = [0]
        file_id, base, end = locations[0].file_id, locations[0].position, locations[0].position
        for index, (next_file, position, length) in enumerate(locations):
            if (
                next_file != file_id
                or not 0 <= position - end <= self._gap_bytes_max
                or (position + length - base > _RUN_BYTES_MAX and index > cuts[-1])
            ):
                cuts.append(index)
                file_id, base = next_file, position
            end = position + length
        cuts.append(len(locations))
        return list(pairwise(cuts))


def _check(body: Buffer, ledger: int, entry: int, location: EntryLocation) -> None:
    if len(body) < location.length or _IDS.unpack_from(body) != (ledger, entry):
        where = f"{file_name(location.file_id)} at {location.position}"
        raise CorruptFormat(f"{where}: not entry {entry} of ledger {ledger}")
