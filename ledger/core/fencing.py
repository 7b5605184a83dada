"""The decision on which adds a bookie accepts. Pure. Source: BookKeeper, "Fencing" (seed 001)."""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum, auto
from typing import Final
from zlib import crc32

from ledger.core.entry_format import DigestedBody
from ledger.crc32c import crc32c
from ledger.ids import Buffer


class AddDecision(Enum):
    """The decision on one add, explicit LAC or fence."""

    ACCEPT = auto()
    FENCED = auto()
    WRONG_KEY = auto()
    DELETED = auto()


class FenceState:
    """The access state of a ledger on this bookie."""

    __slots__ = ("deleted", "fenced", "master_key")

    def __init__(
        self, master_key: bytes | None = None, *, fenced: bool = False, deleted: bool = False
    ) -> None:
        # The first caller's key, or None until it is known. Constant afterwards.
        self.master_key = master_key
        # True once a fence was accepted, never reset. Only recovery adds are then accepted.
        self.fenced = fenced
        # True once the metadata no longer list the ledger, never reset. Nothing is then accepted.
        self.deleted = deleted

    def check_add(self, master_key: bytes, recovery: bool) -> AddDecision:
        """Decide on an add.

        A fenced ledger accepts only recovery adds. Every add with a wrong key, or to a deleted
        ledger, is refused.
        """
        if self.deleted:
            return AddDecision.DELETED
        if self.master_key is not None and self.master_key != master_key:
            return AddDecision.WRONG_KEY
        if self.fenced and not recovery:
            return AddDecision.FENCED
        return AddDecision.ACCEPT

    def check_key(self, master_key: bytes) -> AddDecision:
        """Decide on a fence or an explicit LAC, for which only the key counts."""
        return self.check_add(master_key, recovery=True)


_DIGEST_AT: Final = 32
_CRC32C_BYTES: Final = 4
_CRC32C_END: Final = _DIGEST_AT + _CRC32C_BYTES
_CRC32_BYTES: Final = 8


def same_entry(one: bytes, other: bytes) -> bool:
    """True if both are copies of one entry: equal except for the LAC and the digest that covers it.

    A recovery writes entries again with its own LAC. If bytes differ, only CRC32C and CRC32 digests
    can be compared here; an HMAC entry with another LAC counts as different.
    """
    if one == other:
        return True
    if len(one) != len(other) or one[:16] != other[:16] or one[24:32] != other[24:32]:
        return False
    for digest, size in _DIGESTS:
        payload_at = _DIGEST_AT + size
        if one[payload_at:] == other[payload_at:]:
            return all(digest(entry) == entry[_DIGEST_AT:payload_at] for entry in (one, other))
    return False


def has_valid_digest(entry: bytes) -> bool:
    """True if the entry's CRC32C or CRC32 digest is valid. False for digests that need a key."""
    return any(
        digest(entry) == entry[_DIGEST_AT : _DIGEST_AT + size]
        for digest, size in _DIGESTS
        if len(entry) >= _DIGEST_AT + size
    )


def has_crc32c(body: Sequence[Buffer]) -> bool:
    """True if the entry, whose bytes are the joined buffers, has a valid CRC32C digest."""
    if type(body) is DigestedBody:
        return True
    head = body[0]
    if len(head) < _CRC32C_END:
        head = b"".join(body)
        if len(head) < _CRC32C_END:
            return False
        body = (head,)
    value = crc32c(head[:_DIGEST_AT])
    if len(head) > _CRC32C_END:
        value = crc32c(memoryview(head)[_CRC32C_END:], value)
    for buffer in body[1:]:
        value = crc32c(buffer, value)
    return value == int.from_bytes(head[_DIGEST_AT:_CRC32C_END], "big")


def _crc32c_digest(entry: bytes) -> bytes:
    covered = crc32c(memoryview(entry)[_DIGEST_AT + _CRC32C_BYTES :], crc32c(entry[:_DIGEST_AT]))
    return covered.to_bytes(_CRC32C_BYTES, "big")


def _crc32_digest(entry: bytes) -> bytes:
    covered = crc32(memoryview(entry)[_DIGEST_AT + _CRC32_BYTES :], crc32(entry[:_DIGEST_AT]))
    return covered.to_bytes(_CRC32_BYTES, "big")


_DIGESTS: Final = ((_crc32c_digest, _CRC32C_BYTES), (_crc32_digest, _CRC32_BYTES))
