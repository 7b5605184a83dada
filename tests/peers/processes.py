"""The base of every helper that starts a process: bounded waits, free ports, signals and usage.

`Process` is one run of a child. `ServerProcess` is a server whose port and data outlive its runs.
"""

from __future__ import annotations

import asyncio
import os
import random
import shutil
import signal
import socket
import struct
import subprocess
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self, TypeVar

T = TypeVar("T")
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_PORTS = random.SystemRandom()
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
START_TRIES = 3
STOP_S_MAX = 60.0  # twice what a gateway may take to hand over
_METADATA_V1 = struct.pack(">hhih5si", 3, 1, 7, 5, b"probe", 0)  # no topics: brokers only


def _own_ports(ports: range) -> range:
    """Return the part of `ports` from which this process of a test run may draw."""
    count = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    at = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw")) % count
    size = len(ports) // count
    return ports[at * size : (at + 1) * size]


OWN_PORTS = _own_ports(range(10_000, 32_768))
_drawn: set[int] = set()  # ports that were returned


class TookTooLong(AssertionError):
    """A condition did not come true before its deadline."""


def wait_until(
    condition: Callable[[], T], what: str, timeout_s: float = 60.0, *, pause_s: float = 0.01
) -> T:
    """Return the first true value of `condition`, or raise TookTooLong after `timeout_s`.

    `pause_s` between two looks: longer where looking is work.
    """
    pause = threading.Event()
    deadline = time.monotonic() + timeout_s
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > deadline:
            raise TookTooLong(f"not within {timeout_s:.0f} s: {what}")
        pause.wait(pause_s)


async def until(condition: Callable[[], T], what: str, timeout_s: float = 60.0) -> T:
    """Wait as `wait_until` does, in the time of the running loop, real or simulated."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + timeout_s
    while not (value := condition()):
        if loop.time() > deadline:
            raise TookTooLong(f"not within {timeout_s:.0f} s: {what}")
        await asyncio.sleep(0.005)
    return value


def free_port() -> int:
    """Return a loopback port that nobody listened on a moment ago.

    It lies below the ports that the kernel gives to outgoing connections (32,768 and above on
    Linux, 49,152 elsewhere), so that none of those takes it before its server starts, or while
    its server is down. The draw is the system's: the processes of one test run share their seed.
    Each of them draws from ports of its own, and none twice until half are used up. Children that
    draw by themselves, and other test runs, know nothing of these.
    """
    return ports_in_a_row(1)[0]


def ports_in_a_row(count: int) -> list[int]:
    """Return loopback ports, one after the other, as `free_port` draws one."""
    while True:
        first = _PORTS.randrange(OWN_PORTS.start, OWN_PORTS.stop - count + 1)
        row = range(first, first + count)
        used_up = len(_drawn) >= len(OWN_PORTS) // 2
        if (used_up or _drawn.isdisjoint(row)) and all(map(_is_free, row)):
            _drawn.update(row)
            return list(row)


def reserve(ports: Iterable[int]) -> None:
    """Never draw these ports: they were chosen otherwise, and their servers start later."""
    _drawn.update(ports)


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def _first_bytes(connection: socket.socket, count: int) -> bytes:
    """Read until at least `count` bytes have come, or fewer when the peer closes."""
    answer = b""
    while len(answer) < count:
        chunk = connection.recv(4096)
        if not chunk:
            break
        answer += chunk
    return answer


def answers_metadata(port: int) -> bool:
    """True when a Metadata request is answered with at least one broker."""
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=5.0) as connection:
            connection.sendall(struct.pack(">i", len(_METADATA_V1)) + _METADATA_V1)
            answer = _first_bytes(connection, 12)
    except OSError:
        return False
    if len(answer) < 12:
        return False
    _size, correlation, brokers = struct.unpack_from(">iii", answer)
    return correlation == 7 and brokers > 0


def command_line(pid: int) -> bytes:
    """Return the words of a process; empty if it has ended."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


@dataclass(frozen=True, slots=True)
class Usage:
    """What a process tree has used so far (CPU) and holds now (resident memory)."""

    cpu_s: float
    resident_bytes: int


def _stat_fields(pid: int) -> list[str]:
    text = Path(f"/proc/{pid}/stat").read_text()
    return text[text.rindex(")") + 2 :].split()


def process_tree(root: int) -> list[int]:
    """Return `root` and all its living descendants."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            parent = int(_stat_fields(int(entry.name))[1])
        except (OSError, ValueError):
            continue  # it ended while we looked
        children.setdefault(parent, []).append(int(entry.name))
    tree, waiting = [], [root]
    while waiting:
        pid = waiting.pop()
        tree.append(pid)
        waiting.extend(children.get(pid, []))
    return tree


def tree_usage(root: int) -> Usage:
    """CPU seconds (with children already reaped) and resident bytes of the tree under `root`."""
    ticks = resident_pages = 0
    for pid in process_tree(root):
        try:
            fields = _stat_fields(pid)
        except OSError:
            continue
        ticks += sum(int(fields[index]) for index in (11, 12, 13, 14))
        resident_pages += int(fields[21])
    return Usage(ticks / _TICKS_PER_S, resident_pages * _PAGE_BYTES)


def tree_memory_bytes(root: int) -> int:
    """Memory of the tree under `root`; a page that n processes share counts 1/n in each (PSS)."""
    kib = 0
    for pid in process_tree(root):
        try:
            text = Path(f"/proc/{pid}/smaps_rollup").read_text()
        except OSError:
            continue
        kib += sum(int(line.split()[1]) for line in text.splitlines() if line.startswith("Pss:"))
    return kib * 1024


def status_bytes(pid: int | str, field: str) -> int:
    """Return a size from the status of a process (or "self"): VmRSS, or VmHWM for its peak."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        name, _, value = line.partition(":")
        if name == field:
            return int(value.split()[0]) * 1024
    raise AssertionError(f"process {pid} has no {field}; has it ended?")


class Process:
    """One run of a child in a session of its own; it never outlives this process.

    Both its outputs go to the file `log`, or stderr to the file `errors`.
    """

    def __init__(
        self,
        argv: Sequence[str],
        log: Path,
        environment: Mapping[str, str] | None = None,
        *,
        errors: Path | None = None,
    ) -> None:
        log.parent.mkdir(parents=True, exist_ok=True)
        self.log = log
        self.argv = list(argv)
        tied = ["setpriv", "--pdeathsig", "KILL"] if shutil.which("setpriv") else []
        with log.open("ab") as output, (errors or log).open("ab") as error_output:
            self._log_start = output.tell()
            self._child = subprocess.Popen(
                [*tied, *self.argv],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=error_output,
                start_new_session=True,
                env={**os.environ, **(environment or {})},
            )
        self.started_at_s = time.monotonic()

    @property
    def pid(self) -> int:
        return self._child.pid

    @property
    def exit_code(self) -> int | None:
        return self._child.poll()

    def output(self) -> str:
        """What this run has written so far."""
        with self.log.open("rb") as written:
            written.seek(self._log_start)
            return written.read().decode(errors="replace")

    def usage(self) -> Usage:
        return tree_usage(self.pid)

    def memory_bytes(self) -> int:
        """As `tree_memory_bytes`."""
        return tree_memory_bytes(self.pid)

    def wait_for(self, condition: Callable[[], bool], what: str, timeout_s: float) -> None:
        """Return when `condition` holds; a child that ended first is an error with its output."""

        def held_or_ended() -> bool:
            return condition() or self.exit_code is not None

        try:
            wait_until(held_or_ended, what, timeout_s)
        except TookTooLong as slow:
            raise TookTooLong(f"{slow}\n{self.output()[-4000:]}") from None
        if self.exit_code is not None:
            raise RuntimeError(f"ended with {self.exit_code}: {what}\n{self.output()[-4000:]}")

    def wait_output(self, text: str, timeout_s: float) -> None:
        """Wait until this run has written `text`; raise as `wait_for` does."""
        self.wait_for(lambda: text in self.output(), f"{text!r} in {self.log.name}", timeout_s)

    def wait_exit(self, timeout_s: float, *, pause_s: float = 0.01) -> int:
        """Wait until the process exits on its own; return its exit code."""
        what = f"{self.log.name} to end"
        wait_until(lambda: self.exit_code is not None, what, timeout_s, pause_s=pause_s)
        assert self.exit_code is not None
        return self.exit_code

    def send_signal(self, number: int) -> None:
        """Send a signal to the process itself, unless it has ended."""
        self._child.send_signal(number)

    def pause(self) -> None:
        """Stop all threads of a running process; its connections stay open."""
        self.send_signal(signal.SIGSTOP)
        wait_until(self._stands_still, f"{self.log.name} to stand still")

    def resume(self) -> None:
        """Continue after `pause`; do nothing if the process has ended."""
        self.send_signal(signal.SIGCONT)

    def _stands_still(self) -> bool:
        """Return True if every thread is stopped: a signal takes a while to reach them all."""
        assert self.exit_code is None, f"{self.log.name} has ended\n{self.output()[-4000:]}"
        return set(map(_thread_state, Path(f"/proc/{self.pid}/task").iterdir())) == {"T"}

    def stop(self, timeout_s: float = STOP_S_MAX) -> int:
        """End it by SIGTERM, paused or not, then by SIGKILL; return the exit code."""
        if self._child.poll() is None:
            self.resume()
            self.send_signal(signal.SIGTERM)
            try:
                self._child.wait(timeout_s)
            except subprocess.TimeoutExpired:
                self.kill()
        return int(self._child.wait())

    def kill(self) -> None:
        """Kill -9 of it and of everything it started; do nothing if it has ended."""
        if self.exit_code is not None:
            return  # its pid may belong to another process by now
        for pid in reversed(process_tree(self.pid)):
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        self._child.wait(STOP_S_MAX)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.kill()


def _thread_state(task: Path) -> str:
    """Return the state letter of a thread; T, as if stopped, if it ended meanwhile."""
    try:
        return (task / "stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return "T"


class Lifecycle:
    """Base of what `with` starts and stops. A start that fails must leave nothing behind."""

    def start(self) -> Self:
        raise NotImplementedError

    def stop(self) -> object:
        raise NotImplementedError

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()


class ServerProcess(Lifecycle):
    """One server: its port and its directory outlive stop, kill and restart.

    A subclass gives `argv` and `serves`, and `prepare` if its directory needs content.
    """

    name = "server"
    start_s_max = 60.0
    # Exit codes of a start that is tried again: a machine that stood still cost it its session.
    again_after: frozenset[int] = frozenset()

    def __init__(self, data: Path) -> None:
        self.data = data
        self.log = data.with_name(f"{data.name}.log")
        self.port = free_port()
        # Variables of the next run, besides those of this process.
        self.environment: dict[str, str] = {}
        # Seconds from the last start until it served; 0 before the first.
        self.start_s = 0.0
        # The last run, ended or not; None before the first.
        self._process: Process | None = None

    @property
    def process(self) -> Process:
        """The last run, which may have ended."""
        assert self._process is not None, "not started"
        return self._process

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.exit_code is None

    def argv(self) -> list[str]:
        """Return the command line of the next run."""
        raise NotImplementedError

    def prepare(self) -> None:
        """Write what must be on disk before a run."""

    def serves(self) -> bool:
        """Return True once the run serves."""
        raise NotImplementedError

    def begin(self) -> Self:
        """Start it without waiting; `wait_started` waits."""
        assert not self.running, "already started"
        self.prepare()
        self._process = Process(self.argv(), self.log, self.environment)
        return self

    def wait_started(self, timeout_s: float | None = None) -> Self:
        """Wait until it serves, for `start_s_max` at most; a failed start leaves no process."""
        bound_s = self.start_s_max if timeout_s is None else timeout_s
        for left in reversed(range(START_TRIES)):
            if self._has_started(bound_s, again=left > 0):
                break
            self.begin()
        self.start_s = time.monotonic() - self.process.started_at_s
        return self

    def _has_started(self, bound_s: float, *, again: bool) -> bool:
        """Wait until it serves. Return False if this start failed and may be tried again."""
        try:
            self.process.wait_for(self.serves, f"{self.name} to start", bound_s)
        except BaseException:
            code = self.process.exit_code
            self.kill()
            if not again or code not in self.again_after:
                raise
            print(f"{self.name} ended with {code} while it started, and is started again")
            return False
        return True

    def start(self) -> Self:
        """Start it and wait until it serves."""
        return self.begin().wait_started()

    def wait_exit(self, timeout_s: float = 60.0) -> int:
        """Wait until it exits on its own; return its exit code."""
        return self.process.wait_exit(timeout_s)

    def stop(self) -> int:
        """End it by SIGTERM, paused or not; return its exit code."""
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
        """Stop it by SIGSTOP: it does not answer, its clock goes on, connections stay open."""
        self.process.pause()

    def resume(self) -> None:
        """Continue after `pause`; do nothing if it has ended."""
        self.process.resume()

    def output(self) -> str:
        """Return what this run has written so far, both streams."""
        return self.process.output()

    def usage(self) -> Usage:
        return self.process.usage()
