"""The TLS of `bookie serve` and `bookie audit`: their identity, its reload, and hourly warnings."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from pathlib import Path
from typing import Final

from ledger.adapters.links.link_config import TlsFiles
from ledger.adapters.links.tls_identity import TlsIdentity
from ledger.adapters.system.hourly import warn_each_hour
from ledger.node.config import NodeConfig

OFF: Final = "off"
WITHOUT_ROLES: Final = (
    "roles are turned off: any certificate of the CA may do everything (--tls-roles off)"
)


def identity_of_files(
    cert: Path | None, key: Path | None, authority: Path | None, roles: str
) -> TlsIdentity | None:
    """Return the identity by which this process and its peers authenticate each other.

    Returns None without the files. Raises TlsFault if they cannot be used.
    """
    if cert is None or key is None or authority is None:
        return None
    return TlsIdentity(TlsFiles(cert=cert, key=key, ca=authority, roles=roles != OFF))


def identity_for(config: NodeConfig) -> TlsIdentity | None:
    """Return the identity of a bookie. Raises TlsFault."""
    return identity_of_files(config.tls_cert, config.tls_key, config.tls_ca, config.tls_roles)


def keep_current(tls: TlsIdentity | None) -> None:
    """Read the files again on SIGHUP, and warn each hour if roles are not checked."""
    if tls is None:
        return
    loop = asyncio.get_running_loop()
    # Only the main thread can handle signals; tests run servers in other threads.
    with contextlib.suppress(ValueError, RuntimeError):
        loop.add_signal_handler(signal.SIGHUP, tls.reload)
    if not tls.checks_roles:
        warn_each_hour(loop, WITHOUT_ROLES)
