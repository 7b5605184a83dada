"""System calls of a process, as strace writes them, and what they made durable.

A call starts at one line of the trace and ends at a later line if another thread ran meanwhile. A
write with O_DSYNC makes its bytes durable when it ends. Any other write becomes durable at the end
of a sync of the same file that started after the write had ended. The name of a file becomes
durable at the end of a sync of its directory that started after the name had been made.

A write by io_uring is in the trace as `recorded` shows it. It starts where it is shown to be
submitted, and ends where its result is shown; a result other than its size makes nothing durable.
Then the same rules hold.
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from tests.peers import install

CALLS = (
    "openat,close,write,writev,pwrite64,pwritev,pwritev2,fsync,fdatasync,rename,renameat,"
    "renameat2,sendto,sendmsg"
)
TOKEN = re.compile(rb"token-[0-9a-f]{16}")
"""What the tests write to find it again: a needle."""

SHOWN_BYTES_MAX = 32 * 1024
"""Bytes of each buffer in the trace. Replies and small groups are shorter."""

_LINE = re.compile(r"(\d+) +(?:<\.\.\. \w+ resumed>)?(.*)$", re.DOTALL)
_RESUMED = re.compile(r"\d+ +<\.\.\. \w+ resumed>")
_UNFINISHED = " <unfinished ...>"
_CALL = re.compile(r"(\w+)\((.*)\) += (-?\d+)(?:<([^>]*)>)?", re.DOTALL)
_HANDLE = re.compile(r"(?:\d+|AT_FDCWD)<((?:[^>]|(?<=-)>)*)>")
_STRING = re.compile(r'"((?:[^"\\]|\\.)*)"(\.\.\.)?', re.DOTALL)
_SUBMIT = re.compile(rb"submit (\d+) (\d+) (?:(\d+) (\d+)|sync)\n", re.DOTALL)
_COMPLETE = re.compile(rb"complete (\d+) (-?\d+)\n")
_NULL = "/dev/null"
_OFFSET = re.compile(r", (\d+)(?:, 0)?$")


def traced(argv: Sequence[str], trace: Path) -> list[str]:
    """Return the command line that runs `argv` under strace, as the same process."""
    options = ["-D", "-f", "-q", "-yy", "-x", "--seccomp-bpf", "-s", str(SHOWN_BYTES_MAX)]
    return [install.strace(), *options, "-e", f"trace={CALLS}", "-o", str(trace), *argv]


class Call(NamedTuple):
    """One call that succeeded; `start` and `end` are lines of the trace."""

    start: int
    end: int
    name: str
    arguments: str
    result: int
    opened: str = ""  # the path of the handle that it returned


class _Write(NamedTuple):
    """Bytes that a crash would lose."""

    end: int  # the line at which the write ended
    offset: int
    pieces: list[bytes]


class _Submitted(NamedTuple):
    """An operation that io_uring has taken."""

    start: int  # the line at which it was submitted
    handle: int
    write: _Write | None  # None for an fdatasync
    size: int  # the result that it must have


class Durable:
    """The files of a process at one line of its trace."""

    def __init__(self, data: Path, others: Iterable[bytes] = ()) -> None:
        """`others` are needles that do not look like `TOKEN`."""
        self._data = str(data)
        self._others = tuple(others)
        # The writes of each file that no sync covers yet.
        self._lost: dict[str, list[_Write]] = {}
        # Names that a crash may take back, with the line at which they were made.
        self._new_names: dict[str, int] = {}
        # Open handles by number: True if a write returns after the disk has the bytes.
        self._synchronous: dict[int, bool] = {}
        # The path of each open handle, and what io_uring has taken, by its number.
        self._paths: dict[int, str] = {}
        self._submitted: dict[int, _Submitted] = {}
        # Each durable needle: its file, its offset, and how it became durable: "O_DSYNC",
        # "sync", or one of these with "io_uring " in front
        self.found: dict[bytes, tuple[str, int, str]] = {}

    def starts(self, call: Call) -> None:
        """A close frees the number of its handle when it starts."""
        if call.name == "close":
            self._synchronous.pop(int(call.arguments.split("<", 1)[0]), None)

    def ends(self, call: Call) -> None:
        """Apply a call that has succeeded."""
        match call.name:
            case "openat":
                self._opened(call)
            case "rename" | "renameat" | "renameat2":
                self._renamed(call)
            case "fsync" | "fdatasync":
                self._synced(path_of(call), call)
            case "write" if path_of(call).startswith(_NULL):
                self._shown(call)
            case "write" | "writev" | "pwrite64" | "pwritev" | "pwritev2":
                self._wrote(path_of(call), call)
            case _:
                pass

    def why_lost(self, needle: bytes) -> str:
        """Return why a crash now may lose the needle, or "" if it is durable."""
        if needle not in self.found:
            return f"{needle!r} is not durable in any file"
        path, offset, _ = self.found[needle]
        if path in self._new_names:
            return f"the name {path} is not durable"
        before = [write.offset for write in self._lost.get(path, ()) if write.offset < offset]
        if before:
            return f"{path}: the bytes at {before[0]} before {needle!r} are not durable"
        stamp = path.rpartition("/")[0] + "/VERSION"
        if stamp in self._new_names or self._lost.get(stamp):
            return f"{stamp} is not durable"
        return ""

    def _opened(self, call: Call) -> None:
        self._synchronous[call.result] = "SYNC" in call.arguments.rpartition('"')[2]
        self._paths[call.result] = call.opened
        if "O_CREAT" in call.arguments:
            path = _HANDLE.findall(call.arguments)
            name = _texts(call.arguments)[0][0].decode()
            made = name if name.startswith("/") else f"{path[0]}/{name}"
            if self._is_data(made) and made not in self._lost:
                self._new_names[made] = call.end
                self._lost[made] = []

    def _renamed(self, call: Call) -> None:
        old, new = (text.decode() for text, _ in _texts(call.arguments))
        places = _HANDLE.findall(call.arguments)
        if places:
            old, new = f"{places[0]}/{old}", f"{places[-1]}/{new}"
        if self._is_data(new):
            self._lost[new] = self._lost.pop(old, [])
            self._new_names.pop(old, None)
            self._new_names[new] = call.end

    def _synced(self, path: str, call: Call) -> None:
        for name, made in list(self._new_names.items()):
            if name.rpartition("/")[0] == path and made < call.start:
                del self._new_names[name]
        self._keep_before(path, call.start, "sync")

    def _keep_before(self, path: str, start: int, how: str) -> None:
        """Keep the writes of a file that had ended before its sync started."""
        writes = self._lost.get(path, [])
        self._lost[path] = [write for write in writes if write.end >= start]
        for write in writes:
            if write.end < start:
                self._keep(path, write, how)

    def _shown(self, call: Call) -> None:
        """Apply what the process shows of io_uring."""
        pieces = _strings(call.arguments)
        head = pieces[0] if pieces else b""
        if (submit := _SUBMIT.match(head)) is not None:
            number, handle = int(submit[1]), int(submit[2])
            write, size = None, 0
            if submit[3] is not None:
                shown = [head[submit.end() :], *pieces[1:]]
                write, size = _Write(call.end, int(submit[3]), shown), int(submit[4])
            self._submitted[number] = _Submitted(call.start, handle, write, size)
        elif (complete := _COMPLETE.match(head)) is not None:
            done = self._submitted.pop(int(complete[1]), None)  # None for a read
            if done is not None and int(complete[2]) == done.size:
                self._completed(done, call)

    def _completed(self, done: _Submitted, call: Call) -> None:
        path = self._paths[done.handle]
        if done.write is None:
            self._keep_before(path, done.start, "io_uring sync")
        elif not self._is_data(path):
            return
        elif self._synchronous.get(done.handle):
            self._keep(path, done.write, "io_uring O_DSYNC")
        else:
            self._lost.setdefault(path, []).append(done.write._replace(end=call.end))

    def _wrote(self, path: str, call: Call) -> None:
        if not self._is_data(path):
            return
        at = _OFFSET.search(call.arguments)
        offset = int(at[1]) if at is not None and call.name.startswith("p") else 0
        write = _Write(call.end, offset, _strings(call.arguments))
        if self._synchronous.get(int(call.arguments.split("<", 1)[0])):
            self._keep(path, write, "O_DSYNC")
        else:
            self._lost.setdefault(path, []).append(write)

    def _keep(self, path: str, write: _Write, how: str) -> None:
        for piece in write.pieces:
            others = [each for each in self._others if each in piece]
            for needle in [*TOKEN.findall(piece), *others]:
                self.found.setdefault(needle, (path, write.offset, how))

    def _is_data(self, path: str) -> bool:
        return path.startswith(self._data)


def path_of(call: Call) -> str:
    """Return the path or the address of the call's first handle, or ""."""
    found = _HANDLE.match(call.arguments)
    return found[1] if found is not None else ""


def calls_of(trace: Path) -> list[Call]:
    """Parse a trace. Calls that failed or did not end are left out."""
    waiting: dict[str, tuple[int, str]] = {}
    found: list[Call] = []
    with trace.open(encoding="latin-1") as lines:
        for number, line in enumerate(lines):
            matched = _LINE.match(line.rstrip("\n"))
            if matched is None:
                continue
            thread, rest = matched.groups()
            if _RESUMED.match(line):
                start, begun = waiting.pop(thread, (number, ""))
                rest = begun + rest
            else:
                start = number
            if rest.endswith(_UNFINISHED):
                waiting[thread] = start, rest.removesuffix(_UNFINISHED)
                continue
            call = _CALL.match(rest)
            if call is not None and int(call[3]) >= 0:
                found.append(Call(start, number, call[1], call[2], int(call[3]), call[4] or ""))
    return found


class Replies:
    """The bytes that a process sent on each connection of one port, cut into replies."""

    def __init__(self, port: int, new_cutter: Callable[[], Callable[[bytes], list[bytes]]]) -> None:
        self._from = re.compile(rf"TCP(?:v6)?:\[.*:{port}->")
        self._new_cutter = new_cutter
        self._cutters: dict[str, Callable[[bytes], list[bytes]]] = {}

    def of(self, call: Call) -> list[bytes]:
        """Return the replies that this call completes."""
        path = path_of(call)
        if not self._from.match(path):
            return []
        if path not in self._cutters:
            self._cutters[path] = self._new_cutter()
        sent = b"".join(_strings(call.arguments))[: call.result]
        assert len(sent) == call.result, "the trace shows a part of a reply only"
        return self._cutters[path](sent)


def broken_promises(
    calls: Sequence[Call],
    durable: Durable,
    replies: Replies,
    promised: Callable[[bytes], Iterable[bytes]],
) -> tuple[list[str], int]:
    """Check each reply at the moment at which its sending began.

    `promised` returns the bytes that a reply acknowledges. Returns a line for each broken promise,
    and the number of promises.
    """
    steps = [(call.start, True, call) for call in calls]
    steps += [(call.end, False, call) for call in calls]
    broken: list[str] = []
    count = 0
    for line, starts, call in sorted(steps, key=lambda step: (step[0], not step[1])):
        if not starts:
            durable.ends(call)
            continue
        durable.starts(call)
        needles = [needle for reply in replies.of(call) for needle in promised(reply)]
        count += len(needles)
        reasons = filter(None, map(durable.why_lost, needles))
        broken += [f"line {line + 1}: acknowledged, but {reason}" for reason in reasons]
    return broken, count


def _texts(arguments: str) -> list[tuple[bytes, bool]]:
    """Return the strings of a call, and whether each was cut."""
    return [
        (codecs.escape_decode(text.encode("latin-1"))[0], bool(cut))
        for text, cut in _STRING.findall(arguments)
    ]


def _strings(arguments: str) -> list[bytes]:
    """Return the buffers of a call. Neighbours are joined where the trace shows them whole."""
    pieces: list[bytes] = [b""]
    for text, cut in _texts(arguments):
        pieces[-1] += text
        if cut:
            pieces.append(b"")
    return [piece for piece in pieces if piece]
