"""A real schema registry, Apicurio Registry, on a loopback port.

It keeps its schemas in topics of the gateway, and serves the protocol of Confluent's registry at
`uri`. All it has in its own directory are temporary files.
"""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Mapping
from pathlib import Path

from tests.peers import install
from tests.peers.processes import ServerProcess

VERSION = "3.0.9"
"""The newest one that runs on Java 17."""
ARTIFACT = f"io.apicurio:apicurio-registry-app:{VERSION}:tar.gz:all"
SUMS = {
    f"apicurio-registry-app-{VERSION}-all.tar.gz": (
        "2b28181501a20cbf6efcd77f9b7153908fc01f3d3a7c32024c0bd9e1b04c8a43"
    )
}
JVM = ("-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xmx384m")
CONTENT = "application/vnd.schemaregistry.v1+json"


def registry_jar() -> Path:
    content = install.maven_archive(f"registry-{VERSION}", ARTIFACT, SUMS)
    return content / f"apicurio-registry-app-{VERSION}-runner.jar"


class Registry(ServerProcess):
    """One registry; its schemas are in the cluster of `bootstrap`, and outlive stop and kill.

    `settings` are further ones of its own.
    """

    name = "Apicurio Registry"
    start_s_max = 300.0

    def __init__(
        self, data: Path, bootstrap: str, settings: Mapping[str, str] | None = None
    ) -> None:
        super().__init__(data)
        self._bootstrap = bootstrap
        self._settings = dict(settings or {})

    @property
    def uri(self) -> str:
        return f"http://127.0.0.1:{self.port}/apis/ccompat/v7"

    def prepare(self) -> None:
        self.data.mkdir(parents=True, exist_ok=True)

    def argv(self) -> list[str]:
        settings = {
            "java.io.tmpdir": self.data,
            "java.util.logging.manager": "org.jboss.logmanager.LogManager",
            "quarkus.http.host": "127.0.0.1",
            "quarkus.http.port": self.port,
            "apicurio.storage.kind": "kafkasql",
            "apicurio.kafkasql.bootstrap.servers": self._bootstrap,
            "apicurio.storage.snapshot.location": self.data,
            "apicurio.import.work-dir": self.data,
            **self._settings,
        }
        words = [f"-D{key}={value}" for key, value in settings.items()]
        return [install.java(), *JVM, *words, "-jar", str(registry_jar())]

    def serves(self) -> bool:
        """Return True once it has read its schemas; until then it answers that it has none."""
        try:
            ready = f"http://127.0.0.1:{self.port}/health/ready"
            with urllib.request.urlopen(ready, timeout=5.0) as answer:
                return answer.status == 200
        except OSError:
            return False

    def register(self, subject: str, schema: object) -> int:
        """Register an Avro schema under a subject; return its id."""
        body = {"schema": json.dumps(schema), "schemaType": "AVRO"}
        request = urllib.request.Request(
            f"{self.uri}/subjects/{subject}/versions",
            json.dumps(body).encode(),
            {"Content-Type": CONTENT},
        )
        with urllib.request.urlopen(request, timeout=60.0) as answer:
            return int(json.load(answer)["id"])
