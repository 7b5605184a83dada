"""Goal: jobs on Spark send a secret where it belongs, and read it once.

Method: the accesses of an audit of two clusters, and the keys that executors get.
"""

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from gateway.admin.client_settings import ClientSettings
from gateway.pipelines.audit_command import accesses_of
from gateway.pipelines.audits.sources import SourceAccess
from gateway.pipelines.shared.errors import JobError
from gateway.pipelines.shared.kafka_servers import _pkcs8, job_servers

KEYS = {"security.protocol": "SASL_SSL", "sasl.password": "of-here"}
HERE = SourceAccess("here:9093")
BOTH = {"kafka.ssl.truststore.location": "/ca.pem"}


def test_an_audit_sends_the_keys_of_one_cluster_to_no_other():
    left, right = accesses_of(
        HERE.with_options(BOTH), KEYS, "there:9093", {"kafka.sasl.password": "of-there"}
    )
    assert left.client == {**KEYS, "ssl.truststore.location": "/ca.pem"}
    assert right.bootstrap == "there:9093"
    assert right.client == {"ssl.truststore.location": "/ca.pem", "sasl.password": "of-there"}


def test_an_audit_of_one_cluster_logs_in_at_both_sides():
    left, right = accesses_of(HERE.with_options({"kafka.sasl.password": "new"}), KEYS, "", {})
    assert left == right
    assert left.client["sasl.password"] == "new"


@pytest.mark.parametrize("password", ["env:HOME-secret", "file:/etc/shadow"])
def test_a_password_that_looks_like_a_reference_is_read_no_second_time(password, tmp_path):
    file = tmp_path / "password"
    file.write_text(password)
    file.chmod(0o600)
    keys = {
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "SCRAM-SHA-256",
        "sasl.username": "ann",
        "sasl.password": f"file:{file}",
    }
    with pytest.raises(JobError, match="begins with file: or env:") as refused:
        job_servers(ClientSettings("h:1", keys), {})
    assert "secret" not in str(refused.value) and "shadow" not in str(refused.value)


@pytest.mark.parametrize("passphrase", [b"", b"of the key"])
@pytest.mark.parametrize("form", ["TraditionalOpenSSL", "PKCS8"])
def test_kafkas_client_gets_every_private_key_in_the_form_that_it_reads(form, passphrase, tmp_path):
    key = ec.generate_private_key(ec.SECP256R1())
    hidden = serialization.BestAvailableEncryption(passphrase) if passphrase else NoEncryption()
    written = key.private_bytes(Encoding.PEM, getattr(PrivateFormat, form), hidden).decode()
    sent = _pkcs8(written, passphrase.decode())
    assert sent.startswith("-----BEGIN PRIVATE KEY-----\n")
    read = serialization.load_pem_private_key(sent.encode(), None)
    assert read.private_numbers() == key.private_numbers()
    if not passphrase:
        assert _pkcs8(written, "of another key") == sent


def test_a_file_that_an_option_names_takes_the_place_of_what_was_read_before():
    whole = {"ssl.truststore.certificates": "PEM", "ssl.truststore.type": "PEM"}
    found = HERE._replace(client=whole).with_options(BOTH)
    assert found.client == {"ssl.truststore.type": "PEM", "ssl.truststore.location": "/ca.pem"}
