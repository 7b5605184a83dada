"""Encodes the tagged field of Produce and Fetch with the addresses of the named leaders.

Source: KIP-951; ProduceResponse.json (v10), FetchResponse.json (v16).
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import NamedTuple

from gateway.wire.encode import put_varint

_INT32 = struct.Struct(">i")
_TAG = 0


class NodeEndpoint(NamedTuple):
    """The node id, host, port and rack of a broker."""

    node_id: int
    host: str
    port: int
    rack: str | None = None


def put_node_endpoints(out: bytearray, nodes: Sequence[NodeEndpoint]) -> None:
    """Append the tag section at the end of a response, with `nodes` if not empty."""
    if not nodes:
        out.append(0)
        return
    field = bytearray()
    put_varint(field, len(nodes) + 1)
    for node in nodes:
        field += _INT32.pack(node.node_id)
        _put_text(field, node.host)
        field += _INT32.pack(node.port)
        if node.rack is None:
            field.append(0)
        else:
            _put_text(field, node.rack)
        field.append(0)
    out += bytes((1, _TAG))
    put_varint(out, len(field))
    out += field


def endpoints_bytes(nodes: Sequence[NodeEndpoint]) -> int:
    """Return the size of what `put_node_endpoints` appends."""
    out = bytearray()
    put_node_endpoints(out, nodes)
    return len(out)


def _put_text(out: bytearray, text: str) -> None:
    raw = text.encode()
    put_varint(out, len(raw) + 1)
    out += raw
