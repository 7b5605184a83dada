"""A bookie as operators run it: `python -m ledger serve`, one process on a loopback port.

Its port and directory outlive stop, kill and restart, so that it comes back as the same bookie.
The process ends with the thread that started it: a thread of an event loop ends with its loop.
"""

from __future__ import annotations

import os
import re
import signal
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.peers import install
from tests.peers.processes import Process, Usage, free_port, wait_until

START_S_MAX = 30.0
# Its disk is everybody's here, so a share of it says nothing: only --disk-free-min
# makes it read-only.
SHARED_DISK = ("--disk-used-max", "100%", "--disk-used-resume", "99%")
SESSION = "1s"  # short, so that an unregistered bookie is noticed soon
_STARTED = re.compile(r"^started bookie=(\S+) address=(\S+):(\d+)$", re.MULTILINE)


class BookieProcess:
    """One bookie. `zookeeper` is what `--zookeeper` takes, chroot included."""

    def __init__(
        self,
        data: Path,
        zookeeper: str,
        options: Sequence[str] = (),
        *,
        name: str = "bookie",
        rack: str = "/default-rack",
        session: str = SESSION,
    ) -> None:
        self.data = data
        self.zookeeper = zookeeper
        self.options = list(options)
        self.name = name
        self.rack = rack
        self.session = session
        self.port = free_port()
        self.log = data.parent / f"{data.name}.log"
        self.start_s = 0.0
        self._id = ""
        self._process: Process | None = None

    @property
    def id(self) -> str:
        """As it said when it started last."""
        assert self._id, "not started"
        return self._id

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def process(self) -> Process:
        assert self._process is not None, "not started"
        return self._process

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.exit_code is None

    def argv(self) -> list[str]:
        place = ["--zookeeper", self.zookeeper, "--data", str(self.data), "--port", str(self.port)]
        who = ["--name", self.name, "--rack", self.rack, "--session", self.session]
        words = [*place, *who, *SHARED_DISK, *self.options]
        return [install.gateway_python(), "-m", "ledger", "serve", *words]

    def begin(self) -> Self:
        """Start it without waiting; `ready` waits."""
        assert not self.running, "already started"
        self._id = ""
        self._process = Process(self.argv(), self.log)
        return self

    def ready(self, timeout_s: float = START_S_MAX) -> Self:
        """It has said `started`; `start_s` is the time it took."""
        try:
            self.process.wait_for(self._has_started, "the bookie to say `started`", timeout_s)
        except BaseException:
            self.kill()
            raise
        self.start_s = time.monotonic() - self.process.started_at_s
        return self

    def start(self) -> Self:
        """Start it; returns when it serves and is registered."""
        return self.begin().ready()

    def wait_exit(self, timeout_s: float = START_S_MAX) -> int:
        """The exit code, once it ended by itself."""
        process = self.process
        wait_until(lambda: process.exit_code is not None, "the bookie to end", timeout_s)
        assert process.exit_code is not None
        return process.exit_code

    def output(self) -> str:
        """What this run has written so far, both streams."""
        return self.process.output()

    def stop(self) -> int:
        """End it politely; returns its exit code."""
        self.resume()
        return self.process.stop()

    def kill(self) -> None:
        """Kill -9."""
        self.process.kill()

    def restart(self, *, kill: bool = False) -> Self:
        """Stop (or kill -9) and start again, on the same data and port."""
        if self.running:
            _ = self.kill() if kill else self.stop()
        return self.start()

    def pause(self) -> None:
        """It neither reads nor answers; connections stay open."""
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        self._signal(signal.SIGCONT)

    def usage(self) -> Usage:
        return self.process.usage()

    def _has_started(self) -> bool:
        found = _STARTED.search(self.output())
        if found is not None:
            self._id, self.port = found[1], int(found[3])
        return found is not None

    def _signal(self, number: signal.Signals) -> None:
        if self.running:
            os.kill(self.process.pid, number)

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self.running:
            self.stop()
