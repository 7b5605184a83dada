"""Goal: the URIs of a certificate are those that the library `cryptography` finds, on any bytes.

Method: certificates with drawn alternative names are decoded by both; damaged ones raise
MalformedCertificate and nothing else, and never take long.
"""

import datetime

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from hypothesis import given
from hypothesis import strategies as st

from ledger.core.bookie_roles import Role, roles_named
from ledger.core.certificate_uris import MalformedCertificate, uris_of
from tests.ledger.authority import Authority

KEY = ec.generate_private_key(ec.SECP256R1())
NAME = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "name")])
URIS = st.lists(st.sampled_from([*(role.uri for role in Role), "spiffe://a/b", "x:" + "y" * 300]))
DNS = st.lists(st.sampled_from(["a.example", "b.example"]))


def certificate(uris=(), dns=(), *, critical=False, others=()):
    now = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)
    builder = x509.CertificateBuilder(NAME, NAME, KEY.public_key(), 1, now, now)
    names = [*map(x509.DNSName, dns), *map(x509.UniformResourceIdentifier, uris)]
    if names:
        builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=critical)
    for each in others:
        builder = builder.add_extension(each, critical=True)
    return builder.sign(KEY, hashes.SHA256()).public_bytes(serialization.Encoding.DER)


def slow_uris_of(der):
    extensions = x509.load_der_x509_certificate(der).extensions
    try:
        names = extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return ()
    return tuple(names.get_values_for_type(x509.UniformResourceIdentifier))


@pytest.mark.drawn
@given(URIS, DNS, st.booleans())
def test_the_uris_are_those_that_another_library_finds(uris, dns, critical):
    others = [x509.BasicConstraints(ca=False, path_length=None)]
    der = certificate(uris, dns, critical=critical, others=others)
    assert uris_of(der) == slow_uris_of(der) == tuple(uris)


@pytest.mark.drawn
@given(st.integers(0, 400), st.integers(0, 255))
def test_a_changed_byte_is_another_certificate_or_none(at, value):
    der = bytearray(certificate([Role.AUDITOR.uri]))
    der[at % len(der)] = value
    try:
        found = uris_of(bytes(der))
    except MalformedCertificate:
        found = ()
    assert all(isinstance(each, str) for each in found)


@pytest.mark.drawn
@given(st.binary(max_size=200))
def test_bytes_that_are_no_certificate_are_refused(data):
    with pytest.raises(MalformedCertificate):
        uris_of(data)


def test_a_certificate_that_is_cut_anywhere_is_refused():
    der = certificate([Role.AUDITOR.uri])
    for end in range(len(der)):
        with pytest.raises(MalformedCertificate):
            uris_of(der[:end])


@pytest.mark.parametrize(
    ("uri", "roles"),
    [
        ("ledger-gateway:role:reader", {Role.READER}),
        ("ledger-gateway:role:READER", set()),
        ("LEDGER-GATEWAY:role:reader", set()),
        ("ledger-gateway:role:reader ", set()),
        ("ledger-gateway:role:reader,auditor", set()),
        ("ledger-gateway:role:%72eader", set()),
        ("ledger-gateway:role:", set()),
        ("spiffe://cluster/ledger-gateway:role:reader", set()),
    ],
)
def test_a_role_is_written_in_one_way(uri, roles):
    assert roles_named([uri]) == roles


def test_a_certificate_may_have_several_roles(tmp_path):
    files = Authority(tmp_path / "ours", "ours").files("node", roles=["bookie", "auditor"])
    der = x509.load_pem_x509_certificate(files.cert.read_bytes()).public_bytes(
        serialization.Encoding.DER
    )
    assert roles_named(uris_of(der)) == {Role.BOOKIE, Role.AUDITOR}
