"""A certificate authority of our own, for tests of mutual TLS."""

import datetime
import ipaddress

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from ledger.adapters.links.link_config import TlsFiles
from ledger.core.bookie_roles import Role


class Authority:
    """Signs certificates for 127.0.0.1."""

    def __init__(self, path, name):
        path.mkdir()
        self.path = path
        self.key = ec.generate_private_key(ec.SECP256R1())
        self.name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        self.cert = self._sign(self.name, self.key.public_key(), authority=True)
        (path / "ca.pem").write_bytes(self.cert.public_bytes(serialization.Encoding.PEM))

    def files(self, who, host="127.0.0.1", roles=None, uris=(), **names):
        """Return the files of a process that may be reached at `host`.

        Its roles are those given, or the role called `who`, if there is one. `uris` are further
        alternative names, and `names` those of other types, such as `dns`.
        It is valid for `days` days from now on, which may be negative.
        """
        if roles is None:
            roles = [who] if who in list(Role) else []
        uris = [Role(each).uri for each in roles] + list(uris)
        key = ec.generate_private_key(ec.SECP256R1())
        name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, who)])
        cert = self._sign(name, key.public_key(), host=host, uris=uris, **names)
        files = TlsFiles(
            cert=self.path / f"{who}.pem", key=self.path / f"{who}.key", ca=self.path / "ca.pem"
        )
        files.cert.write_bytes(cert.public_bytes(serialization.Encoding.PEM))
        files.key.write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM,
                serialization.PrivateFormat.PKCS8,
                serialization.NoEncryption(),
            )
        )
        files.key.chmod(0o600)
        return files

    def _sign(
        self,
        name,
        public_key,
        *,
        host="127.0.0.1",
        authority=False,
        uris=(),
        dns=(),
        mail=(),
        days=1,
    ):
        names = [x509.IPAddress(ipaddress.ip_address(host))]
        names += map(x509.UniformResourceIdentifier, uris)
        names += map(x509.DNSName, dns)
        names += map(x509.RFC822Name, mail)
        now = datetime.datetime.now(datetime.UTC)
        builder = (
            x509.CertificateBuilder()
            .subject_name(name)
            .issuer_name(self.name)
            .public_key(public_key)
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - datetime.timedelta(days=2))
            .not_valid_after(now + datetime.timedelta(days=days))
            .add_extension(x509.BasicConstraints(ca=authority, path_length=None), critical=True)
            .add_extension(x509.SubjectAlternativeName(names), critical=False)
        )
        return builder.sign(self.key, hashes.SHA256())
