"""The ids of one partition of the transaction log, as its stream snapshots and replays them.

Each id has the value of its newest durable record. At most one batch of the coordinator is under
way; a snapshot that the writer takes behind this batch contains it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from struct import Struct
from struct import error as StructError

from gateway.core.transaction_log import decode_key, decode_value, encode_key
from gateway.core.transaction_states import TransactionMetadata
from gateway.wire import batches
from gateway.wire.own_batches import decode_batch
from ledger.errors import CorruptFormat

_HEAD = Struct(">4sBI")  # magic, version, number of ids
_MAGIC = b"TXNS"  # its first byte is no version of another owner's state
_VERSION = 1
_LENGTHS = Struct(">HI")  # of key and value
_STEP_IDS = 500
# Memory of one id beside its key and value: the entries of the tables, the core's objects.
_ID_BYTES = 1_500
_PLAIN_VALUE_BYTES = 60  # a value without partitions
_PARTITION_VALUE_BYTES = 4  # of one partition in a value
PARTITION_BYTES = 160
"""Estimate of the memory that one partition of a transaction takes."""


class TransactionMap:
    """The `OwnerState` of one partition of the transaction log."""

    def __init__(self, name: str) -> None:
        self._name = name  # for errors
        # The newest durable value of each id, as snapshots store it: 50,000 of them are encoded in
        # one turn of the loop. A deleted id has no entry.
        self._entries: dict[str, bytes] = {}
        # Where the durable records end.
        self._end = 0
        # The records of the batch under way, with None for a deleted id. Empty if there is none.
        self._writing: Mapping[str, bytes | None] = {}
        # Estimate of the memory that the durable ids take, here and in the core.
        self.memory_bytes = 0

    @property
    def names(self) -> list[str]:
        return list(self._entries)

    def decoded(self) -> Iterator[TransactionMetadata]:
        """Yield the durable state of each id. Raises CorruptFormat for a damaged record.

        The ids must not change meanwhile.
        """
        for transactional_id, entry in self._entries.items():
            try:
                yield decode_value(transactional_id, _value_of(entry))
            except CorruptFormat as error:
                raise CorruptFormat(f"{self._name}: {error}") from error

    def value(self, transactional_id: str) -> bytes:
        """Return the durable value of an id that has one."""
        return _value_of(self._entries[transactional_id])

    # -- writing ------------------------------------------------------------------------------

    def begin(self, end: int) -> None:
        """Take over the log, whose durable records end at `end`."""
        self._end, self._writing = end, {}

    def write(self, records: Mapping[str, bytes | None]) -> None:
        """Note that these records are appended in one batch, behind all durable ones."""
        assert not self._writing
        self._writing = records

    def on_written(self) -> None:
        """Take over the records of the batch under way, which is durable."""
        self._end += len(self._writing)
        for transactional_id, value in self._writing.items():
            self._set(transactional_id, value)
        self._writing = {}

    def on_failed(self) -> None:
        """Drop the batch under way. If the log has it, the next load finds it."""
        self._writing = {}

    def _set(self, transactional_id: str, value: bytes | None) -> None:
        before = self._entries.get(transactional_id)
        if before is not None:
            self.memory_bytes -= memory_of(transactional_id, _value_of(before))
        if value is None:
            self._entries.pop(transactional_id, None)
        else:
            self._entries[transactional_id] = _entry(transactional_id, value)
            self.memory_bytes += memory_of(transactional_id, value)

    # -- OwnerState ---------------------------------------------------------------------------

    def encode(self, end_sequence_id: int) -> bytes:
        """See `OwnerState`. Contains the batch under way if it lies below the end."""
        writing: Mapping[str, bytes | None] = {}
        if self._writing and end_sequence_id >= self._end + len(self._writing):
            writing = self._writing
        kept: Iterable[bytes] = self._entries.values()
        if writing:
            kept = (entry for name, entry in self._entries.items() if name not in writing)
        written = (_entry(name, value) for name, value in writing.items() if value is not None)
        parts = [b"", *kept, *written]
        parts[0] = _HEAD.pack(_MAGIC, _VERSION, len(parts) - 1)
        return b"".join(parts)

    def load(self, data: bytes) -> Iterator[None]:
        """See `OwnerState`. Raises CorruptFormat."""
        self._entries, self._writing = {}, {}
        self.memory_bytes = 0
        if not data:
            return
        try:
            magic, version, count = _HEAD.unpack_from(data)
            if magic != _MAGIC or version != _VERSION:
                raise CorruptFormat(f"{self._name}: the snapshot is not one of transactions")
            at = _HEAD.size
            for number in range(1, count + 1):
                at = self._load_one(data, at)
                if number % _STEP_IDS == 0:
                    yield
        except StructError as error:
            raise CorruptFormat(f"{self._name}: the snapshot is truncated") from error
        if at != len(data):
            raise CorruptFormat(f"{self._name}: bytes follow the last id of the snapshot")

    def _load_one(self, data: bytes, at: int) -> int:
        key_bytes, value_bytes = _LENGTHS.unpack_from(data, at)
        key_at = at + _LENGTHS.size
        end = key_at + key_bytes + value_bytes
        if end > len(data):
            raise CorruptFormat(f"{self._name}: the snapshot is truncated")
        key = data[key_at : key_at + key_bytes]
        self._set(decode_key(key), data[key_at + key_bytes : end])
        return end

    def replay(self, sequence_id: int, data: memoryview) -> None:
        """See `OwnerState`. Raises CorruptFormat."""
        header = batches.read_header(data)
        self._end = sequence_id + header.records
        if header.attributes & batches.CONTROL:
            return
        for key, value in decode_batch(data, self._name):
            self._set(decode_key(key), value)

    def pass_loss(self, first: int, last: int) -> None:
        """See `OwnerState`. An operator accepted the loss: the ids stay as they were before."""
        self._end = last + 1

    def timestamp_max(self, data: memoryview) -> int:
        return batches.timestamp_max(data)


def _entry(transactional_id: str, value: bytes) -> bytes:
    """Return an id and its value as a snapshot stores them."""
    key = encode_key(transactional_id)
    return _LENGTHS.pack(len(key), len(value)) + key + value


def _value_of(entry: bytes) -> bytes:
    return entry[_LENGTHS.size + _LENGTHS.unpack_from(entry)[0] :]


def memory_of(transactional_id: str, value: bytes) -> int:
    """Return an estimate of the memory that an id takes."""
    partitions = max(0, len(value) - _PLAIN_VALUE_BYTES) // _PARTITION_VALUE_BYTES
    return _ID_BYTES + 3 * len(transactional_id) + len(value) + PARTITION_BYTES * partitions
