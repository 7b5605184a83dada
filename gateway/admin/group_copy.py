"""`gateway group copy`: carries the committed offsets of a group to a copy of its topics.

Offsets of a topic and of its copy differ where the topic has gaps: markers of transactions, aborted
records, records that compaction or retention removed. The records and their order are the same. So
the committed records behind the committed offset are counted at the source, and the new offset is
the one behind which the copy has just as many. Digests of these records, and of the last ones
before them, prove that the group goes on with the record that it would have read at the source.
"""

from __future__ import annotations

from array import array
from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from contextlib import aclosing
from hashlib import sha256
from typing import Final, NamedTuple

from gateway.admin.client import AdminClient, AdminError, Place
from gateway.admin.consume import find_topics, visible
from gateway.admin.consume_batches import DamagedBatch, Record
from gateway.admin.consume_bounds import END, START, LogRange
from gateway.admin.consume_fetch import Chunk, PartitionReader, damaged, name_of, ranges
from gateway.admin.group_seek import Scope, remembered, require_idle, within
from gateway.admin.groups import Committed, commit, committed, stable_offsets
from gateway.admin.topics import Row

OVERLAP: Final = 100
"""How many records before the committed offset are compared as well."""
_WINDOW_MIN, _WINDOW_MAX = 1_000, 1_000_000
_RETRY_S: Final = 20.0
_SIZE: Final = 4  # bytes of a length in a digest; all ones for null
_UNKNOWN: Final = "UNKNOWN_TOPIC_OR_PARTITION"
_APPENDED: Final = 1  # timestamp_type of a record whose broker chose the time


class Digest:
    """The content and the times of records, in order. Two are compared by `same`."""

    def __init__(self) -> None:
        self.count = 0
        self._content = sha256()
        self._times = sha256()
        # True once a record has the time of its broker, which is no part of what was copied.
        self._appended = False

    def add(self, record: Record) -> None:
        """Add a record behind the others."""
        self.count += 1
        self._appended = self._appended or record.timestamp_type == _APPENDED
        self._times.update(str(record.timestamp).encode() + b"\n")
        self._part(record.key)
        self._part(record.value)
        self._content.update(len(record.headers).to_bytes(_SIZE, "big"))
        for name, value in record.headers:
            self._part(name.encode())
            self._part(value)

    def _part(self, data: bytes | None) -> None:
        if data is None:
            self._content.update(b"\xff" * _SIZE)
            return
        self._content.update(len(data).to_bytes(_SIZE, "big"))
        self._content.update(data)

    def same(self, copy: Digest) -> bool:
        """Return True if `copy` has the same records.

        Times count unless the broker of the copy replaced them.
        """
        if self.count != copy.count or self._content.digest() != copy._content.digest():
            return False
        return copy._appended or self._times.digest() == copy._times.digest()


class Unread(NamedTuple):
    """One partition of the group at the source."""

    committed: Committed
    before: Sequence[Digest]  # of the last records before the committed offset, each alone
    after: Digest  # of all records from the committed offset on
    remark: str = ""


class Carried(NamedTuple):
    """The offset that one partition of the group gets at the copy."""

    place: Place
    source: Committed
    unread: int
    current: Committed | None
    offset: int
    remark: str


async def look_at_copy(client: AdminClient, group: str) -> str | None:
    """Return the id of the cluster with the copy. Raises AdminError if the group has members.

    It comes before the source is read, which may take long.
    """
    await require_idle(client, group)
    return await _cluster_id(client)


async def _cluster_id(client: AdminClient) -> str | None:
    """Return the id that the servers report; None at those that have none."""
    return getattr(await client.metadata([]), "cluster_id", None)


# the source


async def read_source(
    client: AdminClient, group: str, scope: Scope, cluster_of_copy: str | None
) -> dict[Place, Unread]:
    """Return what the group has not read, by partition. Raises AdminError."""
    servers = client.settings.bootstrap
    if cluster_of_copy is not None and await _cluster_id(client) == cluster_of_copy:
        message = f"{servers} is the cluster that the group would come to; name two clusters"
        raise AdminError(message, "SAME_CLUSTER")
    positions = await _positions(client, group, scope)
    word = next(_left_over(scope, positions), None)
    if word is not None:
        raise AdminError(f"--topic {word}: group '{group}' has no offset of it", "NO_OFFSETS")
    if not positions:
        raise AdminError(f"Group '{group}' has no offsets to copy.", "NO_OFFSETS")
    logs = await _ended_logs(client, list(positions))
    found = {
        place: await _unread(client, place, logs[place], each) for place, each in positions.items()
    }
    if await _positions(client, group, scope) != positions:
        text = f"Group '{group}' committed other offsets while its records were read; stop its "
        raise AdminError(f"{text}consumers, and run this again", "NON_EMPTY_GROUP")
    return found


def _left_over(scope: Scope, positions: Mapping[Place, Committed]) -> Iterator[str]:
    """Yield the topics and partitions that were named, and of which there is no offset."""
    known = {topic for topic, _ in positions}
    for topic, indexes in scope.topics.items():
        yield from (f"{topic}:{index}" for index in indexes if (topic, index) not in positions)
        if topic not in known:
            yield topic


async def _positions(client: AdminClient, group: str, scope: Scope) -> dict[Place, Committed]:
    """Return the offsets to copy, of a group without members.

    Raises AdminError if an open transaction has others, which it may commit later.
    """
    if not await require_idle(client, group):
        raise AdminError(
            f"Consumer group '{group}' does not exist at the source; "
            f"see `gateway group list --bootstrap {client.settings.bootstrap}`",
            "GROUP_ID_NOT_FOUND",
        )
    found, unstable = await stable_offsets(client, group)
    for place in sorted(unstable):
        if within(scope, place):
            raise AdminError(
                f"{name_of(place)}: an open transaction has another offset of group '{group}'; end "
                "it, see `gateway transaction list`, and copy the records again",
                "OPEN_TRANSACTION",
            )
    return {place: each for place, each in sorted(found.items()) if within(scope, place)}


async def _ended_logs(client: AdminClient, places: Sequence[Place]) -> dict[Place, LogRange]:
    """Return the offsets that committed readers see. Raises AdminError if a transaction is open.

    No copy has its records, nor those behind it. The whole logs come first: what is written after
    them is no sign of a transaction.
    """
    await _require_partitions(client, places, "at the source; leave it out with --topic")
    whole = await ranges(client, places, START, END, committed=False)
    logs = await ranges(client, places, START, END, committed=True)
    for place, log in logs.items():
        if whole[place].end > log.end:
            raise AdminError(
                f"{name_of(place)}: a transaction is open at offset {log.end} of the source, so "
                "records are missing in a copy; end it, see `gateway transaction list`, and copy "
                "the records again",
                "OPEN_TRANSACTION",
            )
    return logs


async def _require_partitions(client: AdminClient, places: Sequence[Place], missing: str) -> None:
    """Raise AdminError for an unknown partition, with `missing`: on which side, and what to do."""
    try:
        known = await find_topics(client, sorted({topic for topic, _ in places}))
    except AdminError as error:
        if error.code != _UNKNOWN:
            raise
        raise AdminError(f"{error}; {missing}", _UNKNOWN) from None
    for topic, index in places:
        if index not in known[topic]:
            text = f"topic '{topic}' has no partition {index}, it has {len(known[topic])}"
            raise AdminError(f"{text}; {missing}", _UNKNOWN)


async def _unread(client: AdminClient, place: Place, log: LogRange, position: Committed) -> Unread:
    name, offset = name_of(place), position.offset
    if offset > log.end:
        raise AdminError(
            f"{name}: offset {offset} is committed, but the log of the source ends at {log.end}",
            "OFFSET_OUT_OF_RANGE",
        )
    remark = ""
    if offset < log.first:
        remark = f"records {offset} to {log.first - 1} are gone at the source"
    offset = max(offset, log.first)
    begin = await _begin_of_last(client, place, log.first, offset, OVERLAP)
    before = await _each(client, place, begin, offset)
    return Unread(position, before, await _digest(client, place, offset, log.end), remark)


# the copy


async def plan_copy(
    client: AdminClient, group: str, source: Mapping[Place, Unread]
) -> list[Carried]:
    """Find the offset of each partition at the copy. Raises AdminError if a copy differs."""
    exists = await require_idle(client, group)
    current = await committed(client, group) if exists else {}
    missing = "the copy needs all partitions of the source"
    await _require_partitions(client, list(source), missing)
    logs = await ranges(client, list(source), START, END, committed=True)
    return [
        Carried(
            place,
            unread.committed,
            unread.after.count,
            current.get(place),
            await _carried(client, place, logs[place], unread),
            unread.remark,
        )
        for place, unread in source.items()
    ]


async def _carried(client: AdminClient, place: Place, log: LogRange, unread: Unread) -> int:
    name, count = name_of(place), unread.after.count
    if not log.end and (count or unread.before):
        raise AdminError(f"{name} is empty here; copy its records first", "COPY_DIFFERS")
    begin = await _begin_of_last(client, place, log.first, log.end, count)
    if not unread.after.same(await _digest(client, place, begin, log.end)):
        raise _differs(name, count)
    first = await _begin_of_last(client, place, log.first, begin, len(unread.before))
    before = await _each(client, place, first, begin)
    common = min(len(before), len(unread.before))
    of_source = unread.before[len(unread.before) - common :]
    of_copy = before[len(before) - common :]
    if not all(one.same(other) for one, other in zip(of_source, of_copy, strict=True)):
        raise _differs(name, count + common)
    if not count and not common and (unread.before or log.first < log.end):
        text = f"{name}: no record is left on both sides to compare; leave it out with --topic, "
        raise AdminError(f"{text}and move it by `gateway group seek`", "COPY_DIFFERS")
    return begin


def _differs(name: str, count: int) -> AdminError:
    return AdminError(
        f"{name}: the last {count} records here are not those of the source, so the group would "
        "miss or repeat some; copy all records once the producers of the source have ended, and "
        "run this before others write here",
        "COPY_DIFFERS",
    )


async def execute_copy(client: AdminClient, group: str, carried: Sequence[Carried]) -> None:
    """Commit the offsets, with the metadata of the source's commits. Raises AdminError."""
    await commit(
        client,
        group,
        {each.place: Committed(each.offset, metadata=_metadata(each.source)) for each in carried},
    )


def _metadata(source: Committed) -> str:
    """Return the metadata of a commit; none if they are offsets of the source, for an undo."""
    return "" if remembered(source.metadata) is not None else source.metadata


def rows(group: str, carried: Sequence[Carried]) -> list[Row]:
    """Return the rows that show these offsets."""
    return [
        {
            "group": group,
            "topic": each.place[0],
            "partition": each.place[1],
            "source_offset": each.source.offset,
            "unread": each.unread,
            "current_offset": None if each.current is None else each.current.offset,
            "new_offset": each.offset,
            "remark": each.remark or None,
        }
        for each in carried
    ]


# records


async def _begin_of_last(
    client: AdminClient, place: Place, first: int, end: int, count: int
) -> int:
    """Return the offset from which on exactly `count` records lie before `end`.

    Returns the first offset of the log if there are fewer. Holds the offsets of one window.
    """
    begin, left = end, count
    window = _WINDOW_MIN
    while left and begin > first:
        window = min(max(left, window), _WINDOW_MAX)
        start = max(first, begin - window)
        offsets = array("q")
        async for some in _records(client, place, start, begin):
            offsets.extend(each.offset for each in some)
        if len(offsets) >= left:
            return offsets[len(offsets) - left]
        left -= len(offsets)
        begin = start
        window *= 2  # few records are left of many offsets
    return begin


async def _digest(client: AdminClient, place: Place, first: int, end: int) -> Digest:
    found = Digest()
    async for some in _records(client, place, first, end):
        for record in some:
            found.add(record)
    return found


async def _each(client: AdminClient, place: Place, first: int, end: int) -> list[Digest]:
    found: list[Digest] = []
    async for some in _records(client, place, first, end):
        for record in some:
            found.append(Digest())
            found[-1].add(record)
    return found


async def _records(
    client: AdminClient, place: Place, first: int, end: int
) -> AsyncGenerator[Sequence[Record]]:
    """Yield the committed records from `first` up to, not including, `end`; some at a time."""
    wanted = {place: LogRange(first, end)}
    reader = PartitionReader(client, wanted, committed=True, follow=False, retry_s=_RETRY_S)
    async with aclosing(reader.chunks()) as chunks:
        async for chunk in chunks:
            for some in _decoded(chunk):
                yield some


def _decoded(chunk: Chunk) -> Iterator[Sequence[Record]]:
    """Yield the records that a committed reader sees. Raises AdminError for a damaged batch."""
    try:
        yield from visible(chunk, committed=True)
    except DamagedBatch as error:
        raise damaged(chunk.place, error) from None
