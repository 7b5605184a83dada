"""The service info of a registered bookie: its address and its rack.

The bytes are Apache BookKeeper's BookieServiceInfoFormat. Bookies of this project publish one
endpoint with the protocol `bookie-grpc`, and as properties the rack and a random id of the start. A
bookie that restarts within its session is seen by the new id. Source: BookKeeper,
`discover/BookieServiceInfoUtils.java`, `ZKRegistrationManager.java`.
"""

from __future__ import annotations

from ledger.errors import CorruptFormat
from ledger.ids import BookieId
from ledger.ports.bookies import DEFAULT_RACK, BookieInfo

PROTOCOL = "bookie-grpc"
_JAVA_PROTOCOL = "bookie-rpc"
_RACK = "rack"
_START = "start"


def encode(bookie: BookieId, info: BookieInfo) -> bytes:
    """Encode the data of a bookie's node. The node's path shows whether the bookie is read-only."""
    from ledger.wire.bookie_formats_pb2 import BookieServiceInfoFormat

    properties = {_RACK: info.rack} | ({_START: info.start} if info.start else {})
    message = BookieServiceInfoFormat(properties=properties)
    message.endpoints.add(id=bookie, port=info.port, host=info.host, protocol=PROTOCOL)
    return message.SerializeToString(deterministic=True)


def decode(data: bytes, bookie: BookieId, *, read_only: bool) -> BookieInfo:
    """Decode the address of `bookie`. Raises CorruptFormat.

    Without a gRPC endpoint (Apache BookKeeper's own bookies) the `bookie-rpc` endpoint is used.
    Without any data the bookie's id is its address, `host:port`.
    """
    if not data:
        host, port = _host_and_port(bookie)
        return BookieInfo(host, port, DEFAULT_RACK, read_only)
    from google.protobuf.message import DecodeError

    from ledger.wire.bookie_formats_pb2 import BookieServiceInfoFormat

    try:
        message = BookieServiceInfoFormat.FromString(data)
    except DecodeError as error:
        raise CorruptFormat(f"service info of bookie {bookie}: {error}") from error
    rack = message.properties.get(_RACK) or DEFAULT_RACK
    by_protocol = {endpoint.protocol: endpoint for endpoint in reversed(message.endpoints)}
    endpoint = by_protocol.get(PROTOCOL) or by_protocol.get(_JAVA_PROTOCOL)
    if endpoint is None:
        raise CorruptFormat(f"service info of bookie {bookie}: no endpoint {PROTOCOL}")
    start = message.properties.get(_START) or ""
    return BookieInfo(endpoint.host, endpoint.port, rack, read_only, start)


def _host_and_port(bookie: BookieId) -> tuple[str, int]:
    host, _, port = bookie.rpartition(":")
    if not host or not port.isascii() or not port.isdigit():
        raise CorruptFormat(
            f"bookie {bookie} has registered no address, and its id is not host:port"
        )
    return host, int(port)
