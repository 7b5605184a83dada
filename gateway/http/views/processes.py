"""The processes of a cluster on this machine: kill one, watch the repair, start it again."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from gateway.handlers.api import LocalProcessError, LocalProcesses
from gateway.http.change_form import confirmed
from gateway.http.pages import Asked, Json, Refused

if TYPE_CHECKING:
    from gateway.http.site import Site


_LOOKS_MAX: Final = 100
_LOOK_S: Final = 0.02


async def processes(asked: Asked, site: Site) -> Json:
    """Return a row for each process. 404 unless `gateway cluster up` started this one."""
    _, rows = _local(site)
    return {"rows": rows, "next": None, "total": len(rows)}


def _local(site: Site) -> tuple[LocalProcesses, list[Json]]:
    found = site.ctx.local_cluster
    rows = None if found is None else found.rows()
    if found is None or rows is None:
        message = "there are no processes here: `gateway cluster up` did not start this gateway"
        raise Refused(404, "NOT_FOUND", message)
    return found, rows


async def kill_process(asked: Asked, site: Site) -> Json:
    """Kill a process as kill -9 does. Only one that `gateway cluster up` started, by its start."""
    local, rows = _local(site)
    name = _known(asked, rows)
    confirmed(asked, name)
    try:
        local.kill(name)
    except LocalProcessError as error:
        raise Refused(409, error.code, str(error)) from error
    await _wait_ended(local, name)
    return {"killed": name, "sentence": f"Killed {name}."}


async def _wait_ended(local: LocalProcesses, name: str) -> None:
    """Wait for at most 2 s until a killed process has ended: the page that follows shows it."""
    for _ in range(_LOOKS_MAX):
        if (name, "running") not in {(row["name"], row["state"]) for row in local.rows() or ()}:
            return
        await asyncio.sleep(_LOOK_S)


async def start_process(asked: Asked, site: Site) -> Json:
    """Start a process that has ended. It may take seconds until it serves."""
    local, rows = _local(site)
    name = _known(asked, rows)
    confirmed(asked, name)
    try:
        await local.start(name)
    except LocalProcessError as error:
        raise Refused(409, error.code, str(error)) from error
    return {"started": name, "sentence": f"Started {name}."}


def _known(asked: Asked, rows: list[Json]) -> str:
    name = asked.path["name"]
    if name not in {row["name"] for row in rows}:
        raise Refused(404, "UNKNOWN_PROCESS", f"there is no process {name!r}")
    return name
