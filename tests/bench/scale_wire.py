"""A Kafka client for the bench of sizes: many requests under way on one connection, kept cheap."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from typing import Any, Self

from gateway.wire.messages import decode_response, encode_request

ANSWER_S_MAX = 120.0
FIND_COORDINATOR, OFFSET_COMMIT, OFFSET_FETCH = (10, 4), (8, 7), (9, 7)
METADATA, CREATE_TOPICS, LIST_OFFSETS = (3, 12), (19, 5), (2, 6)
PROBE_TOPIC = "positions"


class Wire:
    """One connection; answers come in the order of the requests."""

    def __init__(self, address: str) -> None:
        self.address = address
        self._correlation = 0
        self._waiting: deque[asyncio.Future[bytes]] = deque()

    async def __aenter__(self) -> Self:
        host, _, port = self.address.rpartition(":")
        self._reader, self._writer = await asyncio.open_connection(host, int(port))
        self._reading = asyncio.ensure_future(self._read())
        return self

    async def __aexit__(self, *_: object) -> None:
        self._reading.cancel()
        await asyncio.gather(self._reading, return_exceptions=True)
        self._writer.close()

    async def _read(self) -> None:
        try:
            while True:
                size = int.from_bytes(await self._reader.readexactly(4), "big")
                frame = await self._reader.readexactly(size)
                answer = self._waiting.popleft()
                if not answer.done():
                    answer.set_result(frame)
        except (OSError, asyncio.IncompleteReadError) as error:
            for answer in self._waiting:
                if not answer.done():
                    answer.set_exception(ConnectionError(str(error)))

    async def frame(self, api: tuple[int, int], fields: dict[str, Any]) -> bytes:
        """The answer as it came. Raises ConnectionError, TimeoutError."""
        self._correlation += 1
        request = encode_request(*api, self._correlation, "bench-scale", fields)
        if self._reading.done():
            raise ConnectionError(f"{self.address} closed the connection")
        answer: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self._waiting.append(answer)
        self._writer.write(len(request).to_bytes(4, "big") + request)
        async with asyncio.timeout(ANSWER_S_MAX):
            return await answer

    async def ask(self, api: tuple[int, int], fields: dict[str, Any]) -> Any:
        return decode_response(*api, await self.frame(api, fields)).body

    async def coordinators(self, groups: Sequence[str]) -> dict[str, str]:
        """host:port of those that can be named now."""
        asked = {"key_type": 0, "coordinator_keys": tuple(groups)}
        answer = await self.ask(FIND_COORDINATOR, asked)
        return {
            row.key: f"{row.host}:{row.port}"
            for row in answer.coordinators
            if row.error_code.value == 0
        }

    async def commit(self, group: str, offset: int) -> int:
        """The error code."""
        position = {
            "partition_index": 0,
            "committed_offset": offset,
            "committed_leader_epoch": -1,
            "committed_metadata": "",
        }
        asked = {
            "group_id": group,
            "generation_id_or_member_epoch": -1,
            "member_id": "",
            "group_instance_id": None,
            "topics": ({"name": PROBE_TOPIC, "partitions": (position,)},),
        }
        answer = await self.ask(OFFSET_COMMIT, asked)
        return answer.topics[0].partitions[0].error_code.value

    async def committed(self, group: str) -> tuple[int, int]:
        """Error code and offset."""
        asked = {
            "group_id": group,
            "topics": ({"name": PROBE_TOPIC, "partition_indexes": (0,)},),
            "require_stable": False,
        }
        answer = await self.ask(OFFSET_FETCH, asked)
        if answer.error_code.value:
            return answer.error_code.value, -1
        row = answer.topics[0].partitions[0]
        return row.error_code.value, row.committed_offset

    async def create(self, topic: str, partitions: int, copies: int, timeout_ms: int) -> int:
        """The error code."""
        asked = {
            "topics": (
                {
                    "name": topic,
                    "num_partitions": partitions,
                    "replication_factor": copies,
                    "assignments": (),
                    "configs": (),
                },
            ),
            "timeout_ms": timeout_ms,
            "validate_only": False,
        }
        answer = await self.ask(CREATE_TOPICS, asked)
        return answer.topics[0].error_code.value

    async def metadata(self, topics: Sequence[str] | None = None) -> Any:
        return await self.ask(METADATA, metadata_of(topics))

    async def ends(self, wanted: dict[str, list[int]]) -> dict[tuple[str, int], tuple[int, int]]:
        """Error code and log end of each partition."""
        asked = {
            "replica_id": -1,
            "isolation_level": 0,
            "topics": tuple(
                {
                    "name": topic,
                    "partitions": tuple(
                        {"partition_index": index, "current_leader_epoch": -1, "timestamp": -1}
                        for index in indexes
                    ),
                }
                for topic, indexes in wanted.items()
            ),
        }
        answer = await self.ask(LIST_OFFSETS, asked)
        return {
            (topic.name, row.partition_index): (row.error_code.value, row.offset)
            for topic in answer.topics
            for row in topic.partitions
        }


def metadata_of(topics: Sequence[str] | None) -> dict[str, Any]:
    """The request's fields; None: all topics."""
    named = [{"topic_id": None, "name": topic} for topic in topics or ()]
    return {
        "topics": None if topics is None else tuple(named),
        "allow_auto_topic_creation": False,
        "include_topic_authorized_operations": False,
    }
