"""The features of a cluster: the levels that its gateways support, and the finalized ones. Pure.

    metadata.version     Kafka's levels; the gateway's metadata does not depend on it
    transaction.version  Kafka's levels of the transaction protocol
    group.version        1: groups of the consumer protocol (KIP-848); they need log segments
    gateway.version      the newest form of stored data that gateways may write (`Form`)

A level is changed as by the controller of Apache Kafka 4.3, with its checks, codes and texts.
Source: Kafka, FeatureControlManager, QuorumFeatures, MetadataVersion; KIP-584, KIP-778, KIP-1022.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from enum import IntEnum
from typing import Final, NamedTuple

from gateway.core.java_map import in_map_order
from gateway.core.shown_text import shown

METADATA_VERSION: Final = "metadata.version"
TRANSACTION_VERSION: Final = "transaction.version"
GROUP_VERSION: Final = "group.version"
GATEWAY_VERSION: Final = "gateway.version"

_METADATA_MIN, _METADATA_MAX = 7, 30  # 3.3-IV3 and 4.3-IV0
_METADATA_BEFORE = 29  # of clusters that are older than their features
# Kafka never undoes the step to one of these levels, because it changed the metadata records.
_METADATA_CHANGED = frozenset({7, 8, 11, 13, 14, 15, 17, 23, 30})
_TRANSACTIONS_MAX = 2
_GROUPS_MAX = 1
# Kafka's features that the gateway does not have. As in Kafka, they can be set to 0.
_OTHERS_OF_KAFKA = frozenset(
    {
        "kraft.version",
        "eligible.leader.replicas.version",
        "share.version",
        "streams.version",
    }
)
_KNOWN = _OTHERS_OF_KAFKA | {TRANSACTION_VERSION, GROUP_VERSION}


class Form(IntEnum):
    """The forms of stored data, which are the levels of `gateway.version`."""

    FIRST = 0
    EPOCH_BASES = 1  # streams with epoch bases, last epochs of partitions (decision 0018)
    INTERNAL_TOPICS = 2  # a topic without streams (decision 0020)
    TRANSACTIONS = 3  # transaction logs, markers, pending offsets, owners' states of version 2


_USED_AT_ONCE: Final = Form.INTERNAL_TOPICS
"""The newest form of which data exist once it is finalized. `beginning` records later ones."""


class LevelRange(NamedTuple):
    """The levels of one feature that a gateway supports."""

    min: int
    max: int

    def __str__(self) -> str:
        return str(self.min) if self.min == self.max else f"{self.min}-{self.max}"


Supported = Mapping[str, LevelRange]


def supported_levels(*, log_segments: bool = True) -> Supported:
    """Return what this gateway supports. `log_segments` is False if it keeps offsets in nodes."""
    return {
        METADATA_VERSION: LevelRange(_METADATA_MIN, _METADATA_MAX),
        GATEWAY_VERSION: LevelRange(Form.FIRST, Form.TRANSACTIONS),
        TRANSACTION_VERSION: LevelRange(0, _TRANSACTIONS_MAX),
        GROUP_VERSION: LevelRange(0, _GROUPS_MAX if log_segments else 0),
    }


@dataclass(frozen=True, slots=True)
class Finalized:
    """The finalized levels of a cluster."""

    epoch: int  # rises with each change of the levels
    levels: Mapping[str, int]  # no level is 0
    used: int  # the newest form of which data may exist

    def level(self, name: str) -> int:
        """Return the level of a feature, 0 if it is not finalized."""
        return self.levels.get(name, 0)

    def may_write(self, form: Form) -> bool:
        """Return True if data of the form may be written now, and that is recorded."""
        return min(self.level(GATEWAY_VERSION), self.used) >= form


def newest(supported: Supported) -> Finalized:
    """Return the levels with which a new cluster begins."""
    levels = {name: each.max for name, each in supported.items() if each.max}
    return Finalized(0, levels, _USED_AT_ONCE)


def before_features(form: int) -> Finalized:
    """Return the levels of a cluster whose features were never stored."""
    levels = {METADATA_VERSION: _METADATA_BEFORE}
    if form:
        levels[GATEWAY_VERSION] = form
    return Finalized(0, levels, form)


class UpgradeType(IntEnum):
    """Kafka's codes of the changes that a request permits."""

    UPGRADE = 1
    SAFE_DOWNGRADE = 2
    UNSAFE_DOWNGRADE = 3


_KINDS = frozenset(UpgradeType)


class FeatureUpdate(NamedTuple):
    """The new level of one feature. `kind` is the code of an `UpgradeType`, or any other number."""

    name: str
    level: int
    kind: int = UpgradeType.UPGRADE


class FeatureRefused(Exception):
    """The error that a level must not be changed, with Kafka's text for INVALID_UPDATE_VERSION."""


@dataclass(frozen=True, slots=True)
class Cluster:
    """The gateways that must support a level: the one that was asked, and the other live ones."""

    node_id: int
    supported: Supported
    others: Mapping[int, Supported]


def changed(before: Finalized, updates: Iterable[FeatureUpdate], cluster: Cluster) -> Finalized:
    """Return the levels after all updates. Raises FeatureRefused if one of them is refused.

    The last update of a name counts. As in Kafka, the refused name that comes first in the order of
    a Java map is reported.
    """
    wanted = {each.name: each for each in updates}
    proposed = {**before.levels, **{each.name: each.level for each in wanted.values()}}
    for name in in_map_order(wanted):
        _check(wanted[name], before, proposed, cluster)
    levels = {name: level for name, level in proposed.items() if level}
    _check_forms(levels)
    if levels == before.levels:
        return before
    used = max(before.used, min(levels.get(GATEWAY_VERSION, 0), _USED_AT_ONCE))
    return Finalized(before.epoch + 1, levels, used)


def beginning(before: Finalized) -> Finalized:
    """Return the same levels, with the record that data of their newest form may exist."""
    return replace(before, used=max(before.used, before.level(GATEWAY_VERSION)))


def _check(
    update: FeatureUpdate, before: Finalized, proposed: Mapping[str, int], cluster: Cluster
) -> None:
    """Raise FeatureRefused if Kafka's controller would refuse the update."""
    name, level, kind = update
    if kind not in _KINDS:
        _refuse(update, "The controller does not support the given upgrade type.")
    current = before.level(name)
    if level < 0:
        _refuse(update, "A feature version cannot be less than 0.")
    _check_supported(update, cluster)
    if level < current and kind == UpgradeType.UPGRADE:
        _refuse(
            update,
            "Can't downgrade the version of this feature without setting the upgrade type to "
            "either safe or unsafe downgrade.",
        )
    if level > current and kind != UpgradeType.UPGRADE:
        _refuse(update, "Can't downgrade to a newer version.")
    if name == METADATA_VERSION:
        _check_metadata(current, level, unsafe=kind == UpgradeType.UNSAFE_DOWNGRADE)
    elif name == GATEWAY_VERSION and level < min(current, before.used):
        _refuse(update, f"Data of version {before.used} may exist, which this one cannot read.")
    elif name == TRANSACTION_VERSION and level:
        if proposed.get(GATEWAY_VERSION, 0) < Form.TRANSACTIONS:
            _refuse(update, _depends(level))
    elif name not in cluster.supported and name not in _KNOWN:
        _refuse(update, f"Feature {shown(name)} not found.")


def _check_supported(update: FeatureUpdate, cluster: Cluster) -> None:
    """Raise FeatureRefused unless all gateways support the level."""
    gateways = [(f"Local controller {cluster.node_id}", cluster.supported)]
    gateways += [(f"Broker {node_id}", each) for node_id, each in sorted(cluster.others.items())]
    for what, supported in gateways:
        levels = supported.get(update.name, LevelRange(0, 0))
        if not levels.min <= update.level <= levels.max:
            reason = f"only supports versions {levels}" if levels.max else None
            if update.name == GROUP_VERSION and update.name in supported and not levels.max:
                reason = "keeps committed offsets without log segments, which this feature needs."
            _refuse(update, f"{what} {reason or 'does not support this feature.'}")


def _check_metadata(current: int, level: int, *, unsafe: bool) -> None:
    if any(level < each <= current for each in _METADATA_CHANGED):
        reason = "Refusing to perform the requested downgrade because it might delete metadata "
        reason += "information."
        if unsafe:
            reason = "Unsafe metadata downgrade is not supported in this version."
        raise FeatureRefused(
            f"Unsupported metadata.version downgrade from {current} to {level}. {reason}"
        )


def _check_forms(levels: Mapping[str, int]) -> None:
    """Raise FeatureRefused if a feature that stays needs a form that is given up."""
    transactions = levels.get(TRANSACTION_VERSION, 0)
    form = levels.get(GATEWAY_VERSION, 0)
    if transactions and form < Form.TRANSACTIONS:
        _refuse(FeatureUpdate(GATEWAY_VERSION, form), _depends(transactions))


def _depends(transactions: int) -> str:
    return (
        f"{TRANSACTION_VERSION} could not be set to {transactions} because it depends on "
        f"{GATEWAY_VERSION} level {Form.TRANSACTIONS}"
    )


def _refuse(update: FeatureUpdate, reason: str) -> None:
    raise FeatureRefused(
        f"Invalid update version {update.level} for feature {shown(update.name)}. {reason}"
    )
