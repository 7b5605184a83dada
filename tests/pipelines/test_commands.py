"""Goal: the jobs' commands show their help and name what is missing if Spark is not installed.

Method: the run environment, which has no pyspark, used as from a terminal.
"""

from __future__ import annotations

import os
import subprocess

import pytest

from tests.peers import install

ASK_S_MAX = 60
WITHOUT_SPARK = {
    "archive": ["orders", "--to", "somewhere"],
    "replay": ["--from", "somewhere", "--topic", "orders", "--to-topic", "again"],
    "audit": ["topic:orders", "topic:again"],
}


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
