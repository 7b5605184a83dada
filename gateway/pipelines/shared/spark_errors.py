"""What Spark says of a failure is many lines of two languages; a job says the one that matters."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from gateway.pipelines.shared.errors import JobError

T = TypeVar("T")


def translate_spark_errors(work: Callable[[], T]) -> T:
    """What `work` returns. Spark's errors become JobErrors: SPARK_REFUSED where a rerun meets the
    same (a plan that cannot be), SPARK_GONE where its JVM has died, else SPARK_FAILED."""
    from py4j.protocol import Py4JError
    from pyspark.errors import AnalysisException, PySparkException

    try:
        return work()
    except AnalysisException as error:
        raise JobError(f"Spark: {_one_line(error)}", "SPARK_REFUSED") from error
    except (PySparkException, Py4JError) as error:
        raise JobError(f"Spark: {_one_line(error)}", "SPARK_FAILED") from error
    except ConnectionError as error:  # Py4J's only word for it after the first call that failed
        message = "Spark's JVM has ended (out of memory?); start the job again"
        raise JobError(message, "SPARK_GONE") from error


def _one_line(error: Exception) -> str:
    """The innermost cause, else the first line."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()] or [repr(error)]
    causes = [line for line in lines if line.startswith("Caused by: ")]
    return causes[-1].removeprefix("Caused by: ") if causes else lines[0]
