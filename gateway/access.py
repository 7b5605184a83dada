"""Who may do what: one question that every private request asks before it reads data.

There is no authentication yet, so everybody is `User:ANONYMOUS` and may do everything.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final, NamedTuple, Protocol

ANONYMOUS: Final = "User:ANONYMOUS"


class Operation(StrEnum):
    """Kafka's name of an operation."""

    DESCRIBE = "DESCRIBE"
    DESCRIBE_CONFIGS = "DESCRIBE_CONFIGS"
    READ = "READ"
    WRITE = "WRITE"
    CREATE = "CREATE"
    DELETE = "DELETE"
    ALTER = "ALTER"
    ALTER_CONFIGS = "ALTER_CONFIGS"


class ResourceType(StrEnum):
    """Kafka's name of a type of resource."""

    CLUSTER = "CLUSTER"
    TOPIC = "TOPIC"
    GROUP = "GROUP"


class Resource(NamedTuple):
    """The resource that is read or changed."""

    kind: ResourceType
    name: str


CLUSTER: Final = Resource(ResourceType.CLUSTER, "kafka-cluster")
"""The cluster as a resource, with Kafka's name."""


class Allowed(Protocol):
    """Decides whether a principal may do an operation on a resource."""

    def __call__(self, principal: str, operation: Operation, resource: Resource) -> bool: ...


def allow_all(principal: str, operation: Operation, resource: Resource) -> bool:
    """Allow everything, as long as there is no authentication."""
    return True
