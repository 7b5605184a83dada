"""A process with a short session and an ephemeral node, to be killed."""

import asyncio
import sys

from tests.ledger.zookeeper_rig import connected

SESSION_MS = 2_000


async def main(servers: str, root: str) -> None:
    async with connected(servers, root, session_ms=SESSION_MS) as store:
        await store.create("/live", ephemeral=True)
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
