"""One group: its lag for each partition, in records and in seconds, and its members."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Any, Final

from gateway.access import Operation
from gateway.admin.client import AdminError
from gateway.admin.consumer_groups import ConsumerGroupFound
from gateway.admin.group_lag import lag_rows
from gateway.admin.groups import assigned, committed, find_group
from gateway.http.asking import may
from gateway.http.hrefs import topic_href
from gateway.http.pages import Refused
from gateway.http.views.listing import argument, following, place_of

if TYPE_CHECKING:
    from gateway.http.pages import Asked, Json
    from gateway.http.site import Site

_MEMBERS_SHOWN: Final = 50
_NOT_FOUND: Final = "GROUP_ID_NOT_FOUND"


async def group(asked: Asked, site: Site) -> Json:
    """Return a group with some of its partitions, as `gateway group lag` computes them.

    Those of topics that the principal may not describe are left out.
    """
    name = asked.path["group"]
    client = await site.client()
    try:
        described = await find_group(client, name)
    except AdminError as error:
        raise Refused(404 if error.code == _NOT_FOUND else 409, error.code, str(error)) from error
    positions = await committed(client, name)
    places = sorted(each for each in positions if may(site, asked, Operation.DESCRIBE, each[0]))
    at = place_of(asked, len(places))
    some = places[at : at + asked.limit]
    offsets = {name: {place: positions[place].offset for place in some}}
    rows = await lag_rows(client, offsets, site.ctx.clock.now_ms()) if some else []
    return {
        "group": name,
        "state": described.group_state,
        "type": "consumer" if isinstance(described, ConsumerGroupFound) else "classic",
        "protocol_type": described.protocol_type,
        "protocol": described.protocol_data,
        "rows": [_row(each) for each in rows],
        "next": following(at + len(some), len(places)),
        "total": len(places),
        "members": [_member(described, each) for each in described.members[:_MEMBERS_SHOWN]],
        "member_count": len(described.members),
    }


def _row(row: dict[str, Any]) -> Json:
    shown = {key: value for key, value in row.items() if key != "group"}
    return {
        **shown,
        "topic_href": topic_href(row["topic"]),
        "log_end_offset_href": f"{topic_href(row['topic'])}?cursor={row['partition']}",
    }


def _member(described: Any, member: Any) -> Json:
    return {
        "member_id": member.member_id,
        "client_id": member.client_id,
        "host": member.client_host,
        "partitions": len(list(assigned(described, member))),
    }


def command(asked: Asked) -> str:
    """Return the command that shows the lag of this group."""
    return shlex.join(["gateway", "group", "lag", *argument(asked.path["group"])])
