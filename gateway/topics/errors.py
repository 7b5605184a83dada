"""What can be wrong with a request about topics. The text goes to the client as it is.

Wording: Kafka's, because people search for it.
"""

from __future__ import annotations


class TopicError(Exception):
    """Base. Nothing was changed."""


class TopicExists(TopicError):
    def __init__(self, name: str) -> None:
        super().__init__(f"Topic '{name}' already exists.")


class UnknownTopic(TopicError):
    def __init__(self) -> None:
        super().__init__("This server does not host this topic-partition.")


class InvalidTopic(TopicError):
    """A name that cannot be, or that collides with another topic's."""


class InvalidPartitions(TopicError):
    pass


class InvalidReplicationFactor(TopicError):
    pass


class InvalidConfig(TopicError):
    """An unknown key, or a value outside its type or bounds."""
