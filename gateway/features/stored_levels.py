"""The node that has the finalized levels: one sealed document.

    /gateway/features          its parent, which is watched
    /gateway/features/levels   `1 <crc32c> <JSON>`: version, life, epoch, levels, used

A node that is deleted and created again has another life, because its version is 0 again.
A cluster without the node has the levels that follow from its form (`before_features`).
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple, cast

from gateway.core.feature_levels import Finalized
from ledger.errors import CorruptFormat
from ledger.sealed import seal, unseal

FEATURES: Final = "/gateway/features"
NAME: Final = "levels"
LEVELS: Final = f"{FEATURES}/{NAME}"
VERSION: Final = 1
_EPOCH_MAX = 2**63 - 1
_LEVEL_MAX = 2**15 - 1


class StoredLevels(NamedTuple):
    """The content of the node."""

    finalized: Finalized
    life: str


def encode_levels(levels: Finalized, life: str) -> bytes:
    """Encode the levels as the data of the node."""
    return seal(
        {
            "version": VERSION,
            "life": life,
            "epoch": levels.epoch,
            "levels": dict(levels.levels),
            "used": int(levels.used),
        }
    )


def decode_levels(data: bytes) -> StoredLevels:
    """Decode the node. Raises CorruptFormat, also for a version of a later release."""
    fields = unseal(data, LEVELS)
    version = fields.get("version")
    if version != VERSION:
        raise CorruptFormat(
            f"{LEVELS}: has version {str(version)[:16]}; this release reads {VERSION}"
        )
    epoch, levels, used, life = (fields.get(name) for name in ("epoch", "levels", "used", "life"))
    if (
        not isinstance(life, str)
        or not _whole(epoch, _EPOCH_MAX)
        or not _whole(used, _LEVEL_MAX)
        or not isinstance(levels, dict)
        or not all(_whole(level, _LEVEL_MAX) for level in cast("dict[str, Any]", levels).values())
    ):
        raise CorruptFormat(f"{LEVELS}: has no epoch, levels and form")
    finalized = Finalized(
        cast("int", epoch), cast("dict[str, int]", levels), used=cast("int", used)
    )
    return StoredLevels(finalized, life)


def _whole(value: object, most: int) -> bool:
    return type(value) is int and 0 <= value <= most
