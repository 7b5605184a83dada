"""Goal: a server that has had a burst returns its memory to the system.

Method: a process of its own frees large blocks that lie between blocks in use.
"""

from __future__ import annotations

import subprocess
import sys

import pytest

pytestmark = pytest.mark.process

BURST = """
import asyncio
from pathlib import Path
from ledger.adapters.system.memory import keep_freed_memory, start_returning_memory

MIB = 2**20


def resident():
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


async def main():
    keep_freed_memory()
    before = resident()
    blocks = [bytearray(MIB) if number % 2 else bytearray(64 * 1024) for number in range(256)]
    del blocks[1::2]
    kept = resident() - before
    returning = start_returning_memory(0.01)
    async with asyncio.timeout(60):
        while resident() - before > kept // 4:
            await asyncio.sleep(0.01)
    returning.cancel()
    print("kept", kept // MIB, "MiB", len(blocks))


asyncio.run(main())
"""


def test_free_blocks_between_those_in_use_are_returned():
    done = subprocess.run(
        [sys.executable, "-c", BURST], capture_output=True, text=True, timeout=60.0
    )
    assert done.returncode == 0, done.stderr
    assert int(done.stdout.split()[1]) >= 100
