"""The map of the cluster: racks with their bookies and gateways, disks, and what is silent."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Any, Final

from gateway.core.cluster_health import SILENT
from gateway.figures.parts import mirror_of
from gateway.http.views.health_facts import health_facts
from gateway.http.views.listing import silent_rows

if TYPE_CHECKING:
    from gateway.figures.mirror import MemberState
    from gateway.http.pages import Asked, Json
    from gateway.http.site import Site

_NO_RACK: Final = "-"


async def cluster(asked: Asked, site: Site) -> Json:
    """Return all racks, gateways and bookies. A bookie or gateway that is silent stays in it."""
    found = await health_facts(site).get()
    mirror = await mirror_of(site.ctx).fresh()
    gateways = [_gateway(each) for each in mirror.members()]
    facts = found.facts.ledgers
    bookies = None if found.ledgers is None else [_bookie(row) for row in found.ledgers.bookies]
    return {
        "cluster_id": site.ctx.cluster_id,
        "racks": _racks(gateways, bookies or []),
        "gateways": gateways,
        "bookies": bookies,
        "bookies_missing": found.missing,
        "topics": found.topics,
        "partitions": found.partitions,
        "partitions_without_leader": sum(map(len, found.facts.leaderless.values())),
        "underreplicated_ledgers": None if facts is None else len(facts.underreplicated),
        "repair_enabled": None if facts is None else facts.repair_enabled,
        "has_auditor": None if facts is None else facts.has_auditor,
        "silent_gateways": silent_rows(mirror),
    }


def _gateway(state: MemberState) -> Json:
    member, silence = state.member, state.silence
    word = "running" if silence is None else "silent"
    return {
        "node_id": member.node_id,
        "address": f"{member.host}:{member.port}",
        "rack": member.rack or None,
        "state": "leaving" if member.leaving and silence is None else word,
        "partitions": state.partitions,
        "groups": state.groups,
        "reason": None if silence is None else silence.reason,
        "last_figures_age_s": None if silence is None else silence.age_s,
    }


def _bookie(row: dict[str, Any]) -> Json:
    """Return a bookie. One that is registered and does not answer is silent, and not empty."""
    total, free = row["disk_bytes"], row["free_bytes"]
    silent = total is None and row["address"] is not None
    used = None if total is None or free is None else total - free
    return {
        "bookie": row["bookie"],
        "address": row["address"],
        "rack": row["rack"],
        "state": SILENT if silent else _WORDS.get(row["status"], row["status"]),
        "disk_bytes": total,
        "free_bytes": free,
        "used_bytes": used,
        "sync_ms": None,  # a bookie reports it in its own metrics
    }


_WORDS: Final = {"rw": "writable", "ro": "read-only"}


def _racks(gateways: list[Json], bookies: list[Json]) -> list[Json]:
    names = sorted({row["rack"] or _NO_RACK for row in (*gateways, *bookies)})
    return [
        {
            "rack": name,
            "gateways": [row["node_id"] for row in gateways if (row["rack"] or _NO_RACK) == name],
            "bookies": [row["bookie"] for row in bookies if (row["rack"] or _NO_RACK) == name],
        }
        for name in names
    ]


def command(asked: Asked) -> str:
    """Return the command that describes the cluster."""
    return shlex.join(["gateway", "cluster", "info"])
