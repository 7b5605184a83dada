"""The settings of `gateway dev` and `gateway serve`, one row for each.

The rows feed flags, variables, files, help and docs/settings.md.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from gateway.config import (
    CLUSTER_TAIL_CACHE_BYTES,
    TAIL_CACHE_BYTES,
    GatewayConfig,
)
from ledger.command_line import units
from ledger.command_line.settings import Foreign, KafkaKey, Setting, Table
from ledger.core.bookie_health import SlowDetection
from ledger.ports.bookies import BookieTransport

PORT_MAX: Final = 65_535
LEDGER_PORT: Final = 3181
REPLICATION_FACTOR: Final = 3
WORKERS_MAX: Final = 64
_PREFIX: Final = "GATEWAY"
_HOST: Final = re.compile(r"[^\s\0,/]+")
_DEFAULT: Final = GatewayConfig()
_TIMEOUT_S_MAX: Final = units.INT32_MAX / 1000
# Half of the memory is for requests, and the largest request must fit.
_MEMORY_MIN: Final = 2 * _DEFAULT.connection.frame_bytes_max
_PORT: Final = units.whole(0, PORT_MAX)
_OTHERS_PORT: Final = units.whole(1, PORT_MAX)  # a client cannot connect to port 0


def _host(value: object) -> str:
    if not isinstance(value, str) or not _HOST.fullmatch(value):
        raise ValueError("must be a host name or an address")
    return value


def _host_or_none(value: object) -> str:
    return "" if value == "" else _host(value)


def _text_or_none(value: object) -> str:
    return "" if value == "" else units.text(value)


def _bookies(value: object) -> int:
    if isinstance(value, bool) or str(value) not in ("1", "3"):
        raise ValueError("must be 1 or 3")
    return int(str(value))


def _zookeeper(value: object) -> str:
    if not isinstance(value, str) or not _are_servers(value):
        raise ValueError("must be host:port,... or host:port,.../chroot")
    return value


def _are_servers(zookeeper: str) -> bool:
    servers, slash, path = zookeeper.partition("/")
    if slash and {"", ".", ".."}.intersection(path.split("/")):
        return False
    for server in servers.split(","):
        host, _, port = server.rpartition(":")
        if not host or not (port.isascii() and port.isdecimal()) or not 0 < int(port) <= PORT_MAX:
            return False
    return True


def _listening() -> list[Setting]:
    topics = _DEFAULT.topics
    return [
        Setting(
            name="port",
            kind="PORT",
            parse=_PORT,
            default=_DEFAULT.port,
            help="Kafka port; 0 takes any free port.",
        ),
        Setting(
            name="host",
            kind="HOST",
            parse=_host,
            default=_DEFAULT.host,
            help="Address to listen on.",
        ),
        Setting(
            name="node-id",
            kind="ID",
            parse=units.whole(0, units.INT32_MAX),
            default=_DEFAULT.node_id,
            kafka=(KafkaKey("node.id"), KafkaKey("broker.id")),
            help="Kafka broker id.",
        ),
        Setting(
            name="partitions",
            kind="COUNT",
            parse=units.whole(1, topics.partitions_max),
            default=topics.partitions,
            kafka=(KafkaKey("num.partitions"),),
            help="Partitions of a topic that is created without a count.",
        ),
        Setting(
            name="auto-create",
            default=topics.auto_create,
            kafka=(KafkaKey("auto.create.topics.enable"),),
            help="Create a topic when a client names one that does not exist.",
        ),
        Setting(
            name="metrics-port",
            kind="PORT",
            parse=_PORT,
            default=_DEFAULT.metrics_port,
            help="Port of the metrics page for Prometheus, on --host; 0 takes any free port.",
        ),
    ]


def _memory(tail_cache_bytes: int) -> list[Setting]:
    return [
        Setting(
            name="memory",
            kind="SIZE",
            parse=units.size(_MEMORY_MIN, 2**50),
            default=_DEFAULT.connection.memory_bytes_max,
            help="Memory for requests, replies and fetch sessions of all clients. --tail-cache and "
            "the program itself need more.",
        ),
        Setting(
            name="tail-cache",
            kind="SIZE",
            parse=units.size(0, 2**50),
            default=tail_cache_bytes,
            help="Memory for the newest records of all partitions, for each process.",
        ),
    ]


def _groups() -> list[Setting]:
    groups = _DEFAULT.groups
    rows = (
        (
            "group-initial-rebalance-delay",
            0.0,
            groups.initial_rebalance_delay_ms,
            "How long a new group waits for its first members.",
        ),
        (
            "group-min-session-timeout",
            0.001,
            groups.session_timeout_ms_min,
            "Shortest session timeout that a member of a group may request.",
        ),
        (
            "group-max-session-timeout",
            0.001,
            groups.session_timeout_ms_max,
            "Longest session timeout that a member of a group may request.",
        ),
    )
    return [
        Setting(
            name=name,
            kind="DURATION",
            parse=units.duration(least_s, _TIMEOUT_S_MAX),
            default=default_ms / 1000,
            kafka=(KafkaKey(f"{name.replace('-', '.')}.ms", unit="ms"),),
            old=(f"--{name}-ms", "ms"),
            help=text,
        )
        for name, least_s, default_ms, text in rows
    ]


def _common(tail_cache_bytes: int) -> list[Setting]:
    """Return the rows that `dev` and `serve` have in common, with this default of one."""
    return [*_listening(), *_memory(tail_cache_bytes), *_groups()]


def _storing() -> list[Setting]:
    return [
        Setting(
            name="data",
            kind="DIR",
            parse=units.path,
            default=_DEFAULT.data,
            kafka=(KafkaKey("log.dirs", is_list=True), KafkaKey("log.dir")),
            help="Directory of all data; made if missing.",
        ),
        Setting(
            name="bookies",
            kind="COUNT",
            parse=_bookies,
            default=_DEFAULT.bookies,
            help="Bookies inside this process: 1 or 3.",
        ),
        Setting(
            name="journal-sync",
            kind="MODE",
            parse=units.one_of("group", "never"),
            default=_DEFAULT.journal_sync,
            help="group: records are synced before they are acknowledged; never: they are not.",
        ),
        Setting(
            name="io",
            kind="MODE",
            parse=units.one_of("auto", "uring", "off"),
            default=_DEFAULT.io,
            help="uring: the journal is written by io_uring; auto: where it works; off: never.",
        ),
    ]


def _dev_addresses() -> list[Setting]:
    return [
        Setting(
            name="advertised-host",
            kind="HOST",
            parse=_host_or_none,
            shown="the address that they connected to",
            help="Address that clients connect to, for port mapping and proxies.",
        ),
        Setting(
            name="advertised-port",
            kind="PORT",
            parse=_OTHERS_PORT,
            shown="the port that they connected to",
            help="Port that clients connect to.",
        ),
        Setting(
            name="ledger-port",
            kind="PORT",
            parse=_PORT,
            default=LEDGER_PORT,
            shown=f"{LEDGER_PORT}, or any free port if it is taken",
            off="Open no ledger port.",
            help="Port on 127.0.0.1 at which tools on this machine read ledgers; 0 takes any free "
            "port.",
        ),
    ]


def _zookeepers() -> list[Setting]:
    return [
        Setting(
            name="zookeeper",
            kind="SERVERS",
            parse=_zookeeper,
            kafka=(KafkaKey("zookeeper.connect"),),
            help="ZooKeeper servers: host:port,host:port, with an optional /chroot at the end. "
            "Required.",
        ),
        Setting(
            name="session",
            kind="DURATION",
            parse=units.duration(0.2, 600.0),
            default=_DEFAULT.session_ms / 1000,
            kafka=(KafkaKey("zookeeper.session.timeout.ms", unit="ms"),),
            old=("--session-ms", "ms"),
            help="ZooKeeper session timeout: how long it keeps its partitions after it died.",
        ),
    ]


def _serve_addresses() -> list[Setting]:
    return [
        Setting(
            name="advertised-host",
            kind="HOST",
            parse=_host_or_none,
            help="Address that clients connect to, if not --host.",
        ),
        Setting(
            name="peer-host",
            kind="HOST",
            parse=_host_or_none,
            shown="the address of clients",
            help="Address at which the other gateways reach this one.",
        ),
        Setting(
            name="peer-port",
            kind="PORT",
            parse=_OTHERS_PORT,
            shown="--port",
            help="Port at which the other gateways reach this one.",
        ),
    ]


def _cluster() -> list[Setting]:
    return [
        Setting(
            name="replication-factor",
            kind="COUNT",
            parse=units.whole(1, 100),
            default=REPLICATION_FACTOR,
            kafka=(KafkaKey("default.replication.factor"),),
            help="Copies of a topic that is created without a number.",
        ),
        Setting(
            name="rack",
            kind="RACK",
            parse=_text_or_none,
            default=_DEFAULT.rack,
            kafka=(KafkaKey("broker.rack"),),
            help="Rack of this gateway: it reads from bookies of this rack first, and consumers of "
            "this rack read here.",
        ),
        Setting(
            name="reader-slow-shards-detection",
            kind="MODE",
            parse=units.one_of(*(mode.value for mode in SlowDetection)),
            default=_DEFAULT.reader_slow_shards_detection,
            help="enabled: read from a slow bookie only if no other has an entry; observe-only: "
            "report it; disabled: do not compare bookies.",
        ),
        Setting(
            name="workers",
            kind="COUNT",
            parse=units.whole(1, WORKERS_MAX),
            default=_DEFAULT.workers,
            help="Processes, each a broker; node id and ports of each are one above the last.",
        ),
        Setting(
            name="log-segment-based-subscriptions-store-enabled",
            shown="as the cluster was laid out: enabled in a new one",
            help="Keep committed offsets in log segments. In an older cluster, enable it only when "
            "every gateway can read them.",
        ),
    ]


def _reaching_bookies() -> list[Setting]:
    files = (
        ("cert", "PEM file with the certificate that it shows to bookies."),
        ("key", "PEM file with its private key; only its owner may read it."),
        ("ca", "PEM file with the CA certificates that sign bookie certificates."),
    )
    return [
        Setting(
            name="bookie-transport",
            kind="TRANSPORT",
            parse=units.one_of(*(transport.value for transport in BookieTransport)),
            default=_DEFAULT.bookie_transport,
            help="How to reach bookies: tcp or grpc. A bookie without a TCP endpoint is reached by "
            "gRPC.",
        ),
        *(
            Setting(name=f"bookie-tls-{name}", kind="FILE", parse=units.path, help=text)
            for name, text in files
        ),
    ]


def _foreign(key: str, value: str, file: Mapping[str, str]) -> Foreign | None:
    from gateway.process.kafka_keys import answer

    return answer(key, value, file)


def dev_table() -> Table:
    """Return the settings of `gateway dev`."""
    return Table(
        _PREFIX,
        [*_common(TAIL_CACHE_BYTES), *_storing(), *_dev_addresses()],
        one_start=("accept-loss", "until-stdin-ends"),
        foreign=_foreign,
    )


def serve_table() -> Table:
    """Return the settings of `gateway serve`."""
    return Table(
        _PREFIX,
        [
            *_zookeepers(),
            *_common(CLUSTER_TAIL_CACHE_BYTES),
            *_serve_addresses(),
            *_cluster(),
            *_reaching_bookies(),
        ],
        foreign=_foreign,
    )
