"""All groups with their lag, from the mirror: no request for a group or a topic.

Their lag in seconds is that of the groups that are shown.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from gateway.figures.parts import mirror_of
from gateway.http.hrefs import group_href
from gateway.http.views.listing import listed, order_of
from gateway.metrics.group_ages import lags_in_seconds

if TYPE_CHECKING:
    from gateway.figures.merged import GroupFigures
    from gateway.figures.mirror import Mirror
    from gateway.http.pages import Asked, Json
    from gateway.http.site import Site

ORDERS: Final = ("name", "lag")
_TOPICS_SHOWN: Final = 5


async def groups(asked: Asked, site: Site) -> Json:
    """Return groups with their lag; a search finds a text or a glob."""
    order = order_of(asked, ORDERS)
    mirror = await mirror_of(site.ctx).fresh()
    found = await listed(asked, mirror, mirror.groups, order, group_row)
    await add_seconds(site, mirror, found["rows"])
    return found


async def add_seconds(site: Site, mirror: Mirror, rows: Sequence[Json]) -> None:
    """Add the lag in seconds to rows of groups."""
    seconds = await lags_in_seconds(site.ctx, mirror, [row["group"] for row in rows])
    for row in rows:
        row["lag_s"] = seconds[row["group"]]


def group_row(row: GroupFigures) -> Json:
    """Return a group as JSON, without its lag in seconds."""
    return {
        "group": row.group,
        "group_href": group_href(row.group),
        "state": "silent" if row.silent else row.state,
        "type": row.type,
        "members": row.members,
        "topics": list(row.topics[:_TOPICS_SHOWN]),
        "topic_count": len(row.topics),
        "partitions": row.partitions,
        "lag": row.lag,
        "read_per_s": row.read_per_s,
    }


def command(asked: Asked) -> str:
    """Return the command that shows the lag of all groups."""
    return shlex.join(["gateway", "group", "lag"])
