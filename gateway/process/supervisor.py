"""`gateway serve --workers N`: a process that starts gateways, supervises them, and ends them.

The supervisor has no loop, session or client. Each worker is a broker of its own with the next node
id and port. A worker that ends is restarted after a pause. If a worker ends because of its
configuration, all workers end. Workers stop gracefully when the supervisor is gone.
"""

from __future__ import annotations

import contextlib
import os
import re
import selectors
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from types import FrameType
from typing import TYPE_CHECKING

from gateway.log import logger
from ledger.adapters.system.clock import SystemClock
from ledger.adapters.system.controlling_terminal import Terminal
from ledger.command_line.exit_codes import (
    EXIT_CONFIG,
    EXIT_INTERRUPTED,
    EXIT_OK,
    EXIT_UNREACHABLE,
)
from ledger.ports.clock import Clock

if TYPE_CHECKING:
    from ledger.adapters.system.service_manager import ServiceManager

OF_FILE = "GATEWAY_SETTINGS_OF_FILE"
"""The variable that names those that a supervisor set for its workers, from the file."""

_LINE_BYTES_MAX = 65_536
_PR_SET_PDEATHSIG = 1  # from linux/prctl.h
_STARTED = re.compile(rb"^gateway started: bootstrap\.servers=(\S+)")


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerPace:
    """The pauses before a worker that ended is restarted."""

    wait_s_min: float = 0.2  # pause after the first end; doubles with each further end in a row
    wait_s_max: float = 10.0
    steady_s: float = 30.0  # a worker that ran this long is restarted after `wait_s_min` again

    def __post_init__(self) -> None:
        assert 0 < self.wait_s_min <= self.wait_s_max

    def wait_s(self, ends: int) -> float:
        """Return the pause before the restart that follows `ends` ends in a row."""
        return min(self.wait_s_max, self.wait_s_min * 2.0 ** min(ends - 1, 30))


def commands(
    words: Sequence[str],
    workers: int,
    node_id: int,
    port: int,
    metrics_port: int | None = None,
    http_port: int | None = None,
    *,
    named: bool = False,
) -> list[list[str]]:
    """Return a command line for each worker; `words` are the options of `gateway serve`, as given.

    Node ids and ports rise by one with each worker; port 0 stays 0. With `named` listeners, a
    worker finds their ports by its place.
    """

    def at(first: int, place: int) -> str:
        return str(first + place if first else 0)

    ours = [sys.executable, "-m", "gateway", "serve", *words, "--workers", "1"]
    ours += ["--supervisor", str(os.getpid())]
    rows = [
        [
            *(*ours, "--node-id", str(node_id + place)),
            *(("--place", str(place)) if named else ("--port", at(port, place))),
        ]
        for place in range(workers)
    ]
    for name, first in (("--metrics-port", metrics_port), ("--http-port", http_port)):
        if first is not None:
            rows = [[*row, name, at(first, place)] for place, row in enumerate(rows)]
    return rows


def end_with(supervisor: int) -> None:
    """Make this process receive SIGTERM when its parent has ended, even by `kill -9`."""
    import ctypes

    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGTERM))
    if os.getppid() != supervisor:  # the parent ended before the call above
        sys.exit(EXIT_OK)


def supervise(
    command_lines: Sequence[Sequence[str]],
    pace: WorkerPace | None = None,
    on_hangup: Callable[[], None] | None = None,
) -> int:
    """Run every command until a signal arrives.

    SIGTERM and SIGINT are passed on to the workers. A second signal kills the workers. SIGHUP is
    passed on after `on_hangup`, which may change the environment of workers that start later.

    Returns the exit code. It is 0 or 130 after a signal, 78 if a worker ended with 78, and 69 if no
    worker could reach the services that it needs. If a worker failed while stopping, it is the code
    of this worker.
    """
    return _Supervisor(command_lines, pace or WorkerPace(), SystemClock(), on_hangup).run()


class _Worker:
    """One command, with its process while it runs and the time of its next start otherwise."""

    __slots__ = (
        *("address", "command", "due_s", "ends", "hung_up", "launched_s", "process", "unread"),
    )

    def __init__(self, command: Sequence[str]) -> None:
        self.command = list(command)
        self.process: subprocess.Popen[bytes] | None = None
        self.address = ""  # address of the worker, once the worker has printed it
        self.ends = 0  # how often in a row the worker ended
        self.launched_s = 0.0
        self.due_s = 0.0
        self.unread = b""  # output after the last complete line
        # True if SIGHUP arrived while the process started: it would have ended it.
        self.hung_up = False

    @property
    def fileno(self) -> int:
        assert self.process is not None and self.process.stdout is not None
        return self.process.stdout.fileno()


class _Supervisor:
    """The workers and their supervision, in the main thread of a process that does nothing else."""

    def __init__(
        self,
        command_lines: Sequence[Sequence[str]],
        pace: WorkerPace,
        clock: Clock,
        on_hangup: Callable[[], None] | None = None,
    ) -> None:
        self._workers = [_Worker(command) for command in command_lines]
        self._pace = pace
        self._clock = clock
        self._selector = selectors.DefaultSelector()
        self._asked: signal.Signals | None = None
        self._code: int | None = None  # exit code; set as soon as all workers must end
        self._killed = False
        self._all_told = False
        # The link to systemd, which the workers do not have; None without systemd.
        self._manager = _service_manager()
        self._ping_due_s = clock.monotonic_s()
        self._any_started = False
        self._terminal = Terminal()
        self._on_hangup = on_hangup
        self._hung_up = False  # SIGHUP arrived, and was not passed on yet

    def run(self) -> int:
        with self._signals():
            try:
                while self._code is None or self._living():
                    self._start_due()
                    self._ping()
                    self._listen()
                    self._pass_hangup_on()
                    self._reap()
            finally:
                self._send(signal.SIGKILL)
        assert self._code is not None
        return self._code

    def _ping(self) -> None:
        """Report to systemd that the supervision works, once the workers have started."""
        manager, now_s = self._manager, self._clock.monotonic_s()
        if manager is None or manager.ping_s is None or not self._all_told:
            return
        if self._ping_due_s <= now_s:
            manager.ping()
            self._ping_due_s = now_s + manager.ping_s

    def _listen(self) -> None:
        """Wait for an event: output or the end of a worker, a signal, or a start that is due."""
        for key, _ in self._selector.select(self._wait_s()):
            if isinstance(key.data, _Worker):
                self._read(key.data)
            else:
                key.data.recv(4096)  # a signal arrived, and its handler has run

    # -- signals ---------------------------------------------------------------------------------

    @contextlib.contextmanager
    def _signals(self) -> Generator[None]:
        """Make signals wake up the selector."""
        woken, wakes = socket.socketpair()
        for end in (woken, wakes):
            end.setblocking(False)
        self._selector.register(woken, selectors.EVENT_READ, woken)
        handlers = {
            signal.SIGTERM: self._on_asked,
            signal.SIGINT: self._on_asked,
            signal.SIGCHLD: _on_child,
            signal.SIGHUP: self._on_hung_up,
        }
        previous = {number: signal.signal(number, handlers[number]) for number in handlers}
        fd_before = signal.set_wakeup_fd(wakes.fileno(), warn_on_full_buffer=False)
        try:
            yield
        finally:
            signal.set_wakeup_fd(fd_before)
            for number, handler in previous.items():
                signal.signal(number, handler)
            self._selector.close()
            woken.close()
            wakes.close()

    def _on_asked(self, number: int, _: FrameType | None) -> None:
        if self._asked is not None:
            self._code = 128 + number
            self._killed = True
            self._send(signal.SIGKILL)
            return
        self._asked = signal.Signals(number)
        if self._manager is not None:
            self._manager.stopping()
        self._code = EXIT_INTERRUPTED if self._asked is signal.SIGINT else EXIT_OK
        self._send(self._asked)

    def _on_hung_up(self, _number: int, frame: FrameType | None) -> None:
        if self._terminal.is_gone():
            self._on_asked(signal.SIGTERM, frame)
        else:
            self._hung_up = True

    def _pass_hangup_on(self) -> None:
        """Pass SIGHUP on to the workers that have started, and note it for the others."""
        if not self._hung_up:
            return
        self._hung_up = False
        if self._on_hangup is not None:
            self._on_hangup()
        for worker in self._workers:
            if worker.process is not None and worker.address:
                worker.process.send_signal(signal.SIGHUP)
            else:
                worker.hung_up = worker.process is not None

    def _end_all(self, code: int) -> None:
        """Start no worker again, and ask the running ones to end."""
        if self._code is None:
            self._code = code
            self._send(signal.SIGTERM)

    def _send(self, number: signal.Signals) -> None:
        for worker in self._workers:
            if worker.process is not None:
                worker.process.send_signal(number)

    # -- starts ----------------------------------------------------------------------------------

    def _living(self) -> bool:
        return any(worker.process is not None for worker in self._workers)

    def _wait_s(self) -> float | None:
        """Return the seconds until the next start or ping, or None if none is due."""
        if self._code is not None:
            return None
        due = [worker.due_s for worker in self._workers if worker.process is None]
        if self._manager is not None and self._manager.ping_s is not None and self._all_told:
            due.append(self._ping_due_s)
        return max(0.0, min(due) - self._clock.monotonic_s()) if due else None

    def _start_due(self) -> None:
        for worker in self._workers:
            now_s = self._clock.monotonic_s()
            if self._code is None and worker.process is None and worker.due_s <= now_s:
                self._launch(worker, now_s)

    def _launch(self, worker: _Worker, now_s: float) -> None:
        worker.launched_s = now_s
        try:
            # Each worker has its own process group. So Ctrl-C reaches the workers only through this
            # process.
            worker.process = subprocess.Popen(
                worker.command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                bufsize=0,
                process_group=0,
                env=_environment(),
            )
        except OSError as error:  # no memory, or too many processes
            self._again(worker, str(error))
            return
        os.set_blocking(worker.fileno, False)
        self._selector.register(worker.fileno, selectors.EVENT_READ, worker)
        if self._asked is not None:  # a signal arrived while the process was being created
            worker.process.send_signal(self._asked)

    # -- output of workers -----------------------------------------------------------------------

    def _read(self, worker: _Worker) -> bool:
        """Copy the worker's output to our own. Returns False at the end of the output."""
        try:
            chunk = os.read(worker.fileno, _LINE_BYTES_MAX)
        except BlockingIOError:
            return True
        *lines, worker.unread = (worker.unread + chunk).split(b"\n")
        if len(worker.unread) > _LINE_BYTES_MAX or (not chunk and worker.unread):
            lines.append(worker.unread)
            worker.unread = b""
        for line in lines:
            self._heard(worker, line)
        if not chunk:
            self._selector.unregister(worker.fileno)
        return bool(chunk)

    def _heard(self, worker: _Worker, line: bytes) -> None:
        _say(line)
        started = _STARTED.match(line)
        if started is None:
            return
        worker.address = started[1].decode()
        if worker.hung_up and worker.process is not None:
            worker.hung_up = False
            worker.process.send_signal(signal.SIGHUP)  # it handles it before it prints this line
        self._any_started = True
        addresses = [other.address for other in self._workers]
        if all(addresses) and not self._all_told:
            self._all_told = True
            servers = ",".join(addresses)
            _say(f"gateways started: bootstrap.servers={servers} workers={len(addresses)}".encode())
            if self._manager is not None:
                self._manager.ready()

    # -- ends ------------------------------------------------------------------------------------

    def _reap(self) -> None:
        for worker in self._workers:
            code = worker.process.poll() if worker.process is not None else None
            if code is not None:
                self._ended(worker, code if code >= 0 else 128 - code)

    def _ended(self, worker: _Worker, code: int) -> None:
        """Handle the end of a process. `code` is 128 plus the number of a signal that ended it."""
        assert worker.process is not None and worker.process.stdout is not None
        if worker.fileno in self._selector.get_map():
            # Reads the last output; a child of the worker may hold the pipe open
            _ = self._read(worker)
        if worker.fileno in self._selector.get_map():
            self._selector.unregister(worker.fileno)
        worker.process.stdout.close()
        worker.process = None
        worker.address = ""
        if self._code is not None:
            self._ended_as_asked(code)
        elif code == EXIT_CONFIG or (code == EXIT_UNREACHABLE and not self._any_started):
            self._end_all(code)
        else:
            self._again(worker, f"exit code {code}")

    def _ended_as_asked(self, code: int) -> None:
        """Record the exit code of a worker that was asked to end.

        An expected code does not replace the code of a failure.
        """
        expected = (EXIT_OK, EXIT_INTERRUPTED, 128 + signal.SIGTERM, 128 + signal.SIGINT)
        if self._asked is not None and not self._killed and code not in expected:
            self._code = code

    def _again(self, worker: _Worker, why: str) -> None:
        """Schedule a restart. The pause grows with each end in a row."""
        now_s = self._clock.monotonic_s()
        steady = now_s - worker.launched_s >= self._pace.steady_s
        worker.ends = 1 if steady else worker.ends + 1
        wait_s = self._pace.wait_s(worker.ends)
        worker.due_s = now_s + wait_s
        place = self._workers.index(worker)
        logger().warning("a worker ended", worker=place, reason=why, again_in_s=wait_s)


def _service_manager() -> ServiceManager | None:
    if "NOTIFY_SOCKET" not in os.environ:
        return None
    from ledger.adapters.system.service_manager import ServiceManager

    return ServiceManager(os.environ)


def _environment() -> dict[str, str]:
    """Return the environment of a worker: systemd watches the supervisor alone."""
    ours = ("NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID")
    return {name: value for name, value in os.environ.items() if name not in ours}


def _on_child(_number: int, _frame: FrameType | None) -> None:
    """Wake up the selector: a child ended."""


def _say(line: bytes) -> None:
    with contextlib.suppress(OSError):  # the supervisor runs even if stdout is closed
        os.write(1, line + b"\n")
