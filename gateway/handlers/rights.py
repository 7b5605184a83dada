"""The rights that each API asks for: one table, and the questions of the handlers.

`RIGHTS` is what Kafka's documents and its KafkaApis name. A handler asks at the point where Kafka's
does, by `allows`; a question that the table lacks fails. Without an authorizer everything is
allowed, at the cost of one comparison.
Source: Kafka, KafkaApis, ControllerApis and AuthHelper.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

from kio.schema.errors import ErrorCode

from gateway.access import (
    CLUSTER,
    AuditEvent,
    AuditSink,
    Operation,
    Resource,
    ResourceType,
    auditing,
)
from gateway.handlers.api import Context, Request
from gateway.wire.messages import PRIVATE_KEY


class Right(NamedTuple):
    """An operation on a type of resource."""

    operation: Operation
    kind: ResourceType

    def __str__(self) -> str:
        return f"{self.operation} {self.kind}"


_TOPIC, _GROUP = ResourceType.TOPIC, ResourceType.GROUP
_CLUSTER, _ID = ResourceType.CLUSTER, ResourceType.TRANSACTIONAL_ID
_READ_TOPIC = Right(Operation.READ, _TOPIC)
_WRITE_TOPIC = Right(Operation.WRITE, _TOPIC)
_DESCRIBE_TOPIC = Right(Operation.DESCRIBE, _TOPIC)
_DELETE_TOPIC = Right(Operation.DELETE, _TOPIC)
_READ_GROUP = Right(Operation.READ, _GROUP)
_DESCRIBE_GROUP = Right(Operation.DESCRIBE, _GROUP)
_DELETE_GROUP = Right(Operation.DELETE, _GROUP)
_WRITE_ID = Right(Operation.WRITE, _ID)
_DESCRIBE_ID = Right(Operation.DESCRIBE, _ID)
_ACTION = Right(Operation.CLUSTER_ACTION, _CLUSTER)
_ALTER = Right(Operation.ALTER, _CLUSTER)
_DESCRIBE = Right(Operation.DESCRIBE, _CLUSTER)
_DESCRIBE_CONFIGS = Right(Operation.DESCRIBE_CONFIGS, _CLUSTER)
_ALTER_CONFIGS = Right(Operation.ALTER_CONFIGS, _CLUSTER)

RIGHTS: Final[Mapping[int, tuple[Right, ...]]] = {
    0: (_WRITE_TOPIC, _WRITE_ID),
    1: (_READ_TOPIC,),
    2: (_DESCRIBE_TOPIC,),
    3: (
        _DESCRIBE_TOPIC,
        Right(Operation.CREATE, _TOPIC),
        Right(Operation.CREATE, _CLUSTER),
        _DESCRIBE,
    ),
    8: (_READ_GROUP, _READ_TOPIC),
    9: (_DESCRIBE_GROUP, _DESCRIBE_TOPIC, _ACTION),
    10: (_DESCRIBE_GROUP, _DESCRIBE_ID),
    11: (_READ_GROUP,),
    12: (_READ_GROUP,),
    13: (_READ_GROUP,),
    14: (_READ_GROUP,),
    15: (_DESCRIBE_GROUP,),
    16: (_DESCRIBE, _DESCRIBE_GROUP),
    17: (),  # the login comes before any right
    18: (),
    19: (
        Right(Operation.CREATE, _CLUSTER),
        Right(Operation.CREATE, _TOPIC),
        Right(Operation.DESCRIBE_CONFIGS, _TOPIC),
    ),
    20: (Right(Operation.DELETE, _CLUSTER), _DELETE_TOPIC, _DESCRIBE_TOPIC),
    21: (_DELETE_TOPIC,),
    22: (_WRITE_ID, Right(Operation.IDEMPOTENT_WRITE, _CLUSTER), _WRITE_TOPIC),
    23: (_ACTION, _DESCRIBE_TOPIC),
    24: (_WRITE_ID, _WRITE_TOPIC, _ACTION),
    25: (_WRITE_ID, _READ_GROUP),
    26: (_WRITE_ID,),
    27: (_ALTER, _ACTION),
    28: (_WRITE_ID, _READ_GROUP, _READ_TOPIC),
    29: (_DESCRIBE,),
    30: (_ALTER,),
    31: (_ALTER,),
    32: (
        _DESCRIBE_CONFIGS,
        Right(Operation.DESCRIBE_CONFIGS, _TOPIC),
        Right(Operation.DESCRIBE_CONFIGS, _GROUP),
    ),
    33: (
        _ALTER_CONFIGS,
        Right(Operation.ALTER_CONFIGS, _TOPIC),
        Right(Operation.ALTER_CONFIGS, _GROUP),
    ),
    34: (_ALTER,),
    35: (_DESCRIBE,),
    36: (),
    37: (Right(Operation.ALTER, _TOPIC),),
    38: (),  # refused to all: there are no delegation tokens
    39: (),
    40: (),
    41: (),
    42: (_DELETE_GROUP,),
    43: (_ALTER,),
    44: (
        _ALTER_CONFIGS,
        Right(Operation.ALTER_CONFIGS, _TOPIC),
        Right(Operation.ALTER_CONFIGS, _GROUP),
    ),
    45: (_ALTER,),
    46: (_DESCRIBE,),
    47: (_DELETE_GROUP, _READ_TOPIC),
    48: (_DESCRIBE_CONFIGS,),
    49: (_ALTER_CONFIGS,),
    50: (_DESCRIBE,),
    51: (_ALTER,),
    55: (_DESCRIBE,),
    57: (_ALTER,),
    60: (_DESCRIBE,),
    61: (_READ_TOPIC,),
    65: (_DESCRIBE_ID, _DESCRIBE_TOPIC),
    66: (_DESCRIBE_ID,),
    68: (_READ_GROUP, _DESCRIBE_TOPIC),
    69: (_DESCRIBE_GROUP, _DESCRIBE_TOPIC),
    74: (_DESCRIBE_CONFIGS,),
    75: (_DESCRIBE_TOPIC,),
    PRIVATE_KEY: (_DESCRIBE,),
}
"""The rights that the handler of each API may ask for. Several are for different parts of it."""

TRIED: Final = frozenset(
    {
        (3, Operation.CREATE, _CLUSTER),
        (3, Operation.DESCRIBE, _CLUSTER),
        (9, Operation.CLUSTER_ACTION, _CLUSTER),
        (16, Operation.DESCRIBE, _CLUSTER),
        (16, Operation.DESCRIBE, _GROUP),
        (19, Operation.CREATE, _CLUSTER),
        (19, Operation.DESCRIBE_CONFIGS, _TOPIC),
        (20, Operation.DELETE, _CLUSTER),
        (22, Operation.IDEMPOTENT_WRITE, _CLUSTER),
        (23, Operation.CLUSTER_ACTION, _CLUSTER),
        (24, Operation.CLUSTER_ACTION, _CLUSTER),
        (27, Operation.ALTER, _CLUSTER),
        (66, Operation.DESCRIBE, _ID),
    }
)
"""Rights that a request tries before others, or that only choose what it lists.

Without one nothing is denied, and the audit log has no line. Source: Kafka, `logIfDenied = false`.
"""

_ASKED: Final = {key: frozenset(rights) for key, rights in RIGHTS.items()}

TOPIC_DENIED: Final = ErrorCode.topic_authorization_failed
GROUP_DENIED: Final = ErrorCode.group_authorization_failed
CLUSTER_DENIED: Final = ErrorCode.cluster_authorization_failed
ID_DENIED: Final = ErrorCode.transactional_id_authorization_failed

TEXTS: Final = {
    TOPIC_DENIED: "Topic authorization failed.",
    GROUP_DENIED: "Group authorization failed.",
    CLUSTER_DENIED: "Cluster authorization failed.",
    ID_DENIED: "Transactional Id authorization failed.",
}
"""Kafka's text of each code."""

CLUSTER_TEXT: Final = TEXTS[CLUSTER_DENIED]

_BIT_OF: Final = {operation: 1 << code for code, operation in enumerate(Operation, 2)}
_SUPPORTED: Final[Mapping[ResourceType, tuple[Operation, ...]]] = {
    _TOPIC: (
        Operation.READ,
        Operation.WRITE,
        Operation.CREATE,
        Operation.DELETE,
        Operation.ALTER,
        Operation.DESCRIBE,
        Operation.DESCRIBE_CONFIGS,
        Operation.ALTER_CONFIGS,
    ),
    _GROUP: (
        Operation.READ,
        Operation.DELETE,
        Operation.DESCRIBE,
        Operation.DESCRIBE_CONFIGS,
        Operation.ALTER_CONFIGS,
    ),
    _CLUSTER: (
        Operation.CREATE,
        Operation.ALTER,
        Operation.DESCRIBE,
        Operation.CLUSTER_ACTION,
        Operation.DESCRIBE_CONFIGS,
        Operation.ALTER_CONFIGS,
        Operation.IDEMPOTENT_WRITE,
    ),
}
"""The operations whose bits a reply may have. Source: Kafka, AclEntry.supportedOperations."""

_ALL_BITS: Final = {
    kind: sum(_BIT_OF[each] for each in supported) for kind, supported in _SUPPORTED.items()
}


def allows(
    request: Request, ctx: Context, operation: Operation, kind: ResourceType, name: str
) -> bool:
    """Return whether the client of a request may do an operation on a resource."""
    authorizer = ctx.authorizer
    if authorizer is None:
        return True
    assert (operation, kind) in _ASKED[request.key], f"key {request.key}: {operation} {kind}"
    peer = request.peer
    resource = Resource(kind, name)
    if authorizer.allows(peer.principal, peer.host, operation, resource):
        return True
    if (request.key, operation, kind) not in TRIED and not _is_listing(request, kind):
        _count_denial(request, ctx, operation, resource)
    return False


def _count_denial(request: Request, ctx: Context, operation: Operation, resource: Resource) -> None:
    auditing.denials += 1
    if auditing.sink is not None:
        _note_denial(auditing.sink, request, ctx, operation, resource)


def _is_listing(request: Request, kind: ResourceType) -> bool:
    """Return whether the request names no topic, so that it gets those that it may see."""
    if kind is not _TOPIC or request.key not in (3, 9, 75):
        return False
    topics = getattr(request.body, "topics", None)
    if topics is None and request.key == 9:
        groups = getattr(request.body, "groups", None) or ()
        return any(each.topics is None for each in groups) or not groups
    return not topics


def _note_denial(
    sink: AuditSink, request: Request, ctx: Context, operation: Operation, resource: Resource
) -> None:
    """Add a line to the audit log, with the rule that decided where the authorizer has rules."""
    rule, peer = "", request.peer
    if ctx.acls is not None:
        decision = ctx.acls.decide(peer.principal, peer.host, operation, resource)
        rule = decision.rule if decision.acl is None else f"{decision.rule} {decision.acl}"
    sink.note(
        AuditEvent.DENIED,
        peer,
        f"{resource.kind}:{resource.name}",
        operation=str(operation),
        decision="DENIED",
        rule=rule,
        request_key=request.key,
        request_version=request.version,
        client_id=request.client_id or "",
    )


def allows_topic(request: Request, ctx: Context, operation: Operation, name: str) -> bool:
    """Return whether the client of a request may do an operation on a topic."""
    return allows(request, ctx, operation, _TOPIC, name)


def allows_group(request: Request, ctx: Context, operation: Operation, name: str) -> bool:
    """Return whether the client of a request may do an operation on a group."""
    return allows(request, ctx, operation, _GROUP, name)


def allows_id(request: Request, ctx: Context, operation: Operation, name: str | None) -> bool:
    """Return whether the client of a request may do an operation on a transactional id."""
    return allows(request, ctx, operation, _ID, name or "")


def allows_cluster(request: Request, ctx: Context, operation: Operation) -> bool:
    """Return whether the client of a request may do an operation on the cluster."""
    return allows(request, ctx, operation, _CLUSTER, CLUSTER.name)


def allows_any_topic(request: Request, ctx: Context, operation: Operation) -> bool:
    """Return whether the client of a request may do an operation on at least one topic."""
    authorizer = ctx.authorizer
    if authorizer is None:
        return True
    assert (operation, _TOPIC) in _ASKED[request.key], f"key {request.key}: {operation}"
    if authorizer.allows_any(request.peer.principal, request.peer.host, operation, _TOPIC):
        return True
    _count_denial(request, ctx, operation, Resource(_TOPIC, "*"))
    return False


def operations(request: Request, ctx: Context, kind: ResourceType, name: str) -> int:
    """Return a bit for each operation that the client may do on a resource, as replies have them.

    These are no rights of the request: they only tell the client what else it may ask for.
    """
    authorizer, peer, resource = ctx.authorizer, request.peer, Resource(kind, name)
    if authorizer is None:
        return _ALL_BITS[kind]
    return sum(
        _BIT_OF[each]
        for each in _SUPPORTED[kind]
        if authorizer.allows(peer.principal, peer.host, each, resource)
    )


def topic_operations(request: Request, ctx: Context, name: str) -> int:
    """Return the bits of a topic."""
    return operations(request, ctx, _TOPIC, name)


def group_operations(request: Request, ctx: Context, name: str) -> int:
    """Return the bits of a group."""
    return operations(request, ctx, _GROUP, name)


def cluster_operations(request: Request, ctx: Context) -> int:
    """Return the bits of the cluster. There is none for a client that may not describe it."""
    if not allows_cluster(request, ctx, Operation.DESCRIBE):
        return 0
    return operations(request, ctx, _CLUSTER, CLUSTER.name)


def denied_topics(
    request: Request, ctx: Context, operation: Operation, names: Iterable[str]
) -> frozenset[str]:
    """Return the topics on which the client of a request may not do an operation."""
    if ctx.authorizer is None:
        return frozenset()
    return frozenset(name for name in set(names) if not allows_topic(request, ctx, operation, name))
