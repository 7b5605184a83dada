"""A real gateway for the tests of an application: a process of its own, without Docker.

    from gateway.testing import Gateway

    with Gateway() as gateway:
        producer = Producer({"bootstrap.servers": gateway.bootstrap})

It listens on a free port of 127.0.0.1 and keeps its data in a directory that is removed when it
stops. It also ends when the process that started it ends, however that happens. Clients of any
language can use it. With pytest there is nothing to import: see `gateway.testing.plugin`.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import weakref
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Final, Self

_STARTED: Final = "gateway started: bootstrap.servers="
_LOOK_S: Final = 0.005
_STOP_S_MAX: Final = 60.0  # twice what a gateway may take to drain
_LOG_LINES: Final = 20  # of the log, in an error


def _environment() -> dict[str, str]:
    """Return the environment without settings of other gateways: `options` alone count."""
    ours = ("GATEWAY_", "KAFKA_")
    return {name: value for name, value in os.environ.items() if not name.startswith(ours)}


class GatewayFailed(RuntimeError):
    """The gateway did not start, or ended by itself. The message ends with its last log lines."""


class Gateway:
    """One gateway, from `start` (or `with`) to `stop`. Its methods are called by one thread.

    `options` are further words for `gateway dev`, such as `["--partitions", "6"]`. `data` is a
    directory that outlives `stop`; without it, the data are removed. `python` is the interpreter
    of an environment that contains the gateway, by default the one that runs now.
    """

    def __init__(
        self,
        options: Sequence[str] = (),
        *,
        data: str | os.PathLike[str] | None = None,
        python: str | os.PathLike[str] = sys.executable,
        start_s_max: float = 60.0,
    ) -> None:
        if isinstance(options, str):
            raise TypeError(f"options must be a list of words, such as {options.split()}")
        self._options = [str(option) for option in options]
        self._kept = None if data is None else Path(data).absolute()
        self._python = os.fspath(python)
        self._start_s_max = start_s_max
        # From `start` until it was seen to have ended.
        self._process: subprocess.Popen[bytes] | None = None
        # The process that started it: a fork of it leaves the gateway and its files alone.
        self._owner = os.getpid()
        # The directory of the data and of the log. Made by `start`, removed by `stop`.
        self._directory: Path | None = None
        # What it had printed when the directory was removed.
        self._last_log = ""
        # Where it listens, from its first start on; a later start takes the same port again.
        self._host, self._port = "127.0.0.1", 0
        _ALL.add(self)

    @property
    def bootstrap(self) -> str:
        """The address that clients take as `bootstrap.servers`. Raises GatewayFailed if ended."""
        self._running()
        return f"{self._host}:{self._port}"

    @property
    def pid(self) -> int:
        """The id of its process. Raises GatewayFailed if ended."""
        return self._running().pid

    @property
    def log(self) -> str:
        """What it has printed so far on stdout and stderr, since its first start."""
        if self._directory is None:
            return self._last_log
        try:
            return (self._directory / "gateway.log").read_text(errors="backslashreplace")
        except OSError:
            return ""

    def start(self) -> Self:
        """Start the gateway, and wait until it serves. Raises GatewayFailed.

        After `kill`, or if it ended by itself, it goes on with its data, at the same port. After
        `stop` it does so with the `data` of its own.
        """
        if self._process is not None and self._process.poll() is None:
            raise GatewayFailed("the gateway was started already: stop it first")
        self._forget_process()
        fresh = self._directory is None
        self._owner = os.getpid()
        try:
            self._process = self._started()
            self._wait_started(self._process)
        except BaseException:
            self._end(signal.SIGKILL)
            if fresh:
                self._remove()
            raise
        return self

    def stop(self) -> None:
        """Let it drain and end, and remove what it stored, unless it has `data` of its own.

        Nothing happens if it was stopped before. Raises GatewayFailed if it had ended by itself
        with an error, or does not end within 60 s.
        """
        try:
            self._end(signal.SIGTERM)
        finally:
            self._remove()

    def kill(self) -> None:
        """End it at once, as a crash does. What it stored stays for `start`, until `stop`."""
        self._end(signal.SIGKILL)

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    def leave_to_parent(self) -> None:
        """Close what a fork inherited: the gateway ends with the process that started it."""
        self._forget_process()
        self._directory = None

    def _running(self) -> subprocess.Popen[bytes]:
        process = self._process
        if process is None:
            raise GatewayFailed("the gateway is not running: use it in a `with` block, or start it")
        if process.poll() is not None:
            raise GatewayFailed(f"the gateway ended with {process.returncode}{self._tail()}")
        return process

    def _started(self) -> subprocess.Popen[bytes]:
        if self._directory is None:
            self._directory = Path(tempfile.mkdtemp(prefix="gateway-"))
        # `-P`: a folder `gateway` of the application under test must not hide this package
        words = [self._python, "-P", "-m", "gateway", "dev", "--until-stdin-ends"]
        words += ["--port", str(self._port), "--ledger-port", "0"]
        # Its default port is left to the gateway that a person starts.
        if not any(each.startswith("--http-port") for each in self._options):
            words.append("--no-http-port")
        words += ["--data", str(self._kept or self._directory / "data"), *self._options]
        with open(self._directory / "gateway.log", "ab") as log:
            try:
                return subprocess.Popen(
                    words,
                    stdin=subprocess.PIPE,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    env=_environment(),
                    start_new_session=True,  # Ctrl-C is for the tests, which then stop it
                )
            except OSError as error:
                raise GatewayFailed(f"cannot run {self._python}: {error.strerror}") from error

    def _wait_started(self, process: subprocess.Popen[bytes]) -> None:
        deadline_s = time.monotonic() + self._start_s_max
        starts = self.log.count(_STARTED)
        while (log := self.log).count(_STARTED) <= starts or not log.endswith("\n"):
            if process.poll() is not None:
                raise GatewayFailed(f"the gateway ended with {process.returncode}{self._tail()}")
            if time.monotonic() > deadline_s:
                late = f"the gateway did not start within {self._start_s_max:g} s"
                raise GatewayFailed(late + self._tail())
            time.sleep(_LOOK_S)
        address = log.rpartition(_STARTED)[2].split(maxsplit=1)[0]
        host, _, port = address.rpartition(":")
        self._host, self._port = _ANY.get(host, host), int(port)

    def _tail(self) -> str:
        lines = self.log.strip().splitlines()[-_LOG_LINES:]
        return "".join(f"\n    {line}" for line in lines)

    def _end(self, number: signal.Signals) -> None:
        """Send a signal, and wait for the end. Does nothing in a fork of the owner."""
        process = self._process
        if process is None or os.getpid() != self._owner:
            return
        own_end = process.poll()
        try:
            process.send_signal(number)
            process.wait(_STOP_S_MAX)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            late = f"the gateway did not end within {_STOP_S_MAX:g} s, and was killed"
            raise GatewayFailed(late + self._tail()) from None
        except BaseException:  # Ctrl-C
            process.kill()
            process.wait()
            raise
        finally:
            self._forget_process()
        if own_end and number is signal.SIGTERM:
            raise GatewayFailed(f"the gateway had ended with {own_end}{self._tail()}")

    def _forget_process(self) -> None:
        process, self._process = self._process, None
        if process is not None and process.stdin is not None:
            with suppress(OSError):
                process.stdin.close()

    def _remove(self) -> None:
        if self._directory is None or os.getpid() != self._owner:
            return
        self._last_log = self.log
        shutil.rmtree(self._directory, ignore_errors=True)
        self._directory = None


_ANY: Final = {"0.0.0.0": "127.0.0.1", "[::]": "[::1]"}
_ALL: Final[weakref.WeakSet[Gateway]] = weakref.WeakSet()


def _after_fork() -> None:
    for each in list(_ALL):
        each.leave_to_parent()


os.register_at_fork(after_in_child=_after_fork)
