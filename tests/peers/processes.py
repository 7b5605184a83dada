"""Processes of our own: free ports, bounded waits, CPU and memory of a whole process tree."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import socket
import struct
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_METADATA_V1 = struct.pack(">hhih5si", 3, 1, 7, 5, b"probe", 0)  # no topics: brokers only


class TookTooLong(AssertionError):
    """A condition did not come true before its deadline."""


def wait_until(
    condition: Callable[[], T], what: str, timeout_s: float = 30.0, *, pause_s: float = 0.01
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


async def until(condition: Callable[[], T], what: str, timeout_s: float = 30.0) -> T:
    """As `wait_until`, for those on a loop: it runs on meanwhile."""
    deadline = time.monotonic() + timeout_s
    while not (value := condition()):
        if time.monotonic() > deadline:
            raise TookTooLong(f"not within {timeout_s:.0f} s: {what}")
        await asyncio.sleep(0.005)
    return value


def free_port() -> int:
    """Return a loopback port that nobody listened on a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


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


class Process:
    """A child in a session of its own, its output in a file; it never outlives this process."""

    def __init__(
        self, argv: Sequence[str], log: Path, environment: Mapping[str, str] | None = None
    ) -> None:
        log.parent.mkdir(parents=True, exist_ok=True)
        self.log = log
        self.argv = list(argv)
        tied = ["setpriv", "--pdeathsig", "KILL"] if shutil.which("setpriv") else []
        with log.open("ab") as output:
            self._log_start = output.tell()
            self._child = subprocess.Popen(
                [*tied, *self.argv],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
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

    def stop(self, timeout_s: float = 20.0) -> int:
        """End it politely, then by force; returns the exit code."""
        if self._child.poll() is None:
            self._child.send_signal(signal.SIGTERM)
            try:
                self._child.wait(timeout_s)
            except subprocess.TimeoutExpired:
                self.kill()
        return int(self._child.wait())

    def kill(self) -> None:
        """Kill -9 of it and of everything it started."""
        for pid in reversed(process_tree(self.pid)):
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        self._child.wait(10.0)
