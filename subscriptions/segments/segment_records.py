"""A subscriber's records in a log segment, and the state that results from them. Pure.

A record is an `AdvanceLastCommitDLSN`: a committed offset, the removal of one, or the owner's note.
Beside its note an owner has notes with keys, each of which is written and removed alone.
The state keeps each offset as its record, so that fields of a newer program are not lost. A change
that does not fit into one entry marks all its records but the last with `more`. An offset with a
producer is pending until the record that ends the transaction of this producer.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple, cast
from uuid import UUID

from google.protobuf.message import DecodeError

from ledger.errors import CorruptFormat
from ledger.ids import INVALID_DLSN, Buffer, Dlsn
from ledger.streams.plain_log import PlainRecord
from subscriptions.committed_offset import (
    WHOLE_STREAM,
    CommittedOffset,
    TopicIdPartition,
    decode_dlsn,
    decode_offset,
    encode_dlsn,
)
from subscriptions.pending_offsets import PendingOffset, PendingOffsets
from subscriptions.records_pb2 import AdvanceLastCommitDLSN

MORE = b"\x68\x01"  # the fields `more` and `base`, to be appended to a record
BASE = b"\x70\x01"
_TRANSACTIONAL = ("producer_id", "producer_epoch", "commits")
_COMMIT_DLSN = b"\x0a\x19"  # field 1, 25 bytes
_NOWHERE = encode_dlsn(INVALID_DLSN)


class SegmentRecord(NamedTuple):
    """One decoded record: the offset of `key`, its removal, or a note if `key` is None.

    With a `note_key` it is the note of this key, or its removal if `note` is None.

    With a `producer_id` the offset is pending. If `commits` is not None, the record ends the
    transaction of this producer, and has no key and no note.
    """

    key: TopicIdPartition | None
    body: bytes | None  # the record without `more` and `base`; None if it removes the offset
    note: bytes | None
    more: bool
    base: bool
    producer_id: int = -1
    epoch: int = -1
    commits: bool | None = None
    note_key: str | None = None


def encode_native(dlsn: Dlsn) -> bytes:
    """Encode the position of a native subscriber, exactly as the proposal does."""
    return _COMMIT_DLSN + encode_dlsn(dlsn)


def encode_removal(key: TopicIdPartition) -> bytes:
    return AdvanceLastCommitDLSN(
        commit_dlsn=_NOWHERE,
        topic_id=key.topic_id.bytes,
        partition=key.partition,
        tombstone=True,
    ).SerializeToString()


def encode_note(note: bytes) -> bytes:
    return AdvanceLastCommitDLSN(commit_dlsn=_NOWHERE, note=note).SerializeToString()


def encode_keyed(key: str, note: bytes | None) -> bytes:
    """Encode the note of a key, or its removal if `note` is None."""
    record = AdvanceLastCommitDLSN(note_key=key, note=note, tombstone=note is None)
    return record.SerializeToString()


def encode_pending(body: bytes, producer_id: int, epoch: int) -> bytes:
    """Return the record of an offset as one that is pending in a transaction."""
    return (
        body
        + AdvanceLastCommitDLSN(producer_id=producer_id, producer_epoch=epoch).SerializeToString()
    )


def encode_end(producer_id: int, epoch: int, *, commits: bool) -> bytes:
    """Encode the end of a transaction: its pending offsets are committed, or dropped."""
    return AdvanceLastCommitDLSN(
        commit_dlsn=_NOWHERE, producer_id=producer_id, producer_epoch=epoch, commits=commits
    ).SerializeToString()


def decode_record(data: Buffer, path: str) -> SegmentRecord:
    """Decode one record. Raises CorruptFormat with the path."""
    record = AdvanceLastCommitDLSN()
    try:
        record.ParseFromString(bytes(data))
        if any(map(record.HasField, _TRANSACTIONAL)):
            return _decode_transactional(record)
        if record.HasField("note_key"):
            return _decode_keyed(record)
        if record.HasField("note"):
            return SegmentRecord(None, None, record.note, record.more, record.base)
        key = WHOLE_STREAM
        if record.topic_id:
            key = TopicIdPartition(UUID(bytes=record.topic_id), record.partition)
    except (DecodeError, ValueError) as error:
        raise CorruptFormat(f"{path}: {error}") from error
    if record.tombstone:
        return SegmentRecord(key, None, None, record.more, record.base)
    if record.more or record.base:
        more, base = record.more, record.base
        record.ClearField("more")
        record.ClearField("base")
        return SegmentRecord(key, record.SerializeToString(), None, more, base)
    return SegmentRecord(key, bytes(data), None, False, False)


def _decode_keyed(record: AdvanceLastCommitDLSN) -> SegmentRecord:
    """Decode the note of a key, or its removal. Raises ValueError."""
    if record.tombstone == record.HasField("note") or record.topic_id:
        raise ValueError("a note of a key must be there, or be removed")
    note = None if record.tombstone else record.note
    return SegmentRecord(None, None, note, record.more, record.base, note_key=record.note_key)


def _decode_transactional(record: AdvanceLastCommitDLSN) -> SegmentRecord:
    """Decode a pending offset or the end of a transaction. Raises ValueError."""
    more, base = record.more, record.base
    producer = record.producer_id, record.producer_epoch
    named = record.HasField("producer_id") and record.HasField("producer_epoch")
    if not named or min(producer) < 0:
        raise ValueError("a record of a transaction without its producer")
    if record.tombstone or record.HasField("note"):
        raise ValueError("a record of a transaction that removes an offset, or has a note")
    if record.HasField("commits"):
        if record.topic_id:
            raise ValueError("the end of a transaction with an offset")
        return SegmentRecord(None, None, None, more, base, *producer, record.commits)
    for field in ("more", "base", "producer_id", "producer_epoch"):
        record.ClearField(field)
    key = TopicIdPartition(UUID(bytes=record.topic_id), record.partition)
    return SegmentRecord(key, record.SerializeToString(), None, more, base, *producer)


def decode_committed(key: TopicIdPartition, body: bytes, path: str) -> CommittedOffset:
    """Decode the committed offset in a record's body. Raises CorruptFormat."""
    if key != WHOLE_STREAM:
        return decode_offset(body, path)
    return CommittedOffset(native_dlsn(body, path))


def native_dlsn(body: bytes, path: str) -> Dlsn:
    """Decode field 1 of a record. Raises CorruptFormat."""
    record = AdvanceLastCommitDLSN()
    try:
        record.ParseFromString(body)
    except DecodeError as error:
        raise CorruptFormat(f"{path}: {error}") from error
    return decode_dlsn(record.commit_dlsn, path)


def complete(records: Iterable[SegmentRecord]) -> Iterator[SegmentRecord]:
    """Yield the records of complete changes, without a last one that a crash interrupted."""
    waiting: list[SegmentRecord] = []
    for record in records:
        waiting.append(record)
        if not record.more:
            yield from waiting
            waiting.clear()


class CarriedSegment(NamedTuple):
    """The replacement of a closed segment: the state at its beginning, then its changes."""

    records: list[PlainRecord]  # of the copy: the state, marked as base, then the changes
    begin: SubscriptionState
    end: SubscriptionState  # after all changes
    transactional: bool  # some of them belong to a transaction


def carried(
    stored: Sequence[PlainRecord], decoded: Sequence[SegmentRecord], oldest_ms: int
) -> CarriedSegment:
    """Return the records of a closed segment for a copy that replaces it.

    `decoded` are the same records, decoded. Changes before `oldest_ms` become part of the state at
    the beginning, and so does no part of a change. A last change that a crash interrupted is left
    out.
    """
    ends = [number for number, record in enumerate(decoded, 1) if not record.more]
    old = [end for end in ends if stored[end - 1].time_ms < oldest_ms]
    first = old[-1] if old else 0
    stop = ends[-1] if ends else 0
    while first < stop and decoded[first].base:
        first += 1
    begin, end = SubscriptionState(), SubscriptionState()
    for record in decoded[:first]:
        begin.apply(record)
    for record in decoded[:stop]:
        end.apply(record)
    since_ms = stored[first - 1].time_ms if first else 0
    copied = [PlainRecord(since_ms, memoryview(body + BASE)) for body in begin.encoded()]
    transactional = any(record.producer_id >= 0 for record in decoded[first:stop])
    return CarriedSegment([*copied, *stored[first:stop]], begin, end, transactional)


class DecodedOffsets(Mapping[TopicIdPartition, CommittedOffset]):
    """The committed offsets of a state, decoded when they are read. The state owns them, encoded.

    A live view: it contains every change that is applied to the state.
    """

    __slots__ = ("_path", "_records")

    def __init__(self, records: Mapping[TopicIdPartition, bytes], path: str) -> None:
        """`records` were checked. An error names `path`."""
        self._records = records
        self._path = path

    def __getitem__(self, key: TopicIdPartition) -> CommittedOffset:
        return decode_committed(key, self._records[key], self._path)

    def __contains__(self, key: object) -> bool:
        return key in self._records

    def __iter__(self) -> Iterator[TopicIdPartition]:
        return iter(self._records)

    def __len__(self) -> int:
        return len(self._records)

    def copy(self) -> DecodedOffsets:
        """Return the offsets of now, which do not change. None is decoded by this."""
        return DecodedOffsets(dict(self._records), self._path)


def _pending_record(each: PendingOffset) -> bytes:
    return encode_pending(each.body, each.producer_id, each.epoch)


class SubscriptionState:
    """The offsets and the notes of one subscriber after a sequence of records."""

    __slots__ = ("keyed", "note", "pending", "records")

    def __init__(self) -> None:
        # The encoded record of each committed offset. A removal deletes its key.
        self.records: dict[TopicIdPartition, bytes] = {}
        # The last note, b"" before the first one.
        self.note = b""
        # The last note of each key. A removal deletes its key.
        self.keyed: dict[str, bytes] = {}
        # The offsets of open transactions. Nothing of them is in `records`.
        self.pending = PendingOffsets()

    def same(self, other: SubscriptionState) -> bool:
        """Return whether every further change has the same effect on both states."""
        return (
            self.records == other.records
            and self.note == other.note
            and self.keyed == other.keyed
            and [each._replace(number=0) for each in self.pending.all()]
            == [each._replace(number=0) for each in other.pending.all()]
        )

    def apply(self, record: SegmentRecord) -> None:
        if record.commits is not None:
            self.end(record.producer_id, commits=record.commits)
        elif record.producer_id >= 0:
            assert record.key is not None and record.body is not None
            self.pending.put(record.producer_id, record.epoch, record.key, record.body)
        elif record.note_key is not None:
            self.put_keyed(record.note_key, record.note)
        elif record.key is None:
            self.note = record.note or b""
        else:
            self.put(record.key, record.body)

    def put_keyed(self, key: str, note: bytes | None) -> None:
        """Replace the note of a key. None removes it."""
        self.keyed.pop(key, None)
        if note is not None:
            self.keyed[key] = note

    def put(self, key: TopicIdPartition, body: bytes | None) -> None:
        if body is None:
            self.records.pop(key, None)
            self.pending.remove(key)
        else:
            self.records[key] = body
            self.pending.overtake(key)

    def end(self, producer_id: int, *, commits: bool) -> list[tuple[TopicIdPartition, bytes]]:
        """End the transaction of a producer. Return the offsets that it has committed."""
        ended = self.pending.end(producer_id)
        if not commits:
            return []
        for each in ended:
            self.records[each.key] = each.body
            self.pending.overtake(each.key, each.number)
        return [(each.key, each.body) for each in ended]

    def update(self, keys: Iterable[TopicIdPartition], bodies: Sequence[bytes | None]) -> None:
        """Put each body under its key."""
        if None in bodies or self.pending:
            for key, body in zip(keys, bodies, strict=True):
                self.put(key, body)
        else:
            self.records.update(zip(keys, cast("Sequence[bytes]", bodies), strict=True))

    def encoded(self) -> list[bytes]:
        """Return records that, applied to an empty state, result in this one."""
        bodies = list(self.records.values())
        if self.pending:  # those that were overtaken go first, so that they are overtaken again
            every = self.pending.all()
            bodies = [
                *(_pending_record(each) for each in every if each.overtaken),
                *bodies,
                *(_pending_record(each) for each in every if not each.overtaken),
            ]
        if self.note:
            bodies.append(encode_note(self.note))
        bodies += [encode_keyed(key, note) for key, note in self.keyed.items()]
        return bodies
