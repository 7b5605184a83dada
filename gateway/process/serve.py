"""`gateway serve`: its options, their faults, and the configuration that they make."""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path
from typing import Any

from gateway.config import GatewayConfig
from gateway.process.authorizer_settings import authorization_of
from gateway.process.dev import (
    answered,
    exposure_faults,
    hangup,
    http_config,
    http_faults,
    listener_faults,
    listeners_of,
    print_faults,
    server_options,
    session_faults,
    topic_defaults,
)
from gateway.process.limit_settings import (
    connection_limits,
    group_faults,
    group_limits,
    transaction_limits,
)
from gateway.process.listener_settings import listener_sasl, listener_tls
from gateway.process.quota_settings import quota_config
from gateway.process.security_settings import sasl_config, tls_config
from gateway.process.server_settings import PORT_MAX, WORKERS_MAX, serve_table
from ledger.command_line import units
from ledger.command_line.exit_codes import EXIT_UNREACHABLE
from ledger.command_line.failure import print_failure
from ledger.command_line.program import (
    Command,
    Flags,
    Option,
    Value,
    flags_given,
    words_given,
)
from ledger.command_line.secret_files import SecretFault, read_private
from ledger.command_line.settings import Settings
from ledger.command_line.settings_shape import PRINTED
from ledger.command_line.shape import prints
from ledger.command_line.zookeeper_settings import zookeeper_faults, zookeeper_security

ANYWHERE = {"0.0.0.0", "::"}
TLS_NAMES = ("bookie-tls-cert", "bookie-tls-key", "bookie-tls-ca")
TABLE = serve_table()


def settings_of(flags: Flags) -> Settings:
    """Return the settings from these flags, the environment and the file."""
    return Settings(flags, TABLE)


def run(flags: Flags, words: list[str]) -> int:
    """Serve until a signal. Returns the exit code. `words` are the options as they were given."""
    settings = settings_of(flags)
    code = answered(settings)
    if code is not None:
        return code
    faults = faults_of(settings)
    if faults:
        return print_faults(faults, flags)
    if settings["workers"] > 1:
        return _supervise(settings, words)
    if flags.supervisor is not None:
        from gateway.process.supervisor import end_with

        end_with(flags.supervisor)
    from gateway.process.run import ConfigFault, ZooKeeperUnreachable, run_gateway

    try:
        config = config_of(settings)
        return run_gateway(config, hangup(settings, faults_of, config_of, config))
    except ConfigFault as fault:
        return print_faults(list(map(settings.placed, fault.faults)), flags)
    except ZooKeeperUnreachable as fault:
        line = settings.placed(str(fault))
        print_failure("gateway", line, "UNREACHABLE", as_json=flags.output == "json")
        return EXIT_UNREACHABLE


def _supervise(settings: Settings, words: list[str]) -> int:
    from gateway.process.supervisor import OF_FILE, commands, supervise

    # Workers that start again later have the same settings, even if the file has changed.
    os.environ.update(settings.of_file())
    os.environ[OF_FILE] = ",".join(settings.of_file())
    names = ("workers", "node-id", "port", "metrics-port", "http-port")
    named = bool(settings["listener"])
    lines = commands(words, *(settings[name] for name in names), named=named)
    return supervise(lines, on_hangup=partial(_hung_up, settings))


def _hung_up(settings: Settings) -> None:
    from gateway.process.reload import take_for_workers

    take_for_workers(settings)


@prints(PRINTED)
def _callback(**_: Any) -> int:
    return run(flags_given(), words_given())


serve = Command(
    "serve",
    params=[
        *server_options(TABLE),
        # The process that started this worker: the worker ends with it.
        Option(["--supervisor"], type=Value("pid", units.integer), hidden=True),
        # The place of this worker among several, from 0; it is added to ports of named listeners.
        Option(["--place"], type=Value("number", units.whole(0, WORKERS_MAX)), hidden=True),
    ],
    help="Run one gateway of a cluster, with ZooKeeper and bookies.",
    callback=_callback,
)


def faults_of(settings: Settings) -> list[str]:
    """Return all faults, a line for each."""
    return [
        *_missing_faults(settings),
        *settings.faults,
        *listener_faults(settings),
        *session_faults(settings),
        *group_faults(settings),
        *_address_faults(settings),
        *_row_faults(settings),
        *_tls_faults(settings),
        *zookeeper_faults(settings),
        *http_faults(settings),
        *exposure_faults(settings),
    ]


def _missing_faults(settings: Settings) -> list[str]:
    if settings["zookeeper"] is not None or "zookeeper" in settings.faulty:
        return []
    variable = TABLE["zookeeper"].environment
    return [f"--zookeeper is missing (ZooKeeper servers); pass it, or set {variable}"]


def _address_faults(settings: Settings) -> list[str]:
    faults: list[str] = []
    if settings["host"] in ANYWHERE and not settings["advertised-host"]:
        faults.append(
            f"{settings.place('host')}: clients cannot connect to this address; pass one that they "
            "can with --advertised-host"
        )
    if settings["peer-port"] is not None and settings["workers"] > 1:
        faults.append(
            f"{settings.place('peer-port')}: each of several --workers has a port of its own; "
            "leave this setting out"
        )
    return faults


def _row_faults(settings: Settings) -> list[str]:
    """Return the faults of the ports and the node id of the last of several workers."""
    more = settings["workers"] - 1
    ports = ((name, PORT_MAX) for name in ("port", "metrics-port", "http-port"))
    bounds = (*ports, ("node-id", units.INT32_MAX))
    return [
        f"{settings.place('workers')}: --{name} of the last one would be {settings[name] + more}, "
        f"above {most}"
        for name, most in bounds
        if (settings[name] or 0) + more > most
    ]


def _tls_files(settings: Settings) -> dict[str, Path | None]:
    return {name: settings[name] for name in TLS_NAMES}


def _tls_faults(settings: Settings) -> list[str]:
    files = _tls_files(settings)
    if not any(files.values()):
        return []
    faults: list[str] = []
    for name, path in files.items():
        if not path:
            faults.append(f"--{name}: is missing; pass all three --bookie-tls options or none")
        elif not path.is_file():
            faults.append(f"{settings.place(name)}: no such file")
    key = files["bookie-tls-key"]
    if key and key.is_file():
        try:
            read_private(key)
        except SecretFault as fault:
            faults.append(
                f"{settings.place('bookie-tls-key')}: {str(fault).removeprefix(f'{key}: ')}"
            )
    return faults or _unusable_files(settings)


def _unusable_files(settings: Settings) -> list[str]:
    """Return the fault of keys and certificates that cannot be loaded."""
    from ledger.adapters.links.link_config import TlsFiles
    from ledger.adapters.links.tls_identity import TlsFault, TlsIdentity

    cert, key, authority = _tls_files(settings).values()
    assert cert and key and authority
    try:
        TlsIdentity(TlsFiles(cert=cert, key=key, ca=authority))
    except TlsFault as fault:
        return [f"--bookie-tls-cert, --bookie-tls-key, --bookie-tls-ca: {fault}"]
    return []


def config_of(settings: Settings) -> GatewayConfig:
    """Return the configuration that the settings make. They must have no faults."""
    cert, key, authority = _tls_files(settings).values()
    listeners = listeners_of(settings, settings.flags.place or 0)
    return GatewayConfig(
        listeners=listeners,
        inter_broker_listener=settings["inter-broker-listener-name"] or "",
        zookeeper=settings["zookeeper"],
        zookeeper_security=zookeeper_security(settings),
        session_ms=round(settings["session"] * 1000),
        host=listeners[0].host if listeners else settings["host"],
        port=listeners[0].port if listeners else settings["port"],
        advertised_host=settings["advertised-host"],
        peer_host=settings["peer-host"],
        peer_port=settings["peer-port"],
        node_id=settings["node-id"],
        rack=settings["rack"],
        reader_slow_shards_detection=settings["reader-slow-shards-detection"],
        workers=settings["workers"],
        metrics_port=settings["metrics-port"],
        http=http_config(settings),
        log_segment_based_subscriptions_store_enabled=(
            settings["log-segment-based-subscriptions-store-enabled"]
        ),
        bookie_transport=settings["bookie-transport"],
        bookie_tls=(cert, key, authority) if cert and key and authority else None,
        bookie_tls_roles=settings["bookie-tls-roles"] != "off",
        tail_cache_bytes=settings["tail-cache"],
        connection=connection_limits(settings),
        groups=group_limits(settings),
        transaction=transaction_limits(settings),
        tls=tls_config(settings),
        sasl=sasl_config(settings),
        listener_tls=listener_tls(settings),
        listener_sasl=listener_sasl(settings),
        quotas=quota_config(settings),
        audit_log=settings["audit-log"] or "",
        topics=topic_defaults(settings, settings["replication-factor"]),
        authorization=authorization_of(settings),
    )
