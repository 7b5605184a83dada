"""OAUTHBEARER for jobs: the keys by which Kafka's client in Spark gets the token that ours gets.

Kafka's client of Spark 4.0 (3.9) has the client's id and secret in `sasl.jaas.config`, and reads a
file with a token once. Later ones ask a property of the JVM which URLs they may use, because of
CVE-2025-27817. Loaded only for a job that logs in.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from gateway.pipelines.shared.errors import JobError
from gateway.security.token_keys import HANDLER, HANDLERS, JAAS, MODULE, URL
from gateway.security.token_sources import GrantedToken, TokenOfFile
from ledger.command_line.secret_values import is_reference

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from gateway.security.link_security import TokenSource

ALLOWED: Final = "org.apache.kafka.sasl.oauthbearer.allowed.urls"
EXECUTOR_JAVA: Final = "spark.executor.extraJavaOptions"
_DEFAULT_JAVA: Final = "spark.executor.defaultJavaOptions"  # Spark puts them before the others
_ALLOWING: Final = re.compile(rf"-D{re.escape(ALLOWED)}=[\"']?([^\s\"']*)")
_UNSUPPORTED: Final = "UNSUPPORTED_SECURITY"
_SUBMITTED: Final = "PYSPARK_GATEWAY_PORT"  # a variable of processes that spark-submit starts
_PATH: Final = re.compile(r"/[A-Za-z0-9_.~/-]+")
_URL: Final = re.compile(r"(?:file|https)://[^\s,\"']+")


def token_keys(source: TokenSource) -> dict[str, str]:
    """Return the keys of a token for Kafka's client and ours. Raises JobError."""
    found = {HANDLER: HANDLERS[0]}
    if isinstance(source, TokenOfFile):
        return {**found, URL: _file_url(source.file), JAAS: f"{MODULE} required;"}
    assert isinstance(source, GrantedToken)
    if not _URL.fullmatch(source.url):
        raise JobError(f"{URL}: must have no spaces, commas and quotes", _UNSUPPORTED)
    options = {
        "clientId": source.client_id,
        "clientSecret": literal(source.client_secret, "a client secret"),
        **({"scope": source.scope} if source.scope else {}),
    }
    written = " ".join(f"{name}={quoted(value)}" for name, value in options.items())
    return {**found, URL: source.url, JAAS: f"{MODULE} required {written};"}


def _file_url(file: Path) -> str:
    """Return the URL of a file as Kafka's client reads it, without escapes. Raises JobError."""
    path = str(file.absolute())
    if not _PATH.fullmatch(path):
        raise JobError(
            f"{URL}: the path of the token must have only letters, digits and _ . ~ / - for jobs "
            "on Spark; nothing was sent",
            _UNSUPPORTED,
        )
    return f"file://{path}"


def literal(secret: str, name: str) -> str:
    """Return a secret that was resolved. Raises JobError if it would be read as a reference."""
    if is_reference(secret):
        raise JobError(
            f"{name} that begins with file: or env: cannot be used by jobs on Spark; "
            "nothing was sent",
            _UNSUPPORTED,
        )
    return secret


def quoted(value: str) -> str:
    """Return a value of an option of JAAS."""
    escaped = re.sub(r'(["\\])', r"\\\1", value)
    return f'"{escaped}"'


def token_urls(keys: Iterable[Mapping[str, str]]) -> list[str]:
    """Return the URLs of the tokens that these client keys name, each once."""
    named = {each[URL]: None for each in keys if each.get(URL)}
    return [url for url in named if _URL.fullmatch(url)]


def with_token_urls(conf: Mapping[str, str], urls: Iterable[str]) -> dict[str, str]:
    """Return the settings of a new session whose executors may use these URLs.

    They come after those that the settings allow already: of two properties the last one counts.
    A session of spark-submit keeps the options that it was given there, which `conf` lacks.
    """
    wanted = list(urls)
    if not wanted or _SUBMITTED in os.environ:
        return dict(conf)
    own = conf.get(EXECUTOR_JAVA, "")
    before = _ALLOWING.findall(f"{conf.get(_DEFAULT_JAVA, '')} {own}")[-1:]
    allowed = _each_once(",".join([*before, *wanted]))
    return {**conf, EXECUTOR_JAVA: f"{own} -D{ALLOWED}={allowed}".strip()}


def allow_token_urls(spark: SparkSession, urls: Iterable[str]) -> None:
    """Let Kafka's clients in the JVM of the driver use these URLs, beside those of before."""
    wanted = dict.fromkeys(urls)
    if not wanted:
        return
    jvm: Any = spark.sparkContext._jvm  # pyright: ignore[reportPrivateUsage]
    before = jvm.java.lang.System.getProperty(ALLOWED) or ""
    jvm.java.lang.System.setProperty(ALLOWED, _each_once(",".join([before, *wanted])))


def _each_once(urls: str) -> str:
    return ",".join(dict.fromkeys(filter(None, urls.split(","))))
