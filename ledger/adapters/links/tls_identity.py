"""The keys and certificates by which bookies and their clients prove who they are.

The three files are read once, checked, and handed to the TLS libraries in memory. They are read
again when one of them has changed, and by `reload`. Connections that are open keep what they began
with; faulty files change nothing.
"""

from __future__ import annotations

import contextlib
import os
import ssl
from collections.abc import Generator, Iterable
from functools import lru_cache
from pathlib import Path
from typing import Final, NamedTuple

from ledger.adapters.links.link_config import TlsFiles
from ledger.command_line.secret_files import SecretFault, read_private, read_public
from ledger.core.bookie_roles import Role, roles_named
from ledger.core.certificate_uris import MalformedCertificate, uris_of
from ledger.log import logger

_HTTP2: Final = "h2"

NO_ROLE: Final[frozenset[Role]] = frozenset()


class TlsFault(OSError):
    """Keys or certificates that cannot be used: a line that names the file and the fix."""


class Pem(NamedTuple):
    """The content of the three files."""

    cert: bytes
    key: bytes
    ca: bytes


class TlsIdentity:
    """The identity of one process, as the newest usable files have it."""

    def __init__(self, files: TlsFiles) -> None:
        """Read the files. Raises TlsFault."""
        self.files = files
        # What each file was when it was read last, usable or not. Compared by `refresh`.
        self._seen = _stamps(files)
        self._set(_read(files))
        # The context of a server's listener. Each connection takes the newest one in its place.
        self.server = self._newest
        self.server.sni_callback = self._choose
        # Counts the changes. A gRPC server compares it with that of the certificates in use.
        self.version = 0

    def _set(self, pem: Pem) -> None:
        client, server = client_context(pem, self.files), server_context(pem, self.files)
        # For a look at a gRPC server, which speaks to nothing but HTTP/2.
        probe = client_context(pem, self.files)
        probe.set_alpn_protocols([_HTTP2])
        self.pem, self.client, self.probe, self._newest = pem, client, probe, server

    def _choose(
        self, accepted: ssl.SSLObject | ssl.SSLSocket, _: str | None, __: ssl.SSLContext
    ) -> None:
        """Give a connection the newest certificates, when its first bytes have come.

        OpenSSL calls this for each connection, also for one whose client names no host.
        """
        accepted.context = self._newest

    @property
    def checks_roles(self) -> bool:
        """True if the role of a peer counts, False while a cluster gets its roles."""
        return self.files.roles

    def roles_of(self, certificate: bytes | None) -> frozenset[Role] | None:
        """Return the roles of a peer by its DER certificate, or None if they are not checked."""
        if not self.files.roles:
            return None
        return NO_ROLE if certificate is None else roles_of(certificate)

    def refresh(self) -> bool:
        """Read the files again if one has changed. Returns True if there are new certificates."""
        return _stamps(self.files) != self._seen and self.reload()

    def reload(self) -> bool:
        """Read the files again. Returns True if there are new certificates. Logs the outcome."""
        self._seen = _stamps(self.files)
        try:
            pem = _read(self.files)
            if pem == self.pem:
                logger().info("the certificates for bookies are unchanged", **self._place)
                return False
            self._set(pem)
        except TlsFault as fault:
            logger().error("the certificates for bookies were not reloaded", reason=str(fault))
            return False
        self.version += 1
        logger().info("the certificates for bookies were reloaded", **self._place)
        return True

    @property
    def _place(self) -> dict[str, str]:
        return {"file": str(self.files.cert)}


def identity_of(tls: TlsFiles | TlsIdentity | None) -> TlsIdentity | None:
    """Return the identity that these files make. Raises TlsFault."""
    return TlsIdentity(tls) if isinstance(tls, TlsFiles) else tls


@lru_cache(maxsize=256)
def roles_of(certificate: bytes) -> frozenset[Role]:
    """Return the roles that a verified DER certificate names; none if it cannot be decoded."""
    try:
        return roles_named(uris_of(certificate))
    except MalformedCertificate:
        return NO_ROLE


def certificate_of(connected: ssl.SSLObject | ssl.SSLSocket | None) -> bytes | None:
    """Return the DER certificate that the peer has shown, or None without TLS."""
    return None if connected is None else connected.getpeercert(binary_form=True)


def client_context(pem: Pem, files: TlsFiles) -> ssl.SSLContext:
    """Return the client's context. Raises TlsFault.

    The bookie's certificate must name the host to which the client connects.
    """
    return _loaded(ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT), pem, files)


def server_context(pem: Pem, files: TlsFiles) -> ssl.SSLContext:
    """Return the bookie's context, which needs the certificate of a client. Raises TlsFault."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.verify_mode = ssl.CERT_REQUIRED
    # A resumed session would not be verified against certificates that were loaded later. TLS 1.3
    # resumes by tickets only.
    context.num_tickets = 0
    return _loaded(context, pem, files)


def _loaded(context: ssl.SSLContext, pem: Pem, files: TlsFiles) -> ssl.SSLContext:
    context.minimum_version = ssl.TLSVersion.TLSv1_3  # every release has it at both ends
    # Newer Pythons refuse certificates without extensions that gRPC does not ask for.
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT
    try:
        with _in_memory(pem.ca) as file:
            context.load_verify_locations(cafile=file)
    except (OSError, ValueError) as error:
        raise TlsFault(f"{files.ca}: has no usable certificates: {_why(error)}") from None
    if not context.get_ca_certs():
        raise TlsFault(f"{files.ca}: has no CA certificate")
    try:
        # One file may have both, as Kafka's keystores in PEM do.
        both = pem.cert if pem.key == pem.cert else pem.key + b"\n" + pem.cert
        with _in_memory(both) as file:
            context.load_cert_chain(file, password=_no_passphrase)
    except (OSError, ValueError) as error:
        why = f"is no key of the certificate {files.cert}: {_why(error)}"
        raise TlsFault(f"{files.key}: {why}") from None
    return context


def _read(files: TlsFiles) -> Pem:
    try:
        return Pem(read_public(files.cert), read_private(files.key), read_public(files.ca))
    except SecretFault as fault:
        raise TlsFault(str(fault)) from None


def _stamps(files: TlsFiles) -> tuple[object, ...]:
    """Return what changes with the files; of a symbolic link, with its target."""
    return tuple(_stamp(each) for each in (files.cert, files.key, files.ca))


def _stamp(file: Path) -> tuple[int, ...]:
    try:
        found = file.stat()
    except OSError:
        return ()
    return (found.st_ino, found.st_size, found.st_mtime_ns, found.st_mode, found.st_dev)


@contextlib.contextmanager
def _in_memory(content: bytes) -> Generator[str]:
    """Yield the name of an unnamed file with this content: OpenSSL reads keys from files only."""
    number = os.memfd_create("pem")
    try:
        with os.fdopen(os.dup(number), "wb") as written:
            written.write(content)
        yield f"/proc/self/fd/{number}"
    finally:
        os.close(number)


def _no_passphrase() -> str:
    raise ValueError("the key has a passphrase; keys of bookies and their clients have none")


def _why(error: Exception) -> str:
    reason = getattr(error, "reason", None)
    return str(reason or getattr(error, "strerror", None) or error).replace("_", " ").lower()


def names_of(roles: Iterable[Role]) -> str:
    """Return the names of roles for a log line."""
    return ", ".join(sorted(roles)) or "none"
