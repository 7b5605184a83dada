"""Goal: SCRAM credentials are checked, stored and described as in Kafka 4.3, and stay secret.

Method: AlterUserScramCredentials and DescribeUserScramCredentials as real requests over the
simulator's store. The expected codes and texts are answers of a broker 4.3; the derived keys are
compared with RFC 7677's example. Logs, answers and the store are searched for passwords.
"""

import asyncio
import base64
import hashlib
import hmac
import logging

import pytest
from kio.schema.errors import ErrorCode

from gateway.core.scram_credentials import Credential, Mechanism, Upsertion, derived
from gateway.handlers import k50_describe_user_scram_credentials, k51_alter_user_scram_credentials
from gateway.settings.scram_users import ROOT
from gateway.settings.stored_settings import StoredSettings
from ledger.errors import MetadataUnavailable
from tests.gateway.handler_cluster import loaded_cluster
from tests.sim.turns import turns_during

SECRET = b"the salted password, which must not be stored or logged"
SALT = b"salt"
OK = (ErrorCode.none, None)
TWICE = (
    ErrorCode.duplicate_resource,
    "A user credential cannot be altered twice in the same request",
)
FEW = (ErrorCode.unacceptable_credential, "Too few iterations")
UNKNOWN = (ErrorCode.unsupported_sasl_mechanism, "Unknown SCRAM mechanism")
EMPTY = (ErrorCode.unacceptable_credential, "Username must not be empty")
ABSENT = (
    ErrorCode.resource_not_found,
    "Attempt to delete a user credential that does not exist",
)


async def altered(cluster, upsertions=(), deletions=()):
    """Alter users by (name, mechanism, iterations, password) and (name, mechanism)."""
    answer = await cluster.ask(
        k51_alter_user_scram_credentials,
        0,
        deletions=[{"name": name, "mechanism": mechanism} for name, mechanism in deletions],
        upsertions=[
            {
                "name": name,
                "mechanism": mechanism,
                "iterations": iterations,
                "salt": SALT,
                "salted_password": (*password, SECRET)[0],
            }
            for name, mechanism, iterations, *password in upsertions
        ],
    )
    return {row.user: (row.error_code, row.error_message) for row in answer.results}


async def described(cluster, *names):
    users = [{"name": name} for name in names] if names else None
    answer = await cluster.ask(k50_describe_user_scram_credentials, 0, users=users)
    assert (answer.error_code, answer.error_message) == (ErrorCode.none, "")
    return {
        row.user: [(each.mechanism, each.iterations) for each in row.credential_infos]
        if row.error_code is ErrorCode.none
        else (row.error_code, row.error_message)
        for row in answer.results
    }


async def test_credentials_are_stored_replaced_and_deleted():
    async with loaded_cluster() as cluster:
        assert await altered(cluster, [("ann", 1, 4096), ("bob", 2, 16384)]) == {
            "ann": OK,
            "bob": OK,
        }
        assert await altered(cluster, [("ann", 2, 5000)]) == {"ann": OK}
        both = {"ann": [(1, 4096), (2, 5000)], "bob": [(2, 16384)]}
        assert await described(cluster) == both
        assert await altered(cluster, [("bob", 2, 4097)], [("ann", 1)]) == {"ann": OK, "bob": OK}
        assert await described(cluster) == {"ann": [(2, 5000)], "bob": [(2, 4097)]}
        await altered(cluster, [], [("ann", 2), ("bob", 2)])
        assert await described(cluster) == {}
        assert await cluster.store.children(ROOT) == []


@pytest.mark.parametrize(
    ("upsertion", "answer"),
    [
        (("ann", 1, 4095), FEW),
        (("ann", 1, -1), FEW),
        (("ann", 1, 16385), (ErrorCode.unacceptable_credential, "Too many iterations")),
        (("ann", 0, 4096), UNKNOWN),
        (("ann", 3, 1), UNKNOWN),
        (("ann", -1, 4096), UNKNOWN),
        (("", 9, 4096), EMPTY),
        (("ann", 1, 4096, b""), (ErrorCode.unknown_server_error, None)),
        (("ann", 1, 1, b""), FEW),
    ],
)
async def test_a_credential_that_kafka_refuses_is_refused(upsertion, answer):
    async with loaded_cluster() as cluster:
        assert await altered(cluster, [upsertion, ("bob", 1, 4096)]) == {
            upsertion[0]: answer,
            "bob": OK,
        }
        assert await described(cluster) == {"bob": [(1, 4096)]}


@pytest.mark.parametrize(
    ("deletion", "answer"), [(("ann", 1), ABSENT), (("ann", 9), UNKNOWN), (("", 1), EMPTY)]
)
async def test_a_deletion_that_kafka_refuses_is_refused(deletion, answer):
    async with loaded_cluster() as cluster:
        assert await altered(cluster, [], [deletion]) == {deletion[0]: answer}


@pytest.mark.parametrize(
    ("upsertions", "deletions", "answer"),
    [
        ([("q", 1, 4096), ("q", 1, 4096)], [], TWICE),
        ([("q", 1, 4096), ("q", 2, 4096)], [], TWICE),
        ([("q", 1, 4096), ("q", 9, 4096)], [], TWICE),
        ([("q", 9, 4096), ("q", 1, 4096)], [], UNKNOWN),
        ([("q", 1, 1), ("q", 1, 1)], [], FEW),
        ([("q", 1, 4096)], [("q", 1)], ABSENT),
        ([], [("q", 1), ("q", 1)], ABSENT),
    ],
)
async def test_a_user_is_altered_at_most_once_in_a_request(upsertions, deletions, answer):
    async with loaded_cluster() as cluster:
        assert await altered(cluster, upsertions, deletions) == {"q": answer}
        assert await described(cluster) == {}


async def test_a_user_that_exists_is_not_both_deleted_and_replaced():
    async with loaded_cluster() as cluster:
        await altered(cluster, [("q", 1, 5000)])
        assert await altered(cluster, [("q", 2, 4096)], [("q", 1)]) == {"q": TWICE}
        assert await described(cluster) == {"q": [(1, 5000)]}


async def test_users_are_described_by_name():
    async with loaded_cluster() as cluster:
        await altered(cluster, [("ann", 1, 4096), ("a=b,c/ü", 1, 4096)])
        absent = "Attempt to describe a user credential that does not exist: "
        twice = "Cannot describe SCRAM credentials for the same user twice in a single request: "
        assert await described(cluster, "ann", "a=b,c/ü", "bob", "", "eve", "eve") == {
            "ann": [(1, 4096)],
            "a=b,c/ü": [(1, 4096)],
            "bob": (ErrorCode.resource_not_found, absent + "bob"),
            "": (ErrorCode.resource_not_found, absent),
            "eve": (ErrorCode.duplicate_resource, twice + "eve"),
        }


def test_the_keys_are_those_of_the_rfc():
    # RFC 7677, section 3: user "user", password "pencil".
    salt = base64.b64decode("W22ZaJ0SNY7soEsUEjb6gQ==")
    password = hashlib.pbkdf2_hmac("sha256", b"pencil", salt, 4096)
    found = derived(Upsertion("user", Mechanism.SHA_256, 4096, salt, password))
    nonce = "rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0"
    message = (
        f"n=user,r=rOprNGfwEbeRWgbNEkqO,r={nonce},"
        f"s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096,c=biws,r={nonce}"
    ).encode()
    signature = hmac.digest(found.stored_key, message, "sha256")
    proof = base64.b64decode("dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ=")
    client_key = bytes(a ^ b for a, b in zip(signature, proof, strict=True))
    assert hashlib.sha256(client_key).digest() == found.stored_key
    verifier = base64.b64encode(hmac.digest(found.server_key, message, "sha256"))
    assert verifier == b"6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4="


async def test_another_gateway_reads_the_credential():
    async with loaded_cluster() as cluster:
        other = StoredSettings(cluster.store)
        await other.load()
        await altered(cluster, [("ann", 2, 4096)])
        while other.scram.credential("ann", Mechanism.SHA_512) is None:
            await asyncio.sleep(0.01)
        found = other.scram.credential("ann", Mechanism.SHA_512)
        assert found == derived(Upsertion("ann", 2, 4096, SALT, SECRET))
        assert other.scram.credential("ann", Mechanism.SHA_256) is None
        await other.close()


# no secret leaves the gateway


async def test_the_store_keeps_no_salted_password():
    async with loaded_cluster() as cluster:
        await altered(cluster, [("ann", 1, 4096)])
        for node in (await cluster.store.read_tree(ROOT)).values():
            assert SECRET not in node.data
            assert base64.b64encode(SECRET) not in node.data


def test_a_credential_shows_no_secret():
    change = Upsertion("ann", 1, 4096, SALT, SECRET)
    for shown in (repr(change), str(change), f"{change}", repr(derived(change))):
        assert "salt" not in shown
        assert "secret" not in shown.lower()
    assert repr(Credential(4096, b"a", b"b", b"c")) == "Credential(iterations=4096)"


async def test_a_failure_of_the_store_logs_no_secret(caplog, capsys):
    async with loaded_cluster() as cluster:

        async def fail(*arguments, **options):
            raise MetadataUnavailable("down")

        cluster.store.create = fail
        with caplog.at_level(logging.DEBUG):
            (answer,) = (await altered(cluster, [("ann", 1, 4096)])).values()
    assert answer[0] not in (ErrorCode.none, ErrorCode.unknown_server_error)
    out, err = capsys.readouterr()
    for text in (caplog.text, out, err, str(answer)):
        assert SECRET.decode() not in text


@pytest.mark.parametrize(
    ("name", "salt", "fault"),
    [
        ("ann", bytes(1025), "The salt is longer than 1024 bytes"),
        ("a" * 1025, SALT, "The name is longer than 1024 bytes"),
        ("ä" * 513, SALT, "The name is longer than 1024 bytes"),
        ("ä" * 512, bytes(1024), None),
    ],
)
async def test_a_long_name_or_salt_is_refused(name, salt, fault):
    async with loaded_cluster() as cluster:
        answer = await cluster.ask(
            k51_alter_user_scram_credentials,
            0,
            deletions=[],
            upsertions=[
                {
                    "name": name,
                    "mechanism": 1,
                    "iterations": 4096,
                    "salt": salt,
                    "salted_password": SECRET,
                }
            ],
        )
        code = ErrorCode.none if fault is None else ErrorCode.unacceptable_credential
        assert answer.results[0].error_code is code
        assert answer.results[0].error_message == fault
        assert await described(cluster) == ({name: [(1, 4096)]} if fault is None else {})


@pytest.mark.parametrize("mechanism", [1, 2])
async def test_a_salted_password_longer_than_any_digest_is_refused(mechanism):
    async with loaded_cluster() as cluster:
        codes = {}
        for size in (64, 65):
            user = (f"user-{size}", mechanism, 4096, bytes(size))
            codes |= await altered(cluster, [user])
        assert codes == {
            "user-64": (ErrorCode.none, None),
            "user-65": (
                ErrorCode.unacceptable_credential,
                "The salted password is longer than 64 bytes",
            ),
        }


async def test_other_tasks_run_while_very_many_users_are_refused():
    async with loaded_cluster() as cluster:
        users = [(f"user-{number}", 1, 1) for number in range(20_000)]
        answers, turns = await turns_during(altered(cluster, users))
        assert set(answers.values()) == {FEW}
        assert len(answers) == 20_000
        assert turns >= 100
