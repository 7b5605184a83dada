"""A client's check that the server is a bookie, by the role of its certificate."""

from __future__ import annotations

import ssl

from ledger.adapters.links.link import Endpoint
from ledger.adapters.links.tls_identity import TlsIdentity, certificate_of
from ledger.core.bookie_roles import Role
from ledger.ids import BookieId
from ledger.log import logger


def shows_a_bookie(tls: TlsIdentity, connected: ssl.SSLObject | ssl.SSLSocket | None) -> bool:
    """Return whether the server of this connection may be used as a bookie."""
    roles = tls.roles_of(certificate_of(connected))
    return roles is None or Role.BOOKIE in roles


def log_no_bookie(bookie: BookieId, endpoint: Endpoint) -> None:
    """Log that nothing is sent to this server."""
    logger().warning(
        "the certificate of a server lacks the role of a bookie: nothing is sent to it",
        bookie=bookie,
        address=f"{endpoint.host}:{endpoint.port}",
        fix=f"give its certificate the URI {Role.BOOKIE.uri}",
    )
