"""Processes of this machine by their ids, which the system uses again after a while.

A process is the one that was started only if its start time and the boot of the machine are the
same too. So nothing that happens to have an old id is ever killed.
"""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple

_BOOT: Final = Path("/proc/sys/kernel/random/boot_id")
_STATE, _STARTED = 0, 19  # fields of /proc/<pid>/stat behind the name
_ENDED: Final = ("Z", "X")
_TICKS_PER_S: Final = os.sysconf("SC_CLK_TCK")


class ProcessId(NamedTuple):
    """One run of a process: its id, its start in ticks since the boot, and the boot."""

    pid: int
    started: int
    boot: str

    @property
    def alive(self) -> bool:
        """Whether it runs. One that has ended and was not waited for does not."""
        return self.boot == boot_id() and _started(self.pid) == self.started

    @property
    def uptime_s(self) -> float | None:
        """Return for how long it has run, None if it does not."""
        if not self.alive:
            return None
        up_s = float(Path("/proc/uptime").read_text().split()[0])
        return max(0.0, up_s - self.started / _TICKS_PER_S)

    def send(self, number: signal.Signals) -> bool:
        """Send a signal to it and to what it started. Return False if it does not run."""
        if not self.alive:
            return False
        try:
            handle = os.pidfd_open(self.pid)
        except OSError:  # it has ended; its id may be that of a thread by now
            return False
        try:
            if not self.alive:  # the handle belongs to another process, or it has ended
                return False
            if number is signal.SIGKILL:
                _kill_group(self.pid)
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(handle, number)
        finally:
            os.close(handle)
        return True


def _kill_group(pid: int) -> None:
    """Kill the process and its children. It leads a group of its own, which has its id."""
    with suppress(ProcessLookupError, PermissionError):
        if os.getpgid(pid) == pid:
            os.killpg(pid, signal.SIGKILL)


def boot_id() -> str:
    return _BOOT.read_text().strip()


def identify(pid: int) -> ProcessId | None:
    """Return the process that has this id now, None if none has."""
    started = _started(pid)
    return None if started is None else ProcessId(pid, started, boot_id())


def _started(pid: int) -> int | None:
    """Return the start of a running process in ticks since the boot."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except OSError:
        return None
    fields = text[text.rindex(")") + 2 :].split()
    return None if fields[_STATE] in _ENDED else int(fields[_STARTED])
