"""Runs a test once more that failed while the machine stood still.

A virtual machine may get no processor for seconds. Then clients of real processes give up, and
sessions end, although nothing is wrong. A test that failed is run again only if a thread of its
process woke up `STILL_S` too late meanwhile, and the process itself worked for less than half of
that time: work of ours that blocks for seconds is no excuse. The second result counts, and the end
of the run shows what the first one was.
"""

from __future__ import annotations

import threading
import time
import traceback

import pytest
from _pytest.runner import runtestprotocol

STILL_S = 2.0
_LOOK_S = 0.1
_SECTION = "standstill"
_SHOWN_MAX = 4_000  # characters of a first failure


class Standstill:
    """A thread that measures for how long the machine stood still, since the last `take`."""

    def __init__(self) -> None:
        self._longest_s = 0.0
        self._thread = threading.Thread(target=self._look, name="standstill", daemon=True)
        self._begun = False

    def begin(self) -> None:
        """Start the thread, once."""
        if not self._begun:
            self._begun = True
            self._thread.start()

    def take(self) -> float:
        """Return the longest standstill since the last call, in seconds, and begin anew."""
        longest_s, self._longest_s = self._longest_s, 0.0
        return longest_s

    def _look(self) -> None:
        pause = threading.Event()
        before_s, worked_s = time.monotonic(), time.process_time()
        while True:
            pause.wait(_LOOK_S)
            now_s, work_s = time.monotonic(), time.process_time()
            late_s = now_s - before_s - _LOOK_S
            self._longest_s = max(self._longest_s, still_s(late_s, work_s - worked_s))
            before_s, worked_s = now_s, work_s


def still_s(late_s: float, work_s: float) -> float:
    """Return for how long the machine stood still: 0 if this process worked in most of the time.

    `late_s` is by how much a thread woke up too late, `work_s` what the process worked meanwhile.
    """
    return late_s if work_s < late_s / 2 else 0.0


_standstill = Standstill()


def pytest_runtest_protocol(item: pytest.Item, nextitem: pytest.Item | None) -> bool:
    """Run a test, and once more if it failed and the machine stood still. Returns True.

    An error beside the test, as of a report that cannot be sent, fails the test and not the run.
    """
    _standstill.begin()
    _standstill.take()
    item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
    try:
        for report in _reports_of(item, nextitem):
            item.ihook.pytest_runtest_logreport(report=report)
    except (KeyboardInterrupt, pytest.exit.Exception):
        raise
    except BaseException:
        item.ihook.pytest_runtest_logreport(report=_report_beside(item, traceback.format_exc()))
    item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
    return True


def _reports_of(item: pytest.Item, nextitem: pytest.Item | None) -> list[pytest.TestReport]:
    """Run a test, and once more if it failed and the machine stood still. Returns its reports."""
    reports = runtestprotocol(item, log=False, nextitem=nextitem)
    stood_s = _standstill.take()
    failed = [each for each in reports if each.when == "call" and each.failed]
    if stood_s >= STILL_S and failed:
        item._initrequest()  # type: ignore[attr-defined]
        reports = runtestprotocol(item, log=False, nextitem=nextitem)
        note = f"the machine stood still for {stood_s:.1f} s; it ran again, and failed at first:"
        shown = failed[0].longreprtext[-_SHOWN_MAX:]
        reports[-1].sections.append((_SECTION, f"{note}\n{shown}"))
    return reports


def _report_beside(item: pytest.Item, text: str) -> pytest.TestReport:
    """Return the report of an error that pytest met beside a test, in characters of ASCII."""
    shown = text[-_SHOWN_MAX:].encode("ascii", "backslashreplace").decode()
    return pytest.TestReport(item.nodeid, item.location, {}, "failed", shown, "call")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Show each test that ran twice, with its first failure: it may be one of ours after all."""
    seen = [report for each in terminalreporter.stats.values() for report in each]
    for report in seen:
        for name, text in getattr(report, "sections", ()):
            if name == _SECTION:
                terminalreporter.section(f"ran twice: {report.nodeid}", sep="_")
                terminalreporter.write_line(text)
