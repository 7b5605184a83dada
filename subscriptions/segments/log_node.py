"""The node of a subscription whose offsets are in a log segment: a `Subscription`. Pure.

Unknown fields are kept. The checksum is the last field and covers all bytes before it.
"""

from __future__ import annotations

from struct import Struct

from google.protobuf.message import DecodeError

from ledger.crc32c import crc32c
from ledger.errors import CorruptFormat
from ledger.ids import INVALID_DLSN, LedgerId
from subscriptions.committed_offset import WHOLE_STREAM, decode_dlsn, encode_dlsn
from subscriptions.records_pb2 import PastSegment
from subscriptions.records_pb2 import Subscription as SubscriptionRecord
from subscriptions.segments.in_steps import in_steps
from subscriptions.segments.segment_records import (
    SubscriptionState,
    decode_record,
    encode_native,
    native_dlsn,
)

FORMAT, FORMAT_PENDING, FORMAT_KEYED = 1, 2, 3
"""The formats: of the first release, with records of transactions, and with notes that have keys.
The entries of a log may be compressed from the last one on.

A release would misread the records of a greater format than its own, and refuses the node.
"""
_CHECKSUM = Struct("<BI")
_CHECKSUM_TAG = 15 << 3 | 5
_FIRST_BYTES = (b"\x0a", b"\x10", b"\x1a")  # of fields 1 to 3


def is_log_node(data: bytes) -> bool:
    """True if the node holds a `Subscription`. Sealed bytes begin with 1, a DLSN's text with A."""
    return data[:1] in _FIRST_BYTES


def decode_node(data: bytes, path: str) -> SubscriptionRecord:
    """Decode a node. Nodes of the proposal's own programs have no format and no checksum.

    Raises CorruptFormat.
    """
    record = SubscriptionRecord()
    try:
        record.ParseFromString(data)
    except DecodeError as error:
        raise CorruptFormat(f"{path}: not a Subscription: {error}") from error
    if record.format > FORMAT_KEYED:
        raise CorruptFormat(f"{path}: format {record.format}, expected at most {FORMAT_KEYED}")
    if record.format or record.store or record.checksum or record.last_commits:
        tag, checksum = _CHECKSUM.unpack(data[-_CHECKSUM.size :].rjust(_CHECKSUM.size))
        if tag != _CHECKSUM_TAG or checksum != crc32c(data[: -_CHECKSUM.size]):
            raise CorruptFormat(f"{path}: the checksum does not match")
    return record


def encode_node(record: SubscriptionRecord, store: int) -> bytes:
    """Encode a node. `store` identifies the store, so that no two stores write equal bytes."""
    record.format = record.format or FORMAT
    record.store = store
    record.ClearField("checksum")
    if not record.last_commit_dlsn:
        record.last_commit_dlsn = encode_dlsn(INVALID_DLSN)
    body = record.SerializeToString()
    return body + _CHECKSUM.pack(_CHECKSUM_TAG, crc32c(body))


def put_state(record: SubscriptionRecord, state: SubscriptionState, path: str) -> None:
    """Put the whole state into the node."""
    record.ClearField("snapshot_id")
    record.ClearField("last_commits")
    bodies = state.encoded()
    native = state.records.get(WHOLE_STREAM)
    dlsn = INVALID_DLSN if native is None else native_dlsn(native, path)
    record.last_commit_dlsn = encode_dlsn(dlsn)
    if bodies != [encode_native(dlsn)]:  # else field 3 holds it all, as in the proposal
        record.last_commits.extend(bodies)


async def state_in_node(record: SubscriptionRecord, path: str) -> SubscriptionState:
    """Return the state that `put_state` put into the node. Raises CorruptFormat."""
    state = SubscriptionState()
    if record.last_commit_dlsn:
        dlsn = decode_dlsn(record.last_commit_dlsn, path)
        if dlsn != INVALID_DLSN:
            state.put(WHOLE_STREAM, encode_native(dlsn))
    async for body in in_steps(record.last_commits):
        state.apply(decode_record(body, path))
    return state


def ledgers_named(record: SubscriptionRecord) -> set[LedgerId]:
    """Return every ledger that the node names."""
    named: set[LedgerId] = set()
    holders: list[SubscriptionRecord | PastSegment] = [record, *record.past_segments]
    for holder in holders:
        if isinstance(holder, PastSegment) or holder.HasField("segment_id"):
            named.add(LedgerId(holder.segment_id))
        if holder.HasField("snapshot_id"):
            named.add(LedgerId(holder.snapshot_id))
    return named


def expire_past(record: SubscriptionRecord, oldest_ms: int, count_max: int) -> None:
    """Drop past segments closed before `oldest_ms`, and keep at most the newest `count_max`."""
    kept = [past for past in record.past_segments if past.closed_ms >= oldest_ms][-count_max:]
    if len(kept) < len(record.past_segments):
        copies = [PastSegment.FromString(past.SerializeToString()) for past in kept]
        record.ClearField("past_segments")
        record.past_segments.extend(copies)
