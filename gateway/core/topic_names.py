"""Checks topic names: whether they are legal, collide, or are Kafka's own.

Source: Kafka, `org.apache.kafka.common.internals.Topic`.
"""

from __future__ import annotations

import re

from gateway.core.shown_text import shown

TOPIC_NAME_LENGTH_MAX = 249

CONSUMER_OFFSETS = "__consumer_offsets"
TRANSACTION_STATE = "__transaction_state"
INTERNAL_TOPICS = frozenset({CONSUMER_OFFSETS, TRANSACTION_STATE, "__share_group_state"})
FORBIDDEN_TOPIC = "__cluster_metadata"  # the Raft log of Kafka's controllers

_LEGAL = re.compile(r"[a-zA-Z0-9._-]+")


def topic_name_fault(name: str) -> str | None:
    """Return why `name` is not a legal topic name, with Kafka's text, or None if it is legal."""
    if not name:
        return "the empty string is not allowed"
    if name in (".", ".."):
        return f"'{name}' is not allowed"
    if len(name) > TOPIC_NAME_LENGTH_MAX:
        return (
            f"the length of '{shown(name)}' is longer than the max allowed length "
            f"{TOPIC_NAME_LENGTH_MAX}"
        )
    if not _LEGAL.fullmatch(name):
        return (
            f"'{name}' contains one or more characters other than ASCII alphanumerics, "
            "'.', '_' and '-'"
        )
    return None


def collision_key(name: str) -> str:
    """Return a key that is equal for two names that collide.

    Names collide if they differ only in . and _, which Kafka's metrics mix up.
    """
    return name.replace(".", "_")


def is_internal(name: str) -> bool:
    """Return whether the topic is internal. Clients leave internal topics out of patterns."""
    return name in INTERNAL_TOPICS


def is_fixed(name: str) -> bool:
    """Return whether the topic stays as it was created: it holds what groups and ids map to."""
    return name in (CONSUMER_OFFSETS, TRANSACTION_STATE)


def has_streams(name: str) -> bool:
    """Return whether the partitions of the topic are streams. Committed offsets are elsewhere."""
    return name != CONSUMER_OFFSETS
