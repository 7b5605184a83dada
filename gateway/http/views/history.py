"""The past hour or day of the cluster, for plots."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final
from urllib.parse import urlencode

from gateway.http.pages import Refused
from gateway.metrics.history import APIS, KINDS, SPANS, history

if TYPE_CHECKING:
    from gateway.http.pages import Asked, Json
    from gateway.http.site import Site

_NAME_MAX: Final = 500  # characters of a group or a bookie
_TITLES: Final = {
    "bytes_in": "Bytes written by clients",
    "bytes_out": "Bytes read by clients",
    "records_in": "Records written by clients",
    "records_out": "Records read by clients",
    "request_ms": "Time of requests",
    "lag_records": "Lag of groups in records",
    "lag_seconds": "Lag of groups in seconds",
    "sync_ms": "Sync time of bookies",
    "disk_bytes": "Used disk of bookies",
}


async def history_view(asked: Asked, site: Site) -> Json:
    """Return one series of the whole cluster."""
    series, span = asked.query.get("series", ""), _span_of(asked)
    of = asked.query.get("of", "")
    if series not in KINDS:
        raise Refused(400, "INVALID_REQUEST", f"series is one of {', '.join(KINDS)}")
    if KINDS[series].of == "api" and of not in ("", *APIS):
        raise Refused(400, "INVALID_REQUEST", f"of is one of {', '.join(APIS)}")
    if len(of) > _NAME_MAX:
        raise Refused(400, "INVALID_REQUEST", f"of has at most {_NAME_MAX} characters")
    return await history(site.ctx, series, of, span)


async def plots_view(asked: Asked, site: Site) -> Json:
    """Return where the points of each plot are."""
    span = _span_of(asked)
    plots = [
        {
            "title": f"{_TITLES[series]}, {of}" if of else _TITLES[series],
            "unit": kind.unit,
            "href": _href(series, of, span),
        }
        for series, kind in KINDS.items()
        for of in (APIS if kind.of == "api" else ("",))
    ]
    return {"span": span, "plots": plots}


def _href(series: str, of: str, span: str) -> str:
    named = {"of": of} if of else {}
    return "/api/v1/history?" + urlencode({"series": series, **named, "span": span})


def _span_of(asked: Asked) -> str:
    span = asked.query.get("span", "1h")
    if span not in SPANS:
        raise Refused(400, "INVALID_REQUEST", f"span is one of {', '.join(SPANS)}")
    return span
