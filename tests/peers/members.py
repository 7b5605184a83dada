"""Members of a group of either protocol, of three clients, as processes.

Each process has some members, which come and go: a member lives for a drawn time, leaves, and
another one follows. It prints a line for each event; `events` reads them.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Final

from tests.histories.tenures import Event
from tests.peers import install
from tests.peers.java_tools import JVM_SHORT
from tests.peers.kafka import JVM_QUIET
from tests.peers.processes import Process

CLIENTS: Final = ("java", "librdkafka", "franz-go")
LONG_S: Final = 86_400.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Members:
    """What one process is asked for. `shortest` and `longest` are the seconds of a life.

    `protocol` is `consumer` (KIP-848) or `classic`. In the latter, members ask for a session of
    `session_ms`; in the former, the group has a session timeout. `name` begins their names.
    """

    brokers: str
    group: str
    topic: str
    count: int
    shortest: float = LONG_S
    longest: float = LONG_S
    seed: int = 1
    protocol: str = "consumer"
    session_ms: int = 10_000
    name: str = ""

    def started(self, client: str, directory: Path, name: str = "") -> Process:
        """Start these members with a client. Their events are the output of the process.

        `name` names the process and its files, and begins the names of the members.
        """
        place = directory / (name or client)
        errors = place.with_suffix(".errors")
        words = _words(client, replace(self, name=place.name), place)
        return Process(words, place.with_suffix(".log"), errors=errors)


def _words(client: str, members: Members, place: Path) -> list[str]:
    keys = asdict(members)
    file = place.with_suffix(".settings")
    if client == "java":
        file.write_text("".join(f"{key}={value}\n" for key, value in keys.items()))
        source = install.ROOT / "tests" / "peers" / "GroupMembers.java"
        classes = install.compiled(source, sorted(install.kafka_jars().glob("*.jar")))
        return [install.java(), *JVM_SHORT, *JVM_QUIET, "-cp", classes, "GroupMembers", str(file)]
    file.write_text(json.dumps(keys))
    if client == "franz-go":
        return [install.go_clients(), "members", str(file)]
    assert client == "librdkafka", client
    return [sys.executable, "-m", "tests.peers.librdkafka_members", str(file)]


def events(text: str) -> Iterator[Event]:
    """Yield the events of a process's output. The last line may be cut."""
    for line in text.split("\n")[:-1]:
        time_us, member, kind, more = line.split(" ", 3)
        if kind == "read":
            epoch, partition, offsets = more.split(" ")
            read = tuple(map(int, offsets.split(",")))
            yield Event(int(time_us), member, kind, (int(partition),), int(epoch), read)
        elif kind in ("assigned", "revoked", "lost"):
            yield Event(int(time_us), member, kind, tuple(map(int, more.split(","))))
        else:
            yield Event(int(time_us), member, kind, text=more)
