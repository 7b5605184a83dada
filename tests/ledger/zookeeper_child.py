"""A process with a short session and an ephemeral node, to be killed."""

import asyncio
import sys

from ledger.adapters.zookeeper.zookeeper_metadata import connect_zookeeper


async def main(servers: str, root: str) -> None:
    store = await connect_zookeeper(servers, session_ms=600, chroot=root)
    await store.create("/live", ephemeral=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
