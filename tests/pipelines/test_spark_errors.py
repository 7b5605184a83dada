"""Goal: however Spark's own process fails or disappears, a job ends with one line.

Method: the errors themselves, as Py4J raises them; no server listens on the JVM's port.
"""

from __future__ import annotations

import socket
from traceback import format_exc

import pytest
from py4j.clientserver import ClientServer, JavaParameters
from py4j.protocol import Py4JNetworkError
from pyspark.errors import AnalysisException

from gateway.pipelines.shared.errors import JobError
from gateway.pipelines.shared.refusals import RefusedInTask, refusals_named
from gateway.pipelines.shared.session import packages
from gateway.pipelines.shared.spark_errors import translate_spark_errors
from gateway.wire.client_link import Refused


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


JAVA = "org.apache.kafka.common.errors."
TOPIC = "TopicAuthorizationException: Not authorized to access topics: [orders]"


@pytest.mark.parametrize(
    ("text", "code", "said"),
    [
        (
            "Job aborted due to stage failure: Task 1 in stage 3.0 failed 1 times, most recent"
            f" failure: Lost task 1.0 in stage 3.0 (TID 4) (10.0.0.7 executor 2): {JAVA}{TOPIC}"
            "\n\nDriver stacktrace:\n\tat org.apache.spark.X",
            "TOPIC_AUTHORIZATION_FAILED",
            "Kafka: Not authorized to access topics: [orders]",
        ),
        (
            f"An error occurred\nCaused by: {JAVA}{TOPIC}\n\tat x\nCaused by: java.lang.Error: y",
            "TOPIC_AUTHORIZATION_FAILED",
            "Kafka: Not authorized to access topics: [orders]",
        ),
        (
            f"An error occurred\nCaused by: {JAVA}SaslAuthenticationException: no such user",
            "SASL_AUTHENTICATION_FAILED",
            "Kafka: no such user",
        ),
        (
            f"An error occurred\nCaused by: {JAVA}GroupAuthorizationException\n\tat x",
            "GROUP_AUTHORIZATION_FAILED",
            "Kafka: GroupAuthorizationException",
        ),
        (
            f"An error occurred\nCaused by: {JAVA}TimeoutException: late",
            "SPARK_FAILED",
            f"Spark: {JAVA}TimeoutException: late",
        ),
    ],
)
def test_a_login_or_a_right_that_a_task_was_refused_keeps_its_code(
    text: str, code: str, said: str
) -> None:
    def work() -> None:
        raise Py4JNetworkError(text)

    with pytest.raises(JobError) as raised:
        translate_spark_errors(work)
    assert (raised.value.code, str(raised.value)) == (code, said)


@pytest.mark.parametrize(
    ("error", "code", "said"),
    [
        (
            JobError("orders-0: denied", "TOPIC_AUTHORIZATION_FAILED"),
            "TOPIC_AUTHORIZATION_FAILED",
            "orders-0: denied",
        ),
        (Refused("no such user"), "SASL_AUTHENTICATION_FAILED", "no such user"),
        (JobError("orders-0: moved", "NO_LEADER"), "SPARK_FAILED", "orders-0: moved"),
    ],
)
def test_a_refusal_of_a_python_worker_is_read_from_its_traceback(
    error: Exception, code: str, said: str
) -> None:
    def work() -> None:
        try:
            with refusals_named():
                raise error
        except (JobError, RefusedInTask):
            raise Py4JNetworkError(f"Caused by: {format_exc()}\n\tat x") from None

    with pytest.raises(JobError) as raised:
        translate_spark_errors(work)
    assert raised.value.code == code
    assert str(raised.value).endswith(said)


SAID = "Failed to find data source: kafka. Please deploy the application as per the guide"


def test_a_missing_connector_is_reported_with_the_packages_to_start_spark_with() -> None:
    def work() -> None:
        raise AnalysisException(SAID)

    with pytest.raises(JobError, match=r"spark-submit --packages org\.apache\.spark:") as said:
        translate_spark_errors(work)
    assert said.value.code == "NO_CONNECTOR"
    assert str(said.value).endswith(",".join(packages()))
