"""Gives whole files to the processes of a test run, the longest ones first.

`--dist loadfile` begins with the files that have the most tests. A file of a few long tests begins
last, and the other processes wait for its end. Here the seconds of a file decide, as
`file_seconds.json` has them. They only save time: a file that is not there takes as long as its
tests are many. Files that share a server which takes long to start, Spark or the brokers of
`tests/compat`, stay with the process that began with one of them, while the others have anything
else to do. To rewrite the seconds:

    NOTE_SECONDS=1 make test
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Mapping, Set
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from xdist.scheduler import LoadFileScheduling
from xdist.workermanage import WorkerController

ROOT = Path(__file__).resolve().parents[1]
FILE = Path(__file__).with_name("file_seconds.json")
NOTE = "NOTE_SECONDS"
NOTED_S_MIN = 2.0
TEST_S = 0.05  # of a test in a file without a note
ON_SPARK = ("SparkSession", '"spark"')  # words of a file whose tests use the fixture


class Waiting(NamedTuple):
    """A file that waits for a process: how long it takes, and the server that it shares."""

    seconds: float
    server: str = ""


def server_of(path: str) -> str:
    """Return what the tests of a file share with those of others, or an empty string."""
    if not path.startswith(("tests/pipelines/", "tests/compat/")):
        return ""
    text = (ROOT / path).read_text()
    if any(word in text for word in ON_SPARK):
        return "spark"
    return "brokers" if path.startswith("tests/compat/") else ""


def next_file(waiting: Mapping[str, Waiting], mine: Set[str], others: Set[str]) -> str:
    """Return the file that a process takes next.

    `mine` are the servers that it has started, and `others` those of the other processes.
    """

    def order(path: str) -> tuple[bool, bool, float, str]:
        seconds, server = waiting[path]
        return server in others, server not in mine, -seconds, path

    return min(waiting, key=order)


class LongestFirst(LoadFileScheduling):
    """`loadfile` with the order above. It also finds a test by a table, not by a search."""

    def __init__(self, config: pytest.Config, log: Any = None) -> None:
        super().__init__(config, log)
        self._noted: dict[str, float] = json.loads(FILE.read_text())
        # File -> its seconds and its server. Filled when the first file is given away.
        self._waiting: dict[str, Waiting] = {}
        # Server -> the process that began with it.
        self._owners: dict[str, WorkerController] = {}
        # Process -> test -> its number there. Filled when a process gets its first file.
        self._numbers: dict[WorkerController, dict[str, int]] = {}

    def _assign_work_unit(self, node: WorkerController) -> None:
        """Send the next file to a process, and forget its files that have ended."""
        waiting = {path: self._waits(path, len(unit)) for path, unit in self.workqueue.items()}
        mine = {server for server, owner in self._owners.items() if owner is node}
        path = next_file(waiting, mine, self._owners.keys() - mine)
        if server := waiting[path].server:
            self._owners.setdefault(server, node)
        unit = self.workqueue.pop(path)
        under_way = self.assigned_work.setdefault(node, {})
        for ended in [each for each, tests in under_way.items() if all(tests.values())]:
            del under_way[ended]
        under_way[path] = unit
        numbers = self._numbers_of(node)
        node.send_runtest_some([numbers[test] for test, ended in unit.items() if not ended])

    def _waits(self, path: str, tests: int) -> Waiting:
        if path not in self._waiting:
            seconds = self._noted.get(path, TEST_S * tests)
            self._waiting[path] = Waiting(seconds, server_of(path))
        return self._waiting[path]

    def _numbers_of(self, node: WorkerController) -> dict[str, int]:
        if node not in self._numbers:
            collected = self.registered_collections[node]
            self._numbers[node] = {test: number for number, test in enumerate(collected)}
        return self._numbers[node]


@pytest.hookimpl(tryfirst=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> LongestFirst | None:
    """Use the order above where `--dist loadfile` is asked for."""
    return LongestFirst(config, log) if config.getvalue("dist") == "loadfile" else None


# -- the seconds of files --------------------------------------------------------------------------

_spent_s: Counter[str] = Counter()


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    _spent_s[report.nodeid.split("::", 1)[0]] += report.duration


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Write the seconds of all files that ran, if the environment asks for it."""
    if NOTE in os.environ and not hasattr(session.config, "workerinput"):
        noted = json.loads(FILE.read_text()) | {path: round(s, 1) for path, s in _spent_s.items()}
        long = {path: s for path, s in noted.items() if s >= NOTED_S_MIN}
        FILE.write_text(json.dumps(long, indent=0, sort_keys=True) + "\n")
