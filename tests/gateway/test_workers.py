"""Goal: one process starts several gateways, keeps them running, and ends them as it is told.

Method: the supervisor in a process of its own over workers of a few lines, which say where they
serve, and end, on command; a file for each of them counts its starts. What it says is read.
"""

from __future__ import annotations

import os
import re
import signal
import sys
import textwrap

import pytest

from gateway.process import serve
from gateway.process.supervisor import WorkerPace, commands
from ledger.command_line.program import flags_of
from tests.peers.processes import Process, process_tree, wait_until

SUPERVISOR = """
import sys
from gateway.process.supervisor import WorkerPace, end_with, supervise
pace = WorkerPace(wait_s_min=0.05, wait_s_max=0.1)
sys.exit(supervise([[sys.executable, "-c", word, str(place)]
                    for place, word in enumerate(sys.argv[1:])], pace))
"""
WORKER = """
import os, pathlib, select, signal, sys
name = f"worker-{sys.argv[1]}"
with open(name, "a") as starts:
    starts.write(f"{os.getpid()}\\n")
lives = len(pathlib.Path(name).read_text().splitlines())
def ready():
    print(f"gateway started: bootstrap.servers=127.0.0.1:{9000 + int(sys.argv[1])} x", flush=True)
def on(number, code, wait_s=0.0):
    def end(*_):
        select.select([], [], [], wait_s)
        os._exit(code)
    signal.signal(number, end)
on(signal.SIGTERM, 0)
on(signal.SIGINT, 130)
"""
SERVES = "ready()\nwhile True: signal.pause()\n"


class Supervised:
    """A supervisor over workers, each of them the lines given after `WORKER`."""

    def __init__(self, directory, *workers, supervisor=SUPERVISOR):
        self.directory = directory
        lines = [WORKER + textwrap.dedent(worker) for worker in workers]
        argv = ["env", "-C", str(directory), f"PYTHONPATH={os.getcwd()}"]
        argv += [sys.executable, "-c", supervisor, *lines]
        self.process = Process(argv, directory / "log")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.kill()

    def pids(self, worker):
        """Of all its lives so far."""
        file = self.directory / f"worker-{worker}"
        return [int(line) for line in file.read_text().splitlines()] if file.exists() else []

    def wait_said(self, words):
        self.process.wait_output(words, 60.0)

    def wait_exit(self):
        return self.process.wait_exit(60.0)


def gone(pid):
    return not os.path.exists(f"/proc/{pid}")


def test_it_says_where_each_serves_and_at_the_end_where_all_do(tmp_path):
    with Supervised(tmp_path, SERVES, SERVES) as supervised:
        supervised.wait_said("gateways started")
        *each, last = supervised.process.output().splitlines()
        assert sorted(each) == [
            f"gateway started: bootstrap.servers=127.0.0.1:{port} x" for port in (9000, 9001)
        ]
        assert last == (
            "gateways started: bootstrap.servers=127.0.0.1:9000,127.0.0.1:9001 workers=2"
        )


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 0), (signal.SIGINT, 130)])
def test_a_signal_is_passed_on_and_the_last_worker_is_waited_for(tmp_path, number, code):
    slow = f"on({int(number)}, {code}, 0.5)\n{SERVES}"
    with Supervised(tmp_path, SERVES, slow) as supervised:
        supervised.wait_said("gateways started")
        (worker,) = supervised.pids(1)
        supervised.process.send_signal(number)
        assert supervised.wait_exit() == code
        assert gone(worker)
        assert [len(supervised.pids(place)) for place in (0, 1)] == [1, 1]


def test_a_second_signal_kills(tmp_path):
    stubborn = f"signal.signal(signal.SIGTERM, lambda *_: print('no', flush=True))\n{SERVES}"
    with Supervised(tmp_path, stubborn) as supervised:
        supervised.wait_said("gateways started")
        (worker,) = supervised.pids(0)
        supervised.process.send_signal(signal.SIGTERM)
        supervised.wait_said("no")
        supervised.process.send_signal(signal.SIGTERM)
        assert supervised.wait_exit() == 128 + signal.SIGTERM
        assert gone(worker)


def test_a_worker_that_is_killed_starts_again_and_the_others_do_not_notice(tmp_path):
    with Supervised(tmp_path, SERVES, SERVES) as supervised:
        supervised.wait_said("gateways started")
        os.kill(supervised.pids(0)[0], signal.SIGKILL)
        wait_until(lambda: len(supervised.pids(0)) == 2, "the worker to be started again", 60.0)
        supervised.wait_said('event="a worker ended" worker=0 reason="exit code 137"')
        assert len(supervised.pids(1)) == 1
        assert supervised.process.output().count("gateways started") == 1


def test_a_worker_that_fails_at_each_start_waits_longer_up_to_a_bound(tmp_path):
    with Supervised(tmp_path, "if lives < 4: sys.exit(3)\n" + SERVES) as supervised:
        supervised.wait_said("gateways started")
        waits = re.findall(r"again_in_s=(\S+)", supervised.process.output())
        assert waits == ["0.05", "0.1", "0.1"]


def test_a_worker_that_cannot_run_as_configured_ends_all_with_its_code(tmp_path):
    with Supervised(tmp_path, SERVES, "sys.exit(78)") as supervised:
        assert supervised.wait_exit() == 78
        assert [len(supervised.pids(place)) for place in (0, 1)] <= [1, 1]
        assert all(gone(pid) for place in (0, 1) for pid in supervised.pids(place))


def test_without_what_they_need_the_first_start_fails_and_later_ones_are_repeated(tmp_path):
    with Supervised(tmp_path, "sys.exit(69)") as supervised:
        assert supervised.wait_exit() == 69
    wanting = f"if lives == 2: sys.exit(69)\n{SERVES}"
    (tmp_path / "later").mkdir()
    with Supervised(tmp_path / "later", wanting) as supervised:
        supervised.wait_said("gateways started")
        os.kill(supervised.pids(0)[0], signal.SIGKILL)
        wait_until(lambda: len(supervised.pids(0)) == 3, "a third start", 60.0)
        supervised.wait_said('reason="exit code 69"')


def test_a_worker_that_fails_over_its_end_is_not_hidden_by_the_others(tmp_path):
    with Supervised(tmp_path, SERVES, f"on(signal.SIGTERM, 5)\n{SERVES}") as supervised:
        supervised.wait_said("gateways started")
        supervised.process.send_signal(signal.SIGTERM)
        assert supervised.wait_exit() == 5


def test_workers_end_politely_when_their_supervisor_is_killed(tmp_path):
    polite = """
    from gateway.process.supervisor import end_with
    signal.signal(signal.SIGTERM, lambda *_: (open("ended", "w").close(), os._exit(0)))
    end_with(os.getppid())
    """
    with Supervised(tmp_path, textwrap.dedent(polite) + SERVES) as supervised:
        supervised.wait_said("gateways started")
        (worker,) = supervised.pids(0)
        assert worker in process_tree(supervised.process.pid)
        supervised.process.send_signal(signal.SIGKILL)
        wait_until((tmp_path / "ended").exists, "the worker to end", 60.0)
        wait_until(lambda: gone(worker), "the worker to be gone", 60.0)


def test_long_lines_and_lines_in_pieces_arrive_whole(tmp_path):
    talker = """
    os.write(1, b"first ")
    select.select([], [], [], 0.05)
    os.write(1, b"half\\n" + b"." * 50_000 + b"\\n")
    """
    with Supervised(tmp_path, textwrap.dedent(talker) + SERVES) as supervised:
        supervised.wait_said("gateways started")
        said = supervised.process.output().splitlines()
        assert said[:2] == ["first half", "." * 50_000]


def settings_of(line):
    """The settings that a worker with this command line has."""
    return serve.settings_of(flags_of(serve.serve, line[4:]))


def test_workers_take_node_ids_and_ports_in_a_row():
    words = ["--zookeeper", "z:1", "--port", "9092", "--node-id", "4", "--workers", "3"]
    lines = commands(words, 3, 4, 9092)
    found = [settings_of(line) for line in lines]
    assert [(one["node-id"], one["port"], one["workers"]) for one in found] == [
        (4, 9092, 1),
        (5, 9093, 1),
        (6, 9094, 1),
    ]
    assert {one.flags.supervisor for one in found} == {os.getpid()}
    assert [settings_of(line)["port"] for line in commands(words, 2, 0, 0)] == [0, 0]


def test_workers_take_metrics_ports_in_a_row_if_they_have_any():
    def metrics_ports(*first):
        lines = commands(["--zookeeper", "z:1"], 2, 0, 9092, *first)
        return [settings_of(line)["metrics-port"] for line in lines]

    assert metrics_ports(9308) == [9308, 9309]
    assert metrics_ports(0) == [0, 0]
    assert metrics_ports(None) == [None, None]


def test_the_wait_before_a_start_doubles_up_to_its_bound():
    pace = WorkerPace()
    assert [pace.wait_s(ends) for ends in (1, 2, 3, 6, 7, 2_000)] == [0.2, 0.4, 0.8, 6.4, 10, 10]
