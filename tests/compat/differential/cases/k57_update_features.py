"""UpdateFeatures: levels out of range, unknown features, downgrades, several features at once.

The levels are those of the whole broker, so each case leaves them as they were.
"""

from __future__ import annotations

from typing import Any

from tests.compat.differential.script import Script, case

KEY = 57
API_VERSIONS = 18
METADATA, TRANSACTIONS = "metadata.version", "transaction.version"
UPGRADE, SAFE, UNSAFE = 1, 2, 3
NEWEST = 30
TIMEOUT_MS = 60_000


def update(name: str, level: int, kind: int = UPGRADE) -> dict[str, Any]:
    return {
        "feature": name,
        "max_version_level": level,
        "upgrade_type": kind,
        "allow_downgrade": kind != UPGRADE,
    }


def ask(script: Script, *updates: dict[str, Any], validate_only: bool = False) -> None:
    script.ask(timeout=TIMEOUT_MS, feature_updates=list(updates), validate_only=validate_only)


def described(script: Script) -> None:
    """Compare the levels that ApiVersions reports."""
    script.published()
    names = {"client_software_name": "differential", "client_software_version": "1.0"}
    script.other(API_VERSIONS, 4, **names)


@case(KEY)
def nothing(script: Script) -> None:
    ask(script)
    ask(script, validate_only=True)


@case(KEY)
def the_level_that_it_has(script: Script) -> None:
    for kind in (UPGRADE, SAFE, UNSAFE):
        ask(script, update(METADATA, NEWEST, kind))
    ask(script, update(METADATA, NEWEST), update(METADATA, NEWEST))
    described(script)


@case(KEY)
def levels_out_of_range(script: Script) -> None:
    for level in (-32_768, -1, 0, 1, 6, 31, 32, 32_767):
        for kind in (UPGRADE, SAFE, UNSAFE):
            ask(script, update(METADATA, level, kind))


@case(KEY)
def downgrades_of_the_metadata(script: Script) -> None:
    for level in (29, 23, 7):
        for kind in (UPGRADE, SAFE, UNSAFE):
            ask(script, update(METADATA, level, kind))
            ask(script, update(METADATA, level, kind), validate_only=True)
    described(script)


@case(KEY, since=1)
def kinds_of_changes(script: Script) -> None:
    for kind in (-128, -1, 0, 4, 127):
        ask(script, update(METADATA, NEWEST, kind))
        ask(script, update("unknown", -1, kind))


@case(KEY)
def unknown_features(script: Script) -> None:
    for name in ("unknown", "", "metadata", "Metadata.version", "a" * 400, "\N{SNOWMAN}"):
        for level in (-1, 0, 1, 32_767):
            ask(script, update(name, level))
            ask(script, update(name, level, SAFE))


@case(KEY)
def several_features_and_the_first_that_is_refused(script: Script) -> None:
    for names in (
        ("b", "a", "c"),
        ("c", "b", "a"),
        tuple(f"feature-{number}" for number in range(40)),
        tuple(f"feature-{number}" for number in range(40, 0, -1)),
        ("AaAa", "BBBB", "AaBB"),  # of one hash
        ("BBBB", "AaBB", "AaAa"),
    ):
        ask(script, *(update(name, 1) for name in names))
        ask(script, update(METADATA, NEWEST), *(update(name, 1) for name in names))
    described(script)


@case(KEY)
def a_feature_named_twice(script: Script) -> None:
    ask(script, update(METADATA, 31), update(METADATA, NEWEST))
    ask(script, update(METADATA, NEWEST), update(METADATA, 31))
    ask(script, update("unknown", 1), update("unknown", 0))


@case(KEY)
def features_that_the_gateway_does_not_have(script: Script) -> None:
    for name in (
        "kraft.version",
        "group.version",
        "eligible.leader.replicas.version",
        "share.version",
        "streams.version",
    ):
        ask(script, update(name, 9))
        ask(script, update(name, -1))


@case(KEY)
def transaction_levels_out_of_range(script: Script) -> None:
    for level in (-1, 3, 32_767):
        for kind in (UPGRADE, SAFE, UNSAFE):
            ask(script, update(TRANSACTIONS, level, kind))


@case(KEY, since=1)
def transaction_levels(script: Script) -> None:
    ask(script, update(TRANSACTIONS, 1))  # a downgrade by an upgrade
    ask(script, update(TRANSACTIONS, 1, SAFE), validate_only=True)
    described(script)
    ask(script, update(TRANSACTIONS, 1, SAFE))
    described(script)
    ask(script, update(TRANSACTIONS, 2, SAFE))  # an upgrade by a downgrade
    ask(script, update(TRANSACTIONS, 2), update("unknown", 1))  # all of them or none
    described(script)
    ask(script, update(TRANSACTIONS, 0, UNSAFE))
    described(script)
    ask(script, update(TRANSACTIONS, 2), update(METADATA, NEWEST))
    described(script)


@case(KEY, until=0)
def a_downgrade_that_the_oldest_version_allows(script: Script) -> None:
    ask(script, update(TRANSACTIONS, 1, SAFE))
    ask(script, update(METADATA, 29, SAFE))
    described(script)


@case(KEY)
def many_features(script: Script) -> None:
    ask(script, *(update(f"feature-{number}", 1) for number in range(1_000)))
