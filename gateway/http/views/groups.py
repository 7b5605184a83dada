"""All groups with their lag, from the mirror: no request, however many there are."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Final

from gateway.figures.parts import mirror_of
from gateway.http.hrefs import group_href
from gateway.http.views.listing import listed, order_of

if TYPE_CHECKING:
    from gateway.figures.merged import GroupFigures
    from gateway.http.pages import Asked, Json
    from gateway.http.site import Site

ORDERS: Final = ("name", "lag")
_TOPICS_SHOWN: Final = 5


async def groups(asked: Asked, site: Site) -> Json:
    """Return groups with their lag; a search finds a text or a glob."""
    order = order_of(asked, ORDERS)
    mirror = await mirror_of(site.ctx).fresh()
    return await listed(asked, mirror, mirror.groups, order, group_row)


def group_row(row: GroupFigures) -> Json:
    """Return a group as JSON."""
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
