"""Goal: what leaves this machine in a bundle has no secrets.

Method: the usual forms of secrets in logs and settings, and texts that look like them and stay.
"""

from __future__ import annotations

import pytest

from gateway.admin.redaction import HIDDEN, hide, hide_in_text, is_secret

pytestmark = pytest.mark.unit
SECRET = "hunter2"
PEM = f"-----BEGIN PRIVATE KEY-----\n{SECRET}\n-----END PRIVATE KEY-----"


@pytest.mark.parametrize(
    "text",
    [
        f"password={SECRET}",
        f"ssl.keystore.password = {SECRET}, next=1",
        f'{{"sasl_password": "{SECRET}", "port": 9092}}',
        f"'api_key': '{SECRET}'",
        f'secret: "a \\" {SECRET}"',
        f"aws_secret_access_key={SECRET}",
        f"Authorization: Bearer {SECRET}",
        f"connecting to http://user:{SECRET}@registry:8081/subjects",
        f"kafka.ScramLoginModule required username=u password={SECRET};",
        f'sasl.jaas.config=org.X.PlainLoginModule required username="u" password="{SECRET}";',
        f'LoginModule required username="u" password="p;{SECRET}";',
        f"LoginModule required username='u' password='p;\\';{SECRET}';",
        f'LoginModule required password="p;{SECRET}',
        f'{{"c": "LoginModule required password=\\"p;{SECRET}\\";", "d": 1}}',
        f"https://user:s3cr/{SECRET}@host:8081/subjects",
        f"https://user:a@{SECRET}@host",
        f'https://user:a"{SECRET}@host',
        PEM,
        PEM.partition("-----END")[0],
        PEM.partition("KEY-----")[2],
        f'{{"event": "{{\\"password\\": \\"{SECRET}\\"}}"}}',
        f"--token={SECRET}",
        f"Passphrase: {SECRET}",
    ],
)
def test_secrets_are_hidden(text):
    assert SECRET in text
    assert SECRET not in hide_in_text(text)
    assert HIDDEN in hide_in_text(text)


@pytest.mark.parametrize(
    "text",
    [
        "retention.ms=604800000",
        "2026-05-01T12:00:00 started bookie=b1 address=127.0.0.1:3181",
        "http://localhost:9080/metrics",
        "the key of a record",
    ],
)
def test_other_text_stays(text):
    assert hide_in_text(text) == text


def test_the_user_part_ends_with_the_text_that_has_it():
    text = '{"url":"http://a:1/b","owner":"x@y"}'
    assert hide_in_text(text) == text


def test_long_lines_take_no_longer_than_others():
    text = f"{'password' * 10_000} {'a' * 50_000}://{'b' * 50_000} {'=' * 50_000}"
    assert hide_in_text(text) == text


def test_values_of_secret_names_are_hidden_in_data():
    data = {
        "ssl.truststore.password": SECRET,
        "nested": [{"scram": {"salt": SECRET, "iterations": 4096}}, f"token={SECRET}"],
        "retention.ms": "1",
        "password_set": True,
        "token": None,
    }
    assert hide(data) == {
        "ssl.truststore.password": HIDDEN,
        "nested": [{"scram": {"salt": HIDDEN, "iterations": 4096}}, f"token={HIDDEN}"],
        "retention.ms": "1",
        "password_set": True,
        "token": None,
    }


def test_names_of_secrets_are_known_and_others_are_not():
    assert all(map(is_secret, ["ssl.key.password", "sasl.jaas.config", "client_secret"]))
    assert not any(map(is_secret, ["retention.ms", "key", "cleanup.policy", "ssl.protocol"]))
