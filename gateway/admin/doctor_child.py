"""A child of `gateway doctor`: looks up names, and measures a disk, where a call may never return.

The parent kills the child when the time is up. It is run as a file, with the standard library
alone, and prints one line of JSON for each result.
"""

from __future__ import annotations

import asyncio
import errno
import json
import os
import socket
import sys
import tempfile
import time
from typing import Any


def main(words: list[str]) -> None:
    """Run `names NAME...`, `space DIR` or `sync DIR COUNT BYTES`."""
    what, *rest = words
    if what == "names":
        asyncio.run(_look_up_all(rest))
    elif what == "space":
        _print(_space(rest[0]))
    else:
        _print(_sync(rest[0], int(rest[1]), int(rest[2])))


def _print(row: dict[str, Any]) -> None:
    print(json.dumps(row), flush=True)


async def _look_up_all(names: list[str]) -> None:
    await asyncio.gather(*map(_look_up, names))


async def _look_up(name: str) -> None:
    begun_s = time.perf_counter()
    addresses: list[str] = []
    fault = None
    try:
        found = await asyncio.get_running_loop().getaddrinfo(name, None, type=socket.SOCK_STREAM)
        addresses = sorted({str(each[4][0]) for each in found})
    except (OSError, UnicodeError) as error:
        fault = getattr(error, "strerror", None) or str(error)
    took_s = time.perf_counter() - begun_s
    _print({"name": name, "took_s": took_s, "addresses": addresses, "fault": fault})


def _space(directory: str) -> dict[str, Any]:
    try:
        found = os.statvfs(directory)
    except OSError as error:
        return {"fault": error.strerror}
    return {
        "free_bytes": found.f_bavail * found.f_frsize,
        "whole_bytes": found.f_blocks * found.f_frsize,
    }


def _sync(directory: str, count: int, size: int) -> dict[str, Any]:
    """Write `size` bytes `count` times to a file without a name, each synced before the next."""
    block = os.urandom(size)
    took_ms: list[float] = []
    try:
        with tempfile.TemporaryFile(dir=directory, buffering=0) as file:
            for _ in range(count):
                took_ms.append(_write_synced(file.fileno(), block))
    except OSError as error:
        return {"took_ms": took_ms, "fault": error.strerror}
    return {"took_ms": took_ms}


def _write_synced(file: int, block: bytes) -> float:
    """Write and sync a block. Returns the milliseconds that it took."""
    begun_s = time.perf_counter()
    if os.write(file, block) != len(block):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    os.fdatasync(file)
    return (time.perf_counter() - begun_s) * 1000


if __name__ == "__main__":
    main(sys.argv[1:])
