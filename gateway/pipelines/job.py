"""What the commands of all jobs share: options, the session, exit codes.

Exit codes: 0 done, 1 the job failed or found differences, 2 usage, 69 no server reached,
130 Ctrl-C. A failure is one line on stderr, JSON with `-o json`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from gateway.admin.cli import (
    EXIT_FAILED,
    EXIT_INTERRUPTED,
    EXIT_UNREACHABLE,
    EXIT_USAGE,
    Bootstrap,
    Output,
    fail,
)
from gateway.admin.output import Format
from gateway.pipelines.shared.errors import JobError
from gateway.pipelines.shared.spark_errors import translate_spark_errors

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["Bootstrap", "Conf", "Master", "Output", "run_job"]

T = TypeVar("T")

_USAGE = frozenset({"USAGE", "BAD_PATTERN", "BAD_BOOTSTRAP"})

Master = Annotated[
    str,
    typer.Option(
        "--master",
        envvar="SPARK_MASTER",
        help="Spark master; where spark-submit has set one, leave it empty.",
    ),
]
Conf = Annotated[
    list[str] | None,
    typer.Option("--conf", help="A setting of Spark: key=value; may be given more than once."),
]


def run_job(
    name: str,
    master: str,
    conf: list[str] | None,
    output: Format,
    work: Callable[[SparkSession], T],
) -> T:
    """What `work` returned, run with the session there is, else one for it.

    Exits on JobError, and on what an admin client raises.
    """
    from gateway.pipelines.shared.session import new_session, running_session
    from gateway.wire.client_link import AdminError, Unreachable

    settings: dict[str, str] = {}
    for each in conf or ():
        key, equals, value = each.partition("=")
        if not equals or not key:
            fail(EXIT_USAGE, f"--conf {each!r}: must be key=value", "USAGE", output)
        settings[key] = value
    try:
        running = running_session()
        if running is not None:
            return translate_spark_errors(lambda: work(running))
        spark = new_session(name, master, settings)
        try:
            return translate_spark_errors(lambda: work(spark))
        finally:
            _stop(spark)
    except JobError as error:
        fail(_exit_code(error), str(error), error.code, output)
    except AdminError as error:
        fail(EXIT_FAILED, str(error), error.code, output)
    except Unreachable as error:
        fail(EXIT_UNREACHABLE, str(error), "UNREACHABLE", output)
    except KeyboardInterrupt:
        print("gateway: interrupted", file=sys.stderr)
        raise typer.Exit(EXIT_INTERRUPTED) from None


def _stop(spark: SparkSession) -> None:
    """It is stopped; a JVM that has died cannot be asked to, and the job's own error counts."""
    from py4j.protocol import Py4JError

    with suppress(Py4JError, ConnectionError):
        spark.stop()


def _exit_code(error: JobError) -> int:
    if error.code == "UNREACHABLE":
        return EXIT_UNREACHABLE
    return EXIT_USAGE if error.code in _USAGE else EXIT_FAILED
