"""A worker of Kafka Connect in distributed mode, from the Maven jars."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.peers import install
from tests.peers.java_tools import JVM_SHORT
from tests.peers.kafka import JVM_QUIET
from tests.peers.processes import Process, free_port

COORDINATES = (
    ("org.apache.kafka", "connect-runtime", install.KAFKA_VERSION),
    ("org.apache.kafka", "connect-file", install.KAFKA_VERSION),
    ("org.apache.kafka", "connect-mirror", install.KAFKA_VERSION),
    install.LOG_COORDINATE,
)
MAIN = "org.apache.kafka.connect.cli.ConnectDistributed"
ANSWER_S_MAX = 15.0  # a worker that cannot start lets requests wait for 90 s


def connect_jars() -> Path:
    """Return the directory with Kafka Connect, its connectors for files, and MirrorMaker."""
    return install.maven_jars(f"connect-{install.KAFKA_VERSION}", COORDINATES)


class Worker:
    """One worker; its settings, its log and its address outlive its runs."""

    def __init__(self, directory: Path, settings: Mapping[str, str]) -> None:
        self.log = directory / "worker.log"
        self.rest = f"http://127.0.0.1:{free_port()}"
        self.properties = directory / "worker.properties"
        lines = {**settings, "listeners": self.rest}
        self.properties.write_text("".join(f"{key}={value}\n" for key, value in lines.items()))
        self.process = self.begin()

    def begin(self) -> Process:
        """Start the worker, which has ended or was never started."""
        jvm = [install.java(), *JVM_SHORT, *JVM_QUIET, "-cp", f"{connect_jars()}/*"]
        self.process = Process([*jvm, MAIN, str(self.properties)], self.log)
        return self.process

    def check(self) -> None:
        """Raise if the worker has ended."""
        assert self.process.exit_code is None, self.process.output()[-4000:]

    def ask(self, path: str, body: object = None) -> Any:
        """Return the answer to a REST request, or None if the worker is not ready."""
        data = None if body is None else json.dumps(body).encode()
        headers = {"Content-Type": "application/json"}
        method = "GET" if body is None else "PUT"
        request = urllib.request.Request(self.rest + path, data, headers, method=method)
        try:
            with urllib.request.urlopen(request, timeout=ANSWER_S_MAX) as answer:
                return json.load(answer)
        except urllib.error.HTTPError as refused:
            if refused.code in (404, 409, 500, 503):
                return None
            raise
        except OSError:
            return None

    def states(self, connector: str) -> list[str]:
        """Return the states of the tasks of a connector; none if they are not known."""
        status = self.ask(f"/connectors/{connector}/status")
        return [] if status is None else [each["state"] for each in status["tasks"]]
