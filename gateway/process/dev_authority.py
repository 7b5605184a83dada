"""The certificate authority of `gateway dev --secure`, and the certificate that it signs.

The only module that imports `cryptography`; loaded when something must be signed.
"""

from __future__ import annotations

import datetime
import ipaddress
from collections.abc import Sequence
from typing import Final, NamedTuple

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

AUTHORITY_DAYS: Final = 3_650
SERVER_DAYS: Final = 365
_EARLIER: Final = datetime.timedelta(days=1)  # for the clocks of other machines
_USES: Final = (
    *("digital_signature", "content_commitment", "key_encipherment", "data_encipherment"),
    *("key_agreement", "key_cert_sign", "crl_sign", "encipher_only", "decipher_only"),
)


class BadName(ValueError):
    """A name that no certificate can have."""


class Authority(NamedTuple):
    """An authority: its certificate and its key."""

    certificate: x509.Certificate
    key: ec.EllipticCurvePrivateKey

    @property
    def certificate_pem(self) -> bytes:
        return self.certificate.public_bytes(Encoding.PEM)

    @property
    def key_pem(self) -> bytes:
        return _pem_of(self.key)


def new_authority(now: datetime.datetime) -> Authority:
    """Return a new authority, which signs no other authority."""
    key = ec.generate_private_key(ec.SECP256R1())
    # Clients look an authority up by its name, so that of another directory needs another one.
    name = _name_of(f"gateway dev --secure {x509.random_serial_number() >> 96:016x}")
    builder = _begun(name, name, key.public_key(), now, AUTHORITY_DAYS)
    builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
    builder = builder.add_extension(_usage("key_cert_sign", "crl_sign"), critical=True)
    builder = builder.add_extension(
        x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False
    )
    return Authority(builder.sign(key, SHA256()), key)


def read_authority(certificate: bytes, key: bytes) -> Authority:
    """Return the authority of these PEM texts. Raises ValueError if they do not match."""
    found = x509.load_pem_x509_certificate(certificate)
    private = load_pem_private_key(key, None)
    if not isinstance(private, ec.EllipticCurvePrivateKey):
        raise ValueError("its key is of another kind")
    if private.public_key() != found.public_key():
        raise ValueError("its key belongs to another certificate")
    return Authority(found, private)


def issue_server(authority: Authority, names: Sequence[str], now: datetime.datetime) -> bytes:
    """Return a new key with a certificate for hosts of these names and addresses, in PEM.

    A gateway shows it to its clients, and to its own port. Raises BadName.
    """
    key = ec.generate_private_key(ec.SECP256R1())
    builder = _begun(
        _name_of("gateway"), authority.certificate.subject, key.public_key(), now, SERVER_DAYS
    )
    both = [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
    public = authority.key.public_key()
    extensions = (
        (x509.BasicConstraints(ca=False, path_length=None), True),
        (_usage("digital_signature"), True),
        (x509.ExtendedKeyUsage(both), False),
        (x509.SubjectAlternativeName([_place_of(each) for each in names]), False),
        (x509.AuthorityKeyIdentifier.from_issuer_public_key(public), False),
        (x509.SubjectKeyIdentifier.from_public_key(key.public_key()), False),
    )
    for extension, is_critical in extensions:
        builder = builder.add_extension(extension, critical=is_critical)
    certificate = builder.sign(authority.key, SHA256())
    return _pem_of(key) + certificate.public_bytes(Encoding.PEM)


def _begun(
    name: x509.Name,
    issuer: x509.Name,
    key: ec.EllipticCurvePublicKey,
    now: datetime.datetime,
    days: int,
) -> x509.CertificateBuilder:
    return x509.CertificateBuilder(
        issuer_name=issuer,
        subject_name=name,
        public_key=key,
        serial_number=x509.random_serial_number(),
        not_valid_before=now - _EARLIER,
        not_valid_after=now + datetime.timedelta(days=days),
    )


def _name_of(common: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common)])


def _usage(*uses: str) -> x509.KeyUsage:
    return x509.KeyUsage(**{each: each in uses for each in _USES})


def _place_of(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        pass
    try:
        return x509.DNSName(name)
    except ValueError:
        raise BadName(f"{name!r}: a certificate names hosts in ASCII only") from None


def _pem_of(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
