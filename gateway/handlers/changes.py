"""The one place that every change by a client passes: an event with who, what and the outcome.

A row of a reply is one change. A request that only validates changes nothing. Of one request at
most `EVENTS_MAX` changes become events, so that no request drops all that others did.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

from gateway.access import AuditEvent, ResourceType, auditing
from gateway.handlers.api import Reply, Request
from ledger.events import EventKind, note_event

EVENTS_MAX: Final = 100

_CONFIG_TYPES: Final = {
    2: "TOPIC",
    4: "BROKER",
    8: "BROKER_LOGGER",
    16: "CLIENT_METRICS",
    32: "GROUP",
}


class _Change(NamedTuple):
    operation: str  # Kafka's name of the operation
    resource: Callable[[Reply], str]  # of a row: its type and name


def _named(kind: ResourceType | str, field: str) -> Callable[[Reply], str]:
    return lambda row: f"{kind}:{row.get(field) or ''}"


def _config(row: Reply) -> str:
    kind = row["resource_type"]
    return f"{_CONFIG_TYPES.get(int(kind), kind)}:{row['resource_name']}"


def _quota(row: Reply) -> str:
    parts = [(each["entity_type"], each["entity_name"] or "<default>") for each in row["entity"]]
    return f"QUOTA:{','.join(f'{kind}={name}' for kind, name in parts)}"


_CHANGES: Final[Mapping[int, _Change]] = {
    19: _Change("CREATE", _named(ResourceType.TOPIC, "name")),
    20: _Change("DELETE", _named(ResourceType.TOPIC, "name")),
    21: _Change("DELETE_RECORDS", _named(ResourceType.TOPIC, "name")),
    33: _Change("ALTER_CONFIGS", _config),
    37: _Change("ALTER", _named(ResourceType.TOPIC, "name")),
    42: _Change("DELETE", _named(ResourceType.GROUP, "group_id")),
    44: _Change("ALTER_CONFIGS", _config),
    47: _Change("DELETE_OFFSETS", _named(ResourceType.TOPIC, "name")),
    49: _Change("ALTER", _quota),
    51: _Change("ALTER", _named("USER", "user")),
}


def note_row(request: Request, path: tuple[str, ...], row: Reply) -> None:
    """Note the change that a row of a reply reports, if it reports one.

    Rows of partitions are noted with the row of their topic: NONE, or PARTLY_FAILED.
    """
    change = _CHANGES.get(request.key)
    if change is None or getattr(request.body, "validate_only", False):
        return
    error = row.get("error_code")
    if len(path) > 1:
        request.rows_failed += bool(error)
        return
    if error is None:
        outcome = "PARTLY_FAILED" if request.rows_failed else "NONE"
        request.rows_failed = 0
    else:
        outcome = _name_of(error)
    note_change(request, change.operation, change.resource(row), outcome)


def note_change(request: Request, operation: str, resource: str, outcome: str) -> None:
    """Note one change of a request: Kafka's names of the operation and of the error code.

    A change by a page of a gateway is noted there, with the browser's address.
    """
    if request.peer.notes_changes:
        return
    if auditing.sink is not None and not outcome.endswith("_AUTHORIZATION_FAILED"):
        auditing.sink.note(
            AuditEvent.CHANGED,
            request.peer,
            resource,
            operation=operation,
            decision="ALLOWED",
            outcome=outcome,
            request_key=request.key,
            request_version=request.version,
            client_id=request.client_id or "",
        )
    request.changes += 1
    if request.changes <= EVENTS_MAX:
        note_event(
            EventKind.CHANGE,
            principal=request.peer.principal,
            address=request.peer.host,
            operation=operation,
            resource=resource,
            outcome=outcome,
        )


def note_offsets(request: Request, group: str, outcome: str) -> None:
    """Note a commit of a client that is no member of the group, as a reset of offsets is one.

    It is no event, because consumers without a group do this all the time.
    """
    if auditing.sink is not None and not outcome.endswith("_AUTHORIZATION_FAILED"):
        auditing.sink.note(
            AuditEvent.CHANGED,
            request.peer,
            f"GROUP:{group}",
            operation="ALTER_OFFSETS",
            decision="ALLOWED",
            outcome=outcome,
            request_key=request.key,
            request_version=request.version,
            client_id=request.client_id or "",
        )


def _name_of(error: Any) -> str:
    name = getattr(error, "name", None)
    return str(error) if name is None else str(name).upper()
