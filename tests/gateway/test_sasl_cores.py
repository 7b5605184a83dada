"""Goal: the cores of SASL and of certificates' names follow RFC 5802, RFC 2253 and Kafka.

Method: published examples, both sides of SCRAM against each other by Hypothesis, Kafka's own table
of rules, names against `cryptography`, and every order of requests. Planted mistakes: a nonce that
is not compared, a comparison whose time depends on the bytes, and a channel flag that is ignored.
"""

from __future__ import annotations

import ast
import base64
import hmac
import inspect
import itertools
import string

import pytest
from cryptography.hazmat.primitives.serialization import Encoding
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.core import sasl_session, scram_exchange
from gateway.core.distinguished_name import MalformedCertificate, subject_of
from gateway.core.principal_rules import PrincipalRules
from gateway.core.sasl_session import (
    Challenge,
    Failure,
    Illegal,
    Login,
    PasswordAsked,
    SaslSession,
    Stage,
    Unsupported,
)
from gateway.core.scram_credentials import Mechanism, Upsertion, derived
from gateway.core.scram_decoy import decoy, salt_of, usual_iterations
from gateway.core.scram_exchange import (
    MECHANISMS,
    ScramClient,
    ScramFailed,
    ScramServer,
    decode_name,
    encode_name,
    salted_password,
)
from gateway.server import logins
from tests.gateway.pki import Authority, name_of

BOTH = tuple(Mechanism)
ASCII = st.text(st.characters(min_codepoint=1, max_codepoint=127), min_size=1, max_size=20)


def credential(mechanism, password="pencil", salt=b"0123456789", iterations=4096):
    salted = salted_password(mechanism, password, salt, iterations)
    return derived(Upsertion("user", mechanism, iterations, salt, salted))


def server(mechanism=Mechanism.SHA_512, exists=True, nonce="SERVER"):
    keys = credential(mechanism)
    return ScramServer(mechanism, lambda name: (keys, exists), nonce)


# -- SCRAM -----------------------------------------------------------------------------------------


def test_the_example_of_the_rfc():
    salt = base64.b64decode("W22ZaJ0SNY7soEsUEjb6gQ==")
    keys = credential(Mechanism.SHA_256, salt=salt)
    side = ScramServer(
        Mechanism.SHA_256, lambda name: (keys, True), "%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0"
    )
    first = (
        b"r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096"
    )
    final = (
        b"c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,"
        b"p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ="
    )
    assert side.first(b"n,,n=user,r=rOprNGfwEbeRWgbNEkqO") == first
    assert side.final(final) == b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4="
    client = ScramClient(Mechanism.SHA_256, "user", "pencil", "rOprNGfwEbeRWgbNEkqO")
    assert client.first() == b"n,,n=user,r=rOprNGfwEbeRWgbNEkqO"
    assert client.final(first) == final
    assert client.check(b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4=") is None


@given(ASCII, st.text(max_size=30), st.sampled_from(BOTH), st.binary(min_size=1, max_size=40))
@settings(max_examples=30, deadline=None)
def test_both_sides_agree_for_every_name_and_password(name, password, mechanism, salt):
    keys = credential(mechanism, password, salt)
    side = ScramServer(mechanism, lambda user: (keys, user == name), "SERVER")
    client = ScramClient(mechanism, name, password, "CLIENT")
    client.check(side.final(client.final(side.first(client.first()))))
    assert side.user == name


@given(ASCII)
def test_a_name_is_written_so_that_it_can_be_read(name):
    written = encode_name(name)
    assert decode_name(written) == name
    assert "," not in written


@given(st.binary(max_size=60), st.binary(max_size=60))
def test_any_bytes_are_refused_without_another_error(first, final):
    side = server()
    with pytest.raises(ScramFailed):
        side.first(first)
        side.final(final)
        raise AssertionError(first, final)


def last_message(side, mechanism=Mechanism.SHA_512):
    client = ScramClient(mechanism, "user", "pencil", "CLIENT")
    return client.final(side.first(client.first()))


def replays(make=server):
    """True if the proof of one exchange is taken in another one, with another nonce."""
    recorded = last_message(make(nonce="FIRST"))
    side = make(nonce="SECOND")
    last_message(side)
    try:
        side.final(recorded)
    except ScramFailed:
        return False
    return True


def takes_nonce(make=server):
    """True if a last message with another nonce is taken, whose proof is right for this nonce."""
    side = make(nonce="SERVER")
    client = ScramClient(Mechanism.SHA_512, "user", "pencil", "CLIENT")
    first = side.first(client.first())
    final = client.final(first)
    unproved = b"c=biws,r=CLIENTsomething-else"
    keys = salted_password(Mechanism.SHA_512, "pencil", b"0123456789", 4096)
    client_key = hmac.digest(keys, b"Client Key", "sha512")
    stored = credential(Mechanism.SHA_512).stored_key
    signed = client.first()[3:] + b"," + first + b"," + unproved
    signature = hmac.digest(stored, signed, "sha512")
    proof = bytes(a ^ b for a, b in zip(client_key, signature, strict=True))
    assert final.startswith(b"c=biws,r=CLIENTSERVER")
    try:
        side.final(unproved + b",p=" + base64.b64encode(proof))
    except ScramFailed:
        return False
    return True


class NonceUnchecked(ScramServer):
    """Plants: the nonce of the last message is not compared (CVE-2024-56128)."""

    def final(self, message):
        self._nonce = scram_exchange._parse(scram_exchange._CLIENT_FINAL, message)["nonce"]
        return super().final(message)


def unchecked(nonce):
    keys = credential(Mechanism.SHA_512)
    return NonceUnchecked(Mechanism.SHA_512, lambda name: (keys, True), nonce)


def test_the_nonce_is_compared_and_a_server_that_does_not_is_found():
    assert not replays()
    assert not takes_nonce()
    assert takes_nonce(unchecked)


def compared_in(source):
    """Return the names of secrets that `==` or `!=` compares: its time depends on the bytes."""
    secret = ("key", "proof", "signature", "expected", "found", "nonce")
    names = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Compare) and isinstance(node.ops[0], (ast.Eq, ast.NotEq)):
            sides = [ast.unparse(each) for each in (node.left, *node.comparators)]
            if any("len(" in each for each in sides):
                continue
            names |= {each for each in sides if each.split(".")[-1].endswith(secret)}
    return names


def test_secrets_are_compared_in_constant_time_and_other_comparisons_are_found():
    # A client compares its own nonce with the one that came back, and `key` is one of an API there.
    allowed = {scram_exchange: {"nonce", "self._nonce"}, sasl_session: {"key"}, logins: set()}
    for module, names in allowed.items():
        assert compared_in(inspect.getsource(module)) <= names
    source = inspect.getsource(scram_exchange)
    planted = source.replace(
        "hmac.compare_digest(key, credential.stored_key)", "key == credential.stored_key"
    )
    assert planted != source
    assert "credential.stored_key" in compared_in(planted)


def test_a_user_that_does_not_exist_fails_at_the_last_message_only():
    side = server(exists=False)
    final = last_message(side)
    with pytest.raises(ScramFailed, match="no such user"):
        side.final(final)


@pytest.mark.parametrize("iterations", ["1", "4095", "1000001", "9999999999"])
def test_a_client_computes_only_a_bounded_number_of_iterations(iterations):
    client = ScramClient(Mechanism.SHA_256, "user", "pencil", "CLIENT")
    with pytest.raises(ScramFailed, match="iterations"):
        client.final(f"r=CLIENTx,s=MDEyMw==,i={iterations}".encode())


@pytest.mark.parametrize("nonce", ["CLIENT", "OTHERx", "CLIEN"])
def test_a_client_refuses_a_nonce_that_is_not_its_own(nonce):
    client = ScramClient(Mechanism.SHA_256, "user", "pencil", "CLIENT")
    with pytest.raises(ScramFailed, match="nonce"):
        client.final(f"r={nonce},s=MDEyMw==,i=4096".encode())


def test_a_client_refuses_a_server_without_the_keys():
    client = ScramClient(Mechanism.SHA_256, "user", "pencil", "CLIENT")
    client.final(b"r=CLIENTx,s=MDEyMw==,i=4096")
    with pytest.raises(ScramFailed, match="does not prove"):
        client.check(b"v=" + base64.b64encode(bytes(32)))


def test_made_up_keys_are_stable_and_differ_by_name_mechanism_and_cluster():
    made = [
        decoy(secret, mechanism, name, 4096)
        for secret, mechanism, name in itertools.product((b"1" * 32, b"2" * 32), BOTH, ("a", "b"))
    ]
    assert len({each.salt for each in made}) == len(made)
    assert made[0] == decoy(b"1" * 32, BOTH[0], "a", 4096)
    assert all(
        set(each.salt.decode()) <= set(string.digits + string.ascii_lowercase) for each in made
    )
    assert len(salt_of(b"\xff" * 32)) == 26
    assert [usual_iterations(each) for each in ([], [4096, 8192, 8192])] == [8192, 8192]


# -- the session -----------------------------------------------------------------------------------

KEYS = {mechanism: credential(mechanism) for mechanism in BOTH}


def session(mechanisms=sasl_session.SUPPORTED, lifetime_s=0.0):
    return SaslSession(
        mechanisms,
        lambda mechanism, name: (KEYS[mechanism], name == "user"),
        lambda: "N",
        lifetime_s,
    )


def log_in(one, now_s=0.0, mechanism="SCRAM-SHA-512", user="user"):
    one.allow(17)
    one.on_handshake(1, mechanism)
    client = ScramClient(MECHANISMS[mechanism], user, "pencil", "CLIENT")
    one.allow(36)
    challenge = one.on_token(client.first(), now_s)
    assert isinstance(challenge, Challenge)
    return one.on_token(client.final(challenge.token), now_s)


@given(st.lists(st.sampled_from([0, 3, 13, 17, 18, 36]), max_size=5))
def test_only_the_requests_of_a_login_are_allowed_in_their_order(keys):
    one, allowed = session(), {Stage.START: {17, 18}, Stage.VERSIONS: {17}, Stage.TOKENS: {36}}
    for key in keys:
        before = one.stage
        if key not in allowed.get(before, set()):
            with pytest.raises(Illegal):
                one.allow(key)
            assert one.stage is Stage.FAILED
            continue
        one.allow(key)
        if key == 18:
            one.on_versions()
        elif key == 17:
            one.on_handshake(1, "SCRAM-SHA-256")
        else:
            assert isinstance(one.on_token(b"nonsense", 0.0), Failure)
    assert one.login is None


def test_a_session_has_a_lifetime_and_the_same_user():
    one = session(lifetime_s=10.0)
    first = log_in(one)
    assert isinstance(first, Login)
    assert first.lifetime_ms == 10_000
    assert (one.is_expired(10.0), one.is_expired(10.1)) == (False, True)
    assert one.begins_again(17, 9.0)
    assert isinstance(log_in(one, 9.0), Login)
    assert not one.is_expired(18.0)
    assert not one.begins_again(17, 9.5)
    assert not one.begins_again(3, 18.0)
    assert one.begins_again(17, 18.0)
    one.on_handshake(1, "SCRAM-SHA-256")
    with pytest.raises(Illegal):
        one.on_token(b"n,,n=user,r=c", 18.0)


def test_without_a_lifetime_there_is_no_other_authentication():
    one = session()
    assert log_in(one).lifetime_ms == 0
    assert not one.begins_again(17, 1e9)
    assert not one.is_expired(1e9)


def test_plain_asks_for_the_check_of_a_password():
    one = session()
    one.on_handshake(1, "PLAIN")
    asked = one.on_token("\0user\0päss".encode(), 0.0)
    assert asked == PasswordAsked("user", "päss".encode())
    assert "ss" not in repr(asked).removeprefix("PasswordAsked")
    assert isinstance(one.checked(asked, None, 0.0), Failure)
    one = session()
    one.on_handshake(1, "PLAIN")
    one.on_token(b"user\0user\0pass", 0.0)
    login = one.checked(asked, KEYS[Mechanism.SHA_512], 0.0)
    assert (login.user, login.mechanism, one.stage) == ("user", "PLAIN", Stage.COMPLETE)


def test_a_mechanism_that_is_not_enabled_is_unsupported():
    with pytest.raises(Unsupported):
        session(("SCRAM-SHA-256",)).on_handshake(1, "SCRAM-SHA-512")


# -- names of certificates -------------------------------------------------------------------------

DN = "CN=Duke,OU=ServiceUsers,O=Org,C=US"


@pytest.mark.parametrize(
    ("rules", "name", "wanted"),
    [
        ("DEFAULT", DN, DN),
        ("RULE:^CN=(.*?),OU=ServiceUsers.*$/$1/", DN, "Duke"),
        ("RULE:^CN=(.*?),OU=ServiceUsers.*$/$1@$2/", DN, "Duke@$2"),
        ("RULE:^CN=(.*?),OU=ServiceUsers.*$/$1/L", DN, "duke"),
        ("RULE:^CN=(.*?),OU=(.*?),O=(.*?),C=(.*?)$/$1@$2/U", DN, "DUKE@SERVICEUSERS"),
        ("RULE:^.*[Cc][Nn]=([a-zA-Z0-9.]*).*$/$1/U , DEFAULT", DN, "DUKE"),
        ("RULE:^cn=(.*)$/$1/,DEFAULT", DN, DN),
        ("RULE:^cn=(.*)$/$1/", DN, None),
        ("RULE:^CN=(.*?),.*$/$10/", DN, "Duke0"),
        (r"RULE:^CN=(.*?),OU=\w+\,.*$/a\/$1\$/", "CN=x,OU=y,z", r"a/x$"),
        (r"RULE:^CN=(\w+)$/$0-$1/,RULE:.*/other/", "CN=x", "CN=x-x"),
        ("RULE:CN=(.*)/$1/, , DEFAULT", "CN=x", "x"),
    ],
)
def test_rules_name_principals_as_kafka_does(rules, name, wanted):
    assert PrincipalRules(rules).principal(name) == wanted


@pytest.mark.parametrize(
    "rules",
    [
        *(
            "",
            "default",
            "DEFAULT"[:-1],
            "DEFAULT/L",
            "DEFAULT/U",
            "RULE:CN",
            "RULE:^CN=(.*?),OU/$1",
        ),
        *(
            "RULE:^CN=(.*?)/$1/X",
            "RULE:(/x/",
            "RULE:CN=(.*)/$a/",
            "RULE:CN/$1/",
            "RULE:[/x/L,DEFAULT",
        ),
    ],
)
def test_rules_of_another_form_are_refused(rules):
    with pytest.raises(ValueError):
        PrincipalRules(rules)


@given(st.text(max_size=40), st.text(max_size=60))
def test_no_rule_fails_on_a_name(rules, name):
    try:
        parsed = PrincipalRules(rules)
    except ValueError as fault:
        assert str(fault)
        return
    found = parsed.principal(name)
    assert found is None or isinstance(found, str)


NAMES = [
    ([("COMMON_NAME", "client")], "CN=client"),
    (
        [("COUNTRY_NAME", "DE"), ("ORGANIZATION_NAME", "O, Inc"), ("COMMON_NAME", "a b")],
        r"CN=a b,O=O\, Inc,C=DE",
    ),
    ([("COMMON_NAME", ' #=x+"\\<>; ')], r"CN=\ \#\=x\+\"\\\<\>\;\ "),
    ([("STATE_OR_PROVINCE_NAME", "S"), ("LOCALITY_NAME", "ü")], "L=ü,ST=S"),
    ([("USER_ID", "u"), ("DOMAIN_COMPONENT", "d")], "DC=d,UID=u"),
    ([("STREET_ADDRESS", "s"), ("ORGANIZATIONAL_UNIT_NAME", "o")], "OU=o,STREET=s"),
    ([("EMAIL_ADDRESS", "a@b")], "1.2.840.113549.1.9.1=#1603614062"),
    ([("SERIAL_NUMBER", "7"), ("COMMON_NAME", "x")], "CN=x,2.5.4.5=#130137"),
    ([], ""),
]


@pytest.fixture(scope="module")
def authority(tmp_path_factory):
    return Authority(tmp_path_factory.mktemp("pki") / "ca")


@pytest.mark.parametrize(("parts", "wanted"), NAMES)
def test_a_subject_is_written_as_java_does(parts, wanted, authority):
    certificate, _, _ = authority.issue(name_of(*parts))
    assert subject_of(certificate.public_bytes(Encoding.DER)) == wanted


def test_damaged_certificates_are_refused(authority):
    data = authority.certificate.public_bytes(Encoding.DER)
    assert subject_of(data) == "CN=authority"
    for cut in range(120):
        with pytest.raises(MalformedCertificate):
            subject_of(data[:cut])


@given(st.binary(max_size=80))
def test_any_bytes_are_refused_as_a_certificate(data):
    with pytest.raises(MalformedCertificate):
        subject_of(data)
