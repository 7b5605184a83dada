"""The log files held open for reading, and entries read from them with few calls."""

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
_RUN_BYTES_MAX: Final = 1024 * 1024  # one read over neighbours


class LogFileCache:
    """Open log files by id, the least recently used closed beyond a bound."""

    def __init__(self, disk: Disk, open_max: int, gap_bytes_max: int) -> None:
        self._disk = disk
        self._open_max = open_max
        self._gap_bytes_max = gap_bytes_max
        self._open: OrderedDict[int, LogFile] = OrderedDict()

    def get(self, file_id: int) -> LogFile:
        """The file, open until others were used often. Raises OSError, also when it is gone."""
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
        """The file is not held open."""
        file = self._open.pop(file_id, None)
        if file is not None:
            file.close()

    def close_all(self) -> None:
        while self._open:
            self._open.popitem()[1].close()

    async def read_entry(self, ledger: int, entry: int, place: EntryLocation) -> bytes:
        """The entry's bytes. Raises OSError; CorruptFormat when another entry lies there."""
        file = self.get(place.file_id)
        found = file.read_now(place.position, place.length)
        if found is None:
            found = await file.read(place.position, place.length)
        _check(found, ledger, entry, place)
        return bytes(found)

    async def read_entries(
        self, ledger: int, first: int, places: Sequence[EntryLocation]
    ) -> list[Buffer]:
        """The entries at `places`, ids rising by one; neighbours in a file share one read.

        Stops before the first that cannot be read; raises as `read_entry` if that is the first.
        """
        found: list[Buffer] = []
        for begin, end in self._runs(places):
            try:
                found += await self._read_run(ledger, first + begin, places[begin:end])
            except (OSError, CorruptFormat):
                if not found:
                    raise
                return found
        return found

    async def _read_run(
        self, ledger: int, first: int, places: Sequence[EntryLocation]
    ) -> list[Buffer]:
        base = places[0].position
        size = places[-1].position + places[-1].length - base
        file = self.get(places[0].file_id)
        data: Buffer | None = file.read_now(base, size)
        if data is None:
            data = await file.read(base, size)
        view = memoryview(data)
        found: list[Buffer] = []
        used = sum([place.length for place in places])
        sparse = used * 2 < size  # views would keep mostly gaps in memory
        for entry, (_, position, length) in enumerate(places, first):
            at = position - base
            body = view[at : at + length]
            if len(body) < length or _IDS.unpack_from(body) != (ledger, entry):
                if not found:
                    _check(body, ledger, entry, places[entry - first])
                return found
            found.append(bytes(body) if sparse else body)
        return found

    def _runs(self, places: Sequence[EntryLocation]) -> list[tuple[int, int]]:
        """Index ranges of `places` that one read each should cover."""
        cuts = [0]
        file_id, base, end = places[0].file_id, places[0].position, places[0].position
        for index, (next_file, position, length) in enumerate(places):
            if (
                next_file != file_id
                or not 0 <= position - end <= self._gap_bytes_max
                or (position + length - base > _RUN_BYTES_MAX and index > cuts[-1])
            ):
                cuts.append(index)
                file_id, base = next_file, position
            end = position + length
        cuts.append(len(places))
        return list(pairwise(cuts))


def _check(body: Buffer, ledger: int, entry: int, place: EntryLocation) -> None:
    if len(body) < place.length or _IDS.unpack_from(body) != (ledger, entry):
        where = f"{file_name(place.file_id)} at {place.position}"
        raise CorruptFormat(f"{where}: not entry {entry} of ledger {ledger}")
