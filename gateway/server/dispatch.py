"""A frame becomes a request for the row that serves it; a result becomes the bytes of its answer.

Nothing here waits. What cannot be answered raises `Refused`: the connection is closed.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import Any, NamedTuple

from gateway.handlers.api import Api, Context, Handle, Peer, Reply, Request
from gateway.handlers.k18_api_versions import reply_for
from gateway.log import logger
from gateway.wire.bounds_check import OversizedMessage, skip_tags
from gateway.wire.messages import (
    MalformedMessage,
    RequestCodec,
    decode_with,
    encode_response,
    request_codec,
)
from gateway.wire.produce_reply import PartitionProduced, encode_produce
from gateway.wire.schema import NoSuchSchema, response_class
from ledger.ids import Buffer

PRODUCE = 0
API_VERSIONS = 18
UNKNOWN_SERVER_ERROR = -1
REQUEST_TIMED_OUT = 7
UNSUPPORTED_VERSION = 35

_HEAD = struct.Struct(">hhih")  # key, version, correlation id, length of the client id
_head_of = _HEAD.unpack_from
_HEAD_BYTES = _HEAD.size
_CLIENT_IDS_MAX = 1024


class Refused(Exception):
    """This request gets no answer: its connection has to end. The text is for the log."""


class _Route(NamedTuple):
    """What one key and version leads to. Built at first use: schemas load lazily."""

    version: int  # of the answer
    handle: Handle
    codec: RequestCodec | None  # None: the body is not read


class Dispatcher:
    """The rows of this process, and the way from bytes to them and back."""

    def __init__(self, apis: Mapping[int, Api], ctx: Context) -> None:
        self._apis = apis
        self._ctx = ctx
        self._routes: dict[tuple[int, int], _Route] = {}
        self._client_ids: dict[bytes, str] = {}

    def open(self, frame: bytes | memoryview, peer: Peer) -> tuple[Request, Handle]:
        """The request in `frame` and who handles it. Raises Refused."""
        try:
            key, version, correlation_id, name_bytes = _head_of(frame)
        except struct.error:
            raise Refused("header cut short") from None
        route = self._routes.get((key, version)) or self._route(key, version)
        client_id, position = self._client_id(frame, name_bytes)
        body = None
        codec = route.codec
        if codec is not None:
            try:
                if codec.flexible:
                    position = skip_tags(frame, position)
                body = decode_with(codec, frame, position)
            except (OversizedMessage, MalformedMessage) as error:
                raise Refused(f"malformed {error}") from None
        return Request(key, route.version, correlation_id, client_id, peer, body), route.handle

    def start(self, request: Request, handle: Handle) -> Any:
        """What the handler said: a Result, or a future or coroutine of one. Raises its errors."""
        return handle(request, self._ctx)

    def encode(self, request: Request, result: Any) -> list[Buffer] | tuple[Buffer, ...]:
        """The bytes of a Result, frame size not included; () for no answer. Raises TypeError."""
        if isinstance(result, Reply):
            return encode_response(request.key, request.version, request.correlation_id, result)
        if isinstance(result, list | tuple):
            return result  # pyright: ignore[reportUnknownVariableType]
        if result is None:
            return ()
        raise TypeError(f"a handler of key {request.key} gave a {type(result).__name__}")

    def apology(self, request: Request, error: BaseException) -> list[Buffer]:
        """The answer where a handler failed. Raises Refused where the API has no room for one.

        A producer is told REQUEST_TIMED_OUT, the one code that means "unknown": after
        UNKNOWN_SERVER_ERROR an idempotent one would give its batch a new sequence and duplicate it.
        Source: KAFKA-14034.
        """
        name = self._apis[request.key].name
        logger().error(
            "handler failed",
            api=name,
            version=request.version,
            client=request.client_id,
            exc_info=error,
        )
        try:
            if request.key == PRODUCE:
                return [_timed_out(request)]
            if "error_code" not in response_class(request.key, request.version).__slots__:
                raise Refused(f"{name} failed")
            failed = Reply(error_code=UNKNOWN_SERVER_ERROR)
            return encode_response(request.key, request.version, request.correlation_id, failed)
        except (LookupError, TypeError, AttributeError, struct.error):
            raise Refused(f"{name} failed") from None

    def _route(self, key: int, version: int) -> _Route:
        api = self._apis.get(key)
        if api is None:
            raise Refused(f"unknown api key {key}")
        if version not in api.versions:
            if key != API_VERSIONS:
                raise Refused(f"{api.name} version {version} is not served")
            return _Route(0, self._unsupported, None)
        try:
            codec = request_codec(key, version)
        except NoSuchSchema as error:
            raise Refused(f"no schema for {error}") from None
        route = _Route(version, api.handle, codec)
        self._routes[key, version] = route
        return route

    def _unsupported(self, request: Request, ctx: Context) -> Reply:
        return reply_for(self._apis.values(), UNSUPPORTED_VERSION)

    def _client_id(self, frame: bytes | memoryview, name_bytes: int) -> tuple[str | None, int]:
        """The client's name for itself, and where the header goes on."""
        if name_bytes <= 0:
            if name_bytes < -1:
                raise Refused("client id of negative length")
            return (None if name_bytes else ""), _HEAD_BYTES
        end = _HEAD_BYTES + name_bytes
        if end > len(frame):
            raise Refused("client id cut short")
        raw = bytes(frame[_HEAD_BYTES:end])
        known = self._client_ids.get(raw)
        if known is not None:
            return known, end
        try:
            name = raw.decode()
        except UnicodeDecodeError:
            raise Refused("client id is not UTF-8") from None
        if len(self._client_ids) >= _CLIENT_IDS_MAX:
            self._client_ids.clear()
        self._client_ids[raw] = name
        return name, end


def _timed_out(request: Request) -> bytes:
    """REQUEST_TIMED_OUT for each partition of a Produce. Raises Refused for acks=0."""
    if request.body.acks == 0:
        raise Refused("Produce with acks=0 failed")
    by_id = request.version >= 13
    topics = [
        (
            topic.topic_id if by_id else topic.name,
            [PartitionProduced(each.index, REQUEST_TIMED_OUT) for each in topic.partition_data],
        )
        for topic in request.body.topic_data
    ]
    return encode_produce(request.version, request.correlation_id, topics)
