"""The private request between programs of this project, for what Kafka's protocol does not carry.

It has Kafka's frame and headers (request header v2, response header v1) and a key that Kafka does
not use. ApiVersions does not list it. Both bodies are one JSON object in UTF-8. A request is only
sent to a server whose ApiVersions lists the feature `gateway.version`.
"""

from __future__ import annotations

import json
import struct
from typing import Any, Final, cast

from gateway.wire.messages import PRIVATE_KEY as KEY
from gateway.wire.messages import MalformedMessage
from ledger.ids import Buffer

VERSION: Final = 0
BODY_BYTES_MAX: Final = 4_096  # of a request
ANSWER_BYTES_MAX: Final = 8 * 1024 * 1024  # a client refuses a larger one

_REQUEST_HEAD = struct.Struct(">hhi")
_RESPONSE_HEAD = struct.Struct(">ib")  # correlation id, no tagged fields


def encode_request(correlation_id: int, client_id: str, body: dict[str, Any]) -> bytes:
    """Return a request without the frame size."""
    name = client_id.encode()
    head = _REQUEST_HEAD.pack(KEY, VERSION, correlation_id)
    return head + len(name).to_bytes(2, "big") + name + b"\0" + json.dumps(body).encode()


def decode_body(version: int, frame: Buffer, offset: int) -> dict[str, Any]:
    """Return the body of a request. Raises MalformedMessage."""
    if len(frame) - offset > BODY_BYTES_MAX:
        raise MalformedMessage(f"private request of {len(frame) - offset} bytes")
    return _object(bytes(frame[offset:]), "request")


def encode_answer(correlation_id: int, body: dict[str, Any]) -> list[Buffer]:
    """Return an answer without the frame size."""
    return [_RESPONSE_HEAD.pack(correlation_id, 0), json.dumps(body).encode()]


def decode_answer(data: bytes) -> tuple[int, dict[str, Any]]:
    """Return the correlation id and the body of an answer. Raises MalformedMessage."""
    if len(data) > ANSWER_BYTES_MAX:
        raise MalformedMessage(f"private answer of {len(data)} bytes")
    try:
        correlation_id, tags = _RESPONSE_HEAD.unpack_from(data)
    except struct.error:
        raise MalformedMessage("private answer cut short") from None
    if tags:
        raise MalformedMessage("private answer with tagged fields")
    return correlation_id, _object(data[_RESPONSE_HEAD.size :], "answer")


def _object(data: bytes, what: str) -> dict[str, Any]:
    try:
        found: Any = json.loads(data)
    except (ValueError, RecursionError):
        raise MalformedMessage(f"private {what} that is not JSON") from None
    if not isinstance(found, dict):
        raise MalformedMessage(f"private {what} that is no object")
    return cast("dict[str, Any]", found)
