"""A process with a long session, an ephemeral node and a `SessionCloser`, to be killed.

It writes `session` with the line for its closer, and `registered`, for each session. After SIGTERM
it stops its closer, and lives on. After SIGUSR1 its loop ends, and its closer was not stopped.
"""

import asyncio
import signal
import sys

from ledger.adapters.system.process import loop_factory
from ledger.adapters.zookeeper.close_session import Session
from ledger.adapters.zookeeper.session_closer import SessionCloser
from ledger.adapters.zookeeper.zookeeper_metadata import connect_zookeeper
from tests.peers.zookeeper import SESSION_MS_MAX


async def main(servers: str, root: str) -> None:
    asked, ending = asyncio.Event(), asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, asked.set)
    asyncio.get_running_loop().add_signal_handler(signal.SIGUSR1, ending.set)
    closer = SessionCloser()
    closer.start()

    def keep(session: Session) -> None:
        closer.keep(session)
        print("session", session.line().decode(), end="", flush=True)

    store = await connect_zookeeper(
        servers, session_ms=SESSION_MS_MAX, chroot=root, on_session=keep
    )

    async def register() -> None:
        await store.create("/live", ephemeral=True)
        print("registered", flush=True)

    store.watch_session(lambda: asyncio.ensure_future(register()))
    await register()
    waits = [asyncio.ensure_future(each.wait()) for each in (asked, ending)]
    await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
    if ending.is_set():
        return
    await closer.stop()
    print("stopped", flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        runner.run(main(*sys.argv[1:]))
