"""Logins and rights that a server refused inside a task of Spark.

Spark passes only the text of a task's error on to the driver: the stack trace of Java, or the
traceback of a Python worker. The code of the error is read from the text.
"""

from __future__ import annotations

import re
from collections.abc import Generator
from contextlib import contextmanager

from gateway.pipelines.shared.errors import JobError
from gateway.wire.client_link import AdminError, is_refusal

_RIGHT = re.compile(r"(\w+)AuthorizationException")
_OF_KAFKA = re.compile(
    r"(?:^|: )org\.apache\.kafka\.common\.errors\.(\w+)(?:: (.*))?$", re.MULTILINE
)
"""An exception of Kafka's client, with its message."""


class RefusedInTask(Exception):
    """The error of a task that was refused a login or a right. Its text begins with the code."""


_OF_PYTHON = re.compile(
    rf"^{re.escape(RefusedInTask.__module__)}\.{RefusedInTask.__name__}: ([A-Z_]+): (.*)$",
    re.MULTILINE,
)


@contextmanager
def refusals_named() -> Generator[None]:
    """Raise an error of this task that is a refusal as RefusedInTask, for `refusal_in`."""
    try:
        yield
    except (JobError, AdminError) as error:
        if not is_refusal(error.code):
            raise
        raise RefusedInTask(f"{error.code}: {error}") from error


def refusal_in(text: str) -> JobError | None:
    """Return the refusal that this text of Spark's error shows, if it shows one."""
    of_python = _OF_PYTHON.search(text)
    if of_python is not None:
        return JobError(of_python[2], of_python[1])
    for name, message in _OF_KAFKA.findall(text):
        code = refusal_of(name)
        if code is not None:
            return JobError(f"Kafka: {message or name}", code)
    return None


def refusal_of(exception: str) -> str | None:
    """Return Kafka's code if this exception of Kafka's client denies a login or a right.

    A certificate that is not trusted counts as a refused login, as it does for our own client.
    """
    if exception.endswith("AuthenticationException"):
        return "SASL_AUTHENTICATION_FAILED"
    right = _RIGHT.fullmatch(exception)
    if right is None:
        return None
    return f"{re.sub(r'(?<=[a-z])(?=[A-Z])', '_', right[1]).upper()}_AUTHORIZATION_FAILED"
