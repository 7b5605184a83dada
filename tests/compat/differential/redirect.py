"""Plays a case on a cluster as a client does that knows no leaders.

Each request goes to one broker first, one about the configs of a broker to that broker. If it
refuses because it is neither leader nor coordinator, the request is sent again to the broker that
Metadata or FindCoordinator names. A request about partitions of two leaders is split, and the
answers are put together. So a case has the answers that one server would give. A case waits until
all brokers know its topics.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, NamedTuple

from gateway.wire.messages import encode_request, encode_response
from tests.compat.differential.connection import CLOSED, Address, Frame
from tests.compat.differential.play import Player, errors_in
from tests.compat.differential.routes import CONFIGS, METADATA, Cluster
from tests.compat.differential.steps import CLIENT_ID, Step

REFUSALS = {"not_leader_or_follower", "not_coordinator"}
FETCH = 1


class Rows(NamedTuple):
    """The arrays of a request and of its answer that have one row for each resource.

    The names of the inner arrays are empty where the rows have no partitions.
    """

    asked: str
    asked_inner: str
    answered: str
    answered_inner: str


_ROWS = {
    0: Rows("topic_data", "partition_data", "responses", "partition_responses"),
    1: Rows("topics", "partitions", "responses", "partitions"),
    2: Rows("topics", "partitions", "topics", "partitions"),
    21: Rows("topics", "partitions", "topics", "partitions"),
    23: Rows("topics", "partitions", "topics", "partitions"),
    61: Rows("topics", "partition_indexes", "topics", "partitions"),
    9: Rows("groups", "", "groups", ""),
    15: Rows("groups", "", "groups", ""),
    42: Rows("groups_names", "", "results", ""),
    69: Rows("group_ids", "", "groups", ""),
    65: Rows("transactional_ids", "", "transaction_states", ""),
}
_OF_ALL_BROKERS = {16: "groups", 66: "transaction_states"}
"""The rows of answers that each broker gives for itself."""


class Redirected(Player):
    """A player that begins at one broker of a cluster, and follows refusals to others."""

    def __init__(self, addresses: Sequence[Address]) -> None:
        self._addresses = list(addresses)
        self._cluster = Cluster(addresses)
        super().__init__(self._cluster)
        # Where the last Fetch with topics went, which later ones of its session follow.
        self._fetched_at = self._cluster.first

    def exchange(self, step: Step, number: int, frame: bytes) -> tuple[Frame, Any]:
        body = self.fields(step)
        rows = _ROWS.get(step.key)
        parts = _parts(body, rows) if rows is not None and isinstance(body, dict) else []
        if rows is not None and len(parts) > 1 and len(self._leaders(step.key, parts)) > 1:
            return self._merged(step, number, parts, rows)
        if step.key == METADATA and step.again:
            return self._known_by_all(step, number, frame)
        if step.key in _OF_ALL_BROKERS:
            return self._from_all(step, number, frame)
        in_session = step.key == FETCH and isinstance(body, dict) and body.get("session_id", 0) != 0
        address = self._fetched_at if in_session else self._cluster.first
        if step.key in CONFIGS:
            address = self._cluster.address(step.key, body)
        answer, entity = self._at(address, step, number, frame)
        if not REFUSALS & set(errors_in(entity)):
            return answer, entity
        address = self._cluster.address(step.key, body)
        if step.key == FETCH:
            self._fetched_at = address
        return self._at(address, step, number, frame)

    def _leaders(self, key: int, parts: Sequence[dict[str, Any]]) -> set[Address]:
        return {self._cluster.address(key, part) for part in parts}

    def _known_by_all(self, step: Step, number: int, frame: bytes) -> tuple[Frame, Any]:
        """Return an answer that is asked for again if there is one, otherwise the first one."""
        answers = [self._at(each, step, number, frame) for each in self._addresses]
        again = [each for each in answers if set(step.again) & set(errors_in(each[1]))]
        return (again or answers)[0]

    def _from_all(self, step: Step, number: int, frame: bytes) -> tuple[Frame, Any]:
        answers = [self._at(each, step, number, frame)[1] for each in self._addresses]
        rows = Rows("", "", _OF_ALL_BROKERS[step.key], "")
        return self._encoded(step, number, _joined(answers, rows))

    def _encoded(self, step: Step, number: int, entity: Any) -> tuple[Frame, Any]:
        body = _fields(entity)
        frames = encode_response(step.key, step.answer_version(), number + 1, body)
        answer = b"".join(bytes(each) for each in frames)
        return answer, self.entity(step, answer)

    def _at(self, address: Address, step: Step, number: int, frame: bytes) -> tuple[Frame, Any]:
        self.send_to(address, step, number, frame)
        answer = self.receive(step, number)
        return answer, self.entity(step, answer)

    def _merged(
        self, step: Step, number: int, parts: Sequence[dict[str, Any]], rows: Rows
    ) -> tuple[Frame, Any]:
        """Ask for each row at its own broker, and put the answers together."""
        answers: list[Any] = []
        for part in parts:
            frame = encode_request(step.key, step.version, number + 1, CLIENT_ID, part)
            address = self._cluster.address(step.key, part)
            answer, entity = self._at(address, step, number, frame)
            assert answer is not CLOSED, f"step {number}: closed after a redirect"
            answers.append(entity)
        return self._encoded(step, number, _joined(answers, rows))


def _parts(body: dict[str, Any], rows: Rows) -> Sequence[dict[str, Any]]:
    """Return one request for each row, with everything else as it was."""
    if not body.get(rows.asked):
        return []
    if not rows.asked_inner:
        return [{**body, rows.asked: [row]} for row in body[rows.asked]]
    return [
        {**body, rows.asked: [{**row, rows.asked_inner: [inner]}]}
        for row in body[rows.asked]
        for inner in row[rows.asked_inner]
    ]


def _joined(answers: Sequence[Any], rows: Rows) -> Any:
    """Return one answer with all rows, in which partitions of one topic are together."""
    found: dict[Any, Any] = {}
    for answer in answers:
        for at, row in enumerate(getattr(answer, rows.answered)):
            if not rows.answered_inner:
                found[len(found)] = row
                continue
            name = next(
                getattr(row, field)
                for field in ("topic_id", "topic", "name")
                if getattr(row, field, None) is not None
            )
            if (name, at) in found:
                inner = getattr(found[name, at], rows.answered_inner)
                inner = (*inner, *getattr(row, rows.answered_inner))
                row = dataclasses.replace(row, **{rows.answered_inner: inner})
            found[name, at] = row
    return dataclasses.replace(answers[0], **{rows.answered: tuple(found.values())})


def _fields(value: Any) -> Any:
    """Return an entity as the fields that the encoder takes."""
    if isinstance(value, tuple | list):
        return [_fields(each) for each in value]
    if dataclasses.is_dataclass(value):
        return {each.name: _fields(getattr(value, each.name)) for each in dataclasses.fields(value)}
    return value
