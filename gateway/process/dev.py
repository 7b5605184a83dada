"""`gateway dev`: its flags, all that is wrong with them, and the configuration that they make."""

from __future__ import annotations

import argparse
import os
import sys
from dataclasses import replace
from pathlib import Path

from gateway.config import GatewayConfig, GroupLimits, TopicDefaults

EXIT_CONFIG = 78  # sysexits.h: EX_CONFIG
INT32_MAX = 2**31 - 1
LEDGER_PORT = 3181


def run(arguments: list[str]) -> int:
    """Serves until a signal. Returns the exit code; usage errors exit with 2 from here."""
    flags = parser().parse_args(arguments)
    faults = faults_of(flags)
    if faults:
        return refuse(faults)
    from gateway.process.run import ConfigFault, run_gateway

    try:
        return run_gateway(config_of(flags))
    except ConfigFault as fault:
        return refuse(fault.faults)


def parser() -> argparse.ArgumentParser:
    """The flags. Defaults are those of `gateway.config`."""
    default = GatewayConfig()
    flags = argparse.ArgumentParser(
        prog="gateway dev",
        description="Run everything in one process: gateway, storage and metadata.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
        allow_abbrev=False,
    )
    add = flags.add_argument
    add_common_flags(flags)
    add("--data", type=Path, default=default.data, help="directory of all data; made if missing")
    add("--bookies", type=int, default=default.bookies, help="embedded storage nodes: 1 or 3")
    add(
        "--journal-sync",
        default=default.journal_sync,
        help="group: synced before each acknowledgement; never: not at all",
    )
    add(
        "--accept-loss",
        action="store_true",
        help="go on with what is left after a bookie lost data (rot, a power cut without sync)",
    )
    add(
        "--ledger-port",
        type=int,
        default=LEDGER_PORT,
        help="where tools on this machine read ledgers, always on 127.0.0.1; 0 takes any free one",
    )
    add(
        "--no-ledger-port",
        dest="ledger_port",
        action="store_const",
        const=None,
        default=argparse.SUPPRESS,
        help="no such port",
    )
    return flags


def add_common_flags(flags: argparse.ArgumentParser) -> None:
    """What `dev` and `serve` have in common."""
    default = GatewayConfig()
    add = flags.add_argument
    add("--port", type=int, default=default.port, help="Kafka port; 0 takes any free one")
    add("--host", default=default.host, help="address to listen on")
    add("--node-id", type=int, default=default.node_id, help="Kafka broker id")
    add(
        "--partitions",
        type=int,
        default=default.topics.partitions,
        help="partitions of a topic that is made without a count",
    )
    add(
        "--auto-create",
        action=argparse.BooleanOptionalAction,
        default=default.topics.auto_create,
        help="make topics that clients name",
    )
    add(
        "--metrics-port",
        type=int,
        default=default.metrics_port,
        help="port of the metrics page for Prometheus, on --host; 0 takes any free one",
    )
    add(
        "--group-initial-rebalance-delay-ms",
        type=int,
        default=default.groups.initial_rebalance_delay_ms,
        help="how long a new group waits for its first members",
    )


def faults_of(flags: argparse.Namespace) -> list[str]:
    """All that is wrong, not only the first; one line each."""
    checks = (
        (flags.bookies in (1, 3), f"bookies {flags.bookies}: must be 1 or 3"),
        (
            flags.journal_sync in ("group", "never"),
            f"journal-sync {flags.journal_sync!r}: must be group or never",
        ),
        (
            flags.ledger_port is None or 0 <= flags.ledger_port <= 65_535,
            f"ledger-port {flags.ledger_port}: must be between 0 and 65535",
        ),
    )
    faults = [fault for holds, fault in checks if not holds]
    return common_faults(flags) + faults + _data_faults(flags.data)


def common_faults(flags: argparse.Namespace) -> list[str]:
    """All that is wrong with the flags of `add_common_flags`."""
    topics = TopicDefaults()
    delay_ms = flags.group_initial_rebalance_delay_ms
    checks = (
        (0 <= flags.port <= 65_535, f"port {flags.port}: must be between 0 and 65535"),
        (
            flags.metrics_port is None or 0 <= flags.metrics_port <= 65_535,
            f"metrics-port {flags.metrics_port}: must be between 0 and 65535",
        ),
        (0 <= flags.node_id <= INT32_MAX, f"node-id {flags.node_id}: must be 0 to {INT32_MAX}"),
        (
            1 <= flags.partitions <= topics.partitions_max,
            f"partitions {flags.partitions}: must be between 1 and {topics.partitions_max}",
        ),
        (
            0 <= delay_ms <= INT32_MAX,
            f"group-initial-rebalance-delay-ms {delay_ms}: must be 0 to {INT32_MAX}",
        ),
    )
    return [fault for holds, fault in checks if not holds]


def _data_faults(data: Path) -> list[str]:
    try:
        place = data.absolute()
        while not place.exists():
            place = place.parent
        if not place.is_dir():
            return [f"data {data}: {place} is not a directory"]
    except (OSError, ValueError) as error:
        return [f"data {data}: {error}"]
    if not os.access(place, os.W_OK | os.X_OK):
        return [f"data {data}: {place} is not writable"]
    return []


def config_of(flags: argparse.Namespace) -> GatewayConfig:
    """The configuration of flags without faults."""
    delay_ms: int = flags.group_initial_rebalance_delay_ms
    return GatewayConfig(
        data=flags.data,
        host=flags.host,
        port=flags.port,
        node_id=flags.node_id,
        bookies=flags.bookies,
        journal_sync=flags.journal_sync,
        accept_loss=flags.accept_loss,
        ledger_port=flags.ledger_port,
        metrics_port=flags.metrics_port,
        groups=replace(GroupLimits(), initial_rebalance_delay_ms=delay_ms),
        topics=replace(
            TopicDefaults(),
            partitions=flags.partitions,
            auto_create=flags.auto_create,
            replication_factor=flags.bookies,
        ),
    )


def refuse(faults: list[str]) -> int:
    """Each fault is a line on stderr; returns the exit code."""
    for fault in faults:
        print(f"gateway: {fault}", file=sys.stderr)
    return EXIT_CONFIG
