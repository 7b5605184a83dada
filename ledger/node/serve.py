"""`bookie serve` and `bookie check-config`: from the command line to the exit code."""

from __future__ import annotations

import asyncio
import contextlib
import gc
from functools import partial
from typing import Any, Final

from ledger.adapters.system.process import EXIT_OK, ExitAsked, loop_factory
from ledger.errors import (
    BookieIdInUse,
    CorruptFormat,
    DirectoryInUse,
    ForeignDirectory,
    ForeignLayout,
    MetadataUnavailable,
)
from ledger.log import logger
from ledger.node.checks import listen_fault, offline_faults, port_faults
from ledger.node.config import NodeConfig
from ledger.node.options import Settings, parser
from ledger.node.process import EXIT_CONFIG, EXIT_DISK, EXIT_UNREACHABLE, say_faults

_RETRY_S: Final = 1.0
_COLLECT_AFTER: Final = (20_000, 20, 100)  # objects of an add die by count; cycles are rare here


def run(arguments: list[str]) -> int:
    """Serves until a signal. Returns the exit code; usage errors exit with 2 from here."""
    settings = Settings(
        parser("bookie serve", "Store entries of ledgers, as one bookie of a cluster.").parse_args(
            arguments
        )
    )
    faults = offline_faults(settings) + port_faults(settings)
    if faults:
        say_faults(faults)
        return EXIT_CONFIG
    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        return runner.run(_serve(settings.config(), settings))


def check_config(arguments: list[str]) -> int:
    """Says all that is wrong with the settings of `bookie serve`; starts and writes nothing."""
    settings = Settings(
        parser("bookie check-config", "Check the settings of `bookie serve`.").parse_args(arguments)
    )
    faults = offline_faults(settings)
    say_faults(faults)
    return EXIT_CONFIG if faults else EXIT_OK


async def _serve(config: NodeConfig, settings: Settings) -> int:
    from ledger.node.storage_node import StorageNode

    asked = ExitAsked()
    node = StorageNode(config, partial(_connect, config), logger)
    ended = asyncio.ensure_future(asked.wait())
    try:
        starting = asyncio.ensure_future(node.start())
        await asyncio.wait({starting, ended}, return_when=asyncio.FIRST_COMPLETED)
        if not starting.done():
            starting.cancel()
            await asyncio.gather(starting, return_exceptions=True)
            return ended.result()
        code = _code_of_start(starting, config, settings)
        if code != EXIT_OK:
            return code
        # What lives from start to end is not looked at again by the cyclic collector.
        gc.collect()
        gc.freeze()
        gc.set_threshold(*_COLLECT_AFTER)
        _say_started(node)
        failing = asyncio.ensure_future(node.bookie.failed())
        await asyncio.wait({failing, ended}, return_when=asyncio.FIRST_COMPLETED)
        if failing.done():
            say_faults([f"{config.data}: nothing more is acknowledged: {failing.result()}"])
            return EXIT_DISK
        failing.cancel()
        return ended.result()
    finally:
        ended.cancel()
        await node.stop()


def _code_of_start(starting: asyncio.Future[None], config: NodeConfig, settings: Settings) -> int:
    """EXIT_OK if the start succeeded; else what it failed with was said."""
    error = starting.exception()
    if error is None:
        return EXIT_OK
    if isinstance(error, MetadataUnavailable):
        say_faults([f"{settings.place('zookeeper')}: {error}"])
        return EXIT_UNREACHABLE
    if isinstance(error, (DirectoryInUse, ForeignDirectory, CorruptFormat, BookieIdInUse)):
        say_faults([f"{settings.place('data')}: {error}"])
        return EXIT_CONFIG
    if isinstance(error, ForeignLayout):
        say_faults([f"{settings.place('zookeeper')}: {error}"])
        return EXIT_CONFIG
    if isinstance(error, OSError):
        return _code_of_os_error(error, config, settings)
    raise error


def _code_of_os_error(error: OSError, config: NodeConfig, settings: Settings) -> int:
    if error.filename is None and port_faults(settings):
        say_faults([listen_fault(settings.place("host"), settings.place("port"), error)])
        return EXIT_CONFIG
    say_faults([f"{settings.place('data')}: {error}"])
    return EXIT_DISK


async def _connect(config: NodeConfig, make_root: bool) -> Any:
    """A session with ZooKeeper, waited for as long as the settings say."""
    from ledger.adapters.zookeeper.zookeeper_metadata import connect_zookeeper

    loop = asyncio.get_running_loop()
    until_s = loop.time() + config.zookeeper_wait
    while True:
        try:
            return await connect_zookeeper(
                config.zookeeper,
                session_ms=int(config.session * 1000),
                connect_s=min(config.session, max(0.1, until_s - loop.time())),
                make_root=make_root,
            )
        except MetadataUnavailable as error:
            left_s = until_s - loop.time()
            if left_s <= 0:
                raise
            logger().warning("ZooKeeper does not answer", reason=str(error), left_s=round(left_s))
            await asyncio.sleep(min(_RETRY_S, left_s))


def _say_started(node: Any) -> None:
    """One line, for people and for whoever waits for it."""
    host = f"[{node.host}]" if ":" in node.host else node.host
    with contextlib.suppress(OSError):  # nobody reads stdout: no reason not to serve
        print(f"started bookie={node.bookie.bookie_id} address={host}:{node.port}", flush=True)
