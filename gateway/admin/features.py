"""Requests of `gateway feature`, with their results as plain data."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gateway.admin.client import AdminClient, raise_for
from gateway.core.feature_levels import METADATA_VERSION, UpgradeType
from gateway.wire.schema import API_VERSIONS
from ledger.command_line.version import __version__

_UPDATE_FEATURES = 57
_UPDATE_MS_MAX = 60_000
# The versions of Apache Kafka that the levels of metadata.version stand for, from 7 on.
_METADATA_NAMES = [
    "3.3-IV3",
    "3.4-IV0",
    "3.5-IV0",
    "3.5-IV1",
    "3.5-IV2",
    "3.6-IV0",
    "3.6-IV1",
    "3.6-IV2",
    "3.7-IV0",
    "3.7-IV1",
    "3.7-IV2",
    "3.7-IV3",
    "3.7-IV4",
    "3.8-IV0",
    "3.9-IV0",
    "4.0-IV0",
    "4.0-IV1",
    "4.0-IV2",
    "4.0-IV3",
    "4.1-IV0",
    "4.1-IV1",
    "4.2-IV0",
    "4.2-IV1",
    "4.3-IV0",
]
_METADATA_FIRST = 7

Row = dict[str, Any]


async def list_features(client: AdminClient) -> list[Row]:
    """Return the supported and finalized levels of each feature, by name.

    A feature that is not finalized has level 0, as in Kafka's tool. The epoch is None if the broker
    cannot read the finalized levels.
    """
    names = {"client_software_name": "gateway-admin", "client_software_version": __version__}
    answer = await client.send(API_VERSIONS, names)
    raise_for(answer.error_code, None, "ApiVersions")
    levels = {each.name: each.max_version_level for each in answer.finalized_features}
    epoch = answer.finalized_features_epoch
    return [
        {
            "feature": each.name,
            "supported_min": each.min_version,
            "supported_max": each.max_version,
            "finalized": levels.get(each.name, 0),
            "epoch": None if epoch < 0 else epoch,
        }
        for each in sorted(answer.supported_features, key=lambda each: each.name)
    ]


def newest_levels(rows: list[Row]) -> dict[str, int]:
    """Return the newest levels of all features that do not have them."""
    return {
        row["feature"]: row["supported_max"]
        for row in rows
        if row["finalized"] < row["supported_max"]
    }


async def update_features(
    client: AdminClient, levels: Mapping[str, int], kind: UpgradeType, *, validate_only: bool
) -> None:
    """Change the levels of these features, all of them or none. Raises AdminError."""
    updates = [
        {
            "feature": name,
            "max_version_level": level,
            "upgrade_type": int(kind),
            "allow_downgrade": kind != UpgradeType.UPGRADE,
        }
        for name, level in levels.items()
    ]
    fields = {
        "timeout": _UPDATE_MS_MAX,
        "feature_updates": updates,
        "validate_only": validate_only,
    }
    answer = await client.send(_UPDATE_FEATURES, fields)
    raise_for(answer.error_code, answer.error_message, "UpdateFeatures")


def level_text(feature: str, level: int) -> str:
    """Return the level as Kafka's tool prints it: a level of metadata.version is a release."""
    if feature != METADATA_VERSION:
        return str(level)
    at = level - _METADATA_FIRST
    return _METADATA_NAMES[at] if 0 <= at < len(_METADATA_NAMES) else f"UNKNOWN {level}"
