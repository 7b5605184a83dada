"""The events of all gateways, as rows: what `gateway events` prints."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from gateway.admin.client import AdminClient, AdminError, Broker, Unreachable
from gateway.admin.notation import write_time

_OWN_KEYS = ("number", "at_ms", "kind", "topic", "partition", "ledger")

Row = dict[str, Any]


class EventReader:
    """Reads the events of all gateways, each once."""

    def __init__(self) -> None:
        # By node id: the process, and the number of the newest event of it that was read.
        self._read: dict[int, tuple[str, int]] = {}
        # By node id: events that a gateway dropped before they were read, since the last call.
        self.dropped: dict[int, int] = {}
        # Gateways that did not answer the last time, with the reason.
        self.silent: dict[int, str] = {}

    async def more(self, client: AdminClient) -> list[Row]:
        """Return the events since the last call, by time. A gateway that began anew starts over.

        Raises AdminError if the servers are no gateways of this project, Unreachable if no gateway
        answers.
        """
        rows: list[Row] = []
        self.dropped = {}
        while True:
            found = await self._ask(client)
            rows += found
            if not found:
                return sorted(rows, key=lambda row: (row["at_ms"], row["node_id"], row["number"]))

    async def _ask(self, client: AdminClient, *, last: bool = False) -> list[Row]:
        def body(broker: Broker) -> dict[str, Any]:
            return {"ask": "events", "after": self._read.get(broker.node_id, ("", 0))[1]}

        answers = await client.ask_gateways(body)
        self.silent = {}
        rows: list[Row] = []
        again = False
        for node_id, answer in answers.items():
            if isinstance(answer, (AdminError, Unreachable)):
                self.silent[node_id] = str(answer)
                continue
            now = str(answer.get("process"))
            process, read = self._read.get(node_id, (now, 0))
            if process != now:  # it began anew, and its first events are due
                self._read[node_id] = (now, 0)
                again = True
                continue
            rows += self._take(node_id, read, answer)
        if answers and len(self.silent) == len(answers):
            raise Unreachable("; ".join(self.silent.values()))
        return rows or (await self._ask(client, last=True) if again and not last else [])

    def _take(self, node_id: int, read: int, answer: Mapping[str, Any]) -> list[Row]:
        events: list[Row] = answer.get("events", [])
        if events:
            missed = events[0]["number"] - read - 1
            if read and missed:
                self.dropped[node_id] = self.dropped.get(node_id, 0) + missed
            read = events[-1]["number"]
        self._read[node_id] = (str(answer.get("process")), read)
        return [_row(node_id, each) for each in events]


def chosen(
    rows: Sequence[Row], kinds: Sequence[str], since_ms: int, newest: int | None
) -> list[Row]:
    """Return the rows of these kinds since a time; with `newest` only so many, the last ones."""
    found = [
        row for row in rows if row["at_ms"] >= since_ms and (not kinds or row["kind"] in kinds)
    ]
    return found if newest is None else found[max(0, len(found) - newest) :]


def _row(node_id: int, event: Mapping[str, Any]) -> Row:
    return {
        "at": write_time(event["at_ms"]),
        "at_ms": event["at_ms"],
        "node_id": node_id,
        "number": event["number"],
        "kind": event["kind"],
        "topic": event.get("topic"),
        "partition": event.get("partition"),
        "ledger": event.get("ledger"),
        "facts": {key: str(value) for key, value in event.items() if key not in _OWN_KEYS},
    }
