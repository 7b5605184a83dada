"""How commands, the web page and gateways connect to ZooKeeper: their identity and their TLS.

Commands take keys such as `zookeeper.auth` from the file of `--command-config`. If it has none,
they take variables such as GATEWAY_ZOOKEEPER_AUTH, which are also those of `gateway serve`.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from gateway.config import GatewayConfig
from gateway.settings.secret_paths import SECRET_PATHS
from ledger.adapters.zookeeper.zookeeper_access import ZooKeeperAccess, read_access
from ledger.command_line.secret_values import SecretFault
from ledger.command_line.zookeeper_settings import (
    SecurityFault,
    SetAcl,
    ZooKeeperSecurity,
    security_of_keys,
    security_of_variables,
)
from ledger.errors import InvalidArgument

REFUSED: Final = "ZOOKEEPER_AUTHORIZATION_FAILED"
"""The code of an error after which another identity is needed."""


def gateway_access(config: GatewayConfig) -> ZooKeeperAccess:
    """Return how a gateway connects to ZooKeeper. Raises InvalidArgument that names the secret."""
    return _access(config.zookeeper_security or ZooKeeperSecurity())


def command_access() -> ZooKeeperAccess:
    """Return how the command that runs now connects to ZooKeeper. Raises InvalidArgument.

    Its nodes are as closed as those of servers, but it works on an open tree too.
    """
    return access_of(_keys_of_command())


def access_of(keys: Mapping[str, str]) -> ZooKeeperAccess:
    """Return the access that keys such as `zookeeper.auth` name; without keys, that of variables.

    Raises InvalidArgument, without a secret.
    """
    try:
        security = security_of_keys(keys) if keys else security_of_variables(os.environ)
    except SecurityFault as fault:
        raise InvalidArgument(str(fault)) from None
    if security.set_acl is SetAcl.REQUIRED:
        security = replace(security, set_acl=SetAcl.MIGRATE)
    return _access(security)


def _access(security: ZooKeeperSecurity) -> ZooKeeperAccess:
    try:
        return read_access(security, SECRET_PATHS)
    except SecretFault as fault:
        raise InvalidArgument(f"zookeeper: {fault}") from None


def _keys_of_command() -> Mapping[str, str]:
    """Return the keys about ZooKeeper in the file of `--command-config`, if there is one."""
    from gateway.admin.connection_settings import selection

    file = selection().command_config
    if not file:
        return {}
    from gateway.admin.command_config import zookeeper_keys_of

    return zookeeper_keys_of(file)
