"""Goal: a test that failed while the machine stood still runs again, and no other one does.

Method: what counts as a standstill, by numbers; pytest runs files with tests that fail at first.
"""

import signal
import subprocess
import sys
import threading
from pathlib import Path
from subprocess import PIPE

import pytest

from tests.standstill import STILL_S, still_s

FAILS_ONCE = """
    import pytest
    from tests import standstill

    runs = []

    @pytest.fixture(scope="module")
    def server():
        return []

    def test_one(server):
        runs.append(1)
        server.append(1)
        standstill._standstill._longest_s = {stood_s}
        assert len(runs) == {passes_in}

    def test_other(server):
        assert server
"""
ROOT = Path(__file__).parents[1]
OPTIONS = ("-p", "no:randomly", "-p", "no:cacheprovider", "-p", "no:xdist")


@pytest.mark.parametrize(
    ("late_s", "work_s", "found_s"), [(5.0, 0.1, 5.0), (5.0, 4.9, 0.0), (0.0, 0.1, 0.0)]
)
def test_what_the_process_worked_itself_is_no_standstill(late_s, work_s, found_s):
    assert still_s(late_s, work_s) == found_s


def run(pytester, stood_s, passes_in):
    pytester.makepyfile(FAILS_ONCE.format(stood_s=stood_s, passes_in=passes_in))
    return pytester.runpytest_inprocess(*OPTIONS, "-p", "tests.standstill")


def outcomes(pytester, stood_s, passes_in):
    return run(pytester, stood_s, passes_in).parseoutcomes()


def test_a_test_that_failed_in_a_standstill_runs_again(pytester):
    assert outcomes(pytester, STILL_S, 2) == {"passed": 2}


def test_the_end_shows_what_failed_at_first(pytester):
    done = run(pytester, STILL_S, 2)
    shown = ["*ran twice: *::test_one*", "*stood still*", "*assert len(runs) == 2"]
    done.stdout.fnmatch_lines(shown)
    assert done.ret == 0


def test_it_runs_no_third_time(pytester):
    assert outcomes(pytester, STILL_S, 3) == {"passed": 1, "failed": 1}


def test_without_a_standstill_a_failure_stays(pytester):
    assert outcomes(pytester, STILL_S / 2, 2) == {"passed": 1, "failed": 1}


HOOK_FAILS = """
    import pytest

    def pytest_runtest_logreport(report):
        if report.nodeid.endswith("test_one") and report.when == "setup":
            raise OSError("cannot send \\udcff")
"""


def test_an_error_beside_a_test_fails_the_test_and_not_the_run(pytester):
    pytester.makeconftest(HOOK_FAILS)
    done = run(pytester, 0.0, 1)
    assert done.parseoutcomes() == {"passed": 1, "failed": 1}
    done.stdout.fnmatch_lines(["*OSError: cannot send*"])


LOOKS = """
from tests.standstill import Standstill
one = Standstill()
one.begin()
for _ in range(2):
    print("ready", flush=True)
    input()
    print(one.take(), flush=True)
"""


def test_a_process_that_stands_still_measures_it_once():
    argv = [sys.executable, "-c", LOOKS]
    with subprocess.Popen(argv, stdin=PIPE, stdout=PIPE, text=True, cwd=ROOT) as child:
        assert child.stdin and child.stdout
        found = []
        for stands_still in (True, False):
            assert child.stdout.readline() == "ready\n"
            if stands_still:
                child.send_signal(signal.SIGSTOP)
                threading.Event().wait(1.0)
                child.send_signal(signal.SIGCONT)
                threading.Event().wait(0.3)
            child.stdin.write("\n")
            child.stdin.flush()
            found.append(float(child.stdout.readline()))
    assert found[0] > 0.5
    assert found[1] < found[0]
