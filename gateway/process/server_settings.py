"""The settings of `gateway dev` and `gateway serve`, one row for each.

The rows feed flags, variables, files, help and docs/settings.md.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final, NamedTuple

from gateway.config import (
    CLUSTER_TAIL_CACHE_BYTES,
    TAIL_CACHE_BYTES,
    GatewayConfig,
)
from gateway.process.authorizer_settings import authorizer_rows
from gateway.process.limit_settings import limit_rows
from gateway.process.listener_settings import listener_row
from gateway.process.quota_settings import quota_rows
from gateway.process.security_settings import security_rows
from ledger.command_line import units
from ledger.command_line.settings import Foreign, KafkaKey, Setting, Settings, Table
from ledger.core.bookie_health import SlowDetection
from ledger.ports.bookies import BookieTransport

PORT_MAX: Final = 65_535
LEDGER_PORT: Final = 3181
PAGE_PORT: Final = 9080
REPLICATION_FACTOR: Final = 3
WORKERS_MAX: Final = 64
_PREFIX: Final = "GATEWAY"
_HOST: Final = re.compile(r"[^\s\0,/]+")
_DEFAULT: Final = GatewayConfig()
# Half of the memory is for requests, and the largest request must fit.
_MEMORY_MIN: Final = 2 * _DEFAULT.connection.frame_bytes_max
_PORT: Final = units.whole(0, PORT_MAX)
_OTHERS_PORT: Final = units.whole(1, PORT_MAX)  # a client cannot connect to port 0
_LISTENER_NAME: Final = re.compile(r"[A-Z0-9_]{1,64}")
# `NAME=HOST:PORT`, or `NAME://HOST:PORT` as in Kafka.
_ADDRESS: Final = re.compile(
    r"([^=:/]*)(=|://)(\[[0-9A-Fa-f:.]*\]|[^\s\[\]:/,]*):(\d{1,5})", re.ASCII
)
_MAPPED: Final = re.compile(r"([^\s,:]+):([A-Za-z_]+)", re.ASCII)
_ALL_ZERO: Final = re.compile(r"[0.:]*")  # the addresses that stand for all of a machine
_HOST_CHARACTERS_MAX: Final = 255
PROTOCOLS: Final = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
"""Kafka's protocols of listeners."""

SECURE: Final = "SASL_SSL"
"""The protocol of all listeners of `gateway dev --secure`."""


class NamedAddress(NamedTuple):
    """A value of `--listener` and `--advertise`."""

    name: str
    host: str
    port: int

    @property
    def is_anywhere(self) -> bool:
        """True if the host stands for all addresses of the machine."""
        return _ALL_ZERO.fullmatch(self.host) is not None

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.name}={host}:{self.port}"


class NamedProtocol(NamedTuple):
    """A value of `--listener-security-protocol-map`."""

    name: str
    protocol: str

    def __str__(self) -> str:
        return f"{self.name}:{self.protocol}"


def _named_address(value: object, port_min: int) -> NamedAddress:
    match = _ADDRESS.fullmatch(value) if isinstance(value, str) else None
    if match is None:
        raise ValueError("must be NAME=HOST:PORT, such as CLIENTS=localhost:9092")
    name = _listener_name(match[1].upper() if match[2] == "://" else match[1])
    if len(match[3]) > _HOST_CHARACTERS_MAX:
        raise ValueError(f"its host must have at most {_HOST_CHARACTERS_MAX} characters")
    if not port_min <= int(match[4]) <= PORT_MAX:
        raise ValueError(f"its port must be between {port_min} and {PORT_MAX}")
    return NamedAddress(name, match[3].strip("[]"), int(match[4]))


def _listener(value: object) -> NamedAddress:
    """Parse an address to listen on. Without a host it is every address, as in Kafka."""
    found = _named_address(value, 0)
    return found if found.host else found._replace(host="0.0.0.0")


def _advertise(value: object) -> NamedAddress:
    found = _named_address(value, 1)
    if found.is_anywhere:
        shown = found.host or "an empty host"
        raise ValueError(f"clients cannot connect to {shown}; name a host that they can")
    return found


def _listener_name(value: object) -> str:
    if not isinstance(value, str) or not _LISTENER_NAME.fullmatch(value):
        raise ValueError("the name must have 1 to 64 characters: A to Z, digits and _")
    return value


def _named_protocol(value: object) -> NamedProtocol:
    match = _MAPPED.fullmatch(value) if isinstance(value, str) else None
    protocol = match[2].upper() if match is not None else ""
    if match is None or protocol not in PROTOCOLS:
        raise ValueError(f"must be NAME:PROTOCOL, and the protocol {units.listed(PROTOCOLS)}")
    return NamedProtocol(match[1].upper(), protocol)


def _host(value: object) -> str:
    if not isinstance(value, str) or not _HOST.fullmatch(value):
        raise ValueError("must be a host name or an address")
    return value


def _host_or_none(value: object) -> str:
    return "" if value == "" else _host(value)


def _text_or_none(value: object) -> str:
    return "" if value == "" else units.text(value)


def _names(value: object) -> str:
    if not isinstance(value, str) or not value:
        raise ValueError("must be host names, separated by commas")
    for name in value.split(","):
        _host(name)
        if ":" in name and not (name.startswith("[") and name.endswith("]")):
            raise ValueError("must be host names without ports; IPv6 addresses have brackets")
    return value


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
        *_listeners(),
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


def _page(port: int | None) -> list[Setting]:
    page = _DEFAULT.http
    shown = None if port is None else f"{port}, or no page if it is taken"
    files = (
        ("http-password-file", "File with names and hashes, made by `gateway http-password`."),
        ("http-cert", "PEM file with the certificate that the web page shows to browsers."),
        ("http-key", "PEM file with its private key; only its owner may read it."),
    )
    switches = (
        ("http-write", page.write, "Let the page change topics, groups and records."),
        ("http-hide-values", page.hide_values, "Show no keys, values and headers of records."),
        ("http-open-metrics", page.open_metrics, "Serve /metrics without a password."),
        (
            "allow-insecure",
            page.allow_insecure,
            "Serve other machines without TLS and authentication, and the page without passwords.",
        ),
    )
    return [
        Setting(
            name="http-port",
            kind="PORT",
            parse=_PORT,
            default=port,
            shown=shown,
            off="Serve no web page.",
            help="Port of the web page; 0 takes any free port.",
        ),
        Setting(
            name="http-host",
            kind="HOST",
            parse=_host,
            default=page.host,
            help="Address of the web page. One that other machines reach needs --http-cert, "
            "--http-key and --http-password-file, or --allow-insecure.",
        ),
        Setting(
            name="http-name",
            kind="NAMES",
            parse=_names,
            help="Host names of the web page, separated by commas, in addition to localhost.",
        ),
        *(Setting(name=name, default=default, help=text) for name, default, text in switches),
        *(Setting(name=name, kind="FILE", parse=units.path, help=text) for name, text in files),
    ]


PAGE_NAMES: Final = tuple(row.name for row in _page(None) if row.name != "http-port")
"""The settings of the web page besides its port."""


def _listeners() -> list[Setting]:
    """Return the rows that name listeners, in place of `--host`, `--port` and `--advertised-*`."""
    return [
        Setting(
            name="listener",
            kind="NAME=HOST:PORT",
            parse=_listener,
            many=True,
            default=(),
            shown="PLAINTEXT at --host and --port",
            kafka=(KafkaKey("listeners"),),
            help="Address to listen on, with a name; repeatable. Clients get the addresses that "
            "other gateways advertise for the same name.",
        ),
        Setting(
            name="advertise",
            kind="NAME=HOST:PORT",
            parse=_advertise,
            many=True,
            default=(),
            shown="the address of the listener",
            kafka=(KafkaKey("advertised.listeners"),),
            help="Address that clients of a listener connect to; repeatable.",
        ),
        Setting(
            name="listener-security-protocol-map",
            kind="NAME:PROTOCOL",
            parse=_named_protocol,
            many=True,
            default=(),
            shown="PLAINTEXT, or the protocol that a listener is named after",
            kafka=(KafkaKey("listener.security.protocol.map"),),
            help="Protocol of a listener: PLAINTEXT, SSL, SASL_PLAINTEXT or SASL_SSL; repeatable.",
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


def _common(tail_cache_bytes: int, page_port: int | None) -> list[Setting]:
    """Return the rows that `dev` and `serve` have in common, with these defaults of two."""
    return [
        *_listening(),
        *security_rows(),
        *authorizer_rows(),
        *quota_rows(),
        *_page(page_port),
        *_memory(tail_cache_bytes),
        *limit_rows(),
    ]


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
            name="secure",
            default=False,
            help="Serve TLS with SASL alone, and let ACLs decide. The first start makes "
            "certificates and the user admin, in secure/ below --data.",
        ),
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
    from ledger.command_line.zookeeper_settings import zookeeper_rows  # only of `gateway serve`

    return [
        Setting(
            name="zookeeper",
            kind="SERVERS",
            parse=_zookeeper,
            kafka=(KafkaKey("zookeeper.connect"),),
            help="ZooKeeper servers: host:port,host:port, with an optional /chroot at the end. "
            "Required.",
        ),
        *zookeeper_rows(),
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
        Setting(
            name="inter-broker-listener-name",
            kind="NAME",
            parse=_listener_name,
            shown="PLAINTEXT, or the first listener",
            kafka=(KafkaKey("inter.broker.listener.name"),),
            help="Listener whose advertised address the other gateways connect to.",
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
        Setting(
            name="bookie-tls-roles",
            kind="MODE",
            parse=units.one_of("required", "off"),
            default="required",
            help="required: certificates of bookies need a role; off: they do not, yet.",
        ),
    ]


def _foreign(key: str, value: str, file: Mapping[str, str]) -> Foreign | None:
    from gateway.process.kafka_keys import answer

    return answer(key, value, file)


def is_secure(settings: Settings) -> bool:
    """Return whether `gateway dev --secure` makes the security of this gateway."""
    return "secure" in settings.table.rows and bool(settings["secure"])


def dev_table() -> Table:
    """Return the settings of `gateway dev`."""
    return Table(
        _PREFIX,
        [*_common(TAIL_CACHE_BYTES, PAGE_PORT), *_storing(), *_dev_addresses()],
        one_start=("accept-loss", "until-stdin-ends"),
        foreign=_foreign,
        prefixed=listener_row,
    )


def serve_table() -> Table:
    """Return the settings of `gateway serve`."""
    return Table(
        _PREFIX,
        [
            *_zookeepers(),
            *_common(CLUSTER_TAIL_CACHE_BYTES, None),
            *_serve_addresses(),
            *_cluster(),
            *_reaching_bookies(),
        ],
        foreign=_foreign,
        prefixed=listener_row,
    )
