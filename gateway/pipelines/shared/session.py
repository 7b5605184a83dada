"""The Spark session of a job: the active one under spark-submit, otherwise a new one."""

from __future__ import annotations

import os
import sys
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from gateway.pipelines.shared.errors import JobError
from gateway.pipelines.shared.java import why_not_started
from ledger.command_line.extras import install_command

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SCALA = "2.13"
ICEBERG_VERSIONS = {"4.0": "1.11.0", "4.1": "1.11.0"}
"""The Iceberg release for each line of Spark. Iceberg has published none for later lines."""

AWS_VERSION = "2.29.52"
"""Version of Amazon's SDK. S3A of Hadoop 3.4.2 was built with it."""
S3_EXCLUDED = "software.amazon.awssdk:bundle"
"""A dependency of S3A with the clients of all services: half a gigabyte, 4 modules of it needed."""
_AWS_MODULES = ("s3", "s3-transfer-manager", "sts", "kms")
_S3_SCHEMES = ("s3a://", "s3://")
_JARS = ("spark.jars", "spark.jars.packages")
_PYTHON = "PYSPARK_PYTHON"
_LOSSY = ("spark.sql.files.ignoreCorruptFiles", "spark.sql.files.ignoreMissingFiles")
STRICT_READS = {"ignoreCorruptFiles": "false", "ignoreMissingFiles": "false"}
"""Options for readers of files. They override the settings of the session."""
_SECRETS = "secret|password|token|access[.]?key|jaas|sasl|ssl[.].*key"
REDACTED = {
    # Spark's own patterns leave sasl.jaas.config in plain view, and cover no options of sources.
    "spark.redaction.regex": f"(?i){_SECRETS}",
    "spark.sql.redaction.options.regex": f"(?i)url|{_SECRETS}",
}
"""Settings by which Spark's UI, logs and event files hide secrets in options and properties."""

_DEFAULTS = {
    "spark.sql.session.timeZone": "UTC",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    # A job runs a query for each of many chunks. Of those that have ended, Spark would keep plans,
    # metrics and generated code in the heap, by default of 1,000 queries and 100,000 tasks.
    "spark.ui.retainedJobs": "10",
    "spark.ui.retainedStages": "10",
    "spark.ui.retainedTasks": "100",
    "spark.sql.ui.retainedExecutions": "2",
    "spark.sql.codegen.cache.maxEntries": "20",
    # Less than a row group, so that a task that reads an archive holds one of them. With Spark's
    # 128 MB, what a task holds grows with the archive until its files exceed that.
    "spark.sql.files.maxPartitionBytes": "8m",
    **REDACTED,
}


def packages() -> list[str]:
    """Return the Maven coordinates of the connectors for Kafka and Iceberg.

    The coordinates fit the importable pyspark. Raises JobError without one.
    """
    spark = _pyspark_version()
    line = ".".join(spark.split(".")[:2])
    found = [f"org.apache.spark:spark-sql-kafka-0-10_{SCALA}:{spark}"]
    iceberg = ICEBERG_VERSIONS.get(line)
    if iceberg is not None:
        found.append(f"org.apache.iceberg:iceberg-spark-runtime-{line}_{SCALA}:{iceberg}")
    return found


def s3_packages() -> list[str]:
    """Return the Maven coordinates of S3A and of the modules that it needs of Amazon's SDK.

    S3A fits the Hadoop of the installed pyspark. Exclude `S3_EXCLUDED` from its dependencies.
    """
    modules = [f"software.amazon.awssdk:{each}:{AWS_VERSION}" for each in _AWS_MODULES]
    return [f"org.apache.hadoop:hadoop-aws:{_hadoop_version()}", *modules]


def running_session() -> SparkSession | None:
    """Return the active session of this process, such as spark-submit's, or None."""
    _pyspark_version()
    from pyspark.sql import SparkSession

    return SparkSession.getActiveSession()


def new_session(
    name: str,
    master: str = "",
    conf: Mapping[str, str] | None = None,
    places: Sequence[str] = (),
) -> SparkSession:
    """Start a session in this process. `master` and `conf` apply only if none is running.

    Unless `conf` names jars, Spark fetches the connectors by `spark.jars.packages`. The connector
    for S3 is one of them if one of `places`, or a value of `conf`, is in S3. Raises JobError if
    pyspark or Java is missing, or if Spark does not start otherwise.
    """
    _pyspark_version()
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException
    from pyspark.sql import SparkSession

    settings = dict(conf or {})
    builder = SparkSession.builder.appName(f"gateway job {name}")
    if master:
        builder = builder.master(master)
    # The workers of a local master need the packages of this interpreter. Without a master, Spark
    # takes that of its own settings, or a local one.
    chosen = _PYTHON in os.environ
    if _is_local(master or settings.get("spark.master", "local")):
        os.environ.setdefault(_PYTHON, sys.executable)
    if not any(key in settings for key in _JARS):
        settings.update(connectors((*places, *settings.values())))
    for key, value in {**_DEFAULTS, **settings}.items():
        builder = builder.config(key, value)
    try:
        spark = builder.getOrCreate()
    except (PySparkException, Py4JError, RuntimeError, OSError) as error:
        why = why_not_started(error)
        if "stopped SparkContext" in why:
            why = f"no master answered at {master or settings.get('spark.master')}; check --master"
        raise JobError(f"Spark did not start: {why}", "NO_SPARK") from error
    if not chosen and not _is_local(spark.sparkContext.master):
        os.environ.pop(_PYTHON, None)
        spark.sparkContext.pythonExec = "python3"  # Spark's default: workers elsewhere have theirs
    return spark


def use_this_python(spark: SparkSession) -> None:
    """Let the workers of a local master run this interpreter, which has the packages they need.

    Else they run the `python3` of PATH. PYSPARK_PYTHON decides if it is set.
    """
    with suppress(AttributeError):  # a session of Spark Connect has no context
        context = spark.sparkContext
        if _PYTHON not in os.environ and _is_local(context.master):
            context.pythonExec = sys.executable


def _is_local(master: str | None) -> bool:
    return (master or "").startswith("local")


def expect_strict_reads(spark: SparkSession) -> None:
    """Raise JobError if Spark would leave out files that it cannot read, without an error."""
    for key in _LOSSY:
        if str(spark.conf.get(key, "false")).lower() == "true":
            raise JobError(
                f"{key} is true: Spark would leave out records without an error; unset it, or set"
                " it to false",
                "LOSSY_READS",
            )


def connectors(places: Sequence[str]) -> dict[str, str]:
    """Return the settings by which Spark fetches the connectors that these places need."""
    if not any(scheme in each for each in places for scheme in _S3_SCHEMES):
        return {"spark.jars.packages": ",".join(packages())}
    wanted = [*packages(), *s3_packages()]
    return {"spark.jars.packages": ",".join(wanted), "spark.jars.excludes": S3_EXCLUDED}


@contextmanager
def session_settings(spark: SparkSession, settings: Mapping[str, str]) -> Generator[None]:
    """Apply settings to the session within the block."""
    before = {key: spark.conf.get(key, None) for key in settings}
    for key, value in settings.items():
        spark.conf.set(key, value)
    try:
        yield
    finally:
        for key, value in before.items():
            if value is None:
                spark.conf.unset(key)
            else:
                spark.conf.set(key, value)


def _hadoop_version() -> str:
    """Return the version of Hadoop's client among the jars of the installed pyspark."""
    _pyspark_version()
    import pyspark

    home = os.environ.get("SPARK_HOME") or Path(pyspark.__file__).parent
    (jar,) = Path(home).glob("jars/hadoop-client-api-*.jar")
    return jar.stem.removeprefix("hadoop-client-api-")


def _pyspark_version() -> str:
    """Return the version of the pyspark that is imported here, also that of a stock Spark."""
    try:
        from pyspark.version import __version__
    except ImportError:
        raise JobError(
            "pyspark is not installed here: `make spark`, then .venv-spark/bin/python -m gateway"
            f" job ...; or {install_command('spark')}",
            "NO_SPARK",
        ) from None
    return __version__
