"""A bookie in a process of its own, to be killed: prints each acknowledged entry id on a line."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from ledger.bookie.config import BookieConfig
from ledger.bookie.in_process import open_local_bookie
from tests.sim.bookie_world import KEY, entry_buffers

CONFIG = BookieConfig(file_bytes=1 << 20, preallocate_bytes=1 << 18, headroom_bytes=0)


def payload_of(entry: int) -> bytes:
    return entry.to_bytes(4, "big") * (1 + entry * 37 % 3000)


async def main(path: Path) -> None:
    opened = await open_local_bookie(path, config=CONFIG, next_ledger=2)
    entry = 0

    def send() -> None:
        nonlocal entry
        body = entry_buffers(1, entry, payload_of(entry))
        opened.bookie.add(1, entry, KEY, body, lambda status, e=entry: on_added(status, e))
        entry += 1

    def on_added(status, acked) -> None:
        assert status == 0
        print(acked, flush=True)
        send()

    for _ in range(8):
        send()
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1])))
