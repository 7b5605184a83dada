"""Goal: however Spark's own process fails or disappears, a job ends with one line.

Method: the errors themselves, as Py4J raises them; no server listens on the JVM's port.
"""

from __future__ import annotations

import socket

import pytest
from py4j.clientserver import ClientServer, JavaParameters
from py4j.protocol import Py4JNetworkError
from pyspark.errors import AnalysisException

from gateway.pipelines.shared.errors import JobError
from gateway.pipelines.shared.session import packages
from gateway.pipelines.shared.spark_errors import translate_spark_errors


def test_a_dead_jvm_is_reported_in_one_line() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # and does not listen
        peer = ClientServer(JavaParameters(port=taken.getsockname()[1], auto_convert=False))
        with pytest.raises(JobError, match=r"^Spark's JVM has ended.*start the job again$") as said:
            translate_spark_errors(lambda: peer.jvm.java.lang.System.nanoTime())
        assert said.value.code == "SPARK_GONE"
        peer.shutdown()


def test_a_failed_call_is_reported_by_its_innermost_cause() -> None:
    def work() -> None:
        raise Py4JNetworkError("An error occurred\nCaused by: first\n\tat x\nCaused by: the one")

    with pytest.raises(JobError, match=r"^Spark: the one$") as said:
        translate_spark_errors(work)
    assert said.value.code == "SPARK_FAILED"


def test_a_failure_of_a_python_worker_is_reported_by_its_own_error() -> None:
    def work() -> None:
        raise Py4JNetworkError(
            "An error occurred\nCaused by: org.apache.spark.api.python.PythonException: Traceback"
            ' (most recent call last):\n  File "x.py", line 1, in read\n    raise it\n'
            "errors.JobError: a-0: no record at offset 7\n\n\tat org.apache.spark.api.python.X"
        )

    with pytest.raises(JobError, match=r"^Spark: errors.JobError: a-0: no record at offset 7$"):
        translate_spark_errors(work)


SAID = "Failed to find data source: kafka. Please deploy the application as per the guide"


def test_a_missing_connector_is_reported_with_the_packages_to_start_spark_with() -> None:
    def work() -> None:
        raise AnalysisException(SAID)

    with pytest.raises(JobError, match=r"spark-submit --packages org\.apache\.spark:") as said:
        translate_spark_errors(work)
    assert said.value.code == "NO_CONNECTOR"
    assert str(said.value).endswith(",".join(packages()))
