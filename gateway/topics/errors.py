"""Errors of requests about topics. Clients receive the texts unchanged.

The texts are Kafka's, because users search for them.
"""

from __future__ import annotations


class TopicError(Exception):
    """The base of errors about topics. The request changed nothing."""


class TopicExists(TopicError):
    """The error that a topic of this name exists."""

    def __init__(self, name: str) -> None:
        super().__init__(f"Topic '{name}' already exists.")


class UnknownTopic(TopicError):
    """The error that no topic has this name or id."""

    def __init__(self) -> None:
        super().__init__("This server does not host this topic-partition.")


class InvalidTopic(TopicError):
    """The error that the name is invalid, or collides with the name of another topic."""


class InvalidPartitions(TopicError):
    """The error that the number of partitions is invalid or exceeds a limit."""


class InvalidReplicationFactor(TopicError):
    """The error that the replication factor is invalid, or exceeds the number of bookies."""


class InvalidConfig(TopicError):
    """The error that a config key is unknown, or its value is invalid."""
