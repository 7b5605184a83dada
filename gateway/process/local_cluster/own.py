"""The cluster on this machine as one of its gateways sees it: its processes, killed and started.

`gateway cluster up` passes the directory to what it starts. That alone proves nothing: a process
belongs to the cluster if the state of the directory names it, with its start.
"""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path
from typing import Any, Final

from gateway.handlers.api import LocalProcessError
from gateway.process.local_cluster.faults import LocalClusterError
from gateway.process.local_cluster.launcher import (
    DIRECTORY_VARIABLE,
    child_environment,
    kill,
    rows,
)
from gateway.process.local_cluster.state import State, load

_STARTER: Final = "gateway.process.local_cluster.start_one"
_START_S_MAX: Final = 4.0
_CLOSED: Final = "UNKNOWN_PROCESS"


def own_cluster() -> OwnCluster | None:
    """Return the cluster whose directory this process was given; None without one."""
    directory = os.environ.get(DIRECTORY_VARIABLE)
    return None if not directory else OwnCluster(Path(directory), os.getpid())


class OwnCluster:
    """The processes of one directory, as seen by the process `pid`, which is to be one of them."""

    def __init__(self, directory: Path, pid: int) -> None:
        self._directory = directory
        self._pid = pid

    def rows(self) -> list[dict[str, Any]] | None:
        """Return a row for each process, or None if this process is none of them."""
        state = self._state()
        if state is None:
            return None
        found = rows(state, self._directory)
        return [{**row, "own": row["pid"] == self._pid} for row in found]

    def _state(self) -> State | None:
        try:
            state = load(self._directory)
        except LocalClusterError:
            return None
        if state is None:
            return None
        return state if self._own_name(state) is not None else None

    def _own_name(self, state: State) -> str | None:
        for name, process in state.processes.items():
            if process.pid == self._pid and process.alive:
                return name
        return None

    def _check(self, name: str) -> None:
        state = self._state()
        if state is None or name not in state.size.names:
            known = "" if state is None else f"; there are {', '.join(state.size.names)}"
            raise LocalProcessError(f"there is no process {name!r}{known}", _CLOSED)

    def kill(self, name: str) -> None:
        """Kill a process as kill -9 does, and what it started. Raises LocalProcessError."""
        self._check(name)
        state = self._state()
        if state is None or self._own_name(state) == name:
            raise LocalProcessError(
                f"{name} serves this page: kill it at the page of another gateway, or by "
                f"`gateway cluster kill {name}`",
                "SERVES_THIS_PAGE",
            )
        try:
            kill(self._directory, [name])
        except LocalClusterError as error:
            raise LocalProcessError(str(error), error.code) from error

    async def start(self, name: str) -> None:
        """Start a process that has ended, by a process that ends at once.

        So no process is a child of this one. Raises LocalProcessError.
        """
        self._check(name)
        starter = await asyncio.create_subprocess_exec(
            *(sys.executable, "-P", "-m", _STARTER, str(self._directory), name),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.PIPE,
            env=child_environment(self._directory),
        )
        try:
            async with asyncio.timeout(_START_S_MAX):
                _, errors = await starter.communicate()
        except TimeoutError:
            text = f"{name} was not started within {_START_S_MAX:g} s: see its log"
            raise LocalProcessError(text, "START_FAILED") from None
        if starter.returncode:
            lines = errors.decode(errors="replace").strip().splitlines()
            text = lines[-1][:300] if lines else f"{name} cannot be started"
            raise LocalProcessError(text, "START_FAILED")
