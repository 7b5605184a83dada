"""The TLS contexts of this process, made from PEM keys and certificates.

OpenSSL reads certificates and keys from files only. What comes from a variable, and every file, is
read once, checked, and handed over in an unnamed file in memory.
"""

from __future__ import annotations

import contextlib
import os
import ssl
from collections.abc import Generator
from typing import Final

from gateway.config import TlsConfig
from ledger.command_line.secret_values import (
    SecretFault,
    is_reference,
    read_private,
    read_public,
    resolve,
    resolve_line,
)

_VERSIONS: Final = {"TLSv1.2": ssl.TLSVersion.TLSv1_2, "TLSv1.3": ssl.TLSVersion.TLSv1_3}
_REQUIRED: Final = {
    "none": ssl.CERT_NONE,
    "requested": ssl.CERT_OPTIONAL,
    "required": ssl.CERT_REQUIRED,
}


class TlsFault(Exception):
    """Keys or certificates that cannot be used: a line that names the fix, and never a secret."""


def server_context(config: TlsConfig) -> ssl.SSLContext:
    """Return a context of the accepting side. Raises TlsFault."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    _set_versions(context, config)
    context.options |= ssl.OP_CIPHER_SERVER_PREFERENCE
    _load_own(context, config)
    context.verify_mode = _REQUIRED[config.client_auth]
    if config.client_auth != "none":
        # A resumed session would not be verified against certificates that were loaded later.
        context.options |= ssl.OP_NO_TICKET
        context.num_tickets = 0
        _load_trusted(context, config)
    return context


def client_context(config: TlsConfig) -> ssl.SSLContext:
    """Return a context of the connecting side, which checks the name of the server.

    Without trusted certificates, those of the system count. Raises TlsFault.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    _set_versions(context, config)
    if config.keystore is not None or config.key:
        _load_own(context, config)
    if config.truststore is None and not config.trusted:
        context.load_default_certs(ssl.Purpose.SERVER_AUTH)
    else:
        _load_trusted(context, config)
    return context


def _set_versions(context: ssl.SSLContext, config: TlsConfig) -> None:
    versions = sorted(_VERSIONS[each] for each in config.protocols)
    context.minimum_version, context.maximum_version = versions[0], versions[-1]
    context.options |= ssl.OP_NO_RENEGOTIATION | ssl.OP_NO_COMPRESSION
    if config.ciphers:
        try:
            context.set_ciphers(":".join(config.ciphers))
        except ssl.SSLError:
            names = ",".join(config.ciphers)
            raise TlsFault(f"ssl.cipher.suites={names}: OpenSSL has none of them") from None


def _load_own(context: ssl.SSLContext, config: TlsConfig) -> None:
    """Load the private key and the certificates of this side."""
    with _faults():
        if config.keystore is not None:
            place = str(config.keystore)
            content = read_private(config.keystore)
        else:
            place = "ssl.keystore.key"
            content = _text_of(config.key) + b"\n" + _text_of(config.certificates)
        password = config.key_password
        if is_reference(password):
            password = resolve_line(password)
    try:
        with _in_memory(content) as file:
            context.load_cert_chain(file, password=password or _no_passphrase)
    except _PassphraseMissing:
        raise TlsFault(f"{place}: its key has a passphrase; set ssl.key.password") from None
    except (OSError, ValueError) as error:
        raise TlsFault(f"{place}: has no usable key with its certificate: {_why(error)}") from None


def _load_trusted(context: ssl.SSLContext, config: TlsConfig) -> None:
    """Load the CA certificates, and the lists of revoked ones."""
    with _faults():
        if config.truststore is not None:
            place = str(config.truststore)
            content = read_public(config.truststore)
        else:
            place = "ssl.truststore.certificates"
            content = _text_of(config.trusted)
    _load_verified(context, place, content)
    if not context.get_ca_certs():
        raise TlsFault(f"{place}: has no CA certificate")
    if config.revoked is not None:
        with _faults():
            revoked = read_public(config.revoked)
        _load_verified(context, str(config.revoked), revoked)
        if not context.cert_store_stats()["crl"]:
            raise TlsFault(f"{config.revoked}: has no list of revoked certificates")
        context.verify_flags |= ssl.VERIFY_CRL_CHECK_LEAF


def _load_verified(context: ssl.SSLContext, place: str, content: bytes) -> None:
    try:
        with _in_memory(content) as file:
            context.load_verify_locations(cafile=file)
    except (OSError, ValueError) as error:
        raise TlsFault(f"{place}: cannot be used: {_why(error)}") from None


def _text_of(written: str) -> bytes:
    """Return PEM that is written out, or that a reference names."""
    return resolve(written) if is_reference(written) else written.encode()


@contextlib.contextmanager
def _faults() -> Generator[None]:
    try:
        yield
    except SecretFault as fault:
        raise TlsFault(str(fault)) from None


@contextlib.contextmanager
def _in_memory(content: bytes) -> Generator[str]:
    """Yield the name of an unnamed file with this content."""
    number = os.memfd_create("pem")
    try:
        with os.fdopen(os.dup(number), "wb") as written:
            written.write(content)
        yield f"/proc/self/fd/{number}"
    finally:
        os.close(number)


class _PassphraseMissing(ValueError):
    """The key is encrypted, and there is no passphrase."""


def _no_passphrase() -> str:
    raise _PassphraseMissing


def _why(error: Exception) -> str:
    reason = getattr(error, "reason", None)
    return str(reason or getattr(error, "strerror", None) or error).replace("_", " ").lower()
