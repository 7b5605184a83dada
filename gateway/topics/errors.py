"""Errors of requests about topics. Clients get the text as it is.

The texts are Kafka's, because users search for them.
"""

from __future__ import annotations


class TopicError(Exception):
    """Base. The request changed nothing."""


class TopicExists(TopicError):
    """A topic of this name exists."""

    def __init__(self, name: str) -> None:
        super().__init__(f"Topic '{name}' already exists.")


class UnknownTopic(TopicError):
    """There is no topic of this name or id."""

    def __init__(self) -> None:
        super().__init__("This server does not host this topic-partition.")


class InvalidTopic(TopicError):
    """The name is invalid, or collides with that of another topic."""


class InvalidPartitions(TopicError):
    """The number of partitions is invalid or exceeds a limit."""


class InvalidReplicationFactor(TopicError):
    """The replication factor is invalid, or there are too few bookies for it."""


class InvalidConfig(TopicError):
    """A config key is unknown, or its value is invalid."""
