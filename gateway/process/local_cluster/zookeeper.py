"""Apache ZooKeeper for a cluster on this machine: finds Java and its jars, and configures it."""

from __future__ import annotations

import os
import shutil
import socket
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from gateway.process.local_cluster.faults import CannotStart
from gateway.process.local_cluster.services import LOOPBACK, ZOOKEEPER

JARS_VARIABLE: Final = "GATEWAY_ZOOKEEPER_JARS"
_JAR: Final = "zookeeper*.jar"
_DEBIAN: Final = (Path("/usr/share/java"), Path("/usr/share/zookeeper/lib"))
_MAIN: Final = "org.apache.zookeeper.server.ZooKeeperServerMain"
_JVM: Final = ("-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xshare:auto")
_PROPERTIES: Final = {
    "org.slf4j.simpleLogger.defaultLogLevel": "warn",
    "zookeeper.admin.enableServer": "false",
    "zookeeper.preAllocSize": "1024",  # KiB; the default of 64 MiB is for real disks
    "zookeeper.skipACL": "yes",
    "zookeeper.forceSync": "no",  # what it acknowledged outlives kill -9, not a loss of power
    "java.awt.headless": "true",
}
_ANSWER_S_MAX: Final = 0.5


def find_java() -> str:
    """Return the path of Java, by JAVA_HOME or PATH. Raises CannotStart."""
    home = os.environ.get("JAVA_HOME")
    found = shutil.which("java", path=f"{home}/bin") if home else None
    found = found or shutil.which("java")
    if found is None:
        raise CannotStart(
            "Java is missing, which ZooKeeper needs: install it (Debian: apt-get install "
            "default-jre-headless), or set JAVA_HOME",
            "NO_JAVA",
        )
    return found


def find_jars(given: Path | None) -> str:
    """Return the class path of ZooKeeper: of the option or its variable, else of known places.

    Raises CannotStart.
    """
    named = os.environ.get(JARS_VARIABLE)
    if given is None and named:
        given = Path(named)
    if given is not None:
        if not any(given.glob(_JAR)):
            raise CannotStart(f"--zookeeper-jars {given}: no {_JAR} is there", "NO_ZOOKEEPER")
        return f"{given}/*"
    for directory in _places():
        if any(directory.glob(_JAR)):
            return f"{directory}/*"
    raise CannotStart(
        "ZooKeeper is missing: install it (Debian: apt-get install zookeeper), or unpack Apache's "
        f"release and name its lib directory with --zookeeper-jars or {JARS_VARIABLE}",
        "NO_ZOOKEEPER",
    )


def _places() -> Iterator[Path]:
    home = os.environ.get("ZOOKEEPER_HOME")
    if home:
        yield Path(home) / "lib"
    yield from _DEBIAN


def command(java: str, class_path: str, directory: Path) -> Sequence[str]:
    """Return the command that starts it, with the configuration that `configure` writes."""
    properties = [f"-D{key}={value}" for key, value in _PROPERTIES.items()]
    return [java, *_JVM, *properties, "-cp", class_path, _MAIN, str(_config(directory))]


def configure(directory: Path, port: int) -> None:
    """Write its configuration. Its ticks are short, so that sessions may be of a few seconds."""
    file = _config(directory)
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(
        "tickTime=100\n"
        f"dataDir={_tree(directory)}\n"
        f"clientPortAddress={LOOPBACK}\nclientPort={port}\n"
        "minSessionTimeout=200\nmaxSessionTimeout=60000\n"
        "maxClientCnxns=0\n"
        "4lw.commands.whitelist=srvr,ruok,conf\n"
    )


def serves(directory: Path, port: int) -> bool:
    """Return whether it serves, and not another server that has taken its port."""
    return f"dataDir={_tree(directory).absolute()}/" in _ask("conf", port) and (
        "Mode: standalone" in _ask("srvr", port)
    )


def _ask(word: str, port: int) -> str:
    """Return the answer to a four-letter word; empty if there is none."""
    try:
        with socket.create_connection((LOOPBACK, port), _ANSWER_S_MAX) as connection:
            connection.sendall(word.encode())
            return b"".join(iter(lambda: connection.recv(65536), b"")).decode()
    except OSError:
        return ""


def _config(directory: Path) -> Path:
    return directory / ZOOKEEPER / "zoo.cfg"


def _tree(directory: Path) -> Path:
    return directory / ZOOKEEPER / "tree"
