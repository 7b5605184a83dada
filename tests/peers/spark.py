"""Spark with its own, unchanged Kafka source and sink."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import TYPE_CHECKING

from tests.peers import install

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def new_session(name: str, work: Path) -> SparkSession:
    """Return a local session of two cores that keeps all its files under `work`."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from pyspark.sql import SparkSession
    jars = install.spark_jars()
    work.mkdir(parents=True, exist_ok=True)
    (work / "log4j2.properties").write_text("rootLogger.level = error\n")
    options = f"-Dlog4j2.configurationFile={work}/log4j2.properties -Dderby.system.home={work}"
    settings = {
        "spark.jars": ",".join(str(jar) for jar in jars),
        "spark.driver.memory": "1g",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.extraJavaOptions": options,
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
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    return session
