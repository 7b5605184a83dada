"""What is known of a cluster on this machine, in its directory: `cluster.json`, `env`, `lock`.

The file is replaced as a whole, so a reader never sees half of it. Changes happen under the lock.
"""

from __future__ import annotations

import fcntl
import json
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from gateway.process.local_cluster.faults import CannotStart, LocalClusterError
from gateway.process.local_cluster.pids import ProcessId
from gateway.process.local_cluster.services import LOOPBACK, ZOOKEEPER, Size, Web, bootstrap_of

_VERSION: Final = 1
_FILE: Final = "cluster.json"


@dataclass(slots=True)
class State:
    """The cluster of one directory."""

    size: Size = field(default_factory=Size)
    # By name. They stay when a process ends, so that it comes back at its address.
    ports: dict[str, int] = field(default_factory=dict[str, int])
    # The last run of each process that was started and not stopped, alive or not.
    processes: dict[str, ProcessId] = field(default_factory=dict[str, ProcessId])
    # Where the gateways serve their pages; None if they serve none.
    web: Web | None = None

    def alive(self, name: str) -> bool:
        found = self.processes.get(name)
        return found is not None and found.alive

    @property
    def bootstrap(self) -> str:
        return bootstrap_of(self.size, self.ports)

    @property
    def zookeeper(self) -> str:
        return f"{LOOPBACK}:{self.ports[ZOOKEEPER]}"


def load(directory: Path) -> State | None:
    """Return the cluster of the directory, None if there is none. Raises CannotStart."""
    file = directory / _FILE
    try:
        text = file.read_text()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise CannotStart(f"{file}: {error.strerror}", "UNREADABLE_STATE") from None
    try:
        return _decode(json.loads(text))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise CannotStart(
            f"{file} cannot be read ({error}): stop its processes by hand, then remove it",
            "UNREADABLE_STATE",
        ) from None


def _decode(document: Any) -> State:
    if document["version"] != _VERSION:
        raise ValueError(f"version {document['version']}, expected {_VERSION}")
    return State(
        Size(int(document["gateways"]), int(document["bookies"])),
        {str(name): int(port) for name, port in document["ports"].items()},
        {
            str(name): ProcessId(int(each["pid"]), int(each["started"]), str(each["boot"]))
            for name, each in document["processes"].items()
        },
        _web_of(document),
    )


def _web_of(document: Any) -> Web | None:
    """Return where pages are served. Earlier releases wrote nothing about them."""
    port = document.get("http_port")
    return None if port is None else Web(int(port), bool(document.get("http_write")))


def load_existing(directory: Path) -> State:
    """Return the cluster of the directory. Raises LocalClusterError if there is none."""
    state = load(directory)
    if state is None:
        raise LocalClusterError(
            f"there is no cluster in {directory}: start one with `gateway cluster up`, or name its "
            "directory with --data",
            "NO_CLUSTER",
        )
    return state


def save(directory: Path, state: State) -> None:
    """Replace the state, and write the files that people and scripts read."""
    document = {
        "version": _VERSION,
        "gateways": state.size.gateways,
        "bookies": state.size.bookies,
        "ports": state.ports,
        "http_port": None if state.web is None else state.web.port,
        "http_write": state.web is not None and state.web.write,
        "processes": {name: each._asdict() for name, each in state.processes.items()},
    }
    draft = directory / f"{_FILE}.new"
    draft.write_text(json.dumps(document, indent=2) + "\n")
    draft.replace(directory / _FILE)
    for file in directory.glob("*.pid"):
        if file.stem not in state.processes:
            file.unlink(missing_ok=True)
    for name, each in state.processes.items():
        (directory / f"{name}.pid").write_text(f"{each.pid}\n")
    if ZOOKEEPER in state.ports:
        (directory / "env").write_text(
            f"export GATEWAY_BOOTSTRAP={state.bootstrap}\n"
            f"export GATEWAY_ZOOKEEPER={state.zookeeper}\n"
        )


def forget(directory: Path) -> None:
    """Remove the state of a cluster that has never run. `env` stays, with ZooKeeper's port."""
    (directory / _FILE).unlink(missing_ok=True)


@contextmanager
def locked(directory: Path) -> Generator[None]:
    """Hold the lock of the directory, which is made if it is missing. Waits for other commands."""
    try:
        directory.mkdir(parents=True, exist_ok=True)
        lock = (directory / "lock").open("w")
    except OSError as error:
        raise CannotStart(f"{directory}: {error.strerror}", "UNUSABLE_DIRECTORY") from None
    with lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
