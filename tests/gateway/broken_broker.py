"""A broker of one topic with one partition, which answers Fetch with any bytes, or a part of them.

It speaks just enough of Kafka's protocol for `gateway topic consume`.
"""

from __future__ import annotations

import socketserver
import struct
import threading
from collections.abc import Sequence
from typing import Any, Self

from gateway.wire.messages import decode_request, encode_response

FETCH, LIST_OFFSETS, METADATA, API_VERSIONS = 1, 2, 3, 18
SERVED = {FETCH: 11, LIST_OFFSETS: 5, METADATA: 8, API_VERSIONS: 0}  # one version of each
EARLIEST = -2


class BrokenBroker:
    """Use as `with BrokenBroker(records, end) as broker`.

    `records` are the bytes of every response to Fetch, `error` its code. With `cut` a response to
    Fetch ends in its middle, and so does the connection. After a Fetch the log is that of `later`:
    its first offset, and its end; and its leader is the broker `successor`, if there is one.
    `before` are the records of the first responses to Fetch, None for one that ends in its middle.
    """

    def __init__(
        self,
        records: bytes,
        end: int = 1,
        *,
        error: int = 0,
        first: int = 0,
        cut: bool = False,
        later: tuple[int, int] | None = None,
        successor: BrokenBroker | None = None,
        before: Sequence[bytes | None] = (),
    ) -> None:
        self._records = records
        self._end = end
        self._error = error
        self._first = first
        self._cut = cut
        self._later = later
        self._successor = successor
        self._before = before
        # How many requests to Fetch came.
        self.fetches = 0
        self._server = _Server(("127.0.0.1", 0), _Handler)
        self._server.broker = self
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))

    @property
    def port(self) -> int:
        return self._server.server_address[1]

    @property
    def bootstrap(self) -> str:
        return f"127.0.0.1:{self.port}"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def answer(self, frame: bytes) -> tuple[bytes, bool]:
        """Return the response to a request, and whether the connection ends within it."""
        key, version, correlation, client = struct.unpack_from(">hhih", frame)
        assert version == SERVED[key]
        request = decode_request(key, version, frame, 10 + max(client, 0))
        reply = {
            FETCH: self._fetch,
            LIST_OFFSETS: self._list_offsets,
            METADATA: self._metadata,
            API_VERSIONS: self._api_versions,
        }[key](request)
        body = b"".join(encode_response(key, version, correlation, reply))
        return struct.pack(">i", len(body)) + body, key == FETCH and self._is_cut()

    def _is_cut(self) -> bool:
        return self._cut or self._fetched() is None

    def _fetched(self) -> bytes | None:
        """Return the records of the response to the last Fetch."""
        number = self.fetches - 1
        return self._before[number] if number < len(self._before) else self._records

    def _api_versions(self, _: Any) -> dict[str, Any]:
        keys = [
            {"api_key": key, "min_version": version, "max_version": version}
            for key, version in SERVED.items()
        ]
        return {"error_code": 0, "api_keys": keys}

    def _metadata(self, _: Any) -> dict[str, Any]:
        leader = self if self._successor is None or not self.fetches else self._successor
        partition = {
            "error_code": 0,
            "partition_index": 0,
            "leader_id": 0,
            "leader_epoch": 0,
            "replica_nodes": [0],
            "isr_nodes": [0],
            "offline_replicas": [],
        }
        topic = {
            "error_code": 0,
            "name": "t",
            "is_internal": False,
            "partitions": [partition],
            "topic_authorized_operations": 0,
        }
        return {
            "throttle_time": 0,
            "brokers": [{"node_id": 0, "host": "127.0.0.1", "port": leader.port, "rack": None}],
            "cluster_id": None,
            "controller_id": 0,
            "topics": [topic],
            "cluster_authorized_operations": 0,
        }

    def _list_offsets(self, request: Any) -> dict[str, Any]:
        timestamp = request.topics[0].partitions[0].timestamp
        partition = {
            "partition_index": 0,
            "error_code": 0,
            "timestamp": -1,
            "offset": self._first if timestamp == EARLIEST else self._end,
            "leader_epoch": 0,
        }
        return {"throttle_time": 0, "topics": [{"name": "t", "partitions": [partition]}]}

    def _fetch(self, _: Any) -> dict[str, Any]:
        self.fetches += 1
        if self._later is not None:
            self._first, self._end = self._later
        partition = {
            "partition_index": 0,
            "error_code": self._error,
            "high_watermark": -1 if self._error else self._end,
            "last_stable_offset": -1 if self._error else self._end,
            "log_start_offset": -1 if self._error else self._first,
            "aborted_transactions": [],
            "preferred_read_replica": -1,
            "records": self._fetched() or b"",
        }
        topic = {"topic": "t", "partitions": [partition]}
        return {"throttle_time": 0, "error_code": 0, "session_id": 0, "responses": [topic]}


class _Server(socketserver.ThreadingTCPServer):
    allow_reuse_address = True
    daemon_threads = True
    broker: BrokenBroker


class _Handler(socketserver.StreamRequestHandler):
    server: _Server

    def handle(self) -> None:
        while head := self.rfile.read(4):
            frame = self.rfile.read(struct.unpack(">i", head)[0])
            answer, cut = self.server.broker.answer(frame)
            self.wfile.write(answer[: len(answer) // 2] if cut else answer)
            if cut:
                return
