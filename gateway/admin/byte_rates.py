"""Bytes per second of topics, which only gateways know: they are asked by the private request."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from gateway.admin.client import AdminClient, AdminError, Unreachable
from gateway.core.figures import total
from gateway.figures.held import TOPICS, HeldShare, parts_from
from gateway.figures.merged import merge_partitions

if TYPE_CHECKING:
    from gateway.admin.client import Broker

_ROUNDS_MAX = 1_000  # answers of one look: 128 MB


class ByteRates:
    """Asks all gateways for what changed since the last look."""

    def __init__(self, client: AdminClient) -> None:
        self._client = client
        self._held: dict[int, HeldShare] = {}
        self._is_gateway: bool | None = None  # None before the first look

    async def look(self, topics: Mapping[str, int]) -> dict[str, float | None]:
        """Return the bytes per second of these topics, by their numbers of partitions.

        A topic of which a gateway does not report every partition is unknown. At another server all
        are.
        """
        if self._is_gateway is None:
            self._is_gateway = await self._client.reaches_gateway()
        if not self._is_gateway or not await self._ask():
            return dict.fromkeys(topics)
        return {name: self._of(name, partitions) for name, partitions in topics.items()}

    def _of(self, name: str, partitions: int) -> float | None:
        held = merge_partitions(name, list(self._held.values()), lambda _: -1)
        if len(held) != partitions:
            return None
        found = total(each.figures.bytes_per_s for each in held.values())
        return None if found is None else round(float(found), 3)

    async def _ask(self) -> bool:
        """Take what changed at all gateways. Returns False if one of them does not answer."""
        for _ in range(_ROUNDS_MAX):
            try:
                answers = await self._client.ask_gateways(self._body)
            except (AdminError, Unreachable):
                return False
            for node_id in [each for each in self._held if each not in answers]:
                del self._held[node_id]  # it has left, and others lead its partitions
            more = False
            for node_id, answer in answers.items():
                if isinstance(answer, AdminError | Unreachable):
                    return False  # or it is of an earlier release
                more = self._take(node_id, answer) or more
            if not more:
                return True
        return False

    def _body(self, broker: Broker) -> dict[str, Any]:
        held = self._held.get(broker.node_id)
        after = 0 if held is None else held.versions[TOPICS]
        process = "" if held is None else held.process
        return {"ask": "topics", "after": after, "process": process}

    def _take(self, node_id: int, answer: Mapping[str, Any]) -> bool:
        held = self._held.get(node_id)
        if held is None or answer["whole"] or held.process != answer["process"]:
            held = self._held[node_id] = HeldShare(node_id)
            held.process = str(answer["process"])
        for _ in held.take_parts(parts_from(answer["rows"]), answer["gone"]):
            pass
        held.versions[TOPICS] = int(answer["version"])
        return bool(answer["more"])
