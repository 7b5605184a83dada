"""`bookie serve` and `bookie check-config`: from the command line to the exit code."""

from __future__ import annotations

import asyncio
import contextlib
from functools import partial
from importlib import import_module
from typing import Any, Final

from ledger.adapters.links.tls_identity import TlsFault, TlsIdentity
from ledger.adapters.system.hourly import warn_each_hour
from ledger.adapters.system.memory import collect_rarely, start_returning_memory
from ledger.adapters.system.process import ExitAsked, loop_factory
from ledger.command_line.exit_codes import (
    EXIT_CONFIG,
    EXIT_DISK,
    EXIT_OK,
    EXIT_UNREACHABLE,
)
from ledger.command_line.program import Flags
from ledger.command_line.secret_values import SecretFault
from ledger.command_line.zookeeper_settings import unreachable
from ledger.errors import (
    AccessDenied,
    BookieIdInUse,
    CorruptFormat,
    DirectoryInUse,
    ForeignDirectory,
    ForeignLayout,
    MetadataUnavailable,
    OpenToAnyone,
)
from ledger.log import logger
from ledger.node.checks import offline_faults, port_faults
from ledger.node.config import NodeConfig
from ledger.node.exposure import warn_if_exposed
from ledger.node.http_port import HttpPort, HttpUnavailable, start_http
from ledger.node.options import NodeSettings, answered, serve_command
from ledger.node.process import print_faults
from ledger.node.tls import keep_current
from ledger.ports.bookies import BookieTransport
from ledger.tasks import start_restarting

_RETRY_S: Final = 1.0


def _run(flags: Flags) -> int:
    """Serve until a signal. Returns the exit code."""
    settings = NodeSettings(flags)
    code = answered(settings, flags.output)
    if code is not None:
        return code
    faults = offline_faults(settings) + port_faults(settings)
    if faults:
        _print(settings, *faults)
        return EXIT_CONFIG
    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        try:
            return runner.run(_serve(settings.config(), settings))
        except TlsFault as fault:
            _print(settings, f"{settings.place('tls-cert')}: {fault}")
            return EXIT_CONFIG


def _check(flags: Flags) -> int:
    """Print all faults of the settings. Returns the exit code; nothing is started or written."""
    settings = NodeSettings(flags)
    code = answered(settings, flags.output)
    if code is not None:
        return code
    faults = offline_faults(settings)
    _print(settings, *faults)
    return EXIT_CONFIG if faults else EXIT_OK


def _print(settings: NodeSettings, *faults: str) -> None:
    print_faults(faults, as_json=settings.flags.output == "json")


serve: Final = serve_command("serve", "Store entries of ledgers, as one bookie of a cluster.", _run)
check_config: Final = serve_command(
    "check-config",
    """Check the settings of `bookie serve`.

    Prints one line for each fault and exits with 78 if there is any. Starts and writes nothing.
    """,
    _check,
)


async def _serve(config: NodeConfig, settings: NodeSettings) -> int:
    from ledger.node.storage_node import StorageNode

    if config.audit:
        import_module("ledger.node.repair_node")  # now, because it would delay adds later
    asked = ExitAsked()
    node = StorageNode(config, partial(_connect, config), logger)
    try:
        http = await start_http(config.http_host, config.http_port, "bookie", node)
    except HttpUnavailable as error:
        _print(settings, f"{settings.place('http-port')}: {error}")
        return EXIT_CONFIG
    ended = asyncio.ensure_future(asked.wait())
    beside = [start_returning_memory()]  # with `--audit` also the repair
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
        collect_rarely()
        _print_started(node, http)
        asked.ready()
        keep_current(node.tls)
        loop = asyncio.get_running_loop()
        warn_if_exposed(config, loop)
        warn_each_hour(loop, config.zookeeper_security.warning)
        if config.audit:
            repair = partial(_repair, config, http, node.tls)
            beside.append(start_restarting("the repair beside a bookie", repair))
        failing = asyncio.ensure_future(node.bookie.failed())
        await asyncio.wait({failing, ended}, return_when=asyncio.FIRST_COMPLETED)
        if failing.done():
            fault = f"nothing more is acknowledged: {failing.result()}"
            _print(settings, f"{settings.place('data')}: {fault}; check the disk, then start again")
            return EXIT_DISK
        failing.cancel()
        return ended.result()
    finally:
        ended.cancel()
        for task in beside:
            task.cancel()
        await asyncio.gather(*beside, return_exceptions=True)
        await node.stop()
        if http is not None:
            await http.stop()


async def _repair(config: NodeConfig, http: HttpPort | None, tls: TlsIdentity | None) -> None:
    """Audit and re-replicate with a ZooKeeper session of its own, until cancelled."""
    from ledger.node.repair_node import RepairNode, new_owner
    from ledger.repair.config import RepairConfig

    repair = RepairConfig(delay_s=config.audit_delay)
    while True:
        transport = BookieTransport(config.bookie_transport)
        security = config.zookeeper_security
        node = RepairNode(
            config.zookeeper, config.session, new_owner(), repair, tls, transport, security
        )
        try:
            await node.start()
            if http is not None:
                http.sources["audit"] = node.families
            await node.serve()
        except MetadataUnavailable as error:
            logger().warning("cannot repair ledgers now; will retry", reason=str(error))
        finally:
            await node.stop()
        await asyncio.sleep(_RETRY_S)


def _code_of_start(
    starting: asyncio.Future[None], config: NodeConfig, settings: NodeSettings
) -> int:
    """Return EXIT_OK if the start succeeded; otherwise print its error and return its code."""
    error = starting.exception()
    if error is None:
        return EXIT_OK
    if isinstance(error, (AccessDenied, OpenToAnyone, SecretFault)):
        _print(settings, f"{settings.place('zookeeper')}: {error}")
        return EXIT_CONFIG
    if isinstance(error, MetadataUnavailable):
        _print(settings, unreachable(settings.place("zookeeper"), config.zookeeper, error))
        return EXIT_UNREACHABLE
    if isinstance(error, (DirectoryInUse, ForeignDirectory, CorruptFormat, BookieIdInUse)):
        _print(settings, f"{settings.place('data')}: {error}")
        return EXIT_CONFIG
    if isinstance(error, ForeignLayout):
        _print(settings, f"{settings.place('zookeeper')}: {error}")
        return EXIT_CONFIG
    if isinstance(error, OSError):
        return _code_of_os_error(error, config, settings)
    raise error


def _code_of_os_error(error: OSError, config: NodeConfig, settings: NodeSettings) -> int:
    faults = port_faults(settings) if error.filename is None else []
    if faults:
        _print(settings, *faults)
        return EXIT_CONFIG
    _print(settings, f"{settings.place('data')}: {error}")
    return EXIT_DISK


async def _connect(config: NodeConfig, make_root: bool) -> Any:
    """Open a session with ZooKeeper, retrying for up to `--zookeeper-wait`."""
    from ledger.adapters.zookeeper.zookeeper_access import read_access
    from ledger.adapters.zookeeper.zookeeper_metadata import connect_zookeeper

    access = read_access(config.zookeeper_security)
    loop = asyncio.get_running_loop()
    until_s = loop.time() + config.zookeeper_wait
    while True:
        try:
            return await connect_zookeeper(
                config.zookeeper,
                session_ms=int(config.session * 1000),
                connect_s=min(config.session, max(0.1, until_s - loop.time())),
                make_root=make_root,
                access=access,
            )
        except AccessDenied:
            raise  # no wait changes an ACL
        except MetadataUnavailable as error:
            left_s = until_s - loop.time()
            if left_s <= 0:
                raise
            logger().warning("ZooKeeper does not answer", reason=str(error), left_s=round(left_s))
            await asyncio.sleep(min(_RETRY_S, left_s))


def _print_started(node: Any, http: HttpPort | None) -> None:
    """Print a line, for people and for programs that wait for it, and one of the HTTP port."""
    host = f"[{node.host}]" if ":" in node.host else node.host
    with contextlib.suppress(OSError):  # serve even if stdout is closed
        print(f"started bookie={node.bookie.bookie_id} address={host}:{node.port}", flush=True)
        if http is not None:
            print(f"metrics: http://{http.shown}/metrics", flush=True)
