"""Starts, stops and kills the processes of a cluster on this machine.

Each process leads a session of its own and outlives the command, unless the command stays: then the
system kills the processes with it. Every start is in the state before anything waits for it.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, NamedTuple

from gateway.process.local_cluster import zookeeper
from gateway.process.local_cluster.faults import LocalClusterError
from gateway.process.local_cluster.pids import ProcessId, identify
from gateway.process.local_cluster.ports import choose_ports
from gateway.process.local_cluster.services import (
    AUDIT,
    LOOPBACK,
    ZOOKEEPER,
    Size,
    Web,
    words_of,
)
from gateway.process.local_cluster.state import State, forget, load, load_existing, locked, save

DIRECTORY_VARIABLE: Final = "LEDGER_CLUSTER_DIRECTORY"
"""Names the directory of the cluster in the environment of its processes."""

_START_S_MAX: Final = 60.0
_STOP_S_MAX: Final = 60.0  # twice what a gateway may take to hand over
_LOOK_S: Final = 0.05
_REAP_S_MAX: Final = 5.0
_STARTED: Final = b"started"
_ROOT: Final = Path(__file__).resolve().parents[3]  # where the packages are
_TAIL_BYTES_MAX: Final = 1024 * 1024

OnProgress = Callable[[str], None]


class Programs(NamedTuple):
    """What ZooKeeper runs with."""

    java: str
    class_path: str


class Launcher:
    """The processes of one directory. `tied` lets the system end them with this process."""

    def __init__(
        self, directory: Path, on_progress: OnProgress, *, jars: Path | None, tied: bool = False
    ) -> None:
        self.directory = directory.absolute()
        self._on_progress = on_progress
        self._jars = jars
        self._tied = tied
        # Processes that this one started: it is their parent, and reaps them.
        self._children: dict[str, subprocess.Popen[bytes]] = {}
        # Where the log of each of them begins, in bytes.
        self._log_starts: dict[str, int] = {}

    # start

    def up(self, size: Size | None, first_port: int | None, web: Web | None = None) -> State:
        """Start all processes that do not run, and wait until they serve.

        Without `web`, gateways serve their pages as the last time; at first, none.

        If one does not come up, those that this call started are stopped again. Without a size, it
        is that of the last time. Raises LocalClusterError.
        """
        with locked(self.directory):
            state = load(self.directory) or State()
            wanted = state.size if size is None else size
            state.web = web or state.web
            _refuse_fewer(state, wanted)
            missing = [name for name in wanted.names if not state.alive(name)]
            programs = self._programs() if ZOOKEEPER in missing else None
            before = state.size, dict(state.ports)
            choose_ports(self.directory, state, wanted, first_port)
            state.size = wanted
            try:
                for stage in wanted.stages:
                    self._start_stage(state, [name for name in stage if name in missing], programs)
            except BaseException:
                self._undo(state, missing, *before)
                raise
            save(self.directory, state)
            return state

    def _undo(self, state: State, names: Sequence[str], size: Size, ports: dict[str, int]) -> None:
        """Stop what a failed start began, and keep the size and the ports from before it."""
        self._stop(state, names)
        state.size, state.ports = size, ports
        if ports:
            save(self.directory, state)
        else:
            forget(self.directory)

    def _start_stage(self, state: State, names: Sequence[str], programs: Programs | None) -> None:
        for name in names:
            self._start(state, name, programs)
        self._wait_started(state, names)

    def _programs(self) -> Programs:
        return Programs(zookeeper.find_java(), zookeeper.find_jars(self._jars))

    def start_again(self, state: State, name: str) -> ProcessId:
        """Start a process that has ended, without waiting until it serves."""
        programs = self._programs() if name == ZOOKEEPER else None
        self._start(state, name, programs)
        return state.processes[name]

    def _start(self, state: State, name: str, programs: Programs | None) -> None:
        if programs is not None and name == ZOOKEEPER:
            zookeeper.configure(self.directory, state.ports[name])
            words = zookeeper.command(programs.java, programs.class_path, self.directory)
        else:
            module, *rest = words_of(name, state.ports, self.directory, state.web)
            words = [sys.executable, "-P", "-m", module, *rest]
        log = self.log(name)
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("ab") as output:
            self._log_starts[name] = output.tell()
            child = subprocess.Popen(
                [*self._tie(), *words],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
                env=child_environment(self.directory, self._jars),
            )
        self._children[name] = child
        found = identify(child.pid)
        if found is None:
            raise self._failed(name)
        state.processes[name] = found
        save(self.directory, state)

    def _tie(self) -> Sequence[str]:
        tied = self._tied and shutil.which("setpriv")
        return ["setpriv", "--pdeathsig", "KILL"] if tied else []

    def _wait_started(self, state: State, names: Sequence[str]) -> None:
        """Wait until these processes serve. Their logs end with what this start wrote."""
        until_s = time.monotonic() + _START_S_MAX
        for name in names:
            while not self._serves(state, name):
                if not state.alive(name):
                    raise self._failed(name)
                if time.monotonic() > until_s:
                    text = f"{name} did not start within {_START_S_MAX:.0f} s; see {self.log(name)}"
                    raise LocalClusterError(text, "START_FAILED")
                self._on_progress(f"waiting for {name}")
                time.sleep(_LOOK_S)

    def _serves(self, state: State, name: str) -> bool:
        if name == ZOOKEEPER:
            return zookeeper.serves(self.directory, state.ports[name])
        return _STARTED in self._written(name)

    def _written(self, name: str) -> bytes:
        """Return what the process has written since it was started, its last bytes at least."""
        with self.log(name).open("rb") as log:
            size = log.seek(0, os.SEEK_END)
            log.seek(max(self._log_starts.get(name, 0), size - _TAIL_BYTES_MAX))
            return log.read()

    def _failed(self, name: str) -> LocalClusterError:
        lines = self._written(name).decode(errors="replace").strip().splitlines()
        last = f": {lines[-1][:300]}" if lines else ""
        with suppress(subprocess.TimeoutExpired):  # its other threads may end a little later
            self._children[name].wait(_REAP_S_MAX)
        code = self.exit_code(name)
        how = "ended" if code is None else f"ended with {code}"
        return LocalClusterError(
            f"{name} {how} while it started{last}; see {self.log(name)}", "START_FAILED"
        )

    def log(self, name: str) -> Path:
        return self.directory / f"{name}.log"

    def exit_code(self, name: str) -> int | None:
        """Return the exit code of a process that this one started and that has ended."""
        child = self._children.get(name)
        return None if child is None else child.poll()

    # stop

    def down(self) -> list[str]:
        """Stop all processes, and return the names of those that ran."""
        with locked(self.directory):
            state = load_existing(self.directory)
            ran = [name for name in state.processes if state.alive(name)]
            self._stop(state, list(state.processes))
            return ran

    def _stop(self, state: State, names: Iterable[str]) -> None:
        """Stop these processes, gateways first and ZooKeeper last."""
        chosen = set(names)
        for stage in reversed(state.size.stages):
            together = [name for name in stage if name in chosen and name in state.processes]
            for name in together:
                state.processes[name].send(signal.SIGCONT)
                state.processes[name].send(signal.SIGTERM)
            until_s = time.monotonic() + _STOP_S_MAX
            for name in together:
                self._wait_ended(state.processes.pop(name), name, until_s)
        save(self.directory, state)

    def _wait_ended(self, process: ProcessId, name: str, until_s: float) -> None:
        while process.alive:
            self._on_progress(f"waiting for {name} to stop")
            if time.monotonic() > until_s:
                process.send(signal.SIGKILL)
            time.sleep(_LOOK_S)
        child = self._children.pop(name, None)
        if child is not None:
            child.wait()


def kill(directory: Path, names: Sequence[str]) -> None:
    """Kill these processes as kill -9 does. Raises LocalClusterError if one does not run."""
    state = load_existing(directory)
    chosen = dict.fromkeys(names)
    for name in chosen:
        if not state.alive(name):  # before any other is killed
            raise LocalClusterError(f"{name} does not run", "NOT_RUNNING")
    for name in chosen:
        state.processes[name].send(signal.SIGKILL)


def _refuse_fewer(state: State, wanted: Size) -> None:
    """Refuse to leave processes out that are there: their data would be lost to the others."""
    if state.ports and (
        wanted.gateways < state.size.gateways or wanted.bookies < state.size.bookies
    ):
        raise LocalClusterError(
            f"the cluster has {state.size.gateways} gateways and {state.size.bookies} bookies, and "
            "cannot have fewer: use another directory with --data",
            "FEWER_PROCESSES",
        )


def child_environment(directory: Path, jars: Path | None = None) -> dict[str, str]:
    """Let children import these packages, wherever the command runs, and name the cluster.

    A gateway may start ZooKeeper again, so it is told where the jars are.
    """
    paths = [str(_ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    given = {} if jars is None else {zookeeper.JARS_VARIABLE: str(jars.absolute())}
    own = {"PYTHONPATH": os.pathsep.join(paths), DIRECTORY_VARIABLE: str(directory)}
    return {**os.environ, **own, **given}


def rows(state: State, directory: Path) -> list[dict[str, Any]]:
    """Return a row for each process, in the order of their start."""
    found: list[dict[str, Any]] = []
    for name in state.size.names:
        process = state.processes.get(name)
        uptime_s = None if process is None else process.uptime_s
        running = uptime_s is not None
        stopped = "stopped" if process is None else "dead"
        found.append(
            {
                "name": name,
                "state": "running" if running else stopped,
                "pid": process.pid if process is not None and running else None,
                "address": None if name == AUDIT else f"{LOOPBACK}:{state.ports[name]}",
                "uptime_s": None if uptime_s is None else int(uptime_s),
                "log": str(directory / f"{name}.log"),
            }
        )
    return found
