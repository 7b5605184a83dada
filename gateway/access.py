"""Who may do what: the question that handlers, private requests and the page ask before they act.

Without an authorizer every client is `User:ANONYMOUS` and may do everything.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final, NamedTuple, Protocol

ANONYMOUS: Final = "User:ANONYMOUS"
"""The principal of a connection that did not authenticate."""


class Operation(StrEnum):
    """Kafka's name of an operation."""

    ALL = "ALL"  # only in ACLs: stands for every operation
    READ = "READ"
    WRITE = "WRITE"
    CREATE = "CREATE"
    DELETE = "DELETE"
    ALTER = "ALTER"
    DESCRIBE = "DESCRIBE"
    CLUSTER_ACTION = "CLUSTER_ACTION"
    DESCRIBE_CONFIGS = "DESCRIBE_CONFIGS"
    ALTER_CONFIGS = "ALTER_CONFIGS"
    IDEMPOTENT_WRITE = "IDEMPOTENT_WRITE"
    CREATE_TOKENS = "CREATE_TOKENS"
    DESCRIBE_TOKENS = "DESCRIBE_TOKENS"
    TWO_PHASE_COMMIT = "TWO_PHASE_COMMIT"


class ResourceType(StrEnum):
    """Kafka's name of a type of resource."""

    TOPIC = "TOPIC"
    GROUP = "GROUP"
    CLUSTER = "CLUSTER"
    TRANSACTIONAL_ID = "TRANSACTIONAL_ID"
    DELEGATION_TOKEN = "DELEGATION_TOKEN"
    USER = "USER"


class Resource(NamedTuple):
    """The resource that is read or changed."""

    kind: ResourceType
    name: str


CLUSTER: Final = Resource(ResourceType.CLUSTER, "kafka-cluster")
"""The cluster as a resource, with Kafka's name."""


class Authorizer(Protocol):
    """Decides from memory whether a principal may do an operation on a resource."""

    def allows(
        self, principal: str, host: str, operation: Operation, resource: Resource
    ) -> bool: ...

    def allows_any(
        self, principal: str, host: str, operation: Operation, kind: ResourceType
    ) -> bool:
        """Return whether the principal may do it on at least one resource of the type."""
        ...


def is_allowed(
    authorizer: Authorizer | None,
    principal: str,
    host: str,
    operation: Operation,
    resource: Resource,
) -> bool:
    """Return the decision of an authorizer. Without one, everything is allowed."""
    return authorizer is None or authorizer.allows(principal, host, operation, resource)
