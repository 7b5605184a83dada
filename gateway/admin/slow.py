"""The slowest requests of all gateways, as rows: what `gateway slow` and the page show."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from gateway.admin.client import AdminClient, AdminError, Broker, Unreachable
from gateway.admin.notation import write_time

Row = dict[str, Any]

KEYS = (
    "api",
    "version",
    "at_ms",
    "total_ms",
    "wait_ms",
    "queue_ms",
    "decode_ms",
    "append_ms",
    "journal_ms",
    "quorum_ms",
    "write_ms",
    "client_id",
    "address",
    "topic",
    "topics",
    "bytes",
    "error",
)
"""The keys of a row as gateways answer; later releases may add others."""


class Slowest(NamedTuple):
    """The slowest requests of all gateways, and which gateways did not answer, with the reason."""

    rows: list[Row]
    silent: Mapping[int, str]


async def slowest(client: AdminClient, api: str | None, count: int) -> Slowest:
    """Return up to `count` requests, the slowest first, of one API or of all.

    Raises AdminError if the servers are no gateways of this project, Unreachable if none answers.
    """
    body: Row = {"ask": "slow", "count": count}
    if api is not None:
        body["api"] = api

    def ask(broker: Broker) -> Row:
        return body

    rows: list[Row] = []
    silent: dict[int, str] = {}
    answers = await client.ask_gateways(ask)
    for node_id, answer in answers.items():
        if isinstance(answer, (AdminError, Unreachable)):
            silent[node_id] = str(answer)
            continue
        rows += [_row(node_id, each) for each in answer.get("rows", [])]
    if answers and len(silent) == len(answers):
        raise Unreachable("; ".join(silent.values()))
    rows.sort(key=lambda row: (-own_ms(row), row["node_id"], row["at_ms"]))
    return Slowest(rows[:count], silent)


def own_ms(row: Row) -> float:
    """Return the time of a request without that for which its client let it wait for records."""
    return row["total_ms"] - (row["wait_ms"] or 0.0)


def _row(node_id: int, found: Mapping[str, Any]) -> Row:
    return {
        "at": write_time(found["at_ms"]),
        "node_id": node_id,
        **{key: found.get(key) for key in KEYS},
    }
