"""Goal: the processes of a test run end at about the same time, and few servers start.

Method: the choice of the next file, on tables of seconds; then pytest runs files in two processes.
"""

import json
from pathlib import Path

import pytest

from tests.schedule import FILE, next_file

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


def test_the_longest_file_begins():
    assert next_file({"a.py": 1.0, "b.py": 3.0, "c.py": 2.0}, set(), set()) == "b.py"


def test_a_process_goes_on_with_the_folder_that_it_began_with():
    assert next_file({SPARK: 1.0, OTHER: 3.0}, {"tests/pipelines/"}, set()) == SPARK


def test_the_folder_of_another_process_comes_last():
    waiting = {SPARK: 3.0, OTHER: 1.0}
    assert next_file(waiting, set(), {"tests/pipelines/"}) == OTHER
    assert next_file({SPARK: 3.0}, set(), {"tests/pipelines/"}) == SPARK


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
