"""The slowest requests of all gateways, with their stages."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from gateway.admin.slow import slowest
from gateway.http.pages import Refused

if TYPE_CHECKING:
    from gateway.http.pages import Asked, Json
    from gateway.http.site import Site

_NAME_MAX: Final = 100


async def slow_view(asked: Asked, site: Site) -> Json:
    """Return the slowest requests of the last hour, of the API `api` or of all."""
    api = asked.query.get("api", "")
    if len(api) > _NAME_MAX or (api and not api.isalnum()):
        raise Refused(400, "INVALID_REQUEST", "api must be the name of an API, such as Produce")
    if asked.cursor is not None:
        raise Refused(400, "INVALID_REQUEST", "cursor is not one of this page")
    found = await slowest(await site.client(), api or None, asked.limit)
    return {
        "rows": found.rows,
        "next": None,
        "total": len(found.rows),
        "silent": [
            {"node_id": node_id, "reason": reason} for node_id, reason in found.silent.items()
        ],
    }
