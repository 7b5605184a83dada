"""A case as data: the requests that one script sends, with placeholders for what servers choose.

A step is plain data, so that a recording contains the whole case. A value that only a server knows,
such as a topic id, is a `Taken`: the number of an earlier step and the field of its answer. A
`Batch` is encoded when its request is sent, because its checksum covers the producer id.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

from gateway.wire.messages import encode_request
from tests.batches import raw_batch, record

CLIENT_ID = "differential"
_PART = re.compile(r"([a-z_0-9]+)((?:\[\d+\])*)")


@dataclass(frozen=True, slots=True)
class Taken:
    """A value of an earlier answer: the number of its step, and the path of the field."""

    step: int
    path: str


@dataclass(frozen=True, slots=True)
class Batch:
    """A record batch. Records are (milliseconds after the first, key, value).

    `header` has the arguments of `raw_batch`; each may be a `Taken`.
    """

    records: tuple[tuple[int, bytes | None, bytes | None], ...]
    header: dict[str, Any] = field(default_factory=dict[str, Any])

    def encode(self, bind: dict[str, Any]) -> bytes:
        """Return the bytes; `bind` has the header with every value known."""
        inside = b"".join(
            record(at, delta, key, value) for at, (delta, key, value) in enumerate(self.records)
        )
        base = bind.pop("base_timestamp", 1000)
        latest = base + max((delta for delta, _, _ in self.records), default=0)
        bind.setdefault("max_timestamp", latest)
        return raw_batch(inside, bind.pop("count", len(self.records)), base_timestamp=base, **bind)


@dataclass(frozen=True, slots=True)
class Step:
    """One action of a case.

    `ask` sends a request and reads its answer. `send` only sends it, and a later `receive` reads
    the answer. `drop` closes the connection. `expect_close` waits until the server closes it.
    """

    action: str
    key: int = 0
    version: int = 0
    body: Any = None
    """The fields by kio's names, or the bytes behind the request header."""
    flexible: bool = False
    """Whether the header of a body of bytes has tagged fields."""
    connection: str = "a"
    of: int = -1
    """The number of the `send` whose answer a `receive` reads."""
    reads: int = -1
    """The version in which the answer is decoded, if it is not the request's."""
    again: tuple[str, ...] = ()
    """The request is sent again while the answer contains one of these errors."""
    compared: bool = True
    own: str = ""
    """If set, rows of topics and groups whose names do not begin with it are left out."""

    def answer_version(self) -> int:
        return self.version if self.reads < 0 else self.reads


def frame_of(step: Step, number: int, answers: list[Any]) -> bytes:
    """Return the frame of a request without its size; `answers` has the decoded answers so far."""
    correlation_id = number + 1
    if isinstance(step.body, bytes):
        head = step.key.to_bytes(2, "big") + step.version.to_bytes(2, "big")
        head += correlation_id.to_bytes(4, "big") + len(CLIENT_ID).to_bytes(2, "big")
        return head + CLIENT_ID.encode() + (b"\0" if step.flexible else b"") + step.body
    body = bound(step.body, answers)
    return encode_request(step.key, step.version, correlation_id, CLIENT_ID, body)


def bound(value: Any, answers: list[Any]) -> Any:
    """Return `value` with every placeholder replaced by what this server answered."""
    if isinstance(value, Taken):
        return at_path(answers[value.step], value.path)
    if isinstance(value, Batch):
        return value.encode({name: bound(each, answers) for name, each in value.header.items()})
    if isinstance(value, dict):
        return {name: bound(each, answers) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [bound(each, answers) for each in value]
    return value


def at_path(entity: Any, path: str) -> Any:
    """Return the field of an answer at `path`, for example `topics[0].topic_id`."""
    for part in path.split("."):
        match = _PART.fullmatch(part)
        assert match is not None, path
        entity = getattr(entity, match[1])
        for index in re.findall(r"\d+", match[2]):
            entity = entity[int(index)]
    return entity


# -- as JSON --------------------------------------------------------------------------------------

_DEFAULT = Step("ask")
_FIELDS = tuple(Step.__dataclass_fields__)


def step_to_json(step: Step) -> dict[str, Any]:
    """Return the step without the fields that have their default."""
    given = {name: getattr(step, name) for name in _FIELDS}
    kept = {name: given[name] for name in _FIELDS if given[name] != getattr(_DEFAULT, name)}
    return {name: _to_json(value) for name, value in kept.items()}


def step_from_json(stored: dict[str, Any]) -> Step:
    given = {name: _from_json(value) for name, value in stored.items()}
    given["again"] = tuple(given.get("again", ()))
    return Step(**{"action": "ask", **given})


def _to_json(value: Any) -> Any:
    if isinstance(value, Taken):
        return {"$taken": [value.step, value.path]}
    if isinstance(value, Batch):
        return {"$batch": _to_json(value.records), "header": _to_json(value.header)}
    if isinstance(value, bytes):
        return {"$bytes": value.hex()}
    if isinstance(value, UUID):
        return {"$uuid": str(value)}
    if isinstance(value, dict):
        return {name: _to_json(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [_to_json(each) for each in value]
    assert value is None or isinstance(value, bool | int | float | str), value
    return value


def _from_json(value: Any) -> Any:
    if isinstance(value, list):
        return [_from_json(each) for each in value]
    if not isinstance(value, dict):
        return value
    if "$taken" in value:
        return Taken(*value["$taken"])
    if "$batch" in value:
        records = tuple(tuple(each) for each in _from_json(value["$batch"]))
        return Batch(records, _from_json(value["header"]))
    if "$bytes" in value:
        return bytes.fromhex(value["$bytes"])
    if "$uuid" in value:
        return UUID(value["$uuid"])
    return {name: _from_json(each) for name, each in value.items()}
