"""Conversion of Spark's errors, which span many lines, to JobErrors of one line."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TypeVar

from gateway.pipelines.shared.errors import JobError
from gateway.pipelines.shared.refusals import refusal_in
from gateway.pipelines.shared.session import packages

T = TypeVar("T")

# Spark has one text for the source "kafka", another one for all others.
_NO_SOURCE = re.compile(r"Failed to find (the )?data source: ")
_BEYOND = ("java.lang.ArithmeticException: long overflow", "TimestampOutOfRange")
"""What the errors of Spark's Kafka source and of this project's decoder contain."""
_TRACEBACK = "Traceback (most recent call last):"


def translate_spark_errors(work: Callable[[], T]) -> T:
    """Return the result of `work`, and raise Spark's errors as JobErrors.

    The code is Kafka's own, such as TOPIC_AUTHORIZATION_FAILED, if a task was refused a login or a
    right. It is TIMESTAMP_OUT_OF_RANGE if a record has a timestamp that Spark cannot represent,
    which Spark reports as an overflow without the offset. It is NO_CONNECTOR if Spark lacks a
    connector, SPARK_REFUSED if a rerun would fail the same way (an invalid plan), SPARK_GONE if
    Spark's JVM has died, and SPARK_FAILED for all other errors.
    """
    from py4j.protocol import Py4JError
    from pyspark.errors import AnalysisException, PySparkException

    try:
        return work()
    except AnalysisException as error:
        if _NO_SOURCE.search(str(error)):
            raise _no_connector(error) from error
        raise JobError(f"Spark: {_one_line(error)}", "SPARK_REFUSED") from error
    except (PySparkException, Py4JError) as error:
        refusal = refusal_in(str(error))
        if refusal is not None:
            raise refusal from error
        if any(sign in str(error) for sign in _BEYOND):
            raise JobError(
                "a record has a timestamp that Spark cannot represent: it counts microseconds since"
                " 1970 in 64 bits",
                "TIMESTAMP_OUT_OF_RANGE",
            ) from error
        raise JobError(f"Spark: {_one_line(error)}", "SPARK_FAILED") from error
    except ConnectionError as error:  # Py4J raises only ConnectionError once the JVM is gone
        message = "Spark's JVM has ended (out of memory?); start the job again"
        raise JobError(message, "SPARK_GONE") from error


def _no_connector(error: Exception) -> JobError:
    """Return the error of a Spark that was started without the connectors.

    Under spark-submit Spark has already started when the job does, so the job cannot add them.
    """
    return JobError(
        f"Spark: {_one_line(error)}; start Spark with the connectors: spark-submit --packages"
        f" {','.join(packages())}",
        "NO_CONNECTOR",
    )


def _one_line(error: Exception) -> str:
    """Return the innermost cause of the error, or its first line if it has no cause."""
    lines = str(error).splitlines()
    tracebacks = [n for n, line in enumerate(lines) if line.endswith(_TRACEBACK)]
    if tracebacks:  # the error of a Python worker, which follows its indented traceback
        after = (line for line in lines[tracebacks[-1] + 1 :] if line and not line[0].isspace())
        return next(after, _TRACEBACK)
    plain = [line.strip() for line in lines if line.strip()] or [repr(error)]
    causes = [line for line in plain if line.startswith("Caused by: ")]
    return causes[-1].removeprefix("Caused by: ") if causes else plain[0]
