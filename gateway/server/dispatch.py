"""Turns a frame into a request for the handler of its key, and a result into the reply's bytes.

Nothing here waits. A request that cannot be answered raises `RequestRefused`, which closes its
connection.
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from gateway.core.address_share import share_of
from gateway.core.shown_text import shown
from gateway.handlers.api import Api, Context, Handle, Peer, Reply, Request
from gateway.handlers.k18_api_versions import reply_for
from gateway.handlers.request_metrics import RequestMetrics, first_error
from gateway.log import ReasonThrottle, logger, traceback_of
from gateway.wire.bounds_check import OversizedMessage, skip_tags
from gateway.wire.messages import (
    PRIVATE_CODEC,
    MalformedMessage,
    RequestCodec,
    decode_with,
    encode_response,
    request_codec,
)
from gateway.wire.produce_reply import PartitionProduced, encode_produce
from gateway.wire.schema import API_VERSIONS, NoSuchSchema, response_class
from ledger.ids import Buffer
from ledger.ports.clock import measured_s

PRODUCE, FETCH = 0, 1
DECODE_TIMED_BYTES = 64 * 1024
"""The decoding of a smaller Produce or Fetch is not timed: it is a small part of a slow one."""
UNKNOWN_SERVER_ERROR = -1
REQUEST_TIMED_OUT = 7
UNSUPPORTED_VERSION = 35

# Request header: key, version, correlation id, length of the client id
_HEAD = struct.Struct(">hhih")
_head_of = _HEAD.unpack_from
_HEAD_BYTES = _HEAD.size
_CLIENT_IDS_MAX, _CLIENT_ID_BYTES_MAX = 1024, 128  # ids that are kept, and the longest of them


class RequestRefused(Exception):
    """This request gets no reply, and its connection has to end. The text is for the log."""


class _Route(NamedTuple):
    """The handler and codec of one key and version. Built at first use, because schemas load
    lazily.
    """

    version: int  # version of the reply
    handle: Handle
    codec: RequestCodec | None  # None for a request whose body is not decoded
    decode: Callable[[int, Buffer, int], Any] | None = None  # decodes the body in place of kio
    elements_max: int = 0  # array elements that the body may have
    timed_from_bytes: int = 0  # the decoding of smaller requests is not timed


class Dispatcher:
    """Routes the requests of a process to the handlers of its API table."""

    def __init__(
        self, apis: Mapping[int, Api], ctx: Context, metrics: RequestMetrics | None = None
    ) -> None:
        """Create the dispatcher. Without `metrics` nothing is counted but for itself."""
        self._apis = apis  # APIs by key; never changes
        self._ctx = ctx
        self.metrics = metrics or RequestMetrics()
        self.metrics.serve({key: api.name for key, api in apis.items()})
        # Routes used so far, by key and version. Bounded by the versions that are served.
        self._routes: dict[tuple[int, int], _Route] = {}
        # Decoded client ids by their bytes. Emptied at the limit, because clients choose the ids.
        self._client_ids: dict[bytes, str] = {}
        # The failures that were logged within a minute.
        self._throttle = ReasonThrottle()

    def open(
        self, frame: bytes | memoryview, peer: Peer, begun_s: float = 0.0
    ) -> tuple[Request, Handle]:
        """Decode `frame`. Returns the request and its handler. Raises RequestRefused.

        `begun_s` is when the whole frame was there, on the clock of `measured_s`; 0 is now.
        """
        begun_s = begun_s or measured_s()
        try:
            key, version, correlation_id, name_bytes = _head_of(frame)
        except struct.error:
            raise RequestRefused("header cut short") from None
        route = self._routes.get((key, version)) or self._route(key, version)
        client_id, position = self._client_id(frame, name_bytes)
        body = None
        codec = route.codec
        if codec is not None:
            try:
                if codec.flexible:
                    position = skip_tags(frame, position)
                if route.decode is None:
                    body = decode_with(codec, frame, position, route.elements_max)
                else:
                    body = route.decode(version, frame, position)
            except (OversizedMessage, MalformedMessage) as error:
                raise RequestRefused(f"malformed {error}") from None
        request = Request(key, route.version, correlation_id, client_id, peer, body)
        request.begun_s = begun_s
        if len(frame) >= route.timed_from_bytes:
            request.decoded_s = measured_s()
        return request, route.handle

    def start(self, request: Request, handle: Handle) -> Any:
        """Call the handler. Returns a Result, or a future or coroutine of a Result."""
        return handle(request, self._ctx)

    def encode(self, request: Request, result: Any) -> list[Buffer] | tuple[Buffer, ...]:
        """Encode a Result without the frame size. Raises TypeError.

        Returns () if the request gets no reply.
        """
        if isinstance(result, list):  # first, because the hot paths encode their replies themselves
            return result  # pyright: ignore[reportUnknownVariableType]
        if isinstance(result, Reply):
            request.error = request.error or first_error(result)
            return encode_response(request.key, request.version, request.correlation_id, result)
        if isinstance(result, tuple):
            return result  # pyright: ignore[reportUnknownVariableType]
        if result is None:
            return ()
        raise TypeError(f"a handler of key {request.key} gave a {type(result).__name__}")

    def error_reply(self, request: Request, error: BaseException) -> list[Buffer]:
        """Encode the reply of a failed handler.

        Raises RequestRefused if the API has no error field. A producer receives REQUEST_TIMED_OUT,
        the only code that means "unknown". After UNKNOWN_SERVER_ERROR, an idempotent producer would
        assign a new sequence to its batch, which duplicates the batch. Source: KAFKA-14034.
        """
        name = self._apis[request.key].name
        self._log_failure(name, request, error)
        try:
            request.error = UNKNOWN_SERVER_ERROR
            if request.key == PRODUCE:
                request.error = REQUEST_TIMED_OUT
                return [_timed_out(request)]
            if "error_code" not in response_class(request.key, request.version).__slots__:
                raise RequestRefused(f"{name} failed")
            failed = Reply(error_code=UNKNOWN_SERVER_ERROR)
            return encode_response(request.key, request.version, request.correlation_id, failed)
        except (LookupError, TypeError, AttributeError, struct.error):
            raise RequestRefused(f"{name} failed") from None

    def _log_failure(self, name: str, request: Request, error: BaseException) -> None:
        """Log the failure, at most once a minute for each API, address and type of error."""
        host, kind = share_of(request.peer.host), type(error).__name__
        if not self._throttle.allows(name, host, kind, asyncio.get_running_loop().time()):
            return
        client = request.client_id
        logger().error(
            "handler failed",
            api=name,
            version=request.version,
            peer=request.peer.host,
            client=client if client is None else shown(client),
            exception=traceback_of(error),
        )

    def _route(self, key: int, version: int) -> _Route:
        api = self._apis.get(key)
        if api is None:
            raise RequestRefused(f"unknown api key {key}")
        if version not in api.versions:
            if key != API_VERSIONS:
                raise RequestRefused(f"{api.name} version {version} is not served")
            return _Route(0, self._unsupported, None)
        try:
            codec = PRIVATE_CODEC if api.private else request_codec(key, version)
        except NoSuchSchema as error:
            raise RequestRefused(f"no schema for {error}") from None
        timed = DECODE_TIMED_BYTES if key in (PRODUCE, FETCH) else 0
        route = _Route(version, api.handle, codec, api.decode, api.elements_max, timed)
        self._routes[key, version] = route
        return route

    def _unsupported(self, request: Request, ctx: Context) -> Reply:
        request.peer.looked_up += 1
        return reply_for([self._apis[API_VERSIONS]], UNSUPPORTED_VERSION)

    def _client_id(self, frame: bytes | memoryview, name_bytes: int) -> tuple[str | None, int]:
        """Return the client id, and the position where the header continues."""
        if name_bytes <= 0:
            if name_bytes < -1:
                raise RequestRefused("client id of negative length")
            return (None if name_bytes else ""), _HEAD_BYTES
        end = _HEAD_BYTES + name_bytes
        if end > len(frame):
            raise RequestRefused("client id cut short")
        raw = bytes(frame[_HEAD_BYTES:end])
        known = self._client_ids.get(raw)
        if known is not None:
            return known, end
        try:
            name = raw.decode()
        except UnicodeDecodeError:
            raise RequestRefused("client id is not UTF-8") from None
        if name_bytes <= _CLIENT_ID_BYTES_MAX:
            if len(self._client_ids) >= _CLIENT_IDS_MAX:
                self._client_ids.clear()
            self._client_ids[raw] = name
        return name, end


def _timed_out(request: Request) -> bytes:
    """Encode REQUEST_TIMED_OUT for each partition. Raises RequestRefused for acks=0."""
    if request.body.acks == 0:
        raise RequestRefused("Produce with acks=0 failed")
    by_id = request.version >= 13
    topics = [
        (
            topic.topic_id if by_id else topic.name,
            [PartitionProduced(each.index, REQUEST_TIMED_OUT) for each in topic.partition_data],
        )
        for topic in request.body.topic_data
    ]
    return encode_produce(request.version, request.correlation_id, topics)
