"""Spark's errors, which span many lines in two languages, as a JobError of one line."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from gateway.pipelines.shared.errors import JobError

T = TypeVar("T")


def translate_spark_errors(work: Callable[[], T]) -> T:
    """Return the result of `work`, and raise errors of Spark as JobErrors.

    SPARK_REFUSED: a rerun would fail the same way (an invalid plan). SPARK_GONE: Spark's JVM has
    died. SPARK_FAILED: anything else.
    """
    from py4j.protocol import Py4JError
    from pyspark.errors import AnalysisException, PySparkException

    try:
        return work()
    except AnalysisException as error:
        raise JobError(f"Spark: {_one_line(error)}", "SPARK_REFUSED") from error
    except (PySparkException, Py4JError) as error:
        raise JobError(f"Spark: {_one_line(error)}", "SPARK_FAILED") from error
    except ConnectionError as error:  # all that Py4J raises once the JVM is gone
        message = "Spark's JVM has ended (out of memory?); start the job again"
        raise JobError(message, "SPARK_GONE") from error


def _one_line(error: Exception) -> str:
    """Return the innermost cause, or the first line if there is none."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()] or [repr(error)]
    causes = [line for line in lines if line.startswith("Caused by: ")]
    return causes[-1].removeprefix("Caused by: ") if causes else lines[0]
