"""Goal: a task that fails is noticed, goes on or ends the process, and its cancellation is clean.

Method: the supervisor on virtual time, and one real process for the exit code.
"""

from __future__ import annotations

import asyncio
import gc
import os
import subprocess
import sys
import threading
from itertools import pairwise

import pytest

from ledger.tasks import (
    PAUSE_S_MAX,
    Guard,
    LowThreads,
    ends_by,
    in_daemon,
    in_thread,
    log_failure,
    report,
    reported,
    start_once,
    start_restarting,
    start_vital,
)


def heard() -> list[str]:
    """What reaches the exception handler of the running loop from now on."""
    found: list[str] = []
    asyncio.get_running_loop().set_exception_handler(
        lambda _, context: found.append(f"{context['message']}: {context['exception']!r}")
    )
    return found


async def ended(task: asyncio.Task) -> bool:
    await asyncio.wait([task])
    return task.cancelled()


async def test_a_failure_is_reported_once_and_the_work_runs_again():
    reports, runs, told = heard(), [], []

    async def work() -> None:
        runs.append(asyncio.get_running_loop().time())
        if len(runs) == 1:
            raise MemoryError("no room")

    await start_restarting("the work", work, lambda: told.append(len(runs)))
    assert reports == ["the work failed unexpectedly: MemoryError('no room')"]
    assert told == [1]
    assert runs == [0.0, 0.1]


async def test_an_expected_failure_is_a_warning_without_a_traceback_and_the_work_runs_again(capsys):
    reports, runs, told = heard(), [], []
    failures = [OSError("the first"), OSError("too soon for a line"), MemoryError("no room")]

    async def work() -> None:
        runs.append(1)
        if failures:
            raise failures.pop(0)

    await start_restarting("some work", work, lambda: told.append(len(runs)), expected=OSError)
    (line,) = capsys.readouterr().err.splitlines()
    assert "level=warning" in line
    assert 'event="some work ended, and is started again" reason="the first"' in line
    assert reports == ["some work failed unexpectedly: MemoryError('no room')"]
    assert told == [1, 2, 3]


async def test_pauses_grow_to_their_bound_and_start_again_after_a_long_run():
    reports, starts = heard(), []
    loop = asyncio.get_running_loop()

    async def work() -> None:
        starts.append(loop.time())
        if len(starts) == 12:
            await asyncio.sleep(PAUSE_S_MAX)
        raise RuntimeError

    task = start_restarting("the work", work)
    await asyncio.sleep(70)
    task.cancel()
    assert await ended(task)
    gaps = [round(after - before, 6) for before, after in pairwise(starts)]
    assert gaps[:9] == [0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 10.0, 10.0]
    assert gaps[11] == PAUSE_S_MAX + 0.1
    assert len(reports) >= 12


async def test_an_owner_that_raises_does_not_end_the_restarts():
    reports, runs = heard(), []

    async def work() -> None:
        runs.append(1)
        if len(runs) < 3:
            raise RuntimeError("work")

    def owner() -> None:
        raise ValueError("owner")

    await start_restarting("the work", work, owner)
    assert len(runs) == 3
    assert len(reports) == 4


async def test_a_cancellation_ends_each_kind_of_task_in_silence():
    reports, ends = heard(), []
    forever = asyncio.Event()

    async def work() -> None:
        await forever.wait()

    with ends_by(lambda *what: ends.append(what)):
        tasks = [
            start_restarting("one", work),
            start_vital("two", work()),
            start_once("three", work(), ends.append),
        ]
    await asyncio.sleep(1)
    for task in tasks:
        task.cancel()
    assert [await ended(task) for task in tasks] == [True, True, True]
    assert reports == ends == []


async def test_a_task_that_is_cancelled_before_it_begins_leaves_nothing_behind(recwarn):
    gc.collect()  # what earlier tests left behind
    recwarn.clear()

    async def work() -> None:
        raise RuntimeError

    tasks = [
        start_restarting("one", work),
        start_vital("two", work()),
        start_once("three", work()),
    ]
    for task in tasks:
        task.cancel()
    assert [await ended(task) for task in tasks] == [True, True, True]
    del task, tasks  # the errors of the tasks keep their work alive
    gc.collect()
    assert not [str(each.message) for each in recwarn if "never awaited" in str(each.message)]


async def test_a_cancellation_during_the_pause_ends_the_restarts():
    heard()

    async def work() -> None:
        raise RuntimeError

    task = start_restarting("the work", work)
    await asyncio.sleep(0.05)
    task.cancel()
    assert await ended(task)


async def test_a_cancellation_that_nobody_asked_for_is_a_failure():
    reports, ends, runs = heard(), [], []

    async def work() -> None:
        runs.append(1)
        if len(runs) == 1:
            raise asyncio.CancelledError("a future of another library")

    async def once() -> None:
        raise asyncio.CancelledError

    with ends_by(lambda name, error: ends.append(name)):
        await start_restarting("the loop", work)
        assert await ended(start_vital("the journal", once()))
        assert await ended(start_once("the piece", once(), lambda error: ends.append("told")))
        await asyncio.sleep(0)
    assert len(runs) == 2
    assert ends == ["the journal", "told"]
    assert len(reports) == 2


async def test_one_piece_of_work_tells_its_owner_and_spares_what_is_expected():
    reports, told = heard(), []

    async def work(error: Exception) -> None:
        raise error

    surprise, usual = RuntimeError("surprise"), OSError("usual")
    for error in (surprise, usual):
        await asyncio.wait([start_once("the work", work(error), told.append, expected=OSError)])
    assert told == [surprise]
    assert reports == ["the work failed unexpectedly: RuntimeError('surprise')"]


async def test_one_item_that_fails_does_not_stop_the_others():
    reports, done = heard(), []
    for item in range(3):
        with reported("an item"):
            done.append(item)
            1 / (item - 1)
    assert done == [0, 1, 2]
    assert len(reports) == 1


async def test_a_guard_ends_the_process_of_its_maker_and_lets_a_cancellation_pass():
    ends, later = [], []
    with ends_by(lambda name, error: ends.append((name, str(error)))):
        guard = Guard("the journal")
    with ends_by(lambda *what: later.append(what)), guard:
        raise MemoryError("in writev")
    assert ends == [("the journal", "in writev")]
    try:
        with guard:
            raise asyncio.CancelledError
    except asyncio.CancelledError:
        later.append("passed")
    assert later == ["passed"]
    assert len(ends) == 1


async def test_a_line_of_the_log_names_the_work_and_its_traceback_once_a_minute(capsys):
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(log_failure)

    def deep_inside() -> None:
        raise RuntimeError("unheard of")

    for _ in range(3):
        with reported("the count of sheep"):
            deep_inside()
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1
    assert "the count of sheep failed unexpectedly" in lines[0]
    assert "deep_inside" in lines[0]
    assert "unheard of" in lines[0]
    report("the count of sheep", ValueError())
    await asyncio.sleep(60)
    report("the count of sheep", RuntimeError())
    assert len(capsys.readouterr().err.splitlines()) == 2


_PROCESS = """
import asyncio
from ledger.adapters.system.process import loop_factory
from ledger.tasks import start_vital

async def work():
    raise MemoryError("in writev")

async def main():
    start_vital("the journal", work())
    await asyncio.sleep(3600)

with asyncio.Runner(loop_factory=loop_factory()) as runner:
    runner.run(main())
"""


def test_a_process_whose_vital_work_fails_ends_with_70_and_one_line():
    done = subprocess.run([sys.executable, "-c", _PROCESS], capture_output=True, timeout=60)
    assert done.returncode == 70
    lines = done.stderr.decode().splitlines()
    assert len(lines) == 1
    assert "this process ends" in lines[0]
    assert 'failed="the journal"' in lines[0]
    assert "in writev" in lines[0]


@pytest.mark.parametrize("call", [in_thread, LowThreads(1, "low").call])
def test_a_function_in_a_thread_that_raises_stop_iteration_does_not_hold_its_caller(call):
    assert asyncio.run(call(next, iter([7]))) == 7
    with pytest.raises(RuntimeError, match="raised StopIteration"):
        asyncio.run(asyncio.wait_for(call(next, iter([])), 60))


def test_threads_of_the_lowest_priority_leave_that_of_the_process_as_it_was():
    def priorities():
        return [os.getpriority(os.PRIO_PROCESS, each) for each in (threading.get_native_id(), pid)]

    pid = os.getpid()
    before = os.getpriority(os.PRIO_PROCESS, pid)
    assert asyncio.run(LowThreads(1, "low").call(priorities)) == [19, before]


@pytest.mark.parametrize("raised", [OSError, StopIteration])
def test_a_daemon_always_answers(raised):
    def fail():
        raise raised

    expected = OSError if raised is OSError else RuntimeError
    with pytest.raises(expected):
        asyncio.run(asyncio.wait_for(in_daemon("a failure", fail), 60))
    assert asyncio.run(in_daemon("a result", lambda: 7)) == 7


def test_a_daemon_is_left_alone_once_nobody_waits():
    go_on, threads = threading.Event(), []

    def wait():
        threads.append(threading.current_thread())
        go_on.wait(60)

    with pytest.raises(TimeoutError):
        asyncio.run(asyncio.wait_for(in_daemon("a wait", wait), 0.02))
    assert [(each.is_alive(), each.daemon, each.name) for each in threads] == [
        (True, True, "a wait")
    ]
    go_on.set()
    threads[0].join()


async def test_work_is_not_lost_though_only_itself_holds_what_it_waits_for():
    reported = []
    asyncio.get_running_loop().set_exception_handler(lambda _, each: reported.append(each))
    start_once("a wait", asyncio.Event().wait())
    await asyncio.sleep(0)
    gc.collect()
    assert reported == []
    waits = [each for each in asyncio.all_tasks() if each.get_name() == "a wait"]
    assert len(waits) == 1
    waits[0].cancel()
