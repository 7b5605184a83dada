"""Code that the commands of all jobs share: options, the Spark session, exit codes.

Exit codes: 0 done, 1 the job failed, 2 wrong usage, 3 an audit found differences, 69 no server
reached, 77 a login or a right was refused, 78 the connection cannot be secured as configured, 130
Ctrl-C. A failure is one line on stderr, or JSON with `-o json`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from traceback import format_exception
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

import click

from gateway.admin.connection_settings import client_settings
from gateway.admin.requests import START_FIX, bootstrap_option, exit_code_of, fix_after
from gateway.pipelines.shared.errors import JobError
from gateway.pipelines.shared.spark_errors import translate_spark_errors
from ledger.command_line import units
from ledger.command_line.exit_codes import (
    EXIT_CONFIG,
    EXIT_FAILED,
    EXIT_INTERRUPTED,
    EXIT_UNREACHABLE,
    EXIT_USAGE,
)
from ledger.command_line.output import FailureForm, fail, output_option, usage
from ledger.command_line.program import Value, option
from ledger.command_line.shape import Shape
from ledger.errors import LedgerError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from gateway.admin.client_settings import ClientSettings

T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Any])

_USAGE = frozenset({"USAGE", "BAD_PATTERN", "BAD_BOOTSTRAP"})
_VERBOSE = "gateway.pipelines.verbose"
_TIME_S_MAX = 10 * 365 * 86_400


def seconds_type(first_s: float = 0) -> Value[float]:
    """Return the type of a duration option. A number without a unit is in seconds."""
    return Value("duration", units.duration(first_s, _TIME_S_MAX, bare="s"))


def job_options(*shapes: Shape) -> Callable[[F], F]:
    """Add the options that all jobs have. The shapes are those of `output_option`."""
    conf = option(
        "--conf",
        metavar="KEY=VALUE",
        multiple=True,
        help="Setting of Spark; repeat for several.",
    )
    master = option(
        "--master",
        metavar="URL",
        envvar="SPARK_MASTER",
        show_envvar=True,
        default="",
        help="Spark master; leave it out if spark-submit has set one.",
    )
    verbose = option(
        "--verbose",
        "-v",
        is_flag=True,
        expose_value=False,
        callback=_note_verbose,
        help="Report every step, and the whole trace of a failure, on stderr.",
    )

    def decorate(function: F) -> F:
        return bootstrap_option(master(conf(verbose(output_option(*shapes)(function)))))

    return decorate


def _note_verbose(context: click.Context, _: click.Parameter, value: bool) -> None:
    context.meta[_VERBOSE] = value


def is_verbose() -> bool:
    """Return whether the command that runs has --verbose."""
    context = click.get_current_context(silent=True)
    return context is not None and bool(context.meta.get(_VERBOSE))


def pairs_of(name: str, words: Sequence[str], output: FailureForm) -> dict[str, str]:
    """Return the values of an option `KEY=VALUE`. Ends the command if one has another form."""
    found: dict[str, str] = {}
    for each in words:
        key, equals, value = each.partition("=")
        if not equals or not key:
            usage(f"{name} {key!r}: must be key=value", output)
        found[key] = value
    return found


def kafka_option(function: F) -> F:
    """Add `--option`, whose values `servers_of` takes."""
    return option(
        "--option",
        "options",
        metavar="KEY=VALUE",
        multiple=True,
        help="Key of TLS or SASL of Kafka's client by Spark's name, such as "
        "kafka.security.protocol; repeat for several. It wins over --command-config.",
    )(function)


def servers_of(bootstrap: str, options: Sequence[str], output: FailureForm) -> ClientSettings:
    """Return how every process of the job reaches the Kafka port.

    The keys are those of `--command-config`, the environment or the profile, and of `--option`.
    Ends the command if they cannot be used.
    """
    from gateway.pipelines.shared.kafka_servers import job_servers

    try:
        return job_servers(client_settings(bootstrap), pairs_of("--option", options, output))
    except JobError as error:
        fail_job(error, output)


def run_job(
    name: str,
    master: str,
    conf: Sequence[str],
    output: FailureForm,
    work: Callable[[SparkSession], T],
    places: Sequence[str] = (),
    keys: Sequence[Mapping[str, str]] = (),
) -> T:
    """Return the result of `work`, which uses the running Spark session or a new one.

    A new session can reach all of `places`. `keys` are Kafka's client keys by which the job
    connects: its JVM may use the URLs of tokens that they name. Ends the command if the job fails,
    or if its client reaches no server.
    """
    from gateway.pipelines.shared.session import new_session, running_session
    from gateway.pipelines.shared.token_options import token_urls, with_token_urls
    from gateway.wire.client_link import AdminError, Unreachable

    settings, urls = pairs_of("--conf", conf, output), token_urls(keys)
    try:
        running = running_session()
        if running is not None:
            return translate_spark_errors(lambda: _work_strictly(running, work, urls))
        spark = new_session(name, master, with_token_urls(settings, urls), places)
        try:
            return translate_spark_errors(lambda: _work_strictly(spark, work, urls))
        finally:
            _stop(spark)
    except JobError as error:
        if is_verbose():
            print("".join(format_exception(error)), file=sys.stderr, end="")
        fail_job(error, output)
    except AdminError as error:
        fail(exit_code_of(error.code), str(error), error.code, output)
    except Unreachable as error:
        fail(EXIT_UNREACHABLE, f"{error}{fix_after(error, START_FIX)}", "UNREACHABLE", output)
    except (LedgerError, OSError) as error:  # of the storage, when segments are read
        fail(EXIT_FAILED, f"{type(error).__name__}: {error}", "STORAGE", output)
    except KeyboardInterrupt:
        print("gateway: interrupted", file=sys.stderr)
        raise click.exceptions.Exit(EXIT_INTERRUPTED) from None


def _work_strictly(
    spark: SparkSession, work: Callable[[SparkSession], T], urls: Sequence[str]
) -> T:
    """Return the result of `work`. Raises JobError if the session would leave out files."""
    from gateway.pipelines.shared.kafka_servers import secrets_hidden
    from gateway.pipelines.shared.session import expect_strict_reads
    from gateway.pipelines.shared.token_options import token_urls_allowed

    expect_strict_reads(spark)
    with token_urls_allowed(spark, urls), secrets_hidden(spark):
        return work(spark)


def _stop(spark: SparkSession) -> None:
    """Stop Spark. Errors are ignored if its JVM has died: the job's own error is reported."""
    from py4j.protocol import Py4JError

    with suppress(Py4JError, ConnectionError):
        spark.stop()


def fail_job(error: JobError, output: FailureForm) -> NoReturn:
    """End the command after an error of a job."""
    from gateway.wire.client_link import Unreachable

    text, cause = str(error), error.__cause__
    if isinstance(cause, Unreachable) and str(cause) == text:
        text += fix_after(cause, START_FIX)
    fail(_exit_code(error), text, error.code, output)


def _exit_code(error: JobError) -> int:
    if error.code == "UNREACHABLE":
        return EXIT_UNREACHABLE
    if error.code == "UNSUPPORTED_SECURITY":
        return EXIT_CONFIG
    return EXIT_USAGE if error.code in _USAGE else exit_code_of(error.code)
