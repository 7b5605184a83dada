"""The data of a subscription's node when its positions lie in a log segment: `Subscription`. Pure.

Fields that this program does not know are kept. The checksum stands last, over all bytes before.
"""

from __future__ import annotations

from struct import Struct

from crc32c import crc32c
from google.protobuf.message import DecodeError

from ledger.errors import CorruptFormat
from ledger.ids import INVALID_DLSN, LedgerId
from subscriptions.committed_offset import WHOLE_STREAM, decode_dlsn, encode_dlsn
from subscriptions.records_pb2 import PastSegment
from subscriptions.records_pb2 import Subscription as SubscriptionRecord
from subscriptions.segments.segment_records import (
    SubscriptionState,
    decode_record,
    encode_native,
    native_dlsn,
)

FORMAT = 1
_CHECKSUM = Struct("<BI")
_CHECKSUM_TAG = 15 << 3 | 5
_FIRST_BYTES = (b"\x0a", b"\x10", b"\x1a")  # of fields 1 to 3


def is_log_node(data: bytes) -> bool:
    """The node holds a `Subscription`. Sealed bytes begin with 1, DistributedLog's text with A."""
    return data[:1] in _FIRST_BYTES


def decode_node(data: bytes, path: str) -> SubscriptionRecord:
    """Raises CorruptFormat. What the proposal's own programs write has no format, no checksum."""
    record = SubscriptionRecord()
    try:
        record.ParseFromString(data)
    except DecodeError as error:
        raise CorruptFormat(f"{path}: not a Subscription: {error}") from error
    if record.format > FORMAT:
        raise CorruptFormat(f"{path}: format {record.format}, this program reads {FORMAT}")
    if record.format or record.store or record.checksum or record.last_commits:
        tag, checksum = _CHECKSUM.unpack(data[-_CHECKSUM.size :].rjust(_CHECKSUM.size))
        if tag != _CHECKSUM_TAG or checksum != crc32c(data[: -_CHECKSUM.size]):
            raise CorruptFormat(f"{path}: the checksum does not match")
    return record


def encode_node(record: SubscriptionRecord, store: int) -> bytes:
    """`store` is a number of whoever writes, so that two who write the same are told apart."""
    record.format = FORMAT
    record.store = store
    record.ClearField("checksum")
    if not record.last_commit_dlsn:
        record.last_commit_dlsn = encode_dlsn(INVALID_DLSN)
    body = record.SerializeToString()
    return body + _CHECKSUM.pack(_CHECKSUM_TAG, crc32c(body))


def put_state(record: SubscriptionRecord, state: SubscriptionState, path: str) -> None:
    """The node itself holds the whole state."""
    record.ClearField("snapshot_id")
    record.ClearField("last_commits")
    bodies = state.encoded()
    native = state.records.get(WHOLE_STREAM)
    dlsn = INVALID_DLSN if native is None else native_dlsn(native, path)
    record.last_commit_dlsn = encode_dlsn(dlsn)
    if bodies != [encode_native(dlsn)]:  # else field 3 says it all, as in the proposal
        record.last_commits.extend(bodies)


def state_in_node(record: SubscriptionRecord, path: str) -> SubscriptionState:
    """What `put_state` put. Raises CorruptFormat."""
    state = SubscriptionState()
    if record.last_commit_dlsn:
        dlsn = decode_dlsn(record.last_commit_dlsn, path)
        if dlsn != INVALID_DLSN:
            state.put(WHOLE_STREAM, encode_native(dlsn))
    for body in record.last_commits:
        state.apply(decode_record(body, path))
    return state


def ledgers_named(record: SubscriptionRecord) -> set[LedgerId]:
    """Every ledger that belongs to the subscription."""
    named: set[LedgerId] = set()
    holders: list[SubscriptionRecord | PastSegment] = [record, *record.past_segments]
    for holder in holders:
        if isinstance(holder, PastSegment) or holder.HasField("segment_id"):
            named.add(LedgerId(holder.segment_id))
        if holder.HasField("snapshot_id"):
            named.add(LedgerId(holder.snapshot_id))
    return named


def expire_past(record: SubscriptionRecord, oldest_ms: int, count_max: int) -> None:
    """Past segments that were closed before are not listed any more, nor more than so many."""
    kept = [past for past in record.past_segments if past.closed_ms >= oldest_ms][-count_max:]
    if len(kept) < len(record.past_segments):
        copies = [PastSegment.FromString(past.SerializeToString()) for past in kept]
        record.ClearField("past_segments")
        record.past_segments.extend(copies)
