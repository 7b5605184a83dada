"""Spark with its own, unchanged Kafka source and sink."""

from __future__ import annotations

import os
import warnings
from pathlib import Path
from typing import TYPE_CHECKING

from tests.peers import install

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LOGGING = """rootLogger.level = warn
rootLogger.appenderRef.file.ref = file
appender.file.type = File
appender.file.name = file
appender.file.fileName = {file}
appender.file.layout.type = PatternLayout
appender.file.layout.pattern = %d %p %c: %m%n%ex
"""


def new_session(name: str, work: Path) -> SparkSession:
    """Return a local session of two cores that keeps all its files under `work`."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from pyspark.sql import SparkSession
    jars = install.spark_jars()
    work.mkdir(parents=True, exist_ok=True)
    # Spark reads its logging from this directory: all of it goes into a file.
    (work / "log4j2.properties").write_text(LOGGING.format(file=work / "spark.log"))
    os.environ["SPARK_CONF_DIR"] = str(work)
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    settings = {
        "spark.jars": ",".join(str(jar) for jar in jars),
        "spark.driver.memory": "1g",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.extraJavaOptions": f"-Dderby.system.home={work}",
        "spark.local.dir": str(work / "local"),
        "spark.sql.warehouse.dir": str(work / "warehouse"),
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.session.timeZone": "UTC",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
    }
    builder = SparkSession.builder.master("local[2]").appName(name)
    for key, value in settings.items():
        builder = builder.config(key, value)
    return builder.getOrCreate()
