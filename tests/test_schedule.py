"""Goal: the processes of a test run end at about the same time, and few servers start.

Method: the choice of the next file, on tables of seconds; then pytest runs files in two processes.
"""

import json
from pathlib import Path

import pytest

from tests.schedule import FILE, Waiting, next_file, server_of

SPARK, OTHER = "tests/pipelines/test_a.py", "tests/ledger/test_a.py"
OPTIONS = ("-p", "no:randomly", "-p", "no:cacheprovider", "-p", "tests.schedule")
TESTS = """
import os
from pathlib import Path

import pytest

@pytest.mark.parametrize("number", range(10))
def test_one(number):
    with Path("ran").open("a") as ran:
        print(os.environ["PYTEST_XDIST_WORKER"], __name__, number, file=ran)
"""


def waiting(spark_s, other_s):
    return {SPARK: Waiting(spark_s, "spark"), OTHER: Waiting(other_s)}


def test_the_longest_file_begins():
    assert next_file(waiting(1.0, 3.0), set(), set()) == OTHER
    assert next_file(waiting(3.0, 1.0), set(), set()) == SPARK


def test_a_process_goes_on_with_the_server_that_it_began_with():
    assert next_file(waiting(1.0, 3.0), {"spark"}, set()) == SPARK


def test_what_needs_the_server_of_another_process_comes_last():
    assert next_file(waiting(3.0, 1.0), set(), {"spark"}) == OTHER
    assert next_file({SPARK: Waiting(3.0, "spark")}, set(), {"spark"}) == SPARK


@pytest.mark.parametrize(
    ("path", "server"),
    [
        ("tests/pipelines/test_losses.py", "spark"),
        ("tests/pipelines/test_decode.py", ""),
        ("tests/compat/test_confluent.py", "brokers"),
        ("tests/gateway/test_dev.py", ""),
    ],
)
def test_files_share_spark_by_their_fixtures_and_brokers_by_their_folder(path, server):
    assert server_of(path) == server


def test_every_file_with_seconds_is_there():
    noted = json.loads(FILE.read_text())
    assert [path for path in noted if not (FILE.parents[1] / path).exists()] == []


@pytest.mark.process
def test_each_test_runs_once_in_the_process_of_its_file(pytester):
    for name in "abcdef":
        pytester.makepyfile(**{f"test_{name}": TESTS})
    ran = pytester.runpytest_subprocess(*OPTIONS, "-n", "2", "--dist", "loadfile")
    ran.assert_outcomes(passed=60)
    lines = Path(pytester.path / "ran").read_text().splitlines()
    assert len(lines) == 60
    assert len({line.split()[0] for line in lines}) == 2
    assert len({tuple(line.split()[:2]) for line in lines}) == 6
