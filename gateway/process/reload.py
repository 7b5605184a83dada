"""What a SIGHUP does: read the settings again, apply what may change, and report what may not.

Keys, certificates and lists of revoked ones are read again in any case. A fault changes nothing.
Names of settings are logged, and never values. Imported at the first SIGHUP.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final

from gateway.cluster.peers import peer_security
from gateway.log import logger
from gateway.process.secure_ports import CannotSecure, connecting
from gateway.process.supervisor import OF_FILE
from gateway.security.link_security import LinkSecurity
from ledger.command_line.program import Flags
from ledger.command_line.settings import Settings, Table

if TYPE_CHECKING:
    from gateway.config import GatewayConfig
    from gateway.process.assemble import Running

MAY_CHANGE: Final = frozenset(
    (
        *("ssl-keystore-location", "ssl-keystore-certificate-chain", "ssl-keystore-key"),
        *("ssl-key-password", "ssl-truststore-location", "ssl-truststore-certificates"),
        *("ssl-crl-location", "ssl-client-auth", "ssl-enabled-protocols", "ssl-cipher-suites"),
        *("super-users", "allow-everyone-if-no-acl-found"),
    )
)
"""The settings that a running gateway takes over. Each other one needs a restart."""


def read_again(flags: Flags, table: Table) -> Settings:
    """Return the settings as a start would have them now, also in a worker."""
    ours = os.environ.get(OF_FILE, "").split(",")
    variables = {name: text for name, text in os.environ.items() if name not in ours}
    return Settings(flags, table, variables, reads_file=True)


def changed(before: Settings, after: Settings) -> list[str]:
    """Return the names of the settings that have other values, in the order of the table."""
    return [row.name for row in after.table if before[row.name] != after[row.name]]


def reload(
    before: Settings,
    faults_of: Callable[[Settings], list[str]],
    apply: Callable[[Settings], None],
) -> Settings:
    """Read the settings again, and apply them. Returns those that hold now."""
    after = read_again(before.flags, before.table)
    faults = faults_of(after)
    if faults:
        logger().error("settings were not reloaded", faults=len(faults), first=faults[0])
        return before
    names = changed(before, after)
    apply(after)
    taken = [name for name in names if name in MAY_CHANGE]
    later = [name for name in names if name not in MAY_CHANGE]
    logger().info("settings were reloaded", changed=", ".join(taken) or "none")
    if later:
        logger().warning(
            "changed settings have no effect before a restart", settings=", ".join(later)
        )
    return _merged(before, after, taken)


def _merged(before: Settings, after: Settings, taken: list[str]) -> Settings:
    """Return the settings that hold now: those that wait for a restart are reported each time."""
    for name in taken:
        before.take_over(name, after)
    return before


def take_for_workers(before: Settings) -> None:
    """Let workers that start again have what the file says now, of what may change."""
    after = read_again(before.flags, before.table)
    if after.faults:
        return
    ours = set(filter(None, os.environ.get(OF_FILE, "").split(",")))
    written: Mapping[str, str] = after.of_file()
    for name in MAY_CHANGE & after.table.rows.keys():
        variable = after.table[name].environment
        if variable in written:
            os.environ[variable] = written[variable]
            ours.add(variable)
        elif variable in ours:
            del os.environ[variable]
            ours.discard(variable)
    os.environ[OF_FILE] = ",".join(sorted(ours))


def apply(config: GatewayConfig, running: Running) -> None:
    """Take over what may change of a configuration, with its files as they are now."""
    if running.secure is not None:
        running.secure.reload(config)
    for each in running.reloads:
        each()
    links = peer_security(running.ctx.cluster)
    if isinstance(links, LinkSecurity):
        try:
            made = connecting(config, running.listener_for_brokers)
        except CannotSecure as fault:
            logger().error("connections to other gateways were not reloaded", reason=str(fault))
        else:
            links.context, links.login = made.context, made.login
    if running.ctx.acls is not None:
        running.ctx.acls.configure(config.authorization)
