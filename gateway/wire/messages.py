"""Decodes requests into kio's entities, and encodes replies from dictionaries.

Handlers do not depend on versions. They fill a Reply with every field, and the encoder takes the
fields of the version's schema. Schemas are loaded at first use (3-15 ms each) and stay in memory.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, Final, NamedTuple, cast

from gateway.wire.bounds_check import (
    ELEMENTS_MAX,
    OversizedMessage,
    Skip,
    check_bounds,
    skip_tags,
    walker,
)
from gateway.wire.encode import EncodedRows, Put, rows_writer, struct_writer
from gateway.wire.schema import request_class, response_class
from ledger.ids import Buffer

__all__ = [
    "EncodedRows",
    "MalformedMessage",
    "RequestCodec",
    "decode_request",
    "decode_response",
    "decode_with",
    "encode_request",
    "encode_request_body",
    "encode_request_header",
    "encode_response",
    "encode_rows",
    "request_codec",
]

_REQUEST_HEADER = struct.Struct(">hhih")
_CORRELATION = struct.Struct(">i")


class MalformedMessage(ValueError):
    """The error that bytes do not decode as the expected message. No reply is possible."""


class RequestCodec(NamedTuple):
    """The decoder of one API key and version. A `flexible` request header has tagged fields."""

    read: Callable[[Buffer, int], tuple[Any, int]]
    flexible: bool
    entity: type[Any]
    walk: Skip


def _no_reader(buffer: Buffer, offset: int) -> tuple[Any, int]:
    raise AssertionError("a private request has a decoder of its own")


PRIVATE_KEY: Final = 32_100
"""The key of the private request."""

PRIVATE_CODEC: Final = RequestCodec(_no_reader, True, dict, cast(Any, _no_reader))
"""Stands for a codec of a private request, of which the dispatcher sees the form of the header."""


@cache
def request_codec(key: int, version: int) -> RequestCodec:
    """Return the codec of a request. Raises NoSuchSchema."""
    from kio._kio_native import entity_reader

    entity = request_class(key, version)
    flexible = entity.__header_schema__.__flexible__
    return RequestCodec(entity_reader(entity), flexible, entity, walker(entity))


def decode_request(key: int, version: int, buffer: Buffer, offset: int) -> Any:
    """Decode the request body at `offset` into kio's entity.

    `buffer` must be bytes or a read-only memoryview. Bytes after the body are ignored, as in Kafka.
    Raises MalformedMessage or NoSuchSchema.
    """
    return decode_with(request_codec(key, version), buffer, offset)


def decode_with(
    codec: RequestCodec, buffer: Buffer, offset: int, elements_max: int = ELEMENTS_MAX
) -> Any:
    """Decode as `decode_request` does, with a given codec. Raises MalformedMessage.

    A body with more than `elements_max` array elements is malformed.
    """
    try:
        buffer, offset = check_bounds(codec.walk, buffer, offset, elements_max)
    except OversizedMessage as error:
        raise MalformedMessage(f"{codec.entity.__name__}: {error}") from error
    try:
        return codec.read(buffer, offset)[0]
    except Exception as error:  # kio raises many types of errors, always because of the bytes
        raise MalformedMessage(f"{codec.entity.__name__}: {error}") from error


class ResponseCodec(NamedTuple):
    """The encoder of one API key and version."""

    put: Put
    flexible: bool  # whether the response header is flexible


@cache
def response_codec(key: int, version: int) -> ResponseCodec:
    """Return the codec of a response. Raises NoSuchSchema.

    ApiVersions has the oldest response header in every version, also in kio's schema.
    """
    entity = response_class(key, version)
    return ResponseCodec(struct_writer(entity), entity.__header_schema__.__flexible__)


def encode_response(
    key: int, version: int, correlation_id: int, reply: Mapping[str, Any]
) -> list[Buffer]:
    """Encode response header and body, without the frame size.

    Raises NoSuchSchema. Raises TypeError or struct.error if a value does not fit its field.
    """
    codec = response_codec(key, version)
    out = bytearray(_CORRELATION.pack(correlation_id))
    if codec.flexible:
        out.append(0)
    codec.put(out, reply)
    return [out]


def encode_rows(key: int, version: int, *path: str) -> EncodedRows:
    """Return empty rows for an array of the response, which `path` names from the body on."""
    return rows_writer(response_class(key, version), path)


def encode_request(
    key: int,
    version: int,
    correlation_id: int,
    client_id: str | None,
    body: Mapping[str, Any],
) -> bytes:
    """Encode request header and body, without the frame size, for this project's clients."""
    out = encode_request_header(key, version, correlation_id, client_id)
    out += encode_request_body(key, version, body)
    return bytes(out)


def encode_request_header(
    key: int, version: int, correlation_id: int, client_id: str | None
) -> bytearray:
    """Encode the header of a request. Raises NoSuchSchema."""
    name = None if client_id is None else client_id.encode()
    out = bytearray(
        _REQUEST_HEADER.pack(key, version, correlation_id, -1 if name is None else len(name))
    )
    out += name or b""
    if request_class(key, version).__header_schema__.__flexible__:
        out.append(0)
    return out


def encode_request_body(key: int, version: int, body: Mapping[str, Any]) -> bytearray:
    """Encode the body of a request. Raises NoSuchSchema."""
    out = bytearray()
    struct_writer(request_class(key, version))(out, body)
    return out


class Response(NamedTuple):
    """A decoded response."""

    correlation_id: int
    body: Any  # the decoded kio entity


def decode_response(key: int, version: int, buffer: Buffer) -> Response:
    """Decode a response without its frame size. Raises MalformedMessage."""
    from kio._kio_native import entity_reader

    entity = response_class(key, version)
    readable = buffer if isinstance(buffer, bytes) else memoryview(buffer).toreadonly()
    flexible = entity.__header_schema__.__flexible__
    try:
        correlation_id: int = _CORRELATION.unpack_from(readable)[0]
        start = skip_tags(readable, _CORRELATION.size) if flexible else _CORRELATION.size
        body, at = check_bounds(walker(entity), readable, start)
        return Response(correlation_id, entity_reader(entity)(body, at)[0])
    except Exception as error:  # kio raises many types of errors, always because of the bytes
        raise MalformedMessage(f"{entity.__name__}: {error}") from error
