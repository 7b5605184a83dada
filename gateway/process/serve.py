"""`gateway serve`: its options, their faults, and the configuration that they make."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from gateway.config import CLUSTER_TAIL_CACHE_BYTES, GatewayConfig, TopicDefaults
from gateway.process.dev import (
    COUNT,
    DURATION,
    FILE,
    INT32_MAX,
    PORT,
    PORT_MAX,
    common_faults,
    common_options,
    connection_limits,
    group_limits,
    host_holds,
    print_faults,
)
from ledger.command_line import units
from ledger.command_line.exit_codes import EXIT_UNREACHABLE
from ledger.command_line.program import (
    Command,
    Flags,
    OldSpelling,
    Option,
    Value,
    flags_given,
    words_given,
)
from ledger.core.bookie_health import SlowDetection
from ledger.ports.bookies import BookieTransport

REPLICATION_FACTOR = 3
SESSION_S_MIN, SESSION_S_MAX = 0.2, 600.0
WORKERS_MAX = 64
ANYWHERE = {"0.0.0.0", "::"}
_DEFAULT = GatewayConfig()
_DETECTIONS = [mode.value for mode in SlowDetection]
_TRANSPORTS = [transport.value for transport in BookieTransport]


def _serve_options() -> list[click.Parameter]:
    store = "--log-segment-based-subscriptions-store-enabled"
    return [
        Option(
            ["--advertised-host"],
            metavar="HOST",
            help="Address that clients connect to, if not --host.",
        ),
        Option(
            ["--peer-host"],
            metavar="HOST",
            shown="the address of clients",
            help="Address at which the other gateways reach this one.",
        ),
        Option(
            ["--peer-port"],
            type=PORT,
            shown="--port",
            help="Port at which the other gateways reach this one.",
        ),
        Option(
            ["--replication-factor"],
            type=COUNT,
            default=REPLICATION_FACTOR,
            help="Copies of a topic that is created without a number.",
        ),
        Option(
            ["--rack"],
            metavar="RACK",
            default=_DEFAULT.rack,
            help="Rack of this gateway: it reads from bookies of this rack first, and consumers of "
            "this rack read here.",
        ),
        Option(
            ["--reader-slow-shards-detection"],
            metavar="MODE",
            default=_DEFAULT.reader_slow_shards_detection,
            help="enabled: read from a slow bookie only if no other has an entry; observe-only: "
            "report it; disabled: do not compare bookies.",
        ),
        Option(
            ["--workers"],
            type=COUNT,
            default=_DEFAULT.workers,
            help="Processes, each a broker; node id and ports of each are one above the last.",
        ),
        Option(
            [f"{store}/{store.replace('--', '--no-')}"],
            default=_DEFAULT.log_segment_based_subscriptions_store_enabled,
            shown="as the cluster was laid out: enabled in a new one",
            help="Keep committed offsets in log segments. In an older cluster, enable it only when "
            "every gateway can read them.",
        ),
        # The process that started this worker: the worker ends with it.
        Option(["--supervisor"], type=Value("pid", units.integer), hidden=True),
        *_bookie_options(),
    ]


def _bookie_options() -> list[click.Parameter]:
    return [
        Option(
            ["--bookie-transport"],
            metavar="TRANSPORT",
            default=_DEFAULT.bookie_transport,
            help="How to reach bookies: tcp or grpc. A bookie without a TCP endpoint is reached by "
            "gRPC.",
        ),
        _tls_option("cert", "PEM file with the certificate that it shows to bookies."),
        _tls_option("key", "PEM file with its private key; only its owner may read it."),
        _tls_option("ca", "PEM file with the CA certificates that sign bookie certificates."),
    ]


def _zookeeper_options() -> list[click.Parameter]:
    return [
        Option(
            ["--zookeeper"],
            required=True,
            metavar="SERVERS",
            help="ZooKeeper servers: host:port,host:port, with an optional /chroot at the end.",
        ),
        Option(
            ["--session"],
            type=DURATION,
            default=units.show_time(_DEFAULT.session_ms / 1000),
            help="ZooKeeper session timeout: how long it keeps its partitions after it died.",
        ),
        OldSpelling(["--session-ms"], of="session", unit="ms"),
    ]


def _tls_option(name: str, text: str) -> click.Option:
    return Option([f"--bookie-tls-{name}"], type=FILE, help=text)


def run(flags: Flags, words: list[str]) -> int:
    """Serve until a signal. Returns the exit code. `words` are the options as they were given."""
    faults = faults_of(flags)
    if faults:
        return print_faults(faults)
    if flags.workers > 1:
        from gateway.process.supervisor import commands, supervise

        rows = commands(words, flags.workers, flags.node_id, flags.port, flags.metrics_port)
        return supervise(rows)
    if flags.supervisor is not None:
        from gateway.process.supervisor import end_with

        end_with(flags.supervisor)
    from gateway.process.run import ConfigFault, ZooKeeperUnreachable, run_gateway

    try:
        return run_gateway(config_of(flags))
    except ConfigFault as fault:
        return print_faults(fault.faults)
    except ZooKeeperUnreachable as fault:
        print(f"gateway: {fault}", file=sys.stderr)
        return EXIT_UNREACHABLE


def _callback(**_: Any) -> int:
    return run(flags_given(), words_given())


serve = Command(
    "serve",
    params=[
        *_zookeeper_options(),
        *common_options(CLUSTER_TAIL_CACHE_BYTES),
        *_serve_options(),
    ],
    help="Run one gateway of a cluster, with ZooKeeper and bookies.",
    callback=_callback,
)


def faults_of(flags: Flags) -> list[str]:
    """Return all faults of the options, a line for each."""
    checks = (
        (
            _servers_hold(flags.zookeeper),
            f"--zookeeper {flags.zookeeper}: must be host:port,... or host:port,.../chroot",
        ),
        (
            SESSION_S_MIN <= flags.session <= SESSION_S_MAX,
            f"{flags.given('session')}: must be between "
            f"{units.show_time(SESSION_S_MIN)} and {units.show_time(SESSION_S_MAX)}",
        ),
        (
            1 <= flags.replication_factor <= 100,
            f"--replication-factor {flags.replication_factor}: must be between 1 and 100",
        ),
        (
            flags.host not in ANYWHERE or bool(flags.advertised_host),
            f"--host {flags.host}: clients cannot connect to this address; pass one that they can "
            "with --advertised-host",
        ),
        (
            host_holds(flags.peer_host),
            f"--peer-host {flags.peer_host}: must be a host name or an address",
        ),
        (
            flags.reader_slow_shards_detection in _DETECTIONS,
            f"--reader-slow-shards-detection {flags.reader_slow_shards_detection}: must be "
            f"{', '.join(_DETECTIONS[:-1])} or {_DETECTIONS[-1]}",
        ),
        (
            flags.bookie_transport in _TRANSPORTS,
            f"--bookie-transport {flags.bookie_transport}: must be {' or '.join(_TRANSPORTS)}",
        ),
        (
            flags.peer_port is None or 0 < flags.peer_port <= PORT_MAX,
            f"--peer-port {flags.peer_port}: must be between 1 and {PORT_MAX}",
        ),
        (
            flags.peer_port is None or flags.workers == 1,
            f"--peer-port {flags.peer_port}: each of several --workers has a port of its own; "
            "leave this flag out",
        ),
        (
            1 <= flags.workers <= WORKERS_MAX,
            f"--workers {flags.workers}: must be between 1 and {WORKERS_MAX}",
        ),
    )
    faults = [fault for holds, fault in checks if not holds]
    return common_faults(flags) + faults + _row_faults(flags) + _tls_faults(flags)


def _row_faults(flags: Flags) -> list[str]:
    """Return the faults of the ports and the node id of the last of several workers."""
    more = flags.workers - 1
    if not 0 < more < WORKERS_MAX:
        return []
    checks = (
        (flags.port, PORT_MAX, "--port"),
        (flags.metrics_port or 0, PORT_MAX, "--metrics-port"),
        (flags.node_id, INT32_MAX, "--node-id"),
    )
    return [
        f"--workers {flags.workers}: {name} of the last one would be {first + more}, above {most}"
        for first, most, name in checks
        if first <= most < first + more
    ]


def _servers_hold(zookeeper: str) -> bool:
    servers, slash, path = zookeeper.partition("/")
    if slash and {"", ".", ".."}.intersection(path.split("/")):
        return False
    for server in servers.split(","):
        host, _, port = server.rpartition(":")
        if not host or not port.isdecimal() or not 0 < int(port) <= 65_535:
            return False
    return True


def _tls_files(flags: Flags) -> dict[str, Path | None]:
    names = ("cert", "key", "ca")
    return {f"--bookie-tls-{name}": getattr(flags, f"bookie_tls_{name}") for name in names}


def _tls_faults(flags: Flags) -> list[str]:
    files = _tls_files(flags)
    if not any(files.values()):
        return []
    faults: list[str] = []
    for name, path in files.items():
        if not path:
            faults.append(f"{name}: is missing; pass all three --bookie-tls options or none")
        elif not path.is_file():
            faults.append(f"{name} {path}: no such file")
    key = files["--bookie-tls-key"]
    if key and key.is_file() and key.stat().st_mode & 0o077:
        faults.append(f"--bookie-tls-key {key}: other users can read it; run chmod 600")
    return faults


def config_of(flags: Flags) -> GatewayConfig:
    """Return the configuration that the options make. They must have no faults."""
    cert, key, authority = _tls_files(flags).values()
    return GatewayConfig(
        zookeeper=flags.zookeeper,
        session_ms=round(flags.session * 1000),
        host=flags.host,
        port=flags.port,
        advertised_host=flags.advertised_host,
        peer_host=flags.peer_host,
        peer_port=flags.peer_port,
        node_id=flags.node_id,
        rack=flags.rack,
        reader_slow_shards_detection=flags.reader_slow_shards_detection,
        workers=flags.workers,
        metrics_port=flags.metrics_port,
        log_segment_based_subscriptions_store_enabled=(
            flags.log_segment_based_subscriptions_store_enabled
        ),
        bookie_transport=flags.bookie_transport,
        bookie_tls=(cert, key, authority) if cert and key and authority else None,
        tail_cache_bytes=flags.tail_cache,
        connection=connection_limits(flags),
        groups=group_limits(flags),
        topics=replace(
            TopicDefaults(),
            partitions=flags.partitions,
            auto_create=flags.auto_create,
            replication_factor=flags.replication_factor,
        ),
    )
