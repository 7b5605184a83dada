"""The credentials of gRPC connections between clients and bookies, for both ends.

gRPC gives a client no look at the certificate of the server. So a client first makes a TLS
connection of its own to the same port, checks host, chain and role of the certificate, and closes
it. Then it opens a channel that trusts this one certificate alone, so that only its owner can
answer.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable
from typing import cast

from ledger.adapters.grpc.grpc_library import grpc
from ledger.adapters.links.link import Endpoint
from ledger.adapters.links.server_role import shows_a_bookie
from ledger.adapters.links.tls_identity import TlsIdentity, certificate_of


class NoBookie(Exception):
    """The server's certificate lacks the role of a bookie."""


async def channel_credentials(tls: TlsIdentity, endpoint: Endpoint) -> grpc.ChannelCredentials:
    """Return the credentials for a channel to the bookie at `endpoint`.

    Raises OSError or ValueError if it cannot be reached or shows no certificate of the authority,
    NoBookie if its certificate lacks the role of a bookie.
    """
    pem = tls.pem
    trusted = pem.ca
    if tls.checks_roles:
        trusted = ssl.DER_cert_to_PEM_cert(await _checked_certificate(tls, endpoint)).encode()
    return grpc.ssl_channel_credentials(
        root_certificates=trusted, private_key=pem.key, certificate_chain=pem.cert
    )


async def _checked_certificate(tls: TlsIdentity, endpoint: Endpoint) -> bytes:
    loop = asyncio.get_running_loop()
    transport, _ = await loop.create_connection(
        asyncio.Protocol, endpoint.host, endpoint.port, ssl=tls.probe
    )
    try:
        connected = transport.get_extra_info("ssl_object")
        certificate = certificate_of(connected)
        if certificate is None or not shows_a_bookie(tls, connected):
            raise NoBookie
        return certificate
    finally:
        transport.abort()


def server_credentials(tls: TlsIdentity) -> grpc.ServerCredentials:
    """Return credentials that follow the files: each handshake takes the newest certificates.

    gRPC asks for them in a thread of its own, which only reads the identity. `TcpServer` refreshes
    it on the loop, and both servers of a bookie share one identity.
    """
    used = tls.version

    def newest() -> grpc.ServerCertificateConfiguration | None:
        nonlocal used
        if tls.version == used:
            return None
        used = tls.version
        return _configuration(tls)

    # None means that nothing has changed, which the type stubs lack.
    fetch = cast(Callable[[], grpc.ServerCertificateConfiguration], newest)
    return grpc.dynamic_ssl_server_credentials(
        _configuration(tls), fetch, require_client_authentication=True
    )


def _configuration(tls: TlsIdentity) -> grpc.ServerCertificateConfiguration:
    pem = tls.pem
    return grpc.ssl_server_certificate_configuration(
        [(pem.key, pem.cert)], root_certificates=pem.ca
    )
