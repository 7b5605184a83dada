"""Spark with its own, unchanged Kafka source and sink."""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.peers import install
from tests.peers.iceberg_rest import sqlite_jar

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# Sessions live for minutes: the second compiler would work for longer than it saves.
QUICK_JVM = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
LOGGING = """rootLogger.level = warn
rootLogger.appenderRef.file.ref = file
appender.file.type = File
appender.file.name = file
appender.file.fileName = {file}
appender.file.layout.type = PatternLayout
appender.file.layout.pattern = %d %p %c: %m%n%ex
"""


def settings(work: Path) -> dict[str, str]:
    """Of a session of two cores that keeps all its files under `work`, on 127.0.0.1 alone.

    Its Iceberg catalog is called `lake`.
    """
    (work / "tmp").mkdir(parents=True, exist_ok=True)
    # Spark reads its logging from this directory: all of it goes into a file.
    (work / "log4j2.properties").write_text(LOGGING.format(file=work / "spark.log"))
    return {
        "spark.jars": ",".join(map(str, [*install.spark_jars(), sqlite_jar()])),
        "spark.driver.memory": "1g",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.extraJavaOptions": (
            f"{QUICK_JVM} -Dderby.system.home={work} -Djava.io.tmpdir={work / 'tmp'}"
        ),
        "spark.local.dir": str(work / "local"),
        "spark.sql.warehouse.dir": str(work / "warehouse"),
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.catalog.lake": "org.apache.iceberg.spark.SparkCatalog",
        "spark.sql.catalog.lake.type": "hadoop",
        "spark.sql.catalog.lake.warehouse": str(work / "lake"),
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
    }


def environment(work: Path) -> dict[str, str]:
    """What a process needs besides `settings`: where the logging is described, and localhost.

    Python workers are of this Python: Spark's default is whatever `python3` is.
    """
    return {
        "SPARK_CONF_DIR": str(work),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "PYSPARK_PYTHON": sys.executable,
    }


def new_session(name: str, work: Path) -> SparkSession:
    """Return a local session of two cores, or the one that this process has already."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from pyspark.sql import SparkSession
    os.environ.update(environment(work))
    builder = SparkSession.builder.master("local[2]").appName(name)
    for key, value in settings(work).items():
        builder = builder.config(key, value)
    return builder.getOrCreate()


def reach(session: SparkSession, hadoop: Mapping[str, str]) -> None:
    """Give settings of Hadoop to a running session."""
    configuration: Any = session.sparkContext._jsc.hadoopConfiguration()  # pyright: ignore
    for key, value in hadoop.items():
        configuration.set(key, value)


def conf_words(work: Path) -> list[str]:
    """`settings` as `gateway job` and spark-submit take them."""
    return [word for key, value in settings(work).items() for word in ("--conf", f"{key}={value}")]
