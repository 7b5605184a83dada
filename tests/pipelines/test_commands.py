"""Goal: the jobs' commands show their help and name what is missing if Spark is not installed.

Method: the run environment, which has no pyspark, used as from a terminal.
"""

from __future__ import annotations

import os
import subprocess

import click
import pytest

from gateway.pipelines.archive_command import _fail
from gateway.pipelines.job import fail_job
from gateway.pipelines.shared.errors import JobError
from gateway.wire.client_link import Unreachable
from tests.peers import install

ASK_S_MAX = 60
WITHOUT_SPARK = {
    "archive": ["orders", "--to", "somewhere"],
    "replay": ["--from", "somewhere", "--topic", "orders", "--to-topic", "again"],
    "audit": ["topic:orders", "topic:again"],
}


class Text:
    """Failures are printed as text."""

    is_json = False


def ask(*words: str) -> subprocess.CompletedProcess[str]:
    argv = [install.gateway_python(), "-m", "gateway", "job", *words]
    # The tests themselves may run with another PySpark on this path.
    env = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    return subprocess.run(argv, capture_output=True, text=True, timeout=ASK_S_MAX, env=env)


def test_the_jobs_are_listed_without_spark():
    listed = ask("--help")
    assert listed.returncode == 0, listed.stderr
    for job in WITHOUT_SPARK:
        assert f" {job} " in listed.stdout


@pytest.mark.parametrize("job", WITHOUT_SPARK)
def test_one_line_shows_how_to_install_spark(job):
    asked = ask(job, *WITHOUT_SPARK[job])
    assert asked.returncode == 1
    (line,) = asked.stderr.strip().splitlines()
    assert line.startswith("gateway: pyspark is not installed here: `make spark`")


def lost_server() -> JobError:
    """The error of a job whose client reached no server."""
    try:
        try:
            raise Unreachable("no server at h:1: Connection refused")
        except Unreachable as error:
            raise JobError(str(error), "UNREACHABLE") from error
    except JobError as error:
        return error


def test_a_server_that_a_job_does_not_reach_is_reported_with_the_fix(capsys):
    with pytest.raises(click.exceptions.Exit) as ended:
        fail_job(lost_server(), Text())
    assert ended.value.exit_code == 69
    said = "no server at h:1: Connection refused; start one with `gateway dev`, or name it with"
    assert said in capsys.readouterr().err


def test_an_error_that_has_a_fix_gets_no_second_one(capsys):
    with pytest.raises(click.exceptions.Exit):
        fail_job(JobError("no ZooKeeper at h:2; is it running there?", "UNREACHABLE"), Text())
    assert capsys.readouterr().err.endswith("; is it running there?\n")


@pytest.mark.parametrize(
    ("codes", "exit_code"),
    [
        (("TOPIC_AUTHORIZATION_FAILED",), 77),
        (("TOPIC_AUTHORIZATION_FAILED", "SASL_AUTHENTICATION_FAILED"), 77),
        (("TOPIC_AUTHORIZATION_FAILED", "LOST_RECORDS"), 1),
        (("LOST_RECORDS",), 1),
    ],
)
def test_topics_that_are_set_aside_end_an_archive_with_77_if_all_are_refused(codes, exit_code):
    failed = {f"t{number}": JobError("no", code) for number, code in enumerate(codes)}
    with pytest.raises(click.exceptions.Exit) as ended:
        _fail(failed, Text())
    assert ended.value.exit_code == exit_code
