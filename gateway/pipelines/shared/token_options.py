"""Client keys of OAUTHBEARER for jobs: Kafka's client in Spark gets the token that ours gets.

Kafka's client of Spark 4.0 (3.9) has the client's id and secret in `sasl.jaas.config`, and reads a
file with a token once. Later ones ask a property of the JVM which URLs they may use, because of
CVE-2025-27817. Loaded only for a job that logs in.
"""

from __future__ import annotations

import os
import re
from collections.abc import Generator, Iterable, Mapping
from contextlib import contextmanager, suppress
from importlib.util import find_spec
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
_DEFAULT: Final = re.compile(
    r"\s*(spark\.executor\.(?:default|extra)JavaOptions)(?:\s*[=:]\s*|\s+)(.*?)\s*"
)
_UNSUPPORTED: Final = "UNSUPPORTED_SECURITY"
_SUBMITTED: Final = "PYSPARK_GATEWAY_PORT"  # a variable of processes that spark-submit starts
_PATH: Final = re.compile(r"/[A-Za-z0-9_.~/-]+")
_URL: Final = re.compile(r"(?:file:(?://)?/|https://)[^\s,\"']+")
_MAYBE_SECRET: Final = re.compile(r"\?|//[^/]*@")  # a query, or a user
_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f-\x9f]")


def token_keys(source: TokenSource) -> dict[str, str]:
    """Return the keys of a token for Kafka's client and ours. Raises JobError."""
    found = {HANDLER: HANDLERS[0]}
    if isinstance(source, TokenOfFile):
        return {**found, URL: _file_url(source.file), JAAS: f"{MODULE} required;"}
    assert isinstance(source, GrantedToken)
    if not _URL.fullmatch(source.url):
        raise JobError(
            f"{source.place}: the URL must have no spaces, commas or quotes for jobs on Spark; "
            "nothing was sent",
            _UNSUPPORTED,
        )
    options = {
        "clientId": source.client_id,
        "clientSecret": literal(source.client_secret, "a client secret"),
        **({"scope": source.scope} if source.scope else {}),
    }
    written = " ".join(f"{name}={quoted(value, name)}" for name, value in options.items())
    return {**found, URL: source.url, JAAS: f"{MODULE} required {written};"}


def _file_url(file: Path) -> str:
    """Return the URL of a file as Kafka's client reads it, without escapes. Raises JobError."""
    path = str(file.absolute())
    if not _PATH.fullmatch(path):
        raise JobError(
            f"{URL}: {path!r}: the path of the token must have only letters, digits and _ . ~ / - "
            "for jobs on Spark; nothing was sent",
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


def quoted(value: str, name: str) -> str:
    """Return a value of an option of JAAS. Raises JobError if Kafka would read another one."""
    if _CONTROL.search(value):
        raise JobError(
            f"{name}: must have no control characters for jobs on Spark; nothing was sent",
            _UNSUPPORTED,
        )
    escaped = re.sub(r'(["\\])', r"\\\1", value)
    return f'"{escaped}"'


def token_urls(keys: Iterable[Mapping[str, str]]) -> list[str]:
    """Return the URLs of the tokens that these client keys name, each once."""
    named = {each[URL]: None for each in keys if each.get(URL)}
    return [url for url in named if _URL.fullmatch(url)]


def with_token_urls(conf: Mapping[str, str], urls: Iterable[str]) -> dict[str, str]:
    """Return the settings of a new session whose executors may use these URLs.

    They come after those that the settings and spark-defaults.conf allow already: of two properties
    the last one counts. Raises JobError if a URL may have a secret.

    A session of spark-submit keeps the options that it was given there, which `conf` lacks.
    """
    wanted = list(urls)
    if not wanted or _SUBMITTED in os.environ:
        return dict(conf)
    if any(map(_MAYBE_SECRET.search, wanted)):
        raise JobError(
            f"{URL}: must have no query and no user for executors, as options of Java can be seen "
            f"in the list of processes; set -D{ALLOWED} yourself with spark-submit",
            _UNSUPPORTED,
        )
    settings = {**_defaults(), **conf}
    own = settings.get(EXECUTOR_JAVA, "")
    before = _ALLOWING.findall(f"{settings.get(_DEFAULT_JAVA, '')} {own}")[-1:]
    allowed = _each_once(",".join([*before, *wanted]))
    return {**conf, EXECUTOR_JAVA: f"{own} -D{ALLOWED}={allowed}".strip()}


def _defaults() -> dict[str, str]:
    """Return the options of executors in the spark-defaults.conf that a new session reads."""
    place = os.environ.get("SPARK_CONF_DIR")
    if place is None:
        home = os.environ.get("SPARK_HOME") or _pyspark_home()
        place = Path(home, "conf")
    try:
        lines = Path(place, "spark-defaults.conf").read_text(errors="replace").splitlines()
    except OSError:  # there is none
        return {}
    return {found[1]: found[2] for line in lines if (found := _DEFAULT.fullmatch(line))}


def _pyspark_home() -> str:
    found = find_spec("pyspark")
    return "" if found is None or found.origin is None else str(Path(found.origin).parent)


@contextmanager
def token_urls_allowed(spark: SparkSession, urls: Iterable[str]) -> Generator[None]:
    """Let Kafka's clients in the JVM of the driver use these URLs too, within the block."""
    wanted = dict.fromkeys(urls)
    if not wanted:
        yield
        return
    from py4j.protocol import Py4JError

    jvm: Any = spark.sparkContext._jvm  # pyright: ignore[reportPrivateUsage]
    system = jvm.java.lang.System
    before = system.getProperty(ALLOWED)
    system.setProperty(ALLOWED, _each_once(",".join([before or "", *wanted])))
    try:
        yield
    finally:
        with suppress(Py4JError, ConnectionError):  # its JVM has died
            if before is None:
                system.clearProperty(ALLOWED)
            else:
                system.setProperty(ALLOWED, before)


def _each_once(urls: str) -> str:
    return ",".join(dict.fromkeys(filter(None, urls.split(","))))
