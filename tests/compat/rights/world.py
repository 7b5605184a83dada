"""The resources that the cases ask for, the sets of rights, and answers reduced to what counts."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Generator, Iterator
from typing import Any
from uuid import UUID

from kio.schema.errors import ErrorCode

from gateway.core.acls import CODE_OF, PatternType
from gateway.handlers.table import rows
from tests.batches import raw_batch, record
from tests.compat.rights.language import (
    DOOMED,
    GROUP,
    ID,
    NOTE,
    OTHER,
    TOPIC,
    USER,
    VALUE,
    Case,
    Facts,
    Need,
)

DENIALS = frozenset(
    (
        ErrorCode.topic_authorization_failed,
        ErrorCode.group_authorization_failed,
        ErrorCode.cluster_authorization_failed,
        ErrorCode.transactional_id_authorization_failed,
    )
)
MARKS = (VALUE, NOTE.encode(), USER.encode())
"""What no client may see without the rights of a case."""

Asked = tuple[int, int, dict[str, Any]]  # key, version, fields


def preparation() -> Generator[Asked, Any, Facts]:
    """Yield the requests of an admin that make the resources. Send in the decoded answers."""
    wanted = {TOPIC: 3, OTHER: 1}
    for word in ("by-name", "by-cluster"):
        wanted |= {f"{DOOMED}-{word}-{version}": 1 for version in range(1, 7)}
    wanted[f"{DOOMED}-by-id-6"] = 1
    topics = [
        {"name": name, "num_partitions": count, "replication_factor": 1}
        for name, count in wanted.items()
    ]
    created = yield 19, 7, {"topics": topics, "timeout": 30_000, "validate_only": False}
    ids = {row.name: row.topic_id for row in created.topics}
    batch = raw_batch(record(0, 0, None, VALUE))
    for name in (TOPIC, OTHER):
        rows_of = [{"index": 0, "records": batch}]
        data = [{"name": name, "partition_data": rows_of}]
        yield 0, 9, {"transactional_id": None, "acks": -1, "timeout": 9_000, "topic_data": data}
    yield 10, 4, {"key_type": 0, "coordinator_keys": [GROUP]}
    row = {"partition_index": 0, "committed_offset": 1, "committed_metadata": NOTE}
    commits = [{"name": name, "partitions": [row]} for name in (TOPIC, OTHER)]
    alone = {"group_id": GROUP, "member_id": "", "generation_id_or_member_epoch": -1}
    yield 8, 9, {**alone, "topics": commits}
    yield 10, 4, {"key_type": 1, "coordinator_keys": [ID]}
    begun = yield (
        22,
        4,
        {
            "transactional_id": ID,
            "transaction_timeout": 600_000,
            "producer_id": -1,
            "producer_epoch": -1,
        },
    )
    yield (
        24,
        3,
        {
            "v3_and_below_transactional_id": ID,
            "v3_and_below_producer_id": begun.producer_id,
            "v3_and_below_producer_epoch": begun.producer_epoch,
            "v3_and_below_topics": [{"name": TOPIC, "partitions": [0, 1]}],
        },
    )
    entity = [{"entity_type": "user", "entity_name": USER}]
    ops = [{"key": "producer_byte_rate", "value": 1e9, "remove": False}]
    yield 49, 1, {"entries": [{"entity": entity, "ops": ops}], "validate_only": False}
    return Facts(ids, begun.producer_id, begun.producer_epoch)


def versions_of(case: Case) -> range:
    """Return the versions in which a case is asked."""
    served = rows()[case.key].versions
    return range(max(case.since, served.start), min(case.until + 1, served.stop))


def grants(case: Case) -> Iterator[tuple[str, tuple[Need, ...]]]:
    """Yield sets of rights with their names: none, all but one, and all."""
    if case.needs:
        yield "none", ()
    if len(case.needs) > 1:
        for need in case.needs:
            yield f"without {need}", tuple(each for each in case.needs if each != need)
    yield "all", case.needs


def creation_of(need: Need, host: str) -> dict[str, Any]:
    """Return the row of CreateAcls that grants a right to clients of an address."""
    prefixed = need.name.startswith(DOOMED)
    return {
        "resource_type": CODE_OF[need.kind],
        "resource_name": need.name,
        "resource_pattern_type": 4 if prefixed else 3,
        "principal": "User:*",
        "host": host,
        "operation": CODE_OF[need.operation],
        "permission_type": 3,
    }


def pattern_of(need: Need) -> PatternType:
    return PatternType.PREFIXED if need.name.startswith(DOOMED) else PatternType.LITERAL


def denials(entity: Any) -> list[str]:
    """Return the names of the codes in an answer that refuse for want of a right, sorted."""
    if isinstance(entity, ErrorCode):
        return [entity.name] if entity in DENIALS else []
    if isinstance(entity, list | tuple):
        return sorted(name for each in entity for name in denials(each))
    if dataclasses.is_dataclass(entity):
        values = {each.name: getattr(entity, each.name) for each in dataclasses.fields(entity)}
        codes = [ErrorCode(each) for name, each in values.items() if name.endswith("error_code")]
        others = [each for name, each in values.items() if not name.endswith("error_code")]
        return sorted(name for each in (*codes, *others) for name in denials(each))
    return []


_KEPT = (
    "name",
    "topic",
    "topic_id",
    "group_id",
    "key",
    "transactional_id",
    "topic_name",
    "resource_name",
    "resource_type",
    "partition",
    "partition_index",
    "partition_id",
    "index",
    "is_internal",
    "user",
    "filter_type",
)
_LEFT_OUT = ("brokers", "nodes", "configs", "synonyms", "current_voters")


def reduced(entity: Any, ids: dict[UUID, str]) -> Any:
    """Return an answer as JSON: codes, the texts of refusals, names, and bits of operations."""
    if isinstance(entity, list | tuple):
        return sorted((reduced(each, ids) for each in entity), key=repr)
    if not dataclasses.is_dataclass(entity):
        return entity
    found: dict[str, Any] = {}
    for field in dataclasses.fields(entity):
        name, value = field.name, getattr(entity, field.name)
        if name.endswith("error_code"):
            found[name] = ErrorCode(value).name
        elif name == "error_message":
            found[name] = _text(value)
        elif isinstance(value, UUID):
            found[name] = ids.get(value, "an id") if value.int else None
        elif name in _KEPT or name.endswith("authorized_operations"):
            found[name] = value
        elif isinstance(value, list | tuple) and name not in _LEFT_OUT:
            rows_of = [each for each in value if not isinstance(each, int)]  # no nodes, no offsets
            found[name] = reduced(rows_of, ids)
    return found


def _text(text: str | None) -> str | None:
    """Return a text. Kafka's text of a cluster that is not allowed quotes the whole request."""
    if text is not None and text.startswith("Request "):
        return "a refusal"
    return None if text is None else re.sub(r"Local controller \d+", "Local controller", text)
