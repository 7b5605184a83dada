"""`gateway serve`: its flags, all that is wrong with them, and the configuration they make."""

from __future__ import annotations

import argparse
import sys
from dataclasses import replace
from pathlib import Path

from gateway.config import GatewayConfig, GroupLimits, TopicDefaults
from gateway.process.dev import INT32_MAX, add_common_flags, common_faults, refuse

REPLICATION_FACTOR = 3
SESSION_MS_MIN, SESSION_MS_MAX = 200, 600_000
WORKERS_MAX = 64
ANYWHERE = {"0.0.0.0", "::"}


def run(arguments: list[str]) -> int:
    """Serves until a signal. Returns the exit code; usage errors exit with 2 from here."""
    flags = parser().parse_args(arguments)
    faults = faults_of(flags)
    if faults:
        return refuse(faults)
    if flags.workers > 1:
        from gateway.process.supervisor import commands, supervise

        rows = commands(arguments, flags.workers, flags.node_id, flags.port, flags.metrics_port)
        return supervise(rows)
    if flags.supervisor is not None:
        from gateway.process.supervisor import end_with

        end_with(flags.supervisor)
    from gateway.process.run import EXIT_UNREACHABLE, ConfigFault, Unreachable, run_gateway

    try:
        return run_gateway(config_of(flags))
    except ConfigFault as fault:
        return refuse(fault.faults)
    except Unreachable as fault:
        print(f"gateway: {fault}", file=sys.stderr)
        return EXIT_UNREACHABLE


def parser() -> argparse.ArgumentParser:
    """The flags. Defaults are those of `gateway.config`."""
    default = GatewayConfig()
    flags = argparse.ArgumentParser(
        prog="gateway serve",
        description="Run one gateway of a cluster: metadata in ZooKeeper, bookies over gRPC.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
        allow_abbrev=False,
    )
    add = flags.add_argument
    add("--zookeeper", required=True, help="servers, host:port,host:port; /chroot at the end")
    add("--session-ms", type=int, default=default.session_ms, help="ZooKeeper session timeout")
    add_common_flags(flags)
    add("--advertised-host", help="address that clients are told; needed where --host is not one")
    add(
        "--replication-factor",
        type=int,
        default=REPLICATION_FACTOR,
        help="copies of a topic that is made without a number (Qw)",
    )
    add(
        "--rack",
        default=default.rack,
        help="rack of this gateway: it reads from its bookies first, and serves its consumers",
    )
    add(
        "--workers",
        type=int,
        default=default.workers,
        help="processes, each a broker: node ids and both ports go up by one from the given ones",
    )
    add(
        "--log-segment-based-subscriptions-store-enabled",
        action=argparse.BooleanOptionalAction,
        default=default.log_segment_based_subscriptions_store_enabled,
        help="keep positions of groups in log segments: only once every gateway reads them",
    )
    add("--supervisor", type=int, help=argparse.SUPPRESS)  # process id of who started this worker
    for name, what in (("cert", "certificate"), ("key", "private key"), ("ca", "authority")):
        add(f"--bookie-tls-{name}", type=Path, help=f"{what} (PEM) for talking to bookies")
    return flags


def faults_of(flags: argparse.Namespace) -> list[str]:
    """All that is wrong, not only the first; one line each."""
    checks = (
        (
            _servers_hold(flags.zookeeper),
            f"zookeeper {flags.zookeeper!r}: must be host:port,... or host:port,.../chroot",
        ),
        (
            SESSION_MS_MIN <= flags.session_ms <= SESSION_MS_MAX,
            f"session-ms {flags.session_ms}: must be {SESSION_MS_MIN} to {SESSION_MS_MAX}",
        ),
        (
            1 <= flags.replication_factor <= 100,
            f"replication-factor {flags.replication_factor}: must be between 1 and 100",
        ),
        (
            flags.host not in ANYWHERE or bool(flags.advertised_host),
            f"host {flags.host}: needs --advertised-host, which other gateways tell clients",
        ),
        (
            1 <= flags.workers <= WORKERS_MAX,
            f"workers {flags.workers}: must be between 1 and {WORKERS_MAX}",
        ),
    )
    faults = [fault for holds, fault in checks if not holds]
    return common_faults(flags) + faults + _row_faults(flags) + _tls_faults(flags)


def _row_faults(flags: argparse.Namespace) -> list[str]:
    """Of the last of several workers: its ports and its node id."""
    more = flags.workers - 1
    if not 0 < more < WORKERS_MAX:
        return []
    checks = (
        (flags.port, 65_535, "port"),
        (flags.metrics_port or 0, 65_535, "metrics-port"),
        (flags.node_id, INT32_MAX, "node-id"),
    )
    return [
        f"workers {flags.workers}: the last one's {name} would be {first + more}, above {most}"
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


def _tls_files(flags: argparse.Namespace) -> dict[str, Path | None]:
    names = ("cert", "key", "ca")
    return {f"bookie-tls-{name}": getattr(flags, f"bookie_tls_{name}") for name in names}


def _tls_faults(flags: argparse.Namespace) -> list[str]:
    files = _tls_files(flags)
    if not any(files.values()):
        return []
    faults: list[str] = []
    for name, path in files.items():
        if not path:
            faults.append(f"{name}: is needed with the other two")
        elif not path.is_file():
            faults.append(f"{name} {path}: no such file")
    key = files["bookie-tls-key"]
    if key and key.is_file() and key.stat().st_mode & 0o077:
        faults.append(f"bookie-tls-key {key}: others may read it; chmod 600")
    return faults


def config_of(flags: argparse.Namespace) -> GatewayConfig:
    """The configuration of flags without faults."""
    cert, key, authority = _tls_files(flags).values()
    return GatewayConfig(
        zookeeper=flags.zookeeper,
        session_ms=flags.session_ms,
        host=flags.host,
        port=flags.port,
        advertised_host=flags.advertised_host,
        node_id=flags.node_id,
        rack=flags.rack,
        workers=flags.workers,
        metrics_port=flags.metrics_port,
        log_segment_based_subscriptions_store_enabled=(
            flags.log_segment_based_subscriptions_store_enabled
        ),
        bookie_tls=(cert, key, authority) if cert and key and authority else None,
        groups=replace(
            GroupLimits(), initial_rebalance_delay_ms=flags.group_initial_rebalance_delay_ms
        ),
        topics=replace(
            TopicDefaults(),
            partitions=flags.partitions,
            auto_create=flags.auto_create,
            replication_factor=flags.replication_factor,
        ),
    )
