"""The cleaning of a log record by record: slow, and what the cleaner must return too."""

from __future__ import annotations

from hashlib import blake2b
from typing import NamedTuple

from gateway.core import cleaned_batches
from gateway.core.cleaned_batches import _PLAIN_BYTES_MAX, DELETE_HORIZON, _compressed, horizon_of
from gateway.core.cleaning_keys import KEY_BYTES
from gateway.core.cleaning_results import (
    COUNT_MAX,
    NOT_FULL,
    CleanedBatch,
    PoisonedBatch,
    SegmentEnd,
)
from gateway.core.cleaning_transactions import CleanedTransactions
from gateway.wire import batches
from gateway.wire.batches import BatchRefused
from gateway.wire.decompress import decompress
from gateway.wire.record_parts import record_parts, with_timestamp_delta, wrapped
from gateway.wire.record_walk import BadRecord

_HELD_MAX = 5_000
_DIGEST_BYTES = 16


class Parts:
    """Records of a batch, which can be read more than once."""

    __slots__ = ("_held", "_source")

    def __init__(self, source, count):
        """`count` is not less than the number of records that `source` yields."""
        self._source = source
        self._held = list(source()) if count <= _HELD_MAX else None

    def __iter__(self):
        return self._source() if self._held is None else iter(self._held)


class Decision(NamedTuple):
    """The records of a batch that stay."""

    kept: Parts
    size: int  # how many they are
    tombstones: bool  # True if one of them is a tombstone


def plain_records(batch, header):
    """Return the records of a batch as bytes, and where each of them lies.

    Raises BatchRefused, and BadRecord, perhaps while the records are read.
    """
    codec = header.attributes & batches.CODEC_MASK
    data = bytes(batch[batches.HEADER_BYTES :])
    if codec:
        data = decompress(codec, data, _PLAIN_BYTES_MAX)
    return data, Parts(lambda: record_parts(data, 0, header.records), header.records)


def decide(
    parts,
    header,
    is_newest,
    *,
    deletes,
):
    """Choose the records that stay: the newest of each key, without tombstones if `deletes`.

    A record without a key never stays, as in Kafka: nothing could ever replace it.
    """

    def chosen():
        base_offset = header.base_offset
        for part in parts:
            if part.key is None or not is_newest(part.key, base_offset + part.offset):
                continue
            if not (deletes and part.tombstone):
                yield part

    kept = Parts(chosen, header.records)
    count, tombstones = 0, False
    for part in kept:
        count += 1
        tombstones |= part.tombstone
    return Decision(kept, count, tombstones)


def rewritten(header, data, kept, horizon_ms):
    """Return the batch with only the `kept` of its records, and perhaps a new delete horizon.

    Its base offset and last offset stay, so that it covers the same offsets and sequences. Raises
    BatchRefused if it is too large to be stored: other codecs and levels compress less.
    """
    moved = None if horizon_ms is None else header.base_timestamp - horizon_ms
    records = bytearray()
    count, greatest = 0, -(2**63)
    for part in kept:
        if moved is None:
            records += data[part.start : part.end]
        else:
            records += with_timestamp_delta(data, part, part.timestamp + moved)
        count += 1
        greatest = max(greatest, wrapped(header.base_timestamp + part.timestamp))
    timestamp_max = header.max_timestamp
    if not header.attributes & batches.LOG_APPEND_TIME:
        timestamp_max = greatest
    changed = header._replace(max_timestamp=timestamp_max, records=count)
    if horizon_ms is not None:
        changed = changed._replace(
            attributes=header.attributes | DELETE_HORIZON, base_timestamp=horizon_ms
        )
    return _compressed(changed, bytes(records))


class _Segment:
    """The segment that is read, with the findings in it."""

    __slots__ = (
        "aborted",
        "changed",
        "end",
        "kept",
        "leader_epoch",
        "next_offset",
        "read",
        "start",
    )

    def __init__(self, start, end):
        self.start, self.end = start, end
        # The aborted transactions of which a batch was read in the segment, by first offset.
        self.aborted = {}
        self.next_offset = start  # the first one that no returned batch covers
        self.leader_epoch = -1  # of the batch that was read last
        self.changed = False
        self.read = self.kept = 0


class SlowCleaning:
    """The state of the cleaner process: one log at a time."""

    def __init__(self):
        self._keys = SlowKeyMap(0)
        self._from_offset = 0  # records below it are not put into the map
        self._transactions = CleanedTransactions()
        self._segment = _Segment(0, 0)
        self._now_ms = self._retention_ms = 0
        self._found: list[CleanedBatch] = []  # the result of the running `filter_batches`
        # A bit for each offset of one segment: a later record of it has the same key. Only while
        # a segment with more keys than the map holds is cleaned.
        self._outdated: tuple[int, bytearray] | None = None

    # -- pass 1 -------------------------------------------------------------------------------

    def begin_map(self, bytes_max, from_offset):
        """Begin an empty map, of the records from `from_offset` on."""
        self._keys = SlowKeyMap(bytes_max)
        self._from_offset = from_offset
        self._transactions = CleanedTransactions()

    def begin_segment(self, start, end, aborted):
        """Begin to read a segment, of which `aborted` are the transactions that overlap it."""
        self._segment = _Segment(start, end)
        self._transactions.add(aborted)

    def map_batches(self, data):
        """Put the keys of batches into the map.

        Returns the offset of the first record for which there was no room, or NOT_FULL. Raises
        PoisonedBatch.
        """
        return self._each(data, self._map)

    def _map(self, batch, header):
        if not self._is_live(batch, header):
            return NOT_FULL
        _, parts = plain_records(batch, header)
        put, base, first = self._keys.put, header.base_offset, self._from_offset
        for part in parts:
            offset = base + part.offset
            if part.key is not None and offset >= first and not put(part.key, offset):
                return offset
        return NOT_FULL

    def _is_live(self, batch, header):
        """Return True for records of clients that were not aborted."""
        if header.attributes & batches.CONTROL:
            self._has_no_records(batch, header)
            return False
        if not header.records:  # an earlier cleaning left it
            return False
        if not header.attributes & batches.TRANSACTIONAL:
            return True
        last = header.base_offset + header.last_offset_delta
        aborted = self._transactions.aborted_with(header.producer_id, last)
        if aborted is None:
            return True
        self._segment.aborted[aborted.first_offset] = aborted
        return False

    def _has_no_records(self, batch, header):
        """Read a marker. Return True if no record of its transaction was read before it."""
        if not header.records:
            return True
        _, parts = plain_records(batch, header)
        commit = cleaned_batches.is_commit(next(iter(parts)))
        return self._transactions.end(header.producer_id, header.base_offset, commit=commit)

    # -- a segment with more keys than the map holds ---------------------------------------------

    def begin_marks(self, start, end):
        """Begin to mark outdated records of a segment. Earlier marks of the same segment stay."""
        if self._outdated is None or self._outdated[0] != start:
            self._outdated = start, bytearray((end - start + 7) // 8)

    def mark_batches(self, data):
        """Mark the records that the map shows to be outdated. Raises PoisonedBatch."""
        assert self._outdated is not None
        self._each(data, self._mark)

    def _mark(self, batch, header):
        assert self._outdated is not None
        start, bits = self._outdated
        newest = self._keys.newest
        if header.attributes & batches.CONTROL or not header.records:
            return NOT_FULL
        for part in plain_records(batch, header)[1]:
            at = header.base_offset + part.offset - start
            if part.key is not None and newest(part.key) > start + at:
                bits[at >> 3] |= 1 << (at & 7)
        return NOT_FULL

    def drop_marks(self):
        """Forget the marks: the segment was rewritten, or is read by another owner."""
        self._outdated = None

    def _is_newest(self, key, offset):
        if self._outdated is not None:
            at = offset - self._outdated[0]
            bits = self._outdated[1]
            if 0 <= at < 8 * len(bits) and bits[at >> 3] >> (at & 7) & 1:
                return False
        return offset >= self._keys.newest(key)

    # -- pass 2 -------------------------------------------------------------------------------

    def begin_filter(self, now_ms, delete_retention_ms):
        """Begin to rewrite the log, from its beginning."""
        self._now_ms, self._retention_ms = now_ms, delete_retention_ms
        self._transactions = CleanedTransactions()

    def filter_batches(self, data):
        """Return the next batches of the segment that stay. Raises PoisonedBatch."""
        self._found = []
        self._each(data, self._filter)
        return self._found

    def _filter(self, batch, header):
        segment, found = self._segment, self._found
        segment.leader_epoch = header.leader_epoch
        segment.read += header.records
        end = header.base_offset + header.last_offset_delta + 1
        if not segment.next_offset <= header.base_offset < end <= segment.end:
            due = f"offsets from {segment.next_offset} to {segment.end} are due"
            raise PoisonedBatch(header.base_offset, f"it ends at {end}, where {due}")
        if header.attributes & batches.CONTROL:
            kept = self._filter_marker(batch, header)
        else:
            kept = self._filter_records(batch, header)
        if kept is not batch and header.records:
            segment.changed = True
        if kept is None:
            return NOT_FULL
        after = batches.read_header(kept)
        segment.kept += after.records
        self._cover(header.base_offset, end, found)
        count = end - segment.next_offset
        found.append(CleanedBatch(count, after.max_timestamp, bytes(kept)))
        segment.next_offset = end
        return NOT_FULL

    def _filter_records(self, batch, header):
        if not self._is_live(batch, header):
            return None
        data, parts = plain_records(batch, header)
        horizon = horizon_of(header)
        deletes = horizon is not None and horizon <= self._now_ms
        kept, count, tombstones = decide(parts, header, self._is_newest, deletes=deletes)
        if not count:
            return None
        begins_horizon = tombstones and horizon is None
        if count == header.records and not begins_horizon:
            return batch
        return rewritten(header, data, kept, self._horizon() if begins_horizon else None)

    def _filter_marker(self, batch, header):
        if not self._has_no_records(batch, header):
            return batch
        if not header.records:
            return None
        horizon = horizon_of(header)
        if horizon is None:
            data, parts = plain_records(batch, header)
            return rewritten(header, data, parts, self._horizon())
        return None if horizon <= self._now_ms else batch

    def _horizon(self):
        """Return the time from which a tombstone or marker that is met now may go."""
        return min(self._now_ms + self._retention_ms, 2**63 - 1)

    def _cover(self, base_offset, end, found):
        """Cover missing offsets before a batch, as far as its own record cannot cover them."""
        segment = self._segment
        while end - segment.next_offset > COUNT_MAX:
            self._cover_some(min(base_offset - segment.next_offset, COUNT_MAX), found)

    def _cover_some(self, count, found):
        segment = self._segment
        data = cleaned_batches.empty_batch(segment.next_offset, count, segment.leader_epoch)
        found.append(CleanedBatch(count, -1, data))
        segment.next_offset += count

    def end_segment(self):
        """Return the batches that cover the missing offsets at the end of the segment.

        A gap lies before a batch, never behind one: a reader that asks for the offset behind a
        batch would get that batch again and again. The aborted transactions are for readers that
        still have records of the old ledger.
        """
        segment = self._segment
        found: list[CleanedBatch] = []
        while segment.next_offset < segment.end:
            self._cover_some(min(segment.end - segment.next_offset, COUNT_MAX), found)
        aborted = list(segment.aborted.values())
        return SegmentEnd(found, aborted, segment.changed, segment.read, segment.kept)

    def _each(self, data, work):
        """Pass each batch to `work`, until it returns an offset, which is returned.

        Raises PoisonedBatch, with the offset of the batch that cannot be read.
        """
        at = self._segment.next_offset
        try:
            for batch in cleaned_batches.split(data):
                at = batches.PREFIX.unpack_from(batch)[0]
                full = work(batch, cleaned_batches.checked_header(batch))
                if full != NOT_FULL:
                    return full
        except (BatchRefused, BadRecord) as refused:
            raise PoisonedBatch(at, str(refused)) from None
        except PoisonedBatch:
            raise
        except Exception as error:  # a later attempt would fail too, as in Kafka
            raise PoisonedBatch(at, f"{type(error).__name__}: {error}") from error
        return NOT_FULL


class SlowKeyMap:
    """The newest offset of each key that was put. It never has more than `keys_max` keys."""

    __slots__ = ("_offsets", "keys_max")

    def __init__(self, bytes_max):
        # At least one key fits, so that each round makes some progress.
        self.keys_max = max(1, bytes_max // KEY_BYTES)
        self._offsets: dict[bytes, int] = {}

    def __len__(self):
        return len(self._offsets)

    def put(self, key, offset):
        """Note that `key` is at `offset`, which rises from call to call.

        Returns False, and notes nothing, if the key is new and the map is full.
        """
        if len(key) >= _DIGEST_BYTES:
            key = _digest(key)
        if key not in self._offsets and len(self._offsets) >= self.keys_max:
            return False
        self._offsets[key] = offset
        return True

    def newest(self, key):
        """Return the newest offset of the key, or -1 if it was not put."""
        if len(key) >= _DIGEST_BYTES:
            key = _digest(key)
        return self._offsets.get(key, -1)


def _digest(key):
    """Return 16 bytes: no key that is kept as it is has this length."""
    return blake2b(key, digest_size=_DIGEST_BYTES).digest()
