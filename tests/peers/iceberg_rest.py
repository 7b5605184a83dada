"""Iceberg's own REST catalog, over a database of SQLite, on a loopback port.

Iceberg publishes the servlet and the adapter of the server that its tests use; the main class here
binds them to loopback. The server writes the metadata of tables, the clients write their data.
"""

from __future__ import annotations

import urllib.error
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from xml.sax.saxutils import escape

from tests.peers import install
from tests.peers.processes import ServerProcess

ICEBERG_VERSION = "1.11.0"
SOURCE = Path(__file__).with_name("IcebergRest.java")
JETTY_VERSION = "12.1.5"
SQLITE_VERSION = "3.53.4.0"
COORDINATES = (
    ("org.apache.iceberg", "iceberg-core", ICEBERG_VERSION),
    ("org.apache.iceberg", "iceberg-core", ICEBERG_VERSION, "tests"),
    ("org.eclipse.jetty.ee10", "jetty-ee10-servlet", JETTY_VERSION),
    ("org.xerial", "sqlite-jdbc", SQLITE_VERSION),
    install.LOG_COORDINATE,
)
SUMS = Path(__file__).with_name("iceberg_rest.sums")
JVM = ("-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xmx256m")


def rest_jars() -> list[Path]:
    """Return the jars of the server, of Hadoop as Spark ships it, and of S3A.

    The jar of Iceberg's tests is the last one, because it contains a stub of a class of S3A.
    """
    jars = [*sorted(_own_jars().glob("*.jar")), *_hadoop_jars()]
    return sorted(jars, key=lambda each: each.name.endswith("-tests.jar"))


def sqlite_jar() -> Path:
    return next(_own_jars().glob("sqlite-jdbc-*.jar"))


def _own_jars() -> Path:
    """Return the directory with the jars whose sums are pinned, dependencies included."""
    sums = install.read_sums(SUMS)
    return install.maven_jars(f"iceberg-rest-{ICEBERG_VERSION}", COORDINATES, sums)


def _hadoop_jars() -> list[Path]:
    import pyspark

    hadoop = sorted(Path(pyspark.__file__).parent.glob("jars/hadoop-client-*.jar"))
    connectors = install.spark_jars()
    return [*hadoop, *(each for each in connectors if "spark" not in each.name)]


class IcebergRest(ServerProcess):
    """One server; its database outlives stop, kill and restart.

    `warehouse` is where the tables are, by default in `data`. `hadoop` are settings with which
    Hadoop reaches it.
    """

    name = "Iceberg's REST catalog"
    start_s_max = 300.0

    def __init__(
        self, data: Path, *, warehouse: str = "", hadoop: Mapping[str, str] | None = None
    ) -> None:
        super().__init__(data)
        self.warehouse = warehouse or f"file:{data / 'warehouse'}"
        self._hadoop = dict(hadoop or {})

    @property
    def uri(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def prepare(self) -> None:
        self.data.mkdir(parents=True, exist_ok=True)
        rows = "".join(
            f"<property><name>{escape(key)}</name><value>{escape(value)}</value></property>\n"
            for key, value in self._hadoop.items()
        )
        (self.data / "core-site.xml").write_text(f"<configuration>\n{rows}</configuration>\n")

    def argv(self) -> list[str]:
        classes = f"{self.data}:{install.compiled(SOURCE, rest_jars())}"
        settings = {
            "catalog-impl": "org.apache.iceberg.jdbc.JdbcCatalog",
            "uri": f"jdbc:sqlite:{self.data / 'catalog.db'}",
            "jdbc.schema-version": "V1",
            "warehouse": self.warehouse,
            "io-impl": "org.apache.iceberg.hadoop.HadoopFileIO",
        }
        words = [f"{key}={value}" for key, value in settings.items()]
        return [install.java(), *JVM, "-cp", classes, SOURCE.stem, str(self.port), *words]

    def serves(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self.uri}/v1/config", timeout=5.0) as answer:
                return answer.status == 200
        except (OSError, urllib.error.URLError):
            return False

    def settings(self) -> dict[str, str]:
        """Return the settings of a catalog in Spark, without its prefix."""
        io = "org.apache.iceberg.hadoop.HadoopFileIO"
        return {".type": "rest", ".uri": self.uri, ".io-impl": io}
