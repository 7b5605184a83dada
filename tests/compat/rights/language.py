"""The language of cases: one request of an API, and the rights on resources that it needs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple
from uuid import UUID

from gateway.access import CLUSTER, Operation, ResourceType
from gateway.handlers.rights import Right
from tests.batches import raw_batch, record

TOPIC, OTHER, GROUP, ID = "rights-t", "rights-u", "rights-g", "rights-x"
UNKNOWN = "rights-none"
NOTE = "SECRET-NOTE"
VALUE = b"SECRET-VALUE"
USER = "SECRET-USER"
DOOMED = "rights-doomed"


class Need(NamedTuple):
    """A right on one resource."""

    operation: Operation
    kind: ResourceType
    name: str

    @property
    def right(self) -> Right:
        return Right(self.operation, self.kind)

    def __str__(self) -> str:
        return f"{self.operation} {self.kind} {self.name}"


class Facts(NamedTuple):
    """What a server chose for the resources of the world."""

    ids: dict[str, UUID]
    producer_id: int
    producer_epoch: int


Body = Callable[[Facts, int], dict[str, Any]]


class Case(NamedTuple):
    """One request, in all versions between two, and the rights that it needs."""

    key: int
    name: str
    needs: tuple[Need, ...]
    body: Body
    since: int = 0
    until: int = 99
    hides: bool = False  # without a right something is missing, and nothing is refused

    def __str__(self) -> str:
        return f"{self.key}-{self.name} by {', '.join(map(str, self.needs))}"


CASES: list[Case] = []


def case(
    key: int, *needs: Need, since: int = 0, until: int = 99, hides: bool = False
) -> Callable[[Body], Body]:
    """Add a case, with the name of its function."""

    def add(body: Body) -> Body:
        name = body.__name__.strip("_").replace("_", "-")
        CASES.append(Case(key, name, needs, body, since, until, hides))
        return body

    return add


def on_topic(operation: str, name: str = TOPIC) -> Need:
    return Need(Operation(operation), ResourceType.TOPIC, name)


def on_group(operation: str, name: str = GROUP) -> Need:
    return Need(Operation(operation), ResourceType.GROUP, name)


def on_id(operation: str, name: str = ID) -> Need:
    return Need(Operation(operation), ResourceType.TRANSACTIONAL_ID, name)


def on_cluster(operation: str) -> Need:
    return Need(Operation(operation), ResourceType.CLUSTER, CLUSTER.name)


def named(facts: Facts, name: str, **more: Any) -> dict[str, Any]:
    return {"name": name, "topic": name, "topic_id": facts.ids.get(name), **more}


def transactional(facts: Facts) -> bytes:
    return raw_batch(
        record(0, 0, None, VALUE),
        attributes=0x10,
        producer=facts.producer_id,
        epoch=facts.producer_epoch,
        sequence=0,
    )
