"""A gateway process from configuration to exit code."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import signal
import sys
from collections.abc import Callable
from dataclasses import replace
from importlib import import_module
from typing import TYPE_CHECKING, Protocol

from gateway.handlers.preload import preload
from gateway.process.file_limit import fit_connections
from ledger.adapters.system.controlling_terminal import Terminal
from ledger.adapters.system.memory import collect_rarely, start_returning_memory
from ledger.adapters.system.process import ExitAsked, loop_factory
from ledger.command_line.exit_codes import EXIT_UNREACHABLE

if TYPE_CHECKING:
    from gateway.config import GatewayConfig, Listener
    from gateway.server.listener import CannotListen


THREAD_SWITCH_S = 1e-4
"""Seconds after which a busy thread (sync, compression) yields the interpreter to the loop."""

_PRELOAD_AFTER_S = 1.0
_LOOPBACK = {"127.0.0.1", "localhost", "::1"}


class StartedGateway(Protocol):
    """A started gateway, with its addresses, `lost` and `stop`."""

    @property
    def host(self) -> str: ...

    @property
    def port(self) -> int: ...

    @property
    def listeners(self) -> tuple[Listener, ...]:
        """Return the listeners with the ports that they have."""
        ...

    @property
    def http_port(self) -> int | None:
        """Return the port of the web page, or None."""
        ...

    @property
    def metrics_port(self) -> int | None:
        """Return the port of the metrics page, or None."""
        ...

    @property
    def lost(self) -> asyncio.Future[str]:
        """A future that completes with the reason when the gateway must stop serving."""
        ...

    @property
    def ledger_port(self) -> int | None:
        """Return the port for readers of ledgers, on loopback, or None."""
        ...

    def apply(self, config: GatewayConfig) -> None:
        """Take over what may change of a configuration, and read certificates again."""
        ...

    async def stop(self) -> None: ...


class ConfigFault(Exception):
    """The process cannot start with this configuration. Each line names one fault."""

    def __init__(self, faults: list[str]) -> None:
        super().__init__("\n".join(faults))
        self.faults = faults


class ZooKeeperUnreachable(Exception):
    """ZooKeeper does not answer, or contains no cluster yet. A later start may succeed."""


Hangup = Callable[[Callable[["GatewayConfig"], None]], None]
"""Called at each SIGHUP, with what applies a configuration."""


def run_gateway(config: GatewayConfig, on_hangup: Hangup | None = None) -> int:
    """Serve until SIGTERM or SIGINT, then drain. Returns the exit code.

    Without `on_hangup`, SIGHUP reads the certificates again. Raises ConfigFault,
    ZooKeeperUnreachable.
    """
    sys.setswitchinterval(THREAD_SWITCH_S)
    connection, told = fit_connections(config.connection)
    if told:
        print(f"gateway: {told}", file=sys.stderr)
        config = replace(config, connection=connection)
    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        return runner.run(_serve(config, on_hangup))


async def _serve(config: GatewayConfig, on_hangup: Hangup | None) -> int:
    asked = ExitAsked()
    if config.until_stdin_ends:
        asked.watch_stdin()
    gateway = await _start(config)
    returning = start_returning_memory()
    try:
        collect_rarely()
        _watch_hangup(config, gateway, on_hangup)
        _say_started(config, gateway)
        asked.ready()
        hosts = {each.host for each in config.all_listeners}
        if not hosts.union([config.http.host] if config.http.port is not None else []) <= _LOOPBACK:
            from gateway.process.exposure import warn_each_hour

            warn_each_hour(config, asyncio.get_running_loop())
        preloading = asyncio.get_running_loop().call_later(_PRELOAD_AFTER_S, _preload)
        code = await _ended(asked, gateway)
        preloading.cancel()
    finally:
        returning.cancel()
        await gateway.stop()
    return code


def _watch_hangup(config: GatewayConfig, gateway: StartedGateway, on_hangup: Hangup | None) -> None:
    """Let SIGHUP reload, but end the process if its terminal was closed."""
    terminal = Terminal()

    def hung_up() -> None:
        if terminal.is_gone():
            os.kill(os.getpid(), signal.SIGTERM)
        elif on_hangup is None:
            gateway.apply(config)
        else:
            on_hangup(gateway.apply)

    asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, hung_up)


async def _ended(asked: ExitAsked, gateway: StartedGateway) -> int:
    """Wait for a signal, or until the gateway must stop. Returns the exit code."""
    signalled = asyncio.ensure_future(asked.wait())
    await asyncio.wait({signalled, gateway.lost}, return_when=asyncio.FIRST_COMPLETED)
    if signalled.done():
        return signalled.result()
    signalled.cancel()
    print(f"gateway: {gateway.lost.result()}", file=sys.stderr)
    return EXIT_UNREACHABLE


async def _start(config: GatewayConfig) -> StartedGateway:
    if config.zookeeper:
        return await _start_in_cluster(config)
    from gateway.process.embedded import start_embedded
    from gateway.server.listener import CannotListen
    from ledger.errors import CorruptFormat, DirectoryInUse, ForeignDirectory

    try:
        return await start_embedded(config)
    except (CorruptFormat, DirectoryInUse, ForeignDirectory) as error:
        raise ConfigFault([f"--data {config.data}: {error}"]) from error
    except CannotListen as error:
        raise ConfigFault([_listen_fault(config, error)]) from error
    except (OSError, UnicodeError) as error:
        raise ConfigFault([_os_fault(config, error)]) from error


async def _start_in_cluster(config: GatewayConfig) -> StartedGateway:
    from gateway.process.clustered import start_in_cluster
    from gateway.server.listener import CannotListen
    from ledger.command_line.zookeeper_settings import unreachable
    from ledger.errors import (
        AccessDenied,
        ForeignLayout,
        LedgerError,
        MetadataUnavailable,
        OpenToAnyone,
    )

    try:
        return await start_in_cluster(config)
    except (AccessDenied, OpenToAnyone) as error:
        raise ConfigFault([f"--zookeeper {config.zookeeper}: {error}"]) from error
    except MetadataUnavailable as error:
        place = f"--zookeeper {config.zookeeper}"
        raise ZooKeeperUnreachable(unreachable(place, config.zookeeper, error)) from error
    except ForeignLayout as error:
        raise ZooKeeperUnreachable(
            f"--zookeeper {config.zookeeper}: {error}; no bookie was ever started there: start "
            "`bookie serve` first, with this --zookeeper"
        ) from error
    except LedgerError as error:
        raise ConfigFault([str(error)]) from error
    except CannotListen as error:
        raise ConfigFault([_listen_fault(config, error)]) from error
    except (OSError, UnicodeError) as error:
        raise ConfigFault([_os_fault(config, error)]) from error


def _listen_fault(config: GatewayConfig, error: CannotListen) -> str:
    """Return the fault of an address that cannot be listened on, beginning with its flags."""
    listener, cause = error.listener, error.__cause__
    host, port = listener.host, listener.port
    place = f"--host {host} --port {port}"
    in_use = f"--port {port}: in use on {host}; pass another --port"
    if config.listeners:
        shown = f"[{host}]" if ":" in host else host
        place = f"--listener {listener.name}={shown}:{port}"
        in_use = f"{place}: the port is in use; pass another one"
    if isinstance(cause, UnicodeError):  # of a host name that IDNA does not encode
        return f"{place}: cannot listen there: this is not the name of a host"
    assert isinstance(cause, OSError)
    if cause.errno == errno.EADDRINUSE:
        return in_use
    return f"{place}: cannot listen there: {cause.strerror or cause}"


def _os_fault(config: GatewayConfig, error: OSError | UnicodeError) -> str:
    from gateway.process.assemble import PortUnavailable

    if isinstance(error, PortUnavailable | UnicodeError):
        return str(error)
    if config.zookeeper:
        return str(error)
    inside = error.filename not in (None, str(config.data))
    reason = error.strerror if error.strerror and not inside else str(error)
    return f"--data {config.data}: {reason}"


def _say_started(config: GatewayConfig, gateway: StartedGateway) -> None:
    """Print a line for people, and one with the words that testcontainers' modules wait for."""
    host = f"[{gateway.host}]" if ":" in gateway.host else gateway.host
    with contextlib.suppress(OSError):  # the gateway serves even if stdout is closed
        place = f"zookeeper={config.zookeeper}" if config.zookeeper else f"data={config.data}"
        print(f"gateway started: bootstrap.servers={host}:{gateway.port} {place}")
        print(f"Started Kafka API server; [KafkaServer id={config.node_id}] started")
        for each in config.listeners and gateway.listeners:
            print("listener:", _shown(each))
        if gateway.ledger_port is not None:
            print(f"ledgers: grpc://127.0.0.1:{gateway.ledger_port}")
        if gateway.http_port is not None:
            page = config.http.host
            page = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(page, page)
            page = f"[{page}]" if ":" in page else page
            print(f"page: {config.http.scheme}://{page}:{gateway.http_port}/")
        if gateway.metrics_port is not None:
            print(f"metrics: {config.http.scheme}://{host}:{gateway.metrics_port}/metrics")
        if config.secure is not None:
            from gateway.process.secure_dev import hints

            print(*hints(config.secure, gateway.host, gateway.port), sep="\n")
        sys.stdout.flush()  # prints all lines at once, for programs that wait for one line


def _shown(listener: Listener) -> str:
    """Return a listener, and the address that its clients are given."""
    host = f"[{listener.host}]" if ":" in listener.host else listener.host
    line = f"{listener.name}={host}:{listener.port}"
    if not listener.advertised_host:
        return line
    host = listener.advertised_host
    host = f"[{host}]" if ":" in host else host
    return f"{line} advertised={host}:{listener.advertised_port}"


def _preload() -> None:
    """Load the logger, and what requests need, in a thread, so that no first use pauses the loop.

    The logger takes about 100 ms.
    """
    loop = asyncio.get_running_loop()
    loop.run_in_executor(None, import_module, "structlog")
    loop.run_in_executor(None, preload)
