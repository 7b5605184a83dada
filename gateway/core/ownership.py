"""The owners of the partitions of one topic, as one node of the metadata store holds them.

    "OW", format, u32 CRC-32C of the rest, u32 partitions, u16 holders
    holder:     i32 node id, u8 length, token          (the first one means "no owner")
    partitions: u16 holder each, then i32 leader epoch each
    negative:   not open. -1: no owner has ever opened it; -2 - e: the last epoch is e; -2**31: the
                last epoch is unknown. Format 1 has -1 in all these cases

Format 2 is written in clusters of form 1 and later (see `gateway.process.cluster_layout`).

A holder is one incarnation of a broker. A holder whose token belongs to no live broker owns
nothing, whatever the node contains. Values are immutable, so each change creates a new value.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Mapping, Sequence
from struct import error as StructError
from struct import pack, unpack_from
from typing import Final, NamedTuple

from ledger.crc32c import crc32c
from ledger.errors import CorruptFormat

FORMAT_1, FORMAT_2 = 1, 2
PARTITIONS_MAX = 100_000  # 600 kB when encoded; a node may hold almost 1 MiB
_MAGIC = b"OW"
_HEAD = ">2sBI"
_HEAD_BYTES = 7
_COUNTS = ">IH"
_NEVER_OPEN = -1
_UNKNOWN = -(2**31)


class Incarnation(NamedTuple):
    """One broker from its registration until its session ends."""

    node_id: int
    token: str


NOBODY: Final = Incarnation(-1, "")


class Owners:
    """The owner and the leader epoch of each partition of a topic.

    The last epoch of a partition stays known while a new owner opens it.
    """

    __slots__ = ("_epochs", "_holders", "_slots")

    def __init__(self) -> None:
        """Create the owners of a topic without partitions."""
        self._holders: tuple[Incarnation, ...] = (NOBODY,)
        self._slots: array[int] = array("H")  # for each partition, an index into the holders
        self._epochs: array[int] = array("i")

    def __len__(self) -> int:
        return len(self._slots)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Owners) or self._epochs != other._epochs:
            return False
        return self.rows() == other.rows()

    @property
    def holders(self) -> Sequence[Incarnation]:
        """Return the holders in the node, including `NOBODY`."""
        return self._holders

    def rows(self) -> list[tuple[Incarnation, int]]:
        """Return (owner, epoch) of each partition."""
        holders = self._holders
        return [
            (holders[slot], max(epoch, -1))
            for slot, epoch in zip(self._slots, self._epochs, strict=True)
        ]

    def owner(self, partition: int) -> Incarnation:
        """Return the owner, or `NOBODY` if the partition is free or not in the node yet."""
        slots = self._slots
        return self._holders[slots[partition]] if 0 <= partition < len(slots) else NOBODY

    def epoch(self, partition: int) -> int:
        """Return the epoch, or -1 if there is no owner or the owner has not opened the stream."""
        return max(self._epochs[partition], -1) if 0 <= partition < len(self._epochs) else -1

    def last_epoch(self, partition: int, first: int) -> int:
        """Return the epoch of the owner, or that of the last owner that had opened the stream.

        Returns `first` if there was none, and -1 if it is unknown.
        """
        if not 0 <= partition < len(self._epochs):
            return first
        stored = self._epochs[partition]
        if stored >= 0:
            return stored
        if stored == _UNKNOWN:
            return -1
        return first if stored == _NEVER_OPEN else -2 - stored

    def remembering(self, earlier: Owners) -> Owners:
        """Return these owners, with last epochs that only `earlier` content of the node has."""
        if _UNKNOWN not in self._epochs:
            return self
        new = Owners()
        new._holders, new._slots, new._epochs = self._holders, self._slots, self._epochs[:]
        for partition, before in enumerate(earlier._epochs[: len(new._epochs)]):
            if new._epochs[partition] == _UNKNOWN:
                new._epochs[partition] = _closed(before)
        return new

    def owned_by(self, who: Incarnation) -> list[int]:
        """Return the partitions of this owner, in order."""
        if who not in self._holders:
            return []
        wanted = self._holders.index(who)
        return [partition for partition, slot in enumerate(self._slots) if slot == wanted]

    def free(self, partitions: int, gone: Callable[[Incarnation], bool]) -> list[int]:
        """Return the partitions below `partitions` that have no owner or a `gone` owner."""
        lost = {
            slot for slot, holder in enumerate(self._holders) if holder == NOBODY or gone(holder)
        }
        slots = self._slots
        missing = range(len(slots), partitions)
        if not any(slot in slots for slot in lost):
            return list(missing)
        known = slots if len(slots) <= partitions else slots[:partitions]
        return [partition for partition, slot in enumerate(known) if slot in lost] + list(missing)

    def changed(
        self, owners: Mapping[int, Incarnation], epochs: Mapping[int, int] | None = None
    ) -> Owners:
        """Return a copy with new owners, which have not opened their partitions, and new epochs.

        Partitions that are not in the node yet have no owner unless one is given.
        """
        assert not owners or 0 <= min(owners) <= max(owners) < PARTITIONS_MAX
        new = Owners()
        slots, known = self._slots[:], self._epochs[:]
        missing = max(owners, default=-1) + 1 - len(slots)
        if missing > 0:
            slots.extend([0] * missing)
            known.extend([_NEVER_OPEN] * missing)
        at = {holder: slot for slot, holder in enumerate(self._holders)}
        for partition, owner in owners.items():
            slots[partition] = at.setdefault(owner, len(at))
            known[partition] = _closed(known[partition])
        for partition, epoch in (epochs or {}).items():
            known[partition] = epoch
        new._holders, new._slots = _without_unused(tuple(at), slots)
        new._epochs = known
        return new

    def encode(self, form: int = FORMAT_2) -> bytes:
        epochs = self._epochs
        if form == FORMAT_1:
            epochs = [max(epoch, -1) for epoch in epochs]
        named = b"".join(
            pack(">iB", node_id, len(token)) + token.encode()
            for node_id, token in self._holders[1:]
        )
        count = len(self._slots)
        body = b"".join(
            (
                pack(_COUNTS, count, len(self._holders) - 1),
                named,
                pack(f">{count}H{count}i", *self._slots, *epochs),
            )
        )
        return pack(_HEAD, _MAGIC, form, crc32c(body)) + body

    @classmethod
    def decode(cls, data: bytes, path: str) -> Owners:
        """Decode the bytes of `encode`. Raises CorruptFormat, naming `path`."""
        if len(data) < _HEAD_BYTES or data[:2] != _MAGIC:
            raise CorruptFormat(f"{path}: {len(data)} bytes that name no owners")
        _, form, checksum = unpack_from(_HEAD, data)
        if form not in (FORMAT_1, FORMAT_2):
            raise CorruptFormat(f"{path}: format {form}; this version reads 1 and {FORMAT_2}")
        if crc32c(memoryview(data)[_HEAD_BYTES:]) != checksum:
            raise CorruptFormat(f"{path}: the checksum does not match")
        try:
            return cls._decode_body(data, form)
        except (StructError, ValueError) as error:
            raise CorruptFormat(f"{path}: {error!r}") from error

    @classmethod
    def _decode_body(cls, data: bytes, form: int) -> Owners:
        count, named = unpack_from(_COUNTS, data, _HEAD_BYTES)
        at = _HEAD_BYTES + 6
        holders = [NOBODY]
        for _ in range(named):
            node_id, size = unpack_from(">iB", data, at)
            holders.append(Incarnation(node_id, data[at + 5 : at + 5 + size].decode()))
            at += 5 + size
        if len(data) != at + 6 * count:
            raise ValueError(f"{len(data) - at} bytes for {count} partitions")
        owners = cls()
        owners._holders = tuple(holders)
        owners._slots = array("H", unpack_from(f">{count}H", data, at))
        owners._epochs = array("i", unpack_from(f">{count}i", data, at + 2 * count))
        if form == FORMAT_1:
            known = owners._epochs
            owners._epochs = array("i", [_UNKNOWN if epoch < 0 else epoch for epoch in known])
        if count and max(owners._slots) >= len(holders):
            raise ValueError("a partition names a holder that is not there")
        return owners


def _closed(epoch: int) -> int:
    """Return what stands for the epoch until a new owner has opened the partition."""
    return epoch if epoch < 0 else max(-2 - epoch, _UNKNOWN)


def _without_unused(
    holders: tuple[Incarnation, ...], slots: array[int]
) -> tuple[tuple[Incarnation, ...], array[int]]:
    """Return the same owners without holders that own nothing; `NOBODY` stays first."""
    used = set(slots) | {0}
    if len(used) == len(holders):
        return holders, slots
    kept = sorted(used)
    renumbered = {slot: number for number, slot in enumerate(kept)}
    return tuple(holders[slot] for slot in kept), array("H", [renumbered[slot] for slot in slots])
