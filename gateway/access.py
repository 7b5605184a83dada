"""Who may do what: the question that handlers, private requests and the page ask before they act.

Without an authorizer every client is `User:ANONYMOUS` and may do everything.
"""

from __future__ import annotations

from collections.abc import Mapping
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


class AuditEvent(StrEnum):
    """The kind of a line of the audit log."""

    DENIED = "denied"  # a right that a client does not have
    LOGIN_FAILED = "login-failed"
    CHANGED = "changed"  # a change of a client, or the attempt
    LEFT_OUT = "left-out"  # a count of lines that were too many


class Audited(Protocol):
    """The connection that a line of the audit log is about."""

    @property
    def principal(self) -> str: ...
    @property
    def mechanism(self) -> str:
        """How it authenticated: a mechanism of SASL, SSL, or ""."""
        ...

    @property
    def host(self) -> str: ...
    @property
    def port(self) -> int: ...
    @property
    def listener(self) -> str: ...


class PageClient(NamedTuple):
    """A browser or a script at the web page."""

    principal: str
    host: str
    port: int = 0
    listener: str = "HTTP"
    mechanism: str = ""


class NotedLine(NamedTuple):
    """A line of the audit log: its number since the start of the process, and its JSON."""

    number: int
    line: bytes


class AuditSink(Protocol):
    """Takes the lines of the audit log."""

    def note(self, event: AuditEvent, by: Audited, resource: str, **fields: str | int) -> None:
        """Add a line about a resource, such as `TOPIC:orders`."""
        ...

    def counts(self) -> Mapping[str, int]:
        """Return how many lines were written, and how many were lost, by reason."""
        ...

    def newest(self, before: int | None) -> list[NotedLine]:
        """Return some hundred of the newest lines below a number, or of all, newest first."""
        ...


class Auditing:
    """The audit log of this process, as it has one log, and what was counted without it."""

    def __init__(self) -> None:
        self.sink: AuditSink | None = None  # None without an audit log
        self.denials = 0  # only grows

    def page_denied(
        self, principal: str, host: str, operation: Operation, resource: Resource
    ) -> None:
        """Count and note a refusal of the web page."""
        self.denials += 1
        if self.sink is not None:
            self.sink.note(
                AuditEvent.DENIED,
                PageClient(principal, host),
                f"{resource.kind}:{resource.name}",
                operation=str(operation),
                decision="DENIED",
            )

    def page_changed(
        self, principal: str, host: str, operation: str, resource: str, outcome: str
    ) -> None:
        """Note a change by the web page, or the attempt."""
        if self.sink is not None:
            self.sink.note(
                AuditEvent.CHANGED,
                PageClient(principal, host),
                resource,
                operation=operation,
                decision="ALLOWED",
                outcome=outcome,
            )

    def login_failed(self, by: Audited, mechanism: str, user: str, reason: str) -> None:
        """Note a login that failed. `reason` is for operators; a client gets another text."""
        if self.sink is not None:
            self.sink.note(
                AuditEvent.LOGIN_FAILED,
                by,
                f"USER:{user}",
                operation="LOGIN",
                decision="DENIED",
                tried_mechanism=mechanism,
                reason=reason,
            )


auditing: Final = Auditing()


def is_allowed(
    authorizer: Authorizer | None,
    principal: str,
    host: str,
    operation: Operation,
    resource: Resource,
) -> bool:
    """Return the decision of an authorizer. Without one, everything is allowed."""
    return authorizer is None or authorizer.allows(principal, host, operation, resource)
