"""Which topic names are legal, which collide, which are Kafka's own.

Source: Kafka, `org.apache.kafka.common.internals.Topic`.
"""

from __future__ import annotations

import re

TOPIC_NAME_LENGTH_MAX = 249

INTERNAL_TOPICS = frozenset({"__consumer_offsets", "__transaction_state", "__share_group_state"})
FORBIDDEN_TOPIC = "__cluster_metadata"  # the Raft log of a real cluster; tools special-case it

_LEGAL = re.compile(r"[a-zA-Z0-9._-]+")


def topic_name_fault(name: str) -> str | None:
    """Why `name` cannot name a topic, in Kafka's words, or None when it can."""
    if not name:
        return "the empty string is not allowed"
    if name in (".", ".."):
        return f"'{name}' is not allowed"
    if len(name) > TOPIC_NAME_LENGTH_MAX:
        return (
            f"the length of '{name[:64]}...' is longer than the max allowed length "
            f"{TOPIC_NAME_LENGTH_MAX}"
        )
    if not _LEGAL.fullmatch(name):
        return (
            f"'{name}' contains one or more characters other than ASCII alphanumerics, "
            "'.', '_' and '-'"
        )
    return None


def collision_key(name: str) -> str:
    """Equal for two names that Kafka refuses beside each other: its metric names mix . and _."""
    return name.replace(".", "_")


def is_internal(name: str) -> bool:
    """Whether clients (Spark among them) leave the topic out of patterns."""
    return name in INTERNAL_TOPICS
