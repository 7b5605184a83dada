"""Probes of this machine for `gateway doctor`: names, disk and open files."""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import json
import os
import resource
import sys
from asyncio.subprocess import DEVNULL, PIPE
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Final

from gateway.admin import doctor_child
from gateway.admin.doctor_facts import Files, Lookup, Space, SyncTimes
from gateway.admin.doctor_findings import SYNC_BYTES, SYNCS

LOOKUP_S_MAX: Final = 5.0
_KILL_S: Final = 0.5


async def look_up(names: Iterable[str]) -> list[Lookup]:
    """Look up the names that are no addresses, all at once, for 5 s at most."""
    wanted = [name for name in dict.fromkeys(names) if not _is_address(name)]
    if not wanted:
        return []
    answers = await _child(["names", *wanted], LOOKUP_S_MAX)
    rows = {row["name"]: row for row in answers}
    missing = {"took_s": LOOKUP_S_MAX, "addresses": (), "fault": f"no answer in {LOOKUP_S_MAX:g} s"}
    found = [rows.get(name, {"name": name, **missing}) for name in wanted]
    return [
        Lookup(row["name"], row["took_s"], tuple(row["addresses"]), row["fault"]) for row in found
    ]


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


async def space_of(directory: Path, wait_s: float) -> Space:
    """Return the space of the disk of a directory."""
    for row in await _child(["space", str(directory)], wait_s):
        if "fault" not in row:
            return Space(str(directory), row["free_bytes"], row["whole_bytes"])
        return Space(str(directory), None, fault=row["fault"])
    return Space(str(directory), None, fault=f"the disk did not answer within {wait_s:g} s")


async def sync_times(directory: Path, wait_s: float) -> SyncTimes:
    """Measure synced writes to a directory. Nothing is left there."""
    for row in await _child(["sync", str(directory), str(SYNCS), str(SYNC_BYTES)], wait_s):
        return SyncTimes(str(directory), tuple(row["took_ms"]), row.get("fault"))
    return SyncTimes(str(directory), fault=f"{SYNCS} syncs did not end within {wait_s:g} s")


def open_files() -> Files:
    """Return the limit of open files of this user, to which a gateway would raise its own."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    return Files(f"user {os.geteuid()} here", None if hard == resource.RLIM_INFINITY else hard)


async def _child(words: Sequence[str], wait_s: float) -> list[dict[str, Any]]:
    """Return what the child printed within `wait_s` seconds, line by line.

    A child that the kernel holds in a call of the disk does not end when it is killed. It is left
    to the system then.
    """
    child = await asyncio.create_subprocess_exec(
        sys.executable,
        *("-I", "-S", doctor_child.__file__, *words),
        stdin=DEVNULL,
        stdout=PIPE,
        stderr=DEVNULL,
    )
    assert child.stdout is not None
    rows: list[dict[str, Any]] = []
    try:
        async with asyncio.timeout(wait_s):
            async for line in child.stdout:
                rows.append(json.loads(line))
            await child.wait()
    except TimeoutError:
        pass  # the caller reports what is missing
    finally:
        if child.returncode is None:
            await _kill(child)
    return rows


async def _kill(child: asyncio.subprocess.Process) -> None:
    with contextlib.suppress(ProcessLookupError):
        child.kill()
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(_KILL_S):
            await child.wait()
