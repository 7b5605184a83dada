"""The service info of a registered bookie: its endpoints and its rack.

The bytes are Apache BookKeeper's BookieServiceInfoFormat. Bookies of this project publish one
endpoint for each transport, `bookie-tcp` and `bookie-grpc`, and as properties the rack and a random
id of the start. Releases before the TCP transport publish and use only `bookie-grpc`. A bookie that
restarts within its session is seen by the new id. Source: BookKeeper,
`discover/BookieServiceInfoUtils.java`, `ZKRegistrationManager.java`.
"""

from __future__ import annotations

from ledger.errors import CorruptFormat
from ledger.ids import BookieId
from ledger.ports.bookies import DEFAULT_RACK, BookieInfo

GRPC_PROTOCOL = "bookie-grpc"
TCP_PROTOCOL = "bookie-tcp"
"""Never `bookie-rpc`: Java's client would try to use it."""
_JAVA_PROTOCOL = "bookie-rpc"
_RACK = "rack"
_START = "start"


def encode(bookie: BookieId, info: BookieInfo) -> bytes:
    """Encode the data of a bookie's node. The node's path shows whether the bookie is read-only."""
    from ledger.wire.bookie_formats_pb2 import BookieServiceInfoFormat

    properties = {_RACK: info.rack} | ({_START: info.start} if info.start else {})
    message = BookieServiceInfoFormat(properties=properties)
    ports = {GRPC_PROTOCOL: info.port, TCP_PROTOCOL: info.tcp_port}
    for protocol, port in ports.items():
        if port or (protocol == GRPC_PROTOCOL and not info.tcp_port):
            message.endpoints.add(id=bookie, port=port, host=info.host, protocol=protocol)
    return message.SerializeToString(deterministic=True)


def decode(data: bytes, bookie: BookieId, *, read_only: bool) -> BookieInfo:
    """Decode the endpoints of `bookie`. Raises CorruptFormat.

    Without an endpoint of ours (Apache BookKeeper's own bookies) the `bookie-rpc` endpoint is used.
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
    tcp = by_protocol.get(TCP_PROTOCOL)
    endpoint = by_protocol.get(GRPC_PROTOCOL) or tcp or by_protocol.get(_JAVA_PROTOCOL)
    if endpoint is None:
        raise CorruptFormat(
            f"service info of bookie {bookie}: no endpoint {TCP_PROTOCOL} or {GRPC_PROTOCOL}"
        )
    start = message.properties.get(_START) or ""
    port = 0 if endpoint is tcp else endpoint.port
    tcp_port = 0 if tcp is None else tcp.port
    return BookieInfo(endpoint.host, port, rack, read_only, start, tcp_port)


def _host_and_port(bookie: BookieId) -> tuple[str, int]:
    host, _, port = bookie.rpartition(":")
    if not host or not port.isascii() or not port.isdigit():
        raise CorruptFormat(
            f"bookie {bookie} has registered no address, and its id is not host:port"
        )
    return host, int(port)
