"""A certificate authority for tests of TLS on the Kafka port: keys and certificates in PEM."""

from __future__ import annotations

import datetime
import ipaddress

from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.x509.oid import NameOID

PEM = serialization.Encoding.PEM
HOUR = datetime.timedelta(hours=1)


def name_of(*parts):
    """Return a name from pairs of a kind and a value, in the order of the certificate."""
    return x509.Name([x509.NameAttribute(getattr(NameOID, kind), value) for kind, value in parts])


class Authority:
    """Signs certificates for loopback, and writes them below a directory."""

    def __init__(self, path, name="authority"):
        path.mkdir(parents=True, exist_ok=True)
        self.path = path
        self.key = ec.generate_private_key(ec.SECP256R1())
        self.name = name_of(("COMMON_NAME", name))
        self.certificate = self._sign(self.name, self.key.public_key(), is_authority=True)
        self.trusted = path / "ca.pem"
        self.trusted.write_bytes(self.certificate.public_bytes(PEM))

    def issue(self, name, password=b"", **options):
        """Return a certificate, its key in PEM, and both in one file that only its owner reads.

        `name` is a common name, or a name. A file is named after its common name.
        """
        subject = name_of(("COMMON_NAME", name)) if isinstance(name, str) else name
        key = ec.generate_private_key(ec.SECP256R1())
        hidden = (
            serialization.BestAvailableEncryption(password)
            if password
            else serialization.NoEncryption()
        )
        text = key.private_bytes(PEM, serialization.PrivateFormat.PKCS8, hidden)
        certificate = self._sign(subject, key.public_key(), **options)
        common = subject.get_attributes_for_oid(NameOID.COMMON_NAME)
        file = self.path / f"{common[0].value if common else 'nameless'}.pem"
        file.write_bytes(text + certificate.public_bytes(PEM))
        file.chmod(0o600)
        return certificate, text.decode(), file

    def revoke(self, *certificates):
        """Return a file with the list of these revoked certificates."""
        now = datetime.datetime.now(datetime.UTC)
        builder = x509.CertificateRevocationListBuilder().issuer_name(self.name)
        builder = builder.last_update(now - HOUR).next_update(now + HOUR)
        for each in certificates:
            row = x509.RevokedCertificateBuilder().serial_number(each.serial_number)
            builder = builder.add_revoked_certificate(row.revocation_date(now - HOUR).build())
        file = self.path / "revoked.pem"
        file.write_bytes(builder.sign(self.key, SHA256()).public_bytes(PEM))
        return file

    def _sign(self, name, public_key, *, is_authority=False, ends_in=24 * HOUR):
        now = datetime.datetime.now(datetime.UTC)
        places = [x509.DNSName("localhost"), x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]
        builder = x509.CertificateBuilder(self.name, name, public_key)
        builder = builder.serial_number(x509.random_serial_number())
        builder = builder.not_valid_before(now - 48 * HOUR).not_valid_after(now + ends_in)
        builder = builder.add_extension(x509.BasicConstraints(is_authority, None), critical=True)
        builder = builder.add_extension(x509.SubjectAlternativeName(places), critical=False)
        return builder.sign(self.key, SHA256())
