"""The queries of Spark that read here, with their offsets, rate and lag.

A query commits nothing. Its executors are known by the names of their clients, as read-only groups.
A query with `kafka.group.id`, `kafka.client.id` or the direct source is not known to a gateway.
"""

from __future__ import annotations

import re
import shlex
from typing import TYPE_CHECKING, Final

from gateway.figures.parts import mirror_of
from gateway.http.views.groups import add_seconds, group_row
from gateway.http.views.listing import listed, order_of

if TYPE_CHECKING:
    from gateway.figures.merged import GroupFigures
    from gateway.http.pages import Asked, Json
    from gateway.http.site import Site

ORDERS: Final = ("lag", "name")
_OFFSETS_SHOWN: Final = 10
_NAME: Final = re.compile(
    r"(?P<prefix>.+)-[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}(?P<hash>--?\d{1,10})?-executor"
)


async def spark(asked: Asked, site: Site) -> Json:
    """Return the queries, the largest lag first."""
    order = order_of(asked, ORDERS)
    mirror = await mirror_of(site.ctx).fresh()

    def row_of(row: GroupFigures) -> Json:
        return _row(row, mirror.positions(row.group))

    found = await listed(asked, mirror, mirror.queries, order, row_of)
    await add_seconds(site, mirror, found["rows"])
    return found


def _row(row: GroupFigures, positions: dict[str, tuple[tuple[int, int], ...]]) -> Json:
    """Return a query as JSON, with its next offsets as `topic/partition: offset`."""
    places = [
        f"{topic}/{partition}: {offset}"
        for topic, some in positions.items()
        for partition, offset in some[:_OFFSETS_SHOWN]
    ]
    named = _NAME.fullmatch(row.group)
    streaming = named is not None and named["hash"] is not None
    return {
        **group_row(row),
        "kind": "streaming" if streaming else "batch",
        "next_offsets": places[:_OFFSETS_SHOWN],
        "last_fetch_ms": row.seen_ms,
    }


def command(asked: Asked) -> str:
    """Return the command that lists groups, among them those of type read-only."""
    return shlex.join(["gateway", "group", "list"])
