"""Ctrl-C ends a command also if the signal arrives just before the event loop waits."""

from __future__ import annotations

import subprocess
import sys

import pytest

PROGRAM = """
import asyncio, os, signal, threading
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell in the background ignores it
from pathlib import Path
from gateway.interrupt import run_interruptibly

WAITS_IN = Path("/proc/self/task", str(os.getpid()), "wchan")  # of the main thread

def interrupt():
    while "poll" not in WAITS_IN.read_text():
        pass
    # The signal reaches a thread that is not the main one, so it does not end the main one's wait:
    # as a signal that comes after Python's last look and before the wait.
    signal.pthread_kill(threading.get_ident(), signal.SIGINT)

async def work():
    loop = asyncio.get_running_loop()
    loop.call_later(0.05, threading.Thread(target=interrupt).start)
    try:
        await asyncio.sleep(20.0)
    finally:
        print("cancelled", flush=True)
        {after}

try:
    run_interruptibly(work())
except KeyboardInterrupt:
    print("interrupted")
"""


@pytest.mark.parametrize(
    "after", ["pass", "threading.Thread(target=interrupt).start(); await asyncio.sleep(20.0)"]
)
def test_an_interrupt_ends_the_wait_whatever_thread_it_reaches(after):
    """The second case: a second interrupt does not wait for work that does not end."""
    program = PROGRAM.format(after=after)
    ended = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60.0, check=True
    )
    assert ended.stdout.split() == ["cancelled", "interrupted"]


def test_work_that_ends_returns_its_result():
    program = (
        "import asyncio; from gateway.interrupt import run_interruptibly;"
        "print(run_interruptibly(asyncio.sleep(0, 7)))"
    )
    ended = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60.0, check=True
    )
    assert ended.stdout.split() == ["7"]


def test_an_ignored_signal_stays_ignored():
    """A shell ignores SIGINT for the commands that a script runs in the background."""
    program = (
        "import asyncio, os, signal; from gateway.interrupt import run_interruptibly\n"
        "async def work():\n    os.kill(os.getpid(), signal.SIGINT)\n    await asyncio.sleep(0.1)\n"
        "    return 7\n"
        "signal.signal(signal.SIGINT, signal.SIG_IGN)\n"
        "print(run_interruptibly(work()))"
    )
    ended = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60.0, check=True
    )
    assert ended.stdout.split() == ["7"]
