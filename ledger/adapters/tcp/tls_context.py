"""TLS of both ends of a TCP connection: each shows a certificate of the same authority."""

from __future__ import annotations

import ssl

from ledger.adapters.links.link_config import TlsFiles


def client_context(tls: TlsFiles) -> ssl.SSLContext:
    """Return the client's context. Raises OSError if a file cannot be used.

    The bookie's certificate must name the host to which the client connects.
    """
    context = ssl.create_default_context(ssl.Purpose.SERVER_AUTH, cafile=str(tls.ca))
    return _loaded(context, tls)


def server_context(tls: TlsFiles) -> ssl.SSLContext:
    """Return the bookie's context. Raises OSError if a file cannot be used."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=str(tls.ca))
    context.verify_mode = ssl.CERT_REQUIRED
    return _loaded(context, tls)


def _loaded(context: ssl.SSLContext, tls: TlsFiles) -> ssl.SSLContext:
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    # Newer Pythons refuse certificates without extensions that gRPC does not ask for.
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT
    context.load_cert_chain(str(tls.cert), str(tls.key))
    return context
