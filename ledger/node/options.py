"""The settings of `bookie serve` and `bookie audit`, one row for each.

The rows feed flags, variables, files, help and docs/settings.md.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import fields
from typing import Any, Final

import click

from ledger.bookie.config import ENTRY_BYTES_MAX
from ledger.command_line import units
from ledger.command_line.exit_codes import EXIT_CONFIG, EXIT_OK
from ledger.command_line.program import Command, Flags, Option, flags_given
from ledger.command_line.settings import (
    Setting,
    Settings,
    Table,
    file_options,
    options_of,
    output_option,
)
from ledger.command_line.settings_shape import PRINTED
from ledger.command_line.shape import Shape, prints
from ledger.command_line.zookeeper_settings import zookeeper_rows
from ledger.node.config import NodeConfig
from ledger.node.process import print_faults
from ledger.ports.bookies import BookieTransport
from ledger.repair.config import RepairConfig

_TIB: Final = 2**40
_NAMES_OF_SECRETS: Final = (
    "zookeeper_auth",
    "zookeeper_read_auth",
    "zookeeper_ssl_keystore_password",
)
_TIME_S_MAX: Final = 10 * 365 * 86_400.0
_NODE: Final = NodeConfig()
_REPAIR: Final = RepairConfig()


_ROLES_ROW: Final = Setting(
    name="tls-roles",
    kind="MODE",
    parse=units.one_of("required", "off"),
    default=_NODE.tls_roles,
    help="required: certificates need a role; off: any certificate of the CA may do everything.",
)

_HTTP_ROWS: Final = (
    Setting(
        name="http-port",
        kind="PORT",
        parse=units.whole(0, 65_535),
        default=None,
        help="HTTP port of /metrics and /health; 0 takes any free port, without it there is none.",
    ),
    Setting(
        name="http-host",
        kind="HOST",
        parse=units.text,
        default="127.0.0.1",
        help="Address of the HTTP port, which has no password.",
    ),
)

_SERVE_ROWS: Final = (
    Setting(
        name="zookeeper",
        kind="SERVERS",
        parse=units.servers,
        default=_NODE.zookeeper,
        help="ZooKeeper servers: host:port,host:port, with an optional /chroot at the end.",
    ),
    *zookeeper_rows(kafka=False),
    Setting(
        name="data",
        kind="DIR",
        parse=units.path,
        default=_NODE.data,
        help="Directory of all data of this bookie; made if missing.",
    ),
    Setting(
        name="host",
        kind="HOST",
        parse=units.text,
        default=_NODE.host,
        help="Address to listen on.",
    ),
    Setting(
        name="port",
        kind="PORT",
        parse=units.whole(0, 65_535),
        default=_NODE.port,
        help="TCP port; 0 takes any free port.",
    ),
    Setting(
        name="grpc-port",
        kind="PORT",
        parse=units.whole(0, 65_535),
        default=_NODE.grpc_port,
        help="gRPC port; 0 takes any free port.",
    ),
    Setting(
        name="advertised-host",
        kind="HOST",
        parse=units.text,
        default=_NODE.advertised_host,
        help="Address at which clients reach it, if not --host.",
    ),
    Setting(
        name="rack",
        kind="RACK",
        parse=units.rack,
        default=_NODE.rack,
        help="Its rack; copies of an entry go to different racks.",
    ),
    Setting(
        name="name",
        kind="NAME",
        parse=units.name,
        default=_NODE.name,
        help="First part of its id; the rest comes from its directory.",
    ),
    Setting(
        name="journal-sync",
        kind="MODE",
        parse=units.one_of("group", "never"),
        default=_NODE.journal_sync,
        help="group: entries are synced before they are acknowledged; never: they are not.",
    ),
    Setting(
        name="io",
        kind="MODE",
        parse=units.one_of("auto", "uring", "off"),
        default=_NODE.io,
        help="uring: the journal is written by io_uring; auto: where it works; off: never.",
    ),
    Setting(
        name="disk-free-min",
        kind="SIZE",
        parse=units.size(0, 1024 * _TIB),
        default=_NODE.disk_free_min,
        help="Becomes read-only with less free disk space.",
    ),
    Setting(
        name="disk-used-max",
        kind="PERCENT",
        parse=units.percent(1, 100),
        default=_NODE.disk_used_max,
        help="Becomes read-only when more of the disk is used.",
    ),
    Setting(
        name="disk-used-resume",
        kind="PERCENT",
        parse=units.percent(1, 99),
        default=_NODE.disk_used_resume,
        help="Becomes writable again when less of the disk is used.",
    ),
    Setting(
        name="gc-interval",
        kind="DURATION",
        parse=units.duration(0.1, 86_400),
        default=_NODE.gc_interval,
        help="Time between two searches for deleted ledgers.",
    ),
    Setting(
        name="rewrite-share",
        kind="PERCENT",
        parse=units.percent(0, 90),
        default=_NODE.rewrite_share,
        help="Rewrites a log file of which a smaller share is live; 0 rewrites none.",
    ),
    Setting(
        name="entry-max",
        kind="SIZE",
        parse=units.size(1024, ENTRY_BYTES_MAX),
        default=_NODE.entry_max,
        help="Largest entry that it stores.",
    ),
    Setting(
        name="queue-max",
        kind="SIZE",
        parse=units.size(1024, _TIB),
        default=_NODE.queue_max,
        help="Bytes that may wait for the disk before adds are refused.",
    ),
    Setting(
        name="answers-max",
        kind="SIZE",
        parse=units.size(1024, _TIB),
        default=_NODE.answers_max,
        help="Bytes of unsent answers, of all clients, before reads wait or are refused.",
    ),
    Setting(
        name="write-cache",
        kind="SIZE",
        parse=units.size(0, _TIB),
        default=_NODE.write_cache,
        help="Bytes of the newest entries that stay in memory for readers; 0 keeps none.",
    ),
    Setting(
        name="read-ahead",
        kind="SIZE",
        parse=units.size(0, _TIB),
        default=_NODE.read_ahead,
        help="Bytes of the log that are read from disk ahead of a ledger's reader; 0 reads "
        "nothing.",
    ),
    Setting(
        name="tls-cert",
        kind="FILE",
        parse=units.path,
        default=_NODE.tls_cert,
        help="PEM file with its certificate; needs --tls-key and --tls-ca.",
    ),
    Setting(
        name="tls-key",
        kind="FILE",
        parse=units.path,
        default=_NODE.tls_key,
        help="PEM file with its private key; only its owner may read it.",
    ),
    Setting(
        name="tls-ca",
        kind="FILE",
        parse=units.path,
        default=_NODE.tls_ca,
        help="PEM file with the CA certificates that sign peer certificates.",
    ),
    _ROLES_ROW,
    Setting(
        name="allow-insecure",
        default=_NODE.allow_insecure,
        help="Accept connections from other machines without TLS.",
    ),
    Setting(
        name="session",
        kind="DURATION",
        parse=units.duration(0.2, 300),
        default=_NODE.session,
        help="ZooKeeper session timeout: how long it stays registered after it died.",
    ),
    Setting(
        name="zookeeper-wait",
        kind="DURATION",
        parse=units.duration(0.1, 86_400),
        default=_NODE.zookeeper_wait,
        help="How long to wait for ZooKeeper at the start.",
    ),
    Setting(
        name="audit",
        default=_NODE.audit,
        help="Also find and re-replicate under-replicated ledgers, as `bookie audit` does.",
    ),
    Setting(
        name="audit-delay",
        kind="DURATION",
        parse=units.duration(0, _TIME_S_MAX),
        default=_NODE.audit_delay,
        help="With --audit: how long a bookie may be absent before its ledgers are re-replicated.",
    ),
    Setting(
        name="bookie-transport",
        kind="TRANSPORT",
        parse=units.one_of(*BookieTransport),
        default=BookieTransport.TCP.value,
        environment="BOOKIE_TRANSPORT",
        help="With --audit: how to reach other bookies: tcp or grpc.",
    ),
    Setting(
        name="drain",
        kind="DURATION",
        parse=units.duration(0, 600),
        default=_NODE.drain,
        help="Time for calls under way to finish when it stops.",
    ),
    *_HTTP_ROWS,
)

_AUDIT_ROWS: Final = (
    Setting(
        name="zookeeper",
        kind="SERVERS",
        parse=units.servers,
        default=_NODE.zookeeper,
        help="ZooKeeper servers: host:port,host:port, with an optional /chroot at the end.",
    ),
    *zookeeper_rows(kafka=False),
    Setting(
        name="delay",
        kind="DURATION",
        parse=units.duration(0.0, _TIME_S_MAX),
        default=_REPAIR.delay_s,
        environment="BOOKIE_AUDIT_DELAY",
        old=("--delay-s", "s"),
        help="How long a bookie may be absent before its ledgers are re-replicated.",
    ),
    Setting(
        name="grace",
        kind="DURATION",
        parse=units.duration(0.0, _TIME_S_MAX),
        default=_REPAIR.grace_s,
        environment="BOOKIE_AUDIT_GRACE",
        old=("--grace-s", "s"),
        help="Time for a writer to replace a failed bookie before its ledger is fenced.",
    ),
    Setting(
        name="interval",
        kind="DURATION",
        parse=units.duration(0.1, _TIME_S_MAX),
        default=_REPAIR.interval_s,
        environment="BOOKIE_AUDIT_INTERVAL",
        old=("--interval-s", "s"),
        help="Time between two audits of the metadata of all ledgers.",
    ),
    Setting(
        name="full-check-interval",
        kind="DURATION",
        parse=units.duration(0.1, _TIME_S_MAX),
        default=_REPAIR.full_check_s,
        environment="BOOKIE_AUDIT_FULL_CHECK_INTERVAL",
        old=("--full-check-s", "s"),
        help="Time between two checks of the entries that each bookie holds.",
    ),
    Setting(
        name="ledgers-at-once",
        kind="COUNT",
        parse=units.whole(1, 1000),
        default=_REPAIR.ledgers_at_once,
        environment="BOOKIE_AUDIT_LEDGERS_AT_ONCE",
        help="Ledgers that this process re-replicates at a time.",
    ),
    Setting(
        name="copy-rate",
        kind="SIZE",
        parse=units.rate(0, _TIB),
        default=_REPAIR.copy_bytes_per_s_max,
        environment="BOOKIE_AUDIT_COPY_RATE",
        old=("--bytes-per-s", ""),
        help="Bytes per second that this process copies at most; 0: no limit.",
    ),
    Setting(
        name="session",
        kind="DURATION",
        parse=units.duration(0.2, 300),
        default=10.0,
        help="ZooKeeper session timeout: how long its locks last after it died.",
    ),
    Setting(
        name="tls-cert",
        kind="FILE",
        parse=units.path,
        help="PEM file with its certificate; needs --tls-key and --tls-ca.",
    ),
    Setting(
        name="tls-key",
        kind="FILE",
        parse=units.path,
        help="PEM file with its private key; only its owner may read it.",
    ),
    Setting(
        name="tls-ca",
        kind="FILE",
        parse=units.path,
        help="PEM file with the CA certificates that sign bookie certificates.",
    ),
    _ROLES_ROW,
    Setting(
        name="bookie-transport",
        kind="TRANSPORT",
        parse=units.one_of(*BookieTransport),
        default=BookieTransport.TCP.value,
        environment="BOOKIE_TRANSPORT",
        help="How to reach bookies: tcp or grpc.",
    ),
    *_HTTP_ROWS,
)

OPTIONS: Final = Table("BOOKIE", _SERVE_ROWS)
"""Settings of `bookie serve`."""

AUDIT_OPTIONS: Final = Table("BOOKIE", _AUDIT_ROWS, one_start=("once",))
"""Settings of `bookie audit`. Those that `bookie serve` has too have the same variables."""


def options_command(
    name: str,
    description: str,
    table: Table,
    run: Callable[[Flags], int],
    *others: Option,
    shapes: Sequence[Shape] = (),
) -> Command:
    """Return the command of these settings, which are text until `Settings` parses them.

    `shapes` are those of what it prints as JSON.
    """

    @prints(*shapes, PRINTED)
    def callback(**_: Any) -> int:
        return run(flags_given())

    parameters: list[click.Parameter] = [
        *options_of(table),
        *file_options(table.prefix),
        *others,
    ]
    return Command(name, params=parameters, help=description, callback=callback)


def serve_command(name: str, description: str, run: Callable[[Flags], int]) -> Command:
    """Return a command with the options of `bookie serve`."""
    return options_command(name, description, OPTIONS, run, output_option())


class NodeSettings(Settings):
    """The settings of `bookie serve`."""

    def __init__(self, flags: Flags) -> None:
        super().__init__(flags, OPTIONS)

    def config(self) -> NodeConfig:
        """Return the configuration. There must be no faults."""
        assert not self.faults
        values = {row.field: self[row.name] for row in OPTIONS}
        for name in _NAMES_OF_SECRETS:
            values[name] = values[name] or ""
        assert values.keys() == {field.name for field in fields(NodeConfig)}
        return NodeConfig(**values)


def answered(settings: Settings, form: str) -> int | None:
    """Print the warnings, and the settings if `--print-config` asks for them.

    `form` is table, json or toml. Returns the exit code then, and None if the start goes on.
    """
    print_faults(
        (f"warning: {each}" for each in settings.warnings),
        code="WARNING",
        as_json=form == "json",
    )
    if not settings.flags.print_config:
        return None
    if settings.faults:
        print_faults(settings.faults, as_json=form == "json")
        return EXIT_CONFIG
    from ledger.command_line.output import emit
    from ledger.command_line.settings_report import report

    emit(report(settings, form))
    return EXIT_OK
