"""`gateway dev`: its options, their faults, and the configuration that they make."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from gateway.config import (
    PLAINTEXT,
    GatewayConfig,
    HttpConfig,
    Listener,
    TopicDefaults,
)
from gateway.process.authorizer_settings import authorization_of
from gateway.process.limit_settings import (
    connection_limits,
    group_faults,
    group_limits,
    transaction_limits,
)
from gateway.process.listener_settings import listener_sasl, listener_tls
from gateway.process.quota_settings import quota_config
from gateway.process.security_settings import sasl_config, tls_config
from gateway.process.server_settings import PAGE_NAMES, SECURE, dev_table, is_secure
from ledger.command_line import units
from ledger.command_line.exit_codes import EXIT_CONFIG, EXIT_OK
from ledger.command_line.failure import print_failure
from ledger.command_line.program import Command, Flags, Option, flags_given
from ledger.command_line.settings import (
    Settings,
    Table,
    file_options,
    options_of,
    output_option,
)
from ledger.command_line.settings_shape import PRINTED
from ledger.command_line.shape import prints

if TYPE_CHECKING:
    from gateway.process.run import Hangup

_METADATA = "metadata.sqlite"
_SECURE = "secure"  # below the data directory: what `--secure` makes
# What a directory may hold before its metadata exists: a start that was cut short, the directory of
# `make cluster`, and the directory that a new ext4 volume has.
_EXPECTED = re.compile(r"bookie-[1-3]|metadata\.sqlite[-.]\w+|cluster|secure(\.\w+)?|lost\+found")
TABLE = dev_table()


def server_options(table: Table) -> list[click.Parameter]:
    """Return the options of `dev` and of `serve`: those of its settings, and of their file."""
    return [
        *options_of(table),
        Option(
            ["--preview-transactions"],
            is_flag=True,
            hidden=True,  # had an effect in earlier releases, and scripts may still pass it
        ),
        *file_options(table.prefix),
        output_option(),
    ]


def _one_start_options() -> list[click.Parameter]:
    return [
        Option(
            ["--accept-loss"],
            is_flag=True,
            help="Continue with the records that are left after a bookie lost some (damage on its "
            "disk, or a power cut without sync).",
        ),
        Option(
            ["--until-stdin-ends"],
            is_flag=True,
            help="Stop when stdin ends, as a pipe does whose writer was killed.",
        ),
    ]


def settings_of(flags: Flags) -> Settings:
    """Return the settings from these flags, the environment and the file."""
    return Settings(flags, TABLE)


def run(flags: Flags) -> int:
    """Serve until a signal. Returns the exit code."""
    settings = settings_of(flags)
    code = answered(settings)
    if code is not None:
        return code
    faults = faults_of(settings)
    if faults:
        return print_faults(faults, flags)
    from gateway.process.run import ConfigFault, run_gateway

    try:
        config = secured(settings, config_of(settings))
        return run_gateway(config, hangup(settings, faults_of, config_of, config))
    except ConfigFault as fault:
        return print_faults(list(map(settings.placed, fault.faults)), flags)


def hangup(
    settings: Settings,
    faults_of: Callable[[Settings], list[str]],
    config_of: Callable[[Settings], GatewayConfig],
    config: GatewayConfig,
) -> Hangup:
    """Return what a SIGHUP does: read the settings again, and apply what may change."""
    held = settings  # replaced at each SIGHUP

    def hung_up(apply: Callable[[GatewayConfig], None]) -> None:
        nonlocal held
        from gateway.process.reload import reload

        def apply_settings(after: Settings) -> None:
            made = config_of(after)
            if config.secure is not None:  # `--secure` makes its own keys and super user
                rules = made.authorization
                users = (*config.authorization.super_users[:1], *rules.super_users)
                rules = replace(config.authorization, super_users=users)
                rules = replace(rules, allow_everyone=made.authorization.allow_everyone)
                made = replace(config, authorization=rules)
            apply(made)

        held = reload(held, faults_of, apply_settings)

    return hung_up


def answered(settings: Settings) -> int | None:
    """Print the warnings, and the settings if `--print-config` asks for them.

    Returns the exit code then, and None if the start goes on.
    """
    flags = settings.flags
    is_worker = getattr(flags, "supervisor", None) is not None  # its supervisor printed them
    for warning in () if is_worker else settings.warnings:
        print_failure("gateway", f"warning: {warning}", "WARNING", as_json=_wants_json(flags))
    if not flags.print_config:
        return None
    if settings.faults:
        return print_faults(settings.faults, flags)
    from ledger.command_line.output import emit
    from ledger.command_line.settings_report import report

    emit(report(settings, flags.output))
    return EXIT_OK


@prints(PRINTED)
def _callback(**_: Any) -> int:
    return run(flags_given())


dev = Command(
    "dev",
    params=[*server_options(TABLE), *_one_start_options()],
    help="Run everything in one process: gateway, storage and metadata.",
    callback=_callback,
)


def faults_of(settings: Settings) -> list[str]:
    """Return all faults, a line for each."""
    return [
        *settings.faults,
        *listener_faults(settings),
        *session_faults(settings),
        *group_faults(settings),
        *(_stdin_faults() if settings.flags.until_stdin_ends else ()),
        *_io_faults(settings),
        *_data_faults(settings),
        *http_faults(settings),
        *exposure_faults(settings),
        *_secure_faults(settings),
    ]


def _secure_faults(settings: Settings) -> list[str]:
    if not is_secure(settings):
        return []
    from gateway.process.secure_dev import faults_of_secure

    return list(faults_of_secure(settings))


def secured(settings: Settings, config: GatewayConfig) -> GatewayConfig:
    """Return the configuration with the files of `--secure`, if it is given. Raises ConfigFault."""
    if not is_secure(settings):
        if (config.data / _SECURE).is_dir() and not config.authorization.authorizer:
            from gateway.log import logger

            text = "--secure was given before: without it, every client may do everything"
            logger().warning(text, data=str(config.data))
        return config
    from gateway.process.secure_dev import secured as with_files

    return with_files(config, adds_plain=settings.is_default("sasl-enabled-mechanisms"))


def _stdin_faults() -> list[str]:
    try:
        mode = os.fstat(0).st_mode
    except OSError:
        mode = 0
    if stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode):
        return []
    return ["--until-stdin-ends: stdin is neither a pipe nor a socket"]


LOOPBACK = {"127.0.0.1", "localhost", "::1"}
LISTENER_ROWS = (
    "listener",
    "advertise",
    "listener-security-protocol-map",
    "inter-broker-listener-name",
)
# Settings that decide whether a listener is exposed.
_EXPOSING = (*LISTENER_ROWS, "host", "ssl-client-auth", "allow-insecure")


def listener_faults(settings: Settings) -> list[str]:
    """Return the faults of named listeners."""
    if not settings.of_parts and all(settings.is_default(name) for name in LISTENER_ROWS):
        return []
    from gateway.process.listeners import faults_of as faults

    return faults(settings)


def exposure_faults(settings: Settings) -> list[str]:
    """Return the faults of listeners that other machines reach without TLS and authentication."""
    listeners = settings["listener"]
    hosts = {each.host for each in listeners} if listeners else {settings["host"]}
    if settings.faulty.intersection(_EXPOSING) or hosts <= LOOPBACK:
        return []
    from gateway.process.exposure import faults_of_exposure

    made = listeners_of(settings) or (Listener(PLAINTEXT, settings["host"], settings["port"]),)
    return list(faults_of_exposure(settings, made))


def listeners_of(settings: Settings, shift: int = 0) -> tuple[Listener, ...]:
    """Return the named listeners, or none. Ports are `shift` above the given ones."""
    if not settings["listener"]:
        return _only_listener(settings) if is_secure(settings) else ()
    from gateway.process.listeners import made

    return made(settings, shift)


def _only_listener(settings: Settings) -> tuple[Listener]:
    address = (settings["host"], settings["port"])
    advertised = (settings["advertised-host"] or None, settings["advertised-port"])
    return (Listener(SECURE, *address, *advertised, SECURE),)


def session_faults(settings: Settings) -> list[str]:
    """Return the fault of bounds of session timeouts that contradict each other."""
    shortest, longest = "group-min-session-timeout", "group-max-session-timeout"
    if settings.faulty & {shortest, longest} or settings[shortest] <= settings[longest]:
        return []
    longest_shown = units.show_time(settings[longest])
    return [f"{settings.place(shortest)}: must be at most --{longest} {longest_shown}"]


def _io_faults(settings: Settings) -> list[str]:
    if settings["io"] != "uring":
        return []
    from ledger.adapters.posix.uring import why_unavailable

    reason = why_unavailable()
    return [] if reason is None else [f"{settings.place('io')}: {reason}; pass --io auto"]


def _data_faults(settings: Settings) -> list[str]:
    data, place = settings["data"], settings.place("data")
    try:
        there = data.absolute()
        while not there.exists():
            there = there.parent
        if not there.is_dir():
            return [f"{place}: {there} is not a directory"]
    except (OSError, ValueError) as error:
        return [f"{place}: {error}"]
    if not os.access(there, os.W_OK | os.X_OK):
        return [f"{place}: {there} is not writable"]
    try:
        foreign = _foreign_name(data) if data.exists() else None
    except OSError as error:
        return [f"{place}: {error.strerror}"]
    if foreign is not None:
        fault = f"not a gateway's directory: it contains {foreign}; name an empty or a new one"
        return [f"{place}: {fault}"]
    return []


def _foreign_name(data: Path) -> str | None:
    """Return a name in `data` that is not a gateway's, or None. A used directory may hold more."""
    names = {each.name for each in data.iterdir()}
    if _METADATA in names or any(data.glob("bookie-[1-3]/VERSION")):
        return None
    return min((name for name in names if not _EXPECTED.fullmatch(name)), default=None)


def config_of(settings: Settings) -> GatewayConfig:
    """Return the configuration that the settings make. They must have no faults."""
    listeners = listeners_of(settings)
    return GatewayConfig(
        data=settings["data"],
        listeners=listeners,
        host=listeners[0].host if listeners else settings["host"],
        port=listeners[0].port if listeners else settings["port"],
        advertised_host=settings["advertised-host"],
        advertised_port=settings["advertised-port"],
        node_id=settings["node-id"],
        bookies=settings["bookies"],
        journal_sync=settings["journal-sync"],
        io=settings["io"],
        accept_loss=settings.flags.accept_loss,
        ledger_port=settings["ledger-port"],
        any_ledger_port=settings.is_default("ledger-port"),
        metrics_port=settings["metrics-port"],
        http=http_config(settings),
        tail_cache_bytes=settings["tail-cache"],
        until_stdin_ends=settings.flags.until_stdin_ends,
        connection=connection_limits(settings),
        groups=group_limits(settings),
        transaction=transaction_limits(settings),
        tls=tls_config(settings),
        sasl=sasl_config(settings),
        listener_tls=listener_tls(settings),
        listener_sasl=listener_sasl(settings),
        quotas=quota_config(settings),
        audit_log=settings["audit-log"] or "",
        topics=topic_defaults(settings, settings["bookies"]),
        authorization=authorization_of(settings),
    )


def http_faults(settings: Settings) -> list[str]:
    """Return the faults of the web page's settings. Only settings that were given are looked at."""
    if settings["http-port"] is None and settings["metrics-port"] is None:
        return []
    if all(settings.is_default(name) for name in PAGE_NAMES):
        return []
    from gateway.process.page_settings import faults_of_page

    return faults_of_page(settings)


def http_config(settings: Settings) -> HttpConfig:
    """Return where the web page is served, as the settings make it."""
    names = settings["http-name"] or ""
    return HttpConfig(
        port=settings["http-port"],
        may_be_taken=settings.is_default("http-port"),
        host=settings["http-host"],
        names=tuple(each.lower() for each in names.split(",") if each),
        write=settings["http-write"],
        hide_values=settings["http-hide-values"],
        open_metrics=settings["http-open-metrics"],
        allow_insecure=settings["allow-insecure"],
        password_file=settings["http-password-file"],
        certificate=settings["http-cert"],
        private_key=settings["http-key"],
    )


def topic_defaults(settings: Settings, replication_factor: int) -> TopicDefaults:
    """Return the defaults of topics that the settings make."""
    return replace(
        TopicDefaults(),
        partitions=settings["partitions"],
        auto_create=settings["auto-create"],
        replication_factor=replication_factor,
    )


def print_faults(faults: list[str], flags: Flags) -> int:
    """Print each fault as a line on stderr. Returns the exit code."""
    for fault in faults:
        print_failure("gateway", fault, "CONFIG", as_json=_wants_json(flags))
    return EXIT_CONFIG


def _wants_json(flags: Flags) -> bool:
    return flags.output == "json"
