"""The admin command as users run it: in a process of its own, or, many at a time, in this one.

JSON that it prints must have the form that the documents declare.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from contextlib import contextmanager

from click.testing import CliRunner
from confluent_kafka import Consumer, Producer

from gateway.process.cli import program
from tests.command_output import check_output
from tests.peers import install


def heeding(argv):
    """The command, so that Ctrl-C reaches it also if the tests run in the background of a shell.

    Such a shell lets them ignore the signal, and what they start inherits that.
    """
    heeds = "import os, signal, sys; signal.signal(signal.SIGINT, signal.SIG_DFL)"
    return [sys.executable, "-c", f"{heeds}; os.execv(sys.argv[1], sys.argv[1:])", *argv]


LEFT = ("exception was never retrieved", "was destroyed but it is pending")


class Loops(asyncio.DefaultEventLoopPolicy):
    """Makes the event loops of a command, and keeps what they report."""

    def __init__(self):
        super().__init__()
        self.reports = []

    def new_event_loop(self):
        loop = super().new_event_loop()
        loop.set_exception_handler(self._on_report)
        return loop

    def _on_report(self, loop, context):
        self.reports.append(context["message"])
        loop.default_exception_handler(context)


@contextmanager
def nothing_is_left():
    """Fail if asyncio reports a task that was left: the process of the command would print it.

    Its other reports may be of gRPC, which has one poller for all event loops of the tests; and a
    loop of another test may report what only now is collected.
    """
    before, loops = asyncio.get_event_loop_policy(), Loops()
    asyncio.set_event_loop_policy(loops)
    try:
        yield
    finally:
        asyncio.set_event_loop_policy(before)
    found = [each for each in loops.reports if any(word in each for word in LEFT)]
    assert not found, found


def invoke(*words, bootstrap="127.0.0.1:1", stdin=""):
    """As `run`, without a process."""
    around = {"GATEWAY_BOOTSTRAP": bootstrap}
    with nothing_is_left():
        done = CliRunner().invoke(program, words, input=stdin, env=around)
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
    check_output(words, done.stdout, done.exit_code)
    return done.exit_code, done.stdout, done.stderr


def run(*words, bootstrap="127.0.0.1:1"):
    """Exit code, stdout and stderr of one command."""
    argv = [install.gateway_python(), "-m", "gateway", *words]
    environment = {**os.environ, "GATEWAY_BOOTSTRAP": bootstrap}
    done = subprocess.run(
        argv, env=environment, capture_output=True, text=True, timeout=60, check=False
    )
    assert "Traceback" not in done.stderr
    check_output(words, done.stdout, done.returncode)
    return done.returncode, done.stdout, done.stderr


def to_full_disk(module, *words, bootstrap="127.0.0.1:1"):
    """Exit code and stderr of a command whose stdout takes no bytes, and is buffered as usual."""
    argv = [install.gateway_python(), "-m", module, *words]
    environment = {**os.environ, "GATEWAY_BOOTSTRAP": bootstrap, "PYTHONUNBUFFERED": ""}
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            argv,
            env=environment,
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            timeout=60,
            check=False,
        )
    return done.returncode, done.stderr


def consumer(gateway, group, client="reader"):
    return Consumer(
        {
            "bootstrap.servers": f"127.0.0.1:{gateway.port}",
            "group.id": group,
            "client.id": client,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
        }
    )


def produced(gateway, topic, records, partition=0, timestamp=None):
    """Records are in the topic; their time is `timestamp` (ms) and rises by 1 s with each."""
    producer = Producer({"bootstrap.servers": f"127.0.0.1:{gateway.port}"})
    for number in range(records):
        when = {} if timestamp is None else {"timestamp": timestamp + 1000 * number}
        producer.produce(topic, str(number), partition=partition, **when)
    assert producer.flush(60) == 0
