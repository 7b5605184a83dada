"""All topics, by name or by a figure, from the mirror: no request, however many there are."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Final

from gateway.figures.parts import mirror_of
from gateway.http.hrefs import topic_href
from gateway.http.views.listing import WILD, argument, listed, order_of

if TYPE_CHECKING:
    from gateway.figures.merged import TopicFigures
    from gateway.http.pages import Asked, Json
    from gateway.http.site import Site

ORDERS: Final = ("name", "rate", "size", "records")


async def topics(asked: Asked, site: Site) -> Json:
    """Return topics with their figures; a search finds a text or a glob."""
    order = order_of(asked, ORDERS)
    mirror = await mirror_of(site.ctx).fresh()
    return await listed(asked, mirror, mirror.topics, order, topic_row)


def topic_row(row: TopicFigures) -> Json:
    """Return a topic as JSON. The keys that commands have too mean the same there."""
    return {
        "name": row.name,
        "name_href": topic_href(row.name),
        "partitions": row.partitions,
        "internal": row.internal,
        "state": state_of(row),
        "records": row.records,
        "size_bytes": row.size_bytes,
        "segments": row.segments,
        "records_per_s": row.records_per_s,
        "bytes_per_s": row.bytes_per_s,
        "blocked_partitions": row.blocked_partitions,
        "lost_records": row.lost_records,
    }


def state_of(row: TopicFigures) -> str:
    """Return what matters most about a topic, as one word."""
    if row.lost_records:
        return "lost"
    if row.blocked_partitions:
        return "blocked"
    if row.silent:
        return "silent"
    return "ok" if row.known_partitions >= row.partitions else "unknown"


def has_short_names(found: Json) -> bool:
    """Return True, because the name of a topic has at most 249 characters."""
    return True


def command(asked: Asked) -> str:
    """Return the command that lists the same topics."""
    words = ["gateway", "topic", "list", "--internal"]
    order = asked.query.get("sort", "name")
    if order in ("rate", "size"):
        words += ["--sort", order]
    search = asked.query.get("search", "")
    if search:
        words += argument(search if WILD.intersection(search) else f"*{search}*")
    return shlex.join(words)
