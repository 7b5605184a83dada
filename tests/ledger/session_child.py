"""A process with a long session, an ephemeral node and a `SessionCloser`, to be killed.

It writes `registered` for each session. After SIGTERM it stops its closer, and lives on.
"""

import asyncio
import signal
import sys

from ledger.adapters.system.process import loop_factory
from ledger.adapters.zookeeper.session_closer import SessionCloser
from ledger.adapters.zookeeper.zookeeper_metadata import connect_zookeeper
from tests.peers.zookeeper import SESSION_MS_MAX


async def main(servers: str, root: str) -> None:
    asked = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, asked.set)
    closer = SessionCloser()
    closer.start()
    store = await connect_zookeeper(
        servers, session_ms=SESSION_MS_MAX, chroot=root, on_session=closer.keep
    )

    async def register() -> None:
        await store.create("/live", ephemeral=True)
        print("registered", flush=True)

    store.watch_session(lambda: asyncio.ensure_future(register()))
    await register()
    await asked.wait()
    await closer.stop()
    print("stopped", flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        runner.run(main(*sys.argv[1:]))
