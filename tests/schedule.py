"""Gives whole files to the processes of a test run, the longest ones first.

`--dist loadfile` begins with the files that have the most tests. A file of a few long tests begins
last, and the other processes wait for its end. Here the seconds of a file decide, as
`file_seconds.json` has them. They only save time: a file that is not there takes as long as its
tests are many. The files of a folder in `TOGETHER` share servers that take long to start. They stay
with the process that began with the folder, while the others have anything else to do.
To rewrite the seconds:

    NOTE_SECONDS=1 make test
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Mapping, Set
from pathlib import Path
from typing import Any

import pytest
from xdist.scheduler import LoadFileScheduling
from xdist.workermanage import WorkerController

FILE = Path(__file__).with_name("file_seconds.json")
NOTE = "NOTE_SECONDS"
NOTED_S_MIN = 2.0
TEST_S = 0.05  # of a test in a file without a note
TOGETHER = ("tests/pipelines/", "tests/compat/")


def folder_of(path: str) -> str:
    """Return the folder of `TOGETHER` in which a file lies, or an empty string."""
    return next((folder for folder in TOGETHER if path.startswith(folder)), "")


def next_file(waiting: Mapping[str, float], mine: Set[str], others: Set[str]) -> str:
    """Return the file that a process takes next, of those that wait with their seconds.

    `mine` are the folders that it began with, and `others` those of the other processes.
    """

    def order(path: str) -> tuple[bool, bool, float, str]:
        folder = folder_of(path)
        return folder in others, folder not in mine, -waiting[path], path

    return min(waiting, key=order)


class LongestFirst(LoadFileScheduling):
    """`loadfile` with the order above. It also finds a test by a table, not by a search."""

    def __init__(self, config: pytest.Config, log: Any = None) -> None:
        super().__init__(config, log)
        noted: dict[str, float] = json.loads(FILE.read_text())
        self._noted = noted
        # Folder of TOGETHER -> the process that began with it.
        self._owners: dict[str, WorkerController] = {}
        # Process -> test -> its number there. Filled when a process gets its first file.
        self._numbers: dict[WorkerController, dict[str, int]] = {}

    def _assign_work_unit(self, node: WorkerController) -> None:
        """Send the next file to a process, and forget its files that have ended."""
        waiting = {path: self._seconds(path, len(unit)) for path, unit in self.workqueue.items()}
        mine = {folder for folder, owner in self._owners.items() if owner is node}
        path = next_file(waiting, mine, self._owners.keys() - mine)
        if folder := folder_of(path):
            self._owners.setdefault(folder, node)
        unit = self.workqueue.pop(path)
        under_way = self.assigned_work.setdefault(node, {})
        for ended in [each for each, tests in under_way.items() if all(tests.values())]:
            del under_way[ended]
        under_way[path] = unit
        numbers = self._numbers_of(node)
        node.send_runtest_some([numbers[test] for test, ended in unit.items() if not ended])

    def _seconds(self, path: str, tests: int) -> float:
        return self._noted.get(path, TEST_S * tests)

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
