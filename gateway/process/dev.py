"""`gateway dev`: its options, their faults, and the configuration that they make."""

from __future__ import annotations

import math
import os
import re
import stat
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from gateway.config import (
    TAIL_CACHE_BYTES,
    ConnectionLimits,
    GatewayConfig,
    GroupLimits,
    TopicDefaults,
)
from ledger.command_line import units
from ledger.command_line.exit_codes import EXIT_CONFIG
from ledger.command_line.program import Command, Flags, OldSpelling, Option, Value, flags_given

INT32_MAX = 2**31 - 1
PORT_MAX = 65_535
_HOST = re.compile(r"[^\s\0,/]+")
LEDGER_PORT = 3181

PORT = Value("port", units.integer)
COUNT = Value("count", units.integer)
FILE = Value("file", units.path)
DURATION = Value("duration", units.duration(-math.inf, math.inf))  # `faults_of` checks ranges
_METADATA = "metadata.sqlite"
# What a directory may hold before its metadata exists: a start that was cut short, the directory of
# `make cluster`, and the directory that a new ext4 volume has.
_EXPECTED = re.compile(r"bookie-[1-3]|metadata\.sqlite[-.]\w+|cluster|lost\+found")
_DEFAULT = GatewayConfig()
# Half of the memory is for requests, and the largest request must fit.
_MEMORY = Value("size", units.size(2 * _DEFAULT.connection.frame_bytes_max, 2**50))
_TAIL_CACHE = Value("size", units.size(0, 2**50))


def _memory_options(tail_cache_bytes: int) -> list[click.Parameter]:
    return [
        Option(
            ["--memory"],
            type=_MEMORY,
            default=units.show_size(_DEFAULT.connection.memory_bytes_max),
            help="Memory for requests, replies and fetch sessions of all clients. --tail-cache and "
            "the program itself need more.",
        ),
        Option(
            ["--tail-cache"],
            type=_TAIL_CACHE,
            default=units.show_size(tail_cache_bytes),
            help="Memory for the newest records of all partitions, for each process.",
        ),
    ]


def common_options(tail_cache_bytes: int = TAIL_CACHE_BYTES) -> list[click.Parameter]:
    """Return the options that `dev` and `serve` have in common, with this default of one."""
    topics, groups = _DEFAULT.topics, _DEFAULT.groups
    return [
        Option(
            ["--port"],
            type=PORT,
            default=_DEFAULT.port,
            help="Kafka port; 0 takes any free port.",
        ),
        Option(["--host"], metavar="HOST", default=_DEFAULT.host, help="Address to listen on."),
        Option(
            ["--node-id"],
            type=Value("id", units.integer),
            default=_DEFAULT.node_id,
            help="Kafka broker id.",
        ),
        Option(
            ["--partitions"],
            type=COUNT,
            default=topics.partitions,
            help="Partitions of a topic that is created without a count.",
        ),
        Option(
            ["--auto-create/--no-auto-create"],
            default=topics.auto_create,
            help="Create a topic when a client names one that does not exist.",
        ),
        Option(
            ["--metrics-port"],
            type=PORT,
            default=_DEFAULT.metrics_port,
            help="Port of the metrics page for Prometheus, on --host; 0 takes any free port.",
        ),
        *_memory_options(tail_cache_bytes),
        Option(
            ["--group-initial-rebalance-delay"],
            type=DURATION,
            default=units.show_time(groups.initial_rebalance_delay_ms / 1000),
            help="How long a new group waits for its first members.",
        ),
        OldSpelling(
            ["--group-initial-rebalance-delay-ms"], of="group_initial_rebalance_delay", unit="ms"
        ),
        *_session_timeouts(),
        Option(
            ["--preview-transactions"],
            is_flag=True,
            hidden=True,  # had an effect in earlier releases, and scripts may still pass it
        ),
    ]


def _session_timeouts() -> list[click.Parameter]:
    """Return the bounds of session timeouts, also in Kafka's spelling, with milliseconds."""
    groups = _DEFAULT.groups
    rows = (
        ("min", "Shortest", groups.session_timeout_ms_min),
        ("max", "Longest", groups.session_timeout_ms_max),
    )
    found: list[click.Parameter] = []
    for bound, word, default_ms in rows:
        flag = f"--group-{bound}-session-timeout"
        found.append(
            Option(
                [flag],
                type=DURATION,
                default=units.show_time(default_ms / 1000),
                help=f"{word} session timeout that a member of a group may request.",
            )
        )
        name = flag.removeprefix("--").replace("-", "_")
        found.append(OldSpelling([f"{flag}-ms"], of=name, unit="ms"))
    return found


def _dev_options() -> list[click.Parameter]:
    return [
        Option(
            ["--data"],
            type=Value("dir", units.path),
            default=_DEFAULT.data,
            help="Directory of all data; made if missing.",
        ),
        Option(
            ["--bookies"],
            type=COUNT,
            default=_DEFAULT.bookies,
            help="Bookies inside this process: 1 or 3.",
        ),
        Option(
            ["--journal-sync"],
            metavar="MODE",
            default=_DEFAULT.journal_sync,
            help="group: records are synced before they are acknowledged; never: they are not.",
        ),
        Option(
            ["--io"],
            metavar="MODE",
            default=_DEFAULT.io,
            help="uring: the journal is written by io_uring; auto: where it works; off: never.",
        ),
        Option(
            ["--advertised-host"],
            metavar="HOST",
            shown="the address that they connected to",
            help="Address that clients connect to, for port mapping and proxies.",
        ),
        Option(
            ["--advertised-port"],
            type=PORT,
            shown="the port that they connected to",
            help="Port that clients connect to.",
        ),
        Option(
            ["--accept-loss"],
            is_flag=True,
            help="Continue with the records that are left after a bookie lost some (damage on its "
            "disk, or a power cut without sync).",
        ),
        Option(
            ["--ledger-port"],
            type=PORT,
            default=LEDGER_PORT,
            shown=f"{LEDGER_PORT}, or any free port if it is taken",
            help="Port on 127.0.0.1 at which tools on this machine read ledgers; 0 takes any free "
            "port.",
        ),
        Option(["--no-ledger-port"], is_flag=True, help="Open no ledger port."),
        Option(
            ["--until-stdin-ends"],
            is_flag=True,
            help="Stop when stdin ends, as a pipe does whose writer was killed.",
        ),
    ]


def run(flags: Flags) -> int:
    """Serve until a signal. Returns the exit code."""
    faults = faults_of(flags)
    if faults:
        return print_faults(faults)
    from gateway.process.run import ConfigFault, run_gateway

    try:
        return run_gateway(config_of(flags))
    except ConfigFault as fault:
        return print_faults(fault.faults)


def _callback(**_: Any) -> int:
    return run(flags_given())


dev = Command(
    "dev",
    params=[*common_options(), *_dev_options()],
    help="Run everything in one process: gateway, storage and metadata.",
    callback=_callback,
)


def faults_of(flags: Flags) -> list[str]:
    """Return all faults of the options, a line for each."""
    checks = (
        (flags.bookies in (1, 3), f"--bookies {flags.bookies}: must be 1 or 3"),
        (
            flags.journal_sync in ("group", "never"),
            f"--journal-sync {flags.journal_sync}: must be group or never",
        ),
        (
            flags.advertised_port is None or 0 < flags.advertised_port <= PORT_MAX,
            f"--advertised-port {flags.advertised_port}: must be between 1 and {PORT_MAX}",
        ),
        (
            0 <= flags.ledger_port <= PORT_MAX,
            f"--ledger-port {flags.ledger_port}: must be between 0 and {PORT_MAX}",
        ),
    )
    faults = [fault for holds, fault in checks if not holds]
    faults += _stdin_faults() if flags.until_stdin_ends else []
    return common_faults(flags) + faults + _io_faults(flags.io) + _data_faults(flags.data)


def _stdin_faults() -> list[str]:
    try:
        mode = os.fstat(0).st_mode
    except OSError:
        mode = 0
    if stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode):
        return []
    return ["--until-stdin-ends: stdin is neither a pipe nor a socket"]


def host_holds(host: str | None) -> bool:
    """Return whether a client could look the host up. None and "" stand for the default."""
    return not host or _HOST.fullmatch(host) is not None


def common_faults(flags: Flags) -> list[str]:
    """Return all faults of the options of `common_options`."""
    topics = TopicDefaults()
    delay_s = flags.group_initial_rebalance_delay
    checks = (
        (
            host_holds(flags.advertised_host),
            f"--advertised-host {flags.advertised_host}: must be a host name or an address",
        ),
        (0 <= flags.port <= PORT_MAX, f"--port {flags.port}: must be between 0 and {PORT_MAX}"),
        (
            flags.metrics_port is None or 0 <= flags.metrics_port <= PORT_MAX,
            f"--metrics-port {flags.metrics_port}: must be between 0 and {PORT_MAX}",
        ),
        (
            0 <= flags.node_id <= INT32_MAX,
            f"--node-id {flags.node_id}: must be between 0 and {INT32_MAX}",
        ),
        (
            1 <= flags.partitions <= topics.partitions_max,
            f"--partitions {flags.partitions}: must be between 1 and {topics.partitions_max}",
        ),
        (
            0 <= delay_s <= INT32_MAX / 1000,
            f"{flags.given('group_initial_rebalance_delay')}: must be between 0ms and "
            f"{units.show_time(INT32_MAX / 1000)}",
        ),
    )
    return [fault for holds, fault in checks if not holds] + _session_faults(flags)


def _session_faults(flags: Flags) -> list[str]:
    shortest_s, longest_s = flags.group_min_session_timeout, flags.group_max_session_timeout
    bounds = (("group_min_session_timeout", shortest_s), ("group_max_session_timeout", longest_s))
    faults = [
        f"{flags.given(name)}: must be between 1ms and {units.show_time(INT32_MAX / 1000)}"
        for name, bound_s in bounds
        if not 0.001 <= bound_s <= INT32_MAX / 1000
    ]
    if not faults and shortest_s > longest_s:
        faults.append(
            f"--group-min-session-timeout {units.show_time(shortest_s)}: must be at most "
            f"--group-max-session-timeout {units.show_time(longest_s)}"
        )
    return faults


def _io_faults(io: str) -> list[str]:
    if io not in ("auto", "uring", "off"):
        return [f"--io {io}: must be auto, uring or off"]
    if io != "uring":
        return []
    from ledger.adapters.posix.uring import why_unavailable

    reason = why_unavailable()
    return [] if reason is None else [f"--io uring: {reason}; pass --io auto"]


def _data_faults(data: Path) -> list[str]:
    try:
        place = data.absolute()
        while not place.exists():
            place = place.parent
        if not place.is_dir():
            return [f"--data {data}: {place} is not a directory"]
    except (OSError, ValueError) as error:
        return [f"--data {data}: {error}"]
    if not os.access(place, os.W_OK | os.X_OK):
        return [f"--data {data}: {place} is not writable"]
    try:
        foreign = _foreign_name(data) if data.exists() else None
    except OSError as error:
        return [f"--data {data}: {error.strerror}"]
    if foreign is not None:
        fault = f"not a gateway's directory: it contains {foreign}; name an empty or a new one"
        return [f"--data {data}: {fault}"]
    return []


def _foreign_name(data: Path) -> str | None:
    """Return a name in `data` that is not a gateway's, or None. A used directory may hold more."""
    names = {each.name for each in data.iterdir()}
    if _METADATA in names or any(data.glob("bookie-[1-3]/VERSION")):
        return None
    return min((name for name in names if not _EXPECTED.fullmatch(name)), default=None)


def config_of(flags: Flags) -> GatewayConfig:
    """Return the configuration that the options make. They must have no faults."""
    return GatewayConfig(
        data=flags.data,
        host=flags.host,
        port=flags.port,
        advertised_host=flags.advertised_host,
        advertised_port=flags.advertised_port,
        node_id=flags.node_id,
        bookies=flags.bookies,
        journal_sync=flags.journal_sync,
        io=flags.io,
        accept_loss=flags.accept_loss,
        ledger_port=None if flags.no_ledger_port else flags.ledger_port,
        any_ledger_port=flags.given("ledger_port") is None,
        metrics_port=flags.metrics_port,
        tail_cache_bytes=flags.tail_cache,
        until_stdin_ends=flags.until_stdin_ends,
        connection=connection_limits(flags),
        groups=group_limits(flags),
        topics=replace(
            TopicDefaults(),
            partitions=flags.partitions,
            auto_create=flags.auto_create,
            replication_factor=flags.bookies,
        ),
    )


def connection_limits(flags: Flags) -> ConnectionLimits:
    """Return the limits of connections that the options make."""
    return replace(ConnectionLimits(), memory_bytes_max=flags.memory)


def group_limits(flags: Flags) -> GroupLimits:
    """Return the limits of groups that the options make."""
    return replace(
        GroupLimits(),
        initial_rebalance_delay_ms=round(flags.group_initial_rebalance_delay * 1000),
        session_timeout_ms_min=round(flags.group_min_session_timeout * 1000),
        session_timeout_ms_max=round(flags.group_max_session_timeout * 1000),
    )


def print_faults(faults: list[str]) -> int:
    """Print each fault as a line on stderr. Returns the exit code."""
    for fault in faults:
        print(f"gateway: {fault}", file=sys.stderr)
    return EXIT_CONFIG
